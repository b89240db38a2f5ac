// An open question with all that is decided on, and the answers to it. Used by the console and inside MCP clients.

import { button, freshId, h, replace, type Child } from "./dom";
import { addressView, FieldView } from "./form_view";
import { inlineMarkdown } from "./markdown";
import { COMMANDS, inputView, toolTitle } from "./tool_view";
import type { Answer, Choice, Form, Question, SessionRow } from "./types";
import { duration, visible } from "./words";

export type SendAnswer = (question: Question, answer: Answer) => Promise<void>;

const OTHER = "\u0000other";
const MODE_WORDS: Record<string, string> = {
  default: "ask before each edit",
  acceptEdits: "edit files without asking",
  auto: "decide by itself what to ask",
  dontAsk: "refuse what is not allowed yet",
  bypassPermissions: "never ask",
  plan: "keep planning",
};

export function modeWords(mode: string): string {
  return MODE_WORDS[mode] ?? mode;
}

export class QuestionView {
  readonly element: HTMLElement;
  private readonly heading: HTMLElement;
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });
  private readonly clock = h("span", { class: "clock" });
  private readonly timer: ReturnType<typeof setInterval>;

  /** `directory` is where the session works; files below it are named from there. `owner` is whose session it is, if
   * who sees the question may only watch. */
  constructor(readonly question: Question, private readonly directory: string, private readonly send: SendAnswer, owner?: string | null) {
    const id = freshId("question");
    this.heading = h("h2", { id, tabindex: -1 }, title(question));
    this.element = h("section", { class: `question ${question.kind}`, aria: { labelledby: id } },
      h("div", { class: "question-head" }, h("span", { class: "eyebrow" }, eyebrow(question)), this.clock), this.heading,
      ...this.content(), this.problem);
    this.element.dataset["question"] = question.questionId;
    if (owner) this.onlyShow(owner);
    this.timer = setInterval(() => this.tick(), 1000);
    this.tick();
  }

  focus(): void {
    this.heading.focus();
  }

  /** Nobody needs an answer any more; says why in place of the buttons. */
  close(why: string): void {
    clearInterval(this.timer);
    this.element.classList.add("closed");
    replace(this.element, h("p", { role: "status" }, why));
  }

  /** Everything that is decided on stays in sight, and nothing can be decided. */
  private onlyShow(owner: string): void {
    for (const actions of this.element.querySelectorAll(".actions, .reason, .mode")) actions.remove();
    for (const control of this.element.querySelectorAll<HTMLInputElement>("input, textarea, select")) control.disabled = true;
    if (this.question.kind !== "permission") replace(this.element.querySelector(".eyebrow") as Element, "Question");
    this.element.append(h("p", { class: "hint" }, `You are watching: ${owner} decides this.`));
  }

  private tick(): void {
    const { expiresAt } = this.question;
    const left = expiresAt ? Date.parse(expiresAt) - Date.now() : NaN;
    // A deadline that is far away is nothing to be hurried by.
    this.clock.textContent = left < 600_000 ? (left > 0 ? `${duration(left)} left` : "time is up") : "";
    this.clock.classList.toggle("urgent", left < 30_000);
  }

  private content(): Child[] {
    switch (this.question.kind) {
      case "plan_review":
        return this.plan();
      case "user_question":
        return this.question.form ? this.form(this.question.form) : this.choices();
      default:
        return this.permission();
    }
  }

  private async answer(answer: Answer): Promise<void> {
    const controls = [...this.element.querySelectorAll<HTMLButtonElement>("button, input, textarea, select")];
    for (const control of controls) control.disabled = true;
    this.element.setAttribute("aria-busy", "true");
    this.problem.hidden = true;
    try {
      await this.send(this.question, answer);
    } catch (error) {
      for (const control of controls) control.disabled = false;
      this.complain(error instanceof Error ? error.message : String(error));
    }
    this.element.removeAttribute("aria-busy");
  }

  private complain(why: string): void {
    this.problem.textContent = why;
    this.problem.hidden = false;
  }

  // -- permission ---------------------------------------------------------------------------------------------------

  private permission(): Child[] {
    const { question } = this;
    const reason = new Reason("Why not? Claude reads this.");
    const deny = button("Deny", () => void this.answer(denial(reason.text)), { class: "deny" });
    const why = button("Deny with a reason…", () => reason.show(), { class: "quiet" });
    reason.element.append(button("Deny and say why", () => void this.answer(denial(reason.text)), { class: "deny" }));
    return [
      question.reason && h("p", { class: "why" }, visible(question.reason)),
      question.blockedPath && h("p", { class: "why" }, "Path: ", h("code", null, visible(question.blockedPath))),
      inputView(question.toolName, question.toolInput, this.directory, question),
      rulesHint(question),
      h("div", { class: "actions" },
        button("Allow once", () => void this.answer({ decision: "allow", scope: "once" }), { class: "allow" }),
        question.canAllowForSession &&
          button("Allow for this session", () => void this.answer({ decision: "allow", scope: "session" })),
        deny, why),
      reason.element,
    ];
  }

  // -- plan ---------------------------------------------------------------------------------------------------------

  private plan(): Child[] {
    const { question } = this;
    const reason = new Reason("What should be different?");
    reason.element.append(button("Send feedback", () => {
      if (!reason.text) return reason.show();
      void this.answer(denial(reason.text));
    }, { class: "deny" }));
    const modes = question.modes ?? [];
    const select = h("select", { id: freshId("mode") }, ...modes.map((mode) =>
      h("option", { value: mode, selected: mode === (question.modeAfter ?? "default") }, modeWords(mode))));
    const approve = (): void =>
      void this.answer(modes.length ? { decision: "allow", permissionMode: select.value } : { decision: "allow" });
    const plan = question.toolInput["plan"];
    return [
      typeof plan === "string" && plan ? null : h("p", null, "Claude gave no text for its plan."),
      inputView(question.toolName, question.toolInput, this.directory),
      modes.length > 1 && h("p", { class: "mode" }, h("label", { for: select.id }, "Then: "), select),
      h("div", { class: "actions" },
        button("Approve the plan", approve, { class: "allow" }),
        button("Give feedback…", () => reason.show(), { class: "deny" })),
      reason.element,
    ];
  }

  // -- questions and forms ------------------------------------------------------------------------------------------

  private choices(): Child[] {
    const parts = (this.question.choices ?? []).map((choice) => new ChoiceView(choice));
    const submit = (): void => {
      const open = parts.find((part) => part.value === null && !part.optional);
      if (open === undefined) return void this.answer({ decision: "allow", answers: parts.map((part) => part.value ?? "") });
      this.complain(parts.length > 1 ? "Please answer every question." : "Please choose an answer or write one.");
      open.focus();
    };
    return [
      ...parts.map((part) => part.element),
      h("div", { class: "actions" },
        button(parts.length > 1 ? "Send answers" : "Send answer", submit, { class: "allow" }),
        button("Decline to answer", () => void this.answer({ decision: "deny" }), { class: "deny" })),
    ];
  }

  private form(form: Form): Child[] {
    const choices = this.question.choices ?? [];
    const fields = choices.flatMap((choice) => (choice.field ? [new FieldView(choice, choice.field)] : []));
    const submit = (): void => {
      const wrong = fields.find((field) => field.problem);
      if (wrong === undefined) return void this.answer({ decision: "allow", answers: fields.length ? fields.map((field) => field.value) : ["Yes"] });
      this.complain(wrong.problem);
      wrong.focus();
    };
    const yes = fields.length ? "Send" : form.url === undefined ? "Yes" : "I have opened it";
    return [
      form.message && h("p", { class: "why" }, visible(form.message)),
      ...fields.map((field) => field.element),
      form.url === undefined ? null : addressView(form),
      h("div", { class: "actions" },
        button(yes, submit, { class: "allow" }),
        button("Decline", () => void this.answer({ decision: "deny" }), { class: "deny" })),
    ];
  }
}

