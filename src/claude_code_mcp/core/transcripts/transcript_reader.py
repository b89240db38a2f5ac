"""The end of one transcript for people and for a session that goes on, and a conversation in pages.

Reads at most a fixed number of bytes from the end. Lines that cannot be parsed and those of subagents are passed over.
What cannot be read now raises: TranscriptUnreadable, or OSError where that is said.

A place in a conversation is `7`, before the seventh turn, or `7.3`, before the third item of that turn; before `7.1`
there is its prompt. Secrets are taken out before anything is shortened, and what was shortened says so. Only what is on
a page is looked at closely, from its end on. Linear in what is read; blocks on the disk.

Claude Code notes before each message of a person which files it has changed so far, if it was told to keep their
earlier contents; the notes are lines of the transcript, the contents lie beside it. Blocks on the disk.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..model.outcome import CallStatus, call_statuses
from ..model.text import clip_line, cut, cut_data
from ..private_files import open_at
from .conversation import ConversationTurn, Item, read_turn
from .outline import Outline
from .transcript_export import arguments, facts_without_secrets, item_without_secrets
from .transcript_lines import (
    clean,
    id_of,
    last_lines,
    lines_from,
    message_blocks,
    moment_of,
    parse,
    seconds_of,
    shown_text,
    typed,
)
from .transcripts import read_lines, unreadable_refused

_READABLE_BYTES = 1 << 24
_MAX_LINE = 160
_RECENT_BYTES = 4 << 20
_MAX_RECENT = 2000

# -- for people -------------------------------------------------------------------------------------------------


def readable_lines(path: str) -> Iterator[str]:
    """The conversation in the last 16 MiB of a transcript."""
    with unreadable_refused(Path(path).stem):
        lines, left_out = last_lines(path, _READABLE_BYTES)
    if left_out:
        yield "[the beginning is omitted]"
    yield from _readable(lines)


def grown_lines(path: str, offset: int) -> tuple[list[str], int]:
    """The conversation that was written behind `offset`, and the next offset. An unfinished line is left for then.
    OSError if it cannot be read."""
    with open(path, "rb", opener=open_at) as file:
        file.seek(offset)
        written = file.read(_READABLE_BYTES)
    # A line that is still being written would be lost: its first
    # half cannot be parsed, nor can the rest at the next call.
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
    """A piece of the conversation around the first place where it contains a text, which must be casefolded; None if it
    is nowhere in what was said, called or returned. Reads the whole transcript, a line at a time. OSError if it cannot
    be read."""
    needle = json.dumps(text, ensure_ascii=False)[1:-1]
    raw = needle.encode("utf-8", "replace")
    for line, _ in lines_from(path):
        # Most lines are ruled out as bytes; what is left is looked at as it would be read.
        if needle.isascii():
            may_contain = raw in line.lower()
        else:  # letters beyond ASCII may also be written as escapes
            may_contain = b"\\u" in line or needle in line.decode("utf-8", "replace").casefold()
        if may_contain:
            parsed = parse(line)
            piece = _piece_with(parsed, text) if parsed is not None and _is_message(parsed) else None
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
    """The texts of a message: said, given to a tool, or returned by one."""
    for block in message_blocks(line):
        if isinstance(block.get("text"), str):
            yield block["text"]
        if block.get("type") == "tool_use":
            yield f"[{block.get('name')}] {arguments(block.get('input'))}"
        if block.get("type") == "tool_result":
            yield shown_text(block.get("content"), " ")


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
    def times(self) -> list[float]:
        """When the messages were written, in Unix seconds; those that do not say so are left out."""
        found = (seconds_of(message.get("timestamp")) for message in self.messages)
        return [moment for moment in found if moment is not None]

    @property
    def answer(self) -> str | None:
        """The text that the conversation ends with; None if it ends with a question, a tool call or a tool's result."""
        last = self.messages[-1] if self.messages else {}
        if last.get("type") != "assistant":
            return None
        blocks = message_blocks(last)
        if not blocks or blocks[-1].get("type") != "text":
            return None
        return str(blocks[-1].get("text", ""))


def read_recent(path: Path) -> Recent:
    """The messages in the last 4 MiB of a transcript; none if there is no such file."""
    with unreadable_refused(path.stem):
        try:
            # Before the lines: if the file grows in between, the
            # fingerprint is an old one and nothing is taken for unchanged.
            status = os.stat(path)
        except FileNotFoundError:
            return Recent()
        lines, left_out = last_lines(str(path), _RECENT_BYTES)
    messages = [line for line in map(parse, lines) if line is not None and _is_message(line)]
    version = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    fingerprint = hashlib.sha256(version.encode()).hexdigest()[:8]
    return Recent(tuple(messages[-_MAX_RECENT:]), not left_out and len(messages) <= _MAX_RECENT, fingerprint)


def _is_message(line: Mapping[str, Any]) -> bool:
    is_turn = line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)
    return is_turn and not line.get("isSidechain") and not line.get("isMeta")


# -- conversation pages -----------------------------------------------------------------------------------------------


