"""`history.jsonl`: what was typed into Claude Code by hand, in all projects. `-p` runs do not appear in it."""

from dataclasses import dataclass
from typing import Any

from .jsonl import clean, last_lines, parse_all
from .prompts import is_bare_command, shortened, unwrapped
from .transcripts import is_session_id

_READ = 1 << 20
_LATEST = 10**14


@dataclass(slots=True)
class Memory:
    """What the history remembers of one session."""

    project: str
    first_prompt: str | None
    last_used: float


def read_history(path: str) -> dict[str, Memory]:
    """The sessions in the latest part of the history, by id."""
    memories: dict[str, Memory] = {}
    for line in parse_all([raw for raw in last_lines(path, _READ)[0] if b'"sessionId"' in raw]):
        _remember(memories, line)
    return memories


def _remember(memories: dict[str, Memory], line: dict[str, Any]) -> None:
    session_id, project, used = line.get("sessionId"), line.get("project"), _seconds(line.get("timestamp"))
    if not (isinstance(session_id, str) and isinstance(project, str) and used):
        return
    memory = memories.get(session_id)
    if memory is None:
        if not is_session_id(session_id):
            return
        memory = memories[session_id] = Memory(clean(project), None, used)
    memory.last_used = max(memory.last_used, used)
    if memory.first_prompt is None or is_bare_command(memory.first_prompt):
        memory.first_prompt = _prompt(line.get("display")) or memory.first_prompt


def _prompt(display: Any) -> str | None:
    prompt = unwrapped(display) if isinstance(display, str) else None
    return shortened(prompt) if prompt else None


def _seconds(timestamp: Any) -> float | None:
    return timestamp / 1000 if isinstance(timestamp, int | float) and 0 < timestamp < _LATEST else None
