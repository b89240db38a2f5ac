// Comments on lines of changes. The user writes a comment below its last line; this browser stores it as it is typed. All
// comments are sent to the session as one message, which quotes the file, the lines and their text for each.

import { batch, signal, type Signal } from "@preact/signals";
import { type VNode } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { ApiError, messageOf } from "./api";
import type { Row } from "./diff";
import type { Margin, Placed } from "./line_selection";
import { draftOf, freshKey, saveDraft } from "./drafts";
import { findRange, numbersOf, placeWords, rangeOf, type LineRange } from "./line_ranges";
import { useFreshId } from "./ui";
import { count, visible } from "./words";

const MAX_COMMENTS = 50;
const MAX_LENGTH = 1000;
/** Characters of all quotes together: a longer draft would not be stored. */
const MAX_QUOTES = 40_000;
const DELIVERY_UNKNOWN = "The server cannot be reached, so it is not known whether this was sent. Sending it again is safe: it is delivered only once.";

interface Comment {
  readonly key: number;
  readonly file: string;
  readonly range: LineRange;
  readonly text: Signal<string>;
}

let keys = 0;

/** The comments on the changes of a session. */
export class Comments {
  /** A comment is replaced when its range changes; the new one has the same key and text. */
  readonly list: Signal<readonly Comment[]>;
  readonly problem = signal("");
  readonly sending = signal(false);
  /** The key of the comment whose field takes the focus next. */
  readonly wanted = signal<number | null>(null);
  private readonly scope: string;
  /** The key of a message that may already have been sent. */
  private messageKey: string | undefined;

  /** `say` sends the message with its key; after a failure it is called again with the same key. `isWatched` tells
   * whether the user may read the session but not write to it. */
  constructor(session: string, private readonly say: (text: string, key: string) => Promise<void>, private readonly isWatched: () => boolean) {
    this.scope = `comments:${session}`;
    const draft = draftOf(this.scope);
    this.list = signal(kept(draft.text));
    this.messageKey = draft.key;
  }

  /** The margin for comments on the lines of a file; undefined if the user cannot send any. */
  margin(file: string): Margin | undefined {
    return this.isWatched() ? undefined : {
      placed: (rows) => this.list.value.filter((one) => one.file === file).flatMap(({ key, range }): Placed[] => {
        const covered = findRange(rows, range);
        return covered === null ? [] : [{ key, rows: covered }];
      }),
      open: (rows) => this.open(file, rows),
      move: (key, rows) => this.move(key, rows),
      isEmpty: (key) => this.list.peek().some((one) => one.key === key && !one.text.peek().trim()),
      field: (key) => <CommentField key={key} comments={this} of={key} />,
    };
  }

  private open(file: string, rows: readonly Row[]): number | null {
    const range = rangeOf(rows);
    if (range === null) return null;
    const list = this.list.peek();
    let comment = list.find((one) => one.file === file && isSame(one.range, range));
    if (comment === undefined) {
      const why = list.length >= MAX_COMMENTS ? `At most ${MAX_COMMENTS} comments can be sent with one message.` : tooLong(list, range);
      if (why) return this.showProblem(why);
      comment = { key: (keys += 1), file, range, text: signal("") };
      this.change([...list, comment]);
    }
    this.wanted.value = comment.key;
    return comment.key;
  }

  /** Moves a comment to other lines of its file; false if the comment no longer exists or the lines have no numbers. */
  private move(key: number, rows: readonly Row[]): boolean {
    const range = rangeOf(rows);
    const others = this.list.peek().filter((one) => one.key !== key);
    const moved = this.list.peek().find((one) => one.key === key);
    if (range === null || moved === undefined) return false;
    const why = tooLong(others, range);
    if (why) {
      this.showProblem(why);
      return true;
    }
    this.change(this.list.peek().map((one) => (one.key === key ? { ...one, range } : one)));
    this.wanted.value = key;
    return true;
  }

  remove(key: number): void {
    this.change(this.list.peek().filter((one) => one.key !== key));
  }

  write(comment: Comment, text: string): void {
    comment.text.value = text;
    this.messageKey = undefined; // the message has changed, so it needs a new key
    this.save();
  }

  private change(list: readonly Comment[]): void {
    batch(() => {
      this.list.value = list;
      this.problem.value = "";
    });
    this.messageKey = undefined;
    this.save();
  }

  private save(): void {
    const list = this.list.peek().map(({ file, range, text }) => ({ file, range, text: text.peek() }));
    saveDraft(this.scope, list.length ? JSON.stringify(list) : "", this.messageKey);
  }

  private showProblem(why: string): null {
    this.problem.value = why;
    return null;
  }

