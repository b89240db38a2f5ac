// A change to a file, inline or side by side. Every line is there; long unchanged stretches are folded.

import { button, h } from "./dom";
import { coloured, findParts } from "./code_block";
import { changedPart, type Row } from "./diff";
import type { HighlightPart } from "./highlighter";
import { count, visible } from "./words";

const CONTEXT = 3;
const FOLD_FROM = 2 * CONTEXT + 4;
/** So many rows are made at once; the next ones when somebody comes near them. */
const CHUNK = 200;

/** Where something can be written beside a line of the file. */
export interface Margin {
  has(row: Row): boolean;
  /** The field for a line, the same one each time; null if there can be none. */
  field(row: Row): HTMLElement | null;
}

type Layout = "inline" | "side";
let chosen: Layout | null = null;

/** The rows as a table that can be switched between both layouts; side by side by default where `room`, a media query,
 * matches. */
export function diffView(rows: readonly Row[], file: string, margin?: Margin, room = "(min-width: 1200px)"): HTMLElement {
  const body = h("div", { class: "scroll", tabindex: 0, role: "group", aria: { label: `Changes to ${file}` } });
  const element = h("div", { class: "diff" });
  const colours = new Colours(rows, file);
  const added = rows.filter((row) => row.kind === "new").length;
  const gone = rows.filter((row) => row.kind === "gone").length;
  const current = (): Layout => chosen ?? (matchMedia(room).matches ? "side" : "inline");
  const toggle = button("", () => {
    chosen = current() === "inline" ? "side" : "inline";
    draw();
  }, { class: "quiet" });
  const draw = (): void => {
    const side = current() === "side";
    element.dataset["layout"] = current();
    toggle.textContent = side ? "Inline" : "Side by side";
    body.replaceChildren(table(rows, side, margin, colours));
  };
  element.append(
    h("div", { class: "diff-head" },
      h("span", { class: "path" }, visible(file)),
      h("span", { class: "plus", aria: { label: count(added, "line") + " added" } }, `+${added}`),
      h("span", { class: "minus", aria: { label: count(gone, "line") + " removed" } }, `−${gone}`),
      toggle),
    body);
  draw();
  return element;
}

/** The lines of a file from its beginning, made at least to this one, which is marked. */
export function fileListing(text: string, file: string, line: number, margin?: Margin): HTMLElement {
  const rows = text.replace(/\n$/, "").split("\n").map((each, at): Row => ({ kind: "same", text: each, before: at + 1, after: at + 1 }));
  const body = h("tbody", null);
  const lines = inlineLines(rows, margin, new Colours(rows, file)).map((each, at): Line => ({ ...each, element: () => {
    const element = each.element();
    if (at + 1 === line) element.classList.add("found");
    return element;
  } }));
  addRows(body, lines, 0, 3, margin, line + CHUNK);
  return h("div", { class: "diff listing" }, h("div", { class: "diff-head" }, h("span", { class: "path" }, visible(file))),
    h("div", { class: "scroll", tabindex: 0, role: "group", aria: { label: file } }, h("table", { aria: { label: "lines" } }, body)));
}

function table(rows: readonly Row[], side: boolean, margin: Margin | undefined, colours: Colours): HTMLTableElement {
  const body = h("tbody", null);
  const columns = side ? 4 : 3;
  const places = folded(side ? pairs(rows, margin, colours) : inlineLines(rows, margin, colours)).flatMap((stretch): Line[] =>
    stretch.hidden.length ? [{ same: true, rows: [], element: () => fold(stretch.hidden, columns, margin) }] : stretch.shown);
  addRows(body, places, 0, columns, margin);
  const numbered = rows.some((row) => row.before !== undefined || row.after !== undefined);
  return h("table", { class: numbered ? undefined : "unnumbered", aria: { label: side ? "before and after" : "changed lines" } },
    // The first row may be a fold over all columns, which says nothing of their widths.
    side && h("colgroup", null, ...["number", "line", "number", "line"].map((kind) => h("col", { class: `col-${kind}` }))), body);
}

/** The rows from here on: some now, and behind them a row that makes the next ones as soon as it is nearly to be seen. */
function addRows(body: HTMLElement, lines: readonly Line[], from: number, columns: number, margin: Margin | undefined, most = CHUNK): void {
  const made = document.createDocumentFragment();
  for (const line of lines.slice(from, from + most)) addLine(made, line, columns, margin);
  const left = lines.length - from - most;
  if (left > 0) made.append(moreRows(left, columns, (row) => {
    row.remove();
    addRows(body, lines, from + most, columns, margin);
  }));
  body.append(made);
}

/** A line, and what was written beside it before. */
function addLine(place: Node, line: Line, columns: number, margin: Margin | undefined): void {
  place.appendChild(line.element());
  for (const row of line.rows) {
    const field = margin?.has(row) ? margin.field(row) : null;
    if (field !== null) place.appendChild(noteRow(field, columns));
  }
}

