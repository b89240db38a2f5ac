// The composer of the next message, or of the first message of a new session. It grows with its text, accepts images and
// files, and sends with Enter where there is a keyboard. Text and attachments stay in this browser until they are sent.

import { signal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { ApiError, messageOf } from "./api";
import { dataOf, withFiles, withMore, type Attachment } from "./attachments";
import { Completion, Completions } from "./completion";
import { attachmentsOf, draftOf, freshKey, saveAttachments, saveDraft } from "./drafts";
import { cx, Problem, useFreshId } from "./ui";
import { size } from "./words";

const MAX_FIELD_HEIGHT = 240;
const SAVE_DELAY = 300;
const NOT_KEPT = "This browser cannot store files: attachments are lost when you leave this page.";

export interface Outgoing {
  text: string;
  images: string[];
  key: string;
  attachments: readonly Attachment[];
}

/** The text and the attachments, as the user has entered them. */
interface Written {
  text: string;
  attachments: readonly Attachment[];
}

export interface ComposerOptions {
  /** The scope that the draft is stored under. */
  scope: () => string;
  say(message: Outgoing): Promise<void>;
  /** The session whose commands and files are suggested; null if there is none. */
  completes: () => string | null;
  /** Shown when it is not known whether the message was sent. */
  unsure: string;
}

export class Composer {
  readonly text = signal("");
  readonly attachments = signal<readonly Attachment[]>([]);
  readonly problem = signal("");
  /** Information that is not a problem. */
  readonly note = signal("");
  readonly sending = signal(false);
  /** Whether Claude is working: then a message is added to the work, and the user can stop it. */
  readonly busy = signal(false);
  /** Whether a question is open. The question takes precedence. */
  readonly asking = signal(false);
  readonly hidden = signal(false);
  /** Replaces the usual way to send, until the message is sent or the user cancels. `before` is the draft to restore. */
  readonly sendOverride = signal<{ about: string; say(message: Outgoing): Promise<void>; before: Written } | null>(null);
  readonly completion: Completion;
  field: HTMLTextAreaElement | null = null;
  /** A message that may already have been sent, and its key. */
  private unsure: (Written & { key: string }) | null = null;
  /** Settles when the files of the draft are loaded. */
  private readonly restored: Promise<void>;
  private closed = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly options: ComposerOptions) {
    this.completion = new Completion(options.completes, () => this.field, () => this.type(this.field?.value ?? ""));
    const draft = draftOf(options.scope());
    this.text.value = draft.text;
    if (draft.key && !draft.attached) this.unsure = { key: draft.key, text: draft.text, attachments: [] };
    this.restored = this.restoreFiles(draft);
    addEventListener("pagehide", this.keep);
  }

  /** Saves unsaved text at once, because the page may not come back. */
  private readonly keep = (): void => {
    if (this.timer !== undefined) this.save();
  };

  private async restoreFiles(draft: { text: string; key?: string | undefined; attached?: number }): Promise<void> {
    const found = await attachmentsOf(this.options.scope());
    if (this.closed || this.sendOverride.peek() !== null || !found.length) return;
    // Keep the key only if all files are there: with fewer, it would be a different message under the same key.
    if (draft.key && found.length === draft.attached) this.unsure = { key: draft.key, text: draft.text, attachments: found };
    const added = this.attachments.peek();
    if (added.length) this.attach([...found, ...added]);
    else this.attachments.value = found; // they are stored already
  }

  /** Call this when the user leaves the page of this message. */
  close(): void {
    this.closed = true;
    this.completion.hide();
    removeEventListener("pagehide", this.keep);
    this.keep();
  }

  focus(): void {
    this.field?.focus({ preventScroll: true });
  }

  /** Puts messages that were sent but never read back into the field, before the text typed since. */
  restoreMessages(texts: readonly string[], attachments: readonly Attachment[] = []): void {
    this.text.value = [...texts, this.text.peek()].filter((text) => text.trim()).join("\n\n");
    if (attachments.length) this.attach([...attachments, ...this.attachments.peek()]);
    this.save();
  }

  /** Lets the user edit this text and send it with `say`; `about` explains the effect. Then the previous draft returns. */
  rewrite(text: string, attachments: readonly Attachment[], about: string, say: (message: Outgoing) => Promise<void>): void {
    const before = this.sendOverride.peek()?.before ?? this.written();
    this.sendOverride.value = { about, before, say: async (message) => {
      await say(message);
      this.endSendOverride();
    } };
    this.text.value = text;
    this.attachments.value = attachments;
    this.field?.focus();
  }

  endSendOverride(): void {
    const sendOverride = this.sendOverride.peek();
    if (sendOverride === null) return;
    this.sendOverride.value = null;
    this.text.value = sendOverride.before.text;
    this.attach(sendOverride.before.attachments);
    this.save();
  }

  type(text: string): void {
    this.text.value = text;
    this.completion.update();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.save(), SAVE_DELAY);
  }

  private save(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (this.sendOverride.peek() !== null) return; // the stored draft stays the previous one
    const now = this.written();
    saveDraft(this.options.scope(), now.text, this.keyOf(now), now.attachments.length);
  }

  add(files: File[]): void {
    this.problem.value = "";
    void withMore(this.attachments.peek(), files).then(({ all, refused }) => {
      if (refused) this.problem.value = refused;
      this.attach(all);
    });
  }

  attach(attachments: readonly Attachment[]): void {
    this.attachments.value = attachments;
    if (this.sendOverride.peek() !== null) return;
    this.save();
    saveAttachments(this.options.scope(), attachments).catch(() => (this.problem.value = NOT_KEPT));
  }

  private written(): Written {
    return { text: this.text.peek(), attachments: this.attachments.peek() };
  }

  /** The key of the message that may already have been sent, if this is that message. */
  private keyOf(now: Written): string | undefined {
    return this.unsure !== null && isSame(this.unsure, now) ? this.unsure.key : undefined;
  }

  async submit(): Promise<void> {
    await this.restored; // otherwise the message would be sent without its files
    const { text: typed, attachments } = this.written();
    const text = withFiles(typed.trim(), attachments);
    const images = dataOf(attachments);
    if ((!text && !images.length) || this.sending.peek()) return;
    const key = this.keyOf({ text: typed, attachments }) ?? freshKey();
    this.sending.value = true;
    this.problem.value = this.note.value = "";
    this.completion.hide();
    // Before sending: if the page is closed now, the key is still known afterward.
    this.unsure = { key, text: typed, attachments };
    this.save();
    try {
      const usual = this.sendOverride.peek() === null;
      await (this.sendOverride.peek()?.say ?? this.options.say)({ text, images, key, attachments });
      this.unsure = null;
      if (usual && this.text.peek() === typed) this.text.value = "";
      if (this.attachments.peek() === attachments) this.attach([]);
    } catch (error) {
      const unknown = isUnknown(error);
      if (!unknown) this.unsure = null;
      this.problem.value = unknown ? this.options.unsure : messageOf(error);
    }
    this.sending.value = false;
    this.save();
  }

  /** Call this when the server can be reached again: replaces the problem with a note. The text is still in the field. */
  reachable(): void {
    if (this.problem.peek() !== this.options.unsure) return;
    this.problem.value = "";
    this.note.value = "Reconnected. If your message is not above, send it again: it is delivered only once.";
  }
}

