// An open question with everything the user decides on, and the buttons that answer it. Used by the console and inside
// MCP clients.

import { signal, useSignal, type ReadonlySignal, type Signal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { CodeBlock } from "./code_block";
import { FormAddress, FormField, WholeValue, type Part } from "./form";
import { InlineMarkdown, Markdown } from "./markdown";
import { LinesLeft, useReading } from "./reading";
import { COMMANDS } from "./server_types";
import { isRecord, ToolInput, toolTitle } from "./tool_input";
import type { Answer, Choice, Form, Question } from "./types";
import { cx, Problem, useFreshId } from "./ui";
import { showsAll } from "./whole_text";
import { duration, visible } from "./words";

export type SendAnswer = (question: Question, answer: Answer) => Promise<void>;

/** Milliseconds after a layout change in which a press was meant for what was there before. */
const PRESS_GUARD_MS = 400;
/** Increments when a question is removed and the ones after it move up. */
export const moves = signal(0);
/** Increments when a lost connection is back. */
export const reconnects = signal(0);
const STILL_OPEN = "Reconnected. This question is still open.";

const OTHER = "\u0000other";
const MODE_WORDS: Record<string, string> = {
  default: "ask before each edit",
  acceptEdits: "edit files without asking",
  auto: "decide by itself what to ask",
  dontAsk: "deny what is not already allowed",
  bypassPermissions: "never ask",
  plan: "keep planning",
};

export function modeWords(mode: string): string {
  return MODE_WORDS[mode] ?? mode;
}

/** A question on the page, and its state. */
export interface Asked {
  question: Question;
  /** Why the question no longer needs an answer; null while it is open. */
  closed: Signal<string | null>;
  /** Whether the question should take focus. */
  wanted: Signal<boolean>;
}

export interface AskedProps {
  asked: Asked;
  /** The session's directory; paths in it are shown relative to it. */
  directory: string;
  send: SendAnswer;
  /** The owner of the session if the user may only watch it; otherwise null. */
  owner: ReadonlySignal<string | null>;
}

export function QuestionCard({ asked, directory, send, owner }: AskedProps): VNode {
  const { question, closed, wanted } = asked;
  const id = useFreshId();
  const heading = useRef<HTMLHeadingElement>(null);
  const problem = useSignal("");
  const note = useSignal("");
  const words = useRef<HTMLDivElement>(null);
  const busy = useSignal(false);
  const since = useRef(Math.round(performance.now())).current;
  useLayoutEffect(() => {
    if (!wanted.value) return;
    wanted.value = false;
    heading.current?.focus({ preventScroll: true });
    heading.current?.closest("section")?.scrollIntoView({ block: "start" });
  }, [wanted.value]);
  useEffect(() => {
    if (!problem.peek()) return;
    problem.value = "";
    note.value = STILL_OPEN;
  }, [reconnects.value]);
  // The words are below the buttons and may be out of the viewport.
  useLayoutEffect(() => {
    if (problem.value) words.current?.scrollIntoView({ block: "nearest" });
  }, [problem.value]);
  if (closed.value !== null) return <section class={`question ${question.kind} closed`}><p role="status">{closed.value}</p></section>;
  const answer = async (given: Answer): Promise<void> => {
    busy.value = true;
    problem.value = note.value = "";
    try {
      await send(question, given);
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error);
    }
    busy.value = false;
  };
  const Body = question.kind === "plan_review" ? Plan : question.kind === "permission" ? Permission : question.form ? FormQuestion : UserQuestion;
  return (
    <section class={`question ${question.kind}`} aria-labelledby={id} aria-busy={busy.value} data-question={question.questionId} data-since={since}>
      <div class="question-head">
        <span class="eyebrow">{owner.value !== null && question.kind !== "permission" ? "Question" : eyebrow(question)}</span>
        <Clock expiresAt={question.expiresAt} />
      </div>
      <h2 id={id} tabIndex={-1} ref={heading} dir="auto">{title(question)}</h2>
      <Body question={question} directory={directory} busy={busy.value} owner={owner.value} answer={(given) => void answer(given)}
        showProblem={(why) => (problem.value = why)} />
      <div ref={words}><Problem>{problem.value}</Problem>{note.value && <p class="hint" role="status">{note.value}</p>}</div>
      {owner.value !== null && <p class="hint">You are watching: {owner.value} decides this.</p>}
    </section>
  );
}

