// One session: what was said and done, what happens now, the questions that wait, and the next message.

import { ApiError, get, messageOf, post, sessionPath } from "./api";
import { Composer } from "./composer";
import { button, h, replace } from "./dom";
import type { Live, Watcher } from "./live";
import { statusWord, titleOf } from "./list_view";
import { QuestionView } from "./question_view";
import { SessionMenu } from "./session_menu";
import type { Ending, TurnView } from "./turn_view";
import { TurnWindow } from "./turn_window";
import type { Answer, Item, Question, SessionDetails, SessionRow, Turn } from "./types";
import { dollars, place } from "./words";

const NEAR_END = 120;

export interface Surroundings {
  live: Live;
  /** Says something to people who do not see the screen. */
  announce(text: string): void;
  go(route: string): void;
}

export class ConversationView implements Watcher {
  readonly element: HTMLElement;
  private readonly heading = h("h1", { tabindex: -1 }, "…");
  private readonly about = h("p", { class: "about" });
  private readonly shown: TurnWindow;
  private readonly newest = button("To the newest", () => void this.toNewest(), { class: "newest", hidden: true });
  private readonly asking = h("div", { class: "asking" });
  private readonly note = h("p", { class: "note", role: "status" });
  private readonly scroller: HTMLElement;
  private readonly composer: Composer;
  private readonly menu: SessionMenu;
  private readonly questions = new Map<string, QuestionView>();
  private readonly unsubscribe: () => void;
  private closed = false;
  /** There is no such session, or none that this person may see. */
  private missing = false;
  /** It could not be read; it is read again when the server can be reached. */
  private stale = false;
  private following = true;
  /** Where the scroller was when it was last looked at. */
  private top = 0;

  constructor(private id: string, private readonly around: Surroundings, private wanted: string | null) {
    this.composer = new Composer((text, images) => this.say(text, images), () => this.interrupt());
    this.shown = new TurnWindow(() => this.id, () => this.row.directory ?? "", (item) => this.wholeItem(item),
      () => this.scroller, () => this.readEnd());
    this.menu = new SessionMenu(() => this.row, around);
    this.scroller = h("div", { class: "scroller", tabindex: 0, role: "region", aria: { label: "Conversation" }, on: { scroll: () => this.scrolled() } },
      this.shown.earlier, this.shown.element, this.shown.later, this.asking, this.note);
    this.element = h("div", { class: "conversation" },
      h("header", { class: "view-head" }, h("a", { class: "back", route: "/", aria: { label: "All sessions" } }, "‹"),
        h("div", { class: "heading" }, this.heading, this.about), this.menu.element),
      this.scroller, h("div", { class: "newest-place" }, this.newest), this.composer.element);
    this.unsubscribe = around.live.onChange(() => {
      this.drawHead();
      if (this.stale && around.live.state === "live") void this.load();
    });
  }

  private get row(): SessionRow {
    return this.around.live.rows.get(this.id) ?? { sessionId: this.id };
  }

  private get busy(): boolean {
    return this.row.status === "running" || this.row.status === "waiting_for_input";
  }

  async open(): Promise<void> {
    this.heading.focus({ preventScroll: true });
    await this.readEnd();
  }

  /** Shows the end of the conversation, and what happens from there on. */
  private async readEnd(): Promise<void> {
    const cursor = await this.load();
    if (this.closed) return;
    if (this.missing) this.around.live.follow(null, null, null);
    else this.around.live.follow(this.id, cursor, this);
  }

  close(): void {
    this.closed = true;
    this.unsubscribe();
    for (const view of this.questions.values()) view.close("");
  }

  // -- reading ------------------------------------------------------------------------------------------------------

  /** Reads the end of the conversation and the open questions; returns where the events go on. */
  private async load(): Promise<string | null> {
    try {
      const [page, details] = await Promise.all([
        this.shown.fetchEnd(),
        get<SessionDetails>(sessionPath(this.id)),
      ]);
      if (this.closed) return null;
      this.stale = false;
      this.around.live.learn([details.session]);
      this.shown.show(page);
      this.setLive();
      this.showQuestions(details.questions);
      const { error } = details;
      this.note.textContent = details.runsElsewhere ? "This session is open in another program; here it can be read." : "";
      if (error && !this.busy) this.last?.ended({ code: error.code, detail: error.message });
      this.drawHead();
      if (this.following) this.toEnd();
      return page.cursor ?? null;
    } catch (error) {
      this.note.textContent = messageOf(error);
      this.missing = error instanceof ApiError && error.status === 404;
      this.stale = !this.missing;
      return null;
    }
  }

