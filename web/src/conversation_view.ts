// One session: what was said and done, what happens now, the questions that wait, and the next message.

import { ApiError, get, messageOf, post, send, sessionPath } from "./api";
import { signal } from "@preact/signals";
import { createElement } from "preact";
import { Activity, type Doing } from "./activity";
import { agentRoute } from "./agent_view";
import { dataOf, splitFiles, started, type Attachment } from "./attachments";
import { Comments } from "./comments";
import { Composer, ComposerBox, type Outgoing } from "./composer";
import { forgetSent, freshKey, noteSent, sentOf } from "./drafts";
import { button, h, replace } from "./dom";
import { Find, FindBar } from "./find";
import type { Live, Watcher } from "./live";
import { GONE, GoneNotice } from "./machines";
import { planWords } from "./limits";
import { isWatched, statusWord, titleOf } from "./sessions";
import { NeedsPill } from "./list";
import { decisionWords } from "./question";
import { QuestionList, Questions } from "./questions";
import { notable, Notices } from "./notices";
import { mount } from "./ui";
import { Queue, QueueList, type QueuedMessage } from "./queue";
import { ModeAndModel, SessionMenu } from "./menu";
import { ContextRing, TodoList, Todos } from "./todo";
import type { Ending, TurnView } from "./turn_view";
import { TurnWindow } from "./turn_window";
import type { Answer, Item, Question, SessionDetails, SessionRow, Turn } from "./types";
import { costOf, place, visible } from "./words";

const NEAR_END = 120;
const UNSURE = "The server cannot be reached, so it is not known whether this was sent. Sending it again is safe: it is delivered only once.";
const TASK_TOOLS = new Set(["TodoWrite", "TaskCreate", "TaskUpdate"]);

export interface Surroundings {
  live: Live;
  /** Says something to people who do not see the screen. */
  announce(text: string): void;
  go(route: string): void;
  /** What the tab is called beside the number of those who wait. */
  name(title: string): void;
  modes: readonly string[];
}

export class ConversationView implements Watcher {
  readonly element: HTMLElement;
  private readonly heading = h("h1", { tabindex: -1, dir: "auto" }, "…");
  private readonly about = h("p", { class: "about" });
  private readonly context = h("span", null);
  private readonly shown: TurnWindow;
  private readonly newest = button("Jump to the end", () => void this.toNewest(), { class: "newest", hidden: true });
  private readonly changes = h("a", { class: "quiet changes-link" }, "Changes");
  private readonly asking = h("div", { class: "asking" });
  private readonly todo = new TodoList();
  private readonly find = new Find(() => this.id, (turn, itemId) => this.jump(turn, itemId));
  private readonly finding = h("div", { class: "place" });
  private readonly queue = new Queue();
  private readonly waiting = h("div", { class: "place" });
  private readonly tasks = h("div", { class: "place" });
  private readonly pill = h("div", { class: "pill-place" });
  private readonly writing = h("div", { class: "place" });
  private readonly doing = signal<Doing>({ what: "", since: 0 });
  private readonly activity = h("div", { class: "place" });
  private readonly notices = h("div", { class: "notices" });
  /** In place of the next message, for who may only watch. */
  private readonly watching = h("p", { class: "watching hint" });
  private readonly calls = new Map<string, Item>();
  /** What went with messages that are queued, while this page is open. */
  private readonly attached = new Map<string, readonly Attachment[]>();
  private readonly note = h("p", { class: "note", role: "status" });
  private readonly scroller: HTMLElement;
  private readonly composer: Composer;
  private readonly comments: Comments;
  private readonly menu = h("div", { class: "place" });
  private readonly questions = new Questions();
  /** Questions that are being answered here: what the stream tells of them is not news. */
  private readonly answering = new Set<string>();
  /** Whose session it is, if this person may only watch it. */
  private readonly owner = signal<string | null>(null);
  private readonly rowShown = signal<SessionRow>({ sessionId: "" });
  private readonly unmount: (() => void)[] = [];
  private readonly unsubscribe: () => void;
  /** The room for the conversation changes: who reads its end goes on to do so. */
  private readonly resized: ResizeObserver;
  private closed = false;
  /** There is no such session, or none that this person may see. */
  private missing = false;
  /** It could not be read; it is read again when the server can be reached. */
  private stale = false;
  /** The machine that has it, while that is gone. */
  private lostMachine: string | null = null;
  private readonly away = h("div", null);
  private notGone: (() => void) | null = null;
  private looking = false;
  /** Whether the server could not be reached when that was looked at last. */
  private wasLost = false;
  /** It had no transcript when it was read. */
  private unwritten = false;
  private following = true;
  /** Where the scroller was when it was last looked at. */
  private top = 0;

