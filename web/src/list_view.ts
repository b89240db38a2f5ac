// The sessions: those that need somebody, those at work, and all others, read from the disk in pages.

import { get, messageOf } from "./api";
import { button, freshId, h, keyed, replace } from "./dom";
import { limitWord } from "./limit_view";
import type { Live } from "./live";
import { machineSelect } from "./machines";
import type { MachineRow, SessionRow } from "./types";
import { ago, dollars, moment, place } from "./words";

interface ListPage {
  attention: SessionRow[];
  sessions: SessionRow[];
  /** How many there are in all, where nothing is searched for. */
  total?: number | null;
  nextOffset?: number | null;
}

const PAGE = 30;
const SEARCH_DELAY = 250;

export class ListView {
  readonly element: HTMLElement;
  private readonly search = h("input", { type: "search", id: freshId("search"), placeholder: "Search sessions", autocomplete: "off",
    aria: { label: "Search sessions" }, on: { input: () => this.typed() } });
  private readonly whole = h("input", { type: "checkbox", id: freshId("whole"), on: { change: () => void this.load() } });
  private readonly needing = new Section("Needs you");
  private readonly working = new Section("Working");
  private readonly rest = new Section("Sessions");
  /** Of a fleet, in place of that: by machine. */
  private readonly byMachine = new Map<string, Section>();
  private readonly fleet = h("div", { class: "fleet" });
  private filter = h("select", null);
  private readonly more = button("Show more", () => void this.load(this.next ?? 0), { class: "more", hidden: true });
  private readonly note = h("p", { class: "hint", role: "status" });
  private readonly empty = h("p", { class: "hint", hidden: true });
  private timer: ReturnType<typeof setTimeout> | undefined;
  private stored: SessionRow[] = [];
  private next: number | null = null;
  private total: number | null = null;
  private request = 0;
  private readonly clock: ReturnType<typeof setInterval>;
  private current: string | null = null;
  private title = "";
  private badge = 0;
  private archived = false;
  private readonly archive = button("Archived sessions", () => this.toggleArchive(), { class: "more quiet" });

  constructor(private readonly live: Live) {
    this.element = h("nav", { class: "sessions", aria: { label: "Sessions" } },
      h("div", { class: "search", role: "search" }, this.search,
        h("label", { class: "check", for: this.whole.id }, this.whole, "in whole conversations")),
      this.needing.element, this.working.element, this.rest.element, this.fleet, this.empty, this.note, this.more, this.archive);
    live.onChange(() => this.draw());
    live.lost = () => void this.load();
    this.clock = setInterval(() => this.draw(), 60_000);
  }

  close(): void {
    clearInterval(this.clock);
  }

  focusSearch(): void {
    this.search.focus();
  }

  /** Marks the session that is shown beside the list. */
  select(id: string | null): void {
    this.current = id;
    this.draw();
  }

  private toggleArchive(): void {
    this.archived = !this.archived;
    this.archive.textContent = this.archived ? "Back to all sessions" : "Archived sessions";
    this.rest.setTitle(this.archived ? "Archive" : "Sessions");
    this.stored = [];
    void this.load();
  }

