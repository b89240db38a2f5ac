// The console: who is signed in, which screen is shown, the list beside it, and the state of the connection.

import type { FunctionComponent } from "preact";
import { ApiError, get, messageOf, onSignedOut, post, sessionPath, type SignInWays } from "./api";
import { setHighlighter } from "./code_block";
import { Design } from "./design";
import { AgentView } from "./agent_view";
import { ChangesPage } from "./changes";
import { Comments } from "./comments";
import { ConversationView, type Surroundings } from "./conversation_view";
import { Costs } from "./costs";
import { h, replace } from "./dom";
import { noteSent, openDrafts } from "./drafts";
import { setFileRoute } from "./file_links";
import { FilePage } from "./file";
import { Highlight } from "./highlight";
import { Home } from "./home";
import { NeedsPill, SessionList, SessionNav } from "./list";
import { isWatched } from "./sessions";
import { mount } from "./ui";
import { Live } from "./live";
import { NewSession } from "./new";
import { Servers } from "./servers";
import { Settings } from "./settings";
import { AccountChoice, cameBackInVain, NoAnswer, SignIn, signIn, takeTicket } from "./sign_in";
import { below } from "./tool_view";
import type { Me } from "./types";

/** Milliseconds without the server after which it is said how to start one. */
const NO_SERVER = 10_000;
/** Milliseconds for which a new question takes no answer by a key. */
const TOO_SOON = 800;
const LINE_WORDS = { connecting: "Connecting…", live: "", offline: "Offline: trying again", refused: "" } as const;
const START_WORDS = "To start it, type “claude-code-mcp web” on the machine where it ran.";
const PAGES = [["/new", "New"], ["/costs", "Costs"], ["/servers", "Servers"], ["/settings", "Settings"]] as const;