  async submit(): Promise<void> {
    const sent = this.list.peek().filter((one) => one.text.peek().trim());
    if (this.sending.peek() || !sent.length) return;
    this.sending.value = true;
    this.messageKey ??= freshKey();
    this.save(); // before sending, so that after a reload it is still the same message
    this.showProblem("");
    try {
      await this.say(commentsMessage(sent), this.messageKey);
      this.change([]);
    } catch (error) {
      this.showProblem(error instanceof ApiError && error.status === 0 ? DELIVERY_UNKNOWN : messageOf(error));
    }
    this.sending.value = false;
  }
}

/** The list of comments and the button that sends them; hidden while there is no comment and no problem. */
export function CommentsBar({ comments }: { comments: Comments }): VNode {
  const list = comments.list.value;
  const problem = comments.problem.value;
  const written = list.filter((one) => one.text.value.trim()).length;
  return (
    <section class="comments" aria-label="Comments" hidden={!list.length && !problem}>
      <details>
        <summary>{count(list.length, "comment")}</summary>
        {/* Includes comments whose lines are not on the page or no longer exist. */}
        <ol role="list">
          {list.map(({ key, file, range, text }) => (
            <li key={key}>
              <span class="path">{placeWords(file, range)}</span> {visible(text.value)}
              <button type="button" class="quiet" aria-label={`Remove the comment on ${placeWords(file, range)}`} onClick={() => comments.remove(key)}>Remove</button>
            </li>
          ))}
        </ol>
      </details>
      <p class="problem" role="alert" hidden={!problem}>{problem}</p>
      <div class="actions">
        <button type="button" class="allow" disabled={comments.sending.value || !written} onClick={() => void comments.submit()}>{`Send ${count(written, "comment")}`}</button>
      </div>
    </section>
  );
}

function CommentField({ comments, of }: { comments: Comments; of: number }): VNode | null {
  const id = useFreshId();
  const input = useRef<HTMLTextAreaElement>(null);
  const comment = comments.list.value.find((one) => one.key === of);
  useLayoutEffect(() => {
    if (comments.wanted.value !== of) return;
    comments.wanted.value = null;
    input.current?.focus();
  }, [comments.wanted.value]);
  if (comment === undefined) return null;
  const { file, range, text } = comment;
  return (
    <div class="comment-field">
      <label for={id}>{`Comment on ${placeWords(file, range)}`}</label>
      <textarea id={id} ref={input} rows={2} maxLength={MAX_LENGTH} value={text.value} onInput={(event) => comments.write(comment, event.currentTarget.value)} />
      <div class="comment-foot">
        <button type="button" class="quiet" onClick={() => comments.remove(of)}>Remove</button>
        {!text.value && (
          <span class="hint">For more lines, <span class="pointer-hint">shift-click</span><span class="touch-hint">tap</span> another line number.</span>
        )}
      </div>
    </div>
  );
}

function isSame(one: LineRange, other: LineRange): boolean {
  return one.side === other.side && one.line === other.line && one.end === other.end && one.quote === other.quote;
}

/** Why one more quote does not fit; empty if it does. */
function tooLong(list: readonly Comment[], range: LineRange): string {
  const length = list.reduce((sum, one) => sum + one.range.quote.length, range.quote.length);
  return length > MAX_QUOTES ? "The commented lines are too long for one message. Send your comments first." : "";
}

/** Keeps a quote on one line. Otherwise a carriage return within a line of a file, or a line break in its name, could make
 * text of the file look like text of the user. */
function quoted(text: string): string {
  return text.replace(/\r$/, "").replace(/\r\n|[\n\v\f\r\u001c-\u001e\u0085\u2028\u2029]/g, " ");
}

/** The comments as one message, sorted by file and line. */
function commentsMessage(comments: readonly Comment[]): string {
  const ordered = [...comments].sort((one, other) => one.file.localeCompare(other.file) || one.range.line - other.range.line);
  const parts = ordered.map(({ file, range, text }) => {
    const side = { now: "", before: ", as it was before the change", both: ", with the lines that were removed" }[range.side];
    const lines = range.quote.split("\n").map((line) => `> ${quoted(line)}`).join("\n");
    return `${quoted(file)}:${numbersOf(range)}${side}:\n${lines}\n\n${text.peek().trim()}`;
  });
  return [comments.length === 1 ? "A comment on the changes:" : `${comments.length} comments on the changes:`, ...parts].join("\n\n");
}

function kept(text: string): Comment[] {
  try {
    const found = text ? (JSON.parse(text) as { file: string; range: LineRange; text: string }[]) : [];
    return found.map(({ file, range, text }) => ({ key: (keys += 1), file, range, text: signal(text) }));
  } catch {
    return [];
  }
}
