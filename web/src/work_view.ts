// What becomes of a session's worktree: commit, merge, a pull request, or none of it. Each says what will happen, and does
// just that: the server refuses if something else would be done by then.

import { get, messageOf, post, sessionPath } from "./api";
import { button, freshId, h, outsideLink, replace, type Child } from "./dom";
import { freshKey } from "./drafts";
import { count, visible } from "./words";

interface Plan {
  branch: string;
  into?: string | null;
  repository: string;
  uncommitted: number;
  /** The first of the files that are not committed. */
  files: string[];
  commits: number;
  /** Why it cannot be merged. */
  refusal: string;
  /** Where a pull request would be opened; null if the server cannot do that. */
  remote?: string | null;
  /** What opens one there, whether the server has it or not. */
  program: "gh" | "glab";
  /** What would be gone if it were discarded. */
  lost: string;
  digest: string;
}

const CHECKING = "Checking the branch…";

type Action = "commit" | "merge" | "pull_request" | "discard";

export class WorkView {
  readonly element = h("section", { class: "work", aria: { label: "Merge or discard" } });
  private readonly note = h("p", { class: "hint", role: "status" }, CHECKING);
  private readonly form = h("div", { class: "work-form", hidden: true });
  private readonly buttons = h("div", { class: "actions" });

  /** `done` is called after something was changed, `say` sends a message to the session. */
  constructor(private readonly session: string, private readonly done: () => void, private readonly say: (text: string, key: string) => Promise<void>) {
    this.element.append(this.note, this.buttons, this.form);
    void this.load();
  }

  /** What there is now; null if that cannot be told. */
  private async load(): Promise<Plan | null> {
    try {
      const plan = await get<Plan>(sessionPath(this.session, "work"));
      const open = (action: Action): () => void => () => this.ask(action, plan);
      this.note.textContent = summary(plan);
      replace(this.buttons,
        plan.uncommitted > 0 && button("Commit", open("commit")),
        plan.into && button(`Merge into ${visible(plan.into)}`, open("merge"), { disabled: plan.refusal !== "" || isMerged(plan) }),
        plan.into && button(`Open a ${requestNoun(plan)}`, open("pull_request")),
        button("Discard", open("discard"), { class: "deny" }));
      return plan;
    } catch (error) {
      this.note.textContent = messageOf(error);
      return null;
    }
  }

  /** Says what will happen and has it confirmed. `why` is what stood in the way before, of what was written then. */
  private ask(action: Action, plan: Plan, why = "", written: readonly [string, string] = ["", ""]): void {
    const id = freshId("message");
    const named = action === "pull_request" || (action !== "discard" && plan.uncommitted > 0);
    const title = h("input", { type: "text", id, maxlength: 500, required: true, placeholder: "What was changed, and why" });
    const bodyId = freshId("body");
    const body = h("textarea", { id: bodyId, rows: 3, maxlength: 20_000 });
    [title.value, body.value] = written;
    const confirm = button(LABELS[action](plan), () => {
      if (named && !title.value.trim()) return title.focus();
      confirm.disabled = true;
      void this.act(action, plan, title.value.trim(), body.value.trim()).catch((error: unknown) =>
        this.askAgain(action, plan, messageOf(error), [title.value, body.value]));
    }, { class: action === "discard" ? "deny" : "allow" });
    const label = action === "pull_request" ? "Title" : "Commit message";
    replace(this.form, h("p", null, ...meaning(action, plan)), files(action, plan),
      named && [h("label", { for: id }, label), title],
      action === "pull_request" && [h("label", { for: bodyId }, "Description"), body],
      why && h("p", { class: "problem", role: "alert" }, visible(why)), h("div", { class: "actions" }, confirm, button("Cancel", () => this.close())));
    this.form.hidden = false;
    if (named) title.focus();
    else confirm.focus();
  }

