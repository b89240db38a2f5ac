// A change to a file, inline or side by side. Every line is there; long unchanged stretches are folded.

import { computed, signal, useSignal, type ReadonlySignal, type Signal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { coloured, findParts } from "./code_block";
import { changedPart, type Row } from "./diff";
import type { HighlightPart } from "./highlighter";
import { linesWords, rangeOf, rowsBetween } from "./line_ranges";
import { cx } from "./ui";
import { count, visible } from "./words";

const CONTEXT = 3;
const FOLD_FROM = 2 * CONTEXT + 4;
/** So many rows are made at once; the next ones when somebody comes near them. */
const CHUNK = 200;

/** Something written on lines of the file. */
export interface Placed {
  key: number;
  rows: readonly Row[];
}

/** Where something can be written on lines of the file. */
export interface Margin {
  /** What is written on these rows; read again when that changes. */
  placed(rows: readonly Row[]): readonly Placed[];
  /** Opens the field for these rows; null if there can be no more. */
  open(rows: readonly Row[]): number | null;
  /** Has it belong to other rows; false if it is not there any more. */
  move(key: number, rows: readonly Row[]): boolean;
  isEmpty(key: number): boolean;
  field(key: number): VNode;
}

type Layout = "inline" | "side";
let chosen: Layout | null = null;

interface DiffProps {
  rows: readonly Row[];
  file: string;
  margin?: Margin | undefined;
  /** A media query: side by side where it matches, until somebody chooses. */
  room?: string;
}

/** The rows as a table that can be switched between both layouts. */
export function DiffView({ rows, file, margin, room = "(min-width: 1200px)" }: DiffProps): VNode {
  const layout = useSignal<Layout>(chosen ?? (matchMedia(room).matches ? "side" : "inline"));
  const side = layout.value === "side";
  const added = rows.filter((row) => row.kind === "new").length;
  const gone = rows.filter((row) => row.kind === "gone").length;
  const numbered = rows.some((row) => row.before !== undefined || row.after !== undefined);
  return (
    <div class="diff" data-layout={layout.value}>
      <div class="diff-head">
        <span class="path">{visible(file)}</span>
        <span class="plus" aria-label={`${count(added, "line")} added`}>+{added}</span>
        <span class="minus" aria-label={`${count(gone, "line")} removed`}>−{gone}</span>
        <button type="button" class="quiet" onClick={() => (layout.value = chosen = side ? "inline" : "side")}>{side ? "Inline" : "Side by side"}</button>
      </div>
      <div class="scroll" tabIndex={0} role="group" aria-label={`Changes to ${file}`}>
        <Lines key={layout.value} rows={rows} file={file} side={side} margin={margin} folds
          class={numbered ? undefined : "unnumbered"} label={side ? "before and after" : "changed lines"} />
      </div>
    </div>
  );
}

/** The lines of a file from its beginning, made at least to this one, which is marked. */
export function FileListing({ text, file, line, margin }: { text: string; file: string; line: number; margin?: Margin | undefined }): VNode {
  const rows = useMemo(() => text.replace(/\n$/, "").split("\n").map((each, at): Row => ({ kind: "same", text: each, before: at + 1, after: at + 1 })), [text]);
  return (
    <div class="diff listing">
      <div class="diff-head"><span class="path">{visible(file)}</span></div>
      <div class="scroll" tabIndex={0} role="group" aria-label={file}>
        <Lines rows={rows} file={file} side={false} margin={margin} found={rows[line - 1]} first={line + CHUNK} label="lines" />
      </div>
    </div>
  );
}

/** A row of the table: one row of the change, or two side by side. */
interface Line {
  /** Whether it may be folded. */
  same: boolean;
  left?: Row | undefined;
  right?: Row | undefined;
}

/** Lines that are drawn together, folded or not. */
interface Piece {
  folded: boolean;
  lines: readonly Line[];
}

/** What the cells of a table share. */
interface View {
  side: boolean;
  columns: number;
  writable: boolean;
  places: ReadonlyMap<Row, number>;
  partners: ReadonlyMap<Row, Row>;
  colours: Colours;
  found: Row | undefined;
}

/** Which rows are commented on or selected, and what stands below them. */
interface Marks {
  covered: ReadonlySet<Row>;
  fields: ReadonlyMap<Row, readonly number[]>;
  /** The end of what is selected, and what its button says. */
  end: Row | undefined;
  words: string;
}

const NO_MARKS: Marks = { covered: new Set(), fields: new Map(), end: undefined, words: "" };

interface LinesProps {
  rows: readonly Row[];
  file: string;
  side: boolean;
  margin: Margin | undefined;
  label: string;
  class?: string | undefined;
  /** Whether long unchanged stretches are folded. */
  folds?: boolean;
  /** So many lines are made at first. */
  first?: number;
  found?: Row | undefined;
}

function Lines({ rows, file, side, margin, label, class: name, folds = false, first = CHUNK, found }: LinesProps): VNode {
  const shown = useSignal(first);
  const selection = useSelection(rows, side, margin);
  const view = useMemo((): View => ({
    side, columns: side ? 4 : 3, writable: margin !== undefined, found,
    places: new Map(rows.map((row, at) => [row, at])), partners: partnersOf(rows), colours: new Colours(rows, file),
  }), [rows]);
  const pieces = useMemo(() => {
    const lines = side ? pairs(rows, view.partners) : rows.map((row): Line => ({ same: row.kind === "same", left: row }));
    // What is written stays to be seen.
    const kept = new Set(margin?.placed(rows).flatMap((one) => one.rows));
    return folds ? folded(lines, kept) : chunks(lines);
  }, [rows]);
  let made = 0;
  const now = pieces.filter((piece) => {
    const isNear = made < shown.value;
    if (isNear) made += piece.folded ? 1 : piece.lines.length;
    return isNear;
  });
  const left = pieces.slice(now.length).reduce((sum, piece) => sum + (piece.folded ? 1 : piece.lines.length), 0);
  return (
    <table class={name} aria-label={label} {...selection.acts}>
      {/* The first row may be a fold over all columns, which says nothing of their widths. */}
      {side && <colgroup><col class="col-number" /><col class="col-line" /><col class="col-number" /><col class="col-line" /></colgroup>}
      <tbody>
        {now.map((piece, at) => (piece.folded ? <Fold key={at} piece={piece} view={view} margin={margin} marks={selection.marks} />
          : <Chunk key={at} lines={piece.lines} view={view} margin={margin} marks={selection.marks} />))}
        {left > 0 && <MoreRows key={`more ${left}`} left={left} columns={view.columns} show={() => (shown.value = made + CHUNK)} />}
      </tbody>
    </table>
  );
}

/** A row that makes the next ones as soon as it is nearly to be seen. */
function MoreRows({ left, columns, show }: { left: number; columns: number; show(): void }): VNode {
  const row = useRef<HTMLTableRowElement>(null);
  useEffect(() => {
    const seen = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) show();
    }, { rootMargin: "600px" });
    if (row.current !== null) seen.observe(row.current);
    return () => seen.disconnect();
  }, []);
  return (
    <tr class="fold" ref={row} data-unmade={String(left)}>
      <td colSpan={columns}><button type="button" class="quiet" onClick={show}>{`Show ${count(left, "more row")}`}</button></td>
    </tr>
  );
}

