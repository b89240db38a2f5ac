// A file of a session's directory, at a line. Comments can be written beside its lines.

import { get, messageOf, sessionPath } from "./api";
import type { Comments } from "./comments";
import { fileListing } from "./diff_view";
import { h, replace } from "./dom";
import { visible } from "./words";

export function fileView(session: string, path: string, line: number, comments: Comments): HTMLElement {
  const body = h("div", { class: "changes" }, h("p", { class: "hint", role: "status" }, "Reading…"));
  const heading = h("h1", { tabindex: -1 }, visible(path));
  void get<{ path: string; text: string }>(sessionPath(session, `file?${new URLSearchParams({ path })}`)).then((file) => {
    heading.textContent = visible(file.path);
    replace(body, fileListing(file.text, file.path, line, comments.margin(file.path)));
    const place = body.querySelector("tr.found");
    place?.scrollIntoView({ block: "center" });
    if (line && place === null) body.prepend(h("p", { class: "hint" }, `The file no longer has a line ${line}.`));
  }, (error: unknown) => replace(body, h("p", { class: "problem", role: "alert" }, messageOf(error))));
  return h("div", { class: "page" },
    h("header", { class: "view-head" },
      h("a", { class: "back always", route: `/sessions/${encodeURIComponent(session)}`, aria: { label: "Back to the session" } }, "‹"),
      h("div", { class: "heading" }, heading)),
    h("div", { class: "scroller", tabindex: 0, role: "region", aria: { label: "File" } }, body), comments.element);
}