/** What an allowance for the session would cover. */
function rulesHint(question: Question): HTMLElement | null {
  const rules = question.canAllowForSession ? (question.sessionRules ?? []) : [];
  if (!rules.length) return null;
  const listed = rules.flatMap((rule, at) => [at ? ", " : "", h("code", null, visible(rule))]);
  return h("p", { class: "hint" }, "“For this session” allows: ", ...listed);
}

function denial(reason: string): Answer {
  return reason ? { decision: "deny", reason } : { decision: "deny" };
}

function title(question: Question): string {
  switch (question.kind) {
    case "plan_review":
      return "Claude has a plan";
    case "user_question":
      return question.form ? `${visible(question.form.server)} asks` : "Claude has a question";
    default:
      // A command is shown whole below; its description would only repeat it.
      return COMMANDS.has(question.toolName) ? "Run a command" : visible(question.description);
  }
}

function eyebrow(question: Question): string {
  if (question.form) return "Form · MCP server";
  return question.kind === "permission" ? `Permission · ${toolTitle(visible(question.toolName))}` : "Your turn";
}

/** A text that is asked for only when somebody wants to give one. */
class Reason {
  readonly element: HTMLElement;
  private readonly input: HTMLTextAreaElement;

  constructor(label: string) {
    const id = freshId("reason");
    this.input = h("textarea", { id, rows: 3 });
    this.element = h("div", { class: "reason", hidden: true }, h("label", { for: id }, label), this.input);
  }

  get text(): string {
    return this.input.value.trim();
  }

