// Markdown as nodes of the page. Nothing in it is ever read as HTML: tags that somebody wrote stay text. Time is linear
// in the text, nesting is bounded.

import { append, button, h, type Child } from "./dom";
import { inline } from "./inline_markdown";

const DEEPEST = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const LIST_ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const TASK = /^\[([ xX])\]\s+/;
const TABLE_RULE = /^[\s|:-]*-[\s|:-]*$/;

/** The blocks of a text. */
export function markdown(text: string): Node[] {
  return blocks(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0);
}

/** Shows a text that is still being written: what is complete stays as it is, only the end is made again. */
export class StreamingMarkdown {
  readonly element = h("div", { class: "markdown" });
  private text = "";
  private settled = 0;
  private settledNodes = 0;

  add(fragment: string): void {
    this.text += fragment;
    const end = lastBreak(this.text, this.settled);
    while (this.element.childNodes.length > this.settledNodes) this.element.lastChild?.remove();
    if (end > this.settled) {
      append(this.element, markdown(this.text.slice(this.settled, end)));
      this.settled = end;
      this.settledNodes = this.element.childNodes.length;
    }
    append(this.element, markdown(this.text.slice(this.settled)));
  }

  get whole(): string {
    return this.text;
  }
}

/** The place behind the last empty line that is not inside a block of code. */
function lastBreak(text: string, from: number): number {
  let fence = "";
  let settled = from;
  let at = from;
  for (;;) {
    const end = text.indexOf("\n", at);
    if (end < 0) return settled;
    const line = text.slice(at, end);
    const mark = FENCE.exec(line)?.[1];
    if (mark !== undefined && !fence) fence = mark;
    else if (fence && closes(line, fence)) fence = "";
    at = end + 1;
    if (!fence && !line.trim()) settled = at;
  }
}

function closes(line: string, fence: string): boolean {
  const trimmed = line.trim();
  return trimmed.length >= fence.length && trimmed === (fence[0] as string).repeat(trimmed.length);
}

function blocks(lines: readonly string[], depth: number): Node[] {
  const nodes: Node[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at] as string;
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const [node, next] = block(lines, at, depth);
    nodes.push(node);
    at = next;
  }
  return nodes;
}

/** The block that begins at a line, and the line behind it. */
function block(lines: readonly string[], at: number, depth: number): [Node, number] {
  const line = lines[at] as string;
  const fence = FENCE.exec(line);
  if (fence !== null) return fenced(lines, at, fence[1] as string, (fence[2] ?? "").trim());
  const heading = HEADING.exec(line);
  if (heading !== null) return [headingNode((heading[1] as string).length, heading[2] ?? ""), at + 1];
  if (RULE.test(line)) return [h("hr", null), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && LIST_ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at, depth);
}

function headingNode(level: number, text: string): HTMLElement {
  // Headings of the page itself are h1 and h2; those of a text come below them.
  const tag = (["h3", "h4", "h5", "h6", "h6", "h6"] as const)[level - 1] ?? "h6";
  return h(tag, null, inline(text.replace(/\s+#+\s*$/, "")));
}

function fenced(lines: readonly string[], at: number, fence: string, language: string): [Node, number] {
  let end = at + 1;
  while (end < lines.length && !closes(lines[end] as string, fence)) end += 1;
  return [codeBlock(lines.slice(at + 1, end).join("\n"), language), end + 1];
}

/** A block of code that can be copied. */
export function codeBlock(code: string, language = ""): HTMLElement {
  const copy = button("Copy", () => {
    void navigator.clipboard?.writeText(code).then(() => {
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
  }, { class: "copy" });
  const label = language.slice(0, 40) || "code";
  const body = h("pre", { tabindex: 0, role: "group", aria: { label } }, h("code", null, code));
  return h("div", { class: "code" }, h("div", { class: "code-head" }, h("span", null, language.slice(0, 40)), copy), body);
}

function quote(lines: readonly string[], at: number, depth: number): [Node, number] {
  const inside: string[] = [];
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end] as string)) {
    inside.push((lines[end] as string).replace(QUOTE, ""));
    end += 1;
  }
  return [h("blockquote", null, blocks(inside, depth + 1)), end];
}

function list(lines: readonly string[], at: number, depth: number): [Node, number] {
  const first = LIST_ITEM.exec(lines[at] as string) as RegExpExecArray;
  const indent = (first[1] as string).length;
  const ordered = /\d/.test(first[2] as string);
  const element = ordered ? h("ol", { start: parseInt(first[2] as string, 10) }) : h("ul", null);
  let end = at;
  while (end < lines.length) {
    const mark = LIST_ITEM.exec(lines[end] as string);
    if (mark === null || (mark[1] as string).length !== indent || /\d/.test(mark[2] as string) !== ordered) break;
    const [item, next] = listItem(lines, end, mark, depth);
    element.appendChild(item);
    end = next;
  }
  return [element, Math.max(end, at + 1)];
}

function listItem(lines: readonly string[], at: number, mark: RegExpExecArray, depth: number): [Node, number] {
  const indent = (mark[1] as string).length;
  const content = [(lines[at] as string).slice(mark[0].length)];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end] as string;
    const own = line.length - line.trimStart().length;
    if (!line.trim()) {
      // An empty line belongs to the item if the next line does.
      const next = lines[end + 1];
      if (next === undefined || !next.trim() || next.length - next.trimStart().length <= indent) break;
      content.push("");
    } else if (own > indent) {
      content.push(line.slice(Math.min(own, mark[0].length)));
    } else if (LIST_ITEM.test(line) || startsBlock(line)) {
      break;
    } else {
      content.push(line);
    }
  }
  const behind = skipEmpty(lines, end, indent);
  return [itemNode(content, depth), behind];
}

/** Behind empty lines, if the list goes on there. */
function skipEmpty(lines: readonly string[], at: number, indent: number): number {
  let next = at;
  while (next < lines.length && next < at + 3 && !(lines[next] as string).trim()) next += 1;
  const mark = LIST_ITEM.exec(lines[next] ?? "");
  return mark !== null && (mark[1] as string).length === indent ? next : at;
}

function itemNode(content: string[], depth: number): HTMLElement {
  const task = TASK.exec(content[0] as string);
  if (task !== null) content[0] = (content[0] as string).slice(task[0].length);
  const inside = blocks(content, depth + 1);
  const only = inside[0];
  // A short item is its text, without a paragraph around it.
  const children: Child[] = only instanceof HTMLParagraphElement ? [...only.childNodes, ...inside.slice(1)] : inside;
  if (task === null) return h("li", null, children);
  const box = h("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", aria: { label: "done" } });
  return h("li", { class: "task" }, box, " ", children);
}

function startsBlock(line: string): boolean {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

function table(lines: readonly string[], at: number): [Node, number] {
  let end = at + 2;
  while (end < lines.length && (lines[end] as string).includes("|")) end += 1;
  const head = h("tr", null, cells(lines[at] as string).map((cell) => h("th", { scope: "col" }, inline(cell))));
  const rows = lines.slice(at + 2, end).map((line) => h("tr", null, cells(line).map((cell) => h("td", null, inline(cell)))));
  const element = h("table", null, h("thead", null, head), h("tbody", null, rows));
  return [h("div", { class: "scroll", tabindex: 0, role: "group", aria: { label: "table" } }, element), end];
}

function cells(line: string): string[] {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function paragraph(lines: readonly string[], at: number, depth: number): [Node, number] {
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end] as string;
    if (!line.trim() || startsBlock(line) || (depth < DEEPEST && LIST_ITEM.test(line))) break;
    end += 1;
  }
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return [h("p", null, inline(text)), end];
}
