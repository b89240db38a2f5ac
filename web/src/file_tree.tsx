// The changed files by directory. A click scrolls to the file. In a wide viewport the tree is next to the changes;
// otherwise it is above them and folded.

import { type VNode } from "preact";
import { useState } from "preact/hooks";
import { cx } from "./ui";
import { count } from "./words";

export interface ListedFile {
  /** The id of the file's `details` element. */
  id: string;
  /** The displayed path: relative to the session's directory if the file is in it. */
  path: string;
  added: number;
  gone: number;
  digest: string;
}

export interface Group<File extends ListedFile = ListedFile> {
  /** With its trailing slash; empty for the session's directory. */
  directory: string;
  files: File[];
}

/** Groups the files by directory. Directories and files keep the order in which they first appear. */
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

/** The width from which the tree is next to the changes; same as in the styles. */
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

/** Unfolds a file, scrolls to it and focuses its summary. */
function show(id: string): void {
  const file = document.getElementById(id) as HTMLDetailsElement | null;
  if (file === null) return;
  file.open = true;
  file.scrollIntoView({ block: "start" });
  file.querySelector("summary")?.focus({ preventScroll: true });
}
