// The costs of sessions by day, month, project, model or session, with a bar for each. If the policy allows it, the user
// also sees the costs of everybody, which can be grouped by person and group too.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect} from "preact/hooks";
import { get, messageOf } from "./api";
import { CostBars, lastDays, type BudgetLine } from "./charts";
import { planWords } from "./limits";
import type { Live } from "./live";
import { routeOf } from "./sessions";
import type { Me, PlanUsage } from "./types";
import { ViewHead } from "./view_head";
import { visible } from "./words";
import { useFreshId } from "./ui";

interface Line {
  name: string;
  title?: string | null;
  /** Only in costs by person or group: the month or day, and the group that the costs count for. */
  period?: string | null;
  group?: string | null;
  /** The machine, in a fleet. */
  machine?: string | null;
  usd: number;
  parts?: Record<string, number>;
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
  /** The owner of the budget, when the budgets of everybody are shown. */
  caller?: string | null;
  machine?: string | null;
  limitUsd: number;
  spentUsd: number;
  warning?: string | null;
}

const OWN_GROUPINGS = ["day", "month", "project", "model", "session"];
const TEAM_GROUPINGS = ["person and month", "person and day", "group and month", "group and day", "project", "model", "day", "month"];
/** With these groupings, a chart shows the parts of each bar. */
const TIMES = ["day", "month"];
const MAX_BARS = 366;
const SPANS: Record<string, number> = { "7 days": 7, "30 days": 30, "90 days": 90, "all time": 0 };

export function Costs({ me, live }: { me: Me; live: Live }): VNode {
  const id = useFreshId();
  const everybody = useSignal(false);
  const by = useSignal("day");
  const days = useSignal(30);
  const split = useSignal("model");
  const shown = useSignal<{ report: Report; by: string; days: number; split: string } | null>(null);
  const problem = useSignal("");
  const groupings = everybody.value ? TEAM_GROUPINGS : OWN_GROUPINGS;
  useEffect(() => {
    let current = true;
    const [grouping = "", per = ""] = by.value.replace("person", "caller").split(" and ");
    const query = new URLSearchParams({ of: everybody.value ? "everybody" : "own", by: grouping, per });
    if (TIMES.includes(by.value)) query.set("split", split.value);
    if (days.value) query.set("since", new Date(Date.now() - (days.value - 1) * 86_400_000).toISOString().slice(0, 10));
    const asked = { by: by.value, days: days.value, split: split.value };
    // Only the latest request matches the choices, in whatever order the answers arrive.
    get<Report>(`/api/costs?${query}`).then((report) => {
      if (!current) return;
      shown.value = { report, ...asked };
      problem.value = "";
    }, (error: unknown) => {
      if (!current) return;
      shown.value = null;
      problem.value = messageOf(error);
    });
    return () => void (current = false);
  }, [everybody.value, by.value, days.value, split.value]);
  const choose = (all: boolean): void => {
    everybody.value = all;
    by.value = (all ? TEAM_GROUPINGS : OWN_GROUPINGS)[0] as string;
  };
  return (
    <div class="page">
      <ViewHead title="Costs" live={live} />
      <div class="page-body">
        <p class="controls">
          {me.allCosts && <><label for={`${id}-of`}>Of </label>
            <select id={`${id}-of`} value={everybody.value ? "everybody" : "own"} onChange={(event) => choose(event.currentTarget.value === "everybody")}>
              <option value="own">me</option><option value="everybody">everybody</option>
            </select></>}
          <label for={`${id}-by`}>{me.allCosts ? " by " : "By "}</label>
          <select id={`${id}-by`} value={by.value} onChange={(event) => (by.value = event.currentTarget.value)}>{groupings.map((grouping) => <option key={grouping} value={grouping}>{grouping}</option>)}</select>
          <label for={`${id}-span`}> over </label>
          <select id={`${id}-span`} value={String(days.value)} onChange={(event) => (days.value = Number(event.currentTarget.value))}>
            {Object.entries(SPANS).map(([label, number]) => <option key={label} value={String(number)}>{label}</option>)}
          </select>
          {TIMES.includes(by.value) && <><label for={`${id}-split`}> split by </label>
            <select id={`${id}-split`} value={split.value} onChange={(event) => (split.value = event.currentTarget.value)}>
              <option value="model">model</option><option value="project">project</option>
            </select></>}
        </p>
        <div class="page-part" aria-live="polite">
          {problem.value && <p class="problem">{problem.value}</p>}
          {shown.value !== null && <ReportPart {...shown.value} />}
        </div>
      </div>
    </div>
  );
}

function ReportPart({ report, by, days, split }: { report: Report; by: string; days: number; split: string }): VNode {
  const problems = [report.error?.message ?? "", ...(report.unanswered ?? []).map((each) => each.reason ?? "")].filter(Boolean);
  const plan = planWords(report.planUsage);
  const drawn = TIMES.includes(by) && report.lines.some((line) => line.usd > 0);
  return (
    <>
      {problems.map((problem) => <p key={problem} class="problem">{visible(problem)}</p>)}
      <Budgets rows={report.budgets ?? []} />
      {plan && <p class="hint">Plan: {plan} used.</p>}
      {drawn && <CostBars lines={report.lines} names={periods(report.lines, by, days)} per={by} split={split} limit={budgetOf(report.budgets ?? [], by)} />}
      {drawn ? <details class="as-table"><summary>Show as table</summary><CostTable report={report} by={by} /></details> : <CostTable report={report} by={by} />}
      {Boolean(report.leftOut) && <p class="hint">… and {report.leftOut?.toLocaleString("en")} more</p>}
    </>
  );
}

