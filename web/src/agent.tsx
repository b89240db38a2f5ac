// The conversation of a subagent: its prompt, its steps and its answer. It updates while the subagent works.

import { signal } from "@preact/signals";
import { createRef, type VNode } from "preact";
import { useLayoutEffect, useMemo } from "preact/hooks";
import { ApiError, messageOf } from "./api";
import type { Live, Watcher } from "./live";
import { routeOf } from "./sessions";
import { Turns, type TurnActs } from "./turn";
import { TurnWindow } from "./turn_window";
import type { Item } from "./types";

/** Milliseconds between an event of the subagent and the next read of its transcript. */
const DELAY = 500;
const NOTHING = "No output yet.";

export function agentRoute(session: string, agent: string): string {
  return `${routeOf(session)}/agents/${encodeURIComponent(agent)}`;
}

class AgentConversation implements Watcher {
  readonly shown: TurnWindow;
  readonly acts: TurnActs;
  readonly note = signal("");
  readonly heading = createRef<HTMLHeadingElement>();
  /** The calls whose results the stream has reported. */
  private readonly settled = new Set<string>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private closed = false;

  constructor(private readonly session: string, private readonly agent: string, private readonly live: Live) {
    this.shown = new TurnWindow({ session: () => session, agent, onNewestShown: async () => void (await this.read()) });
    this.acts = {
      directory: () => live.rows.get(session)?.directory ?? "",
      whole: (turn, state) => this.shown.whole(turn, state),
      image: () => Promise.reject(new Error("Its conversation was not saved.")),
      agentRoute: (other) => agentRoute(session, other),
    };
  }

  async open(): Promise<void> {
    this.heading.current?.focus({ preventScroll: true });
    // The cursor is from before the read: an event for anything written in between triggers another read.
    const cursor = await this.read();
    if (!this.closed) this.live.follow(this.session, cursor, this);
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.timer);
  }

  event(name: string, data: Record<string, unknown>): void {
    // The stream reports the steps of a subagent under the call that started it; only the transcript says which subagent
    // they belong to. When that call has a result, the subagent has written its last step.
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
      this.note.value = page.total ? "" : NOTHING;
      // The stream reports a result before it is in the transcript, and the next event may come much later: read again.
      if (page.turns.some((turn) => turn.items.some((item) => !item.status && this.settled.has(item.id)))) this.readLater();
      return page.cursor ?? null;
    } catch (error) {
      // A subagent that has just started has no transcript yet: the next step of the session triggers another read.
      const isStarting = error instanceof ApiError && error.status === 400 && this.shown.last === undefined;
      this.note.value = isStarting ? NOTHING : messageOf(error);
      return null;
    }
  }
}

export function AgentPage({ session, agent, live }: { session: string; agent: string; live: Live }): VNode {
  const conversation = useMemo(() => new AgentConversation(session, agent, live), []);
  const { shown } = conversation;
  useLayoutEffect(() => {
    void conversation.open();
    return () => conversation.close();
  }, []);
  return (
    <div class="conversation">
      <header class="view-head">
        <a class="back always" href={`#${routeOf(session)}`} aria-label="Back to the session">‹</a>
        <div class="heading"><h1 tabIndex={-1} ref={conversation.heading}>Subagent</h1><p class="about">{`Agent ${agent}`}</p></div>
      </header>
      <div class="scroller" tabIndex={0} role="region" aria-label="Conversation of the subagent" ref={shown.scroller} onScroll={() => shown.scrolled()}>
        <Turns shown={shown} acts={conversation.acts} />
        <p class="note" role="status">{conversation.note.value}</p>
      </div>
    </div>
  );
}
