// Arranges the lines of a change for its table: inline or side by side, folded and in pieces. Pure functions.

import type { Row } from "./diff";

const CONTEXT = 3;
const FOLD_FROM = 2 * CONTEXT + 4;
/** The number of rows rendered at once. The next rows follow when the reader scrolls near them. */
export const CHUNK = 200;

/** A row of the table: one row of the change, or two side by side. */
export interface Line {
  /** Whether it may be folded. */
  same: boolean;
  left?: Row | undefined;
  right?: Row | undefined;
}

/** Lines that are rendered together, folded or not. */
export interface Piece {
  folded: boolean;
  lines: readonly Line[];
}

/** Pairs a run of removed rows with the run of added rows right after it, line by line. */
export function partnersOf(rows: readonly Row[]): Map<Row, Row> {
  const partners = new Map<Row, Row>();
  let at = 0;
  while (at < rows.length) {
    const start = at;
    while (rows[at]?.kind === "gone") at += 1;
    const middle = at;
    while (rows[at]?.kind === "new") at += 1;
    for (let number = 0; number < Math.min(middle - start, at - middle); number += 1) {
      const [gone, come] = [rows[start + number] as Row, rows[middle + number] as Row];
      partners.set(gone, come);
      partners.set(come, gone);
    }
    if (at === start) at += 1;
  }
  return partners;
}

/** The rows side by side: before the change on the left, after it on the right. */
export function pairs(rows: readonly Row[], partners: ReadonlyMap<Row, Row>): Line[] {
  return rows.flatMap((row): Line[] => {
    if (row.kind === "gone") return [{ same: false, left: row, right: partners.get(row) }];
    if (row.kind === "new") return partners.has(row) ? [] : [{ same: false, right: row }];
    return [{ same: row.kind === "same", left: row, right: row }];
  });
}

/** Folds long runs of unchanged lines, except for some lines around each change and the rows in `kept`. */
export function folded(lines: readonly Line[], kept: ReadonlySet<Row>): Piece[] {
  const same = (at: number): boolean => {
    const line = lines[at];
    return line !== undefined && line.same && !(line.left && kept.has(line.left));
  };
  const pieces: Piece[] = [];
  let shown: Line[] = [];
  let at = 0;
  while (at < lines.length) {
    const start = at;
    while (same(at)) at += 1;
    const [first, last] = [start === 0, at === lines.length];
    const head = first ? 0 : CONTEXT;
    const tail = last ? 0 : CONTEXT;
    if (at - start > FOLD_FROM && !(first && last)) {
      pieces.push(...chunks([...shown, ...lines.slice(start, start + head)]), { folded: true, lines: lines.slice(start + head, at - tail) });
      shown = lines.slice(at - tail, at);
    } else {
      for (const line of lines.slice(start, at)) shown.push(line);
    }
    while (at < lines.length && !same(at)) shown.push(lines[at++] as Line);
  }
  return [...pieces, ...chunks(shown)];
}

export function chunks(lines: readonly Line[]): Piece[] {
  const pieces: Piece[] = [];
  for (let at = 0; at < lines.length; at += CHUNK) pieces.push({ folded: false, lines: lines.slice(at, at + CHUNK) });
  return pieces;
}