interface PartProps {
  view: View;
  margin: Margin | undefined;
  marks: ReadonlySignal<Marks>;
}

function Fold({ piece, ...part }: PartProps & { piece: Piece }): VNode {
  const open = useSignal(false);
  if (open.value) return <Chunk lines={piece.lines} {...part} />;
  return (
    <tr class="fold">
      <td colSpan={part.view.columns}><button type="button" class="quiet" onClick={() => (open.value = true)}>{`Show ${count(piece.lines.length, "unchanged line")}`}</button></td>
    </tr>
  );
}

function Chunk({ lines, view, margin, marks }: PartProps & { lines: readonly Line[] }): VNode {
  const { covered, fields, end, words } = marks.value;
  const has = (row: Row | undefined): boolean => row !== undefined && covered.has(row);
  return (
    <>
      {lines.map(({ left, right }, at) => {
        const ends = end !== undefined && (end === left || end === right);
        const below = [...(left && fields.get(left) || []), ...(right && right !== left && fields.get(right) || [])];
        return [
          view.side ? <SideLine key={at} left={left} right={right} view={view} leftMarked={has(left)} rightMarked={has(right)} words={ends ? words : ""} />
            : <InlineLine key={at} row={left as Row} view={view} marked={has(left)} words={ends ? words : ""} />,
          ...below.map((key) => <tr key={`comment ${key}`} class="comment"><td colSpan={view.columns}>{margin?.field(key)}</td></tr>),
        ];
      })}
    </>
  );
}

