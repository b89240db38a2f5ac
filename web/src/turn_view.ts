// One turn: the prompt, what happened, what is being written right now, and how it ended.

import { messageOf } from "./api";
import { button, h, replace } from "./dom";
import { itemView, type ItemView } from "./item_views";
import { StreamingMarkdown } from "./markdown";
import { PromptView, type PromptActs } from "./prompt_view";
import { PAGES, READS, MIN_RUN } from "./server_types";
import type { ItemActs } from "./tool_view";
import type { Item, Turn } from "./types";
import { count, dollars, duration } from "./words";

export interface Ending {
  code: string;
  detail?: string | null;
  costUsd?: number | null;
  durationMs?: number | null;
}

/** After these another attempt may succeed. */
const PASSING = new Set(["api_error", "timeout", "crashed", "start_failed", "execution_error", "not_saved", "machine_lost"]);
const SHORT_PAUSE = 50;
const MAX_PAUSE = 1000;
/** Characters of a thought that are shown while it is thought. */
const MAX_THOUGHT = 2000;
const ENDINGS: Record<string, string> = {
  interrupted: "Interrupted",
  cancelled: "Cancelled",
  timeout: "Stopped at the time limit",
  max_turns: "Stopped at the turn limit",
  max_budget: "Stopped at the budget limit",
  api_error: "The API failed",
  crashed: "Claude Code ended unexpectedly",
  start_failed: "Claude Code could not be started",
};

export class TurnView {
  readonly element: HTMLElement;
  private readonly prompt: PromptView;
  /** By which a screen reader goes from turn to turn. */
  private readonly title = h("h2", { class: "spoken" });
  private readonly items = h("div", { class: "items" });
  private readonly end = h("p", { class: "ending" });
  private readonly warning = h("p", { class: "note budget-warning", hidden: true });
  private readonly copy = button("Copy answer", () => void this.copyAnswer(), { class: "quiet copy-answer", hidden: true });
  private readonly again = button("Try again", () => void this.tryAgain(), { class: "again", hidden: true });
  private readonly leftOut = h("p", { class: "note", hidden: true }, "Earlier steps of this turn are not shown.");
  private views = new Map<string, { view: ItemView; item: Item; parent: string | null }>();
  /** Items that are not on the page: what is told of them again changes nothing. */
  private readonly absent = new Set<string>();
  /** Whether its first, or its last, items are not here. */
  cutStart = false;
  cutEnd = false;
  private writing: StreamingMarkdown | null = null;
  private thinking: HTMLElement | null = null;
  private unwritten = "";
  private frame = 0;
  private thought = "";
  private thoughtFrame = 0;

  constructor(public turn: Turn, private live: boolean, private readonly directory: string, private readonly acts: ItemActs,
    private readonly prompts: PromptActs, private sent: readonly string[] = []) {
    this.prompt = new PromptView(prompts);
    this.element = h("article", { class: "turn" }, this.title, this.prompt.element, this.leftOut, this.items, h("div", { class: "turn-foot" }, this.end, this.again, this.copy), this.warning);
    this.update(turn);
  }

  /** Takes a newer state of the same turn; what is there already stays in place. */
  update(turn: Turn): void {
    this.turn = { ...turn, items: [] }; // they have views of their own
    this.prompt.update(this.turn, this.sent);
    // Whose message it is, is not told: others may write to a shared session.
    this.title.textContent = turn.prompt ? `Message: ${turn.prompt.slice(0, 80)}` : "Claude";
    for (const item of turn.items) this.put(item, null);
    this.drawCopy();
  }

  /** The pictures and documents of its prompt, which this page has sent. */
  setSent(data: readonly string[]): void {
    this.sent = data;
    this.prompt.update(this.turn, data);
  }

  /** How many items are here. */
  get size(): number {
    return this.views.size;
  }

  /** These are its own, and are not on the page. */
  leaveOut(items: readonly Item[]): void {
    for (const item of items) this.absent.add(item.id);
  }

  setCut(start: boolean, end: boolean): void {
    this.cutStart = start;
    this.cutEnd = end;
    this.leftOut.hidden = !start;
    this.end.hidden = end;
  }

  /** Puts those of the turn's items before the others that come just before what is here, at most so many. */
  prepend(all: readonly Item[], most: number): void {
    const known = all.findIndex((item) => this.views.has(item.id));
    const end = known < 0 ? all.length : known;
    const begin = Math.max(0, end - most);
    const later = this.views;
    const first = this.items.firstChild;
    this.views = new Map();
    for (const item of all.slice(begin, end)) this.items.insertBefore(this.make(item, null).element, first);
    for (const [id, entry] of later) this.views.set(id, entry);
    this.groupLooks();
    this.setCut(begin > 0, this.cutEnd);
  }

