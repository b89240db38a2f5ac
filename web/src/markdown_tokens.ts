// Parses Markdown to tokens of `marked`, in bounded time and depth. `marked` takes quadratic time for some texts (emphasis
// delimiters without a partner, lines that look like a table but are not one) and recurses as deep as quotes and lists are
// nested. Here the time is linear in the text: text that would cost more becomes plain text, and nothing is left out.

import { Lexer, Tokenizer, type Token, type Tokens } from "marked";

/** Lists and quotes nested deeper than this are plain text. */
const MAX_BLOCK_DEPTH = 10;
const MAX_INLINE_DEPTH = 16;
/** A paragraph, heading or cell with more markers (characters that could start inline markup) is plain text: each marker
 * may cost one scan of everything after it. */
const MAX_MARKERS = 400;
/** The length from which a segment ends at a safe cut; from MAX_SEGMENT it ends at any line start outside fenced code. */
const SEGMENT = 8_000;
const MAX_SEGMENT = 16_000;
const MARKER = /[*_~`!<[\]]/g;
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})/;
/** A line that may continue a list, a quote or a table after an empty line. */
const CONTINUES = /^(?:[\s>|]|[-+*](?:\s|$)|\d{1,9}[.)](?:\s|$))/;

class BoundedTokenizer extends Tokenizer {
  /** Reads the rows only if the first two lines make a table. `marked` reads all rows first, then drops them if those two
   * lines do not match. */
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
      delete this.state.lastToken; // the next segment must not continue this one's last token
    }
    return this.read();
  }

  /** The tokens of inline text: nothing in it is a block. */
  run(text: string): Token[] {
    this.inline(text, this.tokens);
    return this.read();
  }

  private read(): Token[] {
    // A link may be defined after its use, so inline text is parsed after all blocks.
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

/** A token that is drawn exactly as written. */
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

/** Splits a text into parts that can be parsed one after the other. */
function* segments(text: string): Generator<string> {
  let start = 0;
  for (const { at, safe } of cuts(text, 0)) {
    if (at - start < (safe ? SEGMENT : MAX_SEGMENT)) continue;
    yield text.slice(start, at);
    start = at;
  }
  if (start < text.length) yield text.slice(start);
}

/** The last position before which the blocks of a growing text no longer change; `from` is an earlier such position. */
export function settledEnd(text: string, from: number): number {
  let settled = from;
  for (const { at, safe } of cuts(text, from)) if (safe) settled = at;
  return settled;
}

/** Yields the start of each line outside fenced code. It is safe if it follows an empty line and continues no block. */
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
