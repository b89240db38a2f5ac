// The next message: grows with its text, takes pictures and files, sends with Enter where there is a keyboard. What is
// typed or attached stays in this browser until it is sent.

import { ApiError, messageOf } from "./api";
import { Attachments, dataOf, withFiles, type Attachment } from "./attachments";
import { Completion } from "./completion";
import { button, freshId, h } from "./dom";
import { attachmentsOf, draftOf, freshKey, saveAttachments, saveDraft } from "./drafts";

const TALLEST = 240;
const SAVE_DELAY = 300;
const NOT_KEPT = "This browser keeps no files: the attachments are gone when you leave this page.";
const UNSURE = "The server cannot be reached, so it is not known whether this was sent. To send it again is safe: it counts once.";

export interface Outgoing {
  text: string;
  images: string[];
  key: string;
  attachments: readonly Attachment[];
}

export class Composer {
  readonly element: HTMLElement;
  readonly input: HTMLTextAreaElement;
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });
  private readonly attachments = new Attachments(() => this.attachedChanged(), (why) => this.complain(why));
  private readonly stop: HTMLButtonElement;
  private readonly send: HTMLButtonElement;
  private sending = false;
  /** What may have been sent or not, and its key. */
  private unsure: (Written & { key: string }) | null = null;
  /** Settles when the files of the draft are here. */
  private restored: Promise<void> = Promise.resolve();
  private restoring = false;
  private closed = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  private readonly completion: Completion;
  /** What is written is sent in another way than usual, until that is done or given up. */
  private detour: { say(message: Outgoing): Promise<void>; before: Written } | null = null;
  private readonly detourNote = h("p", { class: "detour", role: "status", hidden: true });

  /** `scope` is the session, whose draft it is and whose commands and files are completed. */
  constructor(private readonly scope: () => string, private readonly say: (message: Outgoing) => Promise<void>, interrupt: () => Promise<void>) {
    const id = freshId("message");
    this.input = h("textarea", { id, rows: 1, placeholder: "Message Claude", enterkeyhint: "enter",
      on: { input: () => this.typed(), keydown: (event) => this.key(event), paste: (event) => this.paste(event),
        click: () => this.completion.update(), blur: () => this.completion.hide() } });
    this.completion = new Completion(scope, () => this.input, () => this.typed());
    const files = h("input", { type: "file", hidden: true, on: { change: () => this.chosen(files) } });
    files.multiple = true;
    const attach = button("+", () => files.click(), { class: "attach", aria: { label: "Attach pictures or files" } });
    this.stop = button("Stop", () => void interrupt().catch((error: unknown) => this.complain(messageOf(error))), { class: "stop", hidden: true });
    this.send = button("Send", () => void this.submit(), { class: "allow" });
    this.element = h("div", { class: "composer", on: { dragover: (event) => this.dragged(event), dragleave: () => this.setDropping(false),
      drop: (event) => this.dropped(event) } }, this.completion.element, this.detourNote, this.problem, this.attachments.element,
      h("div", { class: "composer-row" }, files, attach, h("label", { class: "spoken", for: id }, "Message"), this.input, this.stop, this.send));
    this.restore();
  }

  /** Takes what was typed here before. */
  restore(): void {
    const draft = draftOf(this.scope());
    this.input.value = draft.text;
    if (draft.key && !draft.attached) this.unsure = { key: draft.key, text: draft.text, attachments: [] };
    this.restored = this.restoreFiles(draft);
    requestAnimationFrame(() => this.grow());
  }

  private async restoreFiles(draft: { text: string; key?: string | undefined; attached?: number }): Promise<void> {
    const found = await attachmentsOf(this.scope());
    if (this.closed || this.detour !== null || !found.length) return;
    // Not with fewer of them: that would be another message under the same key.
    if (draft.key && found.length === draft.attached) this.unsure = { key: draft.key, text: draft.text, attachments: found };
    this.restoring = !this.attachments.all.length; // then they are as they were kept
    this.attachments.set([...found, ...this.attachments.all]);
    this.restoring = false;
  }

  /** The page of this message is left. */
  close(): void {
    this.closed = true;
    if (this.timer !== undefined) this.save();
  }

  focus(): void {
    this.input.focus({ preventScroll: true });
  }

  setBusy(busy: boolean): void {
    if (this.stop.hidden === !busy) return;
    this.stop.hidden = !busy;
    this.input.placeholder = busy ? "Add…" : "Message Claude";
    this.grow(); // there is more or less room beside the button
  }

  setAsking(asking: boolean): void {
    this.element.classList.toggle("behind", asking);
  }

  /** Text that was sent and never read comes before what was typed since. */
  putBack(texts: readonly string[], attachments: readonly Attachment[] = []): void {
    this.input.value = [...texts, this.input.value].filter((text) => text.trim()).join("\n\n");
    if (attachments.length) this.attachments.set([...attachments, ...this.attachments.all]);
    this.save();
    this.grow();
  }

  /** Has this text edited and sent by `say`; `about` says what that means. What was typed before comes back after it. */
  rewrite(text: string, attachments: readonly Attachment[], about: string, say: (message: Outgoing) => Promise<void>): void {
    const before = this.detour?.before ?? { text: this.input.value, attachments: this.attachments.all };
    const end = (): void => {
      this.detour = null;
      this.detourNote.hidden = true;
      this.input.value = before.text;
      this.attachments.set(before.attachments);
      this.save();
      this.grow();
    };
    this.detour = { before, say: async (message) => {
      await say(message);
      end();
    } };
    this.detourNote.replaceChildren(about, " ", button("Cancel", end, { class: "quiet" }));
    this.detourNote.hidden = false;
    this.input.value = text;
    this.attachments.set(attachments);
    this.grow();
    this.input.focus();
  }

  private typed(): void {
    this.grow();
    this.completion.update();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.save(), SAVE_DELAY);
  }

  private save(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (this.detour !== null) return; // the draft is what was typed before
    const now = this.written();
    saveDraft(this.scope(), now.text, this.keyOf(now), now.attachments.length);
  }

  private grow(): void {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, TALLEST)}px`;
  }

  private key(event: KeyboardEvent): void {
    if (this.completion.key(event)) return;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    // On a phone Enter is a new line: there is no other key for it.
    if (!event.ctrlKey && !event.metaKey && !matchMedia("(pointer: fine)").matches) return;
    event.preventDefault();
    void this.submit();
  }

  // -- attachments --------------------------------------------------------------------------------------------------

  private chosen(input: HTMLInputElement): void {
    const files = [...(input.files ?? [])];
    input.value = ""; // the same file may be chosen again
    this.attach(files);
  }

  private paste(event: ClipboardEvent): void {
    const files = [...(event.clipboardData?.files ?? [])];
    // A program that copies text may add a picture of it.
    if (!files.length || event.clipboardData?.types.includes("text/plain")) return;
    event.preventDefault();
    this.attach(files);
  }

  private dragged(event: DragEvent): void {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.setDropping(true);
  }

  dropped(event: DragEvent): void {
    this.setDropping(false);
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    this.attach(files);
  }

  private setDropping(dropping: boolean): void {
    this.element.classList.toggle("dropping", dropping);
  }

  private attach(files: File[]): void {
    this.problem.hidden = true;
    void this.attachments.add(files);
  }

  private attachedChanged(): void {
    this.drawSend();
    if (this.detour !== null || this.restoring) return;
    this.save();
    saveAttachments(this.scope(), this.attachments.all).catch(() => this.complain(NOT_KEPT));
  }

  private written(): Written {
    return { text: this.input.value, attachments: this.attachments.all };
  }

  /** The key of what may have been sent, if this is it. */
  private keyOf(now: Written): string | undefined {
    return this.unsure !== null && isSame(this.unsure, now) ? this.unsure.key : undefined;
  }

  private drawSend(): void {
    this.send.disabled = this.sending;
  }

  // -- sending ------------------------------------------------------------------------------------------------------

  private async submit(): Promise<void> {
    await this.restored; // otherwise a message would go without the files that belong to it
    const { text: typed, attachments } = this.written();
    const text = withFiles(typed.trim(), attachments);
    const images = dataOf(attachments);
    if ((!text && !images.length) || this.sending) return;
    const key = this.keyOf({ text: typed, attachments }) ?? freshKey();
    this.sending = true;
    this.problem.hidden = true;
    this.completion.hide();
    this.drawSend();
    // Before it is sent: a page that is closed now still knows the key.
    this.unsure = { key, text: typed, attachments };
    this.save();
    try {
      const usual = this.detour === null;
      await (this.detour?.say ?? this.say)({ text, images, key, attachments });
      this.unsure = null;
      if (usual && this.input.value === typed) this.input.value = "";
      if (this.attachments.all === attachments) this.attachments.set([]);
    } catch (error) {
      const unknown = isUnknown(error);
      if (!unknown) this.unsure = null;
      this.complain(unknown ? UNSURE : messageOf(error));
    }
    this.sending = false;
    this.save();
    this.drawSend();
    this.grow();
  }

  private complain(why: string): void {
    this.problem.textContent = why;
    this.problem.hidden = false;
  }
}

/** Whether the server may have done what it was asked all the same. */
export function isUnknown(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 0 || (error.status >= 500 && error.code.startsWith("HTTP_")));
}

/** What would be sent. */
interface Written {
  text: string;
  attachments: readonly Attachment[];
}

function isSame(one: Written, other: Written): boolean {
  return one.text === other.text && one.attachments.length === other.attachments.length
    && one.attachments.every((attachment, at) => attachment === other.attachments[at]);
}
