// The console of a signed-in user: the current page, the list of sessions next to it, and the state of the connection.

import { signal, useSignal, type Signal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { AgentPage } from "./agent";
import { post, sessionPath } from "./api";
import { ChangesPage } from "./changes";
import { Comments } from "./comments";
import { ConversationPage } from "./conversation";
import type { PageContext } from "./conversation_state";
import { Costs } from "./costs";
import { Design } from "./design";
import { noteSent } from "./drafts";
import { FilePage } from "./file";
import { Home } from "./home";
import { fileRoute } from "./links";
import { NeedsPill, SessionList, SessionNav } from "./list";
import { Live } from "./live";
import { NewSession } from "./new";
import { Servers } from "./servers";
import { isWatched, routeOf } from "./sessions";
import { Settings } from "./settings";
import { below } from "./tool_input";
import type { Me } from "./types";

/** Milliseconds without a connection after which the page says how to start the server. */
const NO_SERVER = 10_000;
/** Milliseconds for which a new question cannot be answered with a key. */
const PRESS_GUARD_MS = 800;
const LINE_WORDS = { connecting: "Connecting…", live: "", offline: "Offline: trying again", refused: "" } as const;
export const START_WORDS = "To start it, type “claude-code-mcp web” on the machine where it ran.";
const PAGES = [["/new", "New"], ["/costs", "Costs"], ["/servers", "Servers"], ["/settings", "Settings"]] as const;

/** The target of the URL fragment: an area and, for a session, a part of it. */
interface Route {
  /** The complete route. A different key is a different page. */
  key: string;
  area: string;
  session: string | null;
  part: string;
  what: string;
  line: number;
}

/** The state that the components of the page share. */
class ConsoleState {
  readonly live: Live;
  readonly list: SessionList;
  readonly route: Signal<Route>;
  /** The last announcement for screen readers. A new number announces the same text again. */
  readonly announced = signal({ text: "", number: 0 });
  readonly pageContext: PageContext;
  /** The session of the page that the user left last; null if that page had none. */
  left: string | null = null;

  constructor(readonly me: Me, readonly signedOut: () => void) {
    this.live = new Live(signedOut, me.machines);
    this.list = new SessionList(this.live);
    this.route = signal(readRoute());
    this.pageContext = {
      live: this.live, go: this.go, modes: me.modes,
      announce: (text) => (this.announced.value = { text, number: this.announced.peek().number + 1 }), name: (title) => (this.list.title.value = title),
    };
    this.arrive();
    void this.list.load();
  }

  readonly go = (route: string): void => {
    location.hash = `#${route}`;
  };

  /** Handles a change of the URL fragment. */
  readonly follow = (): void => {
    if (location.hash.startsWith("#ticket=")) return;
    this.left = this.route.peek().session;
    this.route.value = readRoute();
    this.arrive();
  };

  private arrive(): void {
    const { area, session, part } = this.route.peek();
    // Before the page renders: some components measure themselves, and their room depends on the area.
    document.body.dataset["area"] = area;
    this.list.current.value = session;
    fileRoute.value = session === null ? null : (path, line) => this.routeOfFile(session, path, line);
    if (session === null) this.list.title.value = "";
    // A conversation follows its session itself, once it has been read.
    if (session === null || part === "changes" || part === "file") this.live.follow(null, null, null);
  }

  /** The route of a file below the session's directory; null for any other. The server reports whether the file exists. */
  private routeOfFile(session: string, path: string, line: number): string | null {
    const inside = below(path, this.live.rows.get(session)?.directory ?? "");
    if (/^([/\\]|[A-Za-z]:)/.test(inside) || inside.split(/[/\\]/).includes("..")) return null;
    return `${routeOf(session)}/file/${encodeURIComponent(inside)}/${line}`;
  }

  /** Sends a message to a session and navigates to it. */
  async say(id: string, text: string, key: string): Promise<void> {
    const { sessionId, messageId } = await post<{ sessionId: string; messageId: string }>(sessionPath(id, "messages"), { message: text, messageKey: key });
    noteSent(sessionId, { messageId, text });
    this.go(routeOf(sessionId));
  }

  close(): void {
    this.list.close();
    this.live.stop();
  }
}

/** Reads the route from the URL fragment. If its parts cannot be decoded, the area is one that does not exist. */
function readRoute(): Route {
  const key = location.hash.replace(/^#/, "") || "/";
  let parts: string[];
  try {
    parts = key.split("/").map(decodeURIComponent);
  } catch {
    parts = ["", "not-found"];
  }
  const [, area = "", id = "", part = "", what = "", line = ""] = parts;
  return { key, area: area || "list", session: area === "sessions" && id ? id : null, part, what, line: Number(line) || 0 };
}

export function Console({ me, signedOut }: { me: Me; signedOut: () => void }): VNode {
  const state = useMemo(() => new ConsoleState(me, signedOut), []);
  const main = useRef<HTMLElement>(null);
  const nav = useRef<HTMLDivElement>(null);
  const route = state.route.value;
  const announced = state.announced.value;
  useLayoutEffect(() => {
    const key = (event: KeyboardEvent): void => press(event, state, main.current, nav.current);
    addEventListener("hashchange", state.follow);
    document.addEventListener("keydown", key);
    return () => {
      removeEventListener("hashchange", state.follow);
      document.removeEventListener("keydown", key);
      state.close();
    };
  }, []);
  useLayoutEffect(() => {
    // Back on the list, the focus returns to the session that the user left. A conversation sets the focus itself.
    if (route.area !== "list") main.current?.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
    else if (state.left !== null) nav.current?.querySelector<HTMLElement>(`[data-key="${CSS.escape(state.left)}"] a`)?.focus();
  }, [route.key]);
  const skip = (event: Event): void => {
    event.preventDefault();
    main.current?.querySelector<HTMLElement>("h1")?.focus();
  };
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>Skip to the content</a>
      <header class="bar">
        <a class="brand" href="#/">Claude Code</a>
        <div class="pill-place"><NeedsPill live={state.live} /></div>
        <nav class="pages" aria-label="Pages">
          {PAGES.map(([page, label]) => <a key={page} href={`#${page}`} aria-current={page === `/${route.area}` ? "page" : undefined}>{label}</a>)}
        </nav>
        <Line live={state.live} />
      </header>
      <div class="layout">
        <div class="place" ref={nav}><SessionNav list={state.list} /></div>
        <main id="main" ref={main}><Page key={route.key} route={route} state={state} /></main>
      </div>
      <p class="spoken" role="status" aria-live="polite"><span key={announced.number}>{announced.text}</span></p>
    </>
  );
}

function Page({ route, state }: { route: Route; state: ConsoleState }): VNode {
  const { me, live, go, signedOut } = state;
  const { area, session } = route;
  if (session !== null) return <SessionPage id={session} route={route} state={state} />;
  switch (area) {
    case "new":
      return <NewSession me={me} live={live} go={go} />;
    case "costs":
      return <Costs me={me} live={live} />;
    case "servers":
      return <Servers live={live} />;
    case "settings":
      return <Settings me={me} live={live} signedOut={signedOut} />;
    case "design":
      return <Design />;
    case "list":
      return <Home live={live} />;
    default:
      return (
        <div class="welcome">
          <h1 tabIndex={-1}>Not found</h1>
          <p>There is no such page. Go to <a href="#/">all sessions</a> or <a href="#/new">start a new one</a>.</p>
        </div>
      );
  }
}

function SessionPage({ id, route, state }: { id: string; route: Route; state: ConsoleState }): VNode {
  const { part, what } = route;
  if (part === "changes" || part === "file") return <Review id={id} route={route} state={state} />;
  if (part === "agents" && what) return <AgentPage session={id} agent={what} live={state.live} />;
  const isSearch = part === "find";
  return <ConversationPage id={id} pageContext={state.pageContext} wanted={isSearch ? null : what || null} searchText={isSearch ? what : null} />;
}

/** The changes of a session or one of its files, with comments that are sent as a message. */
function Review({ id, route: { part, what, line }, state }: { id: string; route: Route; state: ConsoleState }): VNode {
  const say = (text: string, key: string): Promise<void> => state.say(id, text, key);
  const comments = useMemo(() => new Comments(id, say, () => isWatched(state.live.rows.get(id) ?? { sessionId: id })), []);
  if (part === "changes") return <ChangesPage id={id} comments={comments} say={say} />;
  return <FilePage session={id} path={what} line={line} comments={comments} />;
}

/** The state of the connection and, if the server does not come back, how to start it. */
function Line({ live }: { live: Live }): VNode {
  const now = useSignal(0);
  void live.version.value;
  void now.value;
  const { state, lostSince } = live;
  const left = lostSince ? NO_SERVER - (Date.now() - lostSince) : NO_SERVER;
  // A new attempt sets the state to “connecting”, which does not hide this message.
  const none = lostSince > 0 && left <= 0 && navigator.onLine;
  useEffect(() => {
    if (!lostSince || left <= 0) return;
    const timer = setTimeout(() => (now.value += 1), left);
    return () => clearTimeout(timer);
  }, [lostSince]);
  useEffect(() => {
    document.body.classList.toggle("no-server", none);
    return () => document.body.classList.remove("no-server");
  }, [none]);
  return <p class="line" role="status" data-state={none ? "offline" : state}>{none ? `The server does not respond. ${START_WORDS}` : LINE_WORDS[state]}</p>;
}

/** Handles keyboard shortcuts; while a form field has the focus, there are none. */
function press(event: KeyboardEvent, { go }: ConsoleState, main: HTMLElement | null, nav: HTMLElement | null): void {
  const typing = (event.target as HTMLElement).matches("input, textarea, select");
  if (event.key === "Escape" && !typing) go("/");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") nav?.querySelector("input")?.focus();
  else if (event.key === "n") go("/new");
  else if (event.key === "j") (document.querySelector<HTMLElement>(".view-head .needs-pill") ?? document.querySelector<HTMLElement>(".needs-pill"))?.click();
  else if (event.repeat || !answerBy(event.key, main)) return;
  event.preventDefault();
}

const DECIDABLE = ".question.permission:not(.closed), .question.plan_review:not(.closed)";

/** Presses the button of a question that has this key; an allowance reads on while part of the question was not on
 * screen. The key belongs to the question on screen that has the focus, or to the only one on screen. Otherwise it moves the
 * focus to a question, so that no key answers a question that the user does not look at. */
function answerBy(key: string, main: HTMLElement | null): boolean {
  if (!["a", "s", "d"].includes(key)) return false;
  const open = [...(main?.querySelectorAll<HTMLElement>(DECIDABLE) ?? [])];
  const onScreen = open.filter(isOnScreen);
  const asked = onScreen.find((question) => question.contains(document.activeElement)) ?? (onScreen.length === 1 ? onScreen[0] : undefined);
  if (asked === undefined) {
    (onScreen[0] ?? open[0])?.querySelector<HTMLElement>("h2")?.focus();
    return open.length > 0;
  }
  const button = asked.querySelector<HTMLElement>(`[aria-keyshortcuts="${key}"]`) ?? (key === "d" ? null : asked.querySelector<HTMLElement>(".lines-left"));
  asked.dataset["byKey"] = "";
  // A key that was meant for the previous question must not answer the one that took its place.
  if (performance.now() - Number(asked.dataset["since"] ?? 0) > PRESS_GUARD_MS) button?.click();
  return button !== null;
}

function isOnScreen(element: HTMLElement): boolean {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}
