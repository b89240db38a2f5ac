// The state of one turn: its prompt, its items, the text that Claude is writing, and how the turn ended. Views read the
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

/** A text that Claude is writing: the settled parts, which no longer change, and the rest. */
export interface Writing {
  settled: readonly string[];
  rest: string;
}

/** Appends a fragment to the text. */
export function continued(writing: Writing | null, fragment: string): Writing {
  const { settled, rest } = writing ?? { settled: [], rest: "" };
  const text = rest + fragment;
  const end = settledEnd(text, 0);
  return end ? { settled: [...settled, text.slice(0, end)], rest: text.slice(end) } : { settled, rest: text };
}

const MIN_TIMER_MS = 50;
const MAX_PAUSE = 1000;
/** How many of the last characters of the thinking are shown while Claude thinks. */
const MAX_THOUGHT = 2000;
/** Milliseconds for which a search result stays highlighted. */
const FOUND = 3000;

/** An item of a turn. */
export class ItemState {
  readonly item: Signal<Item>;
  /** The items of the subagent that this call started. */
  readonly steps = signal<readonly ItemState[]>([]);
  /** Whether a user must decide on this call first. */
  readonly asked = signal(false);
  /** Who decided on this call, in words. */
  readonly decided = signal("");
  /** Whether the user expanded it; null until the user toggles it. */
  readonly open = signal<boolean | null>(null);
  /** Whether the run of calls that contains it is expanded. */
  readonly runOpen = signal(false);
  readonly found = signal(false);

  constructor(item: Item) {
    this.item = signal(item);
  }

  get id(): string {
    return this.item.peek().id;
  }

  /** How many items it counts as: itself and its steps. */
  get size(): number {
    return this.steps.peek().reduce((sum, step) => sum + step.size, 1);
  }

  /** Whether it is a call that only looks at something. */
  get isReadCall(): boolean {
    const { kind, name, status } = this.item.value;
    return kind === "tool" && [READS, SEARCHES, PAGES].some((looks) => looks.has(name ?? "")) && status !== "error" && status !== "denied";
  }

  /** Shows this search result: expands its run of calls and highlights the item for a moment. */
  markFound(): void {
    this.runOpen.value = true;
    mark(this.found);
  }
}

let keys = 0;

export class TurnState {
  /** Identifies the turn on the page. Its number may change: turn numbers in events count from the server's start, those
   * in the transcript from the session's start. */
  readonly key = (keys += 1);
  /** The turn without its items. */
  readonly turn: Signal<Turn>;
  readonly items = signal<readonly ItemState[]>([]);
  /** The items, with consecutive calls that only look at something grouped into runs. */
  readonly rows: ReadonlySignal<readonly (ItemState | readonly ItemState[])[]> = computed(() => withRuns(this.items.value));
  readonly live = signal(false);
  /** Whether its first, or its last, items are not on the page. */
  readonly cutStart = signal(false);
  readonly cutEnd = signal(false);
  readonly writing = signal<Writing | null>(null);
  readonly thinkingText = signal<string | null>(null);
  readonly ending = signal<Ending | null>(null);
  /** Budget warnings: little of a budget is left since this turn. */
  readonly warnings = signal<readonly string[]>([]);
  /** The images and documents of its prompt, if this page sent them. */
  readonly sent: Signal<readonly string[]>;
  readonly found = signal(false);
  /** Claude's text in this turn, exactly as Claude wrote it. */
  readonly answer = computed(() => this.items.value.filter(({ item }) => item.value.kind === "text").map(({ item }) => item.value.text ?? "").join("\n\n"));
  private readonly known = new Map<string, ItemState>();
  /** Ids of items that are not on the page: updates to them are ignored. */
  private readonly absent = new Set<string>();
  private unwritten = "";
  private unshownThinking = "";
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

  /** How many items are on the page. */
  get size(): number {
    return this.known.size;
  }

