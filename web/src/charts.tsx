// Pictures of amounts, as plain SVG. Each says the same in words for those who do not see it.

import { type VNode } from "preact";
import { dollars } from "./words";

export interface DayCost {
  name: string;
  usd: number;
}

/** What each of the last days has cost, as bars; days on which nothing was spent are there, and empty. */
export function DayBars({ days, span, limit }: { days: readonly DayCost[]; span: number; limit?: number }): VNode {
  const spent = new Map(days.map((day) => [day.name, day.usd]));
  const names = [...Array(span).keys()].map((back) => new Date(Date.now() - (span - 1 - back) * 86_400_000).toISOString().slice(0, 10));
  const most = Math.max(...names.map((name) => spent.get(name) ?? 0), limit ?? 0, 0.000001);
  const said = names.filter((name) => spent.get(name)).map((name) => `${name}: ${dollars(spent.get(name))}`).join(", ");
  return (
    <svg class="day-bars" role="img" aria-label={`Costs by day: ${said || "nothing"}`} viewBox={`0 0 ${span * 10} 50`} preserveAspectRatio="none">
      {names.map((name, at) => {
        const height = (46 * (spent.get(name) ?? 0)) / most;
        return <rect key={name} x={at * 10 + 1} y={48 - height} width="8" height={height} class="day-bar"><title>{`${name}: ${dollars(spent.get(name)) || "$0"}`}</title></rect>;
      })}
      {limit !== undefined && <line x1="0" x2={span * 10} y1={48 - (46 * limit) / most} y2={48 - (46 * limit) / most} class="limit-line" />}
      <line x1="0" x2={span * 10} y1="48.5" y2="48.5" class="base-line" />
    </svg>
  );
}
