// The app inside an MCP client: one session, live, with its questions. It calls the same tools as the model.

import { signal } from "@preact/signals";
import { render, type VNode } from "preact";
import { messageOf } from "./api";
import { Host, type ToolResult } from "./host";
import { Markdown } from "./markdown";
import { QuestionList, Questions } from "./questions";
import { question, type PendingInput, type Report } from "./report";
import { STATUS_WORDS } from "./sessions";
import type { Answer, Question } from "./types";
import { Problem } from "./ui";
import { dollars, visible } from "./words";

const WAIT_SECONDS = 20;
const PAUSE = 3000;
const MAX_LINES = 2000;
const CALL = /^\[(tool|ok|failed|denied)\] /;
const NO_OWNER = signal<string | null>(null);

/** The session that the app shows. It is followed with tool calls. */
class SessionApp {
  readonly report = signal<Report>({});
  readonly output = signal<readonly Part[]>([]);
  readonly problem = signal("");
  readonly spoken = signal("");
  readonly questions = new Questions();
  readonly host: Host;
  private lines: string[] = [];
  private sessionId: string | null = null;
  private cursor = "0";
  private following = false;
  private ended = false;

  constructor() {
    this.host = new Host({
      input: (given) => this.begin(given["sessionId"]),
      result: (result) => this.take(result),
      teardown: () => (this.ended = true),
    });
    void this.host.connect("1").catch((error: unknown) => this.showProblem(error));
  }

  private begin(sessionId: unknown): void {
    if (typeof sessionId !== "string" || this.following) return;
    this.sessionId = sessionId;
    this.following = true;
    void this.follow();
  }

  /** Shows the result of the call that opened the app: it names the session and already contains its state. */
  private take(result: ToolResult): void {
    const report = (result.structuredContent ?? {}) as Report;
    if (report.sessionId === undefined) {
      const text = result.content?.find((block) => block.type === "text")?.text;
      if (text) this.output.value = [{ kind: "text", text }];
      return;
    }
    // Without its questions: long inputs are shortened there. `update` shows them in full.
    const { pendingInputs: _, ...shown } = report;
    this.show({ ...shown, recentOutput: [] });
    if (!this.following && !report.recentOutput?.length && report.result && report.status !== "running") {
      this.output.value = [{ kind: "text", text: report.result }];
    }
    this.begin(report.sessionId);
  }

  // -- following ----------------------------------------------------------------------------------------------------

  private async follow(): Promise<void> {
    let wait = 0;
    while (!this.ended) {
      try {
        const report = await this.status({ cursor: this.cursor, waitSeconds: wait, anyChange: true });
        this.problem.value = "";
        await this.update(report);
        const busy = report.status === "running" || report.status === "waiting_for_input";
        wait = report.hasMore ? 0 : WAIT_SECONDS;
        // An idle session is still polled now and then: another client may send it a message.
        if (!busy && !report.hasMore) await pause(PAUSE);
      } catch (error) {
        this.showProblem(error);
        await pause(PAUSE);
      }
    }
  }

  private async status(given: Record<string, unknown>): Promise<Report> {
    const result = await this.host.callTool("claude_get_status", { sessionId: this.sessionId, ...given });
    if (result.isError) throw new Error(result.content?.[0]?.text ?? "The session cannot be read.");
    return (result.structuredContent ?? {}) as Report;
  }

  private async update(report: Report): Promise<void> {
    const cut = new Set((report.truncated ?? []).map((one) => one.part));
    for (const pending of report.pendingInputs ?? []) {
      // The user needs the complete input to decide: fetch it first if the report has only a part.
      const shown = this.questions.find(pending.inputId) !== undefined;
      if (cut.has(pending.inputId) && !shown) pending.toolInput = await this.wholeInput(pending.inputId);
    }
    this.show(report);
    // Last: if a question is answered while its input is fetched, the fetch fails, and this report is requested again.
    this.cursor = report.nextCursor ?? this.cursor;
  }

