// What somebody has sent: the text, the files and the pictures that went with it.

import { splitFiles } from "./attachments";
import { button, h, replace } from "./dom";
import type { Turn } from "./types";
import { count, size } from "./words";

export interface PromptActs {
  /** A picture that went with the prompt of a turn, as a `data:` URL. */
  image(turn: number, number: number): Promise<string>;
  /** Writes the message of a turn anew; absent where that cannot be done. */
  edit?(turn: Turn): void;
  /** Has a turn that failed done again; `begun` says whether Claude had answered anything. Absent where that cannot be done. */
  again?(turn: Turn, begun: boolean): Promise<void>;
}

export class PromptView {
  readonly element: HTMLElement;
  private readonly text = h("p", { class: "prompt", dir: "auto" });
  private readonly more = h("div", { class: "prompt-more" });
  private drawn = "";
  private turn: Turn | null = null;

  constructor(private readonly acts: PromptActs) {
    this.element = h("div", { class: "sent" }, this.text, this.more);
  }

  /** `sent` are pictures and documents that this page has sent itself, and need not be fetched. */
  update(turn: Turn, sent: readonly string[] = []): void {
    this.turn = turn;
    const pictures = sent.filter((data) => data.startsWith("data:image/"));
    const { text, files } = splitFiles(turn.prompt ?? "");
    const images = Math.max(turn.images ?? 0, pictures.length);
    // A picture alone is shown, and the words that stand for it in a transcript are not.
    const documents = Math.max(turn.documents ?? 0, sent.length - pictures.length);
    const words = (images && text === "[image]") || (documents && text === "[document]") ? "" : text;
    this.text.textContent = words;
    this.text.hidden = !words;
    this.element.hidden = !words && !files.length && !images && !documents;
    const drawn = JSON.stringify([files.map(({ name }) => name), images, pictures.length, documents]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    replace(this.more,
      ...files.map((file) => h("details", { class: "attached" }, h("summary", null, `${file.name} · ${size(file.text.length)}`), h("pre", null, file.text))),
      documents > 0 && h("p", { class: "hint" }, `${count(documents, "PDF document")} attached`),
      images > 0 && this.pictures(turn.number, images, pictures),
      this.acts.edit && button("Edit", () => this.acts.edit?.(this.turn ?? turn), { class: "quiet edit", aria: { label: "Edit this message and send it again" } }));
  }

  private pictures(turn: number, images: number, here: readonly string[]): HTMLElement {
    const place = h("div", { class: "sent-pictures" });
    if (here.length) replace(place, ...here.map((data, at) => picture(data, `Picture ${at + 1}`)));
    // Each may have megabytes: they are fetched when somebody wants to see them.
    else place.append(button(`Show ${count(images, "picture")}`, () => void this.fetch(place, turn, images), { class: "quiet" }));
    return place;
  }

  private async fetch(place: HTMLElement, turn: number, images: number): Promise<void> {
    try {
      const data = await Promise.all([...Array(images).keys()].map((at) => this.acts.image(turn, at)));
      replace(place, ...data.map((url, at) => picture(url, `Picture ${at + 1}`)));
    } catch (error) {
      replace(place, h("p", { class: "hint" }, error instanceof Error ? error.message : String(error)));
    }
  }
}

function picture(data: string, name: string): HTMLImageElement {
  const image = h("img", { class: "picture" });
  image.alt = name;
  image.src = data;
  return image;
}
