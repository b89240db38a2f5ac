"""The first answers of the server in a file, so that they can be given before the server is loaded.

A manifest is a file of lines: a heading, then one JSON result per line. The one beside this module is for the default
settings; where a setting changes an answer, or the SDK is another one, the server leaves a manifest in the user's cache
directory for the next start. The module is imported before the first answer, so it imports only built-in modules.
"""

import _json
import os
import sys
from binascii import crc32
from stat import S_ISREG

from .. import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANSWERS_DEPEND_ON: tuple[tuple[str, str], ...] = (
    ("--toolsets", "CLAUDE_CODE_MCP_TOOLSETS"),
    ("", "CLAUDE_CODE_MCP_ALLOW_DISK_RESUME"),
)
"""The settings that change an answer, each as its flag, empty where it has none, and its variable."""

_VOLATILE_TOOLSET = "hub-tools"
"""With this toolset the list of tools changes too often to be written down."""

MADE_WITH = ("mcp", "mcp_types", "pydantic")
"""The distributions that have a say in the answers: with another version of one, a manifest does not count."""

SHIPPED = os.path.join(os.path.dirname(__file__), "manifest.jsonl")

_CONFIG_FILE = ("--config", "CLAUDE_CODE_MCP_CONFIG")

Results = dict[str, dict[str, bytes]]


class Manifest:
    """The first answers: for each method and protocol version a result, as JSON."""

    def __init__(self, results: Results, otherwise: str) -> None:
        self.results = results
        self.otherwise = otherwise
        """The version that a client gets that asks for one we do not know."""

    def result(self, method: str, version: str) -> bytes | None:
        """The result of a request without arguments, if it is known."""
        return self.results.get(method, {}).get(version)

    def has_handshake(self, version: str) -> bool:
        """Whether connections of this version begin with `initialize`."""
        return version in self.results["initialize"]

    def negotiated(self, version: str) -> str:
        """The version that a handshake for `version` leads to."""
        return version if self.has_handshake(version) else self.otherwise


class _Grammar:
    """What `json.JSONDecoder` would tell the scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_scan = _json.make_scanner(_Grammar)  # type: ignore[arg-type]
encode_string = _json.encode_basestring_ascii


def read_json(data: bytes) -> object:
    """The value of a JSON text; raises ValueError for what is none.

    This is the scanner of the `json` module without that module, whose regular expressions take 5 ms to import. What
    the scanner reports through the module comes out as SystemError.
    """
    text = data.decode().strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except (StopIteration, RecursionError, SystemError):
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value


def find(argv: list[str]) -> tuple[Manifest | None, str | None]:
    """The manifest for these arguments and this environment; when there is none, where the server should leave one."""
    deviation = _deviation(argv)
    if _VOLATILE_TOOLSET in deviation or _VOLATILE_TOOLSET.encode().hex() in deviation:
        return None, None
    manifest = None if deviation else read(SHIPPED)
    if manifest is not None:
        return manifest, None
    cached = cache_file(deviation)
    manifest = read(cached, only_ours=True)
    return manifest, None if manifest is not None else cached


def read(file: str, *, only_ours: bool = False) -> Manifest | None:
    """The manifest in a file; nothing when it is missing, damaged or made with another SDK. With `only_ours` also when
    another user could have written it: the list of tools is text that the model trusts."""
    try:
        # Non-blocking, since opening a named pipe would wait for its writer.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) if only_ours else os.O_RDONLY
        with open(os.open(file, flags | getattr(os, "O_BINARY", 0)), "rb") as opened:
            # Asked of the open file: under its name there may be another one by now.
            if only_ours and not _is_ours(os.fstat(opened.fileno())):
                return None
            heading, _, body = opened.read().partition(b"\n")
        return _parse(read_json(heading), body)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def _is_ours(opened: os.stat_result) -> bool:
    if not S_ISREG(opened.st_mode):
        return False
    return sys.platform == "win32" or (opened.st_uid == os.geteuid() and not opened.st_mode & 0o022)


def _parse(heading: object, body: bytes) -> Manifest | None:
    if not isinstance(heading, dict) or heading["crc32"] != crc32(body):
        return None
    if not all(_is_installed(name, version) for name, version in heading["made_with"].items()):
        return None
    lines = body.splitlines()
    results = {
        method: {version: lines[number] for version, number in by_version.items()}
        for method, by_version in heading["results"].items()
    }
    return Manifest(results, heading["otherwise"])


def _is_installed(name: str, version: str) -> bool:
    """Looks for the directory that an installation leaves behind; asking `importlib.metadata` would take 30 ms."""
    return any(os.path.isdir(os.path.join(place, f"{name}-{version}.dist-info")) for place in sys.path)


def _deviation(argv: list[str]) -> str:
    """What sets these settings apart from the defaults as far as the answers go; empty for the defaults."""
    if not ANSWERS_DEPEND_ON:
        return ""
    parts = [f"{variable}={value}" for flag, variable in ANSWERS_DEPEND_ON if (value := _value(argv, flag, variable))]
    file = config_file(argv, os.environ)
    if file:
        try:
            with open(file, "rb") as opened:
                parts.append(opened.read().hex())
        except OSError:
            parts.append(file)
    return "\n".join(parts)


def config_file(argv: "Sequence[str]", environment: "Mapping[str, str]") -> str:
    """The file of settings that the arguments or the environment name; empty if there is none."""
    return _value(argv, *_CONFIG_FILE, environment)


def _value(argv: "Sequence[str]", flag: str, variable: str, environment: "Mapping[str, str]" = os.environ) -> str:
    """The value of a setting from the arguments, where a flag may be shortened, or else from the environment."""
    for index, argument in enumerate(argv):
        name, joined, value = argument.partition("=")
        if len(name) > 2 and flag.startswith(name):
            return value if joined else "".join(argv[index + 1 : index + 2])
    return environment.get(variable, "")


def write(file: str, results: Results, otherwise: str, made_with: dict[str, str]) -> None:
    """Leaves a manifest, whole or not at all. Raises OSError where nothing can be written."""
    import json  # noqa: PLC0415 - not before the first answer

    lines = sorted({line for by_version in results.values() for line in by_version.values()})
    body = b"".join(line + b"\n" for line in lines)
    numbers = {
        method: {version: lines.index(line) for version, line in by_version.items()}
        for method, by_version in results.items()
    }
    heading = {"made_with": made_with, "otherwise": otherwise, "results": numbers, "crc32": crc32(body)}
    os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
    temporary = f"{file}.{os.getpid()}"
    try:
        if os.path.lexists(temporary):
            os.unlink(temporary)  # of a process that had our number
        # The one that is shipped is for everybody to read; what is in it is no secret.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(temporary, flags, 0o644 if file == SHIPPED else 0o600), "wb") as opened:
            opened.write(json.dumps(heading).encode() + b"\n" + body)
        # In one step: a start at the same moment reads the old one or the new one.
        os.replace(temporary, file)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def cache_file(deviation: str) -> str:
    """Where the manifest for such settings is kept: in the directory that `platformdirs` would name.

    The shipped one has a say in its name: it changes with every change to a tool, even between two versions.
    """
    import hashlib  # noqa: PLC0415 - the usual start needs no digest

    default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser(default)
    digest = hashlib.sha256(deviation.encode(errors="surrogateescape"))
    try:
        with open(SHIPPED, "rb") as opened:
            digest.update(opened.read())
    except OSError:
        pass
    return os.path.join(base, "claude-code-mcp", f"greeting-{__version__}-{digest.hexdigest()[:16]}.jsonl")
