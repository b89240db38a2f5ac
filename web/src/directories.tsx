// Chooses the directory of a new session with buttons: the directories that the user worked in last, and those below the
// directories that the user's sessions may use. The server decides which these are, and lists them.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { get, messageOf } from "./api";
import { Problem, useFreshId } from "./ui";
import { visible } from "./words";

const SEARCH_DELAY = 250;
/** A longer list of names has a search field. */
const MANY = 12;

interface Beginning {
  recent: string[];
  roots: string[];
}

interface Below {
  path: string;
  parent: string | null;
  names: string[];
  /** Whether there are more names. */
  cut: boolean;
}

/** `machine` is the machine whose directories are listed; empty without a fleet. */
export function DirectoryChooser({ machine, choose }: { machine: string; choose(path: string): void }): VNode {
  const id = useFreshId();
  const beginning = useSignal<Beginning | null>(null);
  const below = useSignal<Below | null>(null);
  const text = useSignal("");
  const problem = useSignal("");
  const request = useRef(0);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const heading = useRef<HTMLHeadingElement>(null);
  const ask = async <Answer,>(query: Record<string, string>, show: (answer: Answer) => void): Promise<void> => {
    const number = (request.current += 1);
    try {
      const answer = await get<Answer>(`/api/directories?${new URLSearchParams(machine ? { ...query, machine } : query)}`);
      if (number !== request.current) return;
      problem.value = "";
      show(answer);
    } catch (error) {
      if (number === request.current) problem.value = messageOf(error);
    }
  };
  useEffect(() => {
    void ask<Beginning>({}, (found) => (beginning.value = found));
    return () => {
      request.current += 1;
      clearTimeout(timer.current);
    };
  }, []);
  const open = (path: string): void => {
    text.value = "";
    void ask<Below>({ path }, (found) => {
      below.value = found;
      heading.current?.focus({ preventScroll: true });
    });
  };
  const search = (wanted: string, path: string): void => {
    text.value = wanted;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => void ask<Below>({ path, text: wanted }, (found) => (below.value = found)), SEARCH_DELAY);
  };
  const back = (): void => {
    request.current += 1;
    problem.value = "";
    below.value = null;
  };
  const { recent = [], roots = [] } = beginning.value ?? {};
  const here = below.value;
  return (
    <div class="directories" role="group" aria-labelledby={id}>
      <h2 id={id} tabIndex={-1} ref={heading} class="wrap">{here === null ? "Choose a directory" : visible(here.path)}</h2>
      <Problem>{problem.value}</Problem>
      {here === null ? (
        <>
          {recent.length > 0 && <p class="hint">Recently used</p>}
          <Places paths={recent} press={choose} />
          <p class="hint">{roots.length > 0 ? "Browse" : beginning.value === null && !problem.value ? "Loading…" : ""}</p>
          <Places paths={roots} press={open} opens />
        </>
      ) : (
        <>
          <div class="actions">
            <button type="button" class="allow" onClick={() => choose(here.path)}>Use this directory</button>
            <button type="button" onClick={() => (here.parent === null ? back() : open(here.parent))}>Up</button>
          </div>
          {(here.cut || here.names.length > MANY || text.value) && (
            <input type="search" autocomplete="off" autocapitalize="off" spellcheck={false} aria-label="Filter by name" placeholder="Filter by name"
              value={text.value} onInput={(event) => search(event.currentTarget.value, here.path)} />
          )}
          <Places paths={here.names} press={(name) => open(joined(here.path, name))} opens />
          {!here.names.length && <p class="hint">{text.value ? "Nothing found." : "No subdirectories."}</p>}
          {here.cut && <p class="hint">Not all are shown: type a part of the name.</p>}
        </>
      )}
    </div>
  );
}

function Places({ paths, press, opens = false }: { paths: readonly string[]; press(path: string): void; opens?: boolean }): VNode | null {
  if (!paths.length) return null;
  return (
    <ul role="list">
      {paths.map((path) => <li key={path}><button type="button" onClick={() => press(path)}><span class="wrap">{visible(path)}</span>{opens && <span aria-hidden="true"> ›</span>}</button></li>)}
    </ul>
  );
}

/** Joins a path and a name with the separator that the server uses. */
function joined(path: string, name: string): string {
  const separator = path.includes("\\") && !path.includes("/") ? "\\" : "/";
  return path.endsWith(separator) ? path + name : path + separator + name;
}
