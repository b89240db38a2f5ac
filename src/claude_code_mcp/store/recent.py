"""The end of a transcript, as material for showing a session that is only on disk. Blocks on the disk."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .jsonl import last_lines, parse

_READ = 4 << 20
_MOST = 2000


@dataclass(frozen=True, slots=True)
class Recent:
    """The last messages of a conversation, subagents' own left out."""

    messages: tuple[Mapping[str, Any], ...] = ()
    complete: bool = True
    """Whether these are all messages there are."""
    fingerprint: str = ""
    """The same while the transcript is the same."""

    @property
    def answer(self) -> str | None:
        """The text that the conversation ends with; None if it ends with a question, a tool call or a tool's result."""
        last = self.messages[-1] if self.messages else {}
        if last.get("type") != "assistant":
            return None
        content = last["message"].get("content")
        if isinstance(content, str):
            return content
        blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
        if not blocks or blocks[-1].get("type") != "text":
            return None
        return str(blocks[-1].get("text", ""))


def read_recent(path: Path) -> Recent:
    """What the last part of a transcript holds; nothing if it cannot be read."""
    try:
        facts = os.stat(path)
    except OSError:
        return Recent()
    lines, left_out = last_lines(str(path), _READ)
    messages = [line for line in map(parse, lines) if line is not None and _is_message(line)]
    seen = f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}"
    fingerprint = hashlib.sha256(seen.encode()).hexdigest()[:8]
    return Recent(tuple(messages[-_MOST:]), not left_out and len(messages) <= _MOST, fingerprint)


def _is_message(line: Mapping[str, Any]) -> bool:
    spoken = line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)
    return spoken and not line.get("isSidechain") and not line.get("isMeta")
