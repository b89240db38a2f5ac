"""The messages of a transcript that the files of its session can be taken back to.

Claude Code notes before each message of a person which files it has changed so far, if it was told to keep their
earlier contents; the notes are lines of the transcript, the contents lie beside it. Blocks on the disk.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .transcript_lines import typed
from .transcripts import read_lines

_SNAPSHOT = "file-history-snapshot"
_LONGEST_PROMPT = 200


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A message, and when it was sent."""

    message_id: str
    prompt: str
    """Its beginning."""
    at: str


def read_checkpoints(path: str | Path, most: int) -> list[Checkpoint]:
    """The last ones of a transcript, at most that many, oldest first; none where the session keeps no contents."""
    return checkpoints_of(read_lines(Path(path)), most)


def checkpoints_of(lines: Iterable[Mapping[str, Any]], most: int) -> list[Checkpoint]:
    """The same for the lines of a transcript, whatever is in them. Pure."""
    prompts: dict[str, tuple[str, str]] = {}
    noted: dict[str, None] = {}
    for line in lines:
        message_id = line.get("messageId")
        if line.get("type") == _SNAPSHOT and isinstance(message_id, str):
            noted[message_id] = None
        elif line.get("type") == "user" and isinstance(line.get("uuid"), str):
            text = typed(line)
            if text:
                prompts[line["uuid"]] = (text[:_LONGEST_PROMPT], str(line.get("timestamp") or ""))
    known = [message_id for message_id in noted if message_id in prompts]
    return [Checkpoint(message_id, *prompts[message_id]) for message_id in known[-most:]]
