// What a tool call does, for people: changes as diffs, commands whole, plans as text, the rest field by field.

import { h, replace, type Child } from "./dom";
import { lineDiff, unifiedDiff, type Row } from "./diff";
import { diffView, type Margin } from "./diff_view";
import { codeBlock } from "./code_block";
import { markdown } from "./markdown";
import { terminalOutput } from "./terminal_output";
import { COMMANDS, PAGES, READS, SEARCHES, SHOWN_LINES } from "./server_types";
import type { Item } from "./types";
import { count, visible } from "./words";

const SHORT = 200;
/** Changed lines of a change that is shown without a press. */
const SHORT_CHANGE = 24;
/** Characters of each line that is shown of what a command wrote. */
const MAX_TAIL = 300;

/** What a call would do to a file that is there: the change as a unified diff, or why it cannot be shown. */
export interface FileChange {
  fileDiff?: string | null;
  fileNote?: string | null;
}

/** The input of a call, all of it. Files below the session's directory are named from there. */
export function inputView(tool: string, input: unknown, directory: string, before: FileChange = {}): HTMLElement {
  const fields = isRecord(input) ? input : {};
  const rest = { ...fields };
  const nodes: Child[] = [];
  const file = take(rest, "file_path") || take(rest, "notebook_path");
  const change = takeFileChange(tool, rest, before.fileDiff ?? "") ?? takeChange(tool, rest);
  if (change !== null) nodes.push(diffView(change, below(file, directory) || tool));
  else if (file) nodes.push(field("file", below(file, directory)));
  if (before.fileNote) nodes.push(h("p", { class: "hint" }, visible(before.fileNote)));
  const command = COMMANDS.has(tool) ? take(rest, "command") : "";
  if (command) nodes.push(commandView(command));
  const plan = tool === "ExitPlanMode" ? take(rest, "plan") : "";
  if (plan) nodes.push(h("div", { class: "markdown plan" }, markdown(plan)));
  for (const [name, value] of Object.entries(rest)) nodes.push(field(name, value));
  return h("div", { class: "tool-input" }, nodes);
}

const CHANGED_FIELDS: Record<string, readonly string[]> = {
  Edit: ["old_string", "new_string", "replace_all"], MultiEdit: ["edits"], Write: ["content"], NotebookEdit: ["new_source"],
};

/** The change in its place in the file, with the fields that it is made of taken out; null where the file is not known. */
function takeFileChange(tool: string, rest: Record<string, unknown>, diff: string): Row[] | null {
  const fields = CHANGED_FIELDS[tool];
  if (!diff || fields === undefined) return null;
  for (const name of fields) delete rest[name];
  return unifiedDiff(diff);
}

/** The changes of an edit, taken out of its fields; null if the call is none that is known. */
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

/** An edit knows lines of a file, but not where in it they are. */
function withoutNumbers(row: Row): Row {
  return { kind: row.kind, text: row.text };
}

function isEdit(value: unknown): boolean {
  return isRecord(value) && typeof value["old_string"] === "string" && typeof value["new_string"] === "string";
}

function commandView(command: string): HTMLElement {
  const shown = visible(command);
  const lines = command.split("\n").length;
  const measure = lines > 12 || command.length > 1200 ? `${count(command.length, "character")}, ${count(lines, "line")}` : "";
  return h("div", { class: "command" }, codeBlock(shown, measure ? `command · ${measure}` : "command"));
}

function field(name: string, value: unknown): HTMLElement {
  const label = h("dt", null, visible(name));
  if (typeof value === "string" && (value.includes("\n") || value.length > SHORT)) {
    return h("dl", { class: "field" }, label, h("dd", null, codeBlock(visible(value), count(value.length, "character"))));
  }
  if (typeof value === "string") return h("dl", { class: "field" }, label, h("dd", null, visible(value)));
  const text = visible(JSON.stringify(value, null, 2) ?? String(value));
  const body = text.includes("\n") ? codeBlock(text, "json") : h("code", null, text);
  return h("dl", { class: "field" }, label, h("dd", null, body));
}

