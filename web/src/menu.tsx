// The menu of actions on a session. An action that cannot be undone needs a second press. Mode and model are at the
// composer instead, where they matter.

import { useSignal, type ReadonlySignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { messageOf, post, send, get, sessionPath } from "./api";
import type { PageContext } from "./conversation_state";
import { MovePart } from "./machines";
import { modeWords } from "./question";
import { routeOf } from "./sessions";
import { TimelinePart } from "./timeline";
import type { SessionRow } from "./types";
import { Problem, ConfirmButton, useFreshId } from "./ui";
import { visible } from "./words";

interface Share {
  with: string;
  access: "watch" | "answer";
}

interface Props {
  row: ReadonlySignal<SessionRow>;
  pageContext: PageContext;
  /** Called after the session has moved to another machine, with the message to show. */
  moved(id: string, words: string): void;
  jump(turn: number): void;
}

export function SessionMenu(props: Props): VNode {
  const place = useRef<HTMLDetailsElement>(null);
  const open = useSignal(false);
  const close = (): void => {
    if (place.current !== null) place.current.open = false;
  };
  useEffect(() => {
    const outside = (event: Event): void => {
      // Check the event's path: the pressed element may already be replaced by what it opens.
      if (place.current?.open && !event.composedPath().includes(place.current)) close();
    };
    document.addEventListener("click", outside);
    return () => document.removeEventListener("click", outside);
  }, []);
  return (
    <details class="menu" ref={place} onToggle={() => (open.value = place.current?.open ?? false)} onKeyDown={(event) => {
      if (event.key !== "Escape" || !place.current?.open) return;
      close();
      place.current.querySelector("summary")?.focus();
      event.stopPropagation();
    }}>
      <summary aria-label="More actions">⋯</summary>
      <div class="menu-body">{open.value && <MenuBody {...props} close={close} />}</div>
    </details>
  );
}

function MenuBody({ row: signal, pageContext, moved, jump, close }: Props & { close(): void }): VNode {
  // The row as it was when the menu opened: a button must not change its meaning just before the user presses it.
  const row = useRef(signal.value).current;
  const id = useFreshId();
  const problem = useSignal("");
  const part = useSignal<"" | "rename" | "share" | "move">("");
  const name = useRef<HTMLInputElement>(null);
  const fail = (error: unknown): void => void (problem.value = messageOf(error));
  const timeline = (
    <TimelinePart id={row.sessionId} sharedBy={row.sharedBy ?? null} fail={fail} jump={(turn) => {
      close();
      jump(turn);
    }} />
  );
  if (row.sharedBy) {
    const may = row.access === "answer" ? "to answer and write" : "to watch";
    return <>{timeline}<p class="hint">{row.sharedBy} has shared this session with you {may}. Only they can change its settings.</p></>;
  }
  const attempt = (act: () => Promise<void>): void => void act().then(close, fail);
  /** `change` has the new values of the row; null if the action removes the row. */
  const manage = (action: string, more: object, change: Partial<SessionRow> | null): void => attempt(async () => {
    await post(sessionPath(row.sessionId, "manage"), { action, ...more });
    if (change === null) {
      pageContext.live.forgetRow(row.sessionId);
      pageContext.go("/");
    } else {
      pageContext.live.learn([{ sessionId: row.sessionId, ...change }]);
    }
  });
  const fork = (): void => attempt(async () => {
    const made = await post<{ sessionId: string }>(sessionPath(row.sessionId, "fork"));
    pageContext.go(routeOf(made.sessionId));
  });
  const download = (format: "markdown" | "html"): void => attempt(async () => {
    const { name: file, text } = await post<{ name: string; text: string }>(sessionPath(row.sessionId, "export"), { format });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: format === "html" ? "text/html" : "text/markdown" }));
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  });
  const item = (label: string, act: () => void): VNode => <button type="button" class="menu-item" onClick={act}>{label}</button>;
  return (
    <>
      <Problem>{problem.value}</Problem>
      {part.value === "" && (
        <>
          {timeline}
          {item("Rename…", () => (part.value = "rename"))}
          {item(row.pinned ? "Unpin" : "Pin", () => manage(row.pinned ? "unpin" : "pin", {}, { pinned: !row.pinned }))}
          {item("Share…", () => (part.value = "share"))}
          {item("Fork", fork)}
          {pageContext.live.machines.some((machine) => machine.there && machine.id !== row.machineId) && item("Move…", () => (part.value = "move"))}
          {item("Export as Markdown", () => download("markdown"))}
          {item("Export as a page", () => download("html"))}
          {item("Print", () => {
            close();
            print();
          })}
          {item(row.archived ? "Unarchive" : "Archive", () => manage(row.archived ? "unarchive" : "archive", {}, { archived: !row.archived }))}
          <ConfirmButton label="Cancel permanently" again="Yes, cancel it permanently" act={() => attempt(async () => void (await post(sessionPath(row.sessionId, "cancel"))))} />
          <ConfirmButton label="Delete" again="Yes, delete everything" act={() => manage("delete", { confirm: true }, null)} />
        </>
      )}
      {part.value === "rename" && (
        <div>
          <label for={id}>Name</label>
          <input id={id} type="text" ref={name} defaultValue={row.title ?? ""} maxLength={200} dir="auto" />
          <button type="button" class="allow" onClick={() => {
            const title = name.current?.value.trim() ?? "";
            manage("rename", { text: title }, { title });
          }}>Rename</button>
        </div>
      )}
      {part.value === "share" && <Sharing id={row.sessionId} fail={fail} />}
      {part.value === "move" && (
        <MovePart row={row} machines={pageContext.live.machines} fail={fail} moved={({ sessionId, message, machine, machineId, notices }) => {
          close();
          pageContext.live.learn([{ sessionId, machine, machineId }]);
          pageContext.announce(message);
          moved(sessionId, [message, ...(notices ?? [])].join(" "));
        }} />
      )}
    </>
  );
}

