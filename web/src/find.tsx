// Searches the whole conversation for a text and jumps to the matches.

import { signal } from "@preact/signals";
import { type VNode } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { get, messageOf, sessionPath } from "./api";
import { useFreshId } from "./ui";

interface Found {
  turn: number;
  itemId?: string | null;
  excerpt: string;
}

const DELAY = 250;

export class Find {
  readonly open = signal(false);
  readonly text = signal("");
  readonly note = signal("");
  readonly found = signal<readonly Found[]>([]);
  /** Increments when the field should take focus. `seek` leaves it alone: its user reads the match instead of typing. */
  readonly wanted = signal(0);
  private request = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly session: () => string, private readonly jump: (turn: number, itemId: string | null) => Promise<void>) {}

  toggle(): void {
    this.open.value = !this.open.value;
    if (this.open.value) this.wanted.value += 1;
  }

  typed(text: string): void {
    this.text.value = text;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.look(), DELAY);
  }

  /** Searches for a text that was found elsewhere and jumps to its newest match. Closes the bar if there is no match. */
  async seek(text: string): Promise<void> {
    this.text.value = text;
    const [first] = await this.look();
    this.open.value = first !== undefined;
    if (first !== undefined) await this.show(first);
  }

  async show(hit: Found): Promise<void> {
    try {
      await this.jump(hit.turn, hit.itemId ?? null);
    } catch (error) {
      this.note.value = messageOf(error);
    }
  }

  private async look(): Promise<readonly Found[]> {
    const number = (this.request += 1);
    const text = this.text.value.trim();
    if (text.length < 2) {
      this.note.value = "";
      return (this.found.value = []);
    }
    try {
      const { found } = await get<{ found: Found[] }>(sessionPath(this.session(), `find?${new URLSearchParams({ text })}`));
      if (number !== this.request) return [];
      this.note.value = found.length ? `${found.length}${found.length >= 100 ? "+" : ""} found` : "Nothing found";
      return (this.found.value = found);
    } catch (error) {
      if (number === this.request) this.note.value = messageOf(error);
      return [];
    }
  }
}

export function FindBar({ find }: { find: Find }): VNode {
  const id = useFreshId();
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    if (find.wanted.value) field.current?.focus();
  }, [find.wanted.value]);
  const key = (event: KeyboardEvent): void => {
    const [first] = find.found.value;
    if (event.key === "Escape") find.toggle();
    else if (event.key === "Enter") void (first && find.show(first));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="find" role="search" aria-label="This session" hidden={!find.open.value}>
      <label class="spoken" for={id}>Find in this conversation</label>
      <div class="find-row">
        <input type="search" id={id} ref={field} placeholder="Find in this conversation" autocomplete="off" value={find.text.value}
          onInput={(event) => find.typed(event.currentTarget.value)} onKeyDown={key} />
        <span class="hint" role="status">{find.note.value}</span>
        <button type="button" class="quiet" onClick={() => find.toggle()}>Close</button>
      </div>
      <ol class="found-list" role="list">
        {find.found.value.map((hit, at) => (
          <li key={at}><button type="button" class="quiet" onClick={() => void find.show(hit)}>{`${hit.turn}. ${hit.excerpt}`}</button></li>
        ))}
      </ol>
    </div>
  );
}
