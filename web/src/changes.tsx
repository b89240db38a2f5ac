// All changes of a session, by file, with a list of the files. The lines of a file are rendered when it is expanded.

import { useSignal, type Signal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { get, messageOf, sessionPath } from "./api";
import { CommentsBar, type Comments } from "./comments";
import { unifiedDiff, type Row } from "./diff";
import { DiffView } from "./diff_view";
import { saveViewed, viewedOf } from "./drafts";
import { byDirectory, FileTree, type ListedFile } from "./file_tree";
import { below } from "./tool_input";
import { Problem, useFreshId } from "./ui";
import { Work } from "./work";
import { count, visible } from "./words";

interface Changes {
  source: "worktree" | "conversation";
  directory: string;
  files: { path: string; diffs: string[]; note: string; digest: string }[];
  cut: boolean;
  /** The turns that changed files, oldest first. */
  turns: { number: number; prompt: string; isLast: boolean }[];
}

interface ChangedFile extends ListedFile {
  rows: Row[];
  note: string;
  digest: string;
}

interface Props {
  id: string;
  comments: Comments;
  /** Sends a message to the session and navigates to it. */
  say(text: string, key: string): Promise<void>;
}

/** A file with at most this many changed lines starts expanded. */
const SHORT = 60;
/** The widths at which two columns of lines fit: without the list of files, and next to it. */
const ROOM = { alone: "(min-width: 1200px)", listed: "(min-width: 1600px)" } as const;

const SOURCES = {
  worktree: "All changes since the branch was created, as they are now in the session's worktree.",
  conversation: "Changes made by Claude's file tools, in order. Changes made by commands are not tracked.",
} as const;

export function ChangesPage({ id, comments, say }: Props): VNode {
  const changes = useSignal<Changes | null>(null);
  const problem = useSignal("");
  /** The turns whose changes are shown, as a query: `turn=N`, `since=N`, or empty for all. */
  const range = useSignal("");
  const worktree = useSignal(false);
  const read = (): void => {
    const wanted = range.value;
    void get<Changes>(`${sessionPath(id, "changes")}?${wanted}`).then((found) => {
      if (range.value !== wanted) return;
      changes.value = found;
      worktree.value ||= found.source === "worktree";
      problem.value = "";
    }, (error: unknown) => (problem.value = messageOf(error)));
  };
  useEffect(read, [id, range.value]);
  const now = changes.value;
  return (
    <div class="page">
      <header class="view-head">
        <a class="back always" href={`#/sessions/${encodeURIComponent(id)}`} aria-label="Back to the session">‹</a>
        <div class="heading"><h1 tabIndex={-1}>Changes</h1></div>
      </header>
      <div class="scroller" tabIndex={0} role="region" aria-label="Changes">
        {worktree.value && <div class="work-place"><Work session={id} done={read} say={say} /></div>}
        <div class="changes">
          <Problem>{problem.value}</Problem>
          {now !== null && <Turns turns={now.turns} worktree={worktree.value} range={range} />}
          {now === null ? !problem.value && <p class="hint" role="status">Reading…</p> : <Files session={id} changes={now} comments={comments} />}
        </div>
      </div>
      <div class="comments-place"><CommentsBar comments={comments} /></div>
    </div>
  );
}

/** Selects the turns whose changes are shown: all turns, one turn, or one turn and all turns after it. */
function Turns({ turns, worktree, range }: { turns: Changes["turns"]; worktree: boolean; range: Signal<string> }): VNode | null {
  const id = useFreshId();
  if (turns.length < (worktree ? 1 : 2)) return null;
  const newestFirst = [...turns].reverse();
  return (
    <div class="since">
      <label for={id}>Show</label>
      <select id={id} value={range.value} onChange={(event) => (range.value = event.currentTarget.value)}>
        <option value="">All changes</option>
        <optgroup label="One turn">
          {newestFirst.map(({ number, prompt, isLast }) => (
            <option key={number} value={`turn=${number}`}>{`${isLast ? "The last turn" : `Turn ${number}`}: ${visible(prompt)}`}</option>
          ))}
        </optgroup>
        {turns.length > 1 && (
          <optgroup label="From a turn on">
            {newestFirst.slice(1).map(({ number, prompt }) => (
              <option key={number} value={`since=${number}`}>{`Since turn ${number}: ${visible(prompt)}`}</option>
            ))}
          </optgroup>
        )}
      </select>
    </div>
  );
}

function Files({ session, changes, comments }: { session: string; changes: Changes; comments: Comments }): VNode {
  const prefix = useFreshId();
  const groups = useMemo(() => byDirectory(changes.files.map((file, at) => changedFile(file, changes.directory, `${prefix}-${at}`))), [changes]);
  const viewed = useSignal(viewedOf(session));
  const mark = (digest: string, seen: boolean): void => {
    const marks = new Set(viewed.value);
    if (seen) marks.add(digest);
    else marks.delete(digest);
    saveViewed(session, marks);
    viewed.value = marks;
  };
  const files = groups.flatMap((group) => group.files);
  if (!files.length && !changes.cut) return <p class="hint">{changes.source === "worktree" ? "All changes are merged already." : "Nothing was changed."}</p>;
  const listed = files.length > 1;
  return (
    <>
      <p class="hint">{`${count(files.length, "file")}. ${SOURCES[changes.source]}`}<span class="touch-hint"> Tap a line number to comment, and a second one for all lines between.</span></p>
      {changes.cut && <p class="problem">Not all changes are shown: there are too many.</p>}
      <div class={listed ? "reviewed listed" : "reviewed"}>
        {listed && <FileTree groups={groups} viewed={viewed.value} />}
        <div class="changed-files">
          {files.map((file) => (
            <FileChange key={file.path + file.digest} file={file} comments={comments} room={listed ? ROOM.listed : ROOM.alone}
              viewed={viewed.value.has(file.digest)} mark={(seen) => mark(file.digest, seen)} />
          ))}
        </div>
      </div>
    </>
  );
}

function changedFile(file: Changes["files"][number], directory: string, id: string): ChangedFile {
  const rows = file.diffs.flatMap((diff, at): Row[] => [...(at ? [{ kind: "gap", text: "" } as Row] : []), ...unifiedDiff(diff)]);
  return {
    id, path: visible(below(file.path, directory)), rows, note: file.note, digest: file.digest,
    added: rows.filter((row) => row.kind === "new").length,
    gone: rows.filter((row) => row.kind === "gone").length,
  };
}

interface FileProps {
  file: ChangedFile;
  comments: Comments;
  room: string;
  viewed: boolean;
  mark(viewed: boolean): void;
}

function FileChange({ file, comments, room, viewed, mark }: FileProps): VNode {
  const { path, rows, note, added, gone } = file;
  const margin = useMemo(() => comments.margin(path), [comments, path]);
  const open = useSignal(!viewed && added + gone <= SHORT);
  const drawn = useRef(false);
  drawn.current ||= open.value; // stays rendered, so that what the user expanded inside it stays expanded
  const view = (seen: boolean): void => {
    mark(seen);
    open.value = !seen;
  };
  return (
    <div class="changed-file">
      {/* Outside the summary, because the summary is a button itself. */}
      <label class="viewed"><input type="checkbox" checked={viewed} aria-label={`Viewed ${path}`} onChange={(event) => view(event.currentTarget.checked)} /><span>Viewed</span></label>
      <details class="tool" id={file.id} open={open.value} onToggle={(event) => (open.value = event.currentTarget.open)}>
        <summary>
          <span class="tool-name path">{path}</span>{note && <span class="tag">{note}</span>}
          <span class="plus" aria-label={`${count(added, "line")} added`}>+{added}</span>{" "}
          <span class="minus" aria-label={`${count(gone, "line")} removed`}>−{gone}</span>
        </summary>
        {drawn.current && (
          <div class="tool-body">{rows.length ? <DiffView rows={rows} file={path} margin={margin} room={room} /> : <p class="hint">{note}</p>}</div>
        )}
      </details>
    </div>
  );
}
