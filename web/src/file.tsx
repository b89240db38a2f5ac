// A file of a session's directory, scrolled to a line. The user can comment on its lines.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { get, messageOf, sessionPath } from "./api";
import { CommentsBar, type Comments } from "./comments";
import { FileListing } from "./diff_view";
import { Problem } from "./ui";
import { visible } from "./words";

interface Props {
  session: string;
  path: string;
  line: number;
  comments: Comments;
}

export function FilePage({ session, path, line, comments }: Props): VNode {
  const file = useSignal<{ path: string; text: string } | null>(null);
  const problem = useSignal("");
  const lost = useSignal(false);
  const body = useRef<HTMLDivElement>(null);
  useEffect(() => {
    void get<{ path: string; text: string }>(sessionPath(session, `file?${new URLSearchParams({ path })}`)).then(
      (found) => (file.value = found), (error: unknown) => (problem.value = messageOf(error)));
  }, []);
  const read = file.value;
  const margin = useMemo(() => read === null ? undefined : comments.margin(read.path), [read]);
  useLayoutEffect(() => {
    const place = body.current?.querySelector("tr.found");
    place?.scrollIntoView({ block: "center" });
    lost.value = read !== null && line > 0 && !place;
  }, [read]);
  return (
    <div class="page">
      <header class="view-head">
        <a class="back always" href={`#/sessions/${encodeURIComponent(session)}`} aria-label="Back to the session">‹</a>
        <div class="heading"><h1 tabIndex={-1}>{visible(read?.path ?? path)}</h1></div>
      </header>
      <div class="scroller" tabIndex={0} role="region" aria-label="File">
        <div class="changes" ref={body}>
          <Problem>{problem.value}</Problem>
          {lost.value && <p class="hint">{`The file no longer has a line ${line}.`}</p>}
          {read === null ? !problem.value && <p class="hint" role="status">Reading…</p>
            : <FileListing text={read.text} file={read.path} line={line} margin={margin} />}
        </div>
      </div>
      <div class="comments-place"><CommentsBar comments={comments} /></div>
    </div>
  );
}