  /** Puts those of the turn's items behind the others that come just after what is here, at most so many. */
  append(all: readonly Item[], most: number): void {
    const begin = all.length - [...all].reverse().findIndex((item) => this.views.has(item.id));
    const from = begin > all.length ? 0 : begin;
    for (const item of all.slice(from, from + most)) {
      this.absent.delete(item.id);
      this.put(item, null);
    }
    this.setCut(this.cutStart, from + most < all.length);
  }

  /** Takes the first items away, so many; a call that still runs stays. */
  dropFirst(count: number): void {
    this.drop([...this.views.keys()].slice(0, count).filter((id) => !this.runs(id)));
    this.setCut(true, this.cutEnd);
  }

  dropLast(count: number): void {
    this.settle();
    this.drop([...this.views.keys()].slice(-count));
    this.setCut(this.cutStart, true);
  }

  private runs(id: string): boolean {
    const item = this.views.get(id)?.item;
    return this.live && item?.kind === "tool" && !item.status;
  }

  private drop(ids: readonly string[]): void {
    const gone = new Set(ids);
    for (const [id, entry] of this.views) {
      if (!gone.has(id) && !(entry.parent !== null && gone.has(entry.parent))) continue;
      entry.view.element.remove();
      this.views.delete(id);
      this.absent.add(id);
    }
    this.groupLooks();
  }

  /** Adds an item, or replaces the one with its id. */
  put(item: Item, parent: string | null): void {
    const known = this.views.get(item.id);
    if (known !== undefined) {
      known.item = merged(known.item, item);
      known.view.update(known.item, this.live);
      if (known.parent === null) this.groupLooks();
      return;
    }
    if (this.absent.has(item.id) || (parent !== null && this.absent.has(parent))) return;
    if (parent === null) this.settle();
    const view = this.make(item, parent);
    const place = parent === null ? this.items : (this.views.get(parent)?.view.steps ?? this.items);
    place.append(view.element);
    if (parent === null) this.groupLooks();
  }

  /** Runs of calls that only look at something are folded to one line. */
  private groupLooks(): void {
    for (const group of this.items.querySelectorAll(":scope > .looks")) if (!group.querySelector(".tool")) group.remove();
    let run: HTMLElement[] = [];
    const fold = (): void => {
      const tools = run.flatMap((one) => (one.classList.contains("looks") ? [...one.querySelectorAll<HTMLElement>(".tool")] : [one]));
      const known = run.find((one) => one.classList.contains("looks"));
      run = [];
      if (tools.length < MIN_RUN) return;
      const group = known ?? h("details", { class: "looks" }, h("summary", null), h("div", { class: "looks-body" }));
      if (known === undefined) tools[0]?.before(group);
      group.lastElementChild?.append(...tools);
      replace(group.firstElementChild as Element, lookWords(tools));
    };
    for (const child of [...this.items.children] as HTMLElement[]) {
      if (child.dataset["kind"] === "look" || child.classList.contains("looks")) run.push(child);
      else fold();
    }
    fold();
  }

  private make(item: Item, parent: string | null): ItemView {
    const view = itemView(item, this.directory, this.acts);
    view.update(item, this.live);
    view.element.dataset["item"] = item.id;
    this.views.set(item.id, { view, item, parent });
    this.absent.delete(item.id);
    return view;
  }

  /** Whether somebody has to decide on a call of this turn. */
  setAsked(id: string, asked: boolean): void {
    this.views.get(id)?.view.setAsked?.(asked);
  }

  /** Who has decided on a call of this turn, in words. */
  setDecided(id: string, words: string): void {
    this.views.get(id)?.view.setDecided?.(words);
  }

  /** The subagent that a call of this turn has started, while it still works. */
  setAgent(id: string, agent: string): void {
    const known = this.views.get(id);
    if (known !== undefined) this.put({ ...known.item, agent }, known.parent);
  }

  /** Whether an item is of this turn, as far as is known here. */
  has(id: string): boolean {
    return this.views.has(id) || this.absent.has(id);
  }