/** The time left to answer. Hidden until 10 minutes remain, so that a distant deadline does not hurry the user. */
function Clock({ expiresAt }: { expiresAt: string | null | undefined }): VNode {
  const now = useSignal(Date.now());
  useEffect(() => {
    const timer = setInterval(() => (now.value = Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const left = expiresAt ? Date.parse(expiresAt) - now.value : NaN;
  return <span class={cx("clock", left < 30_000 && "urgent")}>{left < 600_000 ? (left > 0 ? `${duration(left)} left` : "time is up") : ""}</span>;
}

interface BodyProps {
  question: Question;
  directory: string;
  busy: boolean;
  owner: string | null;
  answer(given: Answer): void;
  showProblem(why: string): void;
}

/** The content to decide on, then the buttons. The buttons that allow something appear after all of the content has been
 * in the viewport. Until then the buttons stay at the bottom of the viewport and show how much is left. */
function Decision({ body, parts, form = "", content, refuse, children }: {
  body: BodyProps;
  /** The data that the content shows; new data must be read again. */
  parts: readonly unknown[];
  /** A name for the layout of the content; a new layout must be read again unless all of the content was read. */
  form?: string;
  content: ComponentChildren;
  /** The button that denies; it is available before the content is read. */
  refuse: ComponentChildren;
  children: ComponentChildren;
}): VNode {
  const reading = useReading(parts, form);
  const unread = reading.left > 0;
  const watching = body.owner !== null;
  const buttons = useRef<HTMLFieldSetElement>(null);
  // All of the content was in the viewport without scrolling: bring the rest of the buttons into it.
  useLayoutEffect(() => {
    if (!unread && reading.untouched() && buttons.current?.closest(".conversation")) buttons.current.scrollIntoView({ block: "nearest" });
  }, [unread]);
  const settled = useSettled(`${unread} ${moves.value}`);
  return (
    <>
      <fieldset class="plain decided-on" disabled={body.busy || watching}>
        {content}
      </fieldset>
      <div class="content-end" ref={reading.end} />
      {!watching && (
        <fieldset class={cx("plain actions", unread && "unread")} ref={buttons} disabled={body.busy}>
          {unread ? <LinesLeft reading={reading} /> : <fieldset class="plain contents" disabled={!settled}>{children}</fieldset>}
          {refuse}
        </fieldset>
      )}
    </>
  );
}

/** Whether `state` has been the same for PRESS_GUARD_MS milliseconds. */
function useSettled(state: string): boolean {
  const settled = useSignal("");
  useEffect(() => {
    const timer = setTimeout(() => (settled.value = state), PRESS_GUARD_MS);
    return () => clearTimeout(timer);
  }, [state]);
  return settled.value === state;
}

// -- permission ---------------------------------------------------------------------------------------------------------

function Permission(body: BodyProps): VNode {
  const { question, directory, answer } = body;
  const why = useSignal(false);
  const edited = useSignal<string | null>(null);
  const command = COMMANDS.has(question.toolName) && typeof question.toolInput["command"] === "string" ? question.toolInput["command"] : null;
  const shown = useMemo(() => {
    const { description, command: _, ...rest } = question.toolInput;
    return command === null ? question.toolInput : rest;
  }, [question]);
  const allow = (scope: "once" | "session"): void =>
    answer({ decision: "allow", scope, ...(edited.value === null ? {} : { updatedInput: { ...question.toolInput, command: edited.value } }) });
  const meaning = question.canAllowForSession && body.owner === null ? sessionMeaning(question.sessionRules ?? []) : null;
  return (
    <>
      <Decision body={body} parts={[question]} form={edited.value === null ? "" : "edited"}
        content={
          <>
            {question.reason && <p class="why" dir="auto">{visible(question.reason)}</p>}
            {question.blockedPath && <p class="why">Path: <code>{visible(question.blockedPath)}</code></p>}
            {command !== null && <Command tool={question.toolName} command={command} edited={edited} mayEdit={body.owner === null} />}
            <ToolInput tool={question.toolName} input={shown} directory={directory} before={question} />
            {meaning}
          </>
        }
        refuse={
          <>
            <button type="button" class="deny" aria-keyshortcuts="d" title="Key: d" onClick={() => answer({ decision: "deny" })}>Deny</button>
            <button type="button" class="quiet" onClick={() => (why.value = true)}>Deny with a reason…</button>
          </>
        }>
        <button type="button" class="allow" aria-keyshortcuts="a" title="Key: a" disabled={edited.value?.trim() === ""} onClick={() => allow("once")}>{edited.value === null ? "Allow once" : "Allow the edited command"}</button>
        {question.canAllowForSession && edited.value === null && <button type="button" aria-keyshortcuts="s" title="Key: s" onClick={() => allow("session")}>Allow for this session</button>}
      </Decision>
      {why.value && <Reason label="Why not? Claude reads this." send="Deny and say why" required="" body={body} />}
    </>
  );
}

/** The full command. The user can edit it before allowing it. */
function Command({ tool, command, edited, mayEdit }: { tool: string; command: string; edited: Signal<string | null>; mayEdit: boolean }): VNode {
  const id = useFreshId();
  const field = useRef<HTMLTextAreaElement>(null);
  const input = useMemo(() => ({ command }), [command]);
  useLayoutEffect(() => field.current?.focus({ preventScroll: true }), [edited.value === null]);
  // The field is as high as its text, so that no part of the command scrolls out of view inside it.
  useLayoutEffect(() => {
    const element = field.current;
    if (element === null) return;
    const fit = (): void => {
      element.style.height = "auto";
      element.style.height = `${element.scrollHeight + element.offsetHeight - element.clientHeight}px`;
    };
    fit();
    addEventListener("resize", fit);
    return () => removeEventListener("resize", fit);
  }, [edited.value]);
  if (edited.value === null) {
    return (
      <div class="editable">
        <ToolInput tool={tool} input={input} directory="" />
        {mayEdit && <button type="button" class="quiet" onClick={() => (edited.value = command)}>Edit the command</button>}
      </div>
    );
  }
  return (
    <div class="editable">
      <label for={id}>Command to run instead</label>
      <textarea id={id} ref={field} class="command-edit" spellcheck={false} autocapitalize="off" rows={1}
        value={edited.value} onInput={(event) => (edited.value = event.currentTarget.value)} />
      <button type="button" class="quiet" onClick={() => (edited.value = null)}>Undo the changes</button>
    </div>
  );
}

const GRANTS: Record<string, string> = {
  acceptEdits: "accepts all file edits",
  bypassPermissions: "allows everything without asking",
  default: "asks again for each edit",
};

/** What “Allow for this session” covers. */
function sessionMeaning(rules: readonly string[]): VNode | null {
  if (!rules.length) return null;
  const modes = rules.filter((rule) => rule.startsWith("mode ")).map((rule) => rule.slice("mode ".length));
  const others = rules.filter((rule) => !rule.startsWith("mode "));
  const changes = modes.map((mode) => GRANTS[mode] ?? `changes the mode to ${visible(mode)}`);
  return (
    <p class="session-meaning">
      “For this session” {changes.join(" and ")}{others.length > 0 && <>{changes.length ? " and allows: " : "allows: "}
        {others.map((rule, at) => <>{at > 0 && ", "}<code key={rule}>{visible(rule)}</code></>)}</>}{changes.length && !others.length ? "." : ""}
    </p>
  );
}

/** The field for a reason or feedback. Shown only when the user asks for it. */
/** `required` is shown if the field is empty; empty if it may be. */
function Reason({ label, send, required, body }: { label: string; send: string; required: string; body: BodyProps }): VNode {
  const id = useFreshId();
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    field.current?.focus({ preventScroll: true });
    field.current?.parentElement?.scrollIntoView({ block: "nearest" });
  }, []);
  const act = (): void => {
    const reason = field.current?.value.trim() ?? "";
    if (required && !reason) {
      body.showProblem(required);
      return field.current?.focus();
    }
    body.answer(reason ? { decision: "deny", reason } : { decision: "deny" });
  };
  return (
    <div class="reason">
      <label for={id}>{label}</label>
      <textarea id={id} rows={3} ref={field} dir="auto" />
      <button type="button" class="deny" onClick={act}>{send}</button>
    </div>
  );
}

// -- plan ---------------------------------------------------------------------------------------------------------------

function Plan(body: BodyProps): VNode {
  const { question, directory, answer } = body;
  const id = useFreshId();
  const why = useSignal(false);
  const modes = question.modes ?? [];
  const mode = useSignal(modes.includes(question.modeAfter ?? "default") ? (question.modeAfter ?? "default") : (modes[0] ?? ""));
  const plan = question.toolInput["plan"];
  const { planFilePath } = question.toolInput;
  const input = useMemo(() => {
    const { plan: _, planFilePath: __, ...others } = question.toolInput;
    return others;
  }, [question]);
  return (
    <>
      <Decision body={body} parts={[question]}
        content={
          <>
            {typeof plan === "string" && plan ? <ShownWhole text={plan} drawn={<Markdown class="plan" text={plan} />} written={<WrittenPlan plan={plan} />} /> : <p>Claude wrote no text for this plan.</p>}
            <ToolInput tool={question.toolName} input={input} directory={directory} />
            {typeof planFilePath === "string" && <p class="hint">The plan is saved in <code>{visible(planFilePath)}</code>.</p>}
            {modes.length > 1 && body.owner === null && (
              <p class="mode">
                <label for={id}>Then: </label>
                <select id={id} value={mode.value} onChange={(event) => (mode.value = event.currentTarget.value)}>
                  {modes.map((one) => <option key={one} value={one}>{modeWords(one)}</option>)}
                </select>
                <WholeValue of={id} />
              </p>
            )}
          </>
        }
        refuse={<button type="button" class="deny" onClick={() => (why.value = true)}>Give feedback…</button>}>
        <button type="button" class="allow" aria-keyshortcuts="a" title="Key: a" onClick={() => answer(modes.length ? { decision: "allow", permissionMode: mode.value } : { decision: "allow" })}>Approve the plan</button>
      </Decision>
      {why.value && <Reason label="What should be different?" send="Send feedback" required="Write what should be different first." body={body} />}
    </>
  );
}

/** Shows the rendered Markdown, or its source if rendering hides a part of the text. */
function ShownWhole({ text, drawn, written }: { text: string; drawn: VNode; written: ComponentChildren }): VNode {
  const place = useRef<HTMLSpanElement>(null);
  const hides = useSignal(false);
  useLayoutEffect(() => {
    if (place.current !== null) hides.value = !showsAll(text, place.current);
  }, [text]);
  return hides.value ? <>{written}</> : <span class="contents" ref={place}>{drawn}</span>;
}

function WrittenPlan({ plan }: { plan: string }): VNode {
  return (
    <>
      <p class="hint">The Markdown source of the plan, because part of it would be invisible when formatted.</p>
      <CodeBlock code={visible(plan)} label="plan" />
    </>
  );
}

// -- questions and forms ------------------------------------------------------------------------------------------------

function UserQuestion(body: BodyProps): VNode {
  const { question, answer, showProblem } = body;
  const choices = question.choices ?? [];
  const parts = useRef<Part[]>([]);
  const submit = (): void => {
    const open = parts.current.find((part) => part.problem());
    if (open === undefined) return answer({ decision: "allow", answers: parts.current.map((part) => part.value()) });
    showProblem(choices.length > 1 ? "Please answer every question." : "Please choose an answer or write one.");
    open.focus();
  };
  return (
    <Decision body={body} parts={[question]}
      content={choices.map((choice, at) => <ChoicePart key={at} choice={choice} register={(part) => (parts.current[at] = part)} />)}
      refuse={<button type="button" class="deny" onClick={() => answer({ decision: "deny" })}>Decline to answer</button>}>
      <button type="button" class="allow" onClick={submit}>{choices.length > 1 ? "Send answers" : "Send answer"}</button>
    </Decision>
  );
}

function FormQuestion(body: BodyProps): VNode {
  const { question, answer, showProblem } = body;
  const form = question.form as Form;
  const choices = (question.choices ?? []).filter((choice) => choice.field);
  const parts = useRef<Part[]>([]);
  const submit = (): void => {
    const wrong = parts.current.find((part) => part.problem());
    if (wrong === undefined) return answer({ decision: "allow", answers: choices.length ? parts.current.map((part) => part.value()) : ["Yes"] });
    showProblem(wrong.problem());
    wrong.focus();
  };
  return (
    <Decision body={body} parts={[question]}
      content={
        <>
          {form.message && <p class="why" dir="auto">{visible(form.message)}</p>}
          {choices.map((choice, at) => choice.field && <FormField key={at} choice={choice} field={choice.field} register={(part) => (parts.current[at] = part)} />)}
          {form.url !== undefined && <FormAddress form={form} />}
        </>
      }
      refuse={<button type="button" class="deny" onClick={() => answer({ decision: "deny" })}>Decline</button>}>
      <button type="button" class="allow" onClick={submit}>{choices.length ? "Send" : form.url === undefined ? "Yes" : "I have opened it"}</button>
    </Decision>
  );
}

/** One question with its options and a field for another answer. */
function ChoicePart({ choice, register }: { choice: Choice; register: (part: Part) => void }): VNode {
  const name = useFreshId();
  const place = useRef<HTMLFieldSetElement>(null);
  const other = useRef<HTMLInputElement>(null);
  const free = !choice.options.length;
  const boxes = (): HTMLInputElement[] => [...(place.current?.querySelectorAll<HTMLInputElement>("input[name]") ?? [])];
  const value = (): string | string[] => {
    const written = other.current?.value.trim() ?? "";
    if (free) return written;
    const chosen = boxes().filter((box) => box.checked).map((box) => (box.value === OTHER ? written : box.value));
    if (!chosen.length || chosen.some((one) => !one)) return "";
    return choice.several ? chosen : (chosen[0] as string);
  };
  register({ value, problem: () => (value().length || choice.field?.required === false ? "" : "open"), focus: () => (boxes()[0] ?? other.current)?.focus() });
  const selectOther = (): void => {
    const box = boxes().find((one) => one.value === OTHER);
    if (box !== undefined) box.checked = other.current?.value.trim() !== "";
  };
  const rows = free ? [] : [...choice.options.map((option) => ({ value: option.label, ...option })), { value: OTHER, label: "Something else:", description: "" }];
  return (
    <fieldset class="choice" ref={place}>
      <legend>{choice.header && <span class="tag">{visible(choice.header)}</span>} <ShownWhole text={choice.question} drawn={<InlineMarkdown text={choice.question} />} written={<span dir="auto">{visible(choice.question)}</span>} /></legend>
      {choice.several && <p class="hint">You can choose several.</p>}
      {rows.map((row) => (
        <label class="option" key={row.value}>
          <input type={choice.several ? "checkbox" : "radio"} name={name} value={row.value} />
          <span dir="auto"><span class="label">{visible(row.label)}</span>{row.description && row.description !== row.label && <span class="description">{visible(row.description)}</span>}</span>
        </label>
      ))}
      <input type="text" class="other" autocomplete="off" dir="auto" ref={other} aria-label={free ? choice.question : "Another answer"} onInput={selectOther} />
    </fieldset>
  );
}

// -- words --------------------------------------------------------------------------------------------------------------

function title(question: Question): string {
  switch (question.kind) {
    case "plan_review":
      return "Claude has a plan";
    case "user_question":
      return question.form ? `${visible(question.form.server)} asks` : "Claude has a question";
    default:
      return COMMANDS.has(question.toolName) ? described(question.toolInput) || "Run a command" : visible(question.description);
  }
}

/** Claude's description of what the call does. */
function described(input: unknown): string {
  const description = isRecord(input) ? input["description"] : "";
  return typeof description === "string" ? visible(description.trim()) : "";
}

function eyebrow(question: Question): string {
  if (question.form) return "Form · MCP server";
  return question.kind === "permission" ? `Permission · ${toolTitle(visible(question.toolName))}` : "Your turn";
}

const ALLOWED: Record<string, string> = { user_question: "Answered", plan_review: "Approved" };

/** The name of whoever answered, empty if it was the user, and the client. `by` comes from the server, such as
 * `web (bob, Chrome on Linux)`; without a name, the owner of the session answered. */
export function answeredBy(by: string, sharedBy: string | null): { name: string; through: string } {
  const [, channel = "", client = ""] = /^([^ (]*)(?: \((.*)\))?$/s.exec(by) ?? [];
  const parts = client.split(", ");
  const name = visible(parts.length > 1 ? (parts.shift() as string) : (sharedBy ?? ""));
  return { name, through: visible(parts.join(", ") || (channel === "web" ? "" : channel)) };
}

/** Texts about an answer given elsewhere: a sentence, and a short form with the person's name. The short form is empty if
 * the user owns the session and gave the answer. */
export function decisionWords(question: Question, allow: boolean, by: string, sharedBy: string | null): { sentence: string; short: string } {
  const { name, through } = answeredBy(by, sharedBy);
  const verb = allow ? (ALLOWED[question.kind] ?? "Allowed") : "Denied";
  return {
    sentence: `${verb} ${name ? `by ${name}` : "elsewhere"}${through ? ` (${through})` : ""}.`,
    short: name ? `${verb.toLowerCase()} by ${name}` : "",
  };
}
