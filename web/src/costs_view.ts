// What sessions have cost, by day, month, project, model or session, with a bar for each; and for whom the policy shows it
// to, what everybody has spent, by person and group too.

import { get, messageOf } from "./api";
import { freshId, h, replace } from "./dom";
import { planWords } from "./limit_view";
import { viewHead } from "./new_view";
import type { Me, PlanUsage } from "./types";
import { visible } from "./words";

interface Line {
  name: string;
  title?: string | null;
  /** Of people: the month or day, and the group that it counts for. */
  period?: string | null;
  group?: string | null;
  /** In a fleet. */
  machine?: string | null;
  usd: number;
  sessions?: number;
  inputTokens?: number;
  outputTokens?: number;
}

interface Report {
  lines: Line[];
  total: Partial<Line>;
  leftOut?: number | null;
  budgets?: Budget[] | null;
  planUsage?: PlanUsage | null;
  error?: { message: string } | null;
  /** Machines of a fleet that do not answer. */
  unanswered?: { reason?: string }[];
}

interface Budget {
  period: "day" | "month";
  group?: string | null;
  /** Whose it is, where those of everybody are shown. */
  caller?: string | null;
  machine?: string | null;
  limitUsd: number;
  spentUsd: number;
  warning?: string | null;
}

const OWN_WAYS = ["day", "month", "project", "model", "session"];
const TEAM_WAYS = ["person and month", "person and day", "group and month", "group and day", "project", "model", "day", "month"];
const SPANS: Record<string, number> = { "7 days": 7, "30 days": 30, "90 days": 90, "all time": 0 };

export function costsView(me: Me): HTMLElement {
  const body = h("div", { class: "page-part", aria: { live: "polite" } });
  const by = h("select", { id: freshId("by"), on: { change: () => void load() } });
  const span = h("select", { id: freshId("span"), on: { change: () => void load() } },
    ...Object.entries(SPANS).map(([label, days]) => h("option", { value: String(days), selected: days === 30 }, label)));
  const whose = h("select", { id: freshId("of"), on: { change: () => choose() } },
    h("option", { value: "own" }, "me"), h("option", { value: "everybody" }, "everybody"));
  const choose = (): void => {
    replace(by, ...(whose.value === "everybody" ? TEAM_WAYS : OWN_WAYS).map((way) => h("option", { value: way }, way)));
    void load();
  };
  let latest = 0;
  const load = async (): Promise<void> => {
    const [grouping = "", per = ""] = by.value.replace("person", "caller").split(" and ");
    const query = new URLSearchParams({ of: whose.value, by: grouping, per });
    const days = Number(span.value);
    if (days) query.set("since", new Date(Date.now() - (days - 1) * 86_400_000).toISOString().slice(0, 10));
    const asked = ++latest;
    let shown: (HTMLElement | null)[];
    try {
      const report = await get<Report>(`/api/costs?${query}`);
      const problems = [report.error?.message ?? "", ...(report.unanswered ?? []).map((each) => each.reason ?? "")].filter(Boolean);
      shown = [...problems.map((problem) => h("p", { class: "problem" }, visible(problem))), budgets(report.budgets ?? []),
        planWords(report.planUsage) ? h("p", { class: "hint" }, `Plan: ${planWords(report.planUsage)} used.`) : null, table(report, by.value),
        report.leftOut ? h("p", { class: "hint" }, `… and ${report.leftOut.toLocaleString("en")} more`) : null];
    } catch (error) {
      shown = [h("p", { class: "problem" }, messageOf(error))];
    }
    // What was asked for last is what the choices say, whichever answer comes last.
    if (asked === latest) replace(body, ...shown);
  };
  choose();
  return h("div", { class: "page" }, viewHead("Costs"), h("div", { class: "page-body" },
    h("p", { class: "controls" }, me.allCosts && h("label", { for: whose.id }, "Of "), me.allCosts && whose,
      h("label", { for: by.id }, me.allCosts ? " by " : "By "), by, h("label", { for: span.id }, " over "), span), body));
}

function table(report: Report, way: string): HTMLElement {
  if (!report.lines.length) return h("p", { class: "hint" }, "Nothing was spent.");
  const most = Math.max(...report.lines.map((line) => line.usd), 0.000001);
  const hasTokens = report.lines.some((line) => line.inputTokens !== undefined);
  const rows = report.lines.map((line) => {
    const bar = h("span", { class: "bar" });
    bar.style.width = `${Math.max(1, (100 * line.usd) / most)}%`;
    const name = visible([line.period, line.group, line.title || line.name].filter(Boolean).join(" · "));
    const label = way === "session" ? h("a", { route: `/sessions/${encodeURIComponent(line.name)}` }, name) : name;
    return h("tr", null, h("th", { scope: "row" }, label, line.machine && ` (${line.machine})`), h("td", { class: "money" }, `$${line.usd.toFixed(4)}`),
      hasTokens && h("td", { class: "tokens" }, tokens(line)), h("td", { class: "bars", aria: { hidden: true } }, bar));
  });
  const together = report.total.usd;
  return h("div", { class: "scroll", tabindex: 0, role: "group", aria: { label: "Costs" } }, h("table", { class: "figures" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, way), h("th", { scope: "col", class: "money" }, "cost"),
      hasTokens && h("th", { scope: "col", class: "tokens" }, "tokens in / out"), h("td", { class: "bars" }))),
    h("tbody", null, ...rows),
    together !== undefined && h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "together"), h("td", { class: "money" }, `$${together.toFixed(4)}`),
      hasTokens && h("td", { class: "tokens" }, tokens(report.total)), h("td", { class: "bars" })))));
}

/** What may be spent, what of it is spent, and a word of warning where that is most of it. */
function budgets(rows: readonly Budget[]): HTMLElement | null {
  if (!rows.length) return null;
  return h("ul", { class: "budgets", aria: { label: "Budgets" } }, ...rows.map((row) => {
    const whose = row.group ? `group ${visible(row.group)}, ` : row.caller ? `${visible(row.caller)}, ` : "";
    const when = row.period === "day" ? "today" : "this month";
    const words = `$${row.spentUsd.toFixed(2)} of $${row.limitUsd.toFixed(2)} (${whose}${when}${row.machine ? `, on ${row.machine}` : ""})`;
    const bar = h("span", { class: "bar" });
    bar.style.width = `${Math.min(100, Math.max(1, (100 * row.spentUsd) / row.limitUsd))}%`;
    return h("li", { class: row.warning ? "low" : "" }, words, h("span", { class: "bars", aria: { hidden: true } }, bar),
      row.warning && h("p", { class: "problem", role: "alert" }, row.warning));
  }));
}

function tokens(line: Partial<Line>): string {
  return `${(line.inputTokens ?? 0).toLocaleString("en")} / ${(line.outputTokens ?? 0).toLocaleString("en")}`;
}