function noteRow(field: HTMLElement, columns: number): HTMLElement {
  return h("tr", { class: "comment" }, h("td", { colspan: columns }, field));
}

function moreRows(left: number, columns: number, show: (row: HTMLElement) => void): HTMLElement {
  const once = (): void => {
    seen.disconnect();
    if (row.isConnected) show(row);
  };
  const row = h("tr", { class: "fold", data: { unmade: String(left) } }, h("td", { colspan: columns }, button(`Show ${count(left, "more row")}`, once, { class: "quiet" })));
  const seen = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) once();
  }, { rootMargin: "600px" });
  seen.observe(row);
  return row;
}

function fold(hidden: readonly Line[], columns: number, margin: Margin | undefined): HTMLElement {
  const row = h("tr", { class: "fold" });
  const show = button(`Show ${count(hidden.length, "unchanged line")}`, () => {
    const lines = document.createDocumentFragment();
    for (const line of hidden) addLine(lines, line, columns, margin);
    row.replaceWith(lines);
  }, { class: "quiet" });
  row.append(h("td", { colspan: columns }, show));
  return row;
}

interface Line {
  /** Whether it may be folded. */
  same: boolean;
  /** The lines of the file that it shows. */
  rows: readonly Row[];
  element(): HTMLElement;
}

function inlineLines(rows: readonly Row[], margin: Margin | undefined, colours: Colours): Line[] {
  const partners = changes(rows);
  return rows.map((row, at) => ({
    same: row.kind === "same" && !margin?.has(row),
    rows: [row],
    element: () => (row.kind === "gap" || row.kind === "note" ? between(row, 3) : h("tr", { class: row.kind },
      numberCell(row, row.before, 3, row.kind === "gone" ? margin : undefined),
      numberCell(row, row.after, 3, row.kind === "gone" ? undefined : margin),
      text(row, colours, partners.get(at)))),
  }));
}

/** The number of a line; where something can be written, a button that opens the field for it. */
function numberCell(row: Row | undefined, value: number | undefined, columns: number, margin: Margin | undefined): HTMLElement {
  if (row === undefined || value === undefined || margin === undefined) return h("td", { class: "number" }, value ?? "");
  const open = button(value, () => {
    const field = margin.field(row);
    const line = open.closest("tr");
    if (field === null || line === null) return;
    if (!field.isConnected) line.after(noteRow(field, columns));
    field.querySelector("textarea")?.focus();
  }, { class: "note-open", aria: { label: `Comment on line ${value}${row.kind === "gone" ? ", removed" : ""}` } });
  return h("td", { class: "number" }, open);
}

function pairs(rows: readonly Row[], margin: Margin | undefined, colours: Colours): Line[] {
  const lines: Line[] = [];
  let at = 0;
  while (at < rows.length) {
    const row = rows[at] as Row;
    if (row.kind === "same" || row.kind === "gap" || row.kind === "note") {
      lines.push({
        same: row.kind === "same" && !margin?.has(row),
        rows: [row],
        element: () => (row.kind !== "same" ? between(row, 4) : h("tr", { class: "same" },
          h("td", { class: "number" }, row.before ?? ""), text(row, colours),
          numberCell(row, row.after, 4, margin), text(row, colours))),
      });
      at += 1;
      continue;
    }
    const gone: Row[] = [];
    const come: Row[] = [];
    while (rows[at]?.kind === "gone") gone.push(rows[at++] as Row);
    while (rows[at]?.kind === "new") come.push(rows[at++] as Row);
    for (let number = 0; number < Math.max(gone.length, come.length); number += 1) {
      const [left, right] = [gone[number], come[number]];
      lines.push({
        same: false,
        rows: [left, right].filter((row) => row !== undefined),
        element: () => h("tr", null,
          numberCell(left, left?.before, 4, margin), left ? text(left, colours, right) : h("td", { class: "empty" }),
          numberCell(right, right?.after, 4, margin), right ? text(right, colours, left) : h("td", { class: "empty" })),
      });
    }
  }
  return lines;
}

/** Which rows replace which: a run that goes and the run that comes behind it, line by line. */
function changes(rows: readonly Row[]): Map<number, Row> {
  const partners = new Map<number, Row>();
  let at = 0;
  while (at < rows.length) {
    const start = at;
    while (rows[at]?.kind === "gone") at += 1;
    const middle = at;
    while (rows[at]?.kind === "new") at += 1;
    for (let number = 0; number < Math.min(middle - start, at - middle); number += 1) {
      partners.set(start + number, rows[middle + number] as Row);
      partners.set(middle + number, rows[start + number] as Row);
    }
    if (at === start) at += 1;
  }
  return partners;
}

