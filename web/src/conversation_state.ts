// One session as it is followed: its conversation, what happens now, the questions that wait, and the next message. Views
// read the signals; of the page itself only the position of the scroller and the focus are set here.

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
import { notable } from "./notices";
import { decisionWords } from "./question";
import { Questions } from "./questions";
import { Queue, type QueueActs, type QueuedMessage } from "./queue";
import { isWatched, isWorking, routeOf, titleOf } from "./sessions";
import { TodoList } from "./todo";
import type { TurnActs } from "./turn";
import type { Ending, ItemState, TurnState } from "./turn_state";
import { TurnWindow, whenDrawn } from "./turn_window";
import type { Answer, Item, Question, SessionDetails, SessionRow, Turn } from "./types";
import { visible } from "./words";

const NEAR_END = 120;
const UNSURE = "The server cannot be reached, so it is not known whether this was sent. Sending it again is safe: it is delivered only once.";
const TASK_TOOLS = new Set(["TodoWrite", "TaskCreate", "TaskUpdate"]);
/** What is told of the end of the conversation. While that is not on the page, it is not shown; it is read with the end. */
const OF_THE_END = new Set(["turn", "partial", "block", "items", "gap", "reset", "grown"]);

export interface Surroundings {
  live: Live;
  /** Says something to people who do not see the screen. */
  announce(text: string): void;
  go(route: string): void;
  /** What the tab is called beside the number of those who wait. */
  name(title: string): void;
  modes: readonly string[];
}

export class Conversation implements Watcher {
  /** It changes when the session is moved. */
  readonly id: Signal<string>;
  /** What is known of the session, as of the last picture of the screen. */
  readonly row: ReadonlySignal<SessionRow>;
  readonly directory: ReadonlySignal<string>;
  /** Whose session it is, if this person may only watch it. */
  readonly owner: ReadonlySignal<string | null>;
  readonly shown: TurnWindow;
  readonly acts: TurnActs;
  readonly queueActs: QueueActs = {
    withdraw: (message) => this.withdraw(message),
    edit: (message) => this.putBack([message]),
    resend: (message) => void this.resend(message),
    discard: (message) => this.taken(message.messageId),
  };
  readonly doing = signal<Doing>({ what: "", since: 0 });
  readonly note = signal("");
  /** There is no such session, or none that this person may see. */
  readonly missing = signal(false);
  /** The machine that has it, while that is gone; empty if it is not known which. */
  readonly lostMachine = signal<string | null>(null);
  readonly todo = new TodoList();
  readonly find = new Find(() => this.id.peek(), (turn, itemId) => this.jump(turn, itemId));
  readonly queue = new Queue();
  readonly questions = new Questions();
  readonly isAsked = computed(() => this.questions.shown.value.some(({ closed }) => closed.value === null));
  readonly composer: Composer;
  readonly comments: Comments;
  /** Whether somebody reads the end, and goes on to do so as it grows. */
  readonly following = signal(true);
  readonly heading = createRef<HTMLHeadingElement>();
  /** Where the scroller was when it was last looked at. */
  private top = 0;
  private readonly calls = new Map<string, Item>();
  /** What went with messages that are queued, while this page is open. */
  private readonly attached = new Map<string, readonly Attachment[]>();
  /** Questions that are being answered here: what the stream tells of them is not news. */
  private readonly answering = new Set<string>();
  private readonly stops: readonly (() => void)[];
  private closed = false;
  /** It could not be read; it is read again when the server can be reached. */
  private stale = false;
  private looking = false;
  /** Whether the server could not be reached when that was looked at last. */
  private wasLost = false;
  /** It had no transcript when it was read. */
  private unwritten = false;

