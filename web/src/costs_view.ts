// What sessions have cost, by day, project, model or session, with a bar for each.

import { get, messageOf } from "./api";
import { freshId, h, replace } from "./dom";
import { viewHead } from "./new_view";

interface Line {
  name: string;
  title?: string | null;
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
  budgets?: Budget[] | null;
}

interface Budget {
  period: "day" | "month";
  group?: string | null;
  machine?: string | null;
  limitUsd: number;
  spentUsd: number;
  warning?: string | null;
}

const WAYS = ["day", "project", "model", "session"] as const;
const SPANS: Record<string, number> = { "7 days": 7, "30 days": 30, "90 days": 90, "all time": 0 };

export function costsView(): HTMLElement {
  const body = h("div", { class: "page-part", aria: { live: "polite" } });
  const by = h("select", { id: freshId("by"), on: { change: () => void load() } }, ...WAYS.map((way) => h("option", { value: way }, way)));
  const span = h("select", { id: freshId("span"), on: { change: () => void load() } },
    ...Object.entries(SPANS).map(([label, days]) => h("option", { value: String(days), selected: days === 30 }, label)));
  const load = async (): Promise<void> => {
    const query = new URLSearchParams({ by: by.value });
    const days = Number(span.value);
    if (days) query.set("since", new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10));
    try {
      const report = await get<Report>(`/api/costs?${query}`);
      replace(body, budgets(report.budgets ?? []), table(report, by.value));
    } catch (error) {
      replace(body, h("p", { class: "problem" }, messageOf(error)));
    }
  };
  void load();
  return h("div", { class: "page" }, viewHead("Costs"), h("div", { class: "page-body" },
    h("p", { class: "controls" }, h("label", { for: by.id }, "By "), by, h("label", { for: span.id }, " over "), span), body));
}

function table(report: Report, by: string): HTMLElement {
  if (!report.lines.length) return h("p", { class: "hint" }, "Nothing was spent.");
  const most = Math.max(...report.lines.map((line) => line.usd), 0.000001);
  const rows = report.lines.map((line) => {
    const bar = h("span", { class: "bar" });
    bar.style.width = `${Math.max(1, (100 * line.usd) / most)}%`;
    const name = line.title || line.name;
    const label = by === "session" ? h("a", { route: `/sessions/${encodeURIComponent(line.name)}` }, name) : name;
    return h("tr", null, h("th", { scope: "row" }, label, line.machine && ` (${line.machine})`), h("td", { class: "money" }, `$${line.usd.toFixed(4)}`),
      h("td", { class: "tokens" }, tokens(line)), h("td", { class: "bars", aria: { hidden: true } }, bar));
  });
  return h("div", { class: "scroll", tabindex: 0, role: "group", aria: { label: "Costs" } }, h("table", { class: "figures" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, by), h("th", { scope: "col", class: "money" }, "cost"),
      h("th", { scope: "col", class: "tokens" }, "tokens in / out"), h("td", { class: "bars" }))),
    h("tbody", null, ...rows),
    h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "together"), h("td", { class: "money" }, `$${(report.total.usd ?? 0).toFixed(4)}`),
      h("td", { class: "tokens" }, tokens(report.total)), h("td", { class: "bars" })))));
}

/** What may be spent, what of it is spent, and a word of warning where that is most of it. */
function budgets(rows: readonly Budget[]): HTMLElement | null {
  if (!rows.length) return null;
  return h("ul", { class: "budgets", aria: { label: "Budgets" } }, ...rows.map((row) => {
    const whose = row.group ? `group ${row.group}, ` : "";
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
