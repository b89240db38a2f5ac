// Comments on lines of changes: written beside the line, kept in this browser as they are typed, and sent to the session
// as one message that quotes the file, the line and its text for each.

import { ApiError, messageOf } from "./api";
import type { Row } from "./diff";
import type { Margin } from "./diff_view";
import { button, freshId, h, replace } from "./dom";
import { draftOf, freshKey, saveDraft } from "./drafts";
import { count, visible } from "./words";

const MAX_COMMENTS = 50;
const MAX_LENGTH = 1000;
const MAX_QUOTE = 300;
const UNSURE = "The server cannot be reached, so it is not known whether this was sent. Sending it again is safe: it counts only once.";

interface Comment {
  file: string;
  /** The line as it was before the change, where it was removed; as it is now otherwise. */
  removed: boolean;
  line: number;
  quote: string;
  text: string;
}

export class Comments {
  /** What was written, and the button that sends it; hidden while there is nothing. */
  readonly element = h("section", { class: "comments", hidden: true, aria: { label: "Comments" } });
  private readonly title = h("summary", null);
  private readonly items = h("ol", { role: "list" });
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });
  private readonly send = button("", () => void this.submit(), { class: "allow" });
  private readonly scope: string;
  private readonly fields = new Map<Comment, HTMLElement>();
  private readonly list: Comment[];
  /** Of a message that may have been sent or not. */
  private key: string | undefined;
  private sending = false;

  /** `say` sends the message with its key; it is called with the same key again where it failed. `isWatched` says
   * whether whoever reads the session may not write to it. */
  constructor(session: string, private readonly say: (text: string, key: string) => Promise<void>, private readonly isWatched: () => boolean) {
    this.scope = `comments:${session}`;
    const draft = draftOf(this.scope);
    this.list = kept(draft.text);
    this.key = draft.key;
    this.element.append(h("details", null, this.title, this.items), this.problem, h("div", { class: "actions" }, this.send));
    this.draw();
  }

  /** Where comments on the lines of a file are written; undefined if they could not be sent. */
  margin(file: string): Margin | undefined {
    return this.isWatched() ? undefined : {
      has: (row) => this.at(file, row) !== undefined,
      field: (row) => this.field(file, row),
    };
  }

  private at(file: string, row: Row): Comment | undefined {
    const [line, removed, quote] = [lineOf(row), row.kind === "gone", row.text.slice(0, MAX_QUOTE)];
    return this.list.find((one) => one.file === file && one.line === line && one.removed === removed && one.quote === quote);
  }

  /** The field for the comment on a line, which is made with the first; null if there are too many. */
  private field(file: string, row: Row): HTMLElement | null {
    const line = lineOf(row);
    if (line === undefined) return null;
    let comment = this.at(file, row);
    if (comment === undefined) {
      if (this.list.length >= MAX_COMMENTS) return this.complain(`At most ${MAX_COMMENTS} comments can be sent with one message.`);
      comment = { file, removed: row.kind === "gone", line, quote: row.text.slice(0, MAX_QUOTE), text: "" };
      this.list.push(comment);
      this.changed();
    }
    const made = this.fields.get(comment) ?? this.makeField(comment);
    this.fields.set(comment, made);
    return made;
  }

  private makeField(comment: Comment): HTMLElement {
    const id = freshId("comment");
    const input = h("textarea", { id, rows: 2, maxlength: MAX_LENGTH, on: { input: () => {
      comment.text = input.value;
      this.changed();
    } } });
    input.value = comment.text;
    return h("div", { class: "comment-field" }, h("label", { for: id }, `Comment on ${placeOf(comment)}`), input,
      button("Remove", () => this.remove(comment), { class: "quiet" }));
  }

  private remove(comment: Comment): void {
    this.list.splice(this.list.indexOf(comment), 1);
    this.takeAway(comment);
    this.changed();
  }

  private takeAway(comment: Comment): void {
    const field = this.fields.get(comment);
    (field?.closest("tr") ?? field)?.remove();
    this.fields.delete(comment);
  }

  private changed(): void {
    this.key = undefined; // it is another message now
    this.save();
    this.draw();
  }

  private save(): void {
    saveDraft(this.scope, this.list.length ? JSON.stringify(this.list) : "", this.key);
  }

  private draw(): void {
    const written = this.list.filter((one) => one.text.trim());
    this.element.hidden = !this.list.length && this.problem.hidden;
    this.title.textContent = count(this.list.length, "comment");
    this.send.textContent = `Send ${count(written.length, "comment")}`;
    this.send.disabled = this.sending || !written.length;
    // Also those whose lines are not on the page, or not there any more.
    replace(this.items, ...this.list.map((one) => h("li", null, h("span", { class: "path" }, visible(placeOf(one))), " ", visible(one.text),
      button("Remove", () => this.remove(one), { class: "quiet", aria: { label: `Remove the comment on ${placeOf(one)}` } }))));
  }

  private complain(why: string): null {
    this.problem.textContent = why;
    this.problem.hidden = !why;
    this.draw();
    return null;
  }

  private async submit(): Promise<void> {
    const sent = this.list.filter((one) => one.text.trim());
    if (this.sending || !sent.length) return;
    this.sending = true;
    this.key ??= freshKey();
    this.save(); // before it is sent: after a reload it is still the same message
    this.complain("");
    try {
      await this.say(commentsMessage(sent), this.key);
      for (const comment of this.list.splice(0)) this.takeAway(comment);
      this.changed();
    } catch (error) {
      this.complain(error instanceof ApiError && error.status === 0 ? UNSURE : messageOf(error));
    }
    this.sending = false;
    this.draw();
  }
}

function lineOf(row: Row): number | undefined {
  return row.kind === "gone" ? row.before : row.after;
}

function placeOf({ file, line, removed }: Comment): string {
  return `${file}:${line}${removed ? " (removed)" : ""}`;
}

/** A quote stays on its line: neither a carriage return within a line of a file nor a line break in its name may let the
 * file speak in the person's name. */
function quoted(text: string): string {
  return text.replace(/\r$/, "").replace(/\r\n|[\n\v\f\r\u001c-\u001e\u0085\u2028\u2029]/g, " ");
}

/** The comments as one message, by file and line. */
function commentsMessage(comments: readonly Comment[]): string {
  const ordered = [...comments].sort((one, other) => one.file.localeCompare(other.file) || one.line - other.line);
  const parts = ordered.map((one) => {
    const gone = one.removed ? ", as it was before the change" : "";
    return `${quoted(one.file)}, line ${one.line}${gone}:\n> ${quoted(one.quote)}\n\n${one.text.trim()}`;
  });
  return [comments.length === 1 ? "A comment on the changes:" : `${comments.length} comments on the changes:`, ...parts].join("\n\n");
}

function kept(text: string): Comment[] {
  try {
    return text ? (JSON.parse(text) as Comment[]) : [];
  } catch {
    return [];
  }
}