/** Drawn again only when its own properties change, as everything that reads a signal. */
function InlineLine({ row, view, marked, words }: { row: Row; view: View; marked: boolean; words: string }): VNode {
  void view.colours.known.value;
  if (row.kind === "gap" || row.kind === "note") return <Between row={row} columns={view.columns} />;
  const gone = row.kind === "gone";
  return (
    <tr class={cx(row.kind, row === view.found && "found")}>
      <NumberCell row={row} value={row.before} view={view} opens={gone} marked={marked && gone} words={words} />
      <NumberCell row={row} value={row.after} view={view} opens={!gone} marked={marked && !gone} words={words} />
      <TextCell row={row} view={view} marked={marked} />
    </tr>
  );
}

interface SideProps {
  left: Row | undefined;
  right: Row | undefined;
  view: View;
  leftMarked: boolean;
  rightMarked: boolean;
  words: string;
}

function SideLine({ left, right, view, leftMarked, rightMarked, words }: SideProps): VNode {
  void view.colours.known.value;
  if (left !== undefined && (left.kind === "gap" || left.kind === "note")) return <Between row={left} columns={view.columns} />;
  const same = left === right;
  return (
    <tr class={same ? "same" : undefined}>
      {left === undefined ? <EmptyCells /> : <><NumberCell row={left} value={left.before} view={view} opens={!same} marked={leftMarked && !same} words={words} /><TextCell row={left} view={view} marked={leftMarked && !same} /></>}
      {right === undefined ? <EmptyCells /> : <><NumberCell row={right} value={right.after} view={view} opens marked={rightMarked} words={words} /><TextCell row={right} view={view} marked={rightMarked} /></>}
    </tr>
  );
}

function EmptyCells(): VNode {
  return <><td class="number" /><td class="empty" /></>;
}

interface NumberProps {
  row: Row;
  value: number | undefined;
  view: View;
  /** Whether comments on the row are opened here. */
  opens: boolean;
  marked: boolean;
  /** What is selected, if the selection ends with this row. */
  words: string;
}

/** The number of a line; where something can be written, a button that opens the field for it. */
function NumberCell({ row, value, view, opens, marked, words }: NumberProps): VNode {
  const name = cx("number", marked && "marked");
  if (!opens || value === undefined || !view.writable) return <td class={name} data-row={view.places.get(row)}>{value ?? ""}</td>;
  const label = words || `line ${value}${row.kind === "gone" ? ", removed" : ""}`;
  return <td class={name} data-row={view.places.get(row)}><button type="button" class="note-open" aria-label={`Comment on ${label}`}>{value}</button></td>;
}

/** What is no line of the file: lines that are left out, or that the last one has no end. */
function Between({ row, columns }: { row: Row; columns: number }): VNode {
  if (row.kind === "note") return <tr class="gap"><td colSpan={columns}>{visible(row.text)}</td></tr>;
  return <tr class="gap"><td colSpan={columns} aria-label="lines in between are unchanged">⋯</td></tr>;
}

const SIGNS = { same: " ", gone: "−", new: "+", gap: "", note: "" } as const;
const MEANINGS = { same: "", gone: "removed: ", new: "added: ", gap: "", note: "" } as const;

