// The current activity of a session, in one place: the running step and its duration, waiting, starting, silent, or
// offline because the server cannot be reached.

import { useSignal, type ReadonlySignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect } from "preact/hooks";
import type { Live } from "./live";
import { isWorking } from "./sessions";
import type { SessionRow } from "./types";
import { duration } from "./words";

/** The running turn, as the stream reports it. */
export interface Doing {
  /** The running step, such as “Run the tests”; empty if it is not known. */
  what: string;
  /** When the turn began, in milliseconds; 0 if that is not known. */
  since: number;
}

const OFFLINE = "Offline: reconnecting. What you write is kept here.";
/** Milliseconds without a connection after which a stream that is reconnecting counts as offline. */
const OFFLINE_DELAY_MS = 1500;

export function Activity({ live, row, doing }: { live: Live; row: ReadonlySignal<SessionRow>; doing: ReadonlySignal<Doing> }): VNode | null {
  const now = useSignal(Date.now());
  void live.version.value;
  const { value } = row;
  const working = isWorking(value);
  const offline = live.state === "offline" || (live.state === "connecting" && live.lostSince > 0 && Date.now() - live.lostSince > OFFLINE_DELAY_MS);
  useEffect(() => {
    if (!working && !offline) return;
    const clock = setInterval(() => (now.value = Date.now()), 1000);
    return () => clearInterval(clock);
  }, [working, offline]);
  if (offline) return <div class="activity" role="status" data-state="offline"><span class="doing">{OFFLINE}</span></div>;
  if (!working) return null;
  const { what, since } = doing.value;
  const state = value.status === "waiting_for_input" ? "asks" : value.needs === "stalled" ? "silent" : "working";
  const words = state === "asks" ? "Waits for your answer"
    : value.retrying || value.queued || (value.stalledSeconds ? `No output for ${duration(value.stalledSeconds * 1000)}` : "") || what || "Starting…";
  const [tokens] = value.context ?? [0];
  return (
    <div class="activity" data-state={state}>
      <span class="doing" role="status" dir="auto">{words}</span>
      <span class="facts">{[since ? duration(Math.max(0, now.value - since)) : "", tokens ? `${(tokens / 1000).toFixed(1)}k tokens` : ""].filter(Boolean).join(" · ")}</span>
    </div>
  );
}