/** Whether the server may have carried out the request despite the error. */
export function isUnknown(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 0 || (error.status >= 500 && error.code.startsWith("HTTP_")));
}

function isSame(one: Written, other: Written): boolean {
  return one.text === other.text && one.attachments.length === other.attachments.length
    && one.attachments.every((attachment, at) => attachment === other.attachments[at]);
}

interface BoxProps {
  composer: Composer;
  label: string;
  placeholder: string;
  send: string;
  rows?: number;
  stop?(): Promise<void>;
  children?: ComponentChildren;
}

export function ComposerBox({ composer, label, placeholder, send, rows = 1, stop, children }: BoxProps): VNode | null {
  const id = useFreshId();
  const files = useRef<HTMLInputElement>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const text = composer.text.value;
  const completion = composer.completion;
  useEffect(() => () => void (composer.field = null), []);
  useLayoutEffect(() => {
    const element = field.current;
    composer.field = element;
    if (element === null) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight + 2, MAX_FIELD_HEIGHT)}px`;
  }, [text, composer.busy.value, composer.hidden.value]);
  if (composer.hidden.value) return null;
  const key = (event: KeyboardEvent): void => {
    if (completion.key(event)) return;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    // On a phone Enter inserts a line break: there is no other key for that.
    if (!event.ctrlKey && !event.metaKey && !matchMedia("(pointer: fine)").matches) return;
    event.preventDefault();
    void composer.submit();
  };
  const paste = (event: ClipboardEvent): void => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    // A program that copies text may add an image of it: paste only the text.
    if (!pasted.length || event.clipboardData?.types.includes("text/plain")) return;
    event.preventDefault();
    composer.add(pasted);
  };
  const dropping = (on: boolean): void => void box.current?.classList.toggle("dropping", on);
  const drop = (event: DragEvent): void => {
    dropping(false);
    const dropped = [...(event.dataTransfer?.files ?? [])];
    if (!dropped.length) return;
    event.preventDefault();
    composer.add(dropped);
  };
  const choices = completion.choices.value;
  return (
    <div class={cx("composer", composer.asking.value && "behind")} ref={box} onDragLeave={() => dropping(false)} onDrop={drop}
      onDragOver={(event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        dropping(true);
      }}>
      <Completions completion={completion} id={`${id}-list`} />
      {composer.sendOverride.value !== null && <p class="sendOverride" role="status">{composer.sendOverride.value.about} <button type="button" class="quiet" onClick={() => composer.endSendOverride()}>Cancel</button></p>}
      <Problem>{composer.problem.value}</Problem>
      {composer.note.value && <p class="hint" role="status">{composer.note.value}</p>}
      <AttachmentList composer={composer} />
      <div class="composer-row">
        <input type="file" hidden multiple ref={files} onChange={(event) => {
          const chosen = [...(event.currentTarget.files ?? [])];
          event.currentTarget.value = ""; // so that the user can choose the same file again
          composer.add(chosen);
        }} />
        <label class="spoken" for={id}>{label}</label>
        <textarea id={id} ref={field} rows={rows} dir="auto" placeholder={composer.busy.value ? "Add…" : placeholder} enterkeyhint="enter" value={text}
          aria-activedescendant={choices.length ? `${id}-list-${completion.at.value}` : undefined}
          onInput={(event) => composer.type(event.currentTarget.value)} onKeyDown={key} onPaste={paste} onClick={() => completion.update()} onBlur={() => completion.hide()} />
        <button type="button" class="attach" aria-label="Attach images or files" onClick={() => files.current?.click()}>+</button>
        {stop !== undefined && composer.busy.value && (
          <button type="button" class="stop" onClick={() => void stop().catch((error: unknown) => (composer.problem.value = messageOf(error)))}>Stop</button>
        )}
        <button type="button" class="allow" disabled={composer.sending.value} onClick={() => void composer.submit()}>{send}</button>
      </div>
      {children}
    </div>
  );
}

function AttachmentList({ composer }: { composer: Composer }): VNode {
  const all = composer.attachments.value;
  return (
    <ul class="attachments" aria-label="Attachments">
      {all.map((one, at) => (
        <li class="attachment" key={at}>
          {one.picture === undefined ? <span class="file">{one.name}<span class="hint"> {size(one.bytes)}</span></span> : <img class="picture" alt={one.name} src={one.picture} />}
          <button type="button" class="quiet" aria-label={`Remove ${one.name}`} onClick={() => composer.attach(all.filter((other) => other !== one))}>×</button>
        </li>
      ))}
    </ul>
  );
}