function TextCell({ row, view, marked }: { row: Row; view: View; marked: boolean }): VNode {
  const spoken = MEANINGS[row.kind];
  return (
    <td class={cx(`line ${row.kind}`, marked && "marked")} data-row={view.places.get(row)}>
      <span class="sign" aria-hidden="true">{SIGNS[row.kind]}</span>{spoken && <span class="spoken">{spoken}</span>}
      <span class="source">{source(row, view.partners.get(row), view.colours.of(row))}</span>
    </td>
  );
}

/** The text with the part that differs from its partner marked, where that is only a part of it. */
function source(row: Row, partner: Row | undefined, parts: readonly HighlightPart[]): ComponentChildren {
  const [start, end] = partner === undefined ? [0, 0] : changedPart(row.text, partner.text);
  if (start + (row.text.length - end) < row.text.length / 3 || end <= start) return withColours(visible(row.text), parts);
  const [before, changed, after] = [visible(row.text.slice(0, start)), visible(row.text.slice(start, end)), visible(row.text.slice(end))];
  const first = before.length;
  const last = first + changed.length;
  return [
    withColours(before, cutOut(parts, 0, first)),
    <mark>{withColours(changed, cutOut(parts, first, last))}</mark>,
    withColours(after, cutOut(parts, last, Infinity)),
  ];
}

function withColours(text: string, parts: readonly HighlightPart[]): ComponentChildren {
  if (parts.map(([, each]) => each).join("") !== text) return text;
  return coloured(parts);
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
  /** Counts what has become known. */
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
      if (lines.length !== rows.length) return; // a text that is no line
      for (const [at, row] of rows.entries()) {
        if (!this.parts.has(row)) this.parts.set(row, lines[at] ?? []);
      }
      this.known.value += 1;
    });
  }
}

// -- selecting lines ------------------------------------------------------------------------------------------------------

interface Selection {
  marks: ReadonlySignal<Marks>;
  acts: {
    onPointerDown?(event: PointerEvent): void;
    onPointerOver?(event: PointerEvent): void;
    onClick?(event: MouseEvent): void;
    onKeyDown?(event: KeyboardEvent): void;
  };
}

interface SelectionState {
  /** The comment that was opened last, and the line from which it begins. */
  last: { row: Row; key: number } | null;
  dragged: Row | null;
  /** Whether the last press was by touch. */
  touched: boolean;
}

/** Selects the lines for a comment: a press of a number for one line; dragging, a press with Shift, the arrows with
 * Shift or, by touch, a second number while nothing is written, for all lines between. */
