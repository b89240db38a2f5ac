// Line ranges in a change: the rows they cover, their names, and their quoted text.

import type { Row } from "./diff";
import { visible } from "./words";

/** The lines that a range means: of the file as it is now, of the file before the change, or both. */
export type Side = "now" | "before" | "both";

export interface LineRange {
  side: Side;
  /** The first and last line number: in the file before the change for `before`, otherwise in the file as it is now. */
  line: number;
  end: number;
  /** The text of each line. With rows of both sides, each begins with `+`, `-` or a space. */
  quote: string;
}

export const MAX_LINES = 100;
const MAX_QUOTE = 300;
const KINDS: Record<Side, readonly Row["kind"][]> = { now: ["same", "new"], before: ["same", "gone"], both: ["same", "gone", "new"] };
const SIGNS: Partial<Record<Row["kind"], string>> = { same: " ", gone: "-", new: "+" };

/** The rows from one to the other, in file order. Stops before omitted lines and after MAX_LINES. Skips rows that are
 * not on the side of the range. */
export function rowsBetween(rows: readonly Row[], from: Row, to: Row): Row[] {
  const [start, wanted] = [rows.indexOf(from), rows.indexOf(to)];
  const step = wanted < start ? -1 : 1;
  const found: Row[] = [];
  for (let at = start; at !== wanted + step && rows[at] !== undefined && rows[at]?.kind !== "gap" && found.length < MAX_LINES; at += step) {
    if (rows[at]?.kind !== "note") found.push(rows[at] as Row);
  }
  if (step < 0) found.reverse();
  const side = sideOf(found);
  return found.filter((row) => KINDS[side].includes(row.kind));
}

/** Derives the side from the first and last row. */
function sideOf(rows: readonly Row[]): Side {
  const ends = [rows[0]?.kind, rows.at(-1)?.kind];
  if (!ends.includes("gone")) return "now";
  return ends.includes("new") ? "both" : "before";
}

/** The range of these rows; null if their line numbers are unknown. */
export function rangeOf(rows: readonly Row[]): LineRange | null {
  const side = sideOf(rows);
  const numbers = rows.map((row) => (side === "before" ? row.before : row.after)).filter((number) => number !== undefined);
  const [line, end] = [numbers[0], numbers.at(-1)];
  if (line === undefined || end === undefined) return null;
  return { side, line, end, quote: rows.map((row) => quoteOf(row, side)).join("\n") };
}

function quoteOf(row: Row, side: Side): string {
  return (side === "both" ? SIGNS[row.kind] ?? "" : "") + row.text.slice(0, MAX_QUOTE);
}

/** The rows of a range; null if these rows do not contain it or its text differs from the quote. */
export function findRange(rows: readonly Row[], range: LineRange): Row[] | null {
  const lines = range.quote.split("\n");
  for (let start = 0; start < rows.length; start += 1) {
    const found = rowsFrom(rows, start, range.side, lines);
    const named = found && rangeOf(found);
    if (named?.side === range.side && named.line === range.line && named.end === range.end) return found;
  }
  return null;
}

function rowsFrom(rows: readonly Row[], start: number, side: Side, lines: readonly string[]): Row[] | null {
  const found: Row[] = [];
  for (let at = start; found.length < lines.length; at += 1) {
    const row = rows[at];
    if (row === undefined || row.kind === "gap") return null;
    if (!KINDS[side].includes(row.kind)) {
      if (at === start) return null;
      continue;
    }
    if (quoteOf(row, side) !== lines[found.length]) return null;
    found.push(row);
  }
  return found;
}

/** `2`, or `2-4`. */
export function numbersOf({ line, end }: LineRange): string {
  return line === end ? String(line) : `${line}-${end}`;
}

/** The label of a button for these lines. */
export function linesWords(range: LineRange): string {
  const lines = range.line === range.end ? `line ${range.line}` : `lines ${range.line} to ${range.end}`;
  return `${lines}${{ now: "", before: ", removed", both: ", with those removed" }[range.side]}`;
}

/** The place of a comment, as shown to the user. */
export function placeWords(file: string, range: LineRange): string {
  return `${visible(file)}:${numbersOf(range)}${{ now: "", before: " (removed)", both: " (with removed lines)" }[range.side]}`;
}