/** The periods of the chart, oldest first: every day, or the months that have costs. */
function periods(lines: readonly Line[], by: string, days: number): string[] {
  const known = [...new Set(lines.map((line) => line.name).filter((name) => /^\d/.test(name)))].sort();
  if (by === "month") return known;
  const first = Date.parse(known[0] ?? "");
  const all = first ? Math.floor((Date.now() - first) / 86_400_000) + 1 : 1;
  return lastDays(days || Math.min(MAX_BARS, Math.max(1, all)));
}

/** The budget that applies to the costs shown, for one bar. The budget of a group, another person or one machine does not
 * apply. If the only budget is for the other period, it is converted: a day gets its share of the budget for a month, and a
 * month gets the budget for a day times its days. */
function budgetOf(budgets: readonly Budget[], by: string): BudgetLine | undefined {
  const own = budgets.filter((one) => !one.group && !one.caller && !one.machine);
  const [exact] = own.filter((one) => one.period === by);
  if (exact !== undefined) return { of: () => exact.limitUsd, words: `Budget for a ${by}` };
  const [other] = own;
  if (other === undefined) return undefined;
  if (by === "day") return { of: (name) => other.limitUsd / daysOfMonth(name), words: "Budget for a month, for each day of it" };
  return { of: (name) => other.limitUsd * daysOfMonth(name), words: "Budget for a day, for each day of a month" };
}

/** The number of days in the month; `name` is a month or a day in it. */
function daysOfMonth(name: string): number {
  const [year = 0, month = 1] = name.split("-").map(Number);
  return new Date(Date.UTC(year, month, 0)).getUTCDate();
}

/** The costs as a table. Days and months are sorted newest first. */
function CostTable({ report, by }: { report: Report; by: string }): VNode {
  if (!report.lines.length) return <p class="hint">No costs.</p>;
  const lines = by === "day" || by === "month" ? [...report.lines].sort((one, other) => other.name.localeCompare(one.name)) : report.lines;
  const most = Math.max(...lines.map((line) => line.usd), 0.000001);
  const hasTokens = lines.some((line) => line.inputTokens !== undefined);
  const together = report.total.usd;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Costs">
      <table class="figures">
        <thead><tr><th scope="col">{by}</th><th scope="col" class="money">cost</th>{hasTokens && <th scope="col" class="tokens">tokens in / out</th>}<td class="bars" /></tr></thead>
        <tbody>
          {lines.map((line, at) => {
            const name = visible([line.period, line.group, line.title || line.name].filter(Boolean).join(" · "));
            return (
              <tr key={at}>
                <th scope="row">{by === "session" ? <a href={`#${routeOf(line.name)}`}>{name}</a> : name}{line.machine && ` (${line.machine})`}</th>
                <td class="money">${line.usd.toFixed(4)}</td>
                {hasTokens && <td class="tokens">{tokens(line)}</td>}
                <td class="bars" aria-hidden="true">{line.usd > 0 && <span class="bar" style={{ width: `${Math.max(1, (100 * line.usd) / most)}%` }} />}</td>
              </tr>
            );
          })}
        </tbody>
        {together !== undefined && (
          <tfoot><tr><th scope="row">together</th><td class="money">${together.toFixed(4)}</td>{hasTokens && <td class="tokens">{tokens(report.total)}</td>}<td class="bars" /></tr></tfoot>
        )}
      </table>
    </div>
  );
}

/** Each budget, how much of it is spent, and a warning if that is most of it. */
function Budgets({ rows }: { rows: readonly Budget[] }): VNode | null {
  if (!rows.length) return null;
  return (
    <ul class="budgets" aria-label="Budgets">
      {rows.map((row, at) => {
        const whose = row.group ? `group ${visible(row.group)}, ` : row.caller ? `${visible(row.caller)}, ` : "";
        const when = row.period === "day" ? "today" : "this month";
        return (
          <li key={at} class={row.warning ? "low" : ""}>
            {`$${row.spentUsd.toFixed(2)} of $${row.limitUsd.toFixed(2)} (${whose}${when}${row.machine ? `, on ${row.machine}` : ""})`}
            <span class="bars" aria-hidden="true">{row.spentUsd > 0 && <span class="bar" style={{ width: `${Math.min(100, Math.max(1, (100 * row.spentUsd) / row.limitUsd))}%` }} />}</span>
            {row.warning && <p class="problem" role="alert">{row.warning}</p>}
          </li>
        );
      })}
    </ul>
  );
}

function tokens(line: Partial<Line>): string {
  return `${(line.inputTokens ?? 0).toLocaleString("en")} / ${(line.outputTokens ?? 0).toLocaleString("en")}`;
}
