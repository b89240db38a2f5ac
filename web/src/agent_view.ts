// The conversation of a subagent: what it was asked, what it did and what it answered. It goes on while the agent works.

import { ApiError, get, messageOf, sessionPath } from "./api";
import type { Surroundings } from "./conversation_view";
import { h } from "./dom";
import type { Watcher } from "./live";
import { TurnWindow } from "./turn_window";
import type { Item } from "./types";

/** Milliseconds after which what an agent has done meanwhile is read. */
const DELAY = 500;
const NOTHING = "No output yet.";

export class AgentView implements Watcher {
  readonly element: HTMLElement;
  private readonly shown: TurnWindow;
  private readonly scroller: HTMLElement;
  private readonly heading = h("h1", { tabindex: -1 }, "Subagent");
  private readonly note = h("p", { class: "note", role: "status" });
  private timer: ReturnType<typeof setTimeout> | undefined;
  private closed = false;

  /** The calls that have a result, as the stream has told. */
  private readonly settled = new Set<string>();

  constructor(private readonly session: string, private readonly agent: string, private readonly around: Surroundings) {
    const row = (): { directory?: string | null } => around.live.rows.get(session) ?? {};
    this.shown = new TurnWindow(() => session, () => row().directory ?? "", { whole: (item) => this.whole(item), agentRoute: (other) => agentRoute(session, other) },
      () => this.scroller, async () => void (await this.read()), { image: () => Promise.reject(new Error("Its conversation was not saved.")), sent: () => [] }, agent);
    this.scroller = h("div", { class: "scroller", tabindex: 0, role: "region", aria: { label: "Conversation of the subagent" }, on: { scroll: () => this.shown.scrolled() } },
      this.shown.earlier, this.shown.element, this.shown.later, this.note);
    this.element = h("div", { class: "conversation" },
      h("header", { class: "view-head" },
        h("a", { class: "back always", route: `/sessions/${encodeURIComponent(session)}`, aria: { label: "Back to the session" } }, "‹"),
        h("div", { class: "heading" }, this.heading, h("p", { class: "about" }, `Agent ${agent}`))),
      this.scroller);
  }

  async open(): Promise<void> {
    this.heading.focus({ preventScroll: true });
    // From before what was read: whatever is written between the two has it read again.
    const cursor = await this.read();
    if (!this.closed) this.around.live.follow(this.session, cursor, this);
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.timer);
  }

  event(name: string, data: Record<string, unknown>): void {
    // Its steps are told as those of the call that has started it; the transcript says which are its own. With the result
    // of that call it has written its last.
    const items = (data["items"] as Item[] | undefined) ?? [];
    const isOfAgent = name === "items" && (Boolean(data["parent"]) || items.some((item) => item.agent === this.agent));
    if (!isOfAgent && name !== "ended") return;
    for (const item of items) if (item.status) this.settled.add(item.id);
    this.readLater();
  }

  private readLater(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      if (!this.closed) void this.read();
    }, DELAY);
  }

  private async read(): Promise<string | null> {
    try {
      const page = await this.shown.fetchEnd();
      if (!this.closed) this.shown.show(page);
      this.note.textContent = page.total ? "" : NOTHING;
      // A result is told before it is written, and nothing may follow it for long: then it is looked for again.
      if (page.turns.some((turn) => turn.items.some((item) => !item.status && this.settled.has(item.id)))) this.readLater();
      return page.cursor ?? null;
    } catch (error) {
      // One that has just been started has no transcript yet: the next step of the session has it read again.
      const isStarting = error instanceof ApiError && error.status === 400 && !this.shown.turns.length;
      this.note.textContent = isStarting ? NOTHING : messageOf(error);
      return null;
    }
  }

  private async whole(item: Item): Promise<Item> {
    const view = this.shown.turns.find((one) => one.has(item.id)) ?? this.shown.last;
    const path = sessionPath(this.session, "turns", String(view?.turn.number ?? 1), "items", encodeURIComponent(item.id));
    return (await get<{ item: Item }>(`${path}?agent=${encodeURIComponent(this.agent)}`)).item;
  }
}

export function agentRoute(session: string, agent: string): string {
  return `/sessions/${encodeURIComponent(session)}/agents/${encodeURIComponent(agent)}`;
}
