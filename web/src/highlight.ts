// Colours for code, from a worker: the page never waits for them, and code that takes too long stays plain.

import type { HighlightPart, HighlightRequest } from "./highlighter";
import { scriptAddress } from "./scripts";

const MAX_CODE = 50_000;
/** The most code that may wait; what comes on top of that stays plain. */
const MAX_WAITING = 200;
/** A pattern may need very long on a text that was made for it: then the worker is ended, and so is that text. */
const MAX_MILLISECONDS = 3000;
const NOT_A_LANGUAGE = new Set(["error", "result", "command", "text", "txt", "plain", "plaintext", "code"]);

interface Job {
  request: HighlightRequest;
  done(parts: readonly HighlightPart[]): void;
}

export class Highlight {
  private worker: Worker | null = null;
  private readonly waiting: Job[] = [];
  private current: Job | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private number = 0;
  /** Whether the worker has ever answered; one that cannot be loaded is not tried again. */
  private works = false;
  private broken = false;

  /** Hands over the parts of the code as soon as they are found; never, where that takes too long. */
  readonly add = (code: string, language: string, done: (parts: readonly HighlightPart[]) => void): void => {
    const name = language.toLowerCase();
    if (this.broken || code.length > MAX_CODE || NOT_A_LANGUAGE.has(name) || !/^[a-z][a-z0-9+#.-]{0,20}$/.test(name)) return;
    if (this.waiting.length >= MAX_WAITING) return;
    this.waiting.push({ request: { id: (this.number += 1), code, language: name }, done });
    this.next();
  };

  private next(): void {
    if (this.current !== null) return;
    this.current = this.waiting.shift() ?? null;
    if (this.current === null) return;
    this.worker ??= this.start();
    this.worker?.postMessage(this.current.request);
    this.timer = setTimeout(() => this.giveUp(), MAX_MILLISECONDS);
  }

  private start(): Worker | null {
    try {
      const worker = new Worker(scriptAddress("/highlighter.js"));
      worker.onmessage = (event: MessageEvent<{ id: number; parts: HighlightPart[] }>) => {
        this.works = true;
        this.answered(event.data.id, event.data.parts);
      };
      worker.onerror = () => {
        if (!this.works) this.stop();
        this.giveUp();
      };
      return worker;
    } catch {
      this.stop(); // a browser without workers: code stays plain
      return null;
    }
  }

  private stop(): void {
    this.broken = true;
    this.waiting.length = 0;
  }

  private giveUp(): void {
    this.worker?.terminate();
    this.worker = null;
    this.answered(this.current?.request.id ?? 0, []);
  }

  private answered(id: number, parts: readonly HighlightPart[]): void {
    const job = this.current;
    if (job?.request.id !== id) return;
    clearTimeout(this.timer);
    this.current = null;
    // Only what is the code itself takes its place.
    if (parts.length && parts.map(([, text]) => text).join("") === job.request.code) job.done(parts);
    this.next();
  }
}
