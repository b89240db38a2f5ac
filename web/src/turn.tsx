// One turn: the prompt, its items, the text that Claude is writing, and how the turn ended.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { messageOf } from "./api";
import type { Margin } from "./line_selection";
import { ItemView } from "./item";
import { WrittenMarkdown } from "./markdown";
import { Prompt } from "./prompt";
import { ReadCalls } from "./tool";
import { ItemState, type Ending, type TurnState } from "./turn_state";
import type { TurnWindow } from "./turn_window";
import type { Turn } from "./types";
import { CopyButton, cx } from "./ui";
import { dollars, duration } from "./words";

/** The endings after which another attempt may succeed. */
const PASSING = new Set(["api_error", "timeout", "crashed", "start_failed", "execution_error", "not_saved", "machine_lost"]);
const ENDINGS: Record<string, string> = {
  completed: "Done",
  interrupted: "Interrupted",
  cancelled: "Cancelled",
  timeout: "Stopped at the time limit",
  max_turns: "Stopped at the turn limit",
  max_budget: "Stopped at the budget limit",
  api_error: "API error",
  crashed: "Claude Code exited unexpectedly",
  start_failed: "Claude Code could not be started",
};

/** The actions of a turn in the view that shows it. */
export interface TurnActs {
  /** The working directory of the session; paths below it are shown relative to it. */
  directory(): string;
  /** Loads the whole of a shortened item. */
  whole(turn: TurnState, state: ItemState): Promise<void>;
  /** An image that was sent with the prompt of a turn, as a `data:` URL. */
  image(turn: number, number: number): Promise<string>;
  /** The margin in which the user comments on the lines of a file. */
  margin?(file: string): Margin | undefined;
  /** The route to the conversation of a subagent. */
  agentRoute?(agent: string): string;
  /** Rewrites the message of a turn. Absent if that is not possible. */
  edit?(turn: Turn): void;
  /** Retries a failed turn. `begun` says whether Claude had answered anything. Absent if that is not possible. */
  again?(turn: Turn, begun: boolean): Promise<void>;
}

/** The turns that are on the page, and buttons that load the others. */
export function Turns({ shown, acts }: { shown: TurnWindow; acts: TurnActs }): VNode {
  return (
    <>
      {shown.hasEarlier.value && <button type="button" class="more" onClick={() => void shown.loadEarlier()}>Show earlier turns</button>}
      <div class="log">{shown.turns.value.map((turn) => <TurnView key={turn.key} state={turn} acts={acts} />)}</div>
      {shown.cutEnd.value && <button type="button" class="more" onClick={() => void shown.loadLater()}>Show later turns</button>}
    </>
  );
}

function TurnView({ state, acts }: { state: TurnState; acts: TurnActs }): VNode {
  const { prompt } = state.turn.value;
  return (
    <article class={cx("turn", state.found.value && "found")} data-turn={state.number}>
      {/* Screen readers use this heading to move from turn to turn. It does not name the author: others may write to a shared session. */}
      <h2 class="spoken">{prompt ? `Message: ${prompt.slice(0, 80)}` : "Claude"}</h2>
      <Prompt state={state} acts={acts} />
      {state.cutStart.value && <p class="note">Earlier steps of this turn are not shown.</p>}
      <Items state={state} acts={acts} />
      <Foot state={state} acts={acts} />
      {state.warnings.value.length > 0 && <p class="note budget-warning">{state.warnings.value.join(" ")}</p>}
    </article>
  );
}

function Items({ state, acts }: { state: TurnState; acts: TurnActs }): VNode {
  return (
    <div class="items">
      {state.rows.value.map((row) => (row instanceof ItemState ? <ItemView key={row.id} state={row} turn={state} acts={acts} />
        : <ReadCalls key={`looks ${row[0]?.id}`} run={row} turn={state} acts={acts} />))}
      <Now state={state} />
    </div>
  );
}

/** The thinking, or the text that Claude is writing. */
function Now({ state }: { state: TurnState }): VNode {
  const writing = state.writing.value;
  const thinking = state.thinkingText.value;
  return (
    <>
      {writing !== null && <div class="said writing"><WrittenMarkdown {...writing} /></div>}
      {thinking !== null && <div class="thinking-now"><p class="note busy">Thinking…</p><p class="thought">{thinking}</p></div>}
    </>
  );
}

function Foot({ state, acts }: { state: TurnState; acts: TurnActs }): VNode {
  const busy = useSignal(false);
  const problem = useSignal("");
  const again = useSignal(true);
  const ending = state.ending.value;
  const answer = state.answer.value;
  const tryAgain = async (): Promise<void> => {
    busy.value = true;
    try {
      await acts.again?.(state.turn.peek(), state.size > 0);
      again.value = false;
    } catch (error) {
      problem.value = messageOf(error);
    }
    busy.value = false;
  };
  return (
    <div class="turn-foot">
      {ending !== null && !state.cutEnd.value && <p class={cx("ending", isFailure(ending) && "bad")}>{problem.value || endingWords(ending, lastText(state))}</p>}
      {ending !== null && acts.again && again.value && PASSING.has(ending.code) && <button type="button" class="again" disabled={busy.value} onClick={() => void tryAgain()}>Try again</button>}
      {!state.live.value && answer && <CopyButton text={() => answer} label="Copy answer" class="quiet copy-answer" />}
    </div>
  );
}

function isFailure({ code }: Ending): boolean {
  return !["completed", "interrupted"].includes(code);
}

/** The last text of a turn. */
function lastText(state: TurnState): string {
  return state.items.value.findLast(({ item }) => item.value.kind === "text")?.item.value.text?.trim() ?? "";
}

/** How a turn ended. `last` is the last text of the turn, which already contains an error of the API. */
function endingWords(ending: Ending, last: string): string {
  const { code, durationMs, costUsd } = ending;
  const detail = ending.detail ?? "";
  const said = last && detail && (detail.includes(last) || last.includes(detail));
  return [ENDINGS[code] ?? code.replace(/_/g, " "), isFailure(ending) && !said ? detail : "", durationMs ? duration(durationMs) : "", dollars(costUsd)].filter(Boolean).join(" · ");
}
