// Made from the server's models by `python web/build_types.py`. Do not edit.

export type Status = "running" | "waiting_for_input" | "completed" | "interrupted" | "cancelled" | "error" | "limit_reached";

export type Needs = "question" | "unanswered" | "stalled" | "error" | "limit";

export type QuestionKind = "permission" | "plan_review" | "user_question";

export type Access = "watch" | "answer";

export const COMMANDS = new Set<string>(["Bash", "PowerShell"]);
export const READS = new Set<string>(["NotebookRead", "Read"]);
export const SEARCHES = new Set<string>(["Glob", "Grep", "LS"]);
export const PAGES = new Set<string>(["WebFetch", "WebSearch"]);
export const MIN_RUN = 3;
export const SHOWN_LINES = 3;

/** How much of a subscription is used, by window: the part, from 0 to 1. */
export interface PlanUsage {
  windows?: Record<string, { used?: number; resetsAt?: string | null }> | null;
  reportedAt?: string | null;
}

export interface TurnTime {
  number: number;
  at: number;
  until: number | null;
  prompt: string;
}

export interface WaitTime {
  at: number;
  until: number | null;
  tool: string;
  decision: string;
  by: string;
}

export interface Timeline {
  turns: TurnTime[];
  waits: WaitTime[];
}

/** A session as the server lists it. */
export interface ServerRow {
  sessionId: string;
  title: string | null;
  directory: string | null;
  branch: string | null;
  lastUsed: string;
  created: string | null;
  status: Status | null;
  inMemory: boolean;
  live: boolean;
  messages: number | null;
  model: string | null;
  costUsd: number | null;
  estimatedCostUsd: number | null;
  tag: string | null;
  pinned: boolean;
  archived: boolean;
  mention: string | null;
  sharedBy: string | null;
  access: Access | null;
  prompt: string | null;
  needs: Needs | null;
  asks: { questionId: string; kind: QuestionKind; description: string }[] | null;
  unanswered: { description: string; reason: string; at: string } | null;
  permissionMode: string | null;
  context: [number, number] | null;
  inTerminal: boolean;
  queued: string | null;
  retrying: string | null;
  stalledSeconds: number | null;
  onLimit: "end" | "wait" | null;
  planUsage: PlanUsage | null;
}
