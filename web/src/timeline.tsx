// A session's turns and waits on one line, as plain SVG. All gaps between turns have the same short width.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect } from "preact/hooks";
import { get, sessionPath } from "./api";
import { answeredBy } from "./question";
import { toolTitle } from "./tool_input";
import type { Timeline, TurnTime, WaitTime } from "./types";
import { count, duration, visible } from "./words";

const WIDTH = 1000;
const MAX_GAP = 10;
/** The minimum width of a turn, however short it was. */
const MIN_TURN = 12;

interface Block {
  turn: TurnTime;
  until: number;
  waits: { at: number; until: number }[];
  /** The questions of the turn. Several may have waited at once. */
  questions: WaitTime[];
}

/** The timeline of a session, loaded once. `sharedBy` is its owner, unless that is the user. */
export function TimelinePart({ id, sharedBy, fail, jump }: { id: string; sharedBy: string | null; fail(error: unknown): void; jump(turn: number): void }): VNode {
  const read = useSignal<Timeline | null>(null);
  useEffect(() => {
    void get<Timeline>(sessionPath(id, "timeline")).then((timeline) => (read.value = timeline), fail);
  }, []);
  const blocks = read.value === null ? [] : together(read.value, Date.now() / 1000);
  if (!blocks.length) return <p class="timeline hint">{read.value === null ? "Reading the timeline…" : "No turns yet"}</p>;
  return <><TimelineBar blocks={blocks} person={sharedBy === null ? "you" : "an answer"} jump={jump} /><PastQuestions blocks={blocks} sharedBy={sharedBy} jump={jump} /></>;
}

/** The settled questions, newest first: what each was about, who answered it and how long it waited. */
function PastQuestions({ blocks, sharedBy, jump }: { blocks: readonly Block[]; sharedBy: string | null; jump(turn: number): void }): VNode | null {
  const settled = blocks.flatMap(({ turn, questions }) => questions.map((wait) => ({ wait, turn: turn.number }))).filter(({ wait }) => wait.until !== null).reverse();
  if (!settled.length) return null;
  return (
    <details class="past-questions">
      <summary>{count(settled.length, "past question")}</summary>
      <ul role="list">
        {settled.map(({ wait, turn }) => (
          <li key={`${turn} ${wait.at}`}><button type="button" class="menu-item" onClick={() => jump(turn)}>{questionWords(wait, turn, sharedBy)}</button></li>
        ))}
      </ul>
    </details>
  );
}

const TOOLS: Record<string, string> = { AskUserQuestion: "Question", ExitPlanMode: "Plan" };
const ALLOWED: Record<string, string> = { AskUserQuestion: "answered", ExitPlanMode: "approved" };

function questionWords({ at, until, tool, decision, by }: WaitTime, turn: number, sharedBy: string | null): string {
  const isAnswered = decision === "allow" || decision === "deny";
  const ending = decision === "allow" ? (ALLOWED[tool] ?? "allowed") : decision === "deny" ? "denied" : decision || "answered";
  const { name, through } = answeredBy(by, sharedBy);
  const person = name || (by.startsWith("web") ? "you" : "");
  const whose = isAnswered ? `${person && ` by ${person}`}${through && ` (${through})`}` : "";
  return `Turn ${turn}, ${TOOLS[tool] ?? toolTitle(visible(tool))}: ${ending}${whose} after ${length((until ?? at) - at)}`;
}

function TimelineBar({ blocks, person, jump }: { blocks: readonly Block[]; person: string; jump(turn: number): void }): VNode {
  const gap = Math.min(MAX_GAP, WIDTH / 5 / blocks.length);
  const least = Math.min(MIN_TURN, WIDTH / 2 / blocks.length);
  const busy = blocks.reduce((sum, { turn, until }) => sum + until - turn.at, 0) || 1;
  const perSecond = (WIDTH - (blocks.length - 1) * gap - blocks.length * least) / busy;
  const words = summary(blocks, person);
  let left = 0;
  return (
    <figure class="timeline">
      <svg role="img" aria-label={words} viewBox={`0 0 ${WIDTH} 24`} preserveAspectRatio="none">
        {blocks.map(({ turn, until, waits }) => {
          const x = left;
          const width = least + (until - turn.at) * perSecond;
          left += width + gap;
          const place = (time: number): number => x + (width * (time - turn.at)) / (until - turn.at || 1);
          return (
            <g key={turn.number} data-turn={turn.number} onClick={() => jump(turn.number)}>
              <rect x={x} y="0" width={width} height="24" class="turn-time"><title>{turnWords(turn, until)}</title></rect>
              {waits.map((wait) => (
                <rect key={wait.at} x={place(wait.at)} y="0" width={Math.max(2, place(wait.until) - place(wait.at))} height="24" class="wait-time">
                  <title>{`Turn ${turn.number} waited ${length(wait.until - wait.at)} for ${person}`}</title>
                </rect>
              ))}
            </g>
          );
        })}
      </svg>
      <figcaption aria-hidden="true">{words}</figcaption>
    </figure>
  );
}

/** The turns with their waits. Times in the transcript may overlap, so a turn ends when the next one begins. */
function together({ turns, waits }: Timeline, now: number): Block[] {
  const ordered = [...turns].sort((one, other) => one.at - other.at || one.number - other.number);
  return ordered.map((turn, index) => {
    const next = ordered[index + 1]?.at ?? Infinity;
    const own: Block["waits"] = [];
    const questions = waits.filter(({ at }) => at >= turn.at && at < next);
    for (const wait of questions) {
      // Several questions may be open at once: they count as one wait.
      const [at, until] = [Math.max(wait.at, own.at(-1)?.until ?? 0), Math.min(wait.until ?? now, next)];
      if (until > at) own.push({ at, until });
    }
    const end = Math.max(turn.at, turn.until ?? turn.at, ...own.map(({ until }) => until));
    return { turn, until: Math.min(end, next), waits: own, questions };
  });
}

function summary(blocks: readonly Block[], person: string): string {
  const [first, last] = [blocks[0], blocks.at(-1)];
  const span = first && last ? last.until - first.turn.at : 0;
  const waits = blocks.flatMap((block) => block.waits);
  const waited = waits.reduce((sum, { at, until }) => sum + until - at, 0);
  return `${count(blocks.length, "turn")} in ${length(span)}${waits.length ? `, waited ${length(waited)} for ${person}` : ""}`;
}

function turnWords(turn: TurnTime, until: number): string {
  const begun = new Date(turn.at * 1000).toLocaleString("en", { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
  return `Turn ${turn.number}, ${begun}, ${length(until - turn.at)}${turn.prompt ? `: ${visible(turn.prompt)}` : ""}`;
}

/** Like `duration`, but in whole minutes from ten minutes on, and "2 h" instead of "2 h 0 min". */
function length(seconds: number): string {
  return duration((seconds < 600 ? seconds : Math.round(seconds / 60) * 60) * 1000).replace(/ 0 (s|min)$/, "");
}