Redact = Callable[[Any], Any]
MAX_PREVIEW = 8_000
"""Characters of a tool's result for who can ask for the whole item."""
_MAX_TEXT = 100_000
_MAX_INPUT = 60_000
_OVERHEAD = 200
"""What an item costs beside its texts."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is on a page."""

    size: int
    """Characters, about; there is always one item at least."""
    most_turns: int | None = None
    """If given, a page has whole turns alone: at least one, and no more than so many."""
    longest_result: int = 50_000
    """Characters of the result of a tool."""


@dataclass(frozen=True, slots=True)
class TurnPart:
    """What is on a page of one turn, which has this number, counted from 1. Only the first part of a page may lack
    the turn's beginning, and then it has no prompt."""

    number: int
    turn: ConversationTurn


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Parts of turns that follow one another, oldest first."""

    parts: tuple[TurnPart, ...]
    previous: str | None
    """The place before which the next page ends; None if this one has the beginning."""


class _Room:
    """The space that is left on a page; the first thing always fits."""

    def __init__(self, extent: Extent) -> None:
        self.longest_result = extent.longest_result
        self._left = extent.size
        self._divides = extent.most_turns is None
        self._used = False

    @property
    def full(self) -> bool:
        return self._used and self._left <= 0

    def take(self, size: int) -> bool:
        """Whether this much is for this page; it is counted in any case. No turn is divided if none may be."""
        fits = not self._used or size <= self._left or not self._divides
        self._left -= size
        self._used = True
        return fits


def read_page_before(
    path: str, outline: Outline, before: str | None, extent: Extent, redact: Redact
) -> ConversationPage:
    """What lies before a place, or at the end. ValueError for what is no place."""
    number, end = _place(before, len(outline.turns))
    room, parts = _Room(extent), list[TurnPart]()
    while number > 0:
        if room.full or len(parts) == extent.most_turns:
            return _page(parts, f"{number + 1}")
        turn, start = _end_of(read_turn(path, outline.turns[number - 1]), end, room, redact)
        if turn.items or turn.prompt is not None:
            parts.append(TurnPart(number, turn))
        if start:
            return _page(parts, f"{number}.{start}")
        number, end = number - 1, None
    return _page(parts, None)


def _page(backwards: list[TurnPart], previous: str | None) -> ConversationPage:
    return ConversationPage(tuple(reversed(backwards)), previous)


def _place(before: str | None, turns: int) -> tuple[int, int | None]:
    """The last turn of the page, and before which of its items the page ends; None for behind them all."""
    if before is None:
        return turns, None
    number, dot, item = before.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (number, item if dot else "0")):
        raise ValueError("not a place")
    if int(number) > turns:
        return turns, None
    return (int(number), int(item)) if dot and int(item) else (int(number) - 1, None)


def _end_of(turn: ConversationTurn, end: int | None, room: _Room, redact: Redact) -> tuple[ConversationTurn, int]:
    """The items of a turn before one that there is room for, and the number of the first; 0 with the prompt."""
    turn = facts_without_secrets(turn, redact)
    kept: list[Item] = []
    items = turn.items if end is None else turn.items[: end - 1]
    for number in range(len(items), 0, -1):
        # Secrets first: one that is cut in half would not be recognised.
        item = shortened(item_without_secrets(items[number - 1], redact), room.longest_result)
        if not room.take(_size(item)):
            return replace(turn, prompt=None, items=kept[::-1]), number + 1
        kept.append(item)
    prompt = None if turn.prompt is None else cut(redact(turn.prompt), _MAX_TEXT)
    if prompt is not None and not room.take(len(prompt) + _OVERHEAD):
        return replace(turn, prompt=None, items=kept[::-1]), 1
    return replace(turn, prompt=prompt, items=kept[::-1]), 0


def whole_item(path: str, outline: Outline, number: int, item_id: str, redact: Redact) -> Item | None:
    """One item of a turn with all of its texts; None if there is none."""
    if not 1 <= number <= len(outline.turns):
        return None
    items = read_turn(path, outline.turns[number - 1]).items
    # By the id that was shown, which may be one without a secret.
    return next((item_without_secrets(item, redact) for item in items if redact(item.id) == item_id), None)


def shortened(item: Item, longest_result: int) -> Item:
    """The item with its long texts cut, each with a mark, and `cut` set if one is."""
    short = replace(
        item,
        text=cut(item.text, _MAX_TEXT),
        result=cut(item.result, longest_result),
        output=cut(item.output, longest_result),
        diff=cut(item.diff, _MAX_TEXT),
    )
    if _length(item.input) > _MAX_INPUT:
        short.input = cut_data(item.input, _MAX_INPUT, _MAX_INPUT)
    short.cut = short != item
    return short


def _size(item: Item) -> int:
    return len(item.text) + len(item.result) + len(item.output) + len(item.diff) + _length(item.input) + _OVERHEAD


def _length(value: Any) -> int:
    return 0 if value is None else len(json.dumps(value, default=str))


# -- checkpoints ------------------------------------------------------------------------------------------------------


_SNAPSHOT = "file-history-snapshot"
_MAX_PROMPT = 200


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
    """The last checkpoints in the lines of a transcript, at most `most`, oldest first, whatever else is in the lines.
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
