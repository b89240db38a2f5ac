// The session list: sessions that need the user, working sessions, and all others, read from the disk in pages.

import { effect, signal, useSignal, type Signal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect } from "preact/hooks";
import { get, messageOf } from "./api";
import type { Live } from "./live";
import { MachineSelect } from "./machines";
import { needsYourAnswer, isWorking, needsYou, rank, routeOf, statusWord, titleOf } from "./sessions";
import type { MachineRow, SessionRow } from "./types";
import { ago, costOf, moment, place } from "./words";

interface ListPage {
  attention: SessionRow[];
  sessions: SessionRow[];
  /** The number of all sessions; absent in a search. */
  total?: number | null;
  nextOffset?: number | null;
}

const PAGE = 30;
const SEARCH_DELAY = 250;
const WHOLE_DELAY = 500;
const REPEAT_DELAY = 1000;
/** The length from which a text is also searched in conversations. */
const MIN_WHOLE = 3;
const GONE_HINT = "Its sessions continue on another machine with their next message, or here when it is back.";

/** The state of the session list: the loaded rows, the search and the filters. */
export class SessionList {
  readonly text = signal("");
  readonly archived = signal(false);
  readonly machine = signal("");
  readonly stored = signal<readonly SessionRow[]>([]);
  /** The sessions whose conversations contain the searched text. */
  readonly mentioned = signal<readonly SessionRow[]>([]);
  readonly next = signal<number | null>(null);
  readonly total = signal<number | null>(null);
  readonly note = signal("");
  readonly busy = signal(true);
  /** The session shown next to the list. */
  readonly current = signal<string | null>(null);
  /** The title of the view next to the list. */
  readonly title = signal("");
  private timer: ReturnType<typeof setTimeout> | undefined;
  private repeat: ReturnType<typeof setTimeout> | undefined;
  private repeating = false;
  private request = 0;
  private badge = 0;
  private readonly stopTitle: () => void;

  constructor(readonly live: Live) {
    live.lost = () => void this.load();
    live.turnEnded = () => this.searchAgain();
    this.stopTitle = effect(() => this.drawTitle());
  }

  close(): void {
    this.stopTitle();
    clearTimeout(this.timer);
    clearTimeout(this.repeat);
  }

