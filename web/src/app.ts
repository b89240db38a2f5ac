// The app inside an MCP client: one session, live, with its questions. It calls the tools that the model has too.

import { signal } from "@preact/signals";
import { h, replace } from "./dom";
import { Host, type ToolResult } from "./host";
import { markdown } from "./markdown";
import { QuestionList, Questions } from "./questions";
import { mount } from "./ui";
import { question, type PendingInput, type Report } from "./report";
import type { Answer, Question } from "./types";
import { dollars, visible } from "./words";

const WAIT_SECONDS = 20;
const PAUSE = 3000;
const MAX_LINES = 2000;
const CALL = /^\[(tool|ok|failed|denied)\] /;
const STATUS_WORDS: Record<string, string> = {
  running: "working", waiting_for_input: "asks", completed: "done", error: "failed", limit_reached: "usage limit", interrupted: "interrupted", cancelled: "ended",
};

class SessionApp {
  private readonly title = h("h1", null, "Claude Code");
  private readonly badge = h("span", { class: "badge" });
  private readonly output = h("div", { class: "said" });
  private readonly asking = h("div", { class: "asking" });
  private readonly note = h("p", { class: "problem", role: "alert", hidden: true });
  private readonly spoken = h("p", { class: "spoken", role: "status" });
  private readonly questions = new Questions();
  private readonly host: Host;
  private lines: string[] = [];
  private sessionId: string | null = null;
  private cursor = "0";
  private following = false;
  private ended = false;

  constructor() {
    document.body.replaceChildren(h("main", { class: "app" },
      h("header", null, this.title, " ", this.badge), this.output, this.asking, this.note, this.spoken));
    mount(QuestionList, { questions: this.questions, directory: () => "", owner: signal(null), send: (asked, answer) => this.answer(asked, answer) }, this.asking);
    this.host = new Host({
      input: (given) => this.begin(given["sessionId"]),
      result: (result) => this.take(result),
      teardown: () => (this.ended = true),
    });
    document.addEventListener("click", (event) => this.openLink(event));
    void this.host.connect("1").catch((error: unknown) => this.complain(error));
  }

  private openLink(event: MouseEvent): void {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (link === null) return;
    event.preventDefault();
    this.host.openLink(link.href);
  }

  private begin(sessionId: unknown): void {
    if (typeof sessionId !== "string" || this.following) return;
    this.sessionId = sessionId;
    this.following = true;
    void this.follow();
  }

  /** The result of the call that opened the app: it names the session, and has its state without asking. */
  private take(result: ToolResult): void {
    const report = (result.structuredContent ?? {}) as Report;
    if (report.sessionId === undefined) {
      const text = result.content?.find((block) => block.type === "text")?.text;
      if (text) replace(this.output, markdown(text));
      return;
    }
    this.show({ ...report, recentOutput: [] });
    if (!this.following && !report.recentOutput?.length && report.result && report.status !== "running") {
      replace(this.output, markdown(report.result));
    }
    this.begin(report.sessionId);
  }

  // -- following ----------------------------------------------------------------------------------------------------

  private async follow(): Promise<void> {
    let wait = 0;
    while (!this.ended) {
      try {
        const report = await this.status({ cursor: this.cursor, waitSeconds: wait, anyChange: true });
        this.note.hidden = true;
        await this.update(report);
        const busy = report.status === "running" || report.status === "waiting_for_input";
        wait = report.hasMore ? 0 : WAIT_SECONDS;
        // A session at rest is looked at now and then: somebody may send it a message from elsewhere.
        if (!busy && !report.hasMore) await pause(PAUSE);
      } catch (error) {
        this.complain(error);
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
      // Nobody decides on a part: what was shortened is read whole first.
      const shown = this.questions.find(pending.inputId) !== undefined;
      if (cut.has(pending.inputId) && !shown) pending.toolInput = await this.wholeInput(pending.inputId);
    }
    this.show(report);
    // Last: if a question is answered while it is read, that fails, and what this report says is asked for again.
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
    const status = report.status ?? "running";
    this.badge.textContent = [STATUS_WORDS[status] ?? status, dollars(report.costUsd)].filter(Boolean).join(" · ");
    this.badge.dataset["status"] = status === "waiting_for_input" ? "question" : status;
    if (report.recentOutput?.length) {
      this.lines = [...this.lines, ...report.recentOutput].slice(-MAX_LINES);
      this.output.replaceChildren(...blocks(this.lines));
    }
    if (report.pendingInputs !== undefined) this.showQuestions(report.pendingInputs);
    if (report.error && status !== "running") this.complain(new Error(report.error.message));
  }

  private showQuestions(pending: readonly PendingInput[]): void {
    const open = new Set(pending.map((one) => one.inputId));
    for (const { question: { questionId } } of this.questions.open) if (!open.has(questionId)) this.questions.drop(questionId, "");
    for (const one of pending) {
      if (this.questions.find(one.inputId) || this.sessionId === null) continue;
      this.questions.show(question(this.sessionId, one), false);
      this.spoken.textContent = `Claude asks: ${one.description}`;
    }
  }

  private async answer(asked: Question, answer: Answer): Promise<void> {
    const result = await this.host.callTool("claude_respond", { sessionId: this.sessionId, inputId: asked.questionId, ...answer });
    if (result.isError) throw new Error(result.content?.[0]?.text ?? "The answer was not accepted.");
    this.questions.drop(asked.questionId, "");
  }

  private complain(error: unknown): void {
    this.note.textContent = error instanceof Error ? error.message : String(error);
    this.note.hidden = false;
  }
}

/** Lines of output: text as Markdown, each call as a row that shows its outcome as soon as there is one. */
function blocks(lines: readonly string[]): Node[] {
  const nodes: Node[] = [];
  const open: { about: string; row: HTMLElement }[] = [];
  let text: string[] = [];
  const flush = (): void => {
    if (text.length) nodes.push(h("div", { class: "markdown" }, markdown(text.join("\n"))));
    text = [];
  };
  for (const line of lines) {
    const [mark, kind] = CALL.exec(line) ?? [];
    if (mark === undefined || kind === undefined) {
      text.push(line);
      continue;
    }
    flush();
    const about = line.slice(mark.length);
    const begun = kind === "tool" ? -1 : open.findIndex((call) => about.startsWith(call.about));
    const row = begun < 0 ? h("p", { class: "step" }) : (open.splice(begun, 1)[0]?.row as HTMLElement);
    row.dataset["status"] = kind;
    row.textContent = visible(about);
    if (begun < 0) nodes.push(row);
    if (kind === "tool") open.push({ about, row });
  }
  flush();
  return nodes;
}

function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

new SessionApp();
