"""One readable line about what a tool call wants to do. Pure.

Terminals show these lines: nothing in them may hide or rewrite what stands beside it. A long one is short in the middle
and says so; whoever decides is shown the whole beside it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..model.paths import HERE, PathRules
from ..model.text import one_line
from ..secret_shapes import hide_shapes

LONGEST = 200
_SHORT = 60
_PATHS = frozenset({"file_path", "notebook_path"})


def describe(tool_name: str, tool_input: Mapping[str, Any], cwd: str = "", paths: PathRules = HERE) -> str:
    """Such as `Edit src/auth.py: 3 lines changed` or `Run: git push`. Files below `cwd` are named from there."""
    teller = _TELLERS.get(tool_name)
    tool_input = {
        key: paths.shown_from(value, cwd) if key in _PATHS and isinstance(value, str) else value
        for key, value in tool_input.items()
    }
    return _line(teller(tool_input) if teller else _unknown(tool_name, tool_input), LONGEST)


def _line(text: str, longest: int) -> str:
    """Secrets are taken out of what will be cut: of one that is cut, the rest could not be recognised."""
    return one_line(hide_shapes(text) if len(text) > longest else text, longest)


def _text(tool_input: Mapping[str, Any], *names: str) -> str:
    values = (tool_input.get(name) for name in names)
    return next((str(value) for value in values if value), "?")


def _edit(tool_input: Mapping[str, Any]) -> str:
    old, new = str(tool_input.get("old_string", "")), str(tool_input.get("new_string", ""))
    everywhere = ", everywhere" if tool_input.get("replace_all") else ""
    return f"Edit {_text(tool_input, 'file_path')}: {_changed(old, new)}{everywhere}"


def _changed(old: str, new: str) -> str:
    """Counts the lines between the first and the last difference: an edit is one place in a file."""
    before, after = old.splitlines(), new.splitlines()
    unchanged = _common_start(before, after)
    before, after = before[unchanged:], after[unchanged:]
    unchanged = _common_start(before[::-1], after[::-1])
    return _count(max(len(before), len(after)) - unchanged, "line") + " changed"


def _common_start(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (mine, yours) in pairs if mine != yours), min(len(one), len(other)))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _write(tool_input: Mapping[str, Any]) -> str:
    lines = len(str(tool_input.get("content", "")).splitlines())
    return f"Write {_text(tool_input, 'file_path')}: {_count(lines, 'line')}"


def _run(tool_input: Mapping[str, Any]) -> str:
    background = " (in the background)" if tool_input.get("run_in_background") else ""
    return f"Run: {_text(tool_input, 'command')}{background}"


def _plan(tool_input: Mapping[str, Any]) -> str:
    plan = str(tool_input.get("plan") or "").strip()
    heading = next((line.lstrip("# ").strip() for line in plan.splitlines() if line.strip()), "")
    return f"Plan ready for review: {heading}" if heading else "Plan ready for review"


def _ask(tool_input: Mapping[str, Any]) -> str:
    raw = tool_input.get("questions")
    questions = (
        [str(part.get("question", "?")) for part in raw if isinstance(part, Mapping)] if isinstance(raw, list) else []
    )
    return "Question: " + " / ".join(questions) if questions else "Claude has a question"


def _agent(tool_input: Mapping[str, Any]) -> str:
    return f"Start agent: {_text(tool_input, 'description', 'prompt')}"


_TELLERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "Edit": _edit,
    "Write": _write,
    "NotebookEdit": lambda tool_input: f"Edit notebook {_text(tool_input, 'notebook_path')}",
    "Read": lambda tool_input: f"Read {_text(tool_input, 'file_path')}",
    "Bash": _run,
    "PowerShell": _run,
    "Glob": lambda tool_input: f"Find files: {_text(tool_input, 'pattern')}",
    "Grep": lambda tool_input: f"Search for: {_text(tool_input, 'pattern')}",
    "WebFetch": lambda tool_input: f"Fetch {_text(tool_input, 'url')}",
    "WebSearch": lambda tool_input: f"Search the web: {_text(tool_input, 'query')}",
    "Task": _agent,
    "Agent": _agent,
    "ExitPlanMode": _plan,
    "AskUserQuestion": _ask,
    "EnterPlanMode": lambda _: "Enter plan mode",
}


def _unknown(tool_name: str, tool_input: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{key}={_short(value)}" for key, value in tool_input.items())
    return f"Use {_name(tool_name)}: {arguments}" if arguments else f"Use {_name(tool_name)}"


def _name(tool_name: str) -> str:
    """Tools of MCP servers are called `mcp__server__tool`."""
    prefix, _, rest = tool_name.partition("__")
    server, _, tool = rest.partition("__")
    return f"{tool} of {server}" if prefix == "mcp" and server and tool else tool_name


def _short(value: Any) -> str:
    return _line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), _SHORT)
