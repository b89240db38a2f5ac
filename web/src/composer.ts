// The next message: grows with its text, takes pictures, sends with Enter where there is a keyboard.

import { messageOf } from "./api";
import { button, freshId, h } from "./dom";

const TALLEST = 240;
const LARGEST_IMAGE = 8 << 20;
const MOST_IMAGES = 6;
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export class Composer {
  readonly element: HTMLElement;
  private readonly input: HTMLTextAreaElement;
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });
  private readonly pictures = h("ul", { class: "pictures", aria: { label: "Pictures" } });
  private readonly stop: HTMLButtonElement;
  private readonly send: HTMLButtonElement;
  private images: string[] = [];
  private sending = false;

  constructor(private readonly say: (text: string, images: string[]) => Promise<void>, interrupt: () => Promise<void>) {
    const id = freshId("message");
    this.input = h("textarea", { id, rows: 1, placeholder: "Message Claude", enterkeyhint: "enter",
      on: { input: () => this.grow(), keydown: (event) => this.key(event), paste: (event) => void this.paste(event) } });
    this.stop = button("Stop", () => void interrupt().catch((error: unknown) => this.complain(messageOf(error))), { class: "stop", hidden: true });
    this.send = button("Send", () => void this.submit(), { class: "allow" });
    this.element = h("div", { class: "composer" }, this.problem, this.pictures,
      h("div", { class: "composer-row" }, h("label", { class: "spoken", for: id }, "Message"), this.input, this.stop, this.send));
  }

  focus(): void {
    this.input.focus({ preventScroll: true });
  }

  setBusy(busy: boolean): void {
    this.stop.hidden = !busy;
    this.input.placeholder = busy ? "Add to this turn" : "Message Claude";
  }

  setAsking(asking: boolean): void {
    this.element.classList.toggle("behind", asking);
  }

  private grow(): void {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, TALLEST)}px`;
  }

  private key(event: KeyboardEvent): void {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    // On a phone Enter is a new line: there is no other key for it.
    if (!event.ctrlKey && !event.metaKey && !matchMedia("(pointer: fine)").matches) return;
    event.preventDefault();
    void this.submit();
  }

  private async paste(event: ClipboardEvent): Promise<void> {
    const files = [...(event.clipboardData?.files ?? [])].filter((file) => IMAGE_TYPES.includes(file.type));
    if (!files.length) return;
    event.preventDefault();
    for (const file of files) {
      if (file.size > LARGEST_IMAGE || this.images.length >= MOST_IMAGES) this.complain("At most 6 pictures of 8 MB each.");
      else this.images.push(await dataUrl(file));
    }
    this.drawPictures();
  }

  private drawPictures(): void {
    this.pictures.replaceChildren(...this.images.map((image, at) => h("li", null, `Picture ${at + 1} `,
      button("Remove", () => {
        this.images = this.images.filter((one) => one !== image);
        this.drawPictures();
      }, { class: "quiet", aria: { label: `Remove picture ${at + 1}` } }))));
  }

  private async submit(): Promise<void> {
    const text = this.input.value.trim();
    if (!text || this.sending) return;
    this.sending = true;
    this.send.disabled = true;
    this.problem.hidden = true;
    try {
      await this.say(text, this.images);
      if (this.input.value.trim() === text) this.input.value = "";
      this.images = [];
      this.drawPictures();
    } catch (error) {
      this.complain(messageOf(error));
    }
    this.sending = false;
    this.send.disabled = false;
    this.grow();
  }

  private complain(why: string): void {
    this.problem.textContent = why;
    this.problem.hidden = false;
  }
}

function dataUrl(file: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error ?? new Error("The picture cannot be read."));
    reader.readAsDataURL(file);
  });
}
