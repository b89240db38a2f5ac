"""What a scripted model remembers of each request: small, typed, and enough to assert on."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from claude_code_mcp.testing.request_reader import (
    messages_of,
    newest_script,
    texts_by_role,
    texts_of,
    tool_results_in,
)

_HEADERS = (
    *("anthropic-beta", "anthropic-version", "authorization", "user-agent", "x-api-key", "x-app", "x-gateway-key"),
    "x-stainless-retry-count",
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool result as the model received it."""

    tool_use_id: str
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request to the scripted model."""

    at: float
    """Seconds of the monotonic clock when it had been read."""
    path: str
    """Without its query."""
    status: int
    """What was answered; 200 also for a stream that was cut or stalled."""
    session_id: str
    """The session of Claude Code that asked; subagents ask in that of their parent."""
    model: str
    """The model that was asked for."""
    stream: bool
    """Whether the answer was to be streamed."""
    messages: int
    """How many there were."""
    tools: tuple[str, ...]
    """The names of the tools the model was offered."""
    system: str
    """The system prompt."""
    prompt: str
    """The newest text with a script in it; the newest text of the user if none has one."""
    tool_results: tuple[ToolResult, ...]
    """What came back for the calls of the last answer."""
    step: int | None
    """Which step of the script was the answer, if one was."""
    headers: Mapping[str, str]
    """Those of interest, in lower case."""
    body: Mapping[str, Any] | None
    """The decoded request, only with `keep_bodies`."""


def record_of(
    path: str,
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    status: int,
    step: int | None,
    keep_body: bool,
) -> RequestRecord:
    """The record of one request. System prompts repeat, so equal ones share their memory."""
    messages = messages_of(body)
    return RequestRecord(
        at=time.monotonic(),
        path=path.partition("?")[0],
        status=status,
        session_id=_session_id(body),
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        messages=len(messages),
        tools=tuple(str(tool.get("name")) for tool in body.get("tools") or []),
        system=sys.intern("\n".join(texts_of(body.get("system")))),
        prompt=_prompt(messages),
        tool_results=tuple(map(_tool_result, tool_results_in(messages))),
        step=step,
        headers={name: headers[name] for name in _HEADERS if name in headers},
        body=body if keep_body else None,
    )


def _tool_result(block: Mapping[str, Any]) -> ToolResult:
    text = "\n".join(texts_of(block.get("content")))
    return ToolResult(str(block.get("tool_use_id", "")), text, bool(block.get("is_error")))


def _prompt(messages: list[dict[str, Any]]) -> str:
    found = newest_script(messages)
    return found[1] if found else "".join(texts_by_role(messages, "user")[-1:])


def _session_id(body: Mapping[str, Any]) -> str:
    """The CLI hides it in the user id, which is JSON in a string."""
    try:
        return str(json.loads(body["metadata"]["user_id"])["session_id"])
    except (KeyError, TypeError, ValueError):
        return ""
