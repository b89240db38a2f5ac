// A tool call, collapsed to one line with its outcome. Expanded, it shows its input, its result and a subagent's steps.

import { type VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { CodeBlock } from "./code_block";
import { unifiedDiff } from "./diff";
import { DiffView } from "./diff_view";
import { ItemView, type ItemProps } from "./item";
import { Markdown } from "./markdown";
import { COMMANDS, PAGES, READS, SHOWN_LINES } from "./server_types";
import { terminalOutput } from "./terminal_output";
import { below, isRecord, ToolInput, toolTitle } from "./tool_input";
import type { TurnActs } from "./turn";
import type { ItemState } from "./turn_state";
import type { Item } from "./types";
import { cx } from "./ui";
import { count, visible } from "./words";

/** A change of at most this many lines is expanded from the start. */
const SHORT_CHANGE = 24;
/** The maximum characters shown of each line of a command's output. */
const MAX_TAIL = 300;
const STATUS_WORDS: Record<string, string> = { ok: "done", error: "failed", denied: "denied", asked: "asks", running: "running", none: "no result" };
const RESULT_LABELS: Record<string, string> = { error: "error", denied: "why" };
const AGENTS = new Set(["Task", "Agent"]);

export function ToolCall({ state, turn, acts }: ItemProps): VNode {
  const item = state.item.value;
  const directory = acts.directory();
  const status = item.status || (state.asked.value ? "asked" : turn.live.value ? "running" : "none");
  const change = useMemo(() => (item.diff && item.status === "ok" ? changeOf(item.diff) : null), [item.diff, item.status]);
  const open = state.open.value ?? (change !== null && change.added + change.gone <= SHORT_CHANGE);
  const drawn = useRef(false);
  drawn.current ||= open; // stay mounted, so that expanded parts in the body stay expanded
  const tail = tailOf(item);
  useEffect(() => {
    if (open && item.cut) void acts.whole(turn, state);
  }, [open, item.cut]);
  return (
    <details class={cx("tool", state.found.value && "found")} open={open} data-item={item.id} data-status={status}
      onToggle={({ currentTarget }) => {
        if (currentTarget.open !== open) state.open.value = currentTarget.open;
      }}>
      <summary>
        <span class="status">{statusWords(status, state.decided.value)}</span>
        <span class="tool-name">{toolTitle(visible(item.name ?? "tool"))}</span>
        <span class={cx("tool-about", isDescribed(item) && "words")}>{about(item, directory)}</span>
        {change !== null && <Counts added={change.added} gone={change.gone} />}
        {tail && <span class="tail">{tail}</span>}
      </summary>
      {drawn.current && <div class="tool-body"><Details item={item} directory={directory} acts={acts} /></div>}
      {state.steps.value.length > 0 && <div class="steps">{state.steps.value.map((step) => <ItemView key={step.id} state={step} turn={turn} acts={acts} />)}</div>}
    </details>
  );
}

function Counts({ added, gone }: { added: number; gone: number }): VNode {
  return (
    <span class="counts">
      <span class="plus" aria-label={`${count(added, "line")} added`}>+{added}</span>{" "}<span class="minus" aria-label={`${count(gone, "line")} removed`}>−{gone}</span>
    </span>
  );
}

function Details({ item, directory, acts }: { item: Item; directory: string; acts: TurnActs }): VNode {
  const name = item.name ?? "tool";
  const file = below(isRecord(item.input) ? String(item.input["file_path"] ?? item.input["notebook_path"] ?? name) : name, directory);
  const rows = useMemo(() => (item.diff ? unifiedDiff(item.diff) : null), [item.diff]);
  const margin = useMemo(() => acts.margin?.(file), [acts, file]);
  return (
    <>
      {item.cut && <p class="hint">Long parts are shortened until everything is loaded.</p>}
      {item.agent && acts.agentRoute && <a href={`#${acts.agentRoute(item.agent)}`}>Open the subagent's conversation</a>}
      {rows === null ? <ToolInput tool={name} input={item.input} directory={directory} /> : <DiffView rows={rows} file={file} margin={margin} />}
      {/* The diff already shows that a change succeeded. */}
      {item.result && !(item.diff && item.status === "ok") && (
        <div class="result">
          {AGENTS.has(name) && item.status === "ok" ? <Markdown text={reportOf(item.result)} class="report" />
            : <Result text={item.result} label={RESULT_LABELS[item.status ?? ""] ?? "result"} />}
        </div>
      )}
    </>
  );
}

/** The result, with terminal colors if it has any. Invisible characters are shown as codes. */
function Result({ text, label }: { text: string; label: string }): VNode {
  const output = useMemo(() => terminalOutput(text), [text]);
  return <CodeBlock code={output === null ? visible(text) : output.text} label={label} parts={output?.parts} />;
}

/** The report of a subagent without the notes for the model. */
export function reportOf(result: string): string {
  const report = result.replace(/^\[Subagent hand-back\][^\n]*\n*/, "");
  const end = report.search(/^agentId: /m);
  return end < 0 ? report : report.slice(0, end).trimEnd();
}

function changeOf(diff: string): { added: number; gone: number } {
  const rows = unifiedDiff(diff);
  return { added: rows.filter((row) => row.kind === "new").length, gone: rows.filter((row) => row.kind === "gone").length };
}

/** The outcome and who decided: "denied by bob" says both. */
function statusWords(status: string, decided: string): string {
  const words = STATUS_WORDS[status] ?? "";
  return decided.startsWith(words) ? decided || words : [words, decided].filter(Boolean).join(", ");
}

/** The lines of the result in the summary. The output of a command matters at its end; the error of another call begins
 * with the reason. */
function tailOf(item: Item): string {
  const command = COMMANDS.has(item.name ?? "");
  const shown = (command && item.status && item.status !== "denied") || item.status === "error" ? item.result ?? "" : "";
  const all = shown.split("\n").filter((line) => line.trim());
  const lines = command ? all.slice(-SHOWN_LINES) : all.slice(0, SHOWN_LINES);
  return lines.map((line) => visible(plainLine(line)).slice(0, MAX_TAIL)).join("\n");
}

/** The line without terminal control codes and without text that a carriage return overwrote. */
function plainLine(line: string): string {
  return line.replace(/\u001b\[[0-9;?]{0,40}[A-Za-z]/g, "").replace(/^.*\r(?=.)/, "");
}

/** What the call is about, on one line, and why it was denied. */
function about(item: Item, directory: string): string {
  const why = item.status === "denied" ? visible((item.result ?? "").slice(0, 200)).replace(/\s+/g, " ") : "";
  return [below(summary(item), directory), why].filter(Boolean).join(" · ");
}

/** Whether Claude described the purpose of a command. */
function isDescribed(item: Item): boolean {
  return COMMANDS.has(item.name ?? "") && isRecord(item.input) && typeof item.input["description"] === "string" && item.input["description"] !== "";
}

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

/** A run of calls that only look at something, collapsed to one line. */
export function ReadCalls({ run, turn, acts }: Omit<ItemProps, "state"> & { run: readonly ItemState[] }): VNode {
  const open = run.some((one) => one.runOpen.value);
  return (
    <details class="looks" open={open} onToggle={({ currentTarget }) => {
      if (currentTarget.open !== open) for (const one of run) one.runOpen.value = currentTarget.open;
    }}>
      <summary>{readCallWords(run.map(({ item }) => item.value))}</summary>
      <div class="looks-body">{run.map((one) => <ItemView key={one.id} state={one} turn={turn} acts={acts} />)}</div>
    </details>
  );
}

/** Summarizes a run of looks, such as “Read 3 files, searched 2 times”. */
function readCallWords(items: readonly Item[]): string {
  const reads = items.filter(({ name }) => READS.has(name ?? "")).length;
  const pages = items.filter(({ name }) => PAGES.has(name ?? "")).length;
  const searches = items.length - reads - pages;
  const words = [reads && `read ${count(reads, "file")}`, searches && `searched ${count(searches, "time")}`, pages && `looked at ${count(pages, "page")}`].filter(Boolean).join(", ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
