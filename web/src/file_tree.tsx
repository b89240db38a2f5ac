// The changed files by directory; a click goes to the file. Beside the changes where there is room, otherwise above
// them and folded.

import { type VNode } from "preact";
import { useState } from "preact/hooks";
import { cx } from "./ui";
import { count } from "./words";

export interface ListedFile {
  /** Of its element on the page, a `details`. */
  id: string;
  /** As it is shown: below the session's directory where it lies there. */
  path: string;
  added: number;
  gone: number;
  digest: string;
}

export interface Group<File extends ListedFile = ListedFile> {
  /** With its last slash; empty for the session's directory. */
  directory: string;
  files: File[];
}

/** The files by directory, both in the order in which they come first. */
export function byDirectory<File extends ListedFile>(files: readonly File[]): Group<File>[] {
  const groups = new Map<string, Group<File>>();
  for (const file of files) {
    const directory = directoryOf(file.path);
    const group = groups.get(directory) ?? { directory, files: [] };
    groups.set(directory, group);
    group.files.push(file);
  }
  return [...groups.values()];
}

function directoryOf(path: string): string {
  return path.slice(0, Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
}

/** The width from which the list stands beside the changes, as in the styles. */
const BESIDE = "(min-width: 75rem)";

export function FileTree({ groups, viewed }: { groups: readonly Group[]; viewed: ReadonlySet<string> }): VNode {
  const [open] = useState(() => matchMedia(BESIDE).matches);
  const files = groups.flatMap((group) => group.files);
  return (
    <details class="file-tree" open={open}>
      <summary>
        <span class="tree-title" role="status">{`${files.filter((file) => viewed.has(file.digest)).length} of ${files.length} viewed`}</span>
        <Amount added={sum(files, "added")} gone={sum(files, "gone")} />
      </summary>
      <nav aria-label="Changed files">
        {groups.map(({ directory, files: inside }) => (
          <div key={directory} class="tree-group">
            {directory && <p class="tree-directory path" dir="ltr">{directory}</p>}
            <ul role="list">
              {inside.map((file) => (
                <li key={file.path}>
                  <button type="button" class={cx("quiet tree-file", viewed.has(file.digest) && "seen")} onClick={() => show(file.id)}>
                    <span class="tree-mark" aria-hidden="true">{viewed.has(file.digest) ? "✓" : ""}</span>
                    <span class="path">{file.path.slice(directory.length)}</span><Amount added={file.added} gone={file.gone} />
                    {viewed.has(file.digest) && <span class="spoken">, viewed</span>}
                  </button>
                </li>
              ))}
            </ul>
          </div>
        ))}
      </nav>
    </details>
  );
}

export function Amount({ added, gone }: { added: number; gone: number }): VNode {
  return (
    <span class="amount">
      <span class="plus" aria-hidden="true">+{added}</span> <span class="minus" aria-hidden="true">−{gone}</span>
      <span class="spoken">{`${count(added, "line")} added, ${count(gone, "line")} removed`}</span>
    </span>
  );
}

function sum(files: readonly ListedFile[], what: "added" | "gone"): number {
  return files.reduce((total, file) => total + file[what], 0);
}

/** Unfolds a file, and goes there. */
function show(id: string): void {
  const file = document.getElementById(id) as HTMLDetailsElement | null;
  if (file === null) return;
  file.open = true;
  file.scrollIntoView({ block: "start" });
  file.querySelector("summary")?.focus({ preventScroll: true });
}
