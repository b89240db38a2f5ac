// What the server sends. A value that may be absent is optional or null; both mean the same.

import type { QuestionKind, ServerRow } from "./server_types";

export type { PlanUsage, QuestionKind, Status, Timeline, TurnTime, WaitTime } from "./server_types";

/** A row in which every value may be absent, because this response does not include it. */
type Nullable<Row> = { [Name in keyof Row]?: Row[Name] | null };

/** A session as the page knows it, from one or several responses of the server. */
export interface SessionRow extends Nullable<Omit<ServerRow, "sessionId">> {
  sessionId: string;
  /** The machine that has the session, in a fleet. */
  machine?: string | null;
  machineId?: string | null;
  /** Whether that machine is gone. This row then comes from the fleet's copy. */
  machineGone?: boolean;
  /** The usage limit that ended its last turn; `continuesAt` is set if the session continues automatically. */
  limit?: { type?: string | null; resetsAt?: string | null; continuesAt?: string | null } | null;
}

export interface Choice {
  question: string;
  header: string;
  options: { label: string; description: string }[];
  several: boolean;
  /** The form field behind the choice, in a form of an MCP server. */
  field?: Field | null;
}

/** A field of a form. The values to choose from are the options of its choice. */
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

/** A question from an MCP server instead of from Claude. */
export interface Form {
  server: string;
  message: string;
  /** The address that the server asks the user to open, instead of fields. */
  url?: string;
}

/** An open question with all its details. */
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
  /** For a call that changes an existing file: the diff, or the reason why there is none. */
  fileDiff?: string | null;
  fileNote?: string | null;
  expiresAt?: string | null;
  canAllowForSession?: boolean | null;
  /** The rules that describe what "allow for this session" covers. */
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
  /** The input that runs instead of the requested one. */
  updatedInput?: Record<string, unknown>;
}

export interface Item {
  id: string;
  kind: "text" | "thinking" | "tool" | "message" | "note";
  text?: string | null;
  name?: string | null;
  description?: string | null;
  input?: unknown;
  /** The status of a tool call; empty until its result arrives. */
  status?: "ok" | "error" | "denied" | "" | null;
  result?: string | null;
  diff?: string | null;
  agent?: string | null;
  /** Whether long values are shortened; the whole item can be loaded. */
  cut?: boolean;
}

export interface Turn {
  number: number;
  prompt?: string | null;
  at?: string | null;
  messageId?: string | null;
  model?: string | null;
  /** How many images were sent with the prompt. */
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
  /** Whether the policy shows this user the costs of all users. */
  allCosts?: boolean;
  vapidPublicKey?: string | null;
  /** False if the server sends no push notifications. */
  push?: boolean;
  /** The machines of the fleet, if this page belongs to a gateway. */
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
