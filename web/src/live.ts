// The single event stream from the server: changes of the session list, and all events of the session on screen.

import { signal } from "@preact/signals";
import { reconnects } from "./question";
import { isWorking } from "./sessions";
import { EventStream, type Line } from "./stream";
import type { MachineRow, SessionRow } from "./types";

export interface Watcher {
  /** Called for each event of the watched session. */
  event(name: string, data: Record<string, unknown>): void;
}

export class Live {
  readonly rows = new Map<string, SessionRow>();
  state: Line = "connecting";
  /** When the connection was lost, in milliseconds since the epoch; 0 while it is live. */
  lostSince = 0;
  private stream: EventStream | null = null;
  private watcher: Watcher | null = null;
  private readonly listeners = new Set<() => void>();
  /** Increments when the rows, the machines or the connection change, at most once per animation frame. */
  readonly version = signal(0);
  private frame = 0;

  /** Called when changes of the list were missed and it must be reloaded. */
  lost: () => void = () => undefined;
  /** Called when a turn of any session has ended. */
  turnEnded: () => void = () => undefined;

  /** `machines` are the machines of a fleet; empty without a fleet. */
  constructor(private readonly signedOut: () => void, public machines: readonly MachineRow[] = []) {}

  /** Calls `listener` after changes of the rows, the machines or the connection, at most once per animation frame. Returns
   * a function that removes it. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** The rows. A component that reads them renders again when they change. */
  all(): SessionRow[] {
    void this.version.value;
    return [...this.rows.values()];
  }

  /** Opens a stream of the list and, if given, of one session's events after the event `after`. */
  follow(session: string | null, after: string | null, watcher: Watcher | null): void {
    this.stream?.close();
    this.watcher = watcher;
    const query = new URLSearchParams();
    if (session !== null) query.set("session", session);
    if (after) query.set("after", after);
    this.stream = new EventStream(`/api/events?${query}`, "", {
      event: (name, data) => this.event(name, data as Record<string, unknown>),
      line: (state) => this.line(state),
    });
  }

  stop(): void {
    this.stream?.close();
    this.stream = null;
    this.watcher = null;
    this.rows.clear();
  }

  /** Merges rows from an event or an answer into the known rows. */
  learn(rows: readonly SessionRow[]): void {
    for (const row of rows) this.rows.set(row.sessionId, { ...this.rows.get(row.sessionId), ...row });
    this.changed();
  }

  forgetRow(id: string): void {
    this.rows.delete(id);
    this.changed();
  }

  private line(state: Line): void {
    this.state = state;
    if (state === "live" && this.lostSince) reconnects.value += 1;
    if (state === "live") this.lostSince = 0;
    else if (state === "offline") this.lostSince ||= Date.now();
    if (state === "refused") this.signedOut();
    this.changed();
  }

  private event(name: string, data: Record<string, unknown>): void {
    const id = String(data["sessionId"] ?? "");
    if (name === "session") this.learnRow(withoutEmpty(data) as unknown as SessionRow);
    else if (name === "session-gone") this.gone(id);
    else if (name === "machines") this.setMachines(data["machines"] as MachineRow[]);
    else if (name === "list-gap") this.lost();
    else if (name === "signed-out") this.signedOut();
    else this.watcher?.event(name, data);
  }

  private learnRow(row: SessionRow): void {
    const before = this.rows.get(row.sessionId);
    this.learn([row]);
    // The server sends only the latest row of a session: the first row of a new session may follow the end of its turn.
    if (!isWorking(row) && (before === undefined || isWorking(before))) this.turnEnded();
  }

  /** Reloads the list if a machine was added, renamed, lost or found again: its rows come and go with it. */
  private setMachines(machines: readonly MachineRow[]): void {
    const there = (rows: readonly MachineRow[]): string => JSON.stringify(rows.map((row) => [row.id, row.name, row.there]));
    const changed = there(machines) !== there(this.machines);
    this.machines = machines;
    if (changed) this.lost();
    this.changed();
  }

  private gone(id: string): void {
    const row = this.rows.get(id);
    if (row !== undefined) this.rows.set(id, { ...row, inMemory: false, needs: null, asks: null });
    this.changed();
  }

  private changed(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.version.value += 1;
      for (const listener of this.listeners) listener();
    });
  }
}

const CLEARED = new Set(["needs", "asks", "unanswered", "queued", "retrying", "stalledSeconds", "status", "limit"]);

/** Drops null fields, so that they do not overwrite what only a search reports. The fields in CLEARED become null if they
 * are missing. */
function withoutEmpty(row: Record<string, unknown>): Record<string, unknown> {
  const entries = Object.entries(row).filter(([name, value]) => value !== null || CLEARED.has(name));
  const cleared = [...CLEARED].map((name) => [name, null] as const);
  return Object.fromEntries([...cleared, ...entries]);
}