/** What is no line of the file: lines that are left out, or that the last one has no end. */
function between(row: Row, columns: number): HTMLElement {
  if (row.kind === "note") return h("tr", { class: "gap" }, h("td", { colspan: columns }, visible(row.text)));
  return h("tr", { class: "gap" }, h("td", { colspan: columns, aria: { label: "lines in between are unchanged" } }, "⋯"));
}

const SIGNS = { same: " ", gone: "−", new: "+", gap: "", note: "" } as const;
const MEANINGS = { same: "", gone: "removed: ", new: "added: ", gap: "", note: "" } as const;

function text(row: Row, colours: Colours, partner?: Row): HTMLElement {
  const spoken = MEANINGS[row.kind];
  const code = h("span", { class: "source" });
  const draw = (): void => code.replaceChildren(...marked(row, partner, colours.of(row)));
  draw();
  colours.whenKnown(row, draw);
  return h("td", { class: `line ${row.kind}` },
    h("span", { class: "sign", aria: { hidden: true } }, SIGNS[row.kind]), spoken && h("span", { class: "spoken" }, spoken), code);
}

/** The text with the part that differs from its partner marked, where that is only a part of it. */
function marked(row: Row, partner: Row | undefined, parts: readonly HighlightPart[]): (Node | string)[] {
  const [start, end] = partner === undefined ? [0, 0] : changedPart(row.text, partner.text);
  if (start + (row.text.length - end) < row.text.length / 3 || end <= start) return withColours(visible(row.text), parts);
  const [before, changed, after] = [visible(row.text.slice(0, start)), visible(row.text.slice(start, end)), visible(row.text.slice(end))];
  const first = before.length;
  const last = first + changed.length;
  return [
    ...withColours(before, cutOut(parts, 0, first)),
    h("mark", null, ...withColours(changed, cutOut(parts, first, last))),
    ...withColours(after, cutOut(parts, last, Infinity)),
  ];
}

function withColours(text: string, parts: readonly HighlightPart[]): (Node | string)[] {
  return parts.map(([, each]) => each).join("") === text ? coloured(parts) : [text];
}

/** The parts between two places. */
function cutOut(parts: readonly HighlightPart[], from: number, to: number): HighlightPart[] {
  const found: HighlightPart[] = [];
  let at = 0;
  for (const [classes, text] of parts) {
    const inside = text.slice(Math.max(0, from - at), Math.max(0, to - at));
    if (inside) found.push([classes, inside]);
    at += text.length;
  }
  return found;
}

/** The colours of the lines of a change: those before it and those after it are each a piece of code. */
class Colours {
  private readonly parts = new Map<Row, readonly HighlightPart[]>();
  private readonly waiting = new Map<Row, (() => void)[]>();

  constructor(rows: readonly Row[], file: string) {
    const language = /\.(\w+)$/.exec(file)?.[1] ?? "";
    if (!language) return;
    this.ask(rows.filter(({ kind }) => kind === "same" || kind === "new"), language);
    if (rows.some(({ kind }) => kind === "gone")) this.ask(rows.filter(({ kind }) => kind === "same" || kind === "gone"), language);
  }

  of(row: Row): readonly HighlightPart[] {
    return this.parts.get(row) ?? [];
  }

  whenKnown(row: Row, draw: () => void): void {
    if (!this.parts.has(row)) this.waiting.set(row, [...(this.waiting.get(row) ?? []), draw]);
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
      if (lines.length !== rows.length) return; // a text that is no line
      for (const [at, row] of rows.entries()) {
        if (this.parts.has(row)) continue;
        this.parts.set(row, lines[at] ?? []);
        for (const draw of this.waiting.get(row) ?? []) draw();
        this.waiting.delete(row);
      }
    });
  }
}

interface Stretch {
  hidden: Line[];
  shown: Line[];
}

/** Folds long unchanged stretches, except for some lines around each change. */
function folded(lines: readonly Line[]): Stretch[] {
  const stretches: Stretch[] = [];
  let shown: Line[] = [];
  let at = 0;
  while (at < lines.length) {
    const start = at;
    while (lines[at]?.same) at += 1;
    const [first, last] = [start === 0, at === lines.length];
    const head = first ? 0 : CONTEXT;
    const tail = last ? 0 : CONTEXT;
    if (at - start > FOLD_FROM && !(first && last)) {
      for (const line of lines.slice(start, start + head)) shown.push(line);
      stretches.push({ hidden: [], shown });
      stretches.push({ hidden: lines.slice(start + head, at - tail), shown: [] });
      shown = lines.slice(at - tail, at);
    } else {
      for (const line of lines.slice(start, at)) shown.push(line);
    }
    while (at < lines.length && !lines[at]?.same) shown.push(lines[at++] as Line);
  }
  stretches.push({ hidden: [], shown });
  return stretches;
}
