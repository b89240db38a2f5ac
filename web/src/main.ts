// The console: who is signed in, which screen is shown, the list beside it, and the state of the connection.

import { ApiError, get, messageOf, onSignedOut, type SignInWays } from "./api";
import { ConversationView } from "./conversation_view";
import { costsView } from "./costs_view";
import { button, h, replace } from "./dom";
import { ListView } from "./list_view";
import { Live } from "./live";
import { newView } from "./new_view";
import { ServersView } from "./servers_view";
import { settingsView } from "./settings_view";
import { signIn, signInView, takeTicket } from "./sign_in_view";
import type { Me } from "./types";

const LINE_WORDS = { connecting: "Connecting…", live: "", offline: "Offline: trying again", refused: "" } as const;
const PAGES = [["/new", "New"], ["/costs", "Costs"], ["/servers", "Servers"], ["/settings", "Settings"]] as const;

class Console {
  private readonly announcer = h("p", { class: "spoken", role: "status", aria: { live: "polite" } });
  private readonly line = h("p", { class: "line", role: "status" });
  private readonly main = h("main", { id: "main" });
  private readonly live: Live;
  private readonly list: ListView;
  private readonly links: HTMLAnchorElement[];
  private conversation: ConversationView | null = null;
  private servers: ServersView | null = null;
  private left: string | null = null;

  constructor(private readonly me: Me, private readonly signedOut: () => void) {
    this.live = new Live(signedOut);
    this.list = new ListView(this.live);
    this.links = PAGES.map(([route, label]) => h("a", { route }, label));
    replace(document.body,
      h("a", { class: "skip", route: "main", on: { click: (event) => this.skip(event) } }, "Skip to the content"),
      h("header", { class: "bar" }, h("a", { class: "brand", route: "/" }, "Claude Code"),
        h("nav", { class: "pages", aria: { label: "Pages" } }, ...this.links), this.line),
      h("div", { class: "layout" }, this.list.element, this.main), this.announcer);
    addEventListener("hashchange", this.route);
    document.addEventListener("keydown", this.key);
    this.live.onChange(() => this.drawLine());
    void this.list.load();
    this.route();
  }

  private readonly key = (event: KeyboardEvent): void => {
    const typing = (event.target as HTMLElement).matches("input, textarea, select");
    if (event.key === "Escape" && !typing) this.go("/");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") this.list.focusSearch();
    else if (event.key === "n") this.go("/new");
    else return;
    event.preventDefault();
  };

  private skip(event: Event): void {
    event.preventDefault();
    this.main.querySelector<HTMLElement>("h1")?.focus();
  }

  private drawLine(): void {
    const words = LINE_WORDS[this.live.state];
    if (this.line.textContent !== words) this.line.textContent = words;
    this.line.dataset["state"] = this.live.state;
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
    const [, area, id, , question] = route.split("/");
    this.closeView();
    document.body.dataset["area"] = area || "list";
    for (const link of this.links) {
      if (link.hash === `#/${area}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const session = area === "sessions" && id ? decodeURIComponent(id) : null;
    this.list.select(session);
    if (session !== null) this.showSession(session, question ? decodeURIComponent(question) : null);
    else this.showPage(area || "list");
    this.left = session;
  };

  private showSession(id: string, question: string | null): void {
    this.conversation = new ConversationView(id, { live: this.live, announce: this.announce, go: this.go }, question);
    replace(this.main, this.conversation.element);
    void this.conversation.open();
  }

  private showPage(area: string): void {
    this.live.follow(null, null, null);
    replace(this.main, this.page(area));
    if (area !== "list") this.main.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
    else if (this.left !== null) this.list.element.querySelector<HTMLElement>(`[data-key="${CSS.escape(this.left)}"] a`)?.focus();
  }

  private page(area: string): HTMLElement {
    switch (area) {
      case "new":
        return newView(this.me, this.go);
      case "costs":
        return costsView();
      case "servers":
        this.servers = new ServersView();
        return this.servers.element;
      case "settings":
        return settingsView(this.me, this.signedOut);
      default:
        return h("div", { class: "welcome" }, h("h1", { tabindex: -1 }, "Sessions"),
          h("p", null, "Choose a session, or ", h("a", { route: "/new" }, "start a new one"), "."));
    }
  }

  private closeView(): void {
    this.conversation?.close();
    this.conversation = null;
    this.servers?.close();
    this.servers = null;
  }

  close(): void {
    removeEventListener("hashchange", this.route);
    document.removeEventListener("keydown", this.key);
    this.closeView();
    this.list.close();
    this.live.stop();
  }
}

let shown: Console | null = null;

async function start(problem = ""): Promise<void> {
  let ways: SignInWays = { token: true, open: false };
  shown?.close();
  shown = null;
  onSignedOut((told) => {
    ways = told;
    if (shown !== null) void start();
  });
  const ticket = takeTicket();
  try {
    if (ticket !== null) await signIn({ ticket });
  } catch (error) {
    problem = error instanceof ApiError && error.code === "SIGN_IN_FAILED"
      ? "This link was used before or is too old. Ask for a new one." : messageOf(error);
  }
  try {
    shown = new Console(await get<Me>("/api/me"), () => void start());
  } catch (error) {
    if (error instanceof ApiError && error.code === "SIGNED_OUT") showSignIn(ways, problem);
    else showFailure(messageOf(error));
  }
}

function showSignIn(ways: SignInWays, problem: string): void {
  document.body.dataset["area"] = "sign-in";
  replace(document.body, signInView(ways, problem, () => void start()));
  document.querySelector<HTMLElement>("h1")?.focus();
}

function showFailure(why: string): void {
  document.body.dataset["area"] = "sign-in";
  replace(document.body, h("main", { class: "sign-in", id: "main" }, h("h1", null, "Claude Code"),
    h("p", { class: "problem", role: "alert" }, why), button("Try again", () => void start(), { class: "allow" })));
  addEventListener("online", () => void start(), { once: true });
}

addEventListener("hashchange", () => {
  // A link with a ticket that is opened in a tab where the page is already.
  if (location.hash.startsWith("#ticket=")) void start();
});
void start();