/** Shows with whom the session is shared, and changes it. */
function Sharing({ id, fail }: { id: string; fail(error: unknown): void }): VNode {
  const field = useFreshId();
  const shares = useSignal<readonly Share[]>([]);
  const person = useSignal("");
  const access = useSignal("watch");
  const changed = useRef(false);
  useEffect(() => {
    // A list read before a change may arrive after the answer to that change: ignore it.
    void get<{ shares: Share[] }>(sessionPath(id, "shares")).then((all) => changed.current || (shares.value = all.shares), fail);
  }, []);
  const change = (method: string, name: string): void => void send<{ shares: Share[] }>(method, sessionPath(id, "shares", encodeURIComponent(name)),
    method === "PUT" ? { access: access.value } : {}).then((all) => {
      if (person.value.trim() === name) person.value = "";
      changed.current = true;
      shares.value = all.shares;
    }, fail);
  return (
    <div>
      <label for={field}>Share with</label>
      <input id={field} type="text" maxLength={200} autocomplete="off" spellcheck={false} placeholder="a name, or group:NAME" value={person.value} onInput={(event) => (person.value = event.currentTarget.value)} />
      <select aria-label="What they may do" value={access.value} onChange={(event) => (access.value = event.currentTarget.value)}>
        <option value="watch">may watch</option><option value="answer">may answer and write</option>
      </select>
      <button type="button" onClick={() => person.value.trim() && change("PUT", person.value.trim())}>Share</button>
      <ul class="shares" role="list">
        {shares.value.map((share) => (
          <li key={share.with}>
            <span>{visible(share.with)} may {share.access === "answer" ? "answer and write" : "watch"}</span>
            <button type="button" class="quiet" aria-label={`Stop sharing with ${share.with}`} onClick={() => change("DELETE", share.with)}>Stop sharing</button>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** The mode and model of a session, shown at the composer. */
export function ModeAndModel({ row, pageContext }: { row: ReadonlySignal<SessionRow>; pageContext: PageContext }): VNode | null {
  const id = useFreshId();
  const problem = useSignal("");
  const { sessionId, sharedBy, permissionMode, model } = row.value;
  if (sharedBy) return null;
  const current = permissionMode ?? "default";
  const manage = (action: "mode" | "model", text: string, change: Partial<SessionRow>): void => {
    problem.value = "";
    post(sessionPath(sessionId, "manage"), { action, text }).then(() => {
      pageContext.live.learn([{ sessionId, ...change }]);
      pageContext.announce(`The ${action} was changed.`);
    }, (error: unknown) => (problem.value = messageOf(error)));
  };
  return (
    <div class="session-chips">
      <Problem>{problem.value}</Problem>
      <select aria-label="Permissions" value={current} onChange={(event) => manage("mode", event.currentTarget.value, { permissionMode: event.currentTarget.value })}>
        {[...new Set([...pageContext.modes, current])].map((mode) => <option key={mode} value={mode}>{`${mode}: ${modeWords(mode)}`}</option>)}
      </select>
      <input type="text" aria-label="Model" autocomplete="off" spellcheck={false} placeholder="default model" list={`${id}-models`} defaultValue={model ?? ""} key={model ?? ""}
        onChange={(event) => manage("model", event.currentTarget.value.trim(), { model: event.currentTarget.value.trim() || null })} />
      <datalist id={`${id}-models`}>{["default", "opus", "sonnet", "haiku"].map((name) => <option key={name} value={name} />)}</datalist>
    </div>
  );
}
