"""Files of JSON lines that others write: half-written, damaged or endless ones included. Blocks on the disk."""

import json
import os
import re
import stat
from typing import Any

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if there is none."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def parse_all(lines: list[bytes]) -> list[dict[str, Any]]:
    """The objects in many lines. All at once takes a third of the time, so that is tried first."""
    try:
        parsed = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        parsed = []
    if len(parsed) != len(lines):
        parsed = [parse(line) for line in lines]
    return [one for one in parsed if isinstance(one, dict)]


def ends_of(path: str, head: int, tail: int) -> tuple[bytes, bytes] | None:
    """The first and the last bytes of a file; the second part is empty if the first is the whole file.

    None if it cannot be read, or is no file: opening a pipe would wait for its writer.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                return None
            if facts.st_size <= head + tail:
                return file.read(head + tail), b""
            first = file.read(head)
            file.seek(-tail, os.SEEK_END)
            return first, file.read(tail)
    except (OSError, ValueError):
        return None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def last_lines(path: str, at_most: int) -> tuple[list[bytes], bool]:
    """The lines in the last bytes of a file, and whether something before them was left out."""
    ends = ends_of(path, 0, at_most)
    if ends is None:
        return [], False
    first, rest = ends
    if not rest:
        return first.split(b"\n"), False
    return rest.split(b"\n")[1:], True


def clean(text: str) -> str:
    """Without what would steer a terminal, or could not be written as UTF-8 at all."""
    return _SURROGATE.sub("�", _UNPRINTABLE.sub("", text))
