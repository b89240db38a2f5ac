// The notices at the end of a conversation: a usage limit that has stopped the session, and a question that ended without
// an answer. They stay until someone acts on them.

import { useSignal, type ReadonlySignal } from "@preact/signals";
import { type VNode } from "preact";
import { messageOf, post, sessionPath } from "./api";
import { clock, limitName } from "./limits";
import { isWatched } from "./sessions";
import type { SessionRow } from "./types";
import { Problem } from "./ui";
import { visible } from "./words";

/** Shows when a session that a usage limit has stopped continues, and what the user can do about it. `mayChange` says
 * whether the user owns the session. */
export function LimitNotice({ row, mayChange }: { row: SessionRow; mayChange: boolean }): VNode | null {
  const problem = useSignal("");
  const busy = useSignal(false);
  const { limit } = row;
  if (row.status !== "limit_reached" || !limit) return null;
  const steer = (action: string, text?: string): void => {
    busy.value = true;
    problem.value = "";
    post(sessionPath(row.sessionId, "manage"), { action, ...(text ? { text } : {}) })
      .catch((error: unknown) => (problem.value = messageOf(error)))
      .finally(() => (busy.value = false));
  };
  const resets = limit.resetsAt ? `It resets at ${clock(limit.resetsAt)}.` : "The reset time is unknown.";
  const waits = limit.continuesAt ? ` The session continues at ${clock(limit.continuesAt)}.` : "";
  return (
    <section class="limit-notice" aria-label="Usage limit">
      <div class="question-head"><span class="eyebrow">Usage limit</span></div>
      <h2>The {limitName(limit.type)} limit is reached</h2>
      <p class="why">{resets}{waits}</p>
      <fieldset class="plain actions" disabled={busy.value}>
        {mayChange && (limit.continuesAt
          ? <button type="button" onClick={() => steer("on_limit", "end")}>Do not continue</button>
          : <button type="button" class="allow" onClick={() => steer("on_limit", "wait")}>Wait and continue automatically</button>)}
        <button type="button" onClick={() => steer("continue")}>Continue now</button>
      </fieldset>
      <Problem>{problem.value}</Problem>
    </section>
  );
}

/** A question that ended without an answer, with a button that has Claude ask it again. `say` sends a message to the
 * session. */
export function UnansweredNotice({ missed, say }: { missed: NonNullable<SessionRow["unanswered"]>; say: (text: string) => Promise<void> }): VNode {
  const problem = useSignal("");
  const busy = useSignal(false);
  const ask = (): void => {
    busy.value = true;
    problem.value = "";
    say(`I could not answer in time: ${missed.description}\n\nI am here now. Please ask me again.`).catch((error: unknown) => {
      busy.value = false;
      problem.value = messageOf(error);
    });
  };
  return (
    <section class="question unanswered" aria-label="An unanswered question">
      <div class="question-head"><span class="eyebrow">Unanswered</span></div>
      <h2 dir="auto">{visible(missed.description)}</h2>
      <p class="why">{visible(missed.reason)}</p>
      <fieldset class="plain actions" disabled={busy.value}><button type="button" class="allow" onClick={ask}>Ask again</button></fieldset>
      <Problem>{problem.value}</Problem>
    </section>
  );
}

/** Whether there is a notice to show. */
export function hasNotice(row: SessionRow): boolean {
  return !isWatched(row) && ((row.needs === "unanswered" && Boolean(row.unanswered)) || (row.status === "limit_reached" && Boolean(row.limit)));
}

export function Notices({ row, say }: { row: ReadonlySignal<SessionRow>; say: (text: string) => Promise<void> }): VNode | null {
  const now = row.value;
  if (!hasNotice(now)) return null;
  return (
    <>
      <LimitNotice row={now} mayChange={!now.sharedBy} />
      {now.needs === "unanswered" && now.unanswered && <UnansweredNotice key={now.unanswered.at} missed={now.unanswered} say={say} />}
    </>
  );
}