  /** Whoever has read elsewhere goes on at the end. */
  private async toNewest(): Promise<void> {
    this.following = true;
    if (this.shown.cutEnd) {
      this.shown.clear();
      await this.readEnd();
    }
    this.toEnd();
  }

  private async wholeItem(item: Item): Promise<Item> {
    const view = this.shown.turns.find((one) => one.has(item.id)) ?? this.last;
    const path = sessionPath(this.id, "turns", String(view?.turn.number ?? 1), "items", encodeURIComponent(item.id));
    return (await get<{ item: Item }>(path)).item;
  }

  // -- turns --------------------------------------------------------------------------------------------------------

  private get last(): TurnView | undefined {
    return this.shown.last;
  }

  private setLive(): void {
    for (const view of this.shown.turns) view.setLive(this.busy && view === this.last && !view.cutEnd);
  }

  private current(): TurnView {
    return this.last ?? this.shown.put({ number: 1, items: [] });
  }

  // -- events -------------------------------------------------------------------------------------------------------

  event(name: string, data: Record<string, unknown>): void {
    const atEnd = this.following;
    // While the end is not on the page, what is added to it is not either; it is read with the end.
    if (this.shown.cutEnd && ["turn", "partial", "block", "items", "gap", "reset", "grown"].includes(name)) return;
    switch (name) {
      case "turn":
        this.beginTurn(data as unknown as Turn);
        break;
      case "partial":
        if (!data["parent"]) this.current().write(String(data["kind"]), String(data["text"]));
        break;
      case "block":
        if (!data["parent"]) this.last?.settle();
        break;
      case "items":
        for (const item of (data["items"] as Item[] | undefined) ?? []) this.putItem(item, (data["parent"] as string | null) ?? null);
        this.shown.grown(atEnd);
        this.drawNewest();
        break;
      case "question":
        void this.fetchQuestion(String(data["questionId"]));
        break;
      case "answered":
        this.answered(String(data["questionId"]), data);
        break;
      case "state":
        this.learnStatus(data["status"] as NonNullable<SessionRow["status"]>);
        break;
      case "ended":
        if (!this.shown.cutEnd) this.last?.ended(data as unknown as Ending);
        this.around.announce(data["code"] === "completed" ? "Claude has finished." : `The turn has ended: ${String(data["code"])}.`);
        break;
      case "moved":
        this.id = String(data["newSessionId"]);
        history.replaceState(null, "", `#/sessions/${this.id}`);
        break;
      case "gap":
      case "reset":
      case "grown":
        void this.load();
        break;
    }
    if (atEnd) requestAnimationFrame(() => this.following && this.toEnd());
  }

  /** Numbers in events count from the server's start, those of the transcript from the session's. */
  private beginTurn(turn: Turn): void {
    const known = this.shown.turns.some((view) => view.turn.messageId && view.turn.messageId === turn.messageId);
    if (!known) this.shown.put({ ...turn, number: (this.last?.turn.number ?? 0) + 1, items: [] });
    this.setLive();
  }

  /** The row itself comes at most twice a second; what is shown here must not lag behind. */
  private learnStatus(status: NonNullable<SessionRow["status"]>): void {
    const needs = status === "waiting_for_input" ? "question" : status === "error" ? "error" : null;
    this.around.live.learn([{ sessionId: this.id, status, needs }]);
    this.setLive();
  }

  private putItem(item: Item, parent: string | null): void {
    const view = this.shown.turns.find((one) => one.has(item.id)) ?? (parent ? this.shown.turns.find((one) => one.has(parent)) : undefined);
    if (!parent) this.last?.settle();
    (view ?? this.current()).put(item, parent);
  }

  // -- questions ----------------------------------------------------------------------------------------------------

  private async fetchQuestion(id: string): Promise<void> {
    if (this.questions.has(id)) return;
    try {
      const { question } = await get<{ question: Question }>(sessionPath(this.id, "questions", encodeURIComponent(id)));
      this.showQuestion(question);
    } catch (error) {
      // Somebody was faster, which the stream tells; anything else must be seen.
      if (!(error instanceof ApiError && error.status === 409)) this.note.textContent = messageOf(error);
    }
  }

  private showQuestions(questions: readonly Question[]): void {
    const open = new Set(questions.map((question) => question.questionId));
    for (const id of [...this.questions.keys()]) if (!open.has(id)) this.dropQuestion(id, "This question is no longer open.");
    for (const question of questions) this.showQuestion(question);
  }