  /** Applies a newer state of the same turn. */
  update(turn: Turn): void {
    batch(() => {
      this.turn.value = { ...turn, items: [] };
      for (const item of turn.items) this.put(item, null);
    });
  }

  /** Whether an item is known to belong to this turn. */
  has(id: string): boolean {
    return this.known.has(id) || this.absent.has(id);
  }

  find(id: string): ItemState | undefined {
    return this.known.get(id);
  }

  /** Adds an item, or merges an update into it. */
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

  // -- items that are not on the page ---------------------------------------------------------------------------------

  /** Records items of this turn that are not on the page. */
  leaveOut(items: readonly Item[]): void {
    for (const item of items) this.absent.add(item.id);
  }

  /** Adds the items that come just before those on the page, at most `most`. `all` is all items of the turn. */
  prepend(all: readonly Item[], most: number): void {
    const known = all.findIndex((item) => this.known.has(item.id));
    const end = known < 0 ? all.length : known;
    const begin = Math.max(0, end - most);
    this.items.value = [...all.slice(begin, end).map((item) => this.make(item)), ...this.items.peek()];
    this.cutStart.value = begin > 0;
  }

  /** Adds the items that come just after those on the page, at most `most`. `all` is all items of the turn. */
  append(all: readonly Item[], most: number): void {
    const from = all.findLastIndex((item) => this.known.has(item.id)) + 1;
    this.items.value = [...this.items.peek(), ...all.slice(from, from + most).map((item) => this.make(item))];
    this.cutEnd.value = from + most < all.length;
  }

  /** Removes about `count` items from the start. A call that still runs stays, without its first steps. */
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

  /** Removes about `count` items from the end. */
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

  // -- the text that Claude is writing ----------------------------------------------------------------------------------

  /** Takes a fragment of the text that Claude is writing. The page shows new fragments at most once per frame. It parses
   * a long block again after every change, so the longer the block, the less often it is updated. */
  write(kind: string, text: string): void {
    if (kind === "thinking") this.unshownThinking += text;
    else if (kind === "text") this.unwritten += text;
    else return;
    if (this.frame || this.timer !== undefined) return;
    const pause = Math.min((this.writing.peek()?.rest.length ?? 0) / 50, MAX_PAUSE);
    if (pause > MIN_TIMER_MS) this.timer = setTimeout(() => this.show(), pause);
    else this.frame = requestAnimationFrame(() => this.show());
  }

  private show(): void {
    this.frame = 0;
    this.timer = undefined;
    batch(() => {
      if (this.unwritten) {
        this.writing.value = continued(this.writing.peek(), this.unwritten);
        this.thinkingText.value = null;
      } else if (this.unshownThinking) {
        this.thinkingText.value = ((this.thinkingText.peek() ?? "") + this.unshownThinking).slice(-MAX_THOUGHT);
      }
    });
    this.unwritten = this.unshownThinking = "";
  }

  /** Clears the text that Claude was writing: the complete item has arrived, or the text is void. */
  settle(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.frame = 0;
    this.timer = undefined;
    this.unwritten = this.unshownThinking = "";
    this.writing.value = null;
    this.thinkingText.value = null;
  }

  // -- progress and end ---------------------------------------------------------------------------------------------------

  /** Marks the turn as running or as over. */
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

/** The items, with each sufficiently long run of looks grouped into one row. */
function withRuns(items: readonly ItemState[]): (ItemState | readonly ItemState[])[] {
  const rows: (ItemState | readonly ItemState[])[] = [];
  let run: ItemState[] = [];
  const fold = (): void => {
    if (run.length < MIN_RUN) rows.push(...run);
    else rows.push(run);
    run = [];
  };
  for (const item of items) {
    if (item.isReadCall) run.push(item);
    else {
      fold();
      rows.push(item);
    }
  }
  fold();
  return rows;
}

/** Merges an update into an item: the result of a call arrives without the call. */
function merged(item: Item, news: Item): Item {
  const values = Object.entries(news).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return { ...item, ...Object.fromEntries(values) };
}