  private typed(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.load(), SEARCH_DELAY);
  }

  /** Reads the first page, or the one at an offset. An answer that comes late, after another request, is dropped. */
  async load(offset = 0): Promise<void> {
    const number = (this.request += 1);
    const query = new URLSearchParams({ limit: String(PAGE), offset: String(offset) });
    const text = this.search.value.trim();
    if (text) query.set("text", text);
    if (text && this.whole.checked) query.set("whole", "1");
    if (this.archived) query.set("archived", "1");
    if (this.filter.value) query.set("machine", this.filter.value);
    this.element.setAttribute("aria-busy", "true");
    try {
      const page = await get<ListPage>(`/api/sessions?${query}`);
      if (number !== this.request) return;
      this.stored = offset ? [...this.stored, ...page.sessions] : page.sessions;
      this.next = page.nextOffset ?? null;
      this.total = page.total ?? null;
      this.live.learn([...page.attention, ...page.sessions]);
      this.note.textContent = "";
    } catch (error) {
      this.note.textContent = messageOf(error);
    }
    this.element.removeAttribute("aria-busy");
    this.draw();
  }

  /** The machines that can be chosen from; the choice stays when they change. */
  private drawFilter(): void {
    const { machines } = this.live;
    const drawn = JSON.stringify(machines.map((machine) => [machine.id, machine.name, machine.there]));
    if (!machines.length || this.filter.dataset["drawn"] === drawn) return;
    const chosen = this.filter.value;
    this.filter.remove();
    this.filter = machineSelect(machines, "All machines", () => true);
    this.filter.setAttribute("aria-label", "Machine");
    this.filter.dataset["drawn"] = drawn;
    this.filter.value = machines.some((machine) => machine.id === chosen) ? chosen : "";
    this.filter.addEventListener("change", () => void this.load());
    this.search.after(this.filter);
  }

  /** Those at rest by machine, with every machine that is gone, whether or not anything of it is known. */
  private drawFleet(rows: readonly SessionRow[], sought: string): void {
    const chosen = this.filter.value;
    const machines = new Map(this.live.machines.map((machine) => [machine.id, machine]));
    // A machine that is gone may be known by its sessions alone.
    for (const { machineId, machine } of rows) {
      const id = machineId ?? "";
      if (!machines.has(id)) machines.set(id, { id, name: machine ?? id, there: false });
    }
    for (const section of this.byMachine.values()) section.element.hidden = true;
    for (const machine of machines.values()) {
      if (chosen && machine.id !== chosen) continue;
      let section = this.byMachine.get(machine.id);
      if (section === undefined) this.byMachine.set(machine.id, (section = new Section(machine.name)));
      section.draw(rows.filter((row) => (row.machineId ?? "") === machine.id), this.current, sought, this.next === null ? 0 : 1, true);
      section.setGone(machine);
      this.fleet.append(section.element);
    }
  }

  private draw(): void {
    const searching = this.search.value.trim() !== "";
    this.drawFilter();
    const rows = this.shown(searching);
    const needing = rows.filter(needsYou);
    const working = rows.filter((row) => !needsYou(row) && isWorking(row));
    const others = rows.filter((row) => !needsYou(row) && !isWorking(row));
    const sought = this.search.value.trim();
    this.needing.draw(needing, this.current, sought);
    this.working.draw(working, this.current, sought);
    // Of those that are not here yet nothing is known but how many they are. Some are here before they are read.
    const unread = this.next === null ? 0 : Math.max(this.total === null ? 1 : 0, (this.total ?? 0) - rows.length);
    const inFleet = this.live.machines.length > 0;
    this.rest.draw(inFleet ? [] : others, this.current, sought, unread, this.total === null);
    if (inFleet) this.drawFleet(others, sought);
    this.more.hidden = this.next === null;
    this.empty.hidden = rows.length > 0 || this.element.hasAttribute("aria-busy");
    this.empty.textContent = searching ? "Nothing found." : this.archived ? "Nothing is archived." : "No session yet.";
    this.drawTitle();
  }

  /** What is shown beside the list has this title. */
  name(title: string): void {
    this.title = title;
    this.drawTitle();
  }

  /** The tab and the icon of an installed page say how many sessions wait for somebody. */
  private drawTitle(): void {
    const waiting = [...this.live.rows.values()].filter((row) => needsYou(row) && (row.needs === "question" || row.needs === "unanswered")).length;
    const title = `${waiting ? `(${waiting}) ` : ""}${this.title ? `${this.title.slice(0, 80)} · ` : ""}Claude Code`;
    if (document.title !== title) document.title = title;
    if (waiting === this.badge) return;
    this.badge = waiting;
    const { setAppBadge, clearAppBadge } = navigator as { setAppBadge?(count: number): Promise<void>; clearAppBadge?(): Promise<void> };
    void (waiting ? setAppBadge?.call(navigator, waiting) : clearAppBadge?.call(navigator))?.catch(() => undefined);
  }

  /** The stored rows as they are now; before them, unless something is searched for, those that the server has in
   * memory. */
  private shown(searching: boolean): SessionRow[] {
    const stored = new Map(this.stored.map((row) => [row.sessionId, { ...row, ...this.live.rows.get(row.sessionId), mention: row.mention ?? null }]));
    if (this.archived) return [...stored.values()].filter((row) => row.archived);
    if (searching) return [...stored.values()];
    const live = [...this.live.rows.values()].filter((row) => row.inMemory && !stored.has(row.sessionId));
    const chosen = this.filter.value;
    const rows = [...live, ...stored.values()].filter((row) => !row.archived && (!chosen || row.machineId === chosen));
    return rows.sort((one, other) => rank(one) - rank(other) || moment(other.lastUsed) - moment(one.lastUsed));
  }
}

