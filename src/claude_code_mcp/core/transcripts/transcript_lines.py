"""Reading of JSON Lines files that others write, in particular Claude Code's transcripts, and of the prompts in them.

The files may be unfinished, damaged or huge: parts that cannot be parsed are ignored, and contents never raise. A file
that cannot be read raises OSError: it is not an empty file. Links on the way to a file are not followed
(`private_files.py`). Prompts are returned as the person typed them (`typed`, `unwrapped`), without the CLI's additions.
Everything is linear in the input. Functions that take a path block on the disk.
"""

import errno
import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, BinaryIO

from ..private_files import open_at, unless_absent

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|[ -/]{0,8}[0-~])")
"""Escape sequences for a terminal, as in `web/src/terminal_output.ts`."""
_STEERING = re.compile(r"[\x1b\x08]|\r(?!\n)")
_SURROGATE = re.compile("[\ud800-\udfff]")


_MAX_DEPTH = 100
"""Maximum nesting of a line: parsed values are written and walked again by code that may be deep in calls."""


def parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if there is none, or if it is nested deeper than any of Claude Code's."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # Most lines have too few brackets for such deep nesting, and counting brackets is fast.
    if line.count(b"{") + line.count(b"[") > _MAX_DEPTH and not _is_shallow(parsed):
        return None
    return parsed if isinstance(parsed, dict) else None


def _is_shallow(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[object] = []
        for each in level:
            inner.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return True
    return False


def parse_all(lines: list[bytes]) -> list[dict[str, Any]]:
    """The objects in many lines. Parsing all at once takes a third of the time, so that is tried first."""
    try:
        parsed = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        parsed = []
    # A line may hold several values, or the half of one that the next line ends.
    if len(parsed) != len(lines):
        parsed = [parse(line) for line in lines]
    return [value for value in parsed if isinstance(value, dict)]


def open_regular(path: str) -> BinaryIO:
    """Opens the file at exactly this path for reading. Raises OSError if it does not exist, is not a regular file or
    cannot be read now. Opens without blocking, because a pipe would wait for its writer."""
    try:
        file = open(path, "rb", opener=open_at)  # noqa: SIM115 - the caller closes it
    except ValueError:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), path)
    return file


def ends_of(path: str, head: int, tail: int) -> tuple[bytes, bytes]:
    """The first and the last bytes of a file; the second part is empty if the first is the whole file. Raises OSError
    if it cannot be read."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size <= head + tail:
            return file.read(head + tail), b""
        first = file.read(head)
        file.seek(-tail, os.SEEK_END)
        return first, file.read(tail)


def last_lines(path: str, at_most: int) -> tuple[list[bytes], bool]:
    """The lines in the last bytes of a file, and whether earlier lines were skipped; none if the file does not exist.
    Raises OSError if it cannot be read."""
    ends = unless_absent(lambda: ends_of(path, 0, at_most))
    if ends is None:
        return [], False
    first, rest = ends
    if not rest:
        return first.split(b"\n"), False
    # Without the first line, which was most likely cut in the middle.
    return rest.split(b"\n")[1:], True


def clean(text: str) -> str:
    """The text without control characters that affect a terminal, and without lone surrogates."""
    return without_surrogates(_UNPRINTABLE.sub("", text))


def without_surrogates(text: str) -> str:
    return _SURROGATE.sub("�", text)


def without_sequences(text: str) -> str:
    """The text without escape sequences, such as colors; single control characters stay."""
    return _SEQUENCE.sub("", text) if "\x1b" in text else text


def steers_terminal(text: str) -> bool:
    """Whether a terminal would display the text differently from its lines."""
    return _STEERING.search(text) is not None


def clean_data(value: Any) -> Any:
    """A JSON value with all texts and names cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): clean_data(inner) for name, inner in value.items()}
    return [clean_data(inner) for inner in value] if isinstance(value, list) else value


def clean_line(text: str) -> str:
    """The text cleaned, with spaces for line breaks and tabs."""
    return clean(text).replace("\n", " ").replace("\t", " ")