  private async wholeInput(part: string): Promise<Record<string, unknown>> {
    let text = "";
    let offset: number | null | undefined = 0;
    while (offset !== null && offset !== undefined) {
      const page: Report["part"] = (await this.status({ part, offset })).part;
      text += page?.text ?? "";
      offset = page?.nextOffset;
    }
    return JSON.parse(text) as Record<string, unknown>;
  }

  // -- showing ------------------------------------------------------------------------------------------------------

  private show(report: Report): void {
    this.report.value = report;
    if (report.recentOutput?.length) {
      this.lines = [...this.lines, ...report.recentOutput].slice(-MAX_LINES);
      this.output.value = partsOf(this.lines);
    }
    if (report.pendingInputs !== undefined) this.showQuestions(report.pendingInputs);
    if (report.error && report.status !== "running") this.showProblem(new Error(report.error.message));
  }

  private showQuestions(pending: readonly PendingInput[]): void {
    const open = new Set(pending.map((one) => one.inputId));
    for (const { question: { questionId } } of this.questions.open) if (!open.has(questionId)) this.questions.drop(questionId, "");
    for (const one of pending) {
      if (this.questions.find(one.inputId) || this.sessionId === null) continue;
      this.questions.show(question(this.sessionId, one), false);
      this.spoken.value = `Claude asks: ${one.description}`;
    }
  }

  async answer(asked: Question, answer: Answer): Promise<void> {
    const result = await this.host.callTool("claude_respond", { sessionId: this.sessionId, inputId: asked.questionId, ...answer });
    if (result.isError) throw new Error(result.content?.[0]?.text ?? "The answer was not accepted.");
    this.questions.drop(asked.questionId, "");
  }

  private showProblem(error: unknown): void {
    this.problem.value = messageOf(error);
  }
}

/** Text as Markdown, or a tool call, with its outcome once there is one. */
type Part = { kind: "text"; text: string } | { kind: "tool" | "ok" | "failed" | "denied"; text: string };

/** Groups lines of output into parts. */
function partsOf(lines: readonly string[]): Part[] {
  const parts: Part[] = [];
  const open: Part[] = [];
  let text: string[] = [];
  const flush = (): void => {
    if (text.length) parts.push({ kind: "text", text: text.join("\n") });
    text = [];
  };
  for (const line of lines) {
    const found = CALL.exec(line);
    if (found === null) {
      text.push(line);
      continue;
    }
    flush();
    const call = { kind: found[1], text: line.slice(found[0].length) } as Part;
    const begun = call.kind === "tool" ? -1 : open.findIndex((one) => call.text.startsWith(one.text));
    if (begun >= 0) Object.assign(open.splice(begun, 1)[0] as Part, call);
    else parts.push(call);
    if (call.kind === "tool") open.push(call);
  }
  flush();
  return parts;
}

function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function App({ app }: { app: SessionApp }): VNode {
  const { status = "running", costUsd } = app.report.value;
  return (
    <main class="app">
      <header>
        <h1>Claude Code</h1>{" "}
        <span class="badge" data-status={status === "waiting_for_input" ? "question" : status}>{[STATUS_WORDS[status] ?? status, dollars(costUsd)].filter(Boolean).join(" · ")}</span>
      </header>
      <div class="said">
        {app.output.value.map((part, at) => (part.kind === "text" ? <Markdown key={at} text={part.text} /> : <p key={at} class="step" data-status={part.kind}>{visible(part.text)}</p>))}
      </div>
      <div class="asking"><QuestionList questions={app.questions} directory={() => ""} owner={NO_OWNER} send={(asked, answer) => app.answer(asked, answer)} /></div>
      <Problem>{app.problem.value}</Problem>
      <p class="spoken" role="status">{app.spoken.value}</p>
    </main>
  );
}

const app = new SessionApp();
document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (link === null) return;
  event.preventDefault();
  app.host.openLink(link.href);
});
document.body.replaceChildren();
render(<App app={app} />, document.body);
