// The part of a conversation that is on the page: a window of turns and items that is never larger than a limit. Older
// ones come back when somebody scrolls up, newer ones when somebody scrolls down, and what is being read stays in place.

import { get, sessionPath } from "./api";
import { button, h } from "./dom";
import type { PromptActs } from "./prompt_view";
import type { ItemActs } from "./tool_view";
import { TurnView } from "./turn_view";
import type { Turn, TurnsPage } from "./types";

const PAGE = 8;
/** More items than that are not on the page at once; what is taken away leaves so many. */
const MAX_ITEMS = 300;
const KEPT = 200;
/** Items that are added at once where somebody scrolls. */
const CHUNK = 80;
/** Pixels from an end at which the next part is fetched. */
const NEAR = 300;

export class TurnWindow {
  readonly element = h("div", { class: "log" });
  readonly earlier = button("Show earlier turns", () => void this.loadEarlier(), { class: "more", hidden: true });
  readonly later = button("Show later turns", () => void this.loadLater(), { class: "more", hidden: true });
  readonly turns: TurnView[] = [];
  private loading = false;

  constructor(
    private readonly session: () => string,
    private readonly directory: () => string,
    private readonly acts: ItemActs,
    private readonly scroller: () => HTMLElement,
    /** The newest turn is there again: events are to be followed from where they are now. */
    private readonly atTheEnd: () => Promise<void>,
    private readonly prompts: PromptActs & {
      /** The pictures and documents of a message that this page has sent. */
      sent(messageId: string): readonly string[];
    },
    /** Whose conversation it is, if not the session's own. */
    private readonly agent: string | null = null,
  ) {}

  get first(): TurnView | undefined {
    return this.turns[0];
  }

  get last(): TurnView | undefined {
    return this.turns[this.turns.length - 1];
  }

  /** Whether the newest items are not on the page: what happens now is not shown either. */
  get cutEnd(): boolean {
    return !this.later.hidden;
  }

  fetch(query: string): Promise<TurnsPage> {
    const whose = this.agent === null ? "" : `&agent=${encodeURIComponent(this.agent)}`;
    return get<TurnsPage>(sessionPath(this.session(), `turns?${query}${whose}`));
  }

  fetchEnd(): Promise<TurnsPage> {
    return this.fetch(`limit=${PAGE}`);
  }

  /** The newest turns as the server has them; those that are here already stay in place. */
  show(page: TurnsPage): void {
    for (const turn of page.turns) this.put(turn);
    this.trimStart();
    this.drawEnds();
  }

  /** The view of a turn that may be here already: from the transcript, or from the events. */
  put(turn: Turn): TurnView {
    const known = this.turns.find((view) => sameTurn(view.turn, turn));
    if (known !== undefined) {
      known.update({ ...known.turn, ...turn });
      return known;
    }
    const view = this.make(turn, turn.items.length - KEPT, turn.items.length);
    this.turns.push(view);
    this.element.append(view.element);
    return view;
  }

  private make(turn: Turn, from: number, to: number): TurnView {
    const begin = Math.max(0, from);
    const view = new TurnView({ ...turn, items: turn.items.slice(begin, to) }, false, this.directory(), this.acts,
      this.prompts, this.prompts.sent(turn.messageId ?? ""));
    view.leaveOut([...turn.items.slice(0, begin), ...turn.items.slice(to)]);
    view.setCut(begin > 0, to < turn.items.length);
    return view;
  }

  /** Something was added at the end: what is too much goes where nobody reads. */
  grown(following: boolean): void {
    if (following) this.trimStart();
    else this.trimEnd();
    this.drawEnds();
  }

  scrolled(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller();
    if (scrollTop < NEAR && !this.earlier.hidden) void this.loadEarlier();
    else if (scrollHeight - scrollTop - clientHeight < NEAR && this.cutEnd) void this.loadLater();
  }

  /** Shows the turns around one, and that one, or an item of it, in the middle of the screen. */
  async jump(number: number, itemId: string | null): Promise<void> {
    if (!this.turns.some((view) => view.turn.number === number && (itemId === null || view.element.querySelector(`[data-item="${CSS.escape(itemId)}"]`)))) {
      const page = await this.fetch(`limit=${PAGE}&before=${number + 3}`);
      this.clear();
      this.later.hidden = (page.turns[page.turns.length - 1]?.number ?? 0) >= page.total;
      for (const turn of page.turns) this.put(turn);
      this.drawEnds();
    }
    const view = this.turns.find((one) => one.turn.number === number);
    const item = itemId === null ? null : view?.element.querySelector<HTMLElement>(`[data-item="${CSS.escape(itemId)}"]`);
    const place = item ?? view?.element;
    place?.closest("details.looks")?.setAttribute("open", "");
    place?.scrollIntoView({ block: item ? "center" : "start" });
    place?.classList.add("found");
    setTimeout(() => place?.classList.remove("found"), 3000);
  }

