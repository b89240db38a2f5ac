"""One transcript for people: its last lines as text, new lines, and the first mention of a text.

Reads at most a fixed number of bytes from the end. Lines that cannot be parsed and the lines of subagents are skipped.
A transcript that cannot be read now raises TranscriptUnreadable, or OSError where documented. Blocks on the disk.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model.outcome import CallStatus, call_statuses
from ..model.text import clip_line
from ..private_files import open_at
from .transcript_export import arguments
from .transcript_lines import (
    clean,
    last_lines,
    lines_from,
    message_blocks,
    parse,
    shown_text,
    typed,
)
from .transcripts import unreadable_refused

_READABLE_BYTES = 1 << 24
_MAX_LINE = 160


def readable_lines(path: str) -> Iterator[str]:
    """The conversation in the last 16 MiB of a transcript."""
    with unreadable_refused(Path(path).stem):
        lines, left_out = last_lines(path, _READABLE_BYTES)
    if left_out:
        yield "[the beginning is omitted]"
    yield from _readable(lines)


def grown_lines(path: str, offset: int) -> tuple[list[str], int]:
    """The conversation written after `offset`, and the next offset. An unfinished line is left for the next call.
    Raises OSError if it cannot be read."""
    lines, reached = _grown(path, offset)
    return list(_readable(lines)), reached


def grown_messages(path: str, offset: int) -> tuple[list[Mapping[str, Any]], int]:
    """Like `grown_lines`, but as messages, without those of subagents."""
    lines, reached = _grown(path, offset)
    return [line for line in map(parse, lines) if line is not None and is_message(line)], reached


def _grown(path: str, offset: int) -> tuple[list[bytes], int]:
    """The complete lines after `offset`, and where they end."""
    with open(path, "rb", opener=open_at) as file:
        file.seek(offset)
        written = file.read(_READABLE_BYTES)
    # A line that is still being written would be lost: neither its first half nor the rest at the next call can be
    # parsed.
    whole = written[: written.rfind(b"\n") + 1]
    return whole.split(b"\n"), offset + len(whole)


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
    statuses = call_statuses(line)
    for block in message_blocks(line):
        status = statuses.get(str(block.get("tool_use_id")), "ok")
        yield from _block(block, status, by_assistant=line.get("type") == "assistant")


def _block(block: Mapping[str, Any], status: CallStatus, *, by_assistant: bool) -> Iterator[str]:
    match block.get("type"):
        case "text" if by_assistant:
            yield from clean(str(block.get("text", ""))).splitlines()
        case "tool_use":
            yield _clipped(f"[{block.get('name', 'tool')}] {arguments(block.get('input'))}")
        case "tool_result":
            yield _clipped(f"[{status}] {shown_text(block.get('content'), ' ')}")


def _clipped(text: str) -> str:
    return clip_line(clean(text), _MAX_LINE)


def first_mention(path: str, text: str) -> str | None:
    """The context of the first occurrence of a text, which must be casefolded, in messages, tool inputs and results;
    None if there is none. Reads the whole transcript, one line at a time. Raises OSError if it cannot be read."""
    needle = json.dumps(text, ensure_ascii=False)[1:-1]
    raw = needle.encode("utf-8", "replace")
    for line, _ in lines_from(path):
        # Most lines are excluded by their bytes; only the remaining ones are parsed.
        if needle.isascii():
            may_contain = raw in line.lower()
        else:  # letters beyond ASCII may also be written as escapes
            may_contain = b"\\u" in line or needle in line.decode("utf-8", "replace").casefold()
        if may_contain:
            parsed = parse(line)
            piece = _piece_with(parsed, text) if parsed is not None and is_message(parsed) else None
            if piece is not None:
                return piece
    return None


def _piece_with(line: Mapping[str, Any], text: str) -> str | None:
    for text_of_block in _texts_of(line):
        at = text_of_block.casefold().find(text)
        if at >= 0:
            start = max(0, at - _MAX_LINE // 3)
            return _clipped(("…" if start else "") + text_of_block[start : start + 2 * _MAX_LINE])
    return None


def _texts_of(line: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a message: spoken, passed to a tool, or returned by one."""
    for block in message_blocks(line):
        if isinstance(block.get("text"), str):
            yield block["text"]
        if block.get("type") == "tool_use":
            yield f"[{block.get('name')}] {arguments(block.get('input'))}"
        if block.get("type") == "tool_result":
            yield shown_text(block.get("content"), " ")


def is_message(line: Mapping[str, Any]) -> bool:
    is_turn = line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)
    return is_turn and not line.get("isSidechain") and not line.get("isMeta")
