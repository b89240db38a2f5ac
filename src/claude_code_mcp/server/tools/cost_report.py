"""`claude_session_costs`: the costs of sessions and the remaining budgets."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, cast, get_args

import mcp_types as types
from pydantic import Field, StringConstraints

from ...core.model.caller import Caller
from ...core.service import Service
from ...core.state.spending import Budget, Period
from ...core.transcripts.cost_table import Costs, Grouping, Split
from .arguments import Arguments, Path
from .call import Call
from .output import ErrorInfo, ToolOutput, declared
from .tool import Reply, Tool

_MAX_LINES = 500
_MAX_PARTS = 6
_OTHER_PARTS = "other"
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
TeamGrouping = Literal["caller", "group"]
"""Additional groupings for the costs of all callers."""


class CostArguments(Arguments):
    by: Literal["session", "project", "model", "day"] | None = Field(None, description="Default day")
    since: Day | None = Field(None, description="First day, such as 2026-11-01")
    project_directory: Path | None = None


CostLine = Annotated[
    dict[str, Any],
    declared(
        {"usd": "number"},
        {
            "name": "string",
            "title": "string",
            "sessions": "integer",
            "inputTokens": "integer",
            "outputTokens": "integer",
            "unpricedTokens": "integer",
        },
    ),
]
BudgetRow = Annotated[
    dict[str, Any],
    declared(
        {"period": "string", "limitUsd": "number", "spentUsd": "number"}, {"group": "string", "warning": "string"}
    ),
]


class CostReport(ToolOutput):
    by: str | None = None
    lines: list[CostLine] | None = None
    total: CostLine | None = None
    left_out: int | None = None
    budgets: list[BudgetRow] | None = None
    """The caller's budgets, and how much of each is spent."""
    plan_usage: dict[str, Any] | None = None
    """How much of the caller's subscription is used, as Claude Code last reported it."""
    error: ErrorInfo | None = None

    def text(self) -> str:
        rows = [f"{line['name']}  ${line['usd']:.4f}  {line.get('title') or ''}".rstrip() for line in self.lines or []]
        whole = f"total  ${self.total['usd']:.4f} in {self.total['sessions']} sessions" if self.total else ""
        warnings = [row["warning"] for row in self.budgets or [] if "warning" in row]
        plan = [f"plan  {self.plan_usage['line']}"] if self.plan_usage and self.plan_usage.get("line") else []
        return "\n".join((*rows, whole, *warnings, *plan))


async def session_costs(call: Call, arguments: CostArguments) -> Reply:
    return await cost_report(
        call.service,
        call.caller,
        arguments.by or "day",
        since=arguments.since or "",
        project=arguments.project_directory,
    )


async def cost_report(service: Service, caller: Caller, by: Grouping = "day", **wanted: Any) -> CostReport:
    """The costs of the caller's sessions; `wanted` are the filters of `StoredSessions.costs`."""
    costs = await service.stored.costs(by, caller=caller, most=_MAX_LINES, **wanted)
    error = await not_read(service, caller)
    try:
        budgets = await budget_rows(service, caller)
    except OSError as reason:  # an error does not mean that there are no limits
        budgets, error = [], ErrorInfo(code="UNREADABLE", message=f"Budget spending cannot be read: {reason}.")
    return CostReport(
        by=by,
        lines=_rows(costs),
        total=cost_fields(costs.total),
        left_out=costs.left_out or None,
        budgets=budgets or None,
        plan_usage=await service.plan_usages.of(caller.principal),
        error=error,
    )


