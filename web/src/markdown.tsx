// Markdown as components. Nothing in it is interpreted as HTML: tags stay text, except for a line break. Characters that
// could make a text look like another one are shown as codes.

import type { Token, Tokens } from "marked";
import { type ComponentChildren, type VNode } from "preact";
import { useMemo } from "preact/hooks";
import { CodeBlock } from "./code_block";
import { withoutEntities } from "./entities";
import { fileRoute, outsideAddress, OutsideLink, withFileLinks } from "./links";
import { blockTokens, inlineTokens } from "./markdown_tokens";
import { cx } from "./ui";
import { visible } from "./words";

const LINE_BREAK = /^<br\s*\/?>$/i;

export function Markdown({ text, class: name }: { text: string; class?: string }): VNode {
  return <div class={cx("markdown", name)} dir="auto"><Blocks text={text} /></div>;
}

/** A text that still grows: the parts that no longer change, and the rest. */
export function WrittenMarkdown({ settled, rest }: { settled: readonly string[]; rest: string }): VNode {
  return <div class="markdown" dir="auto">{[...settled, rest].map((part, at) => <Blocks key={at} text={part} />)}</div>;
}

/** The blocks of a text. Parses it again only when the text or the file links change. */
function Blocks({ text }: { text: string }): VNode {
  const route = fileRoute.value;
  return <>{useMemo(() => blocks(blockTokens(text)), [text, route])}</>;
}

/** A text on one line, with emphasis, code and links. */
export function InlineMarkdown({ text }: { text: string }): VNode {
  return <span dir="auto">{useMemo(() => inline(inlineTokens(text)), [text])}</span>;
}

function blocks(tokens: readonly Token[] | undefined): ComponentChildren {
  return (tokens ?? []).map((token) => block(token));
}

function block(token: Token): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "hr":
      return <hr />;
    case "heading":
      return heading(token as Tokens.Heading);
    case "code":
      return code(token as Tokens.Code);
    case "blockquote":
      return <blockquote>{blocks(token.tokens)}</blockquote>;
    case "list":
      return list(token as Tokens.List);
    case "table":
      return table(token as Tokens.Table);
    case "html":
      return <p class="tags">{visible(token.raw.trim())}</p>;
    case "paragraph":
      return <p>{inline(token.tokens)}</p>;
    default:
      return <p>{inline([token])}</p>;
  }
}

function heading(token: Tokens.Heading): VNode {
  // The page itself uses h1 and h2, so the headings of a text start at h3.
  const Tag = (["h3", "h4", "h5", "h6"] as const)[token.depth - 1] ?? "h6";
  return <Tag>{inline(token.tokens)}</Tag>;
}

function code(token: Tokens.Code): VNode {
  const text = token.codeBlockStyle === "indented" ? withoutLastBreaks(token.text) : token.text;
  return <CodeBlock code={visible(text)} label={visible(withoutEntities(token.lang ?? "").trim())} />;
}

function withoutLastBreaks(text: string): string {
  let end = text.length;
  while (text[end - 1] === "\n") end -= 1;
  return text.slice(0, end);
}

function list(token: Tokens.List): VNode {
  const items = token.items.map((item) => listItem(item));
  return token.ordered ? <ol start={Number(token.start)}>{items}</ol> : <ul>{items}</ul>;
}

function listItem(item: Tokens.ListItem): VNode {
  const children = item.tokens.map((token, at): ComponentChildren => {
    if (token.type === "checkbox") return inline([token]);
    // The text of a tight item has no paragraph around it.
    if (token.type !== "text" || item.loose) return block(token);
    return [at > 0 && item.tokens[at - 1]?.type === "text" && "\n", inline([token])];
  });
  return <li class={item.task ? "task" : undefined}>{children}</li>;
}

function table(token: Tokens.Table): VNode {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="table">
      <table>
        <thead><tr>{token.header.map((cell) => <th scope="col" class={aligned(cell)}>{inline(cell.tokens)}</th>)}</tr></thead>
        {token.rows.length > 0 && <tbody>{token.rows.map((row) => <tr>{row.map((cell) => <td class={aligned(cell)}>{inline(cell.tokens)}</td>)}</tr>)}</tbody>}
      </table>
    </div>
  );
}

function aligned(cell: Tokens.TableCell): string | undefined {
  return cell.align === "right" || cell.align === "center" ? cell.align : undefined;
}

/** `linked` says that the tokens are inside a link: links do not nest. */
function inline(tokens: readonly Token[] | undefined, linked = false): ComponentChildren {
  return (tokens ?? []).map((token) => inlineNode(token, linked));
}

function inlineNode(token: Token, linked: boolean): ComponentChildren {
  const text = (raw: string): ComponentChildren => (linked ? visible(raw) : withFileLinks(visible(raw)));
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens, linked)}</strong>;
    case "em":
      return <em>{inline(token.tokens, linked)}</em>;
    case "del":
      return <del>{inline(token.tokens, linked)}</del>;
    case "codespan":
      return <code dir="ltr">{text(token["text"] as string)}</code>;
    case "br":
      return <br />;
    case "checkbox":
      return [<input type="checkbox" disabled checked={(token as Tokens.Checkbox).checked} aria-label="done" />, " "];
    case "link":
      return link(token as Tokens.Link, inline(token.tokens, true));
    case "image":
      // The page loads nothing from other sites: a picture becomes a link.
      return link(token as Tokens.Image, ["🖼 ", inline(token.tokens, true)]);
    case "html":
      return LINE_BREAK.test(token.raw) ? <br /> : visible(token.raw);
    case "text":
      if (token.tokens !== undefined) return inline(token.tokens, linked);
      return text(token["escaped"] ? (token["text"] as string) : withoutEntities(token["text"] as string));
    default:
      return visible("text" in token ? String(token.text) : token.raw);
  }
}

/** A link if the address is a web address; otherwise the text, followed by the address if they differ. */
function link(token: Tokens.Link | Tokens.Image, inside: ComponentChildren): ComponentChildren {
  const written = "autolink" in token && token.autolink ? token.href : withoutEntities(token.href);
  const address = outsideAddress(written);
  if (address !== null) return <OutsideLink address={address}>{inside}</OutsideLink>;
  return token.raw === token.text ? inside : <span>{inside}{` (${visible(written)})`}</span>;
}
