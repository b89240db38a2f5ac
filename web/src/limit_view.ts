// A session that a usage limit has stopped: when it continues, and what a person can do about that.

import { messageOf, post, sessionPath } from "./api";
import { button, h, replace } from "./dom";
import type { PlanUsage, SessionRow } from "./types";
import { visible } from "./words";

const NAMES: Record<string, string> = {
  five_hour: "5-hour", seven_day: "weekly", seven_day_opus: "weekly Opus", seven_day_sonnet: "weekly Sonnet", overage: "extra usage",
};

function limitName(kind: string | null | undefined): string {
  return kind ? visible(NAMES[kind] ?? kind.replaceAll("_", " ")) : "usage";
}

/** The time of day, with the date if it is another day. */
export function clock(time: string): string {
  const moment = new Date(time), day = moment.toDateString() === new Date().toDateString();
  return moment.toLocaleString([], { hour: "2-digit", minute: "2-digit", ...(day ? {} : { weekday: "short", day: "numeric", month: "short" }) });
}

/** What a row says in the place of its status; empty if no limit has stopped it. */
export function limitWord(row: SessionRow): string {
  if (row.limit?.continuesAt) return `continues at ${clock(row.limit.continuesAt)}`;
  return row.status === "limit_reached" && row.limit?.resetsAt ? `limit, resets at ${clock(row.limit.resetsAt)}` : "";
}

/** How much of the plan is used: "5-hour 92 %, weekly 40 %"; empty if that is not known. */
export function planWords(plan: PlanUsage | null | undefined): string {
  return Object.entries(plan?.windows ?? {}).filter(([, window]) => window.used !== undefined)
    .map(([name, window]) => `${limitName(name)} ${Math.round(100 * (window.used ?? 0))} %`).join(", ");
}

export class LimitView {
  readonly element = h("section", { class: "limit-notice", hidden: true, aria: { label: "Usage limit" } });
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });
  private drawn = "";

  constructor(private readonly id: () => string) {}

  /** Returns whether it has just come into sight. `mayChange` says whether the session is the person's own. */
  show(row: SessionRow, mayChange: boolean): boolean {
    const limit = row.status === "limit_reached" ? row.limit : null;
    const wasHidden = Boolean(this.element.hidden);
    this.element.hidden = !limit;
    const drawn = JSON.stringify([limit, mayChange]);
    if (!limit || this.drawn === drawn) return Boolean(limit) && wasHidden;
    this.drawn = drawn;
    this.problem.hidden = true;
    const resets = limit.resetsAt ? `It resets at ${clock(limit.resetsAt)}.` : "The time of the reset is not known.";
    const waits = limit.continuesAt ? `The session continues at ${clock(limit.continuesAt)}.` : "";
    replace(this.element, h("div", { class: "question-head" }, h("span", { class: "eyebrow" }, "Usage limit")),
      h("h2", null, `The ${limitName(limit.type)} limit is reached`), h("p", { class: "why" }, [resets, waits].filter(Boolean).join(" ")),
      h("div", { class: "actions" },
        mayChange && (limit.continuesAt ? button("Do not continue", () => this.steer("on_limit", "end"))
          : button("Wait and continue then", () => this.steer("on_limit", "wait"), { class: "allow" })),
        button("Continue now", () => this.steer("continue"))), this.problem);
    return wasHidden;
  }

  private steer(action: string, text?: string): void {
    for (const one of this.element.querySelectorAll("button")) one.disabled = true;
    post(sessionPath(this.id(), "manage"), { action, ...(text ? { text } : {}) }).catch((error: unknown) => {
      this.problem.textContent = messageOf(error);
      this.problem.hidden = false;
    }).finally(() => {
      for (const one of this.element.querySelectorAll("button")) one.disabled = false;
    });
  }
}