  show(): void {
    this.element.hidden = false;
    this.input.focus();
  }
}

class ChoiceView {
  readonly element: HTMLFieldSetElement;
  private readonly boxes: HTMLInputElement[];
  private readonly other: HTMLInputElement;

  constructor(private readonly choice: Choice) {
    const name = freshId("choice");
    const type = choice.several ? "checkbox" : "radio";
    const free = !choice.options.length;
    this.other = h("input", { type: "text", class: "other", autocomplete: "off", aria: { label: free ? choice.question : "Another answer" },
      on: { input: () => this.tickOther() } });
    const options = choice.options.map((option) => ({ value: option.label, ...option }));
    const rows = free ? [] : [...options, { value: OTHER, label: "Something else:", description: "" }];
    this.boxes = rows.map((row) => h("input", { type, name, value: row.value, id: freshId("option") }));
    this.element = h("fieldset", { class: "choice" },
      h("legend", null, choice.header && h("span", { class: "tag" }, visible(choice.header)), " ", inlineMarkdown(choice.question)),
      choice.several && h("p", { class: "hint" }, "Several may be chosen."),
      ...rows.map((row, at) => this.row(this.boxes[at] as HTMLInputElement, row)),
      this.other);
  }

  private row(box: HTMLInputElement, row: { label: string; description: string }): HTMLElement {
    return h("label", { class: "option", for: box.id }, box, h("span", null, h("span", { class: "label" }, visible(row.label)),
      row.description && h("span", { class: "description" }, visible(row.description))));
  }

  private tickOther(): void {
    const box = this.boxes.find((one) => one.value === OTHER);
    if (box !== undefined) box.checked = this.other.value.trim() !== "";
  }

  focus(): void {
    (this.boxes[0] ?? this.other).focus();
  }

  get optional(): boolean {
    return this.choice.field?.required === false;
  }

  /** What was chosen, in the order of the options; null if nothing was. */
  get value(): string | string[] | null {
    const written = this.other.value.trim();
    if (!this.boxes.length) return written || null;
    const chosen = this.boxes.filter((box) => box.checked).map((box) => (box.value === OTHER ? written : box.value));
    if (!chosen.length || chosen.some((value) => !value)) return null;
    return this.choice.several ? chosen : (chosen[0] as string);
  }
}

/** A question that ended because nobody answered it, and what has it asked again. */
export class UnansweredView {
  readonly element = h("section", { class: "question unanswered", hidden: true, aria: { label: "A question that nobody answered" } });
  private drawn = "";

  /** `say` sends a message to the session; it rejects if that failed, which `fail` is told. */
  constructor(private readonly say: (text: string) => Promise<void>, private readonly fail: (error: unknown) => void) {}

  /** Returns whether it has just come into sight. */
  show(missed: NonNullable<SessionRow["unanswered"]> | null): boolean {
    const wasHidden = Boolean(this.element.hidden);
    this.element.hidden = missed === null;
    if (missed === null) return false;
    if (this.drawn === missed.at) return wasHidden;
    this.drawn = missed.at; // and not what it says: the same may be asked again, and end in the same way
    const again = button("Ask again", () => {
      again.disabled = true;
      this.say(`I could not answer in time: ${missed.description}\n\nI am here now. Please ask me again.`).catch((error: unknown) => {
        again.disabled = false;
        this.fail(error);
      });
    }, { class: "allow" });
    replace(this.element, h("div", { class: "question-head" }, h("span", { class: "eyebrow" }, "Unanswered")),
      h("h2", null, visible(missed.description)), h("p", { class: "why" }, visible(missed.reason)), h("div", { class: "actions" }, again));
    return true;
  }
}

const ALLOWED: Record<string, string> = { user_question: "Answered", plan_review: "Approved" };

/** What somebody else has answered, in a sentence, and in short with their name if it was not the owner of the page. `by`
 * is how the server tells it, such as `web (bob, Chrome on Linux)`: without a name it is the owner of the session. */
export function decisionWords(question: Question, allow: boolean, by: string, sharedBy: string | null): { sentence: string; short: string } {
  const [, channel = "", client = ""] = /^([^ (]*)(?: \((.*)\))?$/s.exec(by) ?? [];
  const parts = client.split(", ");
  const name = visible(parts.length > 1 ? (parts.shift() as string) : (sharedBy ?? ""));
  const through = visible(parts.join(", ") || (channel === "web" ? "" : channel));
  const verb = allow ? (ALLOWED[question.kind] ?? "Allowed") : "Denied";
  return {
    sentence: `${verb} ${name ? `by ${name}` : "elsewhere"}${through ? ` (${through})` : ""}.`,
    short: name ? `${verb.toLowerCase()} by ${name}` : "",
  };
}
