"""Fragments of a message that is still being written, without known secrets that are spread over several of them.

The end of a fragment that may be the beginning of a known secret is held back until the next fragment, or the end of
the block, tells. Every fragment still has its message, be it with an empty text; what is left at the end of a block
comes as one fragment more.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from ..redaction import Redactor

_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}

Raw = Mapping[str, Any]


class Fragments:
    """One stream of messages. At most one held-back text per block that is being written."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: dict[object, tuple[Raw, str]] = {}

    def take(self, message: Raw) -> list[Raw]:
        """The messages to be sent for this one, in order."""
        told = _text_in(message)
        if told is None:
            return [*self.flush(), message]
        block = message.get("parent_tool_use_id"), message["event"].get("index")
        _, before = self._held.pop(block, (message, ""))
        text = before + told
        kept = self._redactor.held_back(text)
        if kept:
            self._held[block] = message, text[len(text) - kept :]
        return [_with_text(message, text[: len(text) - kept])] if kept or before else [message]

    def flush(self) -> list[Raw]:
        """What was held back, since nothing more follows."""
        left, self._held = self._held, {}
        return [{**_with_text(message, text), "uuid": str(uuid.uuid4())} for message, text in left.values()]


def _text_in(message: Raw) -> str | None:
    """The text of a fragment; None for every other message."""
    event = message.get("event")
    delta = event.get("delta") if isinstance(event, Mapping) and event.get("type") == "content_block_delta" else None
    field = _TEXT_OF.get(str(delta.get("type"))) if isinstance(delta, Mapping) else None
    text = delta.get(field) if isinstance(delta, Mapping) and field else None
    return text if isinstance(text, str) else None


def _with_text(message: Raw, text: str) -> dict[str, Any]:
    event = message["event"]
    delta = event["delta"]
    return {**message, "event": {**event, "delta": {**delta, _TEXT_OF[delta["type"]]: text}}}