  /** `wanted` is a question that is to be shown, `sought` a text. */
  constructor(id: string, private readonly around: Surroundings, private wanted: string | null, private readonly sought: string | null) {
    const { live } = around;
    this.id = signal(id);
    this.row = computed(() => {
      void live.version.value;
      return live.rows.get(this.id.value) ?? { sessionId: this.id.value };
    });
    this.directory = computed(() => this.row.value.directory ?? "");
    this.owner = computed(() => (isWatched(this.row.value) ? (this.row.value.sharedBy ?? "") : null));
    this.comments = new Comments(id, this.sayPlain, () => isWatched(this.now));
    this.composer = new Composer({ scope: () => this.id.peek(), completes: () => this.id.peek(), unsure: UNSURE, say: (message) => this.say(message) });
    this.shown = new TurnWindow({
      session: () => this.id.peek(),
      atTheEnd: () => this.readEnd(),
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
    const stands = computed(() => notable(this.row.value));
    this.stops = [
      effect(() => this.around.name(titleOf(this.row.value))),
      effect(() => void (this.composer.busy.value = isWorking(this.row.value))),
      effect(() => void (this.composer.hidden.value = this.missing.value || isWatched(this.row.value) || Boolean(this.row.value.inTerminal))),
      effect(() => void (this.composer.asking.value = this.isAsked.value)),
      effect(() => this.setLive(isWorking(this.row.value), this.shown.turns.value)),
      effect(() => void (stands.value && this.keepEnd())),
      live.onChange(() => this.lineChanged()),
    ];
  }

  /** What is known of the session now: `row` may be a picture behind. */
  private get now(): SessionRow {
    return this.around.live.rows.get(this.id.peek()) ?? { sessionId: this.id.peek() };
  }

  async open(): Promise<void> {
    this.heading.current?.focus({ preventScroll: true });
    await this.readEnd();
    if (this.sought !== null && !this.missing.peek() && !this.closed) await this.find.seek(this.sought);
  }

  /** Shows the end of the conversation, and what happens from there on. */
  async readEnd(): Promise<void> {
    const cursor = await this.load();
    if (this.closed) return;
    if (this.missing.peek() || this.lostMachine.peek() !== null) this.around.live.follow(null, null, null);
    else this.around.live.follow(this.id.peek(), cursor, this);
  }

  close(): void {
    this.closed = true;
    this.composer.close();
    for (const stop of this.stops) stop();
  }

  // -- reading ------------------------------------------------------------------------------------------------------

  /** Reads the end of the conversation and the open questions; returns where the events go on. */
  private async load(): Promise<string | null> {
    try {
      const [page, details] = await Promise.all([this.shown.fetchEnd(), get<SessionDetails>(sessionPath(this.id.peek()))]);
      if (this.closed) return null;
      this.stale = false;
      this.lostMachine.value = null;
      this.around.live.learn([details.session]);
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

  /** A copy of a session has its history on disk only after its first turn. */
  private async readHistory(): Promise<void> {
    this.unwritten = false;
    const page = await this.shown.fetchEnd().catch(() => null); // what has happened here is on the page in any case
    if (page === null || this.closed || page.total <= this.shown.turns.peek().length) return;
    batch(() => {
      this.shown.clear();
      this.shown.show(page);
    });
    this.keepEnd();
  }

  /** Shows the place where something was found. */
  async jump(turn: number, itemId: string | null): Promise<void> {
    this.following.value = false;
    await this.shown.jump(turn, itemId);
  }

  private lineChanged(): void {
    const live = this.around.live.state === "live";
    if (live && this.wasLost) this.composer.reachable();
    this.wasLost = !live;
    if (this.stale && live) void this.load();
    this.lookForMachine();
  }

  /** A session goes with its machine, and is read again when that is back. */
  private lookForMachine(): void {
    const lost = this.lostMachine.peek();
    const machine = this.around.live.machines.find(({ id }) => id === (lost || this.now.machineId));
    if (machine === undefined || this.looking || machine.there === (lost === null)) return;
    this.looking = true;
    void this.readEnd().finally(() => (this.looking = false));
  }

  /** Another machine has the session: everything of it is read there. */
  async goneOn(id: string, words: string): Promise<void> {
    if (id !== this.id.peek()) return this.around.go(routeOf(id));
    await this.readEnd();
    this.note.value = words;
  }

  private async image(turn: number, number: number): Promise<string> {
    return (await get<{ image: string }>(sessionPath(this.id.peek(), "turns", String(turn), "images", String(number)))).image;
  }

  // -- events -------------------------------------------------------------------------------------------------------

  event(name: string, data: Record<string, unknown>): void {
    if (this.closed || (this.shown.cutEnd.peek() && OF_THE_END.has(name))) return;
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
        this.around.announce(data["code"] === "completed" ? "Claude has finished." : `The turn has ended: ${String(data["code"])}.`);
        break;
      case "limit":
        this.around.live.learn([{ sessionId: this.id.peek(), limit: (data["limit"] ?? null) as NonNullable<SessionRow["limit"]> | null }]);
        break;
      case "budget":
        if (!this.shown.cutEnd.peek()) this.shown.last?.warned(String(data["warning"]));
        this.around.announce(String(data["warning"]));
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

  /** The turn that goes on; the first one of a session of which nothing is known yet. */
  private current(): TurnState {
    return this.shown.last ?? this.shown.put({ number: 1, items: [] });
  }

  private setLive(busy: boolean, turns: readonly TurnState[]): void {
    for (const turn of turns) turn.setLive(busy && turn === turns.at(-1) && !turn.cutEnd.peek());
  }

  private does(what: string): void {
    if (what && what !== this.doing.peek().what) this.doing.value = { ...this.doing.peek(), what: visible(what) };
  }

  /** Numbers in events count from the server's start, those of the transcript from the session's. */
  private beginTurn(turn: Turn): void {
    const known = this.shown.turns.peek().some((one) => one.turn.peek().messageId && one.turn.peek().messageId === turn.messageId);
    if (!known) this.shown.put({ ...turn, number: (this.shown.last?.number ?? 0) + 1, items: [] });
    if (turn.messageId) this.taken(turn.messageId);
  }

  /** The row itself comes at most twice a second; what is shown here must not lag behind. */
  private learnStatus(status: NonNullable<SessionRow["status"]>): void {
    // Only a row takes back that nobody answered: of a turn that is told again, the states before that come again too.
    const missed = this.now.unanswered ? "unanswered" : null;
    const limited = status === "limit_reached" && !this.now.limit?.continuesAt ? "limit" : missed;
    const needs = status === "waiting_for_input" ? "question" : status === "error" ? "error" : limited;
    this.around.live.learn([{ sessionId: this.id.peek(), status, needs }]);
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

  /** The result of a call comes without the call, which the list of tasks needs. */
  private seen(item: Item): void {
    if (item.kind !== "tool") return;
    const whole = { ...this.calls.get(item.id), ...Object.fromEntries(Object.entries(item).filter(([, value]) => value)) } as Item;
    if (TASK_TOOLS.has(whole.name ?? "")) {
      this.calls.set(item.id, whole);
      this.todo.take(whole);
    }
  }

  /** Changes a call that is on the page. */
  private call(id: string | null | undefined, change: (state: ItemState) => void): void {
    const state = id ? this.shown.turnOf(id)?.find(id) : undefined;
    if (state !== undefined) change(state);
  }

  // -- messages that wait -------------------------------------------------------------------------------------------

  /** Those that the server has, and those of this browser of which nothing came: the server ended before. */
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
        // It is looked for again when the conversation is read again.
      }
    }
    if (!this.closed) this.queue.set([...lost, ...queued]);
  }

  /** A message is in the conversation, or is not wanted any more. */
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
      await this.sayPlain(message.text);
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
      // Somebody was faster, which the stream tells; anything else must be seen.
      if (!(error instanceof ApiError && error.status === 409)) this.note.value = messageOf(error);
    }
  }

  private showQuestions(questions: readonly Question[]): void {
    const open = new Set(questions.map((question) => question.questionId));
    for (const { question } of this.questions.open) if (!open.has(question.questionId)) this.dropQuestion(question.questionId, "This question is no longer open.");
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
    this.around.announce(question.form ? `${question.form.server} asks: ${question.form.message}` : `Claude asks: ${question.description}`);
    if (!reads || wanted) return;
    requestAnimationFrame(() => this.shown.scroller.current?.querySelector(`[data-question="${CSS.escape(questionId)}"]`)?.scrollIntoView({ block: "nearest" }));
  }

  readonly answer = async (question: Question, answer: Answer): Promise<void> => {
    const { questionId } = question;
    // The stream may tell of this answer before its reply comes.
    this.answering.add(questionId);
    try {
      await post(sessionPath(this.id.peek(), "questions", encodeURIComponent(questionId)), answer);
      this.dropQuestion(questionId, "");
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "QUESTION_CLOSED")) throw error;
      this.dropQuestion(questionId, error.message);
    } finally {
      this.answering.delete(questionId);
    }
    this.focusNext();
  };

  /** The keyboard goes on with the next question, else with the conversation. */
  private focusNext(): void {
    const [next] = this.questions.open;
    if (next !== undefined) next.wanted.value = true;
    else if (matchMedia("(pointer: fine)").matches) this.composer.focus();
    else this.heading.current?.focus({ preventScroll: true }); // a keyboard that slides in would hide what happens next
  }

  private answered(id: string, data: Record<string, unknown>): void {
    const question = this.questions.find(id)?.question;
    if (question === undefined || this.answering.has(id)) return;
    // That nobody answered stays on the page, with the reason.
    if (data["closure"] !== "answered") return this.dropQuestion(id, data["closure"] === "expired" ? "" : "Claude has withdrawn the question.");
    const { sentence, short } = decisionWords(question, data["allow"] === true, String(data["by"] ?? ""), this.now.sharedBy ?? null);
    if (short) this.call(question.toolUseId, ({ decided }) => (decided.value = short));
    this.dropQuestion(id, sentence);
  }

  private dropQuestion(id: string, why: string): void {
    const asked = this.questions.find(id);
    if (asked === undefined) return;
    this.call(asked.question.toolUseId, (state) => (state.asked.value = false));
    this.questions.drop(id, why);
    if (why) this.around.announce(why);
  }

  // -- acts ---------------------------------------------------------------------------------------------------------

  readonly sayPlain = (text: string, key = freshKey()): Promise<void> => this.say({ text, images: [], key, attachments: [] });

  private async say({ text, images, key, attachments }: Outgoing): Promise<void> {
    const id = this.id.peek();
    const body = { message: text, messageKey: key, ...(images.length ? { images } : {}) };
    const answer = await post<{ sessionId: string; messageId: string; notices?: string[] }>(sessionPath(id, "messages"), body);
    // Unless it is in the conversation already: the stream may be faster than the answer.
    const turn = this.shown.turns.peek().find((one) => one.turn.peek().messageId === answer.messageId);
    if (turn !== undefined) turn.sent.value = images;
    else if (!this.shown.turnOf(`${answer.messageId}:0`)) {
      noteSent(id, { messageId: answer.messageId, text });
      if (attachments.length) this.attached.set(answer.messageId, attachments);
    }
    this.following.value = true;
    if (this.shown.cutEnd.peek()) await this.toNewest();
    if (this.lostMachine.peek() !== null) return this.goneOn(answer.sessionId, (answer.notices ?? []).join(" "));
    const stored = !this.now.inMemory;
    if (answer.sessionId !== id) this.around.go(routeOf(answer.sessionId));
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
        const images = message.images.length ? { images: message.images } : {};
        const made = last === undefined
          ? await post<{ sessionId: string }>("/api/sessions", { prompt: message.text, messageKey: message.key, workingDirectory: this.now.directory,
            permissionMode: this.now.permissionMode ?? "default", ...images })
          : await post<{ sessionId: string }>(sessionPath(this.id.peek(), "fork"), { message: message.text, ...images, atMessage: last.id.replace(/:\d+$/, "") });
        this.around.go(routeOf(made.sessionId));
      });
  }

  /** A prompt that Claude has begun to answer is in the conversation already; another is sent once more. */
  private async tryAgain(turn: Turn, begun: boolean): Promise<void> {
    if (begun) return this.sayPlain("The last turn failed. Please try again.");
    const images = await Promise.all([...Array(turn.images ?? 0).keys()].map((at) => this.image(turn.number, at)));
    await this.say({ text: turn.prompt ?? "", images, key: freshKey(), attachments: [] });
  }

  readonly interrupt = async (): Promise<void> => {
    const { droppedMessages } = await post<{ droppedMessages: QueuedMessage[] }>(sessionPath(this.id.peek(), "interrupt"));
    if (droppedMessages.length) this.putBack(droppedMessages);
  };

  // -- the position of the scroller ---------------------------------------------------------------------------------

  /** Who scrolls up no longer follows, and who comes to the end does again. More may have come below meanwhile: that
   * the end is far does not mean that somebody has left it. */
  scrolled(): void {
    const scroller = this.shown.scroller.current;
    if (scroller === null) return;
    const { scrollTop, scrollHeight, clientHeight } = scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.following.value = !this.shown.cutEnd.peek() && (atEnd || (this.following.peek() && scrollTop >= this.top));
    this.top = scrollTop;
    this.shown.scrolled();
  }

  /** Whoever has read elsewhere goes on at the end. */
  async toNewest(): Promise<void> {
    this.following.value = true;
    if (this.shown.cutEnd.peek()) {
      this.shown.clear();
      await this.readEnd();
    }
    this.keepEnd();
  }

  /** Whoever reads the end still does so after what was drawn last. A question stays where it is. */
  keepEnd(): void {
    whenDrawn(() => {
      const scroller = this.shown.scroller.current;
      if (!this.following.peek() || this.isAsked.peek() || scroller === null) return;
      scroller.scrollTop = scroller.scrollHeight;
      this.top = scroller.scrollTop;
    });
  }
}