  type(text: string): void {
    this.text.value = text;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.load(), SEARCH_DELAY);
  }

  toggleArchive(): void {
    this.archived.value = !this.archived.value;
    this.stored.value = [];
    void this.load();
  }

  choose(machine: string): void {
    this.machine.value = machine;
    void this.load();
  }

  private page(offset: number, text: string, whole: boolean): Promise<ListPage> {
    const query = new URLSearchParams({ limit: String(PAGE), offset: String(offset) });
    if (text) query.set("text", text);
    if (whole) query.set("whole", "1");
    if (this.archived.peek()) query.set("archived", "1");
    if (this.machine.peek()) query.set("machine", this.machine.peek());
    return get<ListPage>(`/api/sessions?${query}`);
  }

  /** Loads the first page, or the page at an offset. Drops an answer that arrives after a newer request. A search first
   * loads the sessions whose title contains the text, then those whose conversation contains it. */
  async load(offset = 0): Promise<void> {
    const number = (this.request += 1);
    const text = this.text.peek().trim();
    this.busy.value = true;
    try {
      const page = await this.page(offset, text, false);
      if (number !== this.request) return;
      this.stored.value = offset ? [...this.stored.peek(), ...page.sessions] : page.sessions;
      this.next.value = page.nextOffset ?? null;
      this.total.value = page.total ?? null;
      this.live.learn([...page.attention, ...page.sessions]);
      this.note.value = "";
      if (!offset) {
        this.mentioned.value = [];
        await this.searchConversations(number, text);
      }
    } catch (error) {
      if (number !== this.request) return;
      this.note.value = messageOf(error);
    }
    this.busy.value = false;
  }

  private async searchConversations(number: number, text: string): Promise<void> {
    if (text.length < MIN_WHOLE) return;
    // The server reads every conversation for this: wait until the user stops typing.
    await new Promise((resolve) => setTimeout(resolve, WHOLE_DELAY));
    if (number !== this.request) return;
    const whole = await this.page(0, text, true);
    if (number !== this.request) return;
    const known = new Set(this.stored.peek().map((row) => row.sessionId));
    this.mentioned.value = whole.sessions.filter((row) => !known.has(row.sessionId));
    this.live.learn(whole.sessions);
  }

  /** Repeats the search after a turn has ended, to find its text. Turns that end during a search share the next one. */
  private searchAgain(): void {
    if (!this.text.peek().trim()) return;
    this.repeat ??= setTimeout(() => {
      this.repeat = undefined;
      if (this.busy.peek() || this.repeating) this.searchAgain();
      else void this.repeatSearch();
    }, REPEAT_DELAY);
  }

  private async repeatSearch(): Promise<void> {
    this.repeating = true;
    try {
      await this.searchConversations((this.request += 1), this.text.peek().trim());
    } catch {
      // Keep the previous results.
    }
    this.repeating = false;
  }

  /** Shows the number of waiting sessions in the tab title and on the icon of an installed page. */
  private drawTitle(): void {
    const waiting = this.live.all().filter(needsYourAnswer).length;
    const name = this.title.value;
    const title = `${waiting ? `(${waiting}) ` : ""}${name ? `${name.slice(0, 80)} · ` : ""}Claude Code`;
    if (document.title !== title) document.title = title;
    if (waiting === this.badge) return;
    this.badge = waiting;
    const { setAppBadge, clearAppBadge } = navigator as { setAppBadge?(count: number): Promise<void>; clearAppBadge?(): Promise<void> };
    void (waiting ? setAppBadge?.call(navigator, waiting) : clearAppBadge?.call(navigator))?.catch(() => undefined);
  }

  /** The loaded rows with their current state. Without a search and outside the archive, also the sessions that the
   * server has in memory. */
  rows(): SessionRow[] {
    const all = this.live.all();
    const now = new Map(all.map((row) => [row.sessionId, row]));
    const stored = new Map(this.stored.value.map((row) => [row.sessionId, { ...row, ...now.get(row.sessionId), mention: row.mention ?? null }]));
    if (this.archived.value) return [...stored.values()].filter((row) => row.archived);
    if (this.text.value.trim()) return [...stored.values()];
    const live = all.filter((row) => row.inMemory && !stored.has(row.sessionId));
    const chosen = this.machine.value;
    const rows = [...live, ...stored.values()].filter((row) => !row.archived && (!chosen || row.machineId === chosen));
    return rows.sort((one, other) => rank(one) - rank(other) || moment(other.lastUsed) - moment(one.lastUsed));
  }
}

/** Renders the component every minute, to update relative times. */
export function useMinutes(): void {
  const now: Signal<number> = useSignal(0);
  useEffect(() => {
    const clock = setInterval(() => (now.value += 1), 60_000);
    return () => clearInterval(clock);
  }, []);
  void now.value;
}

export function SessionNav({ list }: { list: SessionList }): VNode {
  useMinutes();
  const { live } = list;
  live.version.value;
  const searchText = list.text.value.trim();
  const rows = list.rows();
  const others = rows.filter((row) => !needsYou(row) && !isWorking(row));
  const next = list.next.value;
  const total = list.total.value;
  // Only the number of sessions that are not loaded is known. Some of them are here before their page is loaded.
  const unread = next === null ? 0 : Math.max(total === null ? 1 : 0, (total ?? 0) - rows.length);
  const shared = { current: list.current.value, searchText };
  const nothing = !rows.length && !list.mentioned.value.length && !list.busy.value;
  return (
    <nav class="sessions" aria-label="Sessions" aria-busy={list.busy.value}>
      <div class="search" role="search" aria-label="All sessions">
        <input type="search" placeholder="Search sessions" autocomplete="off" aria-label="Search sessions" value={list.text.value}
          onInput={(event) => list.type(event.currentTarget.value)} />
        {live.machines.length > 0 && <MachineSelect label="Machine" machines={live.machines} any="All machines" value={list.machine.value} usable={() => true} choose={(id) => list.choose(id)} />}
      </div>
      <Section title="Needs you" rows={rows.filter(needsYourAnswer)} {...shared} />
      <Section title="Needs attention" rows={rows.filter((row) => needsYou(row) && !needsYourAnswer(row))} {...shared} />
      <Section title="Working" rows={rows.filter((row) => !needsYou(row) && isWorking(row))} {...shared} />
      {live.machines.length > 0
        ? <Fleet list={list} rows={others} {...shared} />
        : <Section title={list.archived.value ? "Archive" : "Sessions"} rows={others} unread={unread} least={total === null} {...shared} />}
      {searchText && <Section title="Found in conversations" rows={list.mentioned.value.map((row) => ({ ...row, ...live.rows.get(row.sessionId), mention: row.mention ?? null }))} {...shared} />}
      {nothing && <p class="hint">{searchText ? "Nothing found." : list.archived.value ? "Nothing is archived." : <>No session yet. <a href="#/new">Start one</a></>}</p>}
      <p class="hint" role="status">{list.note.value}</p>
      {next !== null && <button type="button" class="more" onClick={() => void list.load(next)}>Show more</button>}
      <button type="button" class="more quiet" onClick={() => list.toggleArchive()}>{list.archived.value ? "Back to all sessions" : "Archived sessions"}</button>
    </nav>
  );
}

