"""The handshake between the two ends of the socket, and the lines that pass through a relay; no I/O.

The first line of each side is its hello. The rest is MCP, one message per line, except for lines that begin with `!`,
which are for the other end itself:

| line | from | meaning |
| ---- | ---- | ------- |
| `!handover VERSION` | front | a newer version is installed: exit when idle |
| `!handover VERSION` | server | it exits now, so that this version can be started |
| `!restarting` | server | it exits, and the initiator of the restart starts another |
| `!stopping` | server | it was stopped: start another only when there is a request |

A front cannot talk to a server with a different `PROTOCOL`.

A small line is parsed completely. Of a large one only the beginning and the end are parsed, which contain the id and
the method in the messages of all known clients; otherwise it is parsed completely too.
"""

import os

from ... import __version__
from ..greeting.first_answers import encode_string, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

PERSON = "claude-code-mcp/person"
"""The experimental MCP capability of clients that are used by a person, not a model."""
PROTOCOL = 1
MAX_LENGTH = 8 << 20
"""Maximum bytes of a hello; the environment is its largest part."""
HANDOVER, STOPPING, RESTARTING = b"!handover", b"!stopping", b"!restarting"


def _own_build() -> str:
    """The version with the modification time of its files, which distinguishes two builds of one version: an
    installation rewrites all of them."""
    newest = 0.0
    try:
        with os.scandir(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))) as files:
            for file in files:
                if file.name.endswith(".py"):
                    newest = max(newest, file.stat().st_mtime)
    except OSError:
        pass
    return f"{__version__}+{int(newest)}"


BUILD = _own_build()
"""The build of this process, read when it starts, so that a later installation differs from it."""


class Hello:
    """A client's first line. The environment is kept only in the server's memory."""

    def __init__(
        self,
        *,
        directory: str,
        environment: "Mapping[str, str]",
        fingerprint: str,
        arguments: "Sequence[str]" = (),
        identity: str = "",
        version: str = BUILD,
        protocol: int = PROTOCOL,
        pid: int = 0,
        manifest: str | None = None,
        ask: str = "",
    ) -> None:
        self.directory = directory
        self.environment = environment
        self.fingerprint = fingerprint
        self.arguments = list(arguments)
        """Those of `serve`."""
        self.identity = identity
        """Unique per front; the same when it reconnects."""
        self.version = version
        self.protocol = protocol
        self.pid = pid
        self.manifest = manifest
        """Where the server should write a manifest for the next front's greeting."""
        self.ask = ask
        """A request of a command that does not use MCP: `status`, `stop`, `restart`, `sessions`, `metrics`, `hub`,
        `web` (a link to the console) or `watched` (whether its user sees questions there)."""

    def line(self) -> bytes:
        return encode({"hello": {**vars(self), "environment": dict(self.environment)}})


def new_identity() -> str:
    return f"{os.getpid()}-{os.urandom(6).hex()}"


def read_hello(line: bytes) -> Hello:
    """Parses a client's hello. Raises ValueError."""
    fields = _object(line, "hello")
    try:
        texts = {name: str(fields[name]) for name in ("directory", "fingerprint", "identity", "version", "ask")}
        manifest = fields["manifest"]
        return Hello(
            **texts,
            environment={str(name): str(value) for name, value in fields["environment"].items()},
            arguments=[str(argument) for argument in fields["arguments"]],
            protocol=int(fields["protocol"]),
            pid=int(fields["pid"]),
            manifest=None if manifest is None else str(manifest),
        )
    except (KeyError, TypeError, AttributeError):
        raise ValueError("no hello") from None


class Welcome:
    """The server's first line: who it is, or why it does not serve this client."""

    def __init__(self, pid: int, refused: str = "", version: str = BUILD, protocol: int = PROTOCOL) -> None:
        self.pid = pid
        self.refused = refused
        self.version = version
        self.protocol = protocol

    def line(self) -> bytes:
        return encode({"welcome": vars(self)})


def read_welcome(line: bytes) -> Welcome:
    """Parses the server's first line. Raises ValueError."""
    fields = _object(line, "welcome")
    try:
        return Welcome(int(fields["pid"]), str(fields["refused"]), str(fields["version"]), int(fields["protocol"]))
    except (KeyError, TypeError):
        raise ValueError("no welcome") from None


def is_newer(version: str, than: str) -> bool:
    """Whether a version is later than another, or a later build of it; parts that are not numbers count as 0."""
    return _numbers(version) > _numbers(than)


def _numbers(version: str) -> tuple[list[int], int]:
    release, _, build = version.partition("+")
    return [_number(part) for part in release.split(".")], _number(build)


def _number(part: str) -> int:
    return int(part) if part.isascii() and part.isdigit() and len(part) < 12 else 0


def _object(line: bytes, name: str) -> "dict[str, Any]":
    message = read_json(line)
    fields = message.get(name) if isinstance(message, dict) else None
    if not isinstance(fields, dict):
        raise ValueError(f"no {name}")
    return fields


def encode(value: "Any") -> bytes:
    """Encodes a value as a line of JSON, without the `json` module, which takes too long to import."""
    return _text(value).encode() + b"\n"


def _text(value: "Any") -> str:
    if isinstance(value, str):
        return encode_string(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{encode_string(name)}:{_text(inner)}" for name, inner in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_text(inner) for inner in value]) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- message lines ----------------------------------------------------------------------------------------------------


MAX_LINE = 64 << 20
"""Maximum bytes of a line, as in the server's own transport."""
_SMALL = 16 << 10
_MARGIN = 512
"""Bytes at either end of a large line that are searched for its id and method."""
_SPACE = b" \t\r\n"
_WORD = frozenset(b"-+.0123456789aeflnrstuE")
"""The bytes of numbers, `true`, `false` and `null`."""


class Lines:
    """Bytes in, complete lines out, including line breaks. A line longer than `MAX_LENGTH` is dropped; `replace`
    creates its replacement from its first bytes."""

    def __init__(self, replace: "Callable[[bytes], bytes]") -> None:
        self._replace = replace
        self._partial = bytearray()
        self._searched = 0
        self._dropped: bytes | None = None
        """The beginning of the line that is being dropped."""

    def receive(self, data: bytes) -> list[bytes]:
        """The lines completed by these bytes."""
        # The usual case, one whole message in one read: nothing is copied.
        if not self._partial and self._dropped is None and data.endswith(b"\n") and data.count(b"\n") == 1:
            return [data]
        self._partial += data
        # Only the new part: otherwise a long line in many pieces would be searched from its beginning for each piece.
        if self._partial.find(b"\n", self._searched) < 0:
            self._searched = len(self._partial)
            if self._searched > MAX_LINE:
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
        """Removes and returns the incomplete line."""
        rest, self._partial, self._searched = bytes(self._partial), bytearray(), 0
        return rest if self._dropped is None else self._replace(self._dropped).strip()


def unreadable(_: bytes) -> bytes:
    """Replaces a client's line that is too long: the server answers that it cannot be read."""
    return b"a line that is too long\n"


def look(line: bytes, small: int = _SMALL) -> "dict[str, Any]":
    """A message's `id`, `method` and, if it is small, everything else. Empty if it is not a message."""
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
    """The members up to the first nested one, and that one's name; empty if none was reached."""
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
    """The members after the last nested one; None if its end was not reached. Without a backslash, quotes pair up from
    the end as well as from the beginning."""
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
