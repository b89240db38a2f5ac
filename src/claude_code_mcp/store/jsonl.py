"""Reads files of JSON lines that others write, which may be unfinished, damaged or huge. Blocks on the disk.

What cannot be opened or parsed counts as empty: nothing here raises for what is in a file.
"""

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
    """The objects in many lines. Parsing all at once takes a third of the time, so that is tried first."""
    try:
        parsed = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        parsed = []
    if len(parsed) != len(lines):
        parsed = [parse(line) for line in lines]
    return [value for value in parsed if isinstance(value, dict)]


def ends_of(path: str, head: int, tail: int) -> tuple[bytes, bytes] | None:
    """The first and the last bytes of a file; the second part is empty if the first is the whole file.

    None if it cannot be read or is not a regular file. It is opened without blocking: a pipe would wait for its writer.
    """
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size <= head + tail:
                return file.read(head + tail), b""
            first = file.read(head)
            file.seek(-tail, os.SEEK_END)
            return first, file.read(tail)
    except (OSError, ValueError):
        return None


def _open_nonblocking(path: str, flags: int) -> int:
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
    """The text without control characters that would steer a terminal, and without lone surrogates."""
    return _SURROGATE.sub("�", _UNPRINTABLE.sub("", text))
