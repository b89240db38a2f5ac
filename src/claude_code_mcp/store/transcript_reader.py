"""The end of one transcript: readable lines for people, and the last messages for a session that is resumed.

Reads at most a fixed number of bytes from the end. Lines that cannot be parsed and those of subagents are passed over.
What cannot be read now raises: TranscriptUnreadable, or OSError where that is said.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..beneath import open_at
from ..model.text import clip_line
from .transcript_lines import clean, last_lines, lines_from, parse, typed
from .transcript_text import arguments
from .transcripts import unreadable_refused

_READABLE_BYTES = 1 << 24
_LONGEST_LINE = 160
_RECENT_BYTES = 4 << 20
_MOST_RECENT = 2000

# -- for people -------------------------------------------------------------------------------------------------


def readable_lines(path: str) -> Iterator[str]:
    """The conversation in the last 16 MiB of a transcript."""
    with unreadable_refused(Path(path).stem):
        lines, left_out = last_lines(path, _READABLE_BYTES)
    if left_out:
        yield "[the beginning is left out]"
    yield from _readable(lines)


def grown_lines(path: str, offset: int) -> tuple[list[str], int]:
    """The conversation that was written behind `offset`, and the next offset. An unfinished line is left for then.
    OSError if it cannot be read."""
    with open(path, "rb", opener=open_at) as file:
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
            yield _clipped(f"[{block.get('name', 'tool')}] {arguments(block.get('input'))}")
        case "tool_result":
            yield _clipped(f"[{'error' if block.get('is_error') else 'ok'}] {_result(block.get('content'))}")


def _clipped(text: str) -> str:
    return clip_line(clean(text), _LONGEST_LINE)


def _result(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    return " ".join(str(block.get("text") or f"[{block.get('type')}]") for block in blocks)


def first_mention(path: str, text: str) -> str | None:
    """A piece of the conversation around the first place where it contains a text, which must be casefolded; None if it
    is nowhere in what was said, called or returned. Reads the whole transcript, a line at a time. OSError if it cannot
    be read."""
    needle = json.dumps(text, ensure_ascii=False)[1:-1]
    raw = needle.encode("utf-8", "replace")
    for line, _ in lines_from(path):
        # Most lines are ruled out as bytes; what is left is looked at as it would be read.
        if raw in line.lower() if needle.isascii() else _may_contain(line, needle):
            parsed = parse(line)
            piece = _piece_with(parsed, text) if parsed is not None and _is_message(parsed) else None
            if piece is not None:
                return piece
    return None


def _may_contain(line: bytes, needle: str) -> bool:
    """Letters beyond ASCII may also be written as escapes."""
    return b"\\u" in line or needle in line.decode("utf-8", "replace").casefold()


def _piece_with(line: Mapping[str, Any], text: str) -> str | None:
    for text_of_block in _texts_of(line["message"].get("content")):
        at = text_of_block.casefold().find(text)
        if at >= 0:
            start = max(0, at - _LONGEST_LINE // 3)
            return _clipped(("…" if start else "") + text_of_block[start : start + 2 * _LONGEST_LINE])
    return None


def _texts_of(content: Any) -> Iterator[str]:
    """The texts of a message: said, given to a tool, or returned by one."""
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping):
            if isinstance(block.get("text"), str):
                yield block["text"]
            if block.get("type") == "tool_use":
                yield f"[{block.get('name')}] {arguments(block.get('input'))}"
            if block.get("type") == "tool_result":
                yield _result(block.get("content"))


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
    """The messages in the last 4 MiB of a transcript; none if there is no such file."""
    with unreadable_refused(path.stem):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return Recent()
        lines, left_out = last_lines(str(path), _RECENT_BYTES)
    messages = [line for line in map(parse, lines) if line is not None and _is_message(line)]
    version = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    fingerprint = hashlib.sha256(version.encode()).hexdigest()[:8]
    return Recent(tuple(messages[-_MOST_RECENT:]), not left_out and len(messages) <= _MOST_RECENT, fingerprint)


def _is_message(line: Mapping[str, Any]) -> bool:
    is_turn = line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)
    return is_turn and not line.get("isSidechain") and not line.get("isMeta")
