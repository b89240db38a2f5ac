// Markdown as nodes of the page. Nothing in it is ever read as HTML: tags that somebody wrote stay text, except for a
// line break. What could make a text look like another one is shown as a code.

import type { Token, Tokens } from "marked";
import { codeBlock } from "./code_block";
import { append, h, outsideLink, type Child } from "./dom";
import { withoutEntities } from "./entities";
import { withFileLinks } from "./file_links";
import { blockTokens, inlineTokens, settledEnd } from "./markdown_tokens";
import { visible } from "./words";

const LINE_BREAK = /^<br\s*\/?>$/i;

/** The blocks of a text. */
export function markdown(text: string): Node[] {
  return blockTokens(text).flatMap((token) => block(token));
}

/** A text on one line, with emphasis, code and links. */
export function inlineMarkdown(text: string): Child[] {
  return inline(inlineTokens(text));
}

/** Shows a text that is still being written: what is complete stays as it is, only the end is made again. */
export class StreamingMarkdown {
  readonly element = h("div", { class: "markdown", dir: "auto" });
  private text = "";
  private settled = 0;
  private settledNodes = 0;

  add(fragment: string): void {
    this.text += fragment;
    const end = settledEnd(this.text, this.settled);
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

function block(token: Token): Node[] {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "hr":
      return [h("hr", null)];
    case "heading":
      return [heading(token as Tokens.Heading)];
    case "code":
      return [code(token as Tokens.Code)];
    case "blockquote":
      return [h("blockquote", null, blocks(token.tokens))];
    case "list":
      return [list(token as Tokens.List)];
    case "table":
      return [table(token as Tokens.Table)];
    case "html":
      return [h("p", { class: "tags" }, visible(token.raw.trim()))];
    case "paragraph":
      return [h("p", null, inline(token.tokens))];
    default:
      return [h("p", null, inline([token]))];
  }
}

function blocks(tokens: readonly Token[] | undefined): Child[] {
  return (tokens ?? []).flatMap((token) => block(token));
}

function heading(token: Tokens.Heading): HTMLElement {
  // Headings of the page itself are h1 and h2; those of a text come below them.
  const tag = (["h3", "h4", "h5", "h6"] as const)[token.depth - 1] ?? "h6";
  return h(tag, null, inline(token.tokens));
}

function code(token: Tokens.Code): HTMLElement {
  const text = token.codeBlockStyle === "indented" ? token.text.replace(/\n+$/, "") : token.text;
  return codeBlock(visible(text), visible(withoutEntities(token.lang ?? "").trim()));
}

function list(token: Tokens.List): HTMLElement {
  const items = token.items.map((item) => listItem(item));
  return token.ordered ? h("ol", { start: Number(token.start) }, items) : h("ul", null, items);
}

function listItem(item: Tokens.ListItem): HTMLElement {
  const children = item.tokens.flatMap((token, at): Child[] => {
    if (token.type === "checkbox") return inline([token]);
    // The text of a short item has no paragraph around it.
    if (token.type !== "text" || item.loose) return block(token);
    return [at && item.tokens[at - 1]?.type === "text" ? "\n" : "", inline([token])];
  });
  return h("li", { class: item.task ? "task" : undefined }, children);
}

function table(token: Tokens.Table): HTMLElement {
  const head = h("tr", null, token.header.map((cell) => h("th", { scope: "col", class: aligned(cell) }, inline(cell.tokens))));
  const rows = token.rows.map((row) => h("tr", null, row.map((cell) => h("td", { class: aligned(cell) }, inline(cell.tokens)))));
  const element = h("table", null, h("thead", null, head), rows.length > 0 && h("tbody", null, rows));
  return h("div", { class: "scroll", tabindex: 0, role: "group", aria: { label: "table" } }, element);
}

function aligned(cell: Tokens.TableCell): string | undefined {
  return cell.align === "right" || cell.align === "center" ? cell.align : undefined;
}

/** `linked` says that they stand in a link: there is none inside of another. */
function inline(tokens: readonly Token[] | undefined, linked = false): Child[] {
  return (tokens ?? []).map((token) => inlineNode(token, linked));
}

function inlineNode(token: Token, linked: boolean): Child {
  const text = (raw: string): Child => (linked ? visible(raw) : withFileLinks(visible(raw)));
  switch (token.type) {
    case "strong":
      return h("strong", null, inline(token.tokens, linked));
    case "em":
      return h("em", null, inline(token.tokens, linked));
    case "del":
      return h("del", null, inline(token.tokens, linked));
    case "codespan":
      return h("code", null, text(token["text"] as string));
    case "br":
      return h("br", null);
    case "checkbox":
      return [h("input", { type: "checkbox", disabled: true, checked: (token as Tokens.Checkbox).checked, aria: { label: "done" } }), " "];
    case "link":
      return link(token as Tokens.Link, inline(token.tokens, true));
    case "image":
      // The page loads nothing from elsewhere: a picture is a link to it.
      return link(token as Tokens.Image, ["🖼 ", inline(token.tokens, true)]);
    case "html":
      return LINE_BREAK.test(token.raw) ? h("br", null) : visible(token.raw);
    case "text":
      if (token.tokens !== undefined) return inline(token.tokens, linked);
      return text(token["escaped"] ? (token["text"] as string) : withoutEntities(token["text"] as string));
    default:
      return visible("text" in token ? String(token.text) : token.raw);
  }
}

/** An address that is no link on the web stays visible beside its text. */
function link(token: Tokens.Link | Tokens.Image, inside: Child[]): Child {
  const address = "autolink" in token && token.autolink ? token.href : withoutEntities(token.href);
  const made = outsideLink(address, inside);
  if (made !== null) return made;
  return token.raw === token.text ? inside : h("span", null, inside, ` (${visible(address)})`);
}
