// Line-by-line differences between two texts. They are always complete: if the comparison would take too long, all old
// lines are removed and all new lines are added.

import { diffArrays } from "diff";

export interface Row {
  kind: "same" | "gone" | "new" | "gap" | "note";
  text: string;
  /** Line numbers, if they are known. */
  before?: number;
  after?: number;
}

/** A change with more edited lines is shown as all old lines removed and all new lines added. */
const MAX_STEPS = 600;

/** The rows of a change from one text to another. */
export function lineDiff(before: string, after: string): Row[] {
  const old = linesOf(before);
  const now = linesOf(after);
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old[old.length - 1 - end] === now[now.length - 1 - end]) end += 1;
  const rows: Row[] = [];
  let [a, b] = [0, 0];
  const same = (): void => void rows.push({ kind: "same", text: old[a] as string, before: (a += 1), after: (b += 1) });
  const gone = (): void => void rows.push({ kind: "gone", text: old[a] as string, before: (a += 1) });
  const come = (): void => void rows.push({ kind: "new", text: now[b] as string, after: (b += 1) });
  while (a < start) same();
  for (const part of parts(old.slice(start, old.length - end), now.slice(start, now.length - end))) {
    for (let number = 0; number < part.count; number += 1) (part.removed ? gone : part.added ? come : same)();
  }
  while (a < old.length) same();
  return rows;
}

function parts(old: string[], now: string[]): { count: number; removed: boolean; added: boolean }[] {
  const all = [{ count: old.length, removed: true, added: false }, { count: now.length, removed: false, added: true }];
  if (!old.length || !now.length) return all;
  return diffArrays(old, now, { maxEditLength: MAX_STEPS }) ?? all;
}

function linesOf(text: string): string[] {
  if (!text) return [];
  const lines = text.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/** The rows of a unified diff, as Claude Code records it and as the server creates it. */
export function unifiedDiff(text: string): Row[] {
  const rows: Row[] = [];
  let [before, after] = [1, 1];
  for (const line of text.split("\n")) {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(line);
    if (hunk !== null) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      if (rows.length) rows.push({ kind: "gap", text: "" });
    } else if (line.startsWith("+")) rows.push({ kind: "new", text: line.slice(1), after: after++ });
    else if (line.startsWith("-")) rows.push({ kind: "gone", text: line.slice(1), before: before++ });
    else if (line.startsWith(" ")) rows.push({ kind: "same", text: line.slice(1), before: before++, after: after++ });
    else if (line.startsWith("\\")) rows.push({ kind: "note", text: line.slice(1).trim() });
  }
  return rows;
}

/** The part in which two lines differ: [start, end in the first, end in the second]. */
export function changedPart(before: string, after: string): [number, number, number] {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let [a, b] = [before.length, after.length];
  while (a > start && b > start && before[a - 1] === after[b - 1]) {
    a -= 1;
    b -= 1;
  }
  return [start, a, b];
}
