// What the server tells. Whatever may be absent is optional or null; both mean the same.

import type { QuestionKind, ServerRow } from "./server_types";

export type { PlanUsage, QuestionKind, Status, Timeline, TurnTime } from "./server_types";

/** What may be absent, because this answer did not tell it. */
type Told<Row> = { [Name in keyof Row]?: Row[Name] | null };

/** A session as the page knows it: what the server has told, in one answer or several. */
export interface SessionRow extends Told<Omit<ServerRow, "sessionId">> {
  sessionId: string;
  /** Where it is, in a fleet. */
  machine?: string | null;
  machineId?: string | null;
  /** Whether that machine is gone: then this is what the fleet's copy knows. */
  machineGone?: boolean;
  /** The usage limit that ended its last turn; `continuesAt` if it continues automatically. */
  limit?: { type?: string | null; resetsAt?: string | null; continuesAt?: string | null } | null;
}

export interface Choice {
  question: string;
  header: string;
  options: { label: string; description: string }[];
  several: boolean;
  /** Of a form of an MCP server. */
  field?: Field | null;
}

/** A field of a form; what is chosen from is in the options of its choice. */
export interface Field {
  title: string;
  description?: string;
  type: "string" | "boolean" | "integer" | "number" | "array";
  required: boolean;
  default?: string | string[];
  format?: string;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
}

/** What an MCP server asks, and not Claude. */
export interface Form {
  server: string;
  message: string;
  /** What it wants to have opened, in place of fields. */
  url?: string;
}

/** An open question, whole. */
export interface Question {
  questionId: string;
  sessionId: string;
  kind: QuestionKind;
  toolName: string;
  toolUseId?: string | null;
  toolInput: Record<string, unknown>;
  description: string;
  reason?: string | null;
  blockedPath?: string | null;
  /** Of a call that changes a file which is there: the change to it, or why there is none. */
  fileDiff?: string | null;
  fileNote?: string | null;
  expiresAt?: string | null;
  canAllowForSession?: boolean | null;
  /** What an allowance for the session covers, as rules. */
  sessionRules?: string[] | null;
  modes?: string[] | null;
  modeAfter?: string | null;
  choices?: Choice[] | null;
  form?: Form | null;
}

export interface Answer {
  decision: "allow" | "deny";
  scope?: "once" | "session";
  reason?: string;
  answers?: (string | string[])[];
  permissionMode?: string;
  /** What is run in place of what was asked. */
  updatedInput?: Record<string, unknown>;
}

export interface Item {
  id: string;
  kind: "text" | "thinking" | "tool" | "message" | "note";
  text?: string | null;
  name?: string | null;
  description?: string | null;
  input?: unknown;
  /** Of a tool call; empty while nothing has come back. */
  status?: "ok" | "error" | "denied" | "" | null;
  result?: string | null;
  diff?: string | null;
  agent?: string | null;
  /** Long values are shortened; the whole item can be had. */
  cut?: boolean;
}

export interface Turn {
  number: number;
  prompt?: string | null;
  at?: string | null;
  messageId?: string | null;
  model?: string | null;
  /** How many pictures went with the prompt. */
  images?: number;
  documents?: number;
  items: Item[];
}

export interface TurnsPage {
  sessionId: string;
  title?: string | null;
  total: number;
  first: number;
  turns: Turn[];
  cursor?: string | null;
}

export interface SessionDetails {
  session: SessionRow;
  questions: Question[];
  permissionMode?: string | null;
  error?: { code: string; message: string } | null;
  tokens?: { input: number; output: number } | null;
  turnCount?: number | null;
  runsElsewhere?: boolean;
  queuedMessages?: { messageId: string; text: string; images?: number }[];
}

export interface Me {
  principal: string;
  version: string;
  device?: string | null;
  modes: string[];
  directories: string[];
  hub: boolean;
  /** Whether the policy shows this person what everybody spends. */
  allCosts?: boolean;
  vapidPublicKey?: string | null;
  /** False where nothing is pushed. */
  push?: boolean;
  /** Of a fleet, where this is a gateway's page. */
  machines?: MachineRow[];
}

export interface MachineRow {
  id: string;
  name: string;
  there: boolean;
  draining?: boolean;
  sessions?: number;
  capacity?: number;
}
