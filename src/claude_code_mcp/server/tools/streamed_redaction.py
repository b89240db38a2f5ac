"""Keeps a secret that spans several fragments of a message from being sent in pieces."""

import uuid
from collections.abc import Mapping
from typing import Any

from ...core.redaction import Redactor
from .notification_queue import RawMessage

_DELTA_TEXT = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""The field of each kind of delta that has text."""


class Fragments:
    """Holds back the end of a fragment's text while it may be the start of a known secret.

    One per stream of messages; at most one held-back text per content block that is being written.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: dict[tuple[object, object], tuple[RawMessage, str]] = {}

    def take(self, message: RawMessage) -> list[RawMessage]:
        """The messages to be sent for this one, in order."""
        delta = _delta_text(message)
        if delta is None:
            ended = _ends_block(message)
            return [*(self.flush_of(message.get("parent_tool_use_id")) if ended else ()), message]
        block = message.get("parent_tool_use_id"), message["event"].get("index")
        _, before = self._held.pop(block, (message, ""))
        text = before + delta
        kept = self._redactor.held_back(text)
        if kept:
            self._held[block] = message, text[len(text) - kept :]
        return [_with_text(message, text[: len(text) - kept])] if kept or before else [message]

    def flush(self) -> list[RawMessage]:
        """The held-back texts as messages, when nothing more follows in their blocks."""
        return [message for agent in {agent for agent, _ in self._held} for message in self.flush_of(agent)]

    def flush_of(self, agent: object) -> list[RawMessage]:
        """The held-back texts of a subagent, identified by the call that started it; None is the session itself."""
        held = [self._held.pop(block) for block in [*self._held] if block[0] == agent]
        return [{**_with_text(message, text), "uuid": str(uuid.uuid4())} for message, text in held]


def _delta_text(message: RawMessage) -> str | None:
    """The text of a fragment; None for every other message."""
    event = message.get("event")
    delta = event.get("delta") if isinstance(event, Mapping) and event.get("type") == "content_block_delta" else None
    field = _DELTA_TEXT.get(str(delta.get("type"))) if isinstance(delta, Mapping) else None
    text = delta.get(field) if isinstance(delta, Mapping) and field else None
    return text if isinstance(text, str) else None


def _ends_block(message: RawMessage) -> bool:
    """Whether a block that was being written before this message of the stream has ended; a ping can come within."""
    event = message.get("event")
    return not isinstance(event, Mapping) or event.get("type") not in ("content_block_delta", "ping")


def _with_text(message: RawMessage, text: str) -> dict[str, Any]:
    event = message["event"]
    delta = event["delta"]
    return {**message, "event": {**event, "delta": {**delta, _DELTA_TEXT[delta["type"]]: text}}}
