// What is known of one turn: its prompt, what happened, what is being written right now, and how it ended. Views read the
// signals; nothing here touches the page.

import { batch, computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { settledEnd } from "./markdown_tokens";
import { MIN_RUN, PAGES, READS, SEARCHES } from "./server_types";
import type { Item, Turn } from "./types";

export interface Ending {
  code: string;
  detail?: string | null;
  costUsd?: number | null;
  durationMs?: number | null;
}

/** A text that is being written: parts that will not change any more, and the end. */
export interface Writing {
  settled: readonly string[];
  rest: string;
}

/** The text with another fragment at its end. */
export function continued(writing: Writing | null, fragment: string): Writing {
  const { settled, rest } = writing ?? { settled: [], rest: "" };
  const text = rest + fragment;
  const end = settledEnd(text, 0);
  return end ? { settled: [...settled, text.slice(0, end)], rest: text.slice(end) } : { settled, rest: text };
}

const SHORT_PAUSE = 50;
const MAX_PAUSE = 1000;
/** Characters of a thought that are shown while it is thought. */
const MAX_THOUGHT = 2000;
/** Milliseconds for which it is marked where something was found. */
const FOUND = 3000;

/** Something that happened in a turn. */
export class ItemState {
  readonly item: Signal<Item>;
  /** What the subagent does that this call has started. */
  readonly steps = signal<readonly ItemState[]>([]);
  /** Whether somebody has to decide on this call first. */
  readonly asked = signal(false);
  /** Who has decided on this call, in words. */
  readonly decided = signal("");
  /** Whether somebody has unfolded it; null while nobody has touched it. */
  readonly open = signal<boolean | null>(null);
  /** Whether somebody has unfolded the run of calls that it stands in. */
  readonly runOpen = signal(false);
  readonly found = signal(false);

  constructor(item: Item) {
    this.item = signal(item);
  }

  get id(): string {
    return this.item.peek().id;
  }

  /** How many items it is. */
  get size(): number {
    return this.steps.peek().reduce((sum, step) => sum + step.size, 1);
  }

  /** Whether it is a call that only looks at something. */
  get isLook(): boolean {
    const { kind, name, status } = this.item.value;
    return kind === "tool" && [READS, SEARCHES, PAGES].some((looks) => looks.has(name ?? "")) && status !== "error" && status !== "denied";
  }

  /** It was looked for: it is shown, and marked for a moment. */
  markFound(): void {
    this.runOpen.value = true;
    mark(this.found);
  }
}

let keys = 0;

export class TurnState {
  /** Its number may change: numbers of events count from the server's start, those of the transcript from the session's. */
  readonly key = (keys += 1);
  /** Without its items. */
  readonly turn: Signal<Turn>;
  readonly items = signal<readonly ItemState[]>([]);
  /** The items, with runs of calls that only look at something together. */
  readonly rows: ReadonlySignal<readonly (ItemState | readonly ItemState[])[]> = computed(() => withRuns(this.items.value));
  readonly live = signal(false);
  /** Whether its first, or its last, items are not here. */
  readonly cutStart = signal(false);
  readonly cutEnd = signal(false);
  readonly writing = signal<Writing | null>(null);
  readonly thought = signal<string | null>(null);
  readonly ending = signal<Ending | null>(null);
  /** Of a budget little is left, and it was this turn that made it so. */
  readonly warnings = signal<readonly string[]>([]);
  /** The pictures and documents of its prompt, if this page has sent them. */
  readonly sent: Signal<readonly string[]>;
  readonly found = signal(false);
  /** What Claude said in this turn, as it wrote it. */
  readonly answer = computed(() => this.items.value.filter(({ item }) => item.value.kind === "text").map(({ item }) => item.value.text ?? "").join("\n\n"));
  private readonly known = new Map<string, ItemState>();
  /** Items that are not here: what is told of them again changes nothing. */
  private readonly absent = new Set<string>();
  private unwritten = "";
  private unthought = "";
  private frame = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(turn: Turn, sent: readonly string[] = []) {
    this.turn = signal({ ...turn, items: [] });
    this.sent = signal(sent);
    this.update(turn);
  }

  get number(): number {
    return this.turn.peek().number;
  }

  /** How many items are here. */
  get size(): number {
    return this.known.size;
  }

  /** Takes a newer state of the same turn. */
  update(turn: Turn): void {
    batch(() => {
      this.turn.value = { ...turn, items: [] };
      for (const item of turn.items) this.put(item, null);
    });
  }

  /** Whether an item is of this turn, as far as is known here. */
  has(id: string): boolean {
    return this.known.has(id) || this.absent.has(id);
  }

  find(id: string): ItemState | undefined {
    return this.known.get(id);
  }

  /** Adds an item, or what is new of it. */
  put(item: Item, parent: string | null): void {
    const known = this.known.get(item.id);
    if (known !== undefined) {
      known.item.value = merged(known.item.peek(), item);
      return;
    }
    if (this.absent.has(item.id) || (parent !== null && this.absent.has(parent))) return;
    if (parent === null) this.settle();
    const list = (parent === null ? undefined : this.known.get(parent)?.steps) ?? this.items;
    list.value = [...list.peek(), this.make(item)];
  }

  private make(item: Item): ItemState {
    const state = new ItemState(item);
    this.known.set(item.id, state);
    this.absent.delete(item.id);
    return state;
  }

  // -- items that are not here ----------------------------------------------------------------------------------------

  /** These are its own, and are not here. */
  leaveOut(items: readonly Item[]): void {
    for (const item of items) this.absent.add(item.id);
  }

  /** Puts those of the turn's items before the others that come just before what is here, at most so many. */
  prepend(all: readonly Item[], most: number): void {
    const known = all.findIndex((item) => this.known.has(item.id));
    const end = known < 0 ? all.length : known;
    const begin = Math.max(0, end - most);
    this.items.value = [...all.slice(begin, end).map((item) => this.make(item)), ...this.items.peek()];
    this.cutStart.value = begin > 0;
  }

  /** Puts those of the turn's items behind the others that come just after what is here, at most so many. */
  append(all: readonly Item[], most: number): void {
    const from = all.findLastIndex((item) => this.known.has(item.id)) + 1;
    this.items.value = [...this.items.peek(), ...all.slice(from, from + most).map((item) => this.make(item))];
    this.cutEnd.value = from + most < all.length;
  }

  /** Takes the first items away, about so many; a call that still runs stays, without its first steps. */
  dropFirst(count: number): void {
    let left = count;
    const kept = (items: readonly ItemState[]): ItemState[] => items.filter((one) => {
      if (left <= 0) return true;
      if (this.live.peek() && one.item.peek().kind === "tool" && !one.item.peek().status) {
        one.steps.value = kept(one.steps.peek());
        return true;
      }
      left -= one.size;
      this.forget(one);
      return false;
    });
    this.items.value = kept(this.items.peek());
    this.cutStart.value = true;
  }

  /** Takes the last items away, about so many. */
  dropLast(count: number): void {
    this.settle();
    const items = [...this.items.peek()];
    for (let left = count; left > 0 && items.length;) {
      const last = items.pop() as ItemState;
      left -= last.size;
      this.forget(last);
    }
    this.items.value = items;
    this.cutEnd.value = true;
  }

  private forget(state: ItemState): void {
    for (const step of state.steps.peek()) this.forget(step);
    this.known.delete(state.id);
    this.absent.add(state.id);
  }

  // -- what is being written --------------------------------------------------------------------------------------------

  /** A fragment of what is being written. It is shown once for each picture of the screen; a long block is read again
   * with every change, and the longer it is, the less often. */
  write(kind: string, text: string): void {
    if (kind === "thinking") this.unthought += text;
    else if (kind === "text") this.unwritten += text;
    else return;
    if (this.frame || this.timer !== undefined) return;
    const pause = Math.min((this.writing.peek()?.rest.length ?? 0) / 50, MAX_PAUSE);
    if (pause > SHORT_PAUSE) this.timer = setTimeout(() => this.show(), pause);
    else this.frame = requestAnimationFrame(() => this.show());
  }

  private show(): void {
    this.frame = 0;
    this.timer = undefined;
    batch(() => {
      if (this.unwritten) {
        this.writing.value = continued(this.writing.peek(), this.unwritten);
        this.thought.value = null;
      } else if (this.unthought) {
        this.thought.value = ((this.thought.peek() ?? "") + this.unthought).slice(-MAX_THOUGHT);
      }
    });
    this.unwritten = this.unthought = "";
  }

  /** What was being written is there whole, or is void. */
  settle(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.frame = 0;
    this.timer = undefined;
    this.unwritten = this.unthought = "";
    this.writing.value = null;
    this.thought.value = null;
  }

  // -- how it goes on -----------------------------------------------------------------------------------------------------

  /** The turn is over, or goes on. */
  setLive(live: boolean): void {
    if (this.live.peek() === live) return;
    this.live.value = live;
    if (!live) this.settle();
  }

  ended(ending: Ending): void {
    this.setLive(false);
    this.ending.value = ending;
  }

  warned(text: string): void {
    this.warnings.value = [...this.warnings.peek(), text];
  }

  markFound(): void {
    mark(this.found);
  }
}

function mark(found: Signal<boolean>): void {
  found.value = true;
  setTimeout(() => (found.value = false), FOUND);
}

/** The items with each run of looks that is long enough as one. */
function withRuns(items: readonly ItemState[]): (ItemState | readonly ItemState[])[] {
  const rows: (ItemState | readonly ItemState[])[] = [];
  let run: ItemState[] = [];
  const fold = (): void => {
    if (run.length < MIN_RUN) rows.push(...run);
    else rows.push(run);
    run = [];
  };
  for (const item of items) {
    if (item.isLook) run.push(item);
    else {
      fold();
      rows.push(item);
    }
  }
  fold();
  return rows;
}

/** An item with what is new of it: the result of a call comes without the call. */
function merged(item: Item, news: Item): Item {
  const told = Object.entries(news).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return { ...item, ...Object.fromEntries(told) };
}
