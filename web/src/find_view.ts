// Finds a text in the whole conversation and leads to where it stands.

import { get, messageOf, sessionPath } from "./api";
import { button, freshId, h, replace } from "./dom";

interface Found {
  turn: number;
  itemId?: string | null;
  excerpt: string;
}

const DELAY = 250;

export class FindView {
  readonly element: HTMLElement;
  private readonly input: HTMLInputElement;
  private readonly note = h("span", { class: "hint", role: "status" });
  private readonly list = h("ol", { class: "found-list", role: "list" });
  private request = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly session: () => string, private readonly jump: (turn: number, itemId: string | null) => Promise<void>) {
    const id = freshId("find");
    this.input = h("input", { type: "search", id, placeholder: "Find in this conversation", autocomplete: "off",
      on: { input: () => this.typed(), keydown: (event) => this.key(event) } });
    this.element = h("div", { class: "find", role: "search", hidden: true }, h("label", { class: "spoken", for: id }, "Find in this conversation"),
      h("div", { class: "find-row" }, this.input, this.note, button("Close", () => this.toggle(), { class: "quiet" })), this.list);
  }

  toggle(): void {
    this.element.hidden = !this.element.hidden;
    if (!this.element.hidden) this.input.focus();
  }

  /** Looks for a text that was found elsewhere, and shows its newest place; what is nowhere stays unsaid. */
  async seek(text: string): Promise<void> {
    this.input.value = text;
    const [first] = await this.find();
    this.element.hidden = first === undefined;
    if (first !== undefined) await this.show(first);
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "Escape") this.toggle();
    else if (event.key === "Enter") this.list.querySelector("button")?.click();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private typed(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.find(), DELAY);
  }

  private async find(): Promise<readonly Found[]> {
    const number = (this.request += 1);
    const text = this.input.value.trim();
    if (text.length < 2) {
      this.note.textContent = "";
      replace(this.list);
      return [];
    }
    try {
      const { found } = await get<{ found: Found[] }>(sessionPath(this.session(), `find?${new URLSearchParams({ text })}`));
      if (number !== this.request) return [];
      this.note.textContent = found.length ? `${found.length}${found.length >= 100 ? "+" : ""} found` : "Nothing found";
      replace(this.list, ...found.map((hit) => h("li", null,
        button(`${hit.turn}. ${hit.excerpt}`, () => void this.show(hit), { class: "quiet" }))));
      return found;
    } catch (error) {
      if (number === this.request) this.note.textContent = messageOf(error);
      return [];
    }
  }

  private async show(hit: Found): Promise<void> {
    try {
      await this.jump(hit.turn, hit.itemId ?? null);
    } catch (error) {
      this.note.textContent = messageOf(error);
    }
  }
}