const STATUS_WORDS: Record<string, string> = { ok: "done", error: "failed", denied: "denied", asked: "asks", running: "running", none: "no result" };
const RESULT_LABELS: Record<string, string> = { error: "error", denied: "why" };

/** What can be done with an item, where it is shown. */
export interface ItemActs {
  /** Gets an item of which only a part is here. */
  whole(item: Item): Promise<Item>;
  /** Where comments on the lines of a file are written. */
  margin?(file: string): Margin | undefined;
  /** Where the conversation of a subagent is shown. */
  agentRoute?(agent: string): string;
}

/** A call folded to one line, with its outcome; input and result are made when it is unfolded. */
export class ToolView {
  readonly element: HTMLDetailsElement;
  /** Where the steps of a subagent go that the call has started. */
  readonly steps = h("div", { class: "steps" });
  private readonly status = h("span", { class: "status" });
  private readonly name = h("span", { class: "tool-name" });
  private readonly about = h("span", { class: "tool-about" });
  private readonly counts = h("span", { class: "counts" });
  /** A few lines of what came back, where it is folded. */
  private readonly tail = h("span", { class: "tail", hidden: true });
  private readonly body = h("div", { class: "tool-body" });
  private touched = false;
  private drawn: Item | null = null;
  private running = false;
  private asked = false;
  private decided = "";

  constructor(private item: Item, private readonly directory: string, private readonly acts: ItemActs) {
    this.element = h("details", { class: "tool", on: { toggle: () => this.open() } },
      h("summary", { on: { click: () => (this.touched = true) } }, this.status, this.name, this.about, this.counts, this.tail), this.body, this.steps);
    this.update(item, false);
  }

  update(item: Item, running: boolean): void {
    this.item = item;
    this.running = running;
    this.drawStatus();
    this.name.textContent = toolTitle(visible(item.name ?? "tool"));
    const why = item.status === "denied" ? visible((item.result ?? "").slice(0, 200)).replace(/\s+/g, " ") : "";
    this.about.textContent = [below(summary(item), this.directory), why].filter(Boolean).join(" · ");
    this.about.classList.toggle("words", isDescribed(item));
    this.element.dataset["kind"] = [READS, SEARCHES, PAGES].some((looks) => looks.has(item.name ?? "")) && item.status !== "error" && item.status !== "denied" ? "look" : "act";
    this.drawChange(item);
    this.drawTail(item);
    this.draw();
  }

  /** How much a change adds and takes away; a short one is shown without a press. */
  private drawChange(item: Item): void {
    if (!item.diff || item.status !== "ok") return;
    const rows = unifiedDiff(item.diff);
    const [added, gone] = [rows.filter((row) => row.kind === "new").length, rows.filter((row) => row.kind === "gone").length];
    replace(this.counts, h("span", { class: "plus", aria: { label: `${count(added, "line")} added` } }, `+${added}`), " ",
      h("span", { class: "minus", aria: { label: `${count(gone, "line")} removed` } }, `−${gone}`));
    if (!this.touched && added + gone <= SHORT_CHANGE) this.element.open = true;
  }

  /** A command ends with what matters of its output; another call that failed begins with the reason. */
  private drawTail(item: Item): void {
    const command = COMMANDS.has(item.name ?? "");
    const shown = (command && item.status && item.status !== "denied") || item.status === "error" ? item.result ?? "" : "";
    const all = shown.split("\n").filter((line) => line.trim());
    const lines = command ? all.slice(-SHOWN_LINES) : all.slice(0, SHOWN_LINES);
    this.tail.hidden = !lines.length;
    this.tail.textContent = lines.map((line) => visible(plainLine(line)).slice(0, MAX_TAIL)).join("\n");
  }

  /** Whether somebody has to decide on this call first. */
  setAsked(asked: boolean): void {
    this.asked = asked;
    this.drawStatus();
  }

  /** Who has decided on this call, in words. */
  setDecided(words: string): void {
    this.decided = words;
    this.drawStatus();
  }