_MAX_ID = 200
_IS_MOMENT = re.compile("[0-9T:.Z+ -]{1,40}")


def id_of(value: object) -> str | None:
    """A valid id in a line; otherwise None."""
    return clean_line(value) if isinstance(value, str) and 0 < len(value) <= _MAX_ID else None


def moment_of(value: object) -> str | None:
    """A time in Claude Code's format, such as `2026-11-10T10:00:00.000Z`; otherwise None."""
    return value if isinstance(value, str) and _IS_MOMENT.fullmatch(value) else None


def seconds_of(value: object) -> float | None:
    """Such a time in Unix seconds."""
    moment = moment_of(value)
    try:
        return datetime.fromisoformat(moment).timestamp() if moment is not None else None
    except (ValueError, OverflowError):
        return None


_BLOCK = 1 << 20
MAX_LINE = 64 << 20
"""Bytes; the CLI writes lines of many megabytes, and longer ones are skipped."""
_ENDLESS_LINE = 4 * MAX_LINE
"""Bytes after which reading stops: this is not a line, but a file made longer than the disk."""


def lines_from(path: str, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """The complete lines from an offset, each with the offset after it. The part after the last line break is skipped.
    Holes in the file are not read: a line with a hole is returned without text, because Claude Code did not write it.
    Keeps one line at a time in memory. Raises OSError if the file cannot be read completely."""
    with open_regular(path) as file:
        file.seek(offset)
        yield from _whole_lines(file, offset)


def all_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, including the part after the last line break."""
    for line, _ in _whole_lines(file, 0, unfinished=True):
        yield line


def _whole_lines(file: BinaryIO, offset: int, *, unfinished: bool = False) -> Iterator[tuple[bytes, int]]:
    parts: list[bytes] = []
    held = 0
    for gap, block in _data_from(file, offset):
        held += gap
        *whole, rest = block.split(b"\n")
        if gap:
            parts = [_HOLE]
        for line in whole:
            offset += held + len(line) + 1
            if held <= MAX_LINE:
                yield (b"".join((*parts, line)) if parts else line), offset
            parts, held = [], 0
        held += len(rest)
        if held <= MAX_LINE:
            parts.append(rest)
        else:
            parts = []
        if held > _ENDLESS_LINE:
            return
    if unfinished and parts:
        yield b"".join(parts), offset + held


_HOLE = b"\0"
"""Replaces a hole, so that a line with one cannot be parsed."""


def _data_from(file: BinaryIO, position: int) -> Iterator[tuple[int, bytes]]:
    """Blocks of the file's data, each with the number of bytes of a hole before it. Holes can make a file longer than
    any disk; only allocated space is read."""
    while True:
        start, end = _extent(file, position)
        file.seek(start)
        block = file.read(min(_BLOCK, end - start) if end is not None else _BLOCK)
        if not block:
            return
        yield start - position, block
        position = start + len(block)


def _extent(file: BinaryIO, position: int) -> tuple[int, int | None]:
    """Where data begins at or after a position, and where it ends; None if the system does not report holes."""
    if not hasattr(os, "SEEK_DATA"):
        return position, None
    try:
        start = file.seek(position, os.SEEK_DATA)
        return start, file.seek(start, os.SEEK_HOLE)
    except OSError as error:
        # After the last data: there may be a hole at the end of the file.
        return (file.seek(0, os.SEEK_END) if error.errno == errno.ENXIO else position), None


_MAX_FOLDER = 200
_MACHINE_TAGS = (
    "system-reminder", "local-command-caveat", "local-command-stdout", "local-command-stderr", "bash-stdout",
    "bash-stderr", "ide_opened_file", "ide_selection", "session-start-hook", "user-prompt-submit-hook",
    "task-notification", "tick", "goal",
)  # fmt: skip
_MACHINE_TAG = re.compile(rf"<({'|'.join(_MACHINE_TAGS)})\b")
_INTERRUPTED = "[Request interrupted by user"
_NOT_TYPED = ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly")


def folder_of(directory: str) -> str:
    """The folder in which Claude Code keeps the transcripts of a directory. Several directories may share one. Long
    names end in a hash, which is omitted here."""
    name = re.sub("[^a-zA-Z0-9]", lambda found: "--" if ord(found[0]) > 0xFFFF else "-", directory)
    return name[:_MAX_FOLDER]


def new_folder_of(directory: str) -> str:
    """The complete name of the folder that Claude Code would create for a directory with resolved links."""
    directory = unicodedata.normalize("NFC", directory)
    name = re.sub("[^a-zA-Z0-9]", lambda found: "--" if ord(found[0]) > 0xFFFF else "-", directory)
    return name if len(name) <= _MAX_FOLDER else f"{name[:_MAX_FOLDER]}-{_path_hash(directory)}"


def _path_hash(text: str) -> str:
    """The CLI's hash: 31 * hash + unit over UTF-16, in signed 32 bits, its absolute value in base 36."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[at : at + 2], "little")) & 0xFFFFFFFF
    value = abs(value - (1 << 32) if value >= 1 << 31 else value)
    digits = ""
    while value or not digits:
        value, digit = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def in_folder(directory: str, folder: str) -> bool:
    """Whether the transcripts of a directory would be in a folder of this name."""
    return folder_of(directory).casefold() == folder[:_MAX_FOLDER].casefold()


def typed(line: Mapping[str, Any], *, of_subagent: bool = False) -> str | None:
    """The text that a person typed in a line of a transcript; None if the line is not a user prompt. With
    `of_subagent`, the model's prompt to a subagent."""
    if line.get("type") != "user" or any(line.get(key) for key in _NOT_TYPED):
        return None
    if bool(line.get("isSidechain")) is not of_subagent:
        return None
    return unwrapped(_text_of(message_blocks(line)))


def interrupted_by(line: Mapping[str, Any]) -> bool:
    """Whether a line says that the turn was interrupted."""
    return _text_of(message_blocks(line)).startswith(_INTERRUPTED)


def blocks_of(content: object) -> list[Mapping[str, Any]]:
    """The content blocks; a plain text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def message_blocks(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The content blocks of the message in a line; none if there is none."""
    message = line.get("message")
    return blocks_of(message.get("content")) if isinstance(message, Mapping) else []


def shown_text(content: object, separator: str = "\n") -> str:
    """A tool result or a message sent during a turn, as text; the type of each block without text."""
    if isinstance(content, str):
        return content
    return separator.join(str(block.get("text") or f"[{block.get('type')}]") for block in blocks_of(content))


def _text_of(blocks: list[Mapping[str, Any]]) -> str:
    texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    kinds = [block.get("type") for block in blocks]
    return "\n".join(texts) or next((f"[{kind}]" for kind in ("image", "document") if kind in kinds), "")


def unwrapped(text: str) -> str | None:
    """A message without the CLI's wrapping; a command as typed."""
    command, shell = _inside(text, "command-name"), _inside(text, "bash-input")
    if command is not None:
        text = f"{command} {_inside(text, 'command-args') or ''}"
    elif shell is not None:
        text = f"! {shell}"
    plain = clean(_without_machine_tags(text)).strip()
    return plain if plain and not plain.startswith(_INTERRUPTED) else None


def _inside(text: str, tag: str) -> str | None:
    """The content of the first element with this name; None if it is not closed, because then no later one can be."""
    _, opening, rest = text.partition(f"<{tag}>")
    inside, closing, _ = rest.partition(f"</{tag}>")
    return inside if opening and closing else None


def _without_machine_tags(text: str) -> str:
    """The text without elements that the CLI adds; an unclosed one extends to the end."""
    kept, reached = [], 0
    while (found := _MACHINE_TAG.search(text, reached)) is not None:
        opened = text.find(">", found.end())
        if opened < 0:
            break
        kept.append(text[reached : found.start()])
        closing = f"</{found[1]}>"
        closed = text.find(closing, opened)
        reached = len(text) if closed < 0 else closed + len(closing)
    return "".join((*kept, text[reached:]))


def is_bare_command(text: str) -> bool:
    """For example `/clear`, which says nothing about the conversation's topic."""
    return text.startswith("/") and len(text.split()) == 1
