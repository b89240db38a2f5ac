// The state of one session that the page follows: its conversation, its current activity, its open questions, and the
// composer. Views read the signals. In the page itself, this file sets only the scroll position and the focus.

import { batch, computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { createRef } from "preact";
import type { Doing } from "./activity";
import { agentRoute } from "./agent";
import { ApiError, get, messageOf, post, send, sessionPath } from "./api";
import { dataOf, splitFiles, started, type Attachment } from "./attachments";
import { Comments } from "./comments";
import { Composer, type Outgoing } from "./composer";
import { forgetSent, freshKey, noteSent, sentOf } from "./drafts";
import { Find } from "./find";
import type { Live, Watcher } from "./live";
import { GONE } from "./machines";
import { hasNotice } from "./notices";
import { decisionWords } from "./question";
import { Questions } from "./questions";
import { Queue, type QueueActs, type QueuedMessage } from "./queue";
import { isWatched, isWorking, routeOf, titleOf } from "./sessions";
import { TodoList } from "./todo";
import type { TurnActs } from "./turn";
import type { Ending, ItemState, TurnState } from "./turn_state";
import { TurnWindow, afterRender } from "./turn_window";
import type { Answer, Item, Question, SessionDetails, SessionRow, Turn } from "./types";
import { visible } from "./words";

const NEAR_END = 120;
const DELIVERY_UNKNOWN = "The server cannot be reached, so it is not known whether this was sent. Sending it again is safe: it is delivered only once.";
const TASK_TOOLS = new Set(["TodoWrite", "TaskCreate", "TaskUpdate"]);
/** Events that change the end of the conversation. While the end is not on the page, they are ignored: a later read of the
 * end includes them. */
const TAIL_EVENTS = new Set(["turn", "partial", "block", "items", "gap", "reset", "grown"]);

export interface PageContext {
  live: Live;
  /** Announces a text to screen readers. */
  announce(text: string): void;
  go(route: string): void;
  /** Sets the title of the tab, which also shows the number of sessions that wait. */
  name(title: string): void;
  modes: readonly string[];
}

export class Conversation implements Watcher {
  /** Changes when the session is moved. */
  readonly id: Signal<string>;
  /** The row of the session, as of the last animation frame. */
  readonly row: ReadonlySignal<SessionRow>;
  readonly directory: ReadonlySignal<string>;
  /** The owner of the session if the user may only watch it, otherwise null. */
  readonly owner: ReadonlySignal<string | null>;
  readonly shown: TurnWindow;
  readonly acts: TurnActs;
  readonly queueActs: QueueActs = {
    withdraw: (message) => this.withdraw(message),
    edit: (message) => this.restoreMessages([message]),
    resend: (message) => void this.resend(message),
    discard: (message) => this.taken(message.messageId),
  };
  readonly doing = signal<Doing>({ what: "", since: 0 });
  readonly note = signal("");
  /** Whether the session does not exist or the user may not see it. */
  readonly missing = signal(false);
  /** The machine of the session while that machine is gone, otherwise null; empty if it is not known which one. */
  readonly lostMachine = signal<string | null>(null);
  readonly todo = new TodoList();
  readonly find = new Find(() => this.id.peek(), (turn, itemId) => this.jump(turn, itemId));
  readonly queue = new Queue();
  readonly questions = new Questions();
  readonly isAsked = computed(() => this.questions.shown.value.some(({ closed }) => closed.value === null));
  readonly composer: Composer;
  readonly comments: Comments;
  /** Whether the reader is at the end and stays there as the conversation grows. */
  readonly following = signal(true);
  readonly heading = createRef<HTMLHeadingElement>();
  /** The scroll position at the last check. */
  private top = 0;
  private readonly calls = new Map<string, Item>();
  /** The attachments of queued messages, while this page is open. */
  private readonly attached = new Map<string, readonly Attachment[]>();
  /** Questions that the user is answering on this page: the stream's events about them are not news. */
  private readonly answering = new Set<string>();
  private readonly stops: readonly (() => void)[];
  private closed = false;
  /** Whether the last read failed. The conversation is read again when the server can be reached. */
  private stale = false;
  private looking = false;
  /** Whether the server could not be reached at the last check. */
  private wasLost = false;
  /** Whether the session had no transcript at the last read. */
  private unwritten = false;

  /** `wanted` is the question to show, `searchText` the text to find. */
  constructor(id: string, private readonly pageContext: PageContext, private wanted: string | null, private readonly searchText: string | null) {
    const { live } = pageContext;
    this.id = signal(id);
    this.row = computed(() => {
      void live.version.value;
      return live.rows.get(this.id.value) ?? { sessionId: this.id.value };
    });
    this.directory = computed(() => this.row.value.directory ?? "");
    this.owner = computed(() => (isWatched(this.row.value) ? (this.row.value.sharedBy ?? "") : null));
    this.comments = new Comments(id, this.sendText, () => isWatched(this.now));
    this.composer = new Composer({ scope: () => this.id.peek(), completes: () => this.id.peek(), unsure: DELIVERY_UNKNOWN, say: (message) => this.say(message) });
    this.shown = new TurnWindow({
      session: () => this.id.peek(),
      onNewestShown: () => this.readEnd(),
      sent: (messageId) => (messageId === started.messageId ? started.data : dataOf(this.attached.get(messageId) ?? [])),
    });
    this.acts = {
      directory: () => this.directory.value,
      whole: (turn, state) => this.shown.whole(turn, state),
      image: (turn, number) => this.image(turn, number),
      margin: (file) => this.comments.margin(file),
      agentRoute: (agent) => agentRoute(this.id.peek(), agent),
      edit: (turn) => this.rewrite(turn),
      again: (turn, begun) => this.tryAgain(turn, begun),
    };
    const stands = computed(() => hasNotice(this.row.value));
    this.stops = [
      effect(() => this.pageContext.name(titleOf(this.row.value))),
      effect(() => void (this.composer.busy.value = isWorking(this.row.value))),
      effect(() => void (this.composer.hidden.value = this.missing.value || isWatched(this.row.value) || Boolean(this.row.value.inTerminal))),
      effect(() => void (this.composer.asking.value = this.isAsked.value)),
      effect(() => this.setLive(isWorking(this.row.value), this.shown.turns.value)),
      effect(() => void (stands.value && this.keepEnd())),
      live.onChange(() => this.lineChanged()),
    ];
  }

  /** The current row of the session: `row` may be one frame behind. */
  private get now(): SessionRow {
    return this.pageContext.live.rows.get(this.id.peek()) ?? { sessionId: this.id.peek() };
  }

  async open(): Promise<void> {
    this.heading.current?.focus({ preventScroll: true });
    await this.readEnd();
    if (this.searchText !== null && !this.missing.peek() && !this.closed) await this.find.seek(this.searchText);
  }

  /** Shows the end of the conversation and follows the events from there. */
  async readEnd(): Promise<void> {
    const cursor = await this.load();
    if (this.closed) return;
    if (this.missing.peek() || this.lostMachine.peek() !== null) this.pageContext.live.follow(null, null, null);
    else this.pageContext.live.follow(this.id.peek(), cursor, this);
  }

  close(): void {
    this.closed = true;
    this.composer.close();
    for (const stop of this.stops) stop();
  }

  // -- reading ------------------------------------------------------------------------------------------------------

  /** Reads the end of the conversation and the open questions. Returns the cursor from which the events continue. */
  private async load(): Promise<string | null> {
    try {
      const [page, details] = await Promise.all([this.shown.fetchEnd(), get<SessionDetails>(sessionPath(this.id.peek()))]);
      if (this.closed) return null;
      this.stale = false;
      this.lostMachine.value = null;
      this.pageContext.live.learn([details.session]);
      this.unwritten = page.total === 0;
      this.shown.show(page);
      for (const turn of page.turns) for (const item of turn.items) this.todo.take(item);
      this.showQuestions(details.questions);
      this.note.value = details.runsElsewhere ? "This session is open in another program and is read-only here." : "";
      const { error } = details;
      const busy = isWorking(this.now);
      this.setLive(busy, this.shown.turns.peek());
      if (error && !busy) this.shown.last?.ended({ code: error.code, detail: error.message });
      this.keepEnd();
      await this.showQueue(details.queuedMessages ?? []);
      this.keepEnd();
      return page.cursor ?? null;
    } catch (error) {
      const lost = error instanceof ApiError && error.code === GONE;
      this.missing.value = error instanceof ApiError && error.status === 404;
      this.stale = !this.missing.peek() && !lost;
      this.note.value = lost ? "" : messageOf(error);
      if (lost) this.lostMachine.value = String(error.body["machine"] ?? "");
      return null;
    }
  }

  /** Reads the history of a copied session, which is on disk only after the first turn of the copy. */
  private async readHistory(): Promise<void> {
    this.unwritten = false;
    const page = await this.shown.fetchEnd().catch(() => null); // the events of this page are shown in any case
    if (page === null || this.closed || page.total <= this.shown.turns.peek().length) return;
    batch(() => {
      this.shown.clear();
      this.shown.show(page);
    });
    this.keepEnd();
  }

  /** Scrolls to a turn, or to an item of it, and stops following the end. */
  async jump(turn: number, itemId: string | null): Promise<void> {
    this.following.value = false;
    await this.shown.jump(turn, itemId);
  }

  private lineChanged(): void {
    const live = this.pageContext.live.state === "live";
    if (live && this.wasLost) this.composer.reachable();
    this.wasLost = !live;
    if (this.stale && live) void this.load();
    this.refreshAfterMachineChange();
  }

  /** Reads the session again when its machine is gone or back. */
  private refreshAfterMachineChange(): void {
    const lost = this.lostMachine.peek();
    const machine = this.pageContext.live.machines.find(({ id }) => id === (lost || this.now.machineId));
    if (machine === undefined || this.looking || machine.there === (lost === null)) return;
    this.looking = true;
    void this.readEnd().finally(() => (this.looking = false));
  }

  /** Continues with the session on another machine: reads everything from there. */
  async continueElsewhere(id: string, words: string): Promise<void> {
    if (id !== this.id.peek()) return this.pageContext.go(routeOf(id));
    await this.readEnd();
    this.note.value = words;
  }

  private async image(turn: number, number: number): Promise<string> {
    return (await get<{ image: string }>(sessionPath(this.id.peek(), "turns", String(turn), "images", String(number)))).image;
  }

  // -- events -------------------------------------------------------------------------------------------------------

  event(name: string, data: Record<string, unknown>): void {
    if (this.closed || (this.shown.cutEnd.peek() && TAIL_EVENTS.has(name))) return;
    const atEnd = this.following.peek();
    batch(() => this.take(name, data, atEnd));
    if (atEnd) requestAnimationFrame(() => this.keepEnd());
  }

  private take(name: string, data: Record<string, unknown>, atEnd: boolean): void {
    switch (name) {
      case "turn":
        this.doing.value = { what: "", since: Date.parse(String(data["at"] ?? "")) || Date.now() };
        this.beginTurn(data as unknown as Turn);
        break;
      case "partial":
        this.current().write(String(data["kind"]), String(data["text"]));
        this.does(data["kind"] === "thinking" ? "Thinking" : data["kind"] === "text" ? "Writing" : "");
        break;
      case "block":
        this.shown.last?.settle();
        break;
      case "items":
        for (const item of (data["items"] as Item[] | undefined) ?? []) {
          this.putItem(item, (data["parent"] as string | null) ?? null);
          if (item.kind === "tool" && !data["parent"]) this.does(item.status ? "Thinking" : (item.description ?? ""));
        }
        this.shown.grown(atEnd);
        break;
      case "agent":
        this.call(String(data["call"]), ({ item }) => (item.value = { ...item.peek(), agent: String(data["agent"]) }));
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
        if (!this.shown.cutEnd.peek()) this.shown.last?.ended(data as unknown as Ending);
        if (this.unwritten) void this.readHistory();
        this.pageContext.announce(data["code"] === "completed" ? "Claude has finished." : `The turn has ended: ${String(data["code"])}.`);
        break;
      case "limit":
        this.pageContext.live.learn([{ sessionId: this.id.peek(), limit: (data["limit"] ?? null) as NonNullable<SessionRow["limit"]> | null }]);
        break;
      case "budget":
        if (!this.shown.cutEnd.peek()) this.shown.last?.warned(String(data["warning"]));
        this.pageContext.announce(String(data["warning"]));
        break;
      case "moved":
        this.id.value = String(data["newSessionId"]);
        history.replaceState(null, "", `#${routeOf(this.id.peek())}`);
        break;
      case "gap":
      case "reset":
      case "grown":
        void this.load();
        break;
    }
  }

  /** The current turn. If no turn is known yet, this creates the first one. */
  private current(): TurnState {
    return this.shown.last ?? this.shown.put({ number: 1, items: [] });
  }

  private setLive(busy: boolean, turns: readonly TurnState[]): void {
    for (const turn of turns) turn.setLive(busy && turn === turns.at(-1) && !turn.cutEnd.peek());
  }

  private does(what: string): void {
    if (what && what !== this.doing.peek().what) this.doing.value = { ...this.doing.peek(), what: visible(what) };
  }

  /** Numbers the turn itself: turn numbers in events count from the start of the server, those in the transcript from the
   * start of the session. */
  private beginTurn(turn: Turn): void {
    const known = this.shown.turns.peek().some((one) => one.turn.peek().messageId && one.turn.peek().messageId === turn.messageId);
    if (!known) this.shown.put({ ...turn, number: (this.shown.last?.number ?? 0) + 1, items: [] });
    if (turn.messageId) this.taken(turn.messageId);
  }

  /** Applies a new status at once: the server sends the row at most twice a second, and this page must not lag behind. */
  private learnStatus(status: NonNullable<SessionRow["status"]>): void {
    // Only a row clears `unanswered`: a replayed turn includes the states from before the question went unanswered.
    const missed = this.now.unanswered ? "unanswered" : null;
    const limited = status === "limit_reached" && !this.now.limit?.continuesAt ? "limit" : missed;
    const needs = status === "waiting_for_input" ? "question" : status === "error" ? "error" : limited;
    this.pageContext.live.learn([{ sessionId: this.id.peek(), status, needs }]);
  }

  private putItem(item: Item, parent: string | null): void {
    const turn = this.shown.turnOf(item.id) ?? (parent ? this.shown.turnOf(parent) : undefined);
    if (!parent) {
      this.shown.last?.settle();
      this.seen(item);
    }
    if (item.kind === "message") this.taken(item.id.replace(/:\d+$/, ""));
    (turn ?? this.current()).put(item, parent);
  }

  /** Passes calls to the task list. A result arrives without its call, so this adds the call, which the list needs. */
  private seen(item: Item): void {
    if (item.kind !== "tool") return;
    const whole = { ...this.calls.get(item.id), ...Object.fromEntries(Object.entries(item).filter(([, value]) => value)) } as Item;
    if (TASK_TOOLS.has(whole.name ?? "")) {
      this.calls.set(item.id, whole);
      this.todo.take(whole);
    }
  }

  /** Changes a call if it is on the page. */
  private call(id: string | null | undefined, change: (state: ItemState) => void): void {
    const state = id ? this.shown.turnOf(id)?.find(id) : undefined;
    if (state !== undefined) change(state);
  }

  // -- queued messages ----------------------------------------------------------------------------------------------

  /** Shows the messages queued on the server, and those sent from this browser that are lost because the server ended
   * before Claude read them. */
  private async showQueue(queued: readonly QueuedMessage[]): Promise<void> {
    const id = this.id.peek();
    const lost: QueuedMessage[] = [];
    for (const message of sentOf(id)) {
      if (queued.some((one) => one.messageId === message.messageId)) continue;
      try {
        const { state } = await get<{ state: string }>(sessionPath(id, "messages", message.messageId));
        if (state === "taken") forgetSent(id, message.messageId);
        else if (state !== "queued") lost.push({ ...message, lost: true });
      } catch {
        // The next read of the conversation checks it again.
      }
    }
    if (!this.closed) this.queue.set([...lost, ...queued]);
  }

  /** Forgets a message that is in the conversation or no longer wanted. */
  private taken(messageId: string): void {
    forgetSent(this.id.peek(), messageId);
    this.attached.delete(messageId);
    this.queue.remove(messageId);
  }

  private async withdraw(message: QueuedMessage): Promise<boolean> {
    const path = sessionPath(this.id.peek(), "messages", encodeURIComponent(message.messageId));
    const { withdrawn } = await send<{ withdrawn: boolean }>("DELETE", path);
    if (withdrawn) {
      forgetSent(this.id.peek(), message.messageId);
      this.queue.remove(message.messageId);
    }
    return withdrawn;
  }

  private restoreMessages(messages: readonly QueuedMessage[]): void {
    const texts = messages.map((message) => splitFiles(message.text));
    const files = texts.flatMap((text) => text.files.map(({ name, text: content }) => ({ name, text: content, bytes: content.length })));
    const pictures = messages.flatMap((message) => (this.attached.get(message.messageId) ?? []).filter((one) => dataOf([one]).length));
    this.composer.restoreMessages(texts.map(({ text }) => text), [...pictures, ...files]);
    for (const message of messages) this.taken(message.messageId);
    this.composer.focus();
  }

  private async resend(message: QueuedMessage): Promise<void> {
    try {
      await this.sendText(message.text);
      this.taken(message.messageId);
    } catch (error) {
      this.note.value = messageOf(error);
    }
  }

  // -- questions ----------------------------------------------------------------------------------------------------

  private async fetchQuestion(id: string): Promise<void> {
    if (this.questions.find(id)) return;
    try {
      const { question } = await get<{ question: Question }>(sessionPath(this.id.peek(), "questions", encodeURIComponent(id)));
      this.showQuestion(question);
    } catch (error) {
      // 409: the question is already answered, which the stream reports. The user must see any other error.
      if (!(error instanceof ApiError && error.status === 409)) this.note.value = messageOf(error);
    }
  }

  private showQuestions(questions: readonly Question[]): void {
    const open = new Set(questions.map((question) => question.questionId));
    for (const { question } of this.questions.open) if (!open.has(question.questionId)) this.closeQuestion(question.questionId, "This question is no longer open.");
    for (const question of questions) this.showQuestion(question);
  }

  private showQuestion(question: Question): void {
    const { questionId } = question;
    if (this.closed || this.questions.find(questionId)) return;
    const wanted = this.wanted === questionId;
    if (wanted) this.wanted = null;
    const reads = this.following.peek() && !this.isAsked.peek();
    this.questions.show(question, wanted);
    this.call(question.toolUseId, ({ asked }) => (asked.value = true));
    this.pageContext.announce(question.form ? `${question.form.server} asks: ${question.form.message}` : `Claude asks: ${question.description}`);
    if (!reads || wanted) return;
    requestAnimationFrame(() => this.shown.scroller.current?.querySelector(`[data-question="${CSS.escape(questionId)}"]`)?.scrollIntoView({ block: "nearest" }));
  }

  readonly answer = async (question: Question, answer: Answer): Promise<void> => {
    const { questionId } = question;
    const byKey = document.querySelector<HTMLElement>(`[data-question="${CSS.escape(questionId)}"]`)?.dataset["byKey"] !== undefined;
    // The stream may report this answer before the response to the request arrives.
    this.answering.add(questionId);
    try {
      await post(sessionPath(this.id.peek(), "questions", encodeURIComponent(questionId)), answer);
      this.closeQuestion(questionId, "");
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "QUESTION_CLOSED")) throw error;
      this.closeQuestion(questionId, error.message);
    } finally {
      this.answering.delete(questionId);
    }
    this.focusNext(byKey);
  };

  /** Moves the focus to the next question. If there is none, moves it to the link to the next session that waits for a user
   * who answers by keys, or else to the composer, or by touch to the heading. */
  private focusNext(byKey: boolean): void {
    const [next] = this.questions.open;
    const link = byKey ? document.querySelector<HTMLElement>(".view-head .needs-pill") : null;
    if (next !== undefined) next.wanted.value = true;
    else if (link !== null) link.focus(); // in the composer the next key would be text
    else if (matchMedia("(pointer: fine)").matches) this.composer.focus();
    else this.heading.current?.focus({ preventScroll: true }); // an on-screen keyboard would hide what happens next
  }

  private answered(id: string, data: Record<string, unknown>): void {
    const question = this.questions.find(id)?.question;
    if (question === undefined || this.answering.has(id)) return;
    // An expired question needs no words here: a notice with the reason stays on the page.
    if (data["closure"] !== "answered") return this.closeQuestion(id, data["closure"] === "expired" ? "" : "Claude has withdrawn the question.");
    const { sentence, short } = decisionWords(question, data["allow"] === true, String(data["by"] ?? ""), this.now.sharedBy ?? null);
    if (short) this.call(question.toolUseId, ({ decided }) => (decided.value = short));
    this.closeQuestion(id, sentence);
  }

  private closeQuestion(id: string, why: string): void {
    const asked = this.questions.find(id);
    if (asked === undefined) return;
    this.call(asked.question.toolUseId, (state) => (state.asked.value = false));
    this.questions.drop(id, why);
    if (why) this.pageContext.announce(why);
  }

  // -- actions ------------------------------------------------------------------------------------------------------

  readonly sendText = (text: string, key = freshKey()): Promise<void> => this.say({ text, images: [], key, attachments: [] });

  private async say({ text, images, key, attachments }: Outgoing): Promise<void> {
    const id = this.id.peek();
    const body = { message: text, messageKey: key, ...(images.length ? { images } : {}) };
    const answer = await post<{ sessionId: string; messageId: string; notices?: string[] }>(sessionPath(id, "messages"), body);
    // Note it as sent unless it is in the conversation already: the stream may be faster than the response.
    const turn = this.shown.turns.peek().find((one) => one.turn.peek().messageId === answer.messageId);
    if (turn !== undefined) turn.sent.value = images;
    else if (!this.shown.turnOf(`${answer.messageId}:0`)) {
      noteSent(id, { messageId: answer.messageId, text });
      if (attachments.length) this.attached.set(answer.messageId, attachments);
    }
    this.following.value = true;
    if (this.shown.cutEnd.peek()) await this.scrollToEnd();
    if (this.lostMachine.peek() !== null) return this.continueElsewhere(answer.sessionId, (answer.notices ?? []).join(" "));
    const stored = !this.now.inMemory;
    if (answer.sessionId !== id) this.pageContext.go(routeOf(answer.sessionId));
    else if (stored) await this.open();
  }

  /** Lets the user rewrite an earlier message. The session does not change: a copy continues from before that message. */
  private rewrite(turn: Turn): void {
    const { text, files } = splitFiles(turn.prompt ?? "");
    const attachments = files.map(({ name, text: content }) => ({ name, text: content, bytes: content.length }));
    this.composer.rewrite(text, attachments, "A copy of this session continues from before this message; files are not changed.",
      async (message) => {
        const { turns: [before] } = await this.shown.fetch(`limit=1&before=${turn.number}`);
        const last = before?.items.filter((item) => item.kind === "text").pop();
        if (turn.number > 1 && last === undefined) throw new Error("There is no earlier answer to continue from.");
        const images = message.images.length ? { images: message.images } : {};
        const made = last === undefined
          ? await post<{ sessionId: string }>("/api/sessions", { prompt: message.text, messageKey: message.key, workingDirectory: this.now.directory,
            permissionMode: this.now.permissionMode ?? "default", ...images })
          : await post<{ sessionId: string }>(sessionPath(this.id.peek(), "fork"), { message: message.text, ...images, atMessage: last.id.replace(/:\d+$/, "") });
        this.pageContext.go(routeOf(made.sessionId));
      });
  }

  /** Retries a failed turn. If Claude began to answer, the prompt is in the conversation; otherwise it is sent again. */
  private async tryAgain(turn: Turn, begun: boolean): Promise<void> {
    if (begun) return this.sendText("The last turn failed. Please try again.");
    const images = await Promise.all([...Array(turn.images ?? 0).keys()].map((at) => this.image(turn.number, at)));
    await this.say({ text: turn.prompt ?? "", images, key: freshKey(), attachments: [] });
  }

  readonly interrupt = async (): Promise<void> => {
    const { droppedMessages } = await post<{ droppedMessages: QueuedMessage[] }>(sessionPath(this.id.peek(), "interrupt"));
    if (droppedMessages.length) this.restoreMessages(droppedMessages);
  };

  // -- scroll position ----------------------------------------------------------------------------------------------

  /** Stops following when the reader scrolls up, and follows again when the reader reaches the end. New content may have
   * been added below in the meantime: a distance to the end alone does not mean that the reader has left it. */
  scrolled(): void {
    const scroller = this.shown.scroller.current;
    if (scroller === null) return;
    const { scrollTop, scrollHeight, clientHeight } = scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.following.value = !this.shown.cutEnd.peek() && (atEnd || (this.following.peek() && scrollTop >= this.top));
    this.top = scrollTop;
    this.shown.scrolled();
  }

  /** Jumps to the end and follows it. */
  async scrollToEnd(): Promise<void> {
    this.following.value = true;
    if (this.shown.cutEnd.peek()) {
      this.shown.clear();
      await this.readEnd();
    }
    this.keepEnd();
  }

  /** Keeps a reader who follows the end at the end after a render. An open question stays in place. */
  keepEnd(): void {
    afterRender(() => {
      const scroller = this.shown.scroller.current;
      if (!this.following.peek() || this.isAsked.peek() || scroller === null) return;
      scroller.scrollTop = scroller.scrollHeight;
      this.top = scroller.scrollTop;
    });
  }
}
