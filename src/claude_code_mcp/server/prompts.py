"""Prompts of this server, for delegating to Claude Code sessions.

Prompts name only tools of the chosen toolsets. The person's text appears in them as JSON, in the arguments of a call,
so that it cannot be mistaken for instructions.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from ..core.config import Settings

_MAX_VALUE = 100_000
"""Maximum characters of an argument."""
_MAX_SESSIONS = 8
_TASK = ("task", "The task, with everything needed to do it", True)
_DIRECTORY = ("directory", "The project directory", False)
_MODEL = ("model", "The model", False)
_MODE = ("mode", "The permission mode", False)
FilledIn = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Family:
    """The tools of one toolset for running a session, and the instructions for them."""

    start: str
    send: str
    argument_names: Mapping[str, str]
    """The argument names of `start` and `send`."""
    after: str
    """Instructions until the turn has ended."""


_FAMILIES: Mapping[str, _Family] = {
    "sessions": _Family(
        "claude_create_session",
        "claude_send_message",
        {"directory": "workingDirectory", "mode": "permissionMode", "model": "model", "message": "message"},
        "Then call claude_get_status with waitSeconds until status is no longer running. When it is waiting_for_input, "
        "show me every entry of pendingInputs and answer it with claude_respond as I decide.",
    ),
    "code": _Family(
        "claude_code",
        "claude_code_reply",
        {"directory": "cwd", "mode": "permissionMode", "model": "model", "message": "prompt"},
        "When its status is waiting_for_input, show me every entry of pendingInputs and answer it with "
        "claude_code_session, action respond, as I decide.",
    ),
}


@dataclass(frozen=True, slots=True)
class _Prompt:
    name: str
    title: str
    description: str
    arguments: tuple[tuple[str, str, bool], ...]
    """Name, description and whether it must be filled."""
    write: Callable[[_Family, FilledIn], str]


class Prompts:
    """The prompts of a server with these settings; none if its tools cannot start a session."""

    def __init__(self, settings: Settings) -> None:
        name = next((name for name in _FAMILIES if name in settings.toolsets), None)
        self._family = _FAMILIES[name] if name is not None else None
        self._prompts = {prompt.name: prompt for prompt in _ALL} if self._family is not None else {}

    def __contains__(self, name: str) -> bool:
        return name in self._prompts

    def listing(self) -> list[types.Prompt]:
        return [
            types.Prompt(
                name=prompt.name,
                title=prompt.title,
                description=prompt.description,
                arguments=[
                    types.PromptArgument(name=name, description=description, required=required)
                    for name, description, required in prompt.arguments
                ],
            )
            for prompt in self._prompts.values()
        ]

    def get(self, name: str, arguments: FilledIn) -> types.GetPromptResult:
        """The prompt with the person's arguments; MCPError if they are invalid."""
        prompt = self._prompts[name]
        assert self._family is not None
        known = {argument: required for argument, _, required in prompt.arguments}
        for argument, value in arguments.items():
            if argument not in known or len(value) > _MAX_VALUE:
                why = "unknown argument" if argument not in known else f"must have at most {_MAX_VALUE} characters"
                raise MCPError(types.INVALID_PARAMS, f"{argument[:100]}: {why}")
        missing = [argument for argument, required in known.items() if required and not arguments.get(argument)]
        if missing:
            raise MCPError(types.INVALID_PARAMS, f"{missing[0]}: required")
        text = prompt.write(self._family, {key: value for key, value in arguments.items() if value})
        content = types.TextContent(type="text", text=text)
        return types.GetPromptResult(
            description=prompt.description, messages=[types.PromptMessage(role="user", content=content)]
        )


def _call(tool: str, **arguments: Any) -> str:
    filled = {name: value for name, value in arguments.items() if value is not None}
    return f"{tool} {json.dumps(filled, ensure_ascii=False, indent=1)}"


def _start(family: _Family, filled: FilledIn, prompt: str, **more: str) -> str:
    wanted = {name: filled.get(name) for name in ("directory", "model", "mode")} | more
    return _call(family.start, prompt=prompt, **{family.argument_names[name]: value for name, value in wanted.items()})


