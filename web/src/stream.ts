// Server-sent events that survive what happens on a phone: lost connections, server restarts, background tabs. Every
// event has an id; a new connection sends the last id and continues after it.
//
// Not `EventSource`: it sends no headers, gives up permanently on the first response that is not a stream, and does not
// detect a connection that went silent.

import { authorization } from "./api";

export type Line = "connecting" | "live" | "offline" | "refused";

export interface StreamHandlers {
  event(name: string, data: unknown, id: string): void;
  /** The state of the connection changed. */
  line(state: Line): void;
}

const MAX_SILENCE_MS = 45_000;
const MIN_PAUSE = 500;
const MAX_PAUSE = 15_000;
const HIDDEN_FOR = 60_000;

export class EventStream {
  private aborter: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private hiddenTimer: ReturnType<typeof setTimeout> | undefined;
  private pause = MIN_PAUSE;
  private ended = false;

  constructor(
    private readonly address: string,
    private lastId: string,
    private readonly handlers: StreamHandlers,
  ) {
    addEventListener("online", this.wake);
    addEventListener("offline", this.drop);
    document.addEventListener("visibilitychange", this.visibility);
    void this.connect();
  }

  close(): void {
    this.ended = true;
    removeEventListener("online", this.wake);
    removeEventListener("offline", this.drop);
    document.removeEventListener("visibilitychange", this.visibility);
    this.disconnect();
  }

  private readonly wake = (): void => {
    this.pause = MIN_PAUSE;
    this.disconnect();
    void this.connect();
  };

  private readonly drop = (): void => {
    this.disconnect();
    this.handlers.line("offline");
  };

  /** Closes the connection of a hidden tab after a while: browsers allow only a few connections per server. */
  private readonly visibility = (): void => {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) this.hiddenTimer = setTimeout(() => this.disconnect(), HIDDEN_FOR);
    else if (this.aborter === null) this.wake();
  };

  private disconnect(): void {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    clearTimeout(this.hiddenTimer);
    this.aborter?.abort();
    this.aborter = null;
  }

  private async connect(): Promise<void> {
    if (this.ended) return;
    const aborter = new AbortController();
    this.aborter = aborter;
    this.handlers.line("connecting");
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream", ...authorization() };
      if (this.lastId) headers["Last-Event-ID"] = this.lastId;
      this.listenForSilence();
      const response = await fetch(this.address, { headers, signal: aborter.signal, cache: "no-store" });
      if (response.status === 401) {
        this.ended = true;
        this.handlers.line("refused");
        return;
      }
      if (!response.ok || response.body === null) throw new Error(`status ${response.status}`);
      this.handlers.line("live");
      await this.read(response.body, aborter.signal);
    } catch {
      // The cause does not matter here: the next attempt shows whether the problem persists.
    }
    if (this.aborter === aborter) this.again();
  }

  private again(): void {
    this.disconnect();
    if (this.ended) return;
    this.handlers.line("offline");
    this.timer = setTimeout(() => void this.connect(), this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(this.pause * 2, MAX_PAUSE);
  }

  private listenForSilence(): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.aborter?.abort(), MAX_SILENCE_MS);
  }

  private async read(body: ReadableStream<Uint8Array>, signal: AbortSignal): Promise<void> {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let parts: string[] = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done || signal.aborted) return;
      this.listenForSilence();
      const text = decoder.decode(value, { stream: true });
      parts.push(text);
      if (!text.includes("\n")) continue;
      const whole = parts.join("");
      const end = whole.lastIndexOf("\n\n");
      if (end < 0) {
        parts = [whole];
        continue;
      }
      parts = [whole.slice(end + 2)];
      for (const message of whole.slice(0, end).split("\n\n")) this.dispatch(message);
      this.pause = MIN_PAUSE;
    }
  }

  private dispatch(message: string): void {
    let [name, data, id] = ["message", "", ""];
    for (const line of message.replace(/\r/g, "").split("\n")) {
      const colon = line.indexOf(":");
      if (colon <= 0) continue;
      const value = line.slice(colon + 1).replace(/^ /, "");
      const field = line.slice(0, colon);
      if (field === "event") name = value;
      else if (field === "data") data += data ? `\n${value}` : value;
      else if (field === "id") id = value;
    }
    if (id) this.lastId = id;
    if (data && !this.ended) this.handlers.event(name, JSON.parse(data), id);
  }
}
