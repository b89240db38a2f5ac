// What rows of sessions say, and which of them need somebody.

import { limitWord } from "./limits";
import type { SessionRow } from "./types";

const NEEDS = { question: 0, unanswered: 1, stalled: 2, error: 3, limit: 3 } as const;
export const STATUS_WORDS: Record<string, string> = {
  running: "working", waiting_for_input: "asks", completed: "done", error: "failed", limit_reached: "usage limit", interrupted: "interrupted", cancelled: "ended",
};

export function titleOf(row: SessionRow): string {
  return row.title || row.prompt || "Untitled";
}

export function statusWord(row: SessionRow): string {
  if (row.needs === "stalled") return "silent";
  if (row.needs === "unanswered") return "unanswered";
  return limitWord(row) || (row.status ? (STATUS_WORDS[row.status] ?? row.status) : "");
}

/** The most urgent have the lowest. */
export function rank(row: SessionRow): number {
  return row.needs && needsYou(row) ? NEEDS[row.needs] : row.pinned ? 4 : 5;
}

/** Whether somebody else has shared it, and not to be answered or written to. */
export function isWatched(row: SessionRow): boolean {
  return Boolean(row.sharedBy) && row.access !== "answer";
}

/** Who may only watch a session cannot give what it needs. */
export function needsYou(row: SessionRow): boolean {
  return Boolean(row.needs) && !isWatched(row);
}

/** Whether it waits for an answer. */
export function awaitsYou(row: SessionRow): boolean {
  return needsYou(row) && (row.needs === "question" || row.needs === "unanswered");
}

export function isWorking(row: SessionRow): boolean {
  return row.status === "running" || row.status === "waiting_for_input";
}

export function routeOf(id: string): string {
  return `/sessions/${encodeURIComponent(id)}`;
}