async def report_on_all_callers(
    service: Service,
    caller: Caller,
    by: Grouping | TeamGrouping,
    *,
    per: Period = "month",
    since: str = "",
    split: Split | None = None,
) -> CostReport:
    """The costs and budgets of all callers, from the same data as `claude-code-mcp costs`: by caller and group as
    counted by the server, `per` day or month; otherwise from the sessions on disk. PermissionDenied for a caller who
    may not see them."""
    policy = service.policy_for(caller)
    policy.check_all_costs()  # before anything is read
    error = None
    if by in get_args(Grouping):
        grouping = cast("Grouping", by)
        costs, unread = await service.stored.costs_of_all_callers(
            grouping, caller=caller, most=_MAX_LINES, since=since, split=split
        )
        error = ErrorInfo(code="UNREADABLE", message=" ".join(unread)) if unread else None
        lines, total, left_out = _rows(costs), cost_fields(costs.total), costs.left_out
    else:
        spent = await asyncio.to_thread(policy.spending_of_all_callers, per, since, groups=by == "group")
        lines = [
            {"name": line.principal, "period": line.period, "group": line.group, "usd": round(line.usd, 6)}
            for line in spent[:_MAX_LINES]
        ]
        # One amount may count for several groups, but is spent once.
        total = {"usd": round(sum(line.usd for line in spent), 6)} if by == "caller" else {}
        left_out = len(spent) - len(lines)
    rows = await asyncio.to_thread(policy.budgets_of_all_callers)
    budgets = [
        {**_budget_row(principal, budget, spent_usd), "caller": principal or None}
        for principal, budget, spent_usd in rows[:_MAX_LINES]
    ]
    return CostReport(by=by, lines=lines, total=total, left_out=left_out or None, budgets=budgets or None, error=error)


def _rows(costs: Costs) -> list[dict[str, Any]]:
    rows = [cost_fields(line) for line in costs.lines]
    for row in rows:
        if row["name"] in costs.parts:
            row["parts"] = costs.parts[row["name"]]
    return with_few_parts(rows)


def with_few_parts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of costs whose `parts` have at most `_MAX_PARTS` entries, as many as a chart can distinguish: the models or
    projects that cost most over all lines, and the sum of the others as `other`."""
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update(row.get("parts") or {})
    totals.pop(_OTHER_PARTS, None)
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    kept = ranked if len(ranked) <= _MAX_PARTS else ranked[: _MAX_PARTS - 1]
    return [{**row, "parts": _kept_parts(row["parts"], kept)} if "parts" in row else row for row in rows]


def _kept_parts(parts: Mapping[str, float], kept: Sequence[str]) -> dict[str, float]:
    shown = {name: round(parts[name], 6) for name in kept if name in parts}
    other = sum(spent for name, spent in parts.items() if name not in shown)
    return {**shown, _OTHER_PARTS: round(other, 6)} if other else shown


async def budget_rows(service: Service, caller: Caller) -> list[dict[str, Any]]:
    """A caller's budgets, their own and their groups', how much of each is spent, and a warning if it is nearly used
    up. OSError if they cannot be read."""
    budgets = await asyncio.to_thread(service.policy_for(caller).budgets)
    return [_budget_row(caller.principal, budget, spent) for budget, spent in budgets]


def _budget_row(principal: str, budget: Budget, spent: float) -> dict[str, Any]:
    return {
        "period": budget.period,
        **({"group": budget.group} if budget.group else {}),
        "limitUsd": budget.limit,
        "spentUsd": round(spent, 6),
        **({"warning": budget.line(principal, spent)} if budget.is_low(spent) else {}),
    }


async def not_read(service: Service, caller: Caller) -> ErrorInfo | None:
    """The error if some data on disk could not be read, as opposed to being absent."""
    reason = await service.stored.unread(caller=caller)
    return ErrorInfo(code="UNREADABLE", message=reason) if reason is not None else None


def cost_fields(line: Any) -> dict[str, Any]:
    """A line of costs in wire format."""
    fields = {**asdict(line), "usd": round(line.usd, 6)}
    names = {"input_tokens": "inputTokens", "output_tokens": "outputTokens", "unpriced_tokens": "unpricedTokens"}
    return {names.get(name, name): value for name, value in fields.items() if value is not None}


SESSION_COSTS: Tool[Any] = Tool(
    "claude_session_costs",
    "Show what sessions cost",
    "Costs of the sessions on this machine, by day, project, model or session.",
    CostArguments,
    CostReport,
    session_costs,
    types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
