// Selects lines of a change for a comment, with the pointer, by touch or with the keyboard, and marks lines that have
// comments.

import { computed, useSignal, type ReadonlySignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Row } from "./diff";
import { linesWords, rangeOf, rowsBetween } from "./line_ranges";

/** A comment and the rows it covers. */
export interface Placed {
  key: number;
  rows: readonly Row[];
}

/** Holds the comments on the lines of a file. */
export interface Margin {
  /** The comments on these rows. Reads signals, so a computed value that calls it follows the comments. */
  placed(rows: readonly Row[]): readonly Placed[];
  /** Opens the comment field for these rows and returns its key; null if no comment can be added there. */
  open(rows: readonly Row[]): number | null;
  /** Moves a comment to other rows; false if the comment no longer exists. */
  move(key: number, rows: readonly Row[]): boolean;
  isEmpty(key: number): boolean;
  field(key: number): VNode;
}

/** Which rows are selected or covered by a comment on several lines, and which comment fields are below them. */
export interface Marks {
  covered: ReadonlySet<Row>;
  fields: ReadonlyMap<Row, readonly number[]>;
  /** The row where the selection ends, and the label of its button. */
  end: Row | undefined;
  words: string;
}

const NO_MARKS: Marks = { covered: new Set(), fields: new Map(), end: undefined, words: "" };

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
  /** The comment opened last, and the row from which it was opened. */
  last: { row: Row; key: number } | null;
  dragged: Row | null;
  /** Whether the last press was by touch. */
  touched: boolean;
}

/** Selects the lines for a comment. Pressing a line number selects one line. Dragging, pressing with Shift, and the arrow
 * keys with Shift select all lines between. By touch, pressing a second number does so while the comment is empty. */
export function useSelection(rows: readonly Row[], side: boolean, margin: Margin | undefined): Selection {
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
        const next = neighbor(button, event.key === "ArrowDown" ? 1 : -1, side);
        const to = rowAt(next);
        if (to === undefined) return;
        selected.value = event.shiftKey ? { from: selected.peek()?.from ?? row, to } : null;
        next?.focus();
      },
    },
  };
}

/** The button of the next or previous line; in the side-by-side view, in the same column. */
function neighbor(button: HTMLElement, step: 1 | -1, side: boolean): HTMLElement | undefined {
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