function useSelection(rows: readonly Row[], side: boolean, margin: Margin | undefined): Selection {
  const selected = useSignal<{ from: Row; to: Row } | null>(null);
  const state = useRef<SelectionState>({ last: null, dragged: null, touched: false }).current;
  const marks = useMemo(() => computed(() => (margin === undefined ? NO_MARKS : marksOf(rows, margin, selected.value))), [rows, margin]);
  const open = (from: Row, to: Row): void => {
    const key = margin?.open(rowsBetween(rows, from, to)) ?? null;
    if (key !== null) state.last = { row: from, key };
  };
  useEffect(() => {
    const drop = (event: PointerEvent): void => {
      if (state.dragged === null) return;
      state.dragged = null;
      const picked = selected.peek();
      selected.value = null;
      if (event.type === "pointerup" && picked !== null && picked.from !== picked.to) open(picked.from, picked.to);
    };
    addEventListener("pointerup", drop);
    addEventListener("pointercancel", drop);
    return () => {
      removeEventListener("pointerup", drop);
      removeEventListener("pointercancel", drop);
    };
  }, [rows, margin]);
  if (margin === undefined) return { marks, acts: {} };

  const rowAt = (place: EventTarget | null | undefined): Row | undefined => {
    const cell = place instanceof Element ? place.closest<HTMLElement>("td[data-row]") : null;
    return rows[Number(cell?.dataset["row"] ?? -1)];
  };
  const buttonAt = (place: EventTarget | null): HTMLElement | null => (place instanceof Element ? place.closest<HTMLElement>(".note-open") : null);
  return {
    marks,
    acts: {
      onPointerDown: (event) => {
        state.touched = event.pointerType === "touch";
        const row = rowAt(event.target);
        if (row === undefined || buttonAt(event.target) === null || state.touched || event.button !== 0 || event.shiftKey) return;
        state.dragged = row;
      },
      onPointerOver: (event) => {
        const row = rowAt(event.target);
        if (state.dragged !== null && row !== undefined) selected.value = { from: state.dragged, to: row };
      },
      onClick: (event) => {
        const row = buttonAt(event.target) === null ? undefined : rowAt(event.target);
        if (row === undefined) return;
        const { last } = state;
        const picked = selected.peek();
        selected.value = null;
        const isMore = last !== null && rows.includes(last.row) && (event.shiftKey || (state.touched && margin.isEmpty(last.key)));
        if (isMore && margin.move(last.key, rowsBetween(rows, last.row, row))) return;
        if (picked !== null && picked.to === row) open(picked.from, row);
        else open(row, row);
      },
      onKeyDown: (event) => {
        const button = buttonAt(event.target);
        const row = rowAt(button);
        if (button === null || row === undefined) return;
        if (event.key === "Escape" && selected.peek() !== null) {
          selected.value = null;
          event.preventDefault();
          event.stopPropagation();
        }
        if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
        event.preventDefault();
        state.touched = false;
        const next = neighbour(button, event.key === "ArrowDown" ? 1 : -1, side);
        const to = rowAt(next);
        if (to === undefined) return;
        selected.value = event.shiftKey ? { from: selected.peek()?.from ?? row, to } : null;
        next?.focus();
      },
    },
  };
}

/** The button of the next line, side by side in the same column. */
function neighbour(button: HTMLElement, step: 1 | -1, side: boolean): HTMLElement | undefined {
  const column = (one: HTMLElement): number => (one.parentElement as HTMLTableCellElement).cellIndex;
  const all = [...(button.closest("table")?.querySelectorAll<HTMLElement>(".note-open") ?? [])];
  const buttons = side ? all.filter((one) => column(one) === column(button)) : all;
  return buttons[buttons.indexOf(button) + step];
}

function marksOf(rows: readonly Row[], margin: Margin, selected: { from: Row; to: Row } | null): Marks {
  const covered = new Set<Row>();
  const fields = new Map<Row, number[]>();
  for (const { key, rows: own } of margin.placed(rows)) {
    if (own.length > 1) for (const row of own) covered.add(row);
    const last = own.at(-1) as Row;
    fields.set(last, [...(fields.get(last) ?? []), key]);
  }
  if (selected === null) return { covered, fields, end: undefined, words: "" };
  const picked = rowsBetween(rows, selected.from, selected.to);
  for (const row of picked) covered.add(row);
  const range = rangeOf(picked);
  return { covered, fields, end: selected.to, words: range === null ? "" : linesWords(range) };
}

// -- the lines of a table -------------------------------------------------------------------------------------------------

/** Which rows replace which: a run that goes and the run that comes behind it, line by line. */
function partnersOf(rows: readonly Row[]): Map<Row, Row> {
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

/** The rows side by side: what was there before, and what is there now. */
function pairs(rows: readonly Row[], partners: ReadonlyMap<Row, Row>): Line[] {
  return rows.flatMap((row): Line[] => {
    if (row.kind === "gone") return [{ same: false, left: row, right: partners.get(row) }];
    if (row.kind === "new") return partners.has(row) ? [] : [{ same: false, right: row }];
    return [{ same: row.kind === "same", left: row, right: row }];
  });
}

/** Folds long unchanged stretches, except for some lines around each change and those that are kept. */
function folded(lines: readonly Line[], kept: ReadonlySet<Row>): Piece[] {
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

function chunks(lines: readonly Line[]): Piece[] {
  const pieces: Piece[] = [];
  for (let at = 0; at < lines.length; at += CHUNK) pieces.push({ folded: false, lines: lines.slice(at, at + CHUNK) });
  return pieces;
}
