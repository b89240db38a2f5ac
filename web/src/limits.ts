// Texts about usage limits.

import type { PlanUsage, SessionRow } from "./types";
import { visible } from "./words";

const NAMES: Record<string, string> = {
  five_hour: "5-hour", seven_day: "weekly", seven_day_opus: "weekly Opus", seven_day_sonnet: "weekly Sonnet", overage: "extra usage",
};

export function limitName(kind: string | null | undefined): string {
  return kind ? visible(NAMES[kind] ?? kind.replaceAll("_", " ")) : "usage";
}

/** The time of day, with the date if it is not today. */
export function clock(time: string): string {
  const moment = new Date(time), day = moment.toDateString() === new Date().toDateString();
  return moment.toLocaleString([], { hour: "2-digit", minute: "2-digit", ...(day ? {} : { weekday: "short", day: "numeric", month: "short" }) });
}

/** The text that replaces a row's status; empty if no limit has stopped the session. */
export function limitWord(row: SessionRow): string {
  if (row.limit?.continuesAt) return `continues at ${clock(row.limit.continuesAt)}`;
  return row.status === "limit_reached" && row.limit?.resetsAt ? `limit, resets at ${clock(row.limit.resetsAt)}` : "";
}

/** How much of the plan is used: "5-hour 92 %, weekly 40 %"; empty if unknown. */
export function planWords(plan: PlanUsage | null | undefined): string {
  return Object.entries(plan?.windows ?? {}).filter(([, window]) => window.used !== undefined)
    .map(([name, window]) => `${limitName(name)} ${Math.round(100 * (window.used ?? 0))} %`).join(", ");
}
