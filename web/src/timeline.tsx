// A session's turns and waits on one line, as plain SVG. All gaps between turns have the same short width.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect } from "preact/hooks";
import { get, sessionPath } from "./api";
import type { Timeline, TurnTime } from "./types";
import { count, duration, visible } from "./words";

const WIDTH = 1000;
const MAX_GAP = 10;
/** The minimum width of a turn, however short it was. */
const MIN_TURN = 12;

interface Block {
  turn: TurnTime;
  until: number;
  waits: { at: number; until: number }[];
}

/** The timeline of a session, loaded once. `person` is the user that the session waited for. */
export function TimelinePart({ id, person, fail, jump }: { id: string; person: string; fail(error: unknown): void; jump(turn: number): void }): VNode {
  const read = useSignal<Timeline | null>(null);
  useEffect(() => {
    void get<Timeline>(sessionPath(id, "timeline")).then((timeline) => (read.value = timeline), fail);
  }, []);
  const blocks = read.value === null ? [] : together(read.value, Date.now() / 1000);
  if (!blocks.length) return <p class="timeline hint">{read.value === null ? "Reading the timeline…" : "No turns yet"}</p>;
  return <TimelineBar blocks={blocks} person={person} jump={jump} />;
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
    for (const wait of waits.filter(({ at }) => at >= turn.at && at < next)) {
      // Several questions may be open at once: they count as one wait.
      const [at, until] = [Math.max(wait.at, own.at(-1)?.until ?? 0), Math.min(wait.until ?? now, next)];
      if (until > at) own.push({ at, until });
    }
    const end = Math.max(turn.at, turn.until ?? turn.at, ...own.map(({ until }) => until));
    return { turn, until: Math.min(end, next), waits: own };
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