  private showQuestion(question: Question): void {
    if (this.closed || this.questions.has(question.questionId)) return;
    const view = new QuestionView(question, this.row.directory ?? "", (asked, answer) => this.answer(asked, answer));
    this.questions.set(question.questionId, view);
    this.asking.append(view.element);
    this.markAsked(question, true);
    this.around.announce(question.form ? `${question.form.server} asks: ${question.form.message}` : `Claude asks: ${question.description}`);
    this.composer.setAsking(true);
    this.drawNewest();
    if (this.wanted === question.questionId) {
      this.wanted = null;
      view.focus();
      view.element.scrollIntoView({ block: "start" });
    } else if (this.following) {
      view.element.scrollIntoView({ block: "nearest" });
    }
  }

  private markAsked(question: Question, asked: boolean): void {
    const call = question.toolUseId;
    if (call) this.shown.turns.find((view) => view.has(call))?.setAsked(call, asked);
  }

  private async answer(question: Question, answer: Answer): Promise<void> {
    try {
      await post(sessionPath(this.id, "questions", encodeURIComponent(question.questionId)), answer);
      this.dropQuestion(question.questionId, "");
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "QUESTION_CLOSED")) throw error;
      this.dropQuestion(question.questionId, error.message);
    }
    this.focusNext();
  }

  /** The keyboard goes on with the next question, else with the conversation. */
  private focusNext(): void {
    const next = this.questions.values().next().value;
    if (next !== undefined) next.focus();
    else if (matchMedia("(pointer: fine)").matches) this.composer.focus();
    else this.heading.focus({ preventScroll: true }); // a keyboard that slides in would hide what happens next
  }

  private answered(id: string, data: Record<string, unknown>): void {
    const decision = data["allow"] === true ? "allowed" : data["allow"] === false ? "denied" : String(data["closure"]);
    const by = data["by"] ? ` by ${String(data["by"])}` : "";
    this.dropQuestion(id, data["closure"] === "answered" ? `Answered${by}: ${decision}.` : `The question was ${String(data["closure"])}${by}.`);
  }

  private dropQuestion(id: string, why: string): void {
    const view = this.questions.get(id);
    if (view === undefined) return;
    this.questions.delete(id);
    this.markAsked(view.question, false);
    view.close(why);
    if (!why) view.element.remove();
    else {
      this.around.announce(why);
      setTimeout(() => view.element.remove(), 8000);
    }
    this.composer.setAsking(this.questions.size > 0);
    this.drawNewest();
  }

  // -- acts ---------------------------------------------------------------------------------------------------------

  private async say(message: string, images: string[]): Promise<void> {
    const body = images.length ? { message, images } : { message };
    const answer = await post<{ sessionId: string }>(sessionPath(this.id, "messages"), body);
    this.following = true;
    if (this.shown.cutEnd) await this.toNewest();
    const stored = !this.row.inMemory;
    if (answer.sessionId !== this.id) this.around.go(`/sessions/${answer.sessionId}`);
    else if (stored) await this.open();
  }

  private async interrupt(): Promise<void> {
    await post(sessionPath(this.id, "interrupt"));
  }

  // -- drawing ------------------------------------------------------------------------------------------------------

  private drawHead(): void {
    const { row } = this;
    this.heading.textContent = titleOf(row);
    const status = statusWord(row);
    replace(this.about,
      status && h("span", { class: "badge", data: { status: row.needs ?? row.status ?? "" } }, status), " ",
      h("span", { title: row.directory ?? undefined }, place(row.directory)),
      row.branch && ` · ${row.branch}`, row.model && ` · ${row.model}`, dollars(row.costUsd) && ` · ${dollars(row.costUsd)}`,
      row.queued && ` · ${row.queued}`, row.retrying && ` · ${row.retrying}`);
    this.composer.setBusy(this.busy);
    this.setLive();
  }

  /** Who scrolls up no longer follows, and who comes to the end does again. More may have come below meanwhile: that
   * the end is far does not mean that somebody has left it. */
  private scrolled(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.following = !this.shown.cutEnd && (atEnd || (this.following && scrollTop >= this.top));
    this.top = scrollTop;
    this.shown.scrolled();
    this.drawNewest();
  }

  /** It never covers the answers to a question. */
  private drawNewest(): void {
    this.newest.hidden = this.following || this.questions.size > 0;
  }

  private toEnd(): void {
    if (this.questions.size) return;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
  }
}