class Console {
  private readonly announcer = h("p", { class: "spoken", role: "status", aria: { live: "polite" } });
  private readonly line = h("p", { class: "line", role: "status" });
  private readonly main = h("main", { id: "main" });
  private readonly live: Live;
  private readonly list: SessionList;
  private readonly nav = h("div", { class: "place" });
  private readonly pill = h("div", { class: "pill-place" });
  private readonly unmount: (() => void)[] = [];
  private page: (() => void) | null = null;
  private readonly links: HTMLAnchorElement[];
  private conversation: ConversationView | AgentView | null = null;
  private left: string | null = null;
  private lineTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly me: Me, private readonly signedOut: () => void) {
    this.live = new Live(signedOut, me.machines);
    this.list = new SessionList(this.live);
    this.links = PAGES.map(([route, label]) => h("a", { route }, label));
    replace(document.body,
      h("a", { class: "skip", route: "main", on: { click: (event) => this.skip(event) } }, "Skip to the content"),
      h("header", { class: "bar" }, h("a", { class: "brand", route: "/" }, "Claude Code"),
        this.pill, h("nav", { class: "pages", aria: { label: "Pages" } }, ...this.links), this.line),
      h("div", { class: "layout" }, this.nav, this.main), this.announcer);
    addEventListener("hashchange", this.route);
    document.addEventListener("keydown", this.key);
    this.live.onChange(() => this.drawLine());
    this.unmount.push(mount(SessionNav, { list: this.list }, this.nav), mount(NeedsPill, { live: this.live }, this.pill));
    void this.list.load();
    this.route();
  }

  private readonly key = (event: KeyboardEvent): void => {
    const typing = (event.target as HTMLElement).matches("input, textarea, select");
    if (event.key === "Escape" && !typing) this.go("/");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") this.nav.querySelector("input")?.focus();
    else if (event.key === "n") this.go("/new");
    else if (event.repeat || !this.answer(event.key)) return;
    event.preventDefault();
  };

  /** Answers the first open question by the key of a button; before all of it was on screen, an allowance reads on. */
  private answer(key: string): boolean {
    if (!["a", "s", "d"].includes(key)) return false;
    const asked = this.main.querySelector<HTMLElement>(".question.permission:not(.closed), .question.plan_review:not(.closed)");
    const button = asked?.querySelector<HTMLElement>(`[aria-keyshortcuts="${key}"]`) ?? (key === "d" ? null : asked?.querySelector<HTMLElement>(".lines-left"));
    // A key that was meant for the question before is not an answer to the one that has taken its place.
    if (performance.now() - Number(asked?.dataset["since"] ?? 0) > TOO_SOON) button?.click();
    return Boolean(button);
  }

  private skip(event: Event): void {
    event.preventDefault();
    this.main.querySelector<HTMLElement>("h1")?.focus();
  }

  private drawLine(): void {
    const { state } = this.live;
    clearTimeout(this.lineTimer);
    const left = this.live.lostSince ? NO_SERVER - (Date.now() - this.live.lostSince) : NO_SERVER;
    // Between two attempts it is connecting, which takes nothing back.
    const none = this.live.lostSince > 0 && left <= 0 && navigator.onLine;
    if (this.live.lostSince && left > 0) this.lineTimer = setTimeout(() => this.drawLine(), left);
    const words = none ? `The server does not respond. ${START_WORDS}` : LINE_WORDS[state];
    if (this.line.textContent !== words) this.line.textContent = words;
    this.line.dataset["state"] = none ? "offline" : state;
    document.body.classList.toggle("no-server", none);
  }

  private readonly go = (route: string): void => {
    location.hash = `#${route}`;
  };

  private readonly announce = (text: string): void => {
    this.announcer.textContent = text;
  };

  private readonly route = (): void => {
    if (location.hash.startsWith("#ticket=")) return;
    const route = location.hash.replace(/^#/, "") || "/";
    const [, area, id, part, what, line] = decoded(route.split("/"));
    this.closeView();
    document.body.dataset["area"] = area || "list";
    for (const link of this.links) {
      if (link.hash === `#/${area}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const session = area === "sessions" && id ? id : null;
    this.list.current.value = session;
    setFileRoute((path, at) => (session === null ? null : this.fileRoute(session, path, at)));
    if (session !== null) this.showPart(session, part ?? "", what ?? "", Number(line) || 0);
    else this.showPage(area || "list");
    this.left = session;
  };

  private showPart(id: string, part: string, what: string, line: number): void {
    const say = (text: string, key: string): Promise<void> => this.say(id, text, key);
    const comments = (): Comments => new Comments(id, say, () => isWatched(this.live.rows.get(id) ?? { sessionId: id }));
    if (part === "changes") this.show(this.mounted((place) => mount(ChangesPage, { id, comments: comments(), say }, place)));
    else if (part === "file") this.show(this.mounted((place) => mount(FilePage, { session: id, path: what, line, comments: comments() }, place)));
    else this.showSession(id, part, what || null);
  }

  /** Files below the session's directory can be shown; whether one is there is told by the server. */
  private fileRoute(session: string, path: string, line: number): string | null {
    const inside = below(path, this.live.rows.get(session)?.directory ?? "");
    if (/^([/\\]|[A-Za-z]:)/.test(inside) || inside.split(/[/\\]/).includes("..")) return null;
    return `/sessions/${encodeURIComponent(session)}/file/${encodeURIComponent(inside)}/${line}`;
  }

  /** Sends a message to a session, and goes there. */
  private async say(id: string, text: string, key: string): Promise<void> {
    const { sessionId, messageId } = await post<{ sessionId: string; messageId: string }>(sessionPath(id, "messages"), { message: text, messageKey: key });
    noteSent(sessionId, { messageId, text });
    this.go(`/sessions/${encodeURIComponent(sessionId)}`);
  }

  private showSession(id: string, part: string, what: string | null): void {
    const around: Surroundings = {
      live: this.live, announce: this.announce, go: this.go, name: (title) => (this.list.title.value = title), modes: this.me.modes,
    };
    this.conversation = part === "agents" && what !== null ? new AgentView(id, what, around)
      : new ConversationView(id, around, part === "find" ? null : what, part === "find" ? what : null);
    replace(this.main, this.conversation.element);
    void this.conversation.open();
  }

  /** A page that follows no session. */
  private show(page: HTMLElement): void {
    this.live.follow(null, null, null);
    replace(this.main, page);
    this.main.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
  }

  private showPage(area: string): void {
    this.live.follow(null, null, null);
    this.list.title.value = "";
    replace(this.main, this.pageOf(area));
    if (area !== "list") this.main.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
    else if (this.left !== null) this.nav.querySelector<HTMLElement>(`[data-key="${CSS.escape(this.left)}"] a`)?.focus();
  }

  private pageOf(area: string): HTMLElement {
    switch (area) {
      case "new":
        return this.mounted((place) => mount(NewSession, { me: this.me, live: this.live, go: this.go }, place));
      case "costs":
        return this.mounted((place) => mount(Costs, { me: this.me, live: this.live }, place));
      case "servers":
        return this.mounted((place) => mount(Servers, { live: this.live }, place));
      case "settings":
        return this.mounted((place) => mount(Settings, { me: this.me, live: this.live, signedOut: this.signedOut }, place));
      case "design":
        return this.mounted((place) => mount(Design, {}, place));
      case "list":
        return this.mounted((place) => mount(Home, { live: this.live }, place));
      default:
        return h("div", { class: "welcome" }, h("h1", { tabindex: -1 }, "Not found"),
          h("p", null, "There is no such page. Go to ", h("a", { route: "/" }, "all sessions"), " or ", h("a", { route: "/new" }, "start a new one"), "."));
    }
  }

  /** A page that is a component, until another one is shown. */
  private mounted(draw: (place: HTMLElement) => () => void): HTMLElement {
    const place = h("div", { class: "place" });
    this.page = draw(place);
    return place;
  }

  private closeView(): void {
    this.page?.();
    this.page = null;
    this.conversation?.close();
    this.conversation = null;
  }

  close(): void {
    removeEventListener("hashchange", this.route);
    document.removeEventListener("keydown", this.key);
    clearTimeout(this.lineTimer);
    document.body.classList.remove("no-server");
    this.closeView();
    for (const take of this.unmount) take();
    this.list.close();
    this.live.stop();
  }
}

/** The parts of a route as they were before they were written into an address; of one that nobody has written so, an
 * area that does not exist. */
function decoded(parts: readonly string[]): string[] {
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return ["", "not-found"];
  }
}

let shown: Console | null = null;
let door: (() => void) | null = null;

async function start(problem = ""): Promise<void> {
  let ways: SignInWays = { token: true, open: false, provider: false };
  shown?.close();
  shown = null;
  closeDoor();
  onSignedOut((told) => {
    ways = told;
    if (shown !== null) void start();
  });
  if (cameBackInVain()) problem = "Signing in with your account failed or took too long. Try again.";
  const ticket = takeTicket();
  try {
    if (ticket !== null) await signIn({ ticket });
  } catch (error) {
    if (error instanceof ApiError && error.code === "OTHER_PERSON") return showChoice(ticket as string, error.message);
    problem = error instanceof ApiError && error.code === "SIGN_IN_FAILED"
      ? "This link was already used or has expired. Ask for a new one." : messageOf(error);
  }
  try {
    const me = await get<Me>("/api/me");
    openDrafts(me.principal);
    closeDoor();
    shown = new Console(me, () => void start());
  } catch (error) {
    if (error instanceof ApiError && error.code === "SIGNED_OUT") showSignIn(ways, problem);
    else showFailure(error instanceof ApiError && error.status === 0 ? `No server responds at this address. ${START_WORDS}` : messageOf(error));
  }
}

function showSignIn(ways: SignInWays, problem: string): void {
  showDoor(SignIn, { ways, problem, done: () => void start() });
}

function showChoice(ticket: string, why: string): void {
  const change = (): void => void signIn({ ticket, replace: true }).then(() => start(), (error: unknown) => start(messageOf(error)));
  showDoor(AccountChoice, { why, stay: () => void start(), change });
}

function showFailure(why: string): void {
  showDoor(NoAnswer, { why, again: () => void start() });
  addEventListener("online", () => void start(), { once: true });
}

function closeDoor(): void {
  door?.();
  door = null;
}

/** A page for somebody who is not signed in. */
function showDoor<Props extends object>(page: FunctionComponent<Props>, props: Props): void {
  document.body.dataset["area"] = "sign-in";
  closeDoor();
  document.body.replaceChildren();
  door = mount(page, props, document.body);
}

addEventListener("hashchange", () => {
  // A link with a ticket that is opened in a tab where the page is already.
  if (location.hash.startsWith("#ticket=")) void start();
});
setHighlighter(new Highlight().add);
void start();