  /** Takes everything away, to begin at the end again. */
  clear(): void {
    for (const view of this.turns.splice(0)) view.element.remove();
    this.later.hidden = true;
  }

  private async once(work: () => Promise<void>): Promise<void> {
    if (this.loading) return;
    this.loading = true;
    try {
      await work();
    } catch {
      // The button is still there, and the line says what is wrong.
    } finally {
      this.loading = false;
    }
  }

  private loadEarlier(): Promise<void> {
    return this.once(async () => {
      const { first } = this;
      if (first === undefined) return;
      const number = first.turn.number;
      const page = await this.fetch(first.cutStart ? `limit=1&before=${number + 1}` : `limit=${PAGE}&before=${number}`);
      if (this.first !== first) return;
      this.keepPlace(() => {
        if (first.cutStart) first.prepend(page.turns[0]?.items ?? [], CHUNK);
        else this.prepend(page.turns);
        this.trimEnd();
        this.drawEnds();
      });
    });
  }

  /** The newest of these turns, as many as a chunk has items. */
  private prepend(turns: readonly Turn[]): void {
    let left = CHUNK;
    for (const turn of [...turns].reverse()) {
      if (left <= 0) break;
      const view = this.make(turn, turn.items.length - left, turn.items.length);
      left -= Math.max(1, view.size);
      this.turns.unshift(view);
      this.element.prepend(view.element);
    }
  }

  private loadLater(): Promise<void> {
    return this.once(async () => {
      const { last } = this;
      if (last === undefined) return this.atTheEnd();
      const { number } = last.turn;
      const page = await this.fetch(`limit=1&before=${number + (last.cutEnd ? 1 : 2)}`);
      const [turn] = page.turns;
      if (this.last !== last || turn === undefined) return;
      this.keepPlace(() => {
        if (last.cutEnd) last.append(turn.items, CHUNK);
        else if (page.first > number) {
          const view = this.make(turn, 0, CHUNK);
          this.turns.push(view);
          this.element.append(view.element);
        }
        this.trimStart();
        this.drawEnds();
      });
      const whole = this.last !== undefined && !this.last.cutEnd && this.last.turn.number >= page.total;
      this.later.hidden = whole;
      if (whole) await this.atTheEnd();
    });
  }

  private get size(): number {
    return this.turns.reduce((sum, view) => sum + Math.max(1, view.size), 0);
  }

  private trimStart(): void {
    let surplus = this.size > MAX_ITEMS ? this.size - KEPT : 0;
    this.keepPlace(() => {
      while (surplus > 0 && this.first !== undefined) {
        const { first } = this;
        if (this.turns.length > 1 && first.size <= surplus) {
          surplus -= Math.max(1, first.size);
          this.turns.shift()?.element.remove();
        } else {
          first.dropFirst(surplus);
          surplus = 0;
        }
      }
    }, surplus > 0);
  }

  private trimEnd(): void {
    let surplus = this.size > MAX_ITEMS ? this.size - KEPT : 0;
    while (surplus > 0 && this.last !== undefined) {
      const { last } = this;
      this.later.hidden = false;
      if (this.turns.length > 1 && last.size <= surplus) {
        surplus -= Math.max(1, last.size);
        this.turns.pop()?.element.remove();
      } else {
        last.dropLast(surplus);
        surplus = 0;
      }
    }
  }

  private drawEnds(): void {
    const { first } = this;
    this.earlier.hidden = first === undefined || (first.turn.number <= 1 && !first.cutStart);
  }

  /** Changes the page so that what is at the top of the screen stays there. */
  private keepPlace(change: () => void, needed = true): void {
    const scroller = this.scroller();
    const top = scroller.getBoundingClientRect().top;
    const places = needed ? [...this.element.querySelectorAll<HTMLElement>(".items > *")] : [];
    const anchor = places.find((place) => place.getBoundingClientRect().bottom > top);
    const before = anchor?.getBoundingClientRect().top ?? 0;
    change();
    if (anchor?.isConnected) scroller.scrollTop += anchor.getBoundingClientRect().top - before;
  }
}

function sameTurn(one: Turn, other: Turn): boolean {
  if (one.messageId && other.messageId) return one.messageId === other.messageId;
  return one.number === other.number && (one.prompt ?? "") === (other.prompt ?? "");
}
