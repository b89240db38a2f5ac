// The words in the rows of sessions, and which sessions need the user.

import { limitWord } from "./limits";
import type { SessionRow } from "./types";

const NEEDS = { question: 0, unanswered: 1, stalled: 2, error: 3, limit: 3 } as const;
export const STATUS_WORDS: Record<string, string> = {
  running: "working", waiting_for_input: "asks", completed: "done", error: "failed", limit_reached: "usage limit", interrupted: "interrupted", cancelled: "cancelled",
};

export function titleOf(row: SessionRow): string {
  return row.title || row.prompt || "Untitled";
}

export function statusWord(row: SessionRow): string {
  if (row.needs === "stalled") return "no output";
  if (row.needs === "unanswered") return "unanswered";
  return limitWord(row) || (row.status ? (STATUS_WORDS[row.status] ?? row.status) : "");
}

/** The sort rank of a row: the most urgent rows have the lowest. */
export function rank(row: SessionRow): number {
  return row.needs && needsYou(row) ? NEEDS[row.needs] : row.pinned ? 4 : 5;
}

/** Whether another user shared the session without the right to answer its questions or write to it. */
export function isWatched(row: SessionRow): boolean {
  return Boolean(row.sharedBy) && row.access !== "answer";
}

/** Whether the session needs this user. A user who may only watch a session cannot give it what it needs. */
export function needsYou(row: SessionRow): boolean {
  return Boolean(row.needs) && !isWatched(row);
}

/** Whether the session waits for this user's answer. */
export function needsYourAnswer(row: SessionRow): boolean {
  return needsYou(row) && (row.needs === "question" || row.needs === "unanswered");
}

export function isWorking(row: SessionRow): boolean {
  return row.status === "running" || row.status === "waiting_for_input";
}

export function routeOf(id: string): string {
  return `/sessions/${encodeURIComponent(id)}`;
}
