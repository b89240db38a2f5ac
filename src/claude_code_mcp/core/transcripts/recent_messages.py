"""The last messages of a transcript, for a session that continues from it.

Reads at most a fixed number of bytes from the end. Raises TranscriptUnreadable, or OSError where stated, for what
cannot be read now. Blocks on the disk.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .transcript_lines import (
    last_lines,
    message_blocks,
    parse,
    seconds_of,
)
from .transcript_reader import is_message
from .transcripts import unreadable_refused

_RECENT_BYTES = 4 << 20
_MAX_RECENT = 2000


@dataclass(frozen=True, slots=True)
class Recent:
    """The last messages of a conversation, without those of subagents."""

    messages: tuple[Mapping[str, Any], ...] = ()
    complete: bool = True
    """Whether these are all messages of the conversation."""
    fingerprint: str = ""
    """Unchanged while the transcript is unchanged."""

    @property
    def times(self) -> list[float]:
        """When the messages were written (Unix seconds); messages without a time are omitted."""
        found = (seconds_of(message.get("timestamp")) for message in self.messages)
        return [moment for moment in found if moment is not None]

    @property
    def answer(self) -> str | None:
        """The text with which the conversation ends; None if it ends with a prompt, a tool call or a tool result."""
        last = self.messages[-1] if self.messages else {}
        if last.get("type") != "assistant":
            return None
        blocks = message_blocks(last)
        if not blocks or blocks[-1].get("type") != "text":
            return None
        return str(blocks[-1].get("text", ""))


def read_recent(path: Path) -> Recent:
    """The messages in the last 4 MiB of a transcript; none if the file does not exist."""
    with unreadable_refused(path.stem):
        try:
            # Before the lines: if the file grows in between, the fingerprint is old and nothing is treated as
            # unchanged.
            status = os.stat(path)
        except FileNotFoundError:
            return Recent()
        lines, left_out = last_lines(str(path), _RECENT_BYTES)
    messages = [line for line in map(parse, lines) if line is not None and is_message(line)]
    version = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    fingerprint = hashlib.sha256(version.encode()).hexdigest()[:8]
    return Recent(tuple(messages[-_MAX_RECENT:]), not left_out and len(messages) <= _MAX_RECENT, fingerprint)
