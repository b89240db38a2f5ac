// Completes what is being typed: a slash command at the beginning, a file behind an @.

import { get, sessionPath } from "./api";
import { freshId, h } from "./dom";

const DELAY = 120;
const MOST = 8;

export class Completion {
  readonly element: HTMLElement;
  private readonly list: HTMLUListElement;
  private choices: string[] = [];
  private at = 0;
  private request = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private commands: Promise<string[]> | null = null;

  constructor(private readonly session: () => string, private readonly input: () => HTMLTextAreaElement, private readonly changed: () => void) {
    this.list = h("ul", { id: freshId("completions"), role: "listbox", class: "completions", aria: { label: "Suggestions" } });
    this.element = h("div", { class: "completion", hidden: true }, this.list);
  }

  /** Something was typed, or the caret has moved. */
  update(): void {
    clearTimeout(this.timer);
    const typed = this.typed();
    if (typed === null) return this.hide();
    this.timer = setTimeout(() => void this.find(typed), DELAY);
  }

  /** Takes the keys that move in the list and choose from it. */
  key(event: KeyboardEvent): boolean {
    if (this.element.hidden || event.isComposing) return false;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.at = (this.at + step + this.choices.length) % this.choices.length;
      this.draw();
    } else if (event.key === "Enter" || event.key === "Tab") {
      this.choose(this.choices[this.at] as string);
    } else if (event.key === "Escape") {
      this.hide();
    } else {
      return false;
    }
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  hide(): void {
    clearTimeout(this.timer);
    this.request += 1;
    this.element.hidden = true;
    this.choices = [];
    this.input().removeAttribute("aria-activedescendant");
  }

  /** What stands before the caret: the mark and the text behind it. */
  private typed(): { mark: "/" | "@"; text: string } | null {
    const { value, selectionStart, selectionEnd } = this.input();
    if (selectionStart !== selectionEnd) return null;
    const before = value.slice(Math.max(0, selectionStart - 300), selectionStart);
    if (selectionStart <= 300) {
      const command = /^\/([\w:-]*)$/.exec(before);
      if (command !== null) return { mark: "/", text: command[1] as string };
    }
    const file = /(?:^|\s)@([^\s@]*)$/.exec(before);
    return file === null ? null : { mark: "@", text: file[1] as string };
  }

  private async find(typed: { mark: "/" | "@"; text: string }): Promise<void> {
    const number = (this.request += 1);
    let found: string[];
    try {
      found = typed.mark === "/" ? await this.findCommands(typed.text) : await this.findFiles(typed.text);
    } catch {
      return this.hide(); // what is typed is sent as it is
    }
    if (number !== this.request) return;
    this.choices = found.slice(0, MOST);
    this.at = 0;
    const exact = this.choices.length === 1 && this.choices[0] === `${typed.mark}${typed.text}`;
    if (!this.choices.length || exact) return this.hide();
    this.element.hidden = false;
    this.draw();
  }

  private async findCommands(text: string): Promise<string[]> {
    this.commands ??= get<{ commands: string[] }>(sessionPath(this.session(), "commands")).then(({ commands }) => commands);
    this.commands.catch(() => (this.commands = null));
    const all = await this.commands;
    const wanted = text.toLowerCase();
    const hits = all.filter((name) => name.toLowerCase().includes(wanted));
    return hits.sort((one, other) => Number(other.startsWith(wanted)) - Number(one.startsWith(wanted))).map((name) => `/${name}`);
  }

  private async findFiles(text: string): Promise<string[]> {
    const { files } = await get<{ files: string[] }>(sessionPath(this.session(), `files?${new URLSearchParams({ text })}`));
    return files.map((path) => `@${path}`);
  }

  private choose(choice: string): void {
    const input = this.input();
    const start = input.selectionStart - ((this.typed()?.text.length ?? 0) + 1);
    input.setRangeText(`${choice} `, Math.max(0, start), input.selectionStart, "end");
    this.hide();
    input.focus({ preventScroll: true });
    this.changed();
  }

  private draw(): void {
    const rows = this.choices.map((choice, at) => h("li", { id: `${this.list.id}-${at}`, role: "option", aria: { selected: at === this.at },
      on: { pointerdown: (event) => event.preventDefault(), click: () => this.choose(choice) } }, choice));
    this.list.replaceChildren(...rows);
    this.input().setAttribute("aria-activedescendant", `${this.list.id}-${this.at}`);
  }
}
