"""Parses and validates the events that hooks of a terminal session report. Pure.

Everything in an event is a claim: any program of this user can connect and send one. It is trusted only as a
description of the session that it names.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.model.session_id import is_session_id

NAMES = frozenset(
    {
        *("SessionStart", "SessionEnd", "UserPromptSubmit", "Stop", "StopFailure"),
        *("PermissionRequest", "PermissionDenied", "PostToolUse", "PostToolUseFailure"),
    }
)
MAX_EVENT = 8 << 20
"""Maximum bytes of an event. A larger one is answered only at the terminal, because it would have to be cut."""
MAX_HEAD = 200


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a connection: the event, its process, the hook's start time, and the size."""

    name: str
    pid: int
    started: float
    size: int
    is_again: bool
    """Whether another server had the question before."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """An event of a terminal session."""

    name: str
    pid: int
    """The Claude Code process, according to the hook."""
    started: float
    is_again: bool
    """Whether another server had the question before, so that it may already be answered."""
    session_id: str
    cwd: str
    raw: Mapping[str, Any]

    @property
    def tool(self) -> str:
        return self.text("tool_name")

    @property
    def tool_input(self) -> Mapping[str, Any]:
        found = self.raw.get("tool_input")
        return found if isinstance(found, dict) else {}

    @property
    def suggestions(self) -> list[Mapping[str, Any]]:
        found = self.raw.get("permission_suggestions")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def is_of_subagent(self) -> bool:
        return bool(self.raw.get("agent_id"))

    @property
    def has_background_work(self) -> bool:
        """Whether subagents or commands continue after the turn."""
        tasks = self.raw.get("background_tasks")
        return bool(tasks) if isinstance(tasks, list) else False

    def text(self, name: str) -> str:
        found = self.raw.get(name)
        return found if isinstance(found, str) else ""


def read_head(line: bytes) -> Head:
    """Parses the first line. Raises ValueError."""
    name, pid, started, size, again = line.decode("ascii").split()
    head = Head(name, int(pid), float(started), int(size), again == "1")
    if again not in ("0", "1"):
        raise ValueError("not a valid event header")
    if name not in NAMES or not 0 < head.size <= MAX_EVENT or head.pid < 0 or not 0 < head.started < 1e11:
        raise ValueError("not a valid event header")
    return head


def read_event(head: Head, body: bytes, config_dir: str) -> HookEvent:
    """Parses an event. Raises ValueError unless it is from a session of this configuration directory."""
    try:
        raw = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(raw, dict):
        raise ValueError("not an object")
    event = HookEvent(
        head.name, head.pid, head.started, head.is_again, str(raw.get("session_id")), str(raw.get("cwd")), raw
    )
    if not is_session_id(event.session_id) or not os.path.isabs(event.cwd) or "\0" in event.cwd:
        raise ValueError("the session id or directory is missing")
    folder, name = os.path.split(event.text("transcript_path"))
    projects = os.path.join(os.path.realpath(config_dir), "projects")
    if name != f"{event.session_id}.jsonl" or os.path.realpath(os.path.dirname(folder)) != projects:
        raise ValueError("a session of another configuration directory")
    return event


def decision(body: Mapping[str, Any]) -> bytes:
    """The line that a hook prints for this answer."""
    kept = ("behavior", "updatedInput", "updatedPermissions", "message", "interrupt")
    answer = {name: body[name] for name in kept if name in body}
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": answer}}).encode()
