// Charts of amounts, as plain SVG. Each has a text alternative that says the same.

import { type VNode } from "preact";
import { dollars, place, visible } from "./words";

export interface CostBar {
  /** A day or a month. */
  name: string;
  usd: number;
  /** The dollars by model or project. The server adds up small amounts under `other`. */
  parts?: Record<string, number>;
}

export interface BudgetLine {
  /** The budget of a period, in dollars. */
  of(name: string): number;
  words: string;
}

const OTHER = "other";
const MAX_HEIGHT = 46;
/** A budget above this multiple of the highest bar is not drawn: the bars would be too low to see. */
const MAX_LIMIT_RATIO = 4;

/** The dates of the last `span` days, oldest first. */
export function lastDays(span: number): string[] {
  return [...Array(span).keys()].map((back) => new Date(Date.now() - (span - 1 - back) * 86_400_000).toISOString().slice(0, 10));
}

/** The costs of each period as stacked bars. A period without costs has its place, which stays empty. */
export function CostBars({ lines, names, per, split, limit }: {
  lines: readonly CostBar[]; names: readonly string[]; per: string; split?: string; limit?: BudgetLine | undefined;
}): VNode {
  const bars = names.map((name) => together(name, lines.filter((line) => line.name === name)));
  const series = ranked(bars);
  const highest = Math.max(...bars.map((bar) => bar.usd), 0.000001);
  const limits = limit === undefined ? [] : names.map((name) => limit.of(name));
  const limitNow = limits.at(-1) ?? 0;
  const isDrawn = limit !== undefined && Math.max(...limits) <= highest * MAX_LIMIT_RATIO;
  const most = Math.max(highest, ...(isDrawn ? limits : []));
  const height = (usd: number): number => (MAX_HEIGHT * usd) / most;
  const width = names.length * 10;
  const said = bars.filter((bar) => bar.usd > 0).map((bar) => `${bar.name}: ${dollars(bar.usd)}${inParts(bar, series)}`).join("; ");
  const title = `Costs by ${per}${split ? ` and ${split}` : ""}: ${said || "nothing"}${limit ? `. ${limit.words}: ${dollars(limitNow)}` : ""}`;
  return (
    <figure class="cost-bars">
      <div class="axis" aria-hidden="true"><span>{dollars(most)}</span></div>
      <svg class="day-bars" role="img" aria-label={title} viewBox={`0 0 ${width} 50`} preserveAspectRatio="none">
        {bars.map((bar, at) => {
          let top = 48;
          return series.filter((part) => bar.parts[part]).map((part) => {
            const spent = bar.parts[part] ?? 0;
            top -= height(spent);
            return (
              <rect key={`${bar.name} ${part}`} x={at * 10 + 1} y={top} width="8" height={height(spent)} class={`day-bar ${color(series, part)}`}>
                <title>{`${bar.name}${part ? `, ${partName(part)}` : ""}: ${dollars(spent)}`}</title>
              </rect>
            );
          });
        })}
        {isDrawn && <path d={limits.map((usd, at) => `${at ? "L" : "M"}${at * 10} ${48 - height(usd)}H${at * 10 + 10}`).join("")} class="limit-line"><title>{`${limit.words}: ${dollars(limitNow)}`}</title></path>}
        <line x1="0" x2={width} y1="48.5" y2="48.5" class="base-line" />
      </svg>
      <div class="axis" aria-hidden="true"><span>{names[0]}</span>{names.length > 1 && <span>{names.at(-1)}</span>}</div>
      {(split !== undefined || limit !== undefined) && (
        <ul class="legend" role="list" aria-label="Legend">
          {series.filter(Boolean).map((part) => (
            <li key={part} title={visible(part)}><span class={`legend-mark ${color(series, part)}`} aria-hidden="true" />{`${partName(part)} ${dollars(bars.reduce((sum, bar) => sum + (bar.parts[part] ?? 0), 0))}`}</li>
          ))}
          {limit !== undefined && (
            <li>{isDrawn && <span class="legend-mark limit" aria-hidden="true" />}{`${limit.words}: ${dollars(limitNow)}${isDrawn ? "" : ", too high for this chart"}`}</li>
          )}
        </ul>
      )}
    </figure>
  );
}

interface Bar {
  name: string;
  usd: number;
  parts: Record<string, number>;
}

/** Adds up the lines of a period: in a fleet, each machine has its own. Costs without parts have the empty name. */
function together(name: string, lines: readonly CostBar[]): Bar {
  const parts: Record<string, number> = {};
  for (const line of lines) {
    const given = Object.entries(line.parts ?? { "": line.usd });
    for (const [part, spent] of given) parts[part] = (parts[part] ?? 0) + spent;
  }
  return { name, usd: lines.reduce((sum, line) => sum + line.usd, 0), parts };
}

/** The names of all parts, the most expensive first and `other` last. */
function ranked(bars: readonly Bar[]): string[] {
  const sums = new Map<string, number>();
  for (const bar of bars) for (const [part, spent] of Object.entries(bar.parts)) sums.set(part, (sums.get(part) ?? 0) + spent);
  return [...sums].filter(([, spent]) => spent > 0).sort(([one, much], [other, more]) => Number(one === OTHER) - Number(other === OTHER) || more - much).map(([part]) => part);
}

function inParts(bar: Bar, series: readonly string[]): string {
  const named = series.filter((part) => part && bar.parts[part]);
  return named.length ? ` (${named.map((part) => `${partName(part)} ${dollars(bar.parts[part])}`).join(", ")})` : "";
}

function color(series: readonly string[], part: string): string {
  return part === OTHER ? "part-other" : `part-${series.indexOf(part)}`;
}

/** The label of a part. A project is a path; its last directories identify it. */
function partName(part: string): string {
  return visible(place(part));
}

const RING = 2 * Math.PI * 6;

/** A ring that is filled to `part`, from 0 to 1. */
export function Ring({ part, words }: { part: number; words: string }): VNode {
  return (
    <svg class={`ring${part >= 0.8 ? " nearly-full" : ""}`} role="img" aria-label={words} viewBox="0 0 16 16">
      <title>{words}</title>
      <circle cx="8" cy="8" r="6" class="ring-whole" />
      <circle cx="8" cy="8" r="6" class="ring-part" stroke-dasharray={`${RING * Math.min(1, part)} ${RING}`} transform="rotate(-90 8 8)" />
    </svg>
  );
}