const NEEDS = { question: 0, unanswered: 1, stalled: 2, error: 3, limit: 3 } as const;

function rank(row: SessionRow): number {
  return row.needs && needsYou(row) ? NEEDS[row.needs] : row.pinned ? 4 : 5;
}

/** Whether somebody else has shared it, and not to be answered or written to. */
export function isWatched(row: SessionRow): boolean {
  return Boolean(row.sharedBy) && row.access !== "answer";
}

/** Who may only watch a session cannot give what it needs. */
function needsYou(row: SessionRow): boolean {
  return Boolean(row.needs) && !isWatched(row);
}

function isWorking(row: SessionRow): boolean {
  return row.status === "running" || row.status === "waiting_for_input";
}

class Section {
  readonly element: HTMLElement;
  private readonly title: HTMLElement;
  private readonly list = h("ul", { class: "rows", role: "list" });
  private readonly number = h("span", { class: "number" });
  private readonly note = h("p", { class: "hint" }, "Its sessions go on elsewhere with their next message, or when it is back.");

  constructor(title: string) {
    this.title = h("span", null, title);
    this.element = h("section", null, h("h2", null, this.title, " ", this.number), this.list);
  }

  setTitle(title: string): void {
    this.title.textContent = title;
  }

  /** Says of a machine that it is gone, and what becomes of its sessions. */
  setGone(machine: MachineRow): void {
    this.title.textContent = machine.there ? machine.name : `${machine.name}: gone`;
    if (machine.there) return this.note.remove();
    this.element.hidden = false;
    this.title.parentElement?.after(this.note);
  }

  /** `sought` is what was searched for; `unread` more belong here that are not read yet, `least` says that there may be
   * more than that. */
  draw(rows: readonly SessionRow[], current: string | null, sought: string, unread = 0, least = false): void {
    this.element.hidden = !rows.length;
    const known = least && unread ? `${rows.length}+` : (rows.length + unread).toLocaleString("en");
    this.number.textContent = rows.length ? known : "";
    keyed(this.list, rows, (row) => row.sessionId, (row, old) => rowElement(row, current, sought, old));
  }
}

export function titleOf(row: SessionRow): string {
  return row.title || row.prompt || "Untitled";
}

const STATUS_WORDS: Record<string, string> = {
  running: "working", waiting_for_input: "asks", completed: "done", error: "failed", limit_reached: "usage limit", interrupted: "interrupted", cancelled: "ended",
};

export function statusWord(row: SessionRow): string {
  if (row.needs === "stalled") return "silent";
  if (row.needs === "unanswered") return "unanswered";
  return limitWord(row) || statusOf(row);
}

function statusOf(row: SessionRow): string {
  return row.status ? (STATUS_WORDS[row.status] ?? row.status) : "";
}

function rowElement(row: SessionRow, current: string | null, sought: string, old: HTMLElement | undefined): HTMLElement {
  const element = old ?? h("li", null, h("a", { class: "row" }));
  const link = element.firstElementChild as HTMLAnchorElement;
  const shown = JSON.stringify([row, row.sessionId === current, sought, ago(moment(row.lastUsed))]);
  if (element.dataset["shown"] === shown) return element;
  element.dataset["shown"] = shown;
  const ask = row.asks?.[0] ?? row.unanswered;
  // What was found is opened where it stands.
  link.href = `#/sessions/${encodeURIComponent(row.sessionId)}${sought ? `/find/${encodeURIComponent(sought)}` : ""}`;
  link.dataset["status"] = row.needs ?? row.status ?? "stored";
  if (row.sessionId === current) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
  const status = statusWord(row);
  replace(link,
    h("span", { class: "row-head" }, h("span", { class: "title" }, row.pinned && "★ ", titleOf(row)),
      h("span", { class: "when" }, ago(moment(row.lastUsed)))),
    ask && h("span", { class: "asks" }, ask.description),
    row.mention && h("span", { class: "mention" }, row.mention),
    h("span", { class: "row-foot" },
      status && h("span", { class: "badge" }, status),
      h("span", { class: "place" }, row.sharedBy && `${row.sharedBy}: `, row.machine && `${row.machine}${row.machineGone ? " (gone)" : ""}: `, place(row.directory)),
      h("span", { class: "cost" }, dollars(row.costUsd))));
  return element;
}
