// Everything that a session has changed, by file. The lines of a file are drawn when it is unfolded.

import { get, messageOf, sessionPath } from "./api";
import type { Comments } from "./comments";
import { h, replace } from "./dom";
import { unifiedDiff, type Row } from "./diff";
import { diffView } from "./diff_view";
import { below } from "./tool_view";
import { WorkView } from "./work_view";
import { count, visible } from "./words";

interface ChangedFile {
  path: string;
  diffs: string[];
  note?: string;
}

interface Changes {
  source: "worktree" | "conversation";
  directory: string;
  files: ChangedFile[];
  cut: boolean;
}

/** So many lines are unfolded at once. */
const SHORT = 60;

const SOURCES = {
  worktree: "All changes since the branch was created, as they are now in the session's worktree.",
  conversation: "Changes made by Claude's file tools, in order. Changes made by commands are not tracked.",
} as const;

/** `say` sends a message to the session and goes there. */
export function changesView(id: string, comments: Comments, say: (text: string, key: string) => Promise<void>): HTMLElement {
  const body = h("div", { class: "changes" }, h("p", { class: "hint", role: "status" }, "Reading…"));
  const back = `/sessions/${encodeURIComponent(id)}`;
  const place = h("div", { class: "work-place" });
  const read = (): void => void get<Changes>(sessionPath(id, "changes")).then(
    (changes) => {
      if (changes.source === "worktree" && !place.childNodes.length) place.append(new WorkView(id, read, say).element);
      replace(body, ...shown(changes, comments));
    },
    (error: unknown) => replace(body, h("p", { class: "problem", role: "alert" }, messageOf(error))));
  read();
  return h("div", { class: "page" },
    h("header", { class: "view-head" }, h("a", { class: "back always", route: back, aria: { label: "Back to the session" } }, "‹"),
      h("div", { class: "heading" }, h("h1", { tabindex: -1 }, "Changes"))),
    h("div", { class: "scroller", tabindex: 0, role: "region", aria: { label: "Changes" } }, place, body), comments.element);
}

function shown({ source, directory, files, cut }: Changes, comments: Comments): Node[] {
  if (!files.length && !cut) return [h("p", { class: "hint" }, source === "worktree" ? "All changes are merged already." : "Nothing was changed.")];
  return [
    h("p", { class: "hint" }, `${count(files.length, "file")}. ${SOURCES[source]}`),
    ...(cut ? [h("p", { class: "problem" }, "Not all changes are shown: there are too many.")] : []),
    ...files.map((file) => fileView(file, directory, comments)),
  ];
}

function fileView(file: ChangedFile, directory: string, comments: Comments): HTMLElement {
  const rows = file.diffs.flatMap((diff, at): Row[] => [...(at ? [{ kind: "gap", text: "" } as Row] : []), ...unifiedDiff(diff)]);
  const added = rows.filter((row) => row.kind === "new").length;
  const gone = rows.filter((row) => row.kind === "gone").length;
  const name = visible(below(file.path, directory));
  const place = h("div", { class: "tool-body" });
  const draw = (): void => {
    if (element.open && !place.childNodes.length) replace(place, rows.length ? diffView(rows, name, comments.margin(name)) : h("p", { class: "hint" }, file.note ?? ""));
  };
  const element = h("details", { class: "tool", on: { toggle: draw } },
    h("summary", null, h("span", { class: "tool-name path" }, name), file.note && h("span", { class: "tag" }, file.note),
      h("span", { class: "plus", aria: { label: `${count(added, "line")} added` } }, `+${added}`), " ",
      h("span", { class: "minus", aria: { label: `${count(gone, "line")} removed` } }, `−${gone}`)),
    place);
  element.open = added + gone <= SHORT;
  return element;
}