  private drawStatus(): void {
    const status = this.item.status || (this.asked ? "asked" : this.running ? "running" : "none");
    this.element.dataset["status"] = status;
    const words = STATUS_WORDS[status] ?? "";
    // "denied by bob" says both.
    this.status.textContent = this.decided.startsWith(words) ? this.decided || words : [words, this.decided].filter(Boolean).join(", ");
  }

  private open(): void {
    this.draw();
    if (this.element.open && this.item.cut) {
      void this.acts.whole(this.item).then((item) => this.update({ ...item, cut: false }, false), () => undefined);
    }
  }

  private draw(): void {
    const { item } = this;
    if (!this.element.open || item === this.drawn) return;
    this.drawn = item;
    const name = item.name ?? "tool";
    const file = below(isRecord(item.input) ? String(item.input["file_path"] ?? item.input["notebook_path"] ?? name) : name, this.directory);
    replace(this.body,
      item.cut && h("p", { class: "hint" }, "Long parts are shortened until everything is loaded."),
      item.agent && this.acts.agentRoute && h("a", { route: this.acts.agentRoute(item.agent) }, "Open the subagent's conversation"),
      item.diff ? diffView(unifiedDiff(item.diff), file, this.acts.margin?.(file)) : inputView(name, item.input, this.directory),
      // That a change was made is seen in the change.
      item.result && !(item.diff && item.status === "ok") && h("div", { class: "result" }, AGENTS.has(name) && item.status === "ok" ? h("div", { class: "markdown report", dir: "auto" }, markdown(reportOf(item.result)))
        : resultView(item.result, RESULT_LABELS[item.status ?? ""] ?? "result")));
  }
}

const AGENTS = new Set(["Task", "Agent"]);

/** What a subagent reports, without the notes that are for the model. */
function reportOf(result: string): string {
  return result.replace(/^\[Subagent hand-back\][^\n]*\n*/, "").replace(/\n*^agentId: [^\n]*$[^]*/m, "");
}

/** What came back: with the colours of a terminal where it has some, and nothing in it hidden. */
function resultView(result: string, label: string): HTMLElement {
  const output = terminalOutput(result);
  return output === null ? codeBlock(visible(result), label) : codeBlock(output.text, label, output.nodes);
}

/** A path as it is seen from the session's directory; others stay whole. */
export function below(path: string, directory: string): string {
  const inside = directory && path.startsWith(directory) && "/\\".includes(path[directory.length] ?? "x");
  return inside ? path.slice(directory.length + 1) : path;
}

/** `tool of server` for a tool of an MCP server. */
export function toolTitle(name: string): string {
  const parts = /^mcp__(.+?)__(.+)$/.exec(name);
  return parts === null ? name : `${parts[2]} · ${parts[1]}`;
}

/** Whether Claude has said what a command is for. */
function isDescribed(item: Item): boolean {
  return COMMANDS.has(item.name ?? "") && isRecord(item.input) && typeof item.input["description"] === "string" && item.input["description"] !== "";
}

/** Without the codes for colours of a terminal. */
function plainLine(line: string): string {
  return line.replace(/\u001b\[[0-9;?]{0,40}[A-Za-z]/g, "").replace(/^.*\r(?=.)/, "");
}

/** What the call is about, on one line. */
function summary(item: Item): string {
  const input = isRecord(item.input) ? item.input : {};
  if (isDescribed(item)) return `${visible(String(input["description"]))} · ${visible(String(input["command"] ?? "").slice(0, 300)).replace(/\s+/g, " ")}`;
  const names = ["command", "file_path", "notebook_path", "pattern", "url", "query", "description", "prompt", "plan"];
  for (const name of names) {
    const value = input[name];
    if (typeof value === "string" && value) return visible(value.slice(0, 300)).replace(/\s+/g, " ");
  }
  return (item.description ?? "") || Object.entries(input).map(([key, value]) => `${key}: ${String(value).slice(0, 60)}`).join(", ").slice(0, 300);
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
