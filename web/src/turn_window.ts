// The part of a conversation that is on the page: a window of turns and items that never exceeds a limit. Older ones come
// back when the user scrolls up, newer ones when the user scrolls down. The text that the user reads stays in place.
//
// A page with all items of a long conversation takes seconds to lay out, and again after every change. Only the browser
// knows the scroll position, so this file reads and sets the position of the scroller, and nothing else of the page.

import { batch, computed, signal } from "@preact/signals";
import { createRef } from "preact";
import { get, sessionPath } from "./api";
import { TurnState, type ItemState } from "./turn_state";
import type { Item, Turn, TurnsPage } from "./types";

const PAGE = 8;
/** The page never shows more than `MAX_ITEMS` items; trimming leaves `KEPT` of them. */
const MAX_ITEMS = 300;
const KEPT = 200;
/** How many items are added at once when the user scrolls. */
const CHUNK = 80;
/** The distance from an end, in pixels, at which the next part is fetched. */
const NEAR = 300;

export interface WindowOptions {
  session(): string;
  /** The subagent whose conversation this is; absent for the session's own conversation. */
  agent?: string;
  /** Called when the newest turn is on the page again: follows the events from their current position. */
  onNewestShown(): Promise<void>;
  /** The images and documents of a message that this page sent. */
  sent?(messageId: string): readonly string[];
}

export class TurnWindow {
  readonly turns = signal<readonly TurnState[]>([]);
  /** Whether the newest items are not on the page. New events are not shown then either. */
  readonly cutEnd = signal(false);
  readonly hasEarlier = computed(() => {
    const first = this.turns.value[0];
    return first !== undefined && (first.turn.value.number > 1 || first.cutStart.value);
  });
  /** The scroll container. */
  readonly scroller = createRef<HTMLDivElement>();
  private loading = false;

  constructor(private readonly options: WindowOptions) {}

  get first(): TurnState | undefined {
    return this.turns.peek()[0];
  }

  get last(): TurnState | undefined {
    return this.turns.peek().at(-1);
  }

  /** The turn that an item belongs to. */
  turnOf(itemId: string): TurnState | undefined {
    return this.turns.peek().find((turn) => turn.has(itemId));
  }

  fetch(query: string): Promise<TurnsPage> {
    const { agent } = this.options;
    return get<TurnsPage>(sessionPath(this.options.session(), `turns?${query}${agent === undefined ? "" : `&agent=${encodeURIComponent(agent)}`}`));
  }

  fetchEnd(): Promise<TurnsPage> {
    return this.fetch(`limit=${PAGE}`);
  }

  /** Loads the whole of a shortened item. A failure is not a problem: the shortened item stays. */
  async whole(turn: TurnState, state: ItemState): Promise<void> {
    const { agent } = this.options;
    const path = sessionPath(this.options.session(), "turns", String(turn.number), "items", encodeURIComponent(state.id));
    const answer = await get<{ item: Item }>(`${path}${agent === undefined ? "" : `?agent=${encodeURIComponent(agent)}`}`).catch(() => null);
    if (answer !== null) state.item.value = { ...answer.item, cut: false };
  }

  /** Shows the newest turns of the server. Turns that are already on the page stay in place. */
  show(page: TurnsPage): void {
    batch(() => {
      for (const turn of page.turns) this.put(turn);
    });
    this.grown(true);
  }

  /** Adds a turn from the transcript or from the events, or updates it if it is already on the page. */
  put(turn: Turn): TurnState {
    const known = this.turns.peek().find((one) => sameTurn(one.turn.peek(), turn));
    if (known !== undefined) {
      known.update({ ...known.turn.peek(), ...turn });
      return known;
    }
    const state = this.make(turn, turn.items.length - KEPT, turn.items.length);
    this.turns.value = [...this.turns.peek(), state];
    return state;
  }

  private make(turn: Turn, from: number, to: number): TurnState {
    const begin = Math.max(0, from);
    const state = new TurnState({ ...turn, items: turn.items.slice(begin, to) }, this.options.sent?.(turn.messageId ?? ""));
    state.leaveOut([...turn.items.slice(0, begin), ...turn.items.slice(to)]);
    state.cutStart.value = begin > 0;
    state.cutEnd.value = to < turn.items.length;
    return state;
  }

  /** Called after items were added at the end. Removes surplus items where the user does not read. */
  grown(following: boolean): void {
    if (!this.surplus) return;
    if (following) this.keepPlace(() => this.trimStart());
    else this.trimEnd();
  }

  scrolled(): void {
    const scroller = this.scroller.current;
    if (scroller === null) return;
    const { scrollTop, scrollHeight, clientHeight } = scroller;
    if (scrollTop < NEAR && this.hasEarlier.peek()) void this.loadEarlier();
    else if (scrollHeight - scrollTop - clientHeight < NEAR && this.cutEnd.peek()) void this.loadLater();
  }

