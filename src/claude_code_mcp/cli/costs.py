"""`costs`: the costs of sessions."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..client.conventions import add_config_file, add_json, camel_names, positive, print_json
from ..client.session_files import library, print_unread
from ..core.config import load_settings
from ..core.errors import StateUnavailable
from ..core.model.caller import LOCAL
from ..core.model.text import clip_line, count_of, csv_of, local_time, visible
from ..core.state.documents import Documents
from ..core.state.spending import BudgetWarning, Spending
from ..core.state.state_directory import database_in
from ..core.transcripts.cost_table import CostLine, Costs

_MAX_WIDTH = 40
_MAX_WARNING = 300
_BAR = 32
_DAY = 86_400
_EIGHTHS = " ▏▎▍▌▋▊▉"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "costs",
        help="show what sessions on this machine cost",
        description="Adds up the costs that Claude Code recorded at the end of each process and the costs that "
        "this server recorded for its sessions.",
    )
    parser.add_argument(
        "--by",
        choices=("day", "month", "project", "model", "session", "caller", "group"),
        default="day",
        help="default: day. caller and group apply to callers over HTTP",
    )
    parser.add_argument(
        "--per", choices=("month", "day"), default="month", help="for callers and groups (default: month)"
    )
    parser.add_argument("--days", type=positive, metavar="N", help="only the last N days (default: all)")
    parser.add_argument("--project", metavar="DIR", help="only sessions in this directory")
    parser.add_argument("--limit", type=positive, default=30, metavar="N", help="at most N lines (default 30)")
    formats = parser.add_mutually_exclusive_group()
    add_json(formats)
    formats.add_argument("--csv", action="store_true", help="print all lines as CSV")
    add_config_file(parser)
    parser.set_defaults(run=_run_costs)


def _run_spending(arguments: argparse.Namespace) -> int:
    """Print costs by caller or group, as recorded by the server."""
    spending = Spending(database_in(load_settings(file=arguments.config).state_dir))
    lines = spending.by_period(arguments.per, since=_since(arguments.days), groups=arguments.by == "group")
    rows = [
        {arguments.per: line.period, **({"group": line.group} if line.group else {}), "caller": line.principal}
        | {"usd": round(line.usd, 6)}
        for line in lines
    ]
    warnings = spending.warnings()
    if arguments.json:
        print_json({"by": arguments.by, "lines": rows, "budgetWarnings": [warning.fields for warning in warnings]})
    elif arguments.csv:
        print(csv_of(rows), end="")
    else:
        for row in rows[: arguments.limit]:
            names = [visible(clip_line(str(value), _MAX_WIDTH)) for name, value in row.items() if name != "usd"]
            print(f"{'  '.join(names)}  ${row['usd']:,.4f}")
        left_out = len(rows) - arguments.limit
        if not rows or left_out > 0:
            print(f"… and {left_out} more" if rows else "No costs are recorded.")
        _print_warnings(warnings)
    return 0


def _warnings(config: Path | None) -> list[BudgetWarning]:
    """The budget warnings. If they cannot be read, this is only reported on stderr: the costs in transcripts do not
    depend on them."""
    try:
        return Spending(database_in(load_settings(file=config).state_dir)).warnings()
    except (OSError, StateUnavailable) as error:
        print(f"Budget warnings cannot be read: {error}", file=sys.stderr)
        return []


def _print_warnings(warnings: Sequence[BudgetWarning]) -> None:
    """Print the budgets of all callers that are nearly spent."""
    for warning in warnings:
        print(visible(clip_line(f"Warning: {warning.line}", _MAX_WARNING)))


def _run_costs(arguments: argparse.Namespace) -> int:
    if arguments.by in ("caller", "group"):
        return _run_spending(arguments)
    sessions = library()
    most = None if arguments.json or arguments.csv else arguments.limit
    wanted = {"since": _since(arguments.days), "project": arguments.project, "most": most}
    costs = asyncio.run(sessions.costs(arguments.by, principal=LOCAL, **wanted))
    print_unread(sessions)
    warnings, plan = _warnings(arguments.config), _plan_usage(arguments.config)
    if arguments.json:
        lines = [camel_names(asdict(line)) for line in costs.lines]
        report = {"by": costs.by, "lines": lines, "total": camel_names(asdict(costs.total))}
        print_json({**report, "budgetWarnings": [warning.fields for warning in warnings], "planUsage": plan})
        return 0
    print(csv_of([camel_names(asdict(line)) for line in costs.lines]) if arguments.csv else _chart(costs), end="")
    print("" if arguments.csv else "\n", end="")
    _print_warnings(() if arguments.csv else warnings)
    if plan and plan.get("line") and not arguments.csv:
        when = local_time(plan.get("reportedAt"), time.time())
        print(visible(clip_line(f"Plan: {plan['line']} used ({when}).", _MAX_WARNING)))
    return 0


def _plan_usage(config: Path | None) -> dict[str, Any] | None:
    """The plan's usage; None if Claude Code has not reported it to a session of this server."""
    try:
        return Documents(database_in(load_settings(file=config).state_dir), "plan_usage").read(LOCAL)
    except (OSError, StateUnavailable):
        return None  # the warnings of budgets say why


def _since(days: int | None) -> str:
    """The first of the last `days` days; without a number, before all days."""
    return "" if days is None else time.strftime("%Y-%m-%d", time.gmtime(time.time() - (days - 1) * _DAY))


def _chart(costs: Costs) -> str:
    shown = costs.lines
    if not shown:
        return "No costs are recorded."
    names = [
        visible(clip_line(f"{line.name[:8]} {line.title}" if line.title else line.name, _MAX_WIDTH)) for line in shown
    ]
    width = max(map(len, names))
    most = max(line.usd for line in shown)
    rows = [
        f"{name:<{width}}  {f'${line.usd:,.4f}':>12}  {_bar(line.usd, most)}".rstrip()
        for name, line in zip(names, shown, strict=True)
    ]
    if costs.left_out:
        rows.append(f"… and {costs.left_out} more")
    return "\n".join((*rows, _total(costs.total)))


def _bar(amount: float, most: float) -> str:
    """A bar whose length shows the amount, with a resolution of an eighth of a character."""
    eighths = round(8 * _BAR * amount / most) if most > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _total(total: CostLine) -> str:
    tokens = f"{total.input_tokens:,} tokens in, {total.output_tokens:,} out"
    unpriced = f"; {total.unpriced_tokens:,} tokens have no recorded price" if total.unpriced_tokens else ""
    return f"Total ${total.usd:,.4f} in {count_of(total.sessions, 'session')}, {tokens}{unpriced}."
