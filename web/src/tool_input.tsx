// The complete input of a tool call: changes as diffs, commands in full, plans as text, the rest field by field.

import { type VNode } from "preact";
import { useMemo } from "preact/hooks";
import { CodeBlock } from "./code_block";
import { lineDiff, unifiedDiff, type Row } from "./diff";
import { DiffView } from "./diff_view";
import { Markdown } from "./markdown";
import { COMMANDS } from "./server_types";
import { count, visible } from "./words";

const SHORT = 200;

/** The change that a call would make to an existing file: a unified diff, or the reason why it cannot be shown. */
export interface FileChange {
  fileDiff?: string | null;
  fileNote?: string | null;
}

/** Shows paths below the session's directory relative to that directory. */
export function ToolInput({ tool, input, directory, before = {} }: { tool: string; input: unknown; directory: string; before?: FileChange }): VNode {
  const { file, change, command, plan, rest } = useMemo(() => parts(tool, input, before), [tool, input, before.fileDiff]);
  return (
    <div class="tool-input">
      {change !== null ? <DiffView rows={change} file={below(file, directory) || tool} /> : file && <Field name="file" value={below(file, directory)} />}
      {before.fileNote && <p class="hint">{visible(before.fileNote)}</p>}
      {command && <Command command={command} />}
      {plan && <Markdown text={plan} class="plan" />}
      {Object.entries(rest).map(([name, value]) => <Field key={name} name={name} value={value} />)}
    </div>
  );
}

interface Parts {
  file: string;
  /** The rows of the change that the call would make; null if no change is known. */
  change: Row[] | null;
  command: string;
  plan: string;
  /** All other fields. */
  rest: Record<string, unknown>;
}

function parts(tool: string, input: unknown, before: FileChange): Parts {
  const rest = isRecord(input) ? { ...input } : {};
  return {
    file: take(rest, "file_path") || take(rest, "notebook_path"),
    change: takeFileChange(tool, rest, before.fileDiff ?? "") ?? takeChange(tool, rest),
    command: COMMANDS.has(tool) ? take(rest, "command") : "",
    plan: tool === "ExitPlanMode" ? take(rest, "plan") : "",
    rest,
  };
}

const CHANGED_FIELDS: Record<string, readonly string[]> = {
  Edit: ["old_string", "new_string", "replace_all"], MultiEdit: ["edits"], Write: ["content"], NotebookEdit: ["new_source"],
};

/** The change at its place in the file. Removes the fields of the change from `rest`. Null if the file is not known. */
function takeFileChange(tool: string, rest: Record<string, unknown>, diff: string): Row[] | null {
  const fields = CHANGED_FIELDS[tool];
  if (!diff || fields === undefined) return null;
  for (const name of fields) delete rest[name];
  return unifiedDiff(diff);
}

/** The changes of an edit. Removes their fields from `rest`. Null if the change cannot be shown as rows. */
function takeChange(tool: string, rest: Record<string, unknown>): Row[] | null {
  if (tool === "Edit" && typeof rest["old_string"] === "string" && typeof rest["new_string"] === "string") {
    const rows = lineDiff(take(rest, "old_string"), take(rest, "new_string"));
    if (rest["replace_all"] === false) delete rest["replace_all"];
    return rows.map(withoutNumbers);
  }
  if (tool === "MultiEdit" && Array.isArray(rest["edits"]) && rest["edits"].every(isEdit)) {
    const edits = rest["edits"] as { old_string: string; new_string: string; replace_all?: boolean }[];
    if (edits.some((edit) => edit.replace_all)) return null;
    delete rest["edits"];
    return edits.flatMap((edit, at) => [
      ...(at ? [{ kind: "gap", text: "" } as Row] : []),
      ...lineDiff(edit.old_string, edit.new_string).map(withoutNumbers),
    ]);
  }
  if (tool === "Write" && typeof rest["content"] === "string") return lineDiff("", take(rest, "content"));
  if (tool === "NotebookEdit" && typeof rest["new_source"] === "string") return lineDiff("", take(rest, "new_source")).map(withoutNumbers);
  return null;
}

/** Removes the line numbers: an edit contains lines of a file, but not their position in it. */
function withoutNumbers(row: Row): Row {
  return { kind: row.kind, text: row.text };
}

function isEdit(value: unknown): boolean {
  return isRecord(value) && typeof value["old_string"] === "string" && typeof value["new_string"] === "string";
}

function Command({ command }: { command: string }): VNode {
  const lines = command.split("\n").length;
  const measure = lines > 12 || command.length > 1200 ? `${count(command.length, "character")}, ${count(lines, "line")}` : "";
  return <div class="command"><CodeBlock code={visible(command)} label={measure ? `command · ${measure}` : "command"} /></div>;
}

function Field({ name, value }: { name: string; value: unknown }): VNode {
  return <dl class="field"><dt>{visible(name)}</dt><dd><Value value={value} /></dd></dl>;
}

function Value({ value }: { value: unknown }): VNode {
  if (typeof value === "string") {
    const isLong = value.includes("\n") || value.length > SHORT;
    return isLong ? <CodeBlock code={visible(value)} label={count(value.length, "character")} /> : <>{visible(value)}</>;
  }
  const text = visible(JSON.stringify(value, null, 2) ?? String(value));
  return text.includes("\n") ? <CodeBlock code={text} label="json" /> : <code>{text}</code>;
}

/** A path relative to the session's directory; paths outside the directory stay as they are. */
export function below(path: string, directory: string): string {
  const inside = directory && path.startsWith(directory) && "/\\".includes(path[directory.length] ?? "x");
  return inside ? path.slice(directory.length + 1) : path;
}

/** `tool · server` for a tool of an MCP server; other names stay as they are. */
export function toolTitle(name: string): string {
  const parts = /^mcp__(.+?)__(.+)$/.exec(name);
  return parts === null ? name : `${parts[2]} · ${parts[1]}`;
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function take(fields: Record<string, unknown>, name: string): string {
  const value = fields[name];
  if (typeof value !== "string") return "";
  delete fields[name];
  return value;
}
