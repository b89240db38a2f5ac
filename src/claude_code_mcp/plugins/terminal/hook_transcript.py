"""What a session's transcript says about the dialog of a hook: the plan shown in it, and whether its call has a result.

Blocks on the disk.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.private_files import read_regular
from ...core.transcripts.recent_messages import read_recent
from .hook_events import HookEvent

_SLUG = re.compile(r"[A-Za-z0-9-]{1,200}")
_MAX_PLAN = 1 << 20


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan in a dialog, and the id of the call with it; empty for the session's plan file."""

    text: str
    call: str = ""


def plan_of(event: HookEvent, config_dir: str) -> ShownPlan | None:
    """The plan that Claude Code shows in its dialog: the session's plan file, or the plan of the last call with one;
    None if that call has a result and is therefore an earlier one."""
    messages = read_recent(Path(event.text("transcript_path"))).messages
    slug = next((found for message in reversed(messages) if isinstance(found := message.get("slug"), str)), "")
    if _SLUG.fullmatch(slug):
        with contextlib.suppress(OSError, UnicodeError):
            file = os.path.join(config_dir, "plans", f"{slug}.md")
            written = read_regular(file, _MAX_PLAN, follow_link=False).decode()
            return ShownPlan(written) if written else None
    blocks = [block for message in messages for block in _blocks(message)]
    results = _results(blocks)
    for block in reversed(blocks):
        if block.get("type") == "tool_use" and block.get("name") == "ExitPlanMode":
            tool_input, call = block.get("input"), block.get("id")
            text = tool_input.get("plan") if isinstance(tool_input, dict) else None
            is_open = isinstance(call, str) and call not in results
            return ShownPlan(text, call) if is_open and isinstance(text, str) and text else None
    return None


def has_result(event: HookEvent) -> bool:
    """Whether the transcript has a result of the newest call that matches an event."""
    messages = read_recent(Path(event.text("transcript_path"))).messages
    blocks = [block for message in messages for block in _blocks(message)]
    results = _results(blocks)
    for block in reversed(blocks):
        # Claude Code gives a hook less of a plan than the model has written.
        is_same = event.tool == "ExitPlanMode" or block.get("input") == event.tool_input
        if block.get("type") == "tool_use" and block.get("name") == event.tool and is_same:
            return block.get("id") in results
    return False


def _results(blocks: Iterable[Mapping[str, Any]]) -> set[Any]:
    """The ids of the calls with a result."""
    return {block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"}


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["message"].get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
