"""The lines that pass a relay: cut out of a stream, and looked at as cheaply as possible; no I/O.

A small line is read whole. Of a large one only its beginning and its end are looked at, where the id and the method
are unless a client writes messages in a way that none is known to do; then it is read whole too.
"""

from ..greeting.manifest import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST = 64 << 20
"""Bytes of a line, as in the server's own transport."""
_SMALL = 16 << 10
_MARGIN = 512
"""Bytes at either end of a large line in which its id and method are looked for."""
_SPACE = b" \t\r\n"
_WORD = frozenset(b"-+.0123456789aeflnrstuE")
"""The bytes of numbers, `true`, `false` and `null`."""


class Lines:
    """Bytes in, whole lines out, each with its end. A line that is longer than `LONGEST` is dropped; from its first
    bytes `replace` makes the line that takes its place."""

    def __init__(self, replace: "Callable[[bytes], bytes]") -> None:
        self._replace = replace
        self._partial = bytearray()
        self._searched = 0
        self._dropped: bytes | None = None
        """The beginning of the line that is being dropped."""

    def receive(self, data: bytes) -> list[bytes]:
        """The lines that are complete with these bytes."""
        if not self._partial and self._dropped is None and data.endswith(b"\n") and data.count(b"\n") == 1:
            return [data]
        self._partial += data
        if self._partial.find(b"\n", self._searched) < 0:
            self._searched = len(self._partial)
            if self._searched > LONGEST:
                self._dropped = self._dropped or bytes(self._partial[:_MARGIN])
                self._partial, self._searched = bytearray(), 0
            return []
        *whole, rest = bytes(self._partial).split(b"\n")
        self._partial, self._searched = bytearray(rest), len(rest)
        lines = [line + b"\n" for line in whole]
        if self._dropped is not None:
            lines[0], self._dropped = self._replace(self._dropped), None
        return lines

    def take_rest(self) -> bytes:
        """What has come of a line that is not complete; nothing remains of it here."""
        rest, self._partial, self._searched = bytes(self._partial), bytearray(), 0
        return rest if self._dropped is None else self._replace(self._dropped).strip()


def unreadable(_: bytes) -> bytes:
    """For a line of the client's that is too long: the server answers that it cannot be read."""
    return b"a line that is too long\n"


def look(line: bytes, small: int = _SMALL) -> "dict[str, Any]":
    """What a message is, by its `id`, `method` and, of a small one, everything else. Empty for what is no message."""
    if len(line) > small:
        found = _look_at_ends(line)
        if found is not None:
            return found
    try:
        message = read_json(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _look_at_ends(line: bytes) -> "dict[str, Any] | None":
    """The members before and after the large one; None if one of them may have been missed."""
    first, stopped_at = first_members(line[:_MARGIN])
    if "id" in first and ("method" in first or stopped_at in ("result", "error")):
        return first
    last = _last_members(line[-_MARGIN:])
    return None if last is None or not stopped_at else {**first, **last}


def first_members(head: bytes) -> "tuple[dict[str, Any], str]":
    """The members up to the first that holds others, and the name of that one; empty if it was not reached."""
    found: dict[str, Any] = {}
    at = _skip(head, 0)
    while head[at : at + 1] in (b"{", b","):
        start = _skip(head, at + 1)
        end = head.find(b'"', start + 1)
        if head[start : start + 1] != b'"' or end < 0 or b"\\" in head[start:end]:
            break
        name, at = head[start + 1 : end].decode(errors="replace"), _skip(head, end + 1)
        if head[at : at + 1] != b":":
            break
        at = _skip(head, at + 1)
        if head[at : at + 1] in (b"{", b"["):
            return found, name
        end = _end_of_scalar(head, at)
        try:
            found[name] = read_json(head[at:end])
        except ValueError:
            break
        at = _skip(head, end)
    return found, ""


def _last_members(tail: bytes) -> "dict[str, Any] | None":
    """The members after the last one that holds others; None if that one's end was not reached. Without a backslash
    quotes pair up from the end as well as from the beginning."""
    found: dict[str, Any] = {}
    if b"\\" in tail:
        return None
    tail = tail.rstrip(_SPACE)
    while tail.endswith((b"}", b",")):
        tail = tail[:-1].rstrip(_SPACE)
        if tail.endswith((b"}", b"]")):
            return found
        start = _start_of_scalar(tail)
        value, tail = tail[start:], tail[:start].rstrip(_SPACE)
        if not tail.endswith(b":"):
            return None
        tail = tail[:-1].rstrip(_SPACE)
        start = _start_of_scalar(tail)
        try:
            name = read_json(tail[start:])
            found.setdefault(str(name), read_json(value))
        except ValueError:
            return None
        tail = tail[:start].rstrip(_SPACE)
    return None


def _skip(text: bytes, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def _end_of_scalar(text: bytes, at: int) -> int:
    if text[at : at + 1] == b'"':
        end = text.find(b'"', at + 1)
        return at if end < 0 or b"\\" in text[at:end] else end + 1
    end = at
    while end < len(text) and text[end] in _WORD:
        end += 1
    return end


def _start_of_scalar(text: bytes) -> int:
    if text.endswith(b'"'):
        return max(text.rfind(b'"', 0, len(text) - 1), 0)
    start = len(text)
    while start > 0 and text[start - 1] in _WORD:
        start -= 1
    return start