  /** Shows the turns around a turn. Scrolls the turn to the top of the viewport, or one of its items to the middle. */
  async jump(number: number, itemId: string | null): Promise<void> {
    const shown = (): TurnState | undefined => this.turns.peek().find((turn) => turn.number === number);
    if (shown() === undefined || (itemId !== null && shown()?.find(itemId) === undefined)) {
      const page = await this.fetch(`limit=${PAGE}&before=${number + 3}`);
      batch(() => {
        this.clear();
        this.cutEnd.value = (page.turns.at(-1)?.number ?? 0) < page.total;
        for (const turn of page.turns) this.put(turn);
      });
    }
    const turn = shown();
    const item = itemId === null ? undefined : turn?.find(itemId);
    if (item !== undefined) item.markFound();
    else turn?.markFound();
    const place = item === undefined ? `[data-turn="${number}"]` : `[data-item="${CSS.escape(item.id)}"]`;
    afterRender(() => this.scroller.current?.querySelector(place)?.scrollIntoView({ block: item === undefined ? "start" : "center" }));
  }

  /** Removes everything, to start again at the end. */
  clear(): void {
    batch(() => {
      this.turns.value = [];
      this.cutEnd.value = false;
    });
  }

  private async once(work: () => Promise<void>): Promise<void> {
    if (this.loading) return;
    this.loading = true;
    try {
      await work();
    } catch {
      // The button is still there, and the connection status says what is wrong.
    } finally {
      this.loading = false;
    }
  }

  loadEarlier(): Promise<void> {
    return this.once(async () => {
      const { first } = this;
      if (first === undefined) return;
      const cut = first.cutStart.peek();
      const page = await this.fetch(cut ? `limit=1&before=${first.number + 1}` : `limit=${PAGE}&before=${first.number}`);
      if (this.first !== first) return;
      this.keepPlace(() => {
        if (cut) first.prepend(page.turns[0]?.items ?? [], CHUNK);
        else this.prepend(page.turns);
        this.trimEnd();
      });
    });
  }

  /** Adds the newest of these turns at the start, one chunk of items in total. */
  private prepend(turns: readonly Turn[]): void {
    let left = CHUNK;
    for (const turn of turns.toReversed()) {
      if (left <= 0) break;
      const state = this.make(turn, turn.items.length - left, turn.items.length);
      left -= Math.max(1, state.size);
      this.turns.value = [state, ...this.turns.peek()];
    }
  }

  loadLater(): Promise<void> {
    return this.once(async () => {
      const { last } = this;
      if (last === undefined) return this.options.onNewestShown();
      const cut = last.cutEnd.peek();
      const page = await this.fetch(`limit=1&before=${last.number + (cut ? 1 : 2)}`);
      const [turn] = page.turns;
      if (this.last !== last || turn === undefined) return;
      this.keepPlace(() => {
        if (cut) last.append(turn.items, CHUNK);
        else if (page.first > last.number) this.turns.value = [...this.turns.peek(), this.make(turn, 0, CHUNK)];
        this.trimStart();
      });
      const whole = this.last !== undefined && !this.last.cutEnd.peek() && this.last.number >= page.total;
      this.cutEnd.value = !whole;
      if (whole) await this.options.onNewestShown();
    });
  }

  private get surplus(): number {
    const size = this.turns.peek().reduce((sum, turn) => sum + Math.max(1, turn.size), 0);
    return size > MAX_ITEMS ? size - KEPT : 0;
  }

  private trimStart(): void {
    let { surplus } = this;
    while (surplus > 0 && this.first !== undefined) {
      const { first } = this;
      if (this.turns.peek().length > 1 && first.size <= surplus) {
        surplus -= Math.max(1, first.size);
        this.turns.value = this.turns.peek().slice(1);
      } else {
        first.dropFirst(surplus);
        surplus = 0;
      }
    }
  }

  private trimEnd(): void {
    let { surplus } = this;
    batch(() => {
      while (surplus > 0 && this.last !== undefined) {
        const { last } = this;
        this.cutEnd.value = true;
        if (this.turns.peek().length > 1 && last.size <= surplus) {
          surplus -= Math.max(1, last.size);
          this.turns.value = this.turns.peek().slice(0, -1);
        } else {
          last.dropLast(surplus);
          surplus = 0;
        }
      }
    });
  }

  /** Makes a change and keeps the item at the top of the viewport in place. */
  private keepPlace(change: () => void): void {
    const scroller = this.scroller.current;
    const top = scroller?.getBoundingClientRect().top ?? 0;
    const read = [...(scroller?.querySelectorAll<HTMLElement>("[data-item]") ?? [])].find((item) => item.getBoundingClientRect().bottom > top);
    const before = read?.getBoundingClientRect().bottom ?? 0;
    batch(change);
    afterRender(() => {
      // Query the element again: it may have been recreated inside a run of calls.
      const now = read === undefined ? null : scroller?.querySelector(`[data-item="${CSS.escape(read.dataset["item"] ?? "")}"]`);
      if (scroller && now) scroller.scrollTop += now.getBoundingClientRect().bottom - before;
    });
  }
}

/** Calls `act` when changed signals are on the page: components render in a microtask that the change has queued. */
export function afterRender(act: () => void): void {
  queueMicrotask(act);
}

function sameTurn(one: Turn, other: Turn): boolean {
  if (one.messageId && other.messageId) return one.messageId === other.messageId;
  return one.number === other.number && (one.prompt ?? "") === (other.prompt ?? "");
}
