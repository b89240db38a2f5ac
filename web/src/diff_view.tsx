// A change to a file, inline or side by side. It includes every line; long runs of unchanged lines are folded.

import { useSignal, type ReadonlySignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Row } from "./diff";
import { Colors, source } from "./diff_colors";
import { CHUNK, chunks, folded, pairs, partnersOf, type Line, type Piece } from "./diff_lines";
import { useSelection, type Margin, type Marks } from "./line_selection";
import { cx } from "./ui";
import { count, visible } from "./words";

type Layout = "inline" | "side";
let chosen: Layout | null = null;

interface DiffProps {
  rows: readonly Row[];
  file: string;
  margin?: Margin | undefined;
  /** A media query: if it matches, the layout is side by side until the user chooses one. */
  room?: string;
}

/** The rows as a table, with a button that switches the layout. */
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

/** The lines of a file from its beginning. At least the lines up to `line` are rendered; `line` is marked. */
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

/** The data that the cells of a table share. */
interface View {
  side: boolean;
  columns: number;
  writable: boolean;
  places: ReadonlyMap<Row, number>;
  partners: ReadonlyMap<Row, Row>;
  colors: Colors;
  found: Row | undefined;
}

interface LinesProps {
  rows: readonly Row[];
  file: string;
  side: boolean;
  margin: Margin | undefined;
  label: string;
  class?: string | undefined;
  /** Whether long runs of unchanged lines are folded. */
  folds?: boolean;
  /** The number of lines rendered at first. */
  first?: number;
  found?: Row | undefined;
}

function Lines({ rows, file, side, margin, label, class: name, folds = false, first = CHUNK, found }: LinesProps): VNode {
  const shown = useSignal(first);
  const selection = useSelection(rows, side, margin);
  const view = useMemo((): View => ({
    side, columns: side ? 4 : 3, writable: margin !== undefined, found,
    places: new Map(rows.map((row, at) => [row, at])), partners: partnersOf(rows), colors: new Colors(rows, file),
  }), [rows]);
  const pieces = useMemo(() => {
    const lines = side ? pairs(rows, view.partners) : rows.map((row): Line => ({ same: row.kind === "same", left: row }));
    // Lines with comments stay visible.
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
      {/* Sets the column widths: the first row cannot if it is a fold that spans all columns. */}
      {side && <colgroup><col class="col-number" /><col class="col-line" /><col class="col-number" /><col class="col-line" /></colgroup>}
      <tbody>
        {now.map((piece, at) => (piece.folded ? <Fold key={at} piece={piece} view={view} margin={margin} marks={selection.marks} />
          : <Chunk key={at} lines={piece.lines} view={view} margin={margin} marks={selection.marks} />))}
        {left > 0 && <MoreRows key={`more ${left}`} left={left} columns={view.columns} show={() => (shown.value = made + CHUNK)} />}
      </tbody>
    </table>
  );
}

/** A row that renders the next rows as soon as it comes near the viewport. */
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

/** Reads a signal, so it renders again only when that signal or its own props change. */
function InlineLine({ row, view, marked, words }: { row: Row; view: View; marked: boolean; words: string }): VNode {
  void view.colors.known.value;
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
  void view.colors.known.value;
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
  /** Whether this cell opens comments on the row. */
  opens: boolean;
  marked: boolean;
  /** The words for the selection, if it ends with this row. */
  words: string;
}

/** The number of a line. If the user can comment on the line, the number is a button that opens the comment field. */
function NumberCell({ row, value, view, opens, marked, words }: NumberProps): VNode {
  const name = cx("number", marked && "marked");
  if (!opens || value === undefined || !view.writable) return <td class={name} data-row={view.places.get(row)}>{value ?? ""}</td>;
  const label = words || `line ${value}${row.kind === "gone" ? ", removed" : ""}`;
  return <td class={name} data-row={view.places.get(row)}><button type="button" class="note-open" aria-label={`Comment on ${label}`}>{value}</button></td>;
}

/** A row that is not a line of the file: omitted lines, or the note that the last line has no line break. */
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
      <span class="source">{source(row, view.partners.get(row), view.colors.of(row))}</span>
    </td>
  );
}