interface SectionProps {
  title: string;
  rows: readonly SessionRow[];
  current: string | null;
  /** The searched text. */
  searchText: string;
  /** The number of rows that belong here but are not loaded. */
  unread?: number;
  /** Whether `unread` is only a lower bound. */
  least?: boolean;
  gone?: boolean;
}

function Section({ title, rows, current, searchText, unread = 0, least = false, gone = false }: SectionProps): VNode | null {
  if (!rows.length && !gone) return null;
  const known = least && unread ? `${rows.length}+` : (rows.length + unread).toLocaleString("en");
  return (
    <section>
      <h2><span>{title}</span> <span class="number">{rows.length ? known : ""}</span></h2>
      {gone && <p class="hint">{GONE_HINT}</p>}
      <ul class="rows" role="list">
        {rows.map((row) => <li key={row.sessionId} data-key={row.sessionId}><Row row={row} current={row.sessionId === current} searchText={searchText} /></li>)}
      </ul>
    </section>
  );
}

/** The idle sessions by machine. Shows a machine that is gone even if it has no known session. */
function Fleet({ list, rows, current, searchText }: { list: SessionList; rows: readonly SessionRow[]; current: string | null; searchText: string }): VNode {
  const machines = new Map<string, MachineRow>(list.live.machines.map((machine) => [machine.id, machine]));
  // A machine that is gone may be known only from its sessions.
  for (const { machineId, machine } of rows) {
    const id = machineId ?? "";
    if (!machines.has(id)) machines.set(id, { id, name: machine ?? id, there: false });
  }
  const chosen = list.machine.value;
  return (
    <div class="fleet">
      {[...machines.values()].filter((machine) => !chosen || machine.id === chosen).map((machine) => (
        <Section key={machine.id} title={machine.there ? machine.name : `${machine.name}: gone`} gone={!machine.there}
          rows={rows.filter((row) => (row.machineId ?? "") === machine.id)} current={current} searchText={searchText} unread={list.next.value === null ? 0 : 1} least />
      ))}
    </div>
  );
}

function Row({ row, current, searchText }: { row: SessionRow; current: boolean; searchText: string }): VNode {
  const ask = row.asks?.[0] ?? row.unanswered;
  const status = statusWord(row);
  return (
    // A search result opens at the match.
    <a class="row" href={`#${routeOf(row.sessionId)}${searchText ? `/find/${encodeURIComponent(searchText)}` : ""}`} data-status={row.needs ?? row.status ?? "stored"}
      aria-current={current ? "page" : undefined}>
      <span class="row-head"><span class="title" dir="auto">{row.pinned && "★ "}{titleOf(row)}</span><span class="when">{ago(moment(row.lastUsed))}</span></span>
      {ask && <span class="asks" dir="auto">{ask.description}</span>}
      {row.mention && <span class="mention" dir="auto">{row.mention}</span>}
      <span class="row-foot">
        {status && <span class="badge">{status}</span>}
        <span class="place">{row.sharedBy && `${row.sharedBy}: `}{row.machine && `${row.machine}${row.machineGone ? " (gone)" : ""}: `}{place(row.directory)}</span>
        <span class="cost">{costOf(row)}</span>
      </span>
    </a>
  );
}

/** The number of other sessions that wait for an answer, as a link to the first one; null if there are none. */
export function NeedsPill({ live, except }: { live: Live; except?: string | null }): VNode | null {
  const waiting = live.all().filter((row) => needsYourAnswer(row) && row.sessionId !== except).sort((one, other) => rank(one) - rank(other) || moment(one.lastUsed) - moment(other.lastUsed));
  const [first] = waiting;
  if (first === undefined) return null;
  const number = waiting.length;
  return <a class="needs-pill" aria-keyshortcuts="j" title="Key: j" href={`#${routeOf(first.sessionId)}`}>{except ? `Next: ${number} more` : number === 1 ? "1 needs you" : `${number} need you`}</a>;
}
