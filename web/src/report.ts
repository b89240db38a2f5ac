// A session's report as the tools return it, and the questions in it. Pure functions.

import type { Choice, Field, Question, QuestionKind } from "./types";
import { isRecord } from "./tool_input";

export interface PendingInput {
  inputId: string;
  type: QuestionKind;
  toolName: string;
  toolInput: Record<string, unknown>;
  description: string;
  reason?: string;
  blockedPath?: string;
  fileDiff?: string;
  fileNote?: string;
  modes?: string[];
  canAllowForSession?: boolean;
  sessionRules?: string[];
  expiresAt?: string;
}

export interface Report {
  sessionId?: string;
  status?: string;
  result?: string;
  recentOutput?: string[];
  pendingInputs?: PendingInput[];
  costUsd?: number;
  nextCursor?: string;
  hasMore?: boolean;
  truncated?: { part?: string }[];
  part?: { text: string; nextOffset?: number | null };
  error?: { code: string; message: string };
}

export function question(sessionId: string, pending: PendingInput): Question {
  return {
    questionId: pending.inputId,
    sessionId,
    kind: pending.type,
    toolName: pending.toolName,
    toolInput: pending.toolInput,
    description: pending.description,
    reason: pending.reason ?? null,
    blockedPath: pending.blockedPath ?? null,
    fileDiff: pending.fileDiff ?? null,
    fileNote: pending.fileNote ?? null,
    expiresAt: pending.expiresAt ?? null,
    canAllowForSession: pending.canAllowForSession ?? false,
    sessionRules: pending.sessionRules ?? [],
    modes: pending.modes ?? [],
    choices: pending.type === "user_question" ? choicesOf(pending.toolInput) : [],
  };
}

function choicesOf(input: Record<string, unknown>): Choice[] {
  const parts = Array.isArray(input["questions"]) ? input["questions"].filter(isRecord) : [];
  return parts.map((part) => ({
    question: String(part["question"] ?? ""),
    header: String(part["header"] ?? ""),
    several: Boolean(part["multiSelect"]),
    field: isRecord(part["field"]) ? (part["field"] as unknown as Field) : null,
    options: (Array.isArray(part["options"]) ? part["options"] : []).map((option: unknown) =>
      isRecord(option) ? { label: String(option["label"] ?? ""), description: String(option["description"] ?? "") } : { label: String(option), description: "" }),
  }));
}
