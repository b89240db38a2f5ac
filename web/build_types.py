"""Write the types of the data that the server sends to the page: `python web/build_types.py` makes server_types.ts.

The names, and which values may be absent, come from `SessionRow` and the columns of it that the console shows. The
kinds of questions, the words for states and the rules for folded calls come from the server's own lists. A test fails
if web/src/server_types.ts is stale.
"""

import dataclasses
import json
import types
import typing
from pathlib import Path

from claude_code_mcp.core.model import folded_calls
from claude_code_mcp.core.model.states import SESSION_TOOL_STATUS
from claude_code_mcp.core.questions.kinds import WireType
from claude_code_mcp.core.sessions.callers.session_access import Access
from claude_code_mcp.core.sessions.stored.session_row import SessionRow
from claude_code_mcp.core.transcripts.timeline import Timeline, TurnTime, WaitTime
from claude_code_mcp.plugins.console import event_frames

FILE = Path(__file__).parent / "src" / "server_types.ts"
_HEAD = "// Made from the server's models by `python web/build_types.py`. Do not edit.\n"
_FOLDED = ("COMMANDS", "READS", "SEARCHES", "PAGES", "MIN_RUN", "SHOWN_LINES")
"""What the page needs to fold calls as the terminal interface does."""
_PLAIN = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
_NARROWER = {
    "status": "Status",
    "needs": "Needs",
    "access": "Access",
    "onLimit": '"end" | "wait"',
    "asks": "{ questionId: string; kind: QuestionKind; description: string }[]",
    "unanswered": "{ description: string; reason: string; at: string }",
    "context": "[number, number]",
    "planUsage": "PlanUsage",
}
"""The types of columns whose Python type is less specific than their values."""


def typescript() -> str:
    columns = {**event_frames._STORED_COLUMNS, **event_frames._LIVE_COLUMNS}
    kinds = typing.get_args(WireType)
    parts = [
        _HEAD,
        _union("Status", dict.fromkeys(SESSION_TOOL_STATUS.values())),
        _union("Needs", event_frames._NEEDS_ORDER),
        _union("QuestionKind", kinds),
        _union("Access", [str(access) for access in Access]),
        *(_constant(name, getattr(folded_calls, name)) for name in _FOLDED),
        "",
        _PLAN,
        *map(_interface, (TurnTime, WaitTime, Timeline)),
        "/** A session as the server lists it. */\nexport interface ServerRow {",
        *(f"  {name}: {_type_of(name, column)};" for name, column in columns.items()),
        "}\n",
    ]
    return "\n".join(parts)


_PLAN = """/** How much of a subscription is used, by window: the part, from 0 to 1. */
export interface PlanUsage {
  windows?: Record<string, { used?: number; resetsAt?: string | null }> | null;
  reportedAt?: string | null;
}
"""


def _union(name: str, values: typing.Iterable[str]) -> str:
    return f"export type {name} = " + " | ".join(f'"{value}"' for value in values) + ";\n"


def _constant(name: str, value: int | frozenset[str]) -> str:
    given = value if isinstance(value, int) else f"new Set<string>({json.dumps(sorted(value))})"
    return f"export const {name} = {given};"


def _interface(model: type) -> str:
    """Write the interface of a dataclass whose fields are plain values or tuples of dataclasses."""
    hints = typing.get_type_hints(model)
    fields = [f"  {field.name}: {_plain(hints[field.name])};" for field in dataclasses.fields(model)]
    return "\n".join([f"export interface {model.__name__} {{", *fields, "}\n"])


def _plain(hint: typing.Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"{typing.get_args(hint)[0].__name__}[]"
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return " | ".join(_PLAIN[option] for option in options)


def _type_of(name: str, column: str) -> str:
    hint = _hints()[column]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    nullable = type(None) in options
    if name in _NARROWER:
        return _NARROWER[name] + (" | null" if nullable else "")
    return _plain(hint)


def _hints() -> dict[str, typing.Any]:
    hints = typing.get_type_hints(SessionRow)
    for name, member in vars(SessionRow).items():
        if isinstance(member, property):
            hints[name] = typing.get_type_hints(member.fget)["return"]
    return hints


if __name__ == "__main__":
    FILE.write_text(typescript(), encoding="utf-8")
