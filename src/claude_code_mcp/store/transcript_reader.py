"""The end of one transcript: readable lines for people, and the last messages for a session that is resumed.

Reads at most a fixed number of bytes from the end. Lines that cannot be parsed and those of subagents are passed over.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.text import clip_line
from .transcript_summary import clean, last_lines, parse, typed

_READABLE_BYTES = 1 << 24
_LONGEST_LINE = 160
_RECENT_BYTES = 4 << 20
_MOST_RECENT = 2000

# -- for people -------------------------------------------------------------------------------------------------


def readable_lines(path: str) -> Iterator[str]:
    """The conversation in the last 16 MiB of a transcript."""
    lines, left_out = last_lines(path, _READABLE_BYTES)
    if left_out:
        yield "[the beginning is left out]"
    yield from _readable(lines)


def grown_lines(path: str, offset: int) -> tuple[list[str], int]:
    """The conversation that was written behind `offset`, and the next offset. An unfinished line is left for then."""
    with open(path, "rb") as file:
        file.seek(offset)
        written = file.read(_READABLE_BYTES)
    whole = written[: written.rfind(b"\n") + 1]
    return list(_readable(whole.split(b"\n"))), offset + len(whole)


def _readable(lines: Iterable[bytes]) -> Iterator[str]:
    for raw in lines:
        line = parse(raw)
        if line is not None and not line.get("isSidechain"):
            yield from _line_of_transcript(line)


def _line_of_transcript(line: Mapping[str, Any]) -> Iterator[str]:
    prompt = typed(line)
    if prompt is not None:
        yield from (f"> {part}" for part in prompt.splitlines())
    if line.get("subtype") == "compact_boundary":
        yield "[the conversation so far was summarized]"
    message = line.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str) and line.get("type") == "assistant":
        yield from clean(content).splitlines()
    for block in content if isinstance(content, list) else []:
        if isinstance(block, Mapping):
            yield from _block(block, by_assistant=line.get("type") == "assistant")


def _block(block: Mapping[str, Any], *, by_assistant: bool) -> Iterator[str]:
    match block.get("type"):
        case "text" if by_assistant:
            yield from clean(str(block.get("text", ""))).splitlines()
        case "tool_use":
            yield _clipped(f"[{block.get('name', 'tool')}] {_arguments(block.get('input'))}")
        case "tool_result":
            yield _clipped(f"[{'error' if block.get('is_error') else 'ok'}] {_result(block.get('content'))}")


def _clipped(text: str) -> str:
    return clip_line(clean(text), _LONGEST_LINE)


def _arguments(tool_input: Any) -> str:
    """The value alone where there is only one, such as a command or a path; else all with their names."""
    fields = tool_input if isinstance(tool_input, Mapping) else {}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
        if name != "description"
    }
    if len(texts) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _result(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    return " ".join(str(block.get("text") or f"[{block.get('type')}]") for block in blocks)


# -- for a session that is resumed ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recent:
    """The last messages of a conversation, subagents' own left out."""

    messages: tuple[Mapping[str, Any], ...] = ()
    complete: bool = True
    """Whether these are all messages of the conversation."""
    fingerprint: str = ""
    """The same as long as the transcript is unchanged."""

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
    """The messages in the last 4 MiB of a transcript; none if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return Recent()
    lines, left_out = last_lines(str(path), _RECENT_BYTES)
    messages = [line for line in map(parse, lines) if line is not None and _is_message(line)]
    version = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    fingerprint = hashlib.sha256(version.encode()).hexdigest()[:8]
    return Recent(tuple(messages[-_MOST_RECENT:]), not left_out and len(messages) <= _MOST_RECENT, fingerprint)


def _is_message(line: Mapping[str, Any]) -> bool:
    is_turn = line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)
    return is_turn and not line.get("isSidechain") and not line.get("isMeta")
