// Markdown as tokens of `marked`, within bounds. `marked` needs time that grows with the square of some texts (delimiters
// of emphasis that find no partner, tables that are none) and recurses as deep as quotes and lists are nested. Here the
// time is linear in the text: what would cost more is shown as plain text, and nothing of it is left out.

import { Lexer, Tokenizer, type Token, type Tokens } from "marked";

/** Lists and quotes that are nested deeper are text. */
const MAX_BLOCK_DEPTH = 10;
const MAX_INLINE_DEPTH = 16;
/** A paragraph, heading or cell with more characters that could begin something is text: each may cost one look at all
 * that follows it. */
const MAX_MARKERS = 400;
/** Where a text can be cut, it is, once a part is so long; and at the end of a line where a part gets much longer. */
const SEGMENT = 8_000;
const MAX_SEGMENT = 16_000;
const MARKER = /[*_~`!<[\]]/g;
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})/;
/** What may go on with a list, a quote or a table that stands before an empty line. */
const CONTINUES = /^(?:[\s>|]|[-+*](?:\s|$)|\d{1,9}[.)](?:\s|$))/;

class BoundedTokenizer extends Tokenizer {
  /** The rows are looked at only where the first two lines are a table: `marked` takes all rows first, and drops them
   * again where those two do not fit each other. */
  override table(src: string): Tokens.Table | undefined {
    const second = src.indexOf("\n", src.indexOf("\n") + 1);
    if (second > 0 && super.table(src.slice(0, second + 1)) === undefined) return undefined;
    return super.table(src);
  }
}

class BoundedLexer extends Lexer {
  private depth = 0;
  private inlineDepth = 0;

  /** The tokens of a whole text. */
  whole(text: string): Token[] {
    for (const segment of segments(text.replace(/\r\n?/g, "\n"))) {
      this.blockTokens(segment, this.tokens);
      delete this.state.lastToken; // of another part: what follows does not go on with it
    }
    return this.read();
  }

  /** The tokens of a run of text in which nothing is a block. */
  run(text: string): Token[] {
    this.inline(text, this.tokens);
    return this.read();
  }

  private read(): Token[] {
    // A link may be defined behind its use: so runs are read when all blocks are known.
    for (const { src, tokens } of this.inlineQueue) {
      this.state.inRawBlock = false;
      this.inlineTokens(src, tokens);
    }
    this.inlineQueue = [];
    return this.tokens;
  }

  override blockTokens<List extends Token[]>(src: string, tokens?: List, lastParagraphClipped?: boolean): List;
  override blockTokens(src: string, tokens: Token[] = [], lastParagraphClipped?: boolean): Token[] {
    if (this.depth >= MAX_BLOCK_DEPTH) {
      tokens.push(plain(src.trim()));
      return tokens;
    }
    this.depth += 1;
    try {
      return super.blockTokens(src, tokens, lastParagraphClipped);
    } finally {
      this.depth -= 1;
    }
  }

  override inlineTokens(src: string, tokens: Token[] = []): Token[] {
    if (this.inlineDepth >= MAX_INLINE_DEPTH || (src.match(MARKER)?.length ?? 0) > MAX_MARKERS) {
      tokens.push(plain(src));
      return tokens;
    }
    this.inlineDepth += 1;
    try {
      return super.inlineTokens(src, tokens);
    } finally {
      this.inlineDepth -= 1;
    }
  }
}

/** A token that is drawn as it was written. */
function plain(text: string): Tokens.Text {
  return { type: "text", raw: text, text, escaped: true };
}

export function blockTokens(text: string): Token[] {
  return lexer().whole(text);
}

export function inlineTokens(text: string): Token[] {
  return lexer().run(text);
}

function lexer(): BoundedLexer {
  return new BoundedLexer({ gfm: true, tokenizer: new BoundedTokenizer() });
}

/** Parts of a text that can be read one after the other. */
function* segments(text: string): Generator<string> {
  let start = 0;
  for (const { at, safe } of cuts(text, 0)) {
    if (at - start < (safe ? SEGMENT : MAX_SEGMENT)) continue;
    yield text.slice(start, at);
    start = at;
  }
  if (start < text.length) yield text.slice(start);
}

/** The last place up to which a text that still grows will not change any more; `from` is an earlier one. */
export function settledEnd(text: string, from: number): number {
  let settled = from;
  for (const { at, safe } of cuts(text, from)) if (safe) settled = at;
  return settled;
}

/** Where lines begin outside of fenced code; safe is a place behind an empty line at which no block goes on. */
function* cuts(text: string, from: number): Generator<{ at: number; safe: boolean }> {
  let fence = "";
  let empty = false;
  let at = from;
  while (at < text.length) {
    const end = text.indexOf("\n", at);
    const line = end < 0 ? text.slice(at) : text.slice(at, end);
    if (!fence && at > from) yield { at, safe: empty && line !== "" && !CONTINUES.test(line) };
    if (fence) {
      if (closes(line, fence)) fence = "";
    } else fence = FENCE.exec(line)?.[1] ?? "";
    if (end < 0) return;
    empty = !line.trim();
    at = end + 1;
  }
}

function closes(line: string, fence: string): boolean {
  const trimmed = line.trim();
  return trimmed.length >= fence.length && trimmed === (fence[0] as string).repeat(trimmed.length);
}
