"""`costs`: what the Claude Code sessions on this machine have cost, with a small chart."""

import argparse
import asyncio
import time
from dataclasses import asdict
from typing import Any

from ..model.text import clip_line, count_of
from ..state.session_records import LOCAL
from ..store.cost_report import CostLine, Costs
from .flags import add_json, positive, print_json
from .sessions import library, print_unread

_WIDEST = 40
_BAR = 32
_DAY = 86_400
_EIGHTHS = " ▏▎▍▌▋▊▉"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "costs",
        help="what the sessions on this machine have cost",
        description="Adds up what Claude Code wrote down when its processes ended, and what this server has recorded "
        "of sessions that it ran.",
    )
    parser.add_argument("--by", choices=("day", "project", "model", "session"), default="day", help="default: day")
    parser.add_argument("--days", type=positive, metavar="N", help="of the last N days (default: all)")
    parser.add_argument("--project", metavar="DIR", help="only the sessions of this directory")
    parser.add_argument("--limit", type=positive, default=30, metavar="N", help="at most N lines (default 30)")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    since = ""
    if arguments.days is not None:
        since = time.strftime("%Y-%m-%d", time.gmtime(time.time() - (arguments.days - 1) * _DAY))
    sessions = library()
    most = None if arguments.json else arguments.limit
    costs = asyncio.run(sessions.costs(arguments.by, owner=LOCAL, since=since, project=arguments.project, most=most))
    print_unread(sessions)
    if arguments.json:
        print_json({"by": costs.by, "lines": [asdict(line) for line in costs.lines], "total": asdict(costs.total)})
        return 0
    print(_chart(costs))
    return 0


def _chart(costs: Costs) -> str:
    shown = costs.lines
    if not shown:
        return "No costs are recorded."
    names = [_name(line) for line in shown]
    width = max(map(len, names))
    most = max(line.usd for line in shown)
    rows = [
        f"{name:<{width}}  {f'${line.usd:,.4f}':>12}  {_bar(line.usd, most)}".rstrip()
        for name, line in zip(names, shown, strict=True)
    ]
    if costs.left_out:
        rows.append(f"… and {costs.left_out} more")
    return "\n".join((*rows, _total(costs.total)))


def _name(line: CostLine) -> str:
    return clip_line(f"{line.name[:8]} {line.title}" if line.title else line.name, _WIDEST)


def _bar(amount: float, most: float) -> str:
    """As long as the amount, to an eighth of a character."""
    eighths = round(8 * _BAR * amount / most) if most > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _total(total: CostLine) -> str:
    tokens = f"{total.input_tokens:,} tokens in, {total.output_tokens:,} out"
    unpriced = f"; {total.unpriced_tokens:,} tokens have no recorded price" if total.unpriced_tokens else ""
    return f"Total ${total.usd:,.4f} in {count_of(total.sessions, 'session')}, {tokens}{unpriced}."