  /** `wanted` is a question that is to be shown, `sought` a text. */
  constructor(private id: string, private readonly around: Surroundings, private wanted: string | null, private readonly sought: string | null = null) {
    this.comments = new Comments(id, (text, key) => this.sayPlain(text, key), () => isWatched(this.row));
    this.composer = new Composer({ scope: () => this.id, completes: () => this.id, unsure: UNSURE, say: (message) => this.say(message) });
    this.shown = new TurnWindow(() => this.id, () => this.row.directory ?? "", {
      whole: (item) => this.wholeItem(item), margin: (file) => this.comments.margin(file), agentRoute: (agent) => agentRoute(this.id, agent),
    }, () => this.scroller, () => this.readEnd(), {
        image: (turn, number) => this.image(turn, number),
        edit: (turn) => this.rewrite(turn),
        again: (turn, begun) => this.tryAgain(turn, begun),
        sent: (messageId) => (messageId === started.messageId ? started.data : dataOf(this.attached.get(messageId) ?? [])),
      });
    this.scroller = h("div", { class: "scroller", tabindex: 0, role: "region", aria: { label: "Conversation" }, on: { scroll: () => this.scrolled() } },
      this.shown.earlier, this.shown.element, this.shown.later, this.away, this.notices, this.asking, this.waiting, this.note);
    this.element = h("div", { class: "conversation" },
      h("header", { class: "view-head" }, h("a", { class: "back", route: "/", aria: { label: "All sessions" } }, "‹"),
        h("div", { class: "heading" }, this.heading, this.about), this.pill, this.changes,
        button("", () => this.find.toggle(), { class: "quiet find-open", aria: { label: "Find in this conversation" } }), this.menu),
      this.finding,
      this.tasks, this.scroller, h("div", { class: "newest-place" }, this.newest), this.comments.element, this.activity, this.watching, this.writing);
    this.unmount.push(
      mount(ContextRing, { row: this.rowShown }, this.context),
      mount(FindBar, { find: this.find }, this.finding),
      mount(Todos, { list: this.todo }, this.tasks),
      mount(QueueList, { queue: this.queue, acts: {
    withdraw: (message) => this.withdraw(message),
    edit: (message) => this.putBack([message]),
    resend: (message) => void this.resend(message),
    discard: (message) => this.taken(message.messageId),
      } }, this.waiting),
      mount(Activity, { live: around.live, row: this.rowShown, doing: this.doing }, this.activity),
      mount(SessionMenu, { row: this.rowShown, around, moved: (id, words) => void this.goneOn(id, words), jump: (turn) => void this.jump(turn, null) }, this.menu),
      mount(ComposerBox, { children: createElement(ModeAndModel, { row: this.rowShown, around }), composer: this.composer, label: "Message", placeholder: "Message Claude", send: "Send", stop: () => this.interrupt() }, this.writing),
      mount(NeedsPill, { live: around.live, except: id }, this.pill),
      mount(QuestionList, { questions: this.questions, directory: () => this.row.directory ?? "", owner: this.owner,
        send: (asked, answer) => this.answer(asked, answer) }, this.asking),
      mount(Notices, { row: this.rowShown, say: (text) => this.sayPlain(text, freshKey()) }, this.notices));
    this.resized = new ResizeObserver(() => this.following && this.toEnd());
    this.resized.observe(this.scroller);
    this.unsubscribe = around.live.onChange(() => {
      this.drawHead();
      const live = around.live.state === "live";
      if (live && this.wasLost) this.composer.reachable();
      this.wasLost = !live;
      if (this.stale && around.live.state === "live") void this.load();
      this.lookForMachine();
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
    if (this.sought !== null && !this.missing && !this.closed) await this.find.seek(this.sought);
  }

  /** Shows the end of the conversation, and what happens from there on. */
  private async readEnd(): Promise<void> {
    const cursor = await this.load();
    if (this.closed) return;
    if (this.missing || this.lostMachine !== null) this.around.live.follow(null, null, null);
    else this.around.live.follow(this.id, cursor, this);
  }

  close(): void {
    this.closed = true;
    this.composer.close();
    this.resized.disconnect();
    this.unsubscribe();
    for (const take of this.unmount) take();
    this.notGone?.();
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
      this.setLostMachine(null);
      this.around.live.learn([details.session]);
      this.unwritten = page.total === 0;
      this.shown.show(page);
      for (const turn of page.turns) for (const item of turn.items) this.todo.take(item);
      this.setLive();
      this.showQuestions(details.questions);
      await this.showQueue(details.queuedMessages ?? []);
      const { error } = details;
      this.note.textContent = details.runsElsewhere ? "This session is open in another program and is read-only here." : "";
      if (error && !this.busy) this.last?.ended({ code: error.code, detail: error.message });
      this.drawHead();
      if (this.following) this.toEnd();
      return page.cursor ?? null;
    } catch (error) {
      this.note.textContent = messageOf(error);
      this.missing = error instanceof ApiError && error.status === 404;
      const lost = error instanceof ApiError && error.code === GONE;
      this.stale = !this.missing && !lost;
      if (this.missing) this.showMissing();
      if (lost) this.setLostMachine(String(error.body["machine"] ?? ""));
      return null;
    }
  }

  /** A copy of a session has its history on disk only after its first turn. */
  private async readHistory(): Promise<void> {
    this.unwritten = false;
    const page = await this.shown.fetchEnd().catch(() => null); // what has happened here is on the page in any case
    if (page === null || this.closed || page.total <= this.shown.turns.length) return;
    this.shown.clear();
    this.shown.show(page);
    this.setLive();
    if (this.following) this.toEnd();
  }

  /** Shows the place where something was found. */
  async jump(turn: number, itemId: string | null): Promise<void> {
    this.following = false;
    await this.shown.jump(turn, itemId);
    this.drawNewest();
  }

  /** A session goes with its machine, and is read again when that is back. */
  private lookForMachine(): void {
    const machine = this.around.live.machines.find(({ id }) => id === (this.lostMachine || this.row.machineId));
    if (machine === undefined || this.looking || machine.there === (this.lostMachine === null)) return;
    this.looking = true;
    void this.readEnd().finally(() => (this.looking = false));
  }

  /** What there is to be done while the machine of the session is gone. */
  private setLostMachine(machine: string | null): void {
    this.lostMachine = machine;
    this.notGone?.();
    this.notGone = machine === null ? null : mount(GoneNotice, { id: this.id, lost: machine, machines: this.around.live.machines,
      moved: ({ sessionId, message, notices }) => void this.goneOn(sessionId, [message, ...(notices ?? [])].join(" ")),
      fail: (error) => (this.note.textContent = messageOf(error)) }, this.away);
    if (machine !== null) this.note.textContent = "";
  }

  /** Another machine has the session: everything of it is read there. */
  private async goneOn(id: string, words: string): Promise<void> {
    if (id !== this.id) return this.around.go(`/sessions/${encodeURIComponent(id)}`);
    await this.readEnd();
    this.note.textContent = words;
  }

  /** There is nobody here to write to, and nothing to be done. */
  private showMissing(): void {
    this.heading.textContent = "Not found";
    replace(this.note, "There is no such session, or it is not yours. ", h("a", { route: "/" }, "All sessions"));
    this.element.classList.add("missing");
    this.composer.hidden.value = true;
    this.menu.replaceChildren();
    this.changes.hidden = true;
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

  private async image(turn: number, number: number): Promise<string> {
    return (await get<{ image: string }>(sessionPath(this.id, "turns", String(turn), "images", String(number)))).image;
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
        this.doing.value = { what: "", since: Date.parse(String(data["at"] ?? "")) || Date.now() };
        this.beginTurn(data as unknown as Turn);
        break;
      case "partial":
        if (!data["parent"]) this.current().write(String(data["kind"]), String(data["text"]));
        this.does(data["kind"] === "thinking" ? "Thinking" : data["kind"] === "text" ? "Writing" : "");
        break;
      case "block":
        if (!data["parent"]) this.last?.settle();
        break;
      case "items":
        for (const item of (data["items"] as Item[] | undefined) ?? []) {
          this.putItem(item, (data["parent"] as string | null) ?? null);
          if (item.kind === "tool" && !data["parent"]) this.does(item.status ? "Thinking" : (item.description ?? ""));
        }
        this.shown.grown(atEnd);
        this.drawNewest();
        break;
      case "agent":
        this.shown.turns.find((one) => one.has(String(data["call"])))?.setAgent(String(data["call"]), String(data["agent"]));
        break;
      case "queued":
        this.queue.add(data as unknown as QueuedMessage);
        break;
      case "dropped":
        this.queue.remove(String(data["messageId"]));
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
        if (this.unwritten) void this.readHistory();
        this.around.announce(data["code"] === "completed" ? "Claude has finished." : `The turn has ended: ${String(data["code"])}.`);
        break;
      case "limit":
        this.around.live.learn([{ sessionId: this.id, limit: (data["limit"] ?? null) as NonNullable<SessionRow["limit"]> | null }]);
        break;
      case "budget":
        if (!this.shown.cutEnd) this.last?.warned(String(data["warning"]));
        this.around.announce(String(data["warning"]));
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

  private does(what: string): void {
    if (what && what !== this.doing.peek().what) this.doing.value = { ...this.doing.peek(), what: visible(what) };
  }

  /** Numbers in events count from the server's start, those of the transcript from the session's. */
  private beginTurn(turn: Turn): void {
    const known = this.shown.turns.some((view) => view.turn.messageId && view.turn.messageId === turn.messageId);
    if (!known) this.shown.put({ ...turn, number: (this.last?.turn.number ?? 0) + 1, items: [] });
    if (turn.messageId) this.taken(turn.messageId);
    this.setLive();
  }

  /** The row itself comes at most twice a second; what is shown here must not lag behind. */
  private learnStatus(status: NonNullable<SessionRow["status"]>): void {
    // Only a row takes back that nobody answered: of a turn that is told again, the states before that come again too.
    const missed = this.row.unanswered ? "unanswered" : null;
    const limited = status === "limit_reached" && !this.row.limit?.continuesAt ? "limit" : missed;
    const needs = status === "waiting_for_input" ? "question" : status === "error" ? "error" : limited;
    this.around.live.learn([{ sessionId: this.id, status, needs }]);
    this.setLive();
  }

  /** The result of a call comes without the call, which the list of tasks needs. */
  private seen(item: Item): void {
    if (item.kind !== "tool") return;
    const whole = { ...this.calls.get(item.id), ...Object.fromEntries(Object.entries(item).filter(([, value]) => value)) } as Item;
    if (TASK_TOOLS.has(whole.name ?? "")) {
      this.calls.set(item.id, whole);
      this.todo.take(whole);
    }
  }

  private putItem(item: Item, parent: string | null): void {
    const view = this.shown.turns.find((one) => one.has(item.id)) ?? (parent ? this.shown.turns.find((one) => one.has(parent)) : undefined);
    if (!parent) {
      this.last?.settle();
      this.seen(item);
    }
    if (item.kind === "message") this.taken(item.id.replace(/:\d+$/, ""));
    (view ?? this.current()).put(item, parent);
  }

  // -- messages that wait -------------------------------------------------------------------------------------------

  /** Those that the server has, and those of this browser of which nothing came: the server ended before. */
  private async showQueue(queued: readonly QueuedMessage[]): Promise<void> {
    const lost: QueuedMessage[] = [];
    for (const message of sentOf(this.id)) {
      if (queued.some((one) => one.messageId === message.messageId)) continue;
      try {
        const { state } = await get<{ state: string }>(sessionPath(this.id, "messages", message.messageId));
        if (state === "taken") forgetSent(this.id, message.messageId);
        else if (state !== "queued") lost.push({ ...message, lost: true });
      } catch {
        // It is looked for again when the conversation is read again.
      }
    }
    if (!this.closed) this.queue.set([...lost, ...queued]);
  }

  /** A message is in the conversation, or is not wanted any more. */
  private taken(messageId: string): void {
    forgetSent(this.id, messageId);
    this.attached.delete(messageId);
    this.queue.remove(messageId);
  }

  private async withdraw(message: QueuedMessage): Promise<boolean> {
    const path = sessionPath(this.id, "messages", encodeURIComponent(message.messageId));
    const { withdrawn } = await send<{ withdrawn: boolean }>("DELETE", path);
    if (withdrawn) {
      forgetSent(this.id, message.messageId);
      this.queue.remove(message.messageId);
    }
    return withdrawn;
  }

  private putBack(messages: readonly QueuedMessage[]): void {
    const texts = messages.map((message) => splitFiles(message.text));
    const files = texts.flatMap((text) => text.files.map(({ name, text: content }) => ({ name, text: content, bytes: content.length })));
    const pictures = messages.flatMap((message) => (this.attached.get(message.messageId) ?? []).filter((one) => dataOf([one]).length));
    this.composer.putBack(texts.map(({ text }) => text), [...pictures, ...files]);
    for (const message of messages) this.taken(message.messageId);
    this.composer.focus();
  }

  private async resend(message: QueuedMessage): Promise<void> {
    try {
      await this.sayPlain(message.text, freshKey());
      this.taken(message.messageId);
    } catch (error) {
      this.note.textContent = messageOf(error);
    }
  }

  // -- questions ----------------------------------------------------------------------------------------------------

  private async fetchQuestion(id: string): Promise<void> {
    if (this.questions.find(id)) return;
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
    for (const { question } of this.questions.open) if (!open.has(question.questionId)) this.dropQuestion(question.questionId, "This question is no longer open.");
    for (const question of questions) this.showQuestion(question);
  }

  private showQuestion(question: Question): void {
    if (this.closed || this.questions.find(question.questionId)) return;
    const wanted = this.wanted === question.questionId;
    if (wanted) this.wanted = null;
    const reads = this.following && !this.questions.open.length;
    this.questions.show(question, wanted);
    this.markAsked(question, true);
    this.around.announce(question.form ? `${question.form.server} asks: ${question.form.message}` : `Claude asks: ${question.description}`);
    this.composer.asking.value = true;
    this.drawNewest();
    if (reads && !wanted) requestAnimationFrame(() => this.asking.querySelector(`[data-question="${CSS.escape(question.questionId)}"]`)?.scrollIntoView({ block: "nearest" }));
  }

  private markAsked(question: Question, asked: boolean): void {
    const call = question.toolUseId;
    if (call) this.shown.turns.find((view) => view.has(call))?.setAsked(call, asked);
  }

  private async answer(question: Question, answer: Answer): Promise<void> {
    const { questionId } = question;
    // The stream may tell of this answer before its reply comes.
    this.answering.add(questionId);
    try {
      await post(sessionPath(this.id, "questions", encodeURIComponent(questionId)), answer);
      this.dropQuestion(questionId, "");
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "QUESTION_CLOSED")) throw error;
      this.dropQuestion(questionId, error.message);
    } finally {
      this.answering.delete(questionId);
    }
    this.focusNext();
  }

  /** The keyboard goes on with the next question, else with the conversation. */
  private focusNext(): void {
    const [next] = this.questions.open;
    if (next !== undefined) next.wanted.value = true;
    else if (matchMedia("(pointer: fine)").matches) this.composer.focus();
    else this.heading.focus({ preventScroll: true }); // a keyboard that slides in would hide what happens next
  }

  private answered(id: string, data: Record<string, unknown>): void {
    const question = this.questions.find(id)?.question;
    if (question === undefined || this.answering.has(id)) return;
    // That nobody answered stays on the page, with the reason.
    if (data["closure"] !== "answered") return this.dropQuestion(id, data["closure"] === "expired" ? "" : "Claude has withdrawn the question.");
    const { sentence, short } = decisionWords(question, data["allow"] === true, String(data["by"] ?? ""), this.row.sharedBy ?? null);
    if (short) this.shown.turns.find((view) => view.has(question.toolUseId ?? ""))?.setDecided(question.toolUseId ?? "", short);
    this.dropQuestion(id, sentence);
  }

  private dropQuestion(id: string, why: string): void {
    const asked = this.questions.find(id);
    if (asked === undefined) return;
    this.markAsked(asked.question, false);
    this.questions.drop(id, why);
    if (why) this.around.announce(why);
    this.composer.asking.value = this.questions.open.length > 0;
    this.drawNewest();
  }

  // -- acts ---------------------------------------------------------------------------------------------------------

  private sayPlain(text: string, key: string): Promise<void> {
    return this.say({ text, images: [], key, attachments: [] });
  }

  private async say({ text, images, key, attachments }: Outgoing): Promise<void> {
    const body = { message: text, messageKey: key, ...(images.length ? { images } : {}) };
    const answer = await post<{ sessionId: string; messageId: string; notices?: string[] }>(sessionPath(this.id, "messages"), body);
    // Unless it is in the conversation already: the stream may be faster than the answer.
    const turn = this.shown.turns.find((view) => view.turn.messageId === answer.messageId);
    if (turn !== undefined) turn.setSent(images);
    else if (!this.shown.turns.some((view) => view.has(`${answer.messageId}:0`))) {
      noteSent(this.id, { messageId: answer.messageId, text });
      if (attachments.length) this.attached.set(answer.messageId, attachments);
    }
    this.following = true;
    if (this.shown.cutEnd) await this.toNewest();
    if (this.lostMachine !== null) return this.goneOn(answer.sessionId, (answer.notices ?? []).join(" "));
    const stored = !this.row.inMemory;
    if (answer.sessionId !== this.id) this.around.go(`/sessions/${answer.sessionId}`);
    else if (stored) await this.open();
  }

  /** Writes an earlier message anew. The session stays as it is: a copy goes on from before that message. */
  private rewrite(turn: Turn): void {
    const { text, files } = splitFiles(turn.prompt ?? "");
    const attachments = files.map(({ name, text: content }) => ({ name, text: content, bytes: content.length }));
    this.composer.rewrite(text, attachments, "A copy of this session continues from before this message; files are not changed.",
      async (message) => {
        const { turns: [before] } = await this.shown.fetch(`limit=1&before=${turn.number}`);
        const last = before?.items.filter((item) => item.kind === "text").pop();
        if (turn.number > 1 && last === undefined) throw new Error("There is no earlier answer to continue from.");
        const body = { message: message.text, ...(message.images.length ? { images: message.images } : {}) };
        const made = last === undefined
          ? await post<{ sessionId: string }>("/api/sessions", { prompt: message.text, messageKey: message.key, workingDirectory: this.row.directory,
            permissionMode: this.row.permissionMode ?? "default", ...(message.images.length ? { images: message.images } : {}) })
          : await post<{ sessionId: string }>(sessionPath(this.id, "fork"), { ...body, atMessage: last.id.replace(/:\d+$/, "") });
        this.around.go(`/sessions/${made.sessionId}`);
      });
  }

  /** A prompt that Claude has begun to answer is in the conversation already; another is sent once more. */
  private async tryAgain(turn: Turn, begun: boolean): Promise<void> {
    if (begun) return this.sayPlain("The last turn failed. Please try again.", freshKey());
    const images = await Promise.all([...Array(turn.images ?? 0).keys()].map((at) => this.image(turn.number, at)));
    await this.say({ text: turn.prompt ?? "", images, key: freshKey(), attachments: [] });
  }

  private async interrupt(): Promise<void> {
    const { droppedMessages } = await post<{ droppedMessages: QueuedMessage[] }>(sessionPath(this.id, "interrupt"));
    if (droppedMessages.length) this.putBack(droppedMessages);
  }

  // -- drawing ------------------------------------------------------------------------------------------------------

  private drawHead(): void {
    if (this.missing) return;
    const { row } = this;
    this.heading.textContent = titleOf(row);
    this.around.name(titleOf(row));
    this.changes.href = `#/sessions/${encodeURIComponent(this.id)}/changes`;
    const status = statusWord(row);
    replace(this.about,
      status && h("span", { class: "badge", data: { status: row.needs ?? row.status ?? "" } }, status), " ", this.context,
      h("span", { title: row.directory ?? undefined }, place(row.directory)),
      row.inTerminal && " · in a terminal", row.archived && " · archived", row.machine && ` · on ${row.machine}`, row.sharedBy && ` · shared by ${row.sharedBy}`,
      row.branch && ` · ${row.branch}`, row.model && ` · ${row.model}`,
      row.permissionMode && row.permissionMode !== "default" && ` · ${row.permissionMode}`,
      costOf(row) && ` · ${costOf(row)}`,
      planWords(row.planUsage) && ` · plan: ${planWords(row.planUsage)}`,
      row.queued && ` · ${row.queued}`, row.retrying && ` · ${row.retrying}`);
    this.composer.busy.value = this.busy;
    // Of a session of somebody else only that is offered which may be done.
    const watched = isWatched(row);
    this.element.classList.toggle("borrowed", Boolean(row.sharedBy));
    this.element.classList.toggle("watched", watched);
    this.composer.hidden.value = watched || Boolean(row.inTerminal);
    this.watching.textContent = watched ? `You are watching. ${row.sharedBy ?? ""} has shared this session with you.`
      : row.inTerminal ? "This session is open in a terminal. You can answer its questions here, and send messages after it is closed there." : "";
    this.owner.value = watched ? (row.sharedBy ?? "") : null;
    const stood = notable(this.rowShown.value);
    this.rowShown.value = row;
    if (notable(row) && !stood) requestAnimationFrame(() => this.following && this.toEnd());
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
    this.newest.hidden = this.following || this.questions.open.length > 0;
  }

  private toEnd(): void {
    if (this.questions.open.length) return;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
  }
}