  /** A fragment of what is being written; drawn once for each picture of the screen. */
  write(kind: string, text: string): void {
    if (kind === "thinking") {
      this.thinking ??= this.items.appendChild(h("div", { class: "thinking-now" }, h("p", { class: "note busy" }, "Thinking…"), h("p", { class: "thought" })));
      this.thought = (this.thought + text).slice(-MAX_THOUGHT);
      this.thoughtFrame ||= requestAnimationFrame(() => this.drawThought());
      return;
    }
    if (kind !== "text") return;
    this.unwritten += text;
    if (this.frame) return;
    // A long block is made again with every change; the longer it is, the less often.
    const pause = Math.min((this.writing?.whole.length ?? 0) / 50, MAX_PAUSE);
    this.frame = pause > SHORT_PAUSE ? window.setTimeout(() => this.draw(), pause) : requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    this.frame = 0;
    this.thinking?.remove();
    this.thinking = null;
    if (this.writing === null) {
      this.writing = new StreamingMarkdown();
      this.items.append(h("div", { class: "said writing" }, this.writing.element));
    }
    this.writing.add(this.unwritten);
    this.unwritten = "";
  }

  private drawThought(): void {
    this.thoughtFrame = 0;
    const shown = this.thinking?.lastElementChild;
    if (shown) shown.textContent = this.thought;
  }

  /** What was being written is there whole, or is void. */
  settle(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.frame);
    this.frame = 0;
    this.unwritten = "";
    this.writing?.element.parentElement?.remove();
    this.writing = null;
    this.thinking?.remove();
    this.thinking = null;
    this.thought = "";
  }

  /** The turn is over, or goes on. */
  setLive(live: boolean): void {
    if (this.live === live) return;
    this.live = live;
    if (!live) this.settle();
    for (const { view, item } of this.views.values()) view.update(item, live);
    this.drawCopy();
  }

  /** What Claude said in this turn, as it wrote it. */
  private get answer(): string {
    return [...this.views.values()].filter(({ item, parent }) => item.kind === "text" && parent === null).map(({ item }) => item.text ?? "").join("\n\n");
  }

  private drawCopy(): void {
    this.copy.hidden = this.live || !this.answer || !isSecureContext;
  }

  private async copyAnswer(): Promise<void> {
    await navigator.clipboard.writeText(this.answer).then(() => (this.copy.textContent = "Copied"), () => (this.copy.textContent = "Not allowed here"));
    setTimeout(() => (this.copy.textContent = "Copy answer"), 2000);
  }

  ended(ending: Ending): void {
    this.setLive(false);
    const parts = [
      ENDINGS[ending.code] ?? (ending.code === "completed" ? "Done" : ending.code.replace(/_/g, " ")),
      ["completed", "interrupted"].includes(ending.code) || this.says(ending.detail ?? "") ? "" : (ending.detail ?? ""),
      ending.durationMs ? duration(ending.durationMs) : "",
      dollars(ending.costUsd),
    ];
    this.end.textContent = parts.filter(Boolean).join(" · ");
    this.again.hidden = this.prompts.again === undefined || !PASSING.has(ending.code);
    this.drawCopy();
    this.end.classList.toggle("bad", !["completed", "interrupted"].includes(ending.code));
  }

  private async tryAgain(): Promise<void> {
    this.again.disabled = true;
    try {
      await this.prompts.again?.(this.turn, this.views.size > 0);
      this.again.hidden = true;
    } catch (error) {
      this.end.textContent = messageOf(error);
    }
    this.again.disabled = false;
  }

  /** Whether the last thing that was said in this turn is this already, as an error of the API is. */
  private says(detail: string): boolean {
    const last = [...this.views.values()].reverse().find(({ item }) => item.kind === "text")?.item.text?.trim();
    return Boolean(last && detail && (detail.includes(last) || last.includes(detail)));
  }

  /** Of a budget little is left, and it was this turn that made it so. */
  warned(text: string): void {
    this.warning.textContent = [this.warning.textContent, text].filter(Boolean).join(" ");
    this.warning.hidden = false;
  }
}

/** What a run of looks was, such as “Read 3 files, searched 2 times”. */
function lookWords(tools: readonly HTMLElement[]): string {
  const names = tools.map((tool) => tool.querySelector(".tool-name")?.textContent ?? "");
  const reads = names.filter((name) => READS.has(name)).length;
  const webs = names.filter((name) => PAGES.has(name)).length;
  const failed = tools.filter((tool) => tool.dataset["status"] === "error" || tool.dataset["status"] === "denied").length;
  const searches = names.length - reads - webs;
  const parts = [reads && `read ${count(reads, "file")}`, searches && `searched ${count(searches, "time")}`, webs && `looked at ${count(webs, "page")}`,
    failed && `${failed} failed`].filter(Boolean);
  const words = parts.join(", ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** An item with what is new of it: the result of a call comes without the call. */
function merged(item: Item, news: Item): Item {
  const told = Object.entries(news).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return { ...item, ...Object.fromEntries(told) };
}
