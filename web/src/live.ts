// The one connection to the server: the list of sessions and, of the one that is looked at, everything that happens.

import { signal } from "@preact/signals";
import { isWorking } from "./sessions";
import { EventStream, type Line } from "./stream";
import type { MachineRow, SessionRow } from "./types";

export interface Watcher {
  /** What happened in the watched session. */
  event(name: string, data: Record<string, unknown>): void;
}

export class Live {
  readonly rows = new Map<string, SessionRow>();
  state: Line = "connecting";
  /** When the server was lost, in milliseconds; 0 while it is there. */
  lostSince = 0;
  private stream: EventStream | null = null;
  private watcher: Watcher | null = null;
  private readonly listeners = new Set<() => void>();
  /** Changes with the rows, the machines and the connection, at most once for each picture of the screen. */
  readonly version = signal(0);
  private frame = 0;

  /** Called when changes of the list were lost, and it has to be read again. */
  lost: () => void = () => undefined;
  /** Called when a turn of any session has ended. */
  turnEnded: () => void = () => undefined;

  /** `machines` are those of a fleet; none without one. */
  constructor(private readonly signedOut: () => void, public machines: readonly MachineRow[] = []) {}

  /** Calls back after every change of the rows or the connection, at most once for each picture of the screen. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** The rows; a component that asks for them is drawn again when they change. */
  all(): SessionRow[] {
    void this.version.value;
    return [...this.rows.values()];
  }

  /** Follows the list, and a session from behind a place in its events. */
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

  /** What a request has told about a session. */
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
    // The server sends the latest row of a session only: the first that comes of a new one may have its turn behind it.
    if (!isWorking(row) && (before === undefined || isWorking(before))) this.turnEnded();
  }

  /** What the list has of a machine comes and goes with it. */
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

/** A row of an event lacks what only a search tells; what is known of that stays. */
function withoutEmpty(row: Record<string, unknown>): Record<string, unknown> {
  const entries = Object.entries(row).filter(([name, value]) => value !== null || CLEARED.has(name));
  const cleared = [...CLEARED].map((name) => [name, null] as const);
  return Object.fromEntries([...cleared, ...entries]);
}