  /** It was refused: what is agreed to next is what there is now. */
  private async askAgain(action: Action, plan: Plan, why: string, written: readonly [string, string]): Promise<void> {
    this.ask(action, (await this.load()) ?? plan, why, written);
  }

  private close(): void {
    this.form.hidden = true;
    this.form.replaceChildren();
    this.buttons.querySelector("button")?.focus();
  }

  private async act(action: Action, plan: Plan, message: string, body: string): Promise<void> {
    if (action === "pull_request" && !plan.remote) {
      await this.say(request(plan, message, body), freshKey());
      return;
    }
    const given = action === "discard" ? { lost: plan.lost } : { agreed: plan.digest, ...(message ? { message } : {}) };
    const more = action === "pull_request" ? { body, remote: plan.remote } : {};
    const { message: told } = await post<{ message: string }>(sessionPath(this.session, "work"), { action, ...given, ...more });
    const link = action === "pull_request" ? outsideLink(told, told) : null;
    replace(this.form, h("p", { role: "status" }, link === null ? visible(told) : [`The ${requestNoun(plan)} is open: `, link]));
    replace(this.buttons);
    if (action !== "discard") {
      this.note.textContent = CHECKING;
      await this.load();
    }
    this.done();
  }
}

/** Whether there is nothing to be merged. */
function isMerged(plan: Plan): boolean {
  return plan.uncommitted === 0 && plan.commits === 0;
}

function summary(plan: Plan): string {
  if (isMerged(plan) && plan.into) return `On ${visible(plan.branch)}, which has no commits that ${visible(plan.into)} lacks.`;
  const parts = [
    `On ${visible(plan.branch)}`,
    plan.commits ? count(plan.commits, "commit") : "",
    plan.uncommitted ? `${count(plan.uncommitted, "file")} not committed` : "everything is committed",
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
function meaning(action: Action, plan: Plan): Child[] {
  const [branch, into] = [visible(plan.branch), visible(plan.into ?? "")];
  const first = plan.uncommitted ? `${count(plan.uncommitted, "file")} will be committed on ${branch}` : "";
  switch (action) {
    case "commit":
      return [`${first}. Nothing else changes.`];
    case "merge":
      return [`${first ? `${first}; then ` : ""}${branch} is merged into ${into} in ${visible(plan.repository)}, whose files change. The worktree stays. If this would overwrite something, nothing is changed.`];
    case "pull_request":
      if (!plan.remote) return [`This server has no ${plan.program} for this repository. A message asks Claude to push ${branch} and open a ${requestNoun(plan)} into ${into}; it asks for permission as usual.`];
      return [`${first ? `${first}; then ` : ""}${branch} is pushed to ${visible(plan.remote)} with your sign-in, and a ${requestNoun(plan)} into ${into} is opened there by ${plan.program}. Nothing is overwritten.`];
    case "discard":
      return [`The worktree and the branch ${branch} are removed. This is lost permanently: ${visible(plan.lost)}. The conversation stays.`];
  }
}

/** What it is called where the remote is. */
function requestNoun(plan: Plan): string {
  return plan.program === "glab" ? "merge request" : "pull request";
}

function files(action: Action, plan: Plan): Child {
  if (action === "discard" || !plan.files.length) return null;
  const more = plan.uncommitted - plan.files.length;
  return h("ul", { class: "work-files" }, ...plan.files.map((file) => h("li", null, visible(file))), more > 0 && h("li", null, `and ${more} more`));
}

function request(plan: Plan, title: string, body: string): string {
  return [
    `Please open a ${requestNoun(plan)} of the branch ${plan.branch} into ${plan.into ?? "its base"}: commit what is not committed, push the branch to its remote without force, and open the ${requestNoun(plan)} with ${plan.program} or another available program.`,
    `Title: ${title}`, body && `Description:\n${body}`, "Tell me its address, or what prevents it.",
  ].filter(Boolean).join("\n\n");
}
