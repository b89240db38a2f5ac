// Completes the text before the caret: a slash command at the beginning of the message, a file after an @.

import { batch, signal } from "@preact/signals";
import { type VNode } from "preact";
import { get, sessionPath } from "./api";

const DELAY = 120;
const MAX_CHOICES = 8;

interface Typed {
  mark: "/" | "@";
  text: string;
}

export class Completion {
  readonly choices = signal<readonly string[]>([]);
  readonly at = signal(0);
  private request = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private commands: { session: string; names: Promise<string[]> } | null = null;

  /** `session` returns the session whose commands and files are suggested; null if there is none. */
  constructor(private readonly session: () => string | null, private readonly field: () => HTMLTextAreaElement | null, private readonly changed: () => void) {}

  /** Call this when the text or the caret has changed. */
  update(): void {
    clearTimeout(this.timer);
    const typed = this.typed();
    const session = this.session();
    if (typed === null || session === null) return this.hide();
    this.timer = setTimeout(() => void this.find(session, typed), DELAY);
  }

  /** Handles the keys that move through the list, choose from it or close it. Returns whether it handled this key. */
  key(event: KeyboardEvent): boolean {
    const choices = this.choices.peek();
    if (!choices.length || event.isComposing) return false;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.at.value = (this.at.peek() + step + choices.length) % choices.length;
    } else if (event.key === "Enter" || event.key === "Tab") {
      this.choose(choices[this.at.peek()] as string);
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
    this.choices.value = [];
  }

  choose(choice: string): void {
    const field = this.field();
    if (field === null) return;
    const start = field.selectionStart - ((this.typed()?.text.length ?? 0) + 1);
    field.setRangeText(`${choice} `, Math.max(0, start), field.selectionStart, "end");
    this.hide();
    field.focus({ preventScroll: true });
    this.changed();
  }

  /** The mark before the caret and the text after that mark; null if there is none. */
  private typed(): Typed | null {
    const field = this.field();
    if (field === null || field.selectionStart !== field.selectionEnd) return null;
    const { value, selectionStart } = field;
    const before = value.slice(Math.max(0, selectionStart - 300), selectionStart);
    if (selectionStart <= 300) {
      const command = /^\/([\w:-]*)$/.exec(before);
      if (command !== null) return { mark: "/", text: command[1] as string };
    }
    const file = /(?:^|\s)@([^\s@]*)$/.exec(before);
    return file === null ? null : { mark: "@", text: file[1] as string };
  }

  private async find(session: string, typed: Typed): Promise<void> {
    const number = (this.request += 1);
    let found: string[];
    try {
      found = typed.mark === "/" ? await this.findCommands(session, typed.text) : await this.findFiles(session, typed.text);
    } catch {
      return this.hide(); // no suggestions: the user can still send the text as it is
    }
    if (number !== this.request) return;
    const choices = found.slice(0, MAX_CHOICES);
    const exact = choices.length === 1 && choices[0] === `${typed.mark}${typed.text}`;
    batch(() => {
      this.at.value = 0;
      this.choices.value = exact ? [] : choices;
    });
  }

  private async findCommands(session: string, text: string): Promise<string[]> {
    if (this.commands?.session !== session) {
      const names = get<{ commands: string[] }>(sessionPath(session, "commands")).then(({ commands }) => commands);
      names.catch(() => (this.commands = null));
      this.commands = { session, names };
    }
    const all = await this.commands.names;
    const wanted = text.toLowerCase();
    const hits = all.filter((name) => name.toLowerCase().includes(wanted));
    return hits.sort((one, other) => Number(other.startsWith(wanted)) - Number(one.startsWith(wanted))).map((name) => `/${name}`);
  }

  private async findFiles(session: string, text: string): Promise<string[]> {
    const { files } = await get<{ files: string[] }>(sessionPath(session, `files?${new URLSearchParams({ text })}`));
    return files.map((path) => `@${path}`);
  }
}

export function Completions({ completion, id }: { completion: Completion; id: string }): VNode | null {
  const choices = completion.choices.value;
  if (!choices.length) return null;
  return (
    <div class="completion">
      <ul id={id} role="listbox" class="completions" aria-label="Suggestions">
        {choices.map((choice, at) => (
          <li key={choice} id={`${id}-${at}`} role="option" aria-selected={at === completion.at.value} onPointerDown={(event) => event.preventDefault()}
            onClick={() => completion.choose(choice)}>{choice}</li>
        ))}
      </ul>
    </div>
  );
}
