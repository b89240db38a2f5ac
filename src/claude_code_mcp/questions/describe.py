"""One readable line about what a tool call wants to do. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST = 200


def describe(tool_name: str, tool_input: Mapping[str, Any]) -> str:
    """Such as `Edit src/auth.py: 3 lines changed` or `Run: git push`."""
    teller = _TELLERS.get(tool_name)
    return _one_line(teller(tool_input) if teller else _unknown(tool_name, tool_input))


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"


def _text(tool_input: Mapping[str, Any], *names: str) -> str:
    values = (tool_input.get(name) for name in names)
    return next((str(value) for value in values if value), "?")


def _edit(tool_input: Mapping[str, Any]) -> str:
    old, new = str(tool_input.get("old_string", "")), str(tool_input.get("new_string", ""))
    everywhere = ", everywhere" if tool_input.get("replace_all") else ""
    return f"Edit {_text(tool_input, 'file_path')}: {_changed(old, new)}{everywhere}"


def _changed(old: str, new: str) -> str:
    before, after = old.splitlines(), new.splitlines()
    shared = min(len(before), len(after))
    differing = sum(1 for one, other in zip(before, after, strict=False) if one != other)
    return _count(differing + max(len(before), len(after)) - shared, "line") + " changed"


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
        [str(part.get("question", "?")) for part in raw if isinstance(part, Mapping)]
        if isinstance(raw, list)
        else []
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
    _, _, rest = tool_name.partition("mcp__")
    server, _, tool = rest.partition("__")
    name = f"{tool} of {server}" if tool else tool_name
    arguments = ", ".join(f"{key}={_short(value)}" for key, value in tool_input.items())
    return f"Use {name}: {arguments}" if arguments else f"Use {name}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:59] + "…"