def _delegate(family: _Family, filled: FilledIn) -> str:
    return (
        "Have a Claude Code session do this. Before you start it, add to the prompt below what the session needs from "
        "this conversation: the goal, the constraints, what already exists, and how to verify the result. "
        "Then call:\n\n"
        f"{_start(family, filled, filled['task'])}\n\n{family.after}\n\n"
        "When it has ended, check its result against the task yourself, tell me in a few lines what was done and what "
        "was not, and give me the session id."
    )


def _plan_first(family: _Family, filled: FilledIn) -> str:
    return (
        "Have a Claude Code session plan this before anything is changed. Call:\n\n"
        f"{_start(family, filled, filled['task'], mode='plan')}\n\n{family.after}\n\n"
        "The plan comes as a question of type plan_review. Show all of it to me, with the changes you suggest. "
        "Allow it only when I agree; otherwise deny it with my remarks as the reason, and the session makes a new plan."
    )


def _review(family: _Family, filled: FilledIn) -> str:
    what = filled.get("changes") or "the uncommitted changes, with `git status`, `git diff HEAD` and the new files"
    prompt = (
        f"Review {what}. Read the code around every change, not only the diff. Report only problems: defects, missed "
        "cases, races, security issues, tests that cannot fail. For each give the file and line, what happens, how to "
        "reproduce it, and a fix. Put the most serious first. Change nothing."
    )
    return (
        "Have a Claude Code session review changes with fresh eyes. Call:\n\n"
        f"{_start(family, filled, prompt, mode='plan')}\n\n{family.after}\n\n"
        "Verify every finding in the code before you report it, and say which ones you confirmed."
    )


def _continue(family: _Family, filled: FilledIn) -> str:
    message = (
        filled.get("message") or "Summarize the state of your work: what is done, what is left, what you need from me."
    )
    call = _call(family.send, sessionId=filled["session"], **{family.argument_names["message"]: message})
    return (
        f"Continue an earlier Claude Code session; it remembers its whole conversation. Call:\n\n{call}\n\n"
        f"{family.after}\n\nTell me the result. Use the sessionId of the result from now on."
    )


def _compare(family: _Family, filled: FilledIn) -> str:
    try:
        count = min(max(int(filled.get("count", "2")[:4]), 2), _MAX_SESSIONS)
    except ValueError:
        raise MCPError(types.INVALID_PARAMS, "count: must be a number") from None
    return (
        f"Have {count} Claude Code sessions do the same task independently, and compare them. They must not share a "
        f"directory: first create {count} git worktrees of the project, or copies of it, and give each session its "
        f"own. Start all before you wait for any, {count} times with another directory:\n\n"
        f"{_start(family, filled, filled['task'])}\n\n{family.after}\n\n"
        "When all have ended, compare the results by the same criteria: whether it works, the test results, the size "
        "of the change, what is missing. Recommend one, say why, and name what the others do better."
    )


_ALL = (
    _Prompt(
        "delegate",
        "Delegate a task",
        "Have a session do a task and check the result",
        (_TASK, _DIRECTORY, _MODEL, _MODE),
        _delegate,
    ),
    _Prompt(
        "plan_first",
        "Plan first",
        "Have a session plan a task and decide on the plan",
        (_TASK, _DIRECTORY, _MODEL),
        _plan_first,
    ),
    _Prompt(
        "review_changes",
        "Review changes",
        "Have a session review a diff with fresh eyes",
        (
            ("changes", "What to review, such as main...HEAD (default: uncommitted changes)", False),
            _DIRECTORY,
            _MODEL,
        ),
        _review,
    ),
    _Prompt(
        "continue_session",
        "Continue a session",
        "Continue an earlier session",
        (
            ("session", "The session's id; completion finds it by words of its title", True),
            ("message", "The message", False),
        ),
        _continue,
    ),
    _Prompt(
        "compare",
        "Run several and compare",
        "Have several sessions do the same task and compare the results",
        (_TASK, _DIRECTORY, _MODEL, ("count", f"How many, 2 to {_MAX_SESSIONS}", False)),
        _compare,
    ),
)
