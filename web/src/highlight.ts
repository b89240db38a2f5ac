// Highlights code in a worker. The page never waits for the worker, and code that takes too long stays plain.

import type { HighlightPart, HighlightRequest } from "./highlighter";
import { scriptAddress } from "./scripts";

const MAX_CODE = 50_000;
/** The maximum number of code blocks in the queue; further ones stay plain. */
const MAX_WAITING = 200;
/** A pattern may run very long on a text made to slow it down: then the worker is terminated and the text stays plain. */
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
  /** Whether the worker has ever answered. A worker that fails to load is not started again. */
  private works = false;
  private broken = false;

  /** Queues code and passes its parts to `done`. Never calls `done` if highlighting is unavailable or takes too long. */
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
      this.stop(); // the browser has no workers: code stays plain
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
    // Use the parts only if together they are exactly the code.
    if (parts.length && parts.map(([, text]) => text).join("") === job.request.code) job.done(parts);
    this.next();
  }
}
