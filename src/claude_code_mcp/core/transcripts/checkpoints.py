"""The checkpoints of a conversation. Before each user message, Claude Code can record which files it has changed so far
and keep their earlier contents. The records are lines of the transcript, the contents are next to it. Blocks on the
disk."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .transcript_lines import (
    id_of,
    moment_of,
    typed,
)
from .transcripts import read_lines

_SNAPSHOT = "file-history-snapshot"
_MAX_PROMPT = 200


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A message, and when it was sent."""

    message_id: str
    prompt: str
    """The beginning of the message."""
    at: str


def read_checkpoints(path: str | Path, most: int) -> list[Checkpoint]:
    """The last checkpoints of a transcript, at most `most`, oldest first; none if the session keeps no contents."""
    return checkpoints_of(read_lines(Path(path)), most)


def checkpoints_of(lines: Iterable[Mapping[str, Any]], most: int) -> list[Checkpoint]:
    """The last checkpoints in the lines of a transcript, at most `most`, oldest first. Other lines are ignored.
    Pure."""
    prompts: dict[str, tuple[str, str]] = {}
    noted: dict[str, None] = {}
    for line in lines:
        noted_id, prompt_id = id_of(line.get("messageId")), id_of(line.get("uuid"))
        if line.get("type") == _SNAPSHOT and noted_id is not None:
            noted[noted_id] = None
        elif line.get("type") == "user" and prompt_id is not None:
            text = typed(line)
            if text:
                prompts[prompt_id] = (text[:_MAX_PROMPT], moment_of(line.get("timestamp")) or "")
    known = [message_id for message_id in noted if message_id in prompts]
    return [Checkpoint(message_id, *prompts[message_id]) for message_id in known[-most:]]
