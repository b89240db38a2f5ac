// A change to a file, inline or side by side. Every line is there; long unchanged stretches are folded.

import { button, h, type Child } from "./dom";
import { changedPart, type Row } from "./diff";
import { count, visible } from "./words";

const CONTEXT = 3;
const FOLD_FROM = 2 * CONTEXT + 4;

type Layout = "inline" | "side";
let chosen: Layout | null = null;

/** The rows as a table that can be switched between both layouts; side by side by default where there is room. */
export function diffView(rows: readonly Row[], file: string): HTMLElement {
  const body = h("div", { class: "scroll", tabindex: 0, role: "group", aria: { label: `Changes to ${file}` } });
  const element = h("div", { class: "diff" });
  const added = rows.filter((row) => row.kind === "new").length;
  const gone = rows.filter((row) => row.kind === "gone").length;
  const toggle = button("", () => {
    chosen = current() === "inline" ? "side" : "inline";
    draw();
  }, { class: "quiet" });
  const draw = (): void => {
    const side = current() === "side";
    element.dataset["layout"] = current();
    toggle.textContent = side ? "Inline" : "Side by side";
    body.replaceChildren(table(rows, side));
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

function current(): Layout {
  return chosen ?? (matchMedia("(min-width: 1200px)").matches ? "side" : "inline");
}

function table(rows: readonly Row[], side: boolean): HTMLTableElement {
  const body = h("tbody", null);
  const lines = side ? pairs(rows) : inlineLines(rows);
  const columns = side ? 4 : 3;
  for (const stretch of folded(lines)) {
    if (stretch.hidden.length) {
      const row = h("tr", { class: "fold" });
      const show = button(`Show ${count(stretch.hidden.length, "unchanged line")}`, () => {
        const lines = document.createDocumentFragment();
        for (const line of stretch.hidden) lines.append(line.element());
        row.replaceWith(lines);
      }, { class: "quiet" });
      row.append(h("td", { colspan: columns }, show));
      body.append(row);
    }
    for (const line of stretch.shown) body.append(line.element());
  }
  const numbered = rows.some((row) => row.before !== undefined || row.after !== undefined);
  return h("table", { class: numbered ? undefined : "unnumbered", aria: { label: side ? "before and after" : "changed lines" } }, body);
}

interface Line {
  same: boolean;
  element(): HTMLElement;
}

function inlineLines(rows: readonly Row[]): Line[] {
  const partners = changes(rows);
  return rows.map((row, at) => ({
    same: row.kind === "same",
    element: () => (row.kind === "gap" ? gap(3) : h("tr", { class: row.kind },
      h("td", { class: "number" }, row.before ?? ""),
      h("td", { class: "number" }, row.after ?? ""),
      text(row, partners.get(at)))),
  }));
}

function pairs(rows: readonly Row[]): Line[] {
  const lines: Line[] = [];
  let at = 0;
  while (at < rows.length) {
    const row = rows[at] as Row;
    if (row.kind === "same" || row.kind === "gap") {
      lines.push({
        same: row.kind === "same",
        element: () => (row.kind === "gap" ? gap(4) : h("tr", { class: "same" },
          h("td", { class: "number" }, row.before ?? ""), text(row),
          h("td", { class: "number" }, row.after ?? ""), text(row))),
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
        element: () => h("tr", null,
          h("td", { class: "number" }, left?.before ?? ""), left ? text(left, right) : h("td", { class: "empty" }),
          h("td", { class: "number" }, right?.after ?? ""), right ? text(right, left) : h("td", { class: "empty" })),
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

function gap(columns: number): HTMLElement {
  return h("tr", { class: "gap" }, h("td", { colspan: columns, aria: { label: "lines in between are unchanged" } }, "⋯"));
}

const SIGNS = { same: " ", gone: "−", new: "+", gap: "" } as const;
const MEANINGS = { same: "", gone: "removed: ", new: "added: ", gap: "" } as const;

function text(row: Row, partner?: Row): HTMLElement {
  const spoken = MEANINGS[row.kind];
  return h("td", { class: `line ${row.kind}` },
    h("span", { class: "sign", aria: { hidden: true } }, SIGNS[row.kind]),
    spoken && h("span", { class: "spoken" }, spoken),
    ...marked(row, partner));
}

/** The text with the part that differs from its partner marked, where that is only a part of it. */
function marked(row: Row, partner: Row | undefined): Child[] {
  if (partner === undefined) return [visible(row.text)];
  const [start, end] = changedPart(row.text, partner.text);
  if (start + (row.text.length - end) < row.text.length / 3 || end <= start) return [visible(row.text)];
  return [
    visible(row.text.slice(0, start)),
    h("mark", null, visible(row.text.slice(start, end))),
    visible(row.text.slice(end)),
  ];
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
