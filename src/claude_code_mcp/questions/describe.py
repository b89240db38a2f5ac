"""One readable line about what a tool call is about to do. Pure.

Terminals show these lines: nothing in them may hide or rewrite what stands beside it. A long one is shortened in its
middle and says so; a person who decides is shown the whole input besides (presentation.py).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..model.paths import HERE, PathRules
from ..model.text import count_of, one_line
from ..secret_shapes import hide_shapes

_LONGEST = 200
_LONGEST_ARGUMENT = 60
_PATH_FIELDS = frozenset({"file_path", "notebook_path"})
_BACKGROUND = " (in the background)"
_DESCRIBED_FIELDS = {
    "Bash": "command",
    "PowerShell": "command",
    "Read": "file_path",
    "Glob": "pattern",
    "Grep": "pattern",
    "WebFetch": "url",
    "WebSearch": "query",
}
"""The field of a tool's input that its description ends with, where that is short enough."""


def describe(tool_name: str, tool_input: Mapping[str, Any], cwd: str = "", paths: PathRules = HERE) -> str:
    """Such as `Edit src/auth.py: 3 lines changed` or `Run: git push`. Files below `cwd` are named from there."""
    describer = _DESCRIBERS.get(tool_name)
    tool_input = {
        name: paths.shown_from(value, cwd) if name in _PATH_FIELDS and isinstance(value, str) else value
        for name, value in tool_input.items()
    }
    return _shorten(describer(tool_input) if describer else _describe_unknown(tool_name, tool_input), _LONGEST)


def is_described(tool_name: str, field: str, value: object, description: str) -> bool:
    """Whether the description of a call has this value of its input, all of it and unchanged."""
    if _DESCRIBED_FIELDS.get(tool_name) != field or not isinstance(value, str):
        return False
    return description.removesuffix(_BACKGROUND).endswith(f" {value}") and one_line(value, _LONGEST) == value


def _shorten(text: str, longest: int) -> str:
    """On one line. Secrets are taken out of what will be cut: the rest of one that is cut could not be recognised."""
    return one_line(hide_shapes(text) if len(text) > longest else text, longest)


def _first(tool_input: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that has a value; `?` if none has."""
    values = (tool_input.get(name) for name in names)
    return next((str(value) for value in values if value), "?")


def _describe_edit(tool_input: Mapping[str, Any]) -> str:
    old, new = str(tool_input.get("old_string", "")), str(tool_input.get("new_string", ""))
    everywhere = ", everywhere" if tool_input.get("replace_all") else ""
    return f"Edit {_first(tool_input, 'file_path')}: {_changed(old, new)}{everywhere}"


def _changed(old: str, new: str) -> str:
    """The number of lines from the first to the last difference: an edit is one place in a file."""
    before, after = old.splitlines(), new.splitlines()
    unchanged = _common_start(before, after)
    before, after = before[unchanged:], after[unchanged:]
    unchanged = _common_start(before[::-1], after[::-1])
    return count_of(max(len(before), len(after)) - unchanged, "line", "") + " changed"


def _common_start(before: list[str], after: list[str]) -> int:
    pairs = enumerate(zip(before, after, strict=False))
    return next((number for number, (old, new) in pairs if old != new), min(len(before), len(after)))


def _describe_write(tool_input: Mapping[str, Any]) -> str:
    lines = len(str(tool_input.get("content", "")).splitlines())
    return f"Write {_first(tool_input, 'file_path')}: {count_of(lines, 'line', '')}"


def _describe_command(tool_input: Mapping[str, Any]) -> str:
    background = _BACKGROUND if tool_input.get("run_in_background") else ""
    return f"Run: {_first(tool_input, 'command')}{background}"


def _describe_plan(tool_input: Mapping[str, Any]) -> str:
    plan = str(tool_input.get("plan") or "").strip()
    heading = next((line.lstrip("# ").strip() for line in plan.splitlines() if line.strip()), "")
    return f"Plan ready for review: {heading}" if heading else "Plan ready for review"


def _describe_questions(tool_input: Mapping[str, Any]) -> str:
    raw = tool_input.get("questions")
    questions = (
        [str(part.get("question", "?")) for part in raw if isinstance(part, Mapping)] if isinstance(raw, list) else []
    )
    return "Question: " + " / ".join(questions) if questions else "Claude has a question"


def _describe_agent(tool_input: Mapping[str, Any]) -> str:
    return f"Start agent: {_first(tool_input, 'description', 'prompt')}"


_DESCRIBERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "Edit": _describe_edit,
    "Write": _describe_write,
    "NotebookEdit": lambda tool_input: f"Edit notebook {_first(tool_input, 'notebook_path')}",
    "Read": lambda tool_input: f"Read {_first(tool_input, 'file_path')}",
    "Bash": _describe_command,
    "PowerShell": _describe_command,
    "Glob": lambda tool_input: f"Find files: {_first(tool_input, 'pattern')}",
    "Grep": lambda tool_input: f"Search for: {_first(tool_input, 'pattern')}",
    "WebFetch": lambda tool_input: f"Fetch {_first(tool_input, 'url')}",
    "WebSearch": lambda tool_input: f"Search the web: {_first(tool_input, 'query')}",
    "Task": _describe_agent,
    "Agent": _describe_agent,
    "ExitPlanMode": _describe_plan,
    "AskUserQuestion": _describe_questions,
    "EnterPlanMode": lambda _: "Enter plan mode",
}


def _describe_unknown(tool_name: str, tool_input: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{key}={_argument(value)}" for key, value in tool_input.items())
    return f"Use {_display_name(tool_name)}: {arguments}" if arguments else f"Use {_display_name(tool_name)}"


def _display_name(tool_name: str) -> str:
    """`tool of server` for `mcp__server__tool`."""
    prefix, _, rest = tool_name.partition("__")
    server, _, tool = rest.partition("__")
    return f"{tool} of {server}" if prefix == "mcp" and server and tool else tool_name


def _argument(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return _shorten(text, _LONGEST_ARGUMENT)
