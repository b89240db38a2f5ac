"""What the two ends of the socket say to each other before and beside MCP; no I/O.

The first line of each side is its hello. What follows is MCP, one message per line, except for lines that begin with
`!`, which are for the other end itself:

| line | from | meaning |
| ---- | ---- | ------- |
| `!handover VERSION` | front | a newer version is installed: end when nothing is at work |
| `!handover VERSION` | server | it ends now, so that this version can be started |
| `!restarting` | server | it ends, and what caused that starts another |
| `!stopping` | server | it was stopped: start another only when there is something to do |

A front whose `PROTOCOL` is not that of the server cannot speak to it.
"""

import os

from .. import __version__
from ..greeting.manifest import encode_string, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PERSON = "claude-code-mcp/person"
"""The experimental capability by which a client says in MCP that a person is before it, and no model."""
PROTOCOL = 1
LONGEST = 8 << 20
"""Bytes of a hello; the environment is the largest part of it."""
HANDOVER, STOPPING, RESTARTING = b"!handover", b"!stopping", b"!restarting"


def _own_build() -> str:
    """The version with the time at which its files were last changed, which tells two builds of one version apart: an
    installation writes all of them anew."""
    newest = 0.0
    try:
        with os.scandir(os.path.dirname(os.path.dirname(__file__))) as files:
            for file in files:
                if file.name.endswith(".py"):
                    newest = max(newest, file.stat().st_mtime)
    except OSError:
        pass
    return f"{__version__}+{int(newest)}"


BUILD = _own_build()
"""What this process runs: read when it starts, so that a later installation differs from it."""


class Hello:
    """What a client says first. The environment goes nowhere but into the memory of the server."""

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
        """One per front: the same again when it comes back."""
        self.version = version
        self.protocol = protocol
        self.pid = pid
        self.manifest = manifest
        """Where the server should leave a manifest for the greeting of the next front."""
        self.ask = ask
        """What a command wants that speaks no MCP: `status`, `stop`, `restart`, `sessions`, `metrics`, `hub` or
        `web` (a link to the console)."""

    def line(self) -> bytes:
        return encode({"hello": {**vars(self), "environment": dict(self.environment)}})


def new_identity() -> str:
    return f"{os.getpid()}-{os.urandom(6).hex()}"


def read_hello(line: bytes) -> Hello:
    """The hello of a client; ValueError for anything else."""
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
    """What the server says first: who it is, or why it does not serve this client."""

    def __init__(self, pid: int, refused: str = "", version: str = BUILD, protocol: int = PROTOCOL) -> None:
        self.pid = pid
        self.refused = refused
        self.version = version
        self.protocol = protocol

    def line(self) -> bytes:
        return encode({"welcome": vars(self)})


def read_welcome(line: bytes) -> Welcome:
    """The server's first line; ValueError for anything else."""
    fields = _object(line, "welcome")
    try:
        return Welcome(int(fields["pid"]), str(fields["refused"]), str(fields["version"]), int(fields["protocol"]))
    except (KeyError, TypeError):
        raise ValueError("no welcome") from None


def is_newer(version: str, than: str) -> bool:
    """Whether a version comes after another, or is a later build of the same; what is no number counts as 0."""
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
    """A value as a line of JSON, without the `json` module, which takes too long to import."""
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
