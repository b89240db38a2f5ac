// The actions on a session's worktree: commit, merge, open a pull request, or discard. Each action says what will
// happen and does exactly that: the server refuses if the action would do something else by then.

import { useSignal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { get, messageOf, post, sessionPath } from "./api";
import { freshKey } from "./drafts";
import { outsideAddress, OutsideLink } from "./links";
import { Problem, useFreshId } from "./ui";
import { count, visible } from "./words";

interface Plan {
  branch: string;
  into?: string | null;
  repository: string;
  uncommitted: number;
  /** The first of the uncommitted files. */
  files: string[];
  commits: number;
  /** Why it cannot be merged. */
  refusal: string;
  /** The remote on which a pull request would be opened; null if the server cannot open one. */
  remote?: string | null;
  /** The program that opens a pull request there, whether or not the server has it. */
  program: "gh" | "glab";
  /** What would be lost if the worktree were discarded. */
  lost: string;
  digest: string;
}

const CHECKING = "Checking the branch…";

type Action = "commit" | "merge" | "pull_request" | "discard";

/** An action that the user is asked to confirm, with the plan to agree to. */
interface Asked {
  action: Action;
  plan: Plan;
  /** Why the previous attempt was refused. */
  why: string;
}

interface Props {
  session: string;
  /** Called after something was changed. */
  done(): void;
  /** Sends a message to the session. */
  say(text: string, key: string): Promise<void>;
}

export function Work({ session, done, say }: Props): VNode {
  const note = useSignal(CHECKING);
  const plan = useSignal<Plan | null>(null);
  const asked = useSignal<Asked | null>(null);
  /** The result of the last action. */
  const outcome = useSignal<ComponentChildren>(null);
  const buttons = useRef<HTMLDivElement>(null);

  /** Loads the current plan; null if that fails. */
  const load = async (): Promise<Plan | null> => {
    try {
      const found = await get<Plan>(sessionPath(session, "work"));
      note.value = summary(found);
      plan.value = found;
      return found;
    } catch (error) {
      note.value = messageOf(error);
      return null;
    }
  };
  useEffect(() => void load(), [session]);

  const ask = (action: Action, of: Plan, why = ""): void => {
    outcome.value = null;
    asked.value = { action, plan: of, why };
  };
  const act = async ({ action, plan: agreed }: Asked, message: string, body: string): Promise<void> => {
    if (action === "pull_request" && !agreed.remote) return say(request(agreed, message, body), freshKey());
    const given = action === "discard" ? { lost: agreed.lost } : { agreed: agreed.digest, ...(message ? { message } : {}) };
    const more = action === "pull_request" ? { body, remote: agreed.remote } : {};
    const { message: answer } = await post<{ message: string }>(sessionPath(session, "work"), { action, ...given, ...more });
    asked.value = plan.value = null;
    const address = action === "pull_request" ? outsideAddress(answer) : null;
    outcome.value = address === null ? visible(answer)
      : <>The {requestNoun(agreed)} is open: <OutsideLink address={address}>{answer}</OutsideLink></>;
    if (action !== "discard") {
      note.value = CHECKING;
      await load();
    }
    done();
  };
  const now = plan.value;
  const offer = (action: Action, label: string, refused = false): VNode =>
    <button type="button" class={action === "discard" ? "deny" : undefined} disabled={refused} onClick={() => ask(action, now as Plan)}>{label}</button>;
  return (
    <section class="work" aria-label="Merge or discard">
      <p class="hint" role="status">{note.value}</p>
      <div class="actions" ref={buttons}>
        {now !== null && <>
          {now.uncommitted > 0 && offer("commit", "Commit")}
          {now.into && offer("merge", `Merge into ${visible(now.into)}`, now.refusal !== "" || isMerged(now))}
          {now.into && offer("pull_request", `Open a ${requestNoun(now)}`)}
          {offer("discard", "Discard")}
        </>}
      </div>
      {outcome.value !== null && <div class="work-form"><p role="status">{outcome.value}</p></div>}
      {asked.value !== null && (
        // After a refusal, the user is asked to agree to the current plan.
        <Confirm key={asked.value.action} asked={asked.value} act={act}
          refused={async (of, error) => ask(of.action, (await load()) ?? of.plan, messageOf(error))}
          cancel={() => {
            asked.value = null;
            buttons.current?.querySelector("button")?.focus();
          }} />
      )}
    </section>
  );
}

/** Says what will happen and asks the user to confirm it. */
function Confirm({ asked, act, refused, cancel }: {
  asked: Asked;
  act(asked: Asked, message: string, body: string): Promise<void>;
  refused(asked: Asked, error: unknown): Promise<void>;
  cancel(): void;
}): VNode {
  const { action, plan, why } = asked;
  const [titleId, bodyId] = [useFreshId(), useFreshId()];
  const title = useRef<HTMLInputElement>(null);
  const body = useRef<HTMLTextAreaElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const busy = useSignal(false);
  const named = action === "pull_request" || (action !== "discard" && plan.uncommitted > 0);
  useLayoutEffect(() => (title.current ?? button.current)?.focus(), [asked]);
  const confirm = async (): Promise<void> => {
    const message = title.current?.value.trim() ?? "";
    if (named && !message) return title.current?.focus();
    busy.value = true;
    await act(asked, message, body.current?.value.trim() ?? "").catch((error: unknown) => refused(asked, error));
    busy.value = false;
  };
  return (
    <div class="work-form">
      <p>{meaning(action, plan)}</p>
      {action !== "discard" && <Files plan={plan} />}
      {named && <>
        <label for={titleId}>{action === "pull_request" ? "Title" : "Commit message"}</label>
        <input type="text" id={titleId} ref={title} maxLength={500} required placeholder="What was changed, and why" />
      </>}
      {action === "pull_request" && <>
        <label for={bodyId}>Description</label>
        <textarea id={bodyId} ref={body} rows={3} maxLength={20_000} />
      </>}
      <Problem>{why && visible(why)}</Problem>
      <div class="actions">
        <button type="button" class={action === "discard" ? "deny" : "allow"} ref={button} disabled={busy.value} onClick={() => void confirm()}>{LABELS[action](plan)}</button>
        <button type="button" onClick={cancel}>Cancel</button>
      </div>
    </div>
  );
}

/** Whether there is nothing to merge. */
function isMerged(plan: Plan): boolean {
  return plan.uncommitted === 0 && plan.commits === 0;
}

function summary(plan: Plan): string {
  if (isMerged(plan) && plan.into) return `On ${visible(plan.branch)}, which has no commits that ${visible(plan.into)} lacks.`;
  const parts = [
    `On ${visible(plan.branch)}`,
    plan.commits ? count(plan.commits, "commit") : "",
    plan.uncommitted ? `${count(plan.uncommitted, "uncommitted file")}` : "everything is committed",
  ];
  const refused = plan.refusal ? ` It cannot be merged: ${visible(plan.refusal)}` : "";
  return `${parts.filter(Boolean).join(", ")}.${refused}`;
}

const LABELS: Record<Action, (plan: Plan) => string> = {
  commit: () => "Commit",
  merge: () => "Merge",
  pull_request: (plan) => (plan.remote ? "Push and open it" : "Ask Claude to open it"),
  discard: () => "Discard permanently",
};

/** What will happen, in words. */
function meaning(action: Action, plan: Plan): string {
  const [branch, into] = [visible(plan.branch), visible(plan.into ?? "")];
  const first = plan.uncommitted ? `${count(plan.uncommitted, "file")} will be committed on ${branch}` : "";
  switch (action) {
    case "commit":
      return `${first}. Nothing else changes.`;
    case "merge":
      return `${first ? `${first}; then ` : ""}${branch} is merged into ${into} in ${visible(plan.repository)}, whose files change. The worktree stays. If this would overwrite something, nothing is changed.`;
    case "pull_request":
      if (!plan.remote) return `This server has no ${plan.program} for this repository. A message asks Claude to push ${branch} and open a ${requestNoun(plan)} into ${into}; it asks for permission as usual.`;
      return `${first ? `${first}; then ` : ""}${branch} is pushed to ${visible(plan.remote)} with your sign-in, and a ${requestNoun(plan)} into ${into} is opened there by ${plan.program}. Nothing is overwritten.`;
    case "discard":
      return `The worktree and the branch ${branch} are removed. This is lost permanently: ${visible(plan.lost)}. The conversation stays.`;
  }
}

/** The term for a pull request at the remote. */
function requestNoun(plan: Plan): string {
  return plan.program === "glab" ? "merge request" : "pull request";
}

function Files({ plan }: { plan: Plan }): VNode | null {
  const more = plan.uncommitted - plan.files.length;
  if (!plan.files.length) return null;
  return (
    <ul class="work-files">
      {plan.files.map((file) => <li key={file}>{visible(file)}</li>)}
      {more > 0 && <li>and {more} more</li>}
    </ul>
  );
}

function request(plan: Plan, title: string, body: string): string {
  return [
    `Please open a ${requestNoun(plan)} of the branch ${plan.branch} into ${plan.into ?? "its base"}: commit what is not committed, push the branch to its remote without force, and open the ${requestNoun(plan)} with ${plan.program} or another available program.`,
    `Title: ${title}`, body && `Description:\n${body}`, "Tell me its address, or what prevents it.",
  ].filter(Boolean).join("\n\n");
}
