// The colors of the code in a change, line by line. The changed part of a line is marked.

import { signal, type Signal } from "@preact/signals";
import { type ComponentChildren } from "preact";
import { colored, findParts } from "./code_block";
import { changedPart, type Row } from "./diff";
import type { HighlightPart } from "./highlighter";
import { visible } from "./words";

/** The colors of the lines of a change. The lines before the change are highlighted as one piece of code, and the lines
 * after it as another. */
export class Colors {
  /** Increases whenever more colors are known. */
  readonly known: Signal<number> = signal(0);
  private readonly parts = new Map<Row, readonly HighlightPart[]>();

  constructor(rows: readonly Row[], file: string) {
    const language = /\.(\w+)$/.exec(file)?.[1] ?? "";
    if (!language) return;
    this.ask(rows.filter(({ kind }) => kind === "same" || kind === "new"), language);
    if (rows.some(({ kind }) => kind === "gone")) this.ask(rows.filter(({ kind }) => kind === "same" || kind === "gone"), language);
  }

  of(row: Row): readonly HighlightPart[] {
    return this.parts.get(row) ?? [];
  }

  private ask(rows: readonly Row[], language: string): void {
    findParts(rows.map((row) => visible(row.text)).join("\n"), language, (parts) => {
      const lines: HighlightPart[][] = [[]];
      for (const [classes, text] of parts) {
        for (const [at, piece] of text.split("\n").entries()) {
          if (at) lines.push([]);
          if (piece) lines.at(-1)?.push([classes, piece]);
        }
      }
      if (lines.length !== rows.length) return; // a row is not exactly one line
      for (const [at, row] of rows.entries()) {
        if (!this.parts.has(row)) this.parts.set(row, lines[at] ?? []);
      }
      this.known.value += 1;
    });
  }
}

/** The text of a row. The part that differs from its partner is marked, unless less than a third of the row is the same. */
export function source(row: Row, partner: Row | undefined, parts: readonly HighlightPart[]): ComponentChildren {
  const [start, end] = partner === undefined ? [0, 0] : changedPart(row.text, partner.text);
  if (start + (row.text.length - end) < row.text.length / 3 || end <= start) return withColors(visible(row.text), parts);
  const [before, changed, after] = [visible(row.text.slice(0, start)), visible(row.text.slice(start, end)), visible(row.text.slice(end))];
  const first = before.length;
  const last = first + changed.length;
  return [
    withColors(before, partsBetween(parts, 0, first)),
    <mark>{withColors(changed, partsBetween(parts, first, last))}</mark>,
    withColors(after, partsBetween(parts, last, Infinity)),
  ];
}

function withColors(text: string, parts: readonly HighlightPart[]): ComponentChildren {
  if (parts.map(([, each]) => each).join("") !== text) return text;
  return colored(parts);
}

/** The parts between two offsets. */
function partsBetween(parts: readonly HighlightPart[], from: number, to: number): HighlightPart[] {
  const found: HighlightPart[] = [];
  let at = 0;
  for (const [classes, text] of parts) {
    const inside = text.slice(Math.max(0, from - at), Math.max(0, to - at));
    if (inside) found.push([classes, inside]);
    at += text.length;
  }
  return found;
}
