"""The greeting without I/O on the pipe: a client's first requests are answered from a file while the server is loading.

That file, a manifest, has a heading, then one JSON result per line. The manifest next to this module is for the default
settings; if a setting changes an answer, the server leaves a manifest in the user's cache directory for the next start.
The module is imported before the first answer, so it imports only built-in modules.

The answers depend on our own code and on the MCP SDK: a manifest of another minor version of the SDK is not used. Other
releases of the packages in `MADE_WITH` rarely change the answers. A manifest made with another release is used; once
loaded, the server writes one with its own answers, which is used from the next start on.

The shipped manifest does not contain the tools of plug-ins. A server with such tools writes a manifest with them to the
cache, even with default settings, unless the one in use has them already. It names the distributions of these plug-ins,
and is not used once one of them has changed its version or was removed.

Only requests that the server would certainly answer with the same result are answered here. Everything else is kept for
the server, which takes over the pipe: it gets every unanswered byte, and again the request that opened the connection,
because that decides how it serves the rest; its second answer to that request is not sent.
"""

import _json
import os
import sys
from binascii import crc32
from stat import S_ISREG

from ... import __version__
from ...sdk_version import installed_version, is_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANSWERS_DEPEND_ON: tuple[tuple[str, str], ...] = (
    ("--toolsets", "CLAUDE_CODE_MCP_TOOLSETS"),
    ("", "CLAUDE_CODE_MCP_ALLOW_DISK_RESUME"),
)
"""The settings that change an answer, each as its flag, empty without one, and its variable."""

_VOLATILE_TOOLSET = "hub-tools"
"""With this toolset the list of tools changes too often to be stored."""

MADE_WITH = ("mcp", "mcp_types", "pydantic")
"""The distributions that could change an answer."""

SHIPPED = os.path.join(os.path.dirname(__file__), "manifest.jsonl")

_PLUGINS_OFF = "CLAUDE_CODE_MCP_PLUGINS_OFF"
"""Plug-ins change answers with their tools. Disabled ones are part of the name of a cached manifest."""

_CONFIG_FILE = ("--config", "CLAUDE_CODE_MCP_CONFIG")

Results = dict[str, dict[str, bytes]]


class Manifest:
    """The first answers: a JSON result for each method and protocol version."""

    def __init__(self, results: Results, otherwise: str, *, checked: bool = True, with_plugins: bool = False) -> None:
        self.results = results
        self.otherwise = otherwise
        """The version for clients that request an unknown one."""
        self.checked = checked
        """Whether it was made with exactly the installed versions."""
        self.with_plugins = with_plugins
        """Whether a server with tools of plug-ins wrote it."""

    def result(self, method: str, version: str) -> bytes | None:
        """The result of a request without arguments, if known."""
        return self.results.get(method, {}).get(version)

    def has_handshake(self, version: str) -> bool:
        """Whether connections of this version begin with `initialize`."""
        return version in self.results["initialize"]

    def negotiated(self, version: str) -> str:
        """The version negotiated for a requested `version`."""
        return version if self.has_handshake(version) else self.otherwise


class _Grammar:
    """What `json.JSONDecoder` would pass to the scanner."""

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
    """The value of a JSON text. Raises ValueError for invalid JSON. Uses the scanner of the `json` module without that
    module, whose regular expressions take 5 ms to import. Errors that the scanner reports through the module arrive as
    SystemError."""
    text = data.decode().strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except (StopIteration, RecursionError, SystemError):
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value


def find(argv: list[str]) -> tuple[Manifest | None, str | None]:
    """The manifest for these arguments and this environment, and where the server should write a better one; either may
    be None."""
    deviation = _deviation(argv)
    if _VOLATILE_TOOLSET in deviation or _VOLATILE_TOOLSET.encode().hex() in deviation:
        return None, None
    left = None if deviation else read(plugins_file(), only_ours=True)
    if left is not None and left.checked:
        return left, None
    shipped = None if deviation else read(SHIPPED)
    if shipped is not None and shipped.checked:
        return shipped, None
    file = cache_file(deviation)
    cached = read(file, only_ours=True)
    if cached is not None and cached.checked:
        return cached, None
    return cached or shipped, file


def place_with_plugins(argv: "Sequence[str]") -> str | None:
    """Where a server with tools of plug-ins writes its manifest; None if its tools change too often."""
    deviation = _deviation(argv)
    if _VOLATILE_TOOLSET in deviation or _VOLATILE_TOOLSET.encode().hex() in deviation:
        return None
    return cache_file(deviation) if deviation else plugins_file()


def read(file: str, *, only_ours: bool = False) -> Manifest | None:
    """The manifest in a file; None if it is missing, damaged, or of another SDK or other plug-ins. With `only_ours`
    also if another user could have written it, because the model trusts the list of tools."""
    try:
        # Non-blocking, since opening a named pipe would wait for its writer.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) if only_ours else os.O_RDONLY
        with open(os.open(file, flags | getattr(os, "O_BINARY", 0)), "rb") as opened:
            # Checked on the open file: its name may refer to another file by now.
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
    made_with, plugins = heading["made_with"], heading["plugins"]
    if not all(is_installed(name, version) for name, version in plugins.items()):
        return None
    checked = all(is_installed(name, version) for name, version in made_with.items())
    if not checked and not (is_supported(made_with["mcp"]) and is_supported(installed_version("mcp"))):
        return None
    lines = body.splitlines()
    results = {
        method: {version: lines[number] for version, number in by_version.items()}
        for method, by_version in heading["results"].items()
    }
    return Manifest(results, heading["otherwise"], checked=checked, with_plugins=bool(plugins))


def is_installed(name: str, version: str) -> bool:
    """Checks the directory that an installation leaves; `importlib.metadata` would take 30 ms."""
    return any(os.path.isdir(os.path.join(place, f"{name}-{version}.dist-info")) for place in sys.path)


def _deviation(argv: "Sequence[str]") -> str:
    """How these settings differ from the defaults in ways that change answers; empty for the defaults."""
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
    """The settings file named by the arguments or the environment; empty if there is none."""
    return _value(argv, *_CONFIG_FILE, environment)


def _value(argv: "Sequence[str]", flag: str, variable: str, environment: "Mapping[str, str]" = os.environ) -> str:
    """The value of a setting from the arguments, in which a flag may be abbreviated, or from the environment."""
    for index, argument in enumerate(argv):
        name, joined, value = argument.partition("=")
        if len(name) > 2 and flag.startswith(name):
            return value if joined else "".join(argv[index + 1 : index + 2])
    return environment.get(variable, "")


def write(
    file: str, results: Results, otherwise: str, made_with: dict[str, str], plugins: dict[str, str] | None = None
) -> None:
    """Writes a manifest atomically, with the distributions of the `plugins` whose tools are in it. Raises OSError."""
    import json  # noqa: PLC0415 - not before the first answer

    lines = sorted({line for by_version in results.values() for line in by_version.values()})
    body = b"".join(line + b"\n" for line in lines)
    numbers = {
        method: {version: lines.index(line) for version, line in by_version.items()}
        for method, by_version in results.items()
    }
    heading = {
        "made_with": made_with,
        "plugins": plugins or {},
        "otherwise": otherwise,
        "results": numbers,
        "crc32": crc32(body),
    }
    os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
    temporary = f"{file}.{os.getpid()}"
    try:
        if os.path.lexists(temporary):
            os.unlink(temporary)  # left by an earlier process with our number
        # The shipped manifest is readable for all users; its contents are not secret.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(temporary, flags, 0o644 if file == SHIPPED else 0o600), "wb") as opened:
            opened.write(json.dumps(heading).encode() + b"\n" + body)
        # Atomically: a simultaneous start reads the old or the new file.
        os.replace(temporary, file)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def cache_file(deviation: str) -> str:
    """The path of the manifest for such settings. Its name depends on the shipped manifest, which changes with every
    change to a tool, and on the environment: two environments may have different versions of `MADE_WITH`."""
    import hashlib  # noqa: PLC0415 - the usual start needs no digest

    parts = f"{sys.prefix}\n{deviation}\n{os.environ.get(_PLUGINS_OFF, '')}"
    digest = hashlib.sha256(parts.encode(errors="surrogateescape"))
    try:
        with open(SHIPPED, "rb") as opened:
            digest.update(opened.read())
    except OSError:
        pass
    return os.path.join(_cache(), f"greeting-{__version__}-{digest.hexdigest()[:16]}.jsonl")


def plugins_file() -> str:
    """The path of the manifest for default settings with the tools of plug-ins. Needed at every start, so it avoids a
    digest: the shipped file's status changes with every installation of ours."""
    try:
        shipped = os.stat(SHIPPED)
        build = f"{shipped.st_size} {shipped.st_mtime_ns}"
    except OSError:
        build = ""
    parts = f"{sys.prefix}\n{build}\n{os.environ.get(_PLUGINS_OFF, '')}"
    return os.path.join(_cache(), f"plugins-{__version__}-{crc32(parts.encode(errors='surrogateescape')):08x}.jsonl")


def _cache() -> str:
    """The directory that `platformdirs` would return."""
    default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser(default)
    return os.path.join(base, "claude-code-mcp")


# -- the greeting -----------------------------------------------------------------------------------------------------


_MAX_KEPT = 1 << 20
"""Bytes kept for the server; later ones stay in the pipe."""
_MAX_BRACKETS = 100
"""A request with more brackets might be nested deeper than the server accepts, and is left to it."""

_RESERVED = "io.modelcontextprotocol/"
_VERSION = f"{_RESERVED}protocolVersion"
_CAPABILITIES = f"{_RESERVED}clientCapabilities"
_CLIENT = f"{_RESERVED}clientInfo"


class GreetedInput:
    """The input that the server takes over from the greeting; empty if there was no greeting."""

    def __init__(
        self,
        unread: bytes = b"",
        answered: "frozenset[str | int]" = frozenset(),
        leave_manifest: str | None = None,
        *,
        argv: "Sequence[str]" = (),
        manifest: Manifest | None = None,
        listed_in: str | None = None,
    ) -> None:
        self.unread = unread
        """The client's data that the server has to read."""
        self.answered = answered
        """The requests in it that are already answered."""
        self.leave_manifest = leave_manifest
        """Where the server should write a manifest for the next start."""
        self.argv = argv
        """The process's arguments."""
        self.manifest = manifest
        """The source of the answers."""
        self.listed_in = listed_in
        """The protocol version in which the client got the tools and waits for change notifications. Clients of
        versions without a handshake poll for changes."""


class Greeting:
    """The conversation so far: bytes in, answers out, the rest kept for the server."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._version: str | None = None
        self._opening: list[str | int] = []
        self._answered: set[str | int] = set()
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._partial = bytearray()
        self._can_answer = True
        self.waiting = False
        """Whether the client sent anything that only the server can handle."""
        self.listed = False
        """Whether the client has what it usually requests first."""

    @property
    def satisfied(self) -> bool:
        """Whether all requests are answered, so that the client may disconnect without the server."""
        return bool(self._answered) and not self.waiting

    @property
    def full(self) -> bool:
        """Whether no more should be read here."""
        return self._kept_bytes + len(self._partial) > _MAX_KEPT

    def handover(self) -> GreetedInput:
        """What the server has to read, and which of it is already answered."""
        is_listed = self.listed and self._version is not None and self._manifest.has_handshake(self._version)
        return GreetedInput(
            b"".join(self._kept) + bytes(self._partial),
            frozenset(self._opening),
            manifest=self._manifest,
            listed_in=self._version if is_listed else None,
        )

    def receive(self, data: bytes) -> bytes:
        """Takes input and returns output."""
        searched = len(self._partial)
        self._partial += data
        # Only the new part: otherwise a long line in many pieces would be searched from its beginning for each piece.
        if self._partial.find(b"\n", searched) < 0:
            self.waiting = self.waiting or self.full
            return b""
        *lines, rest = bytes(self._partial).split(b"\n")
        self._partial = bytearray(rest)
        answers = b"".join([self._take(line + b"\n") for line in lines])
        self.waiting = self.waiting or self.full
        return answers

    def end(self) -> bytes:
        """Takes a last line without its line break."""
        return self.receive(b"\n") if self._partial.strip() else b""

    def _take(self, line: bytes) -> bytes:
        if not line.strip():
            return b""
        message = _parse_message(line) if self._can_answer else None
        if message is None:
            self._stop_answering()
        elif "method" in message and "id" in message:
            return self._request(line, message)
        elif self._is_late_cancellation(message):
            return b""
        self._keep(line)
        return b""

    def _request(self, line: bytes, message: "dict[str, object]") -> bytes:
        opening, request_id, method = self._version is None, message["id"], message["method"]
        assert isinstance(request_id, int | str)
        assert isinstance(method, str)
        result = self._result(method, message.get("params"))
        if result is None:
            # The version of the connection is then unknown here, and every later answer depends on it.
            if opening or method == "initialize":
                self._stop_answering()
            self.waiting = True
            self._keep(line)
            return b""
        if opening:
            self._opening.append(request_id)
            self._keep(line)
        self._answered.add(request_id)
        self.listed = self.listed or method == "tools/list"
        encoded_id = encode_string(request_id) if isinstance(request_id, str) else str(request_id)
        return b'{"jsonrpc":"2.0","id":' + encoded_id.encode() + b',"result":' + result + b"}\n"

    def _result(self, method: str, params: object) -> bytes | None:
        """The result and, with the first one, the connection's protocol version."""
        if self._version is None:
            version = self._opening_version(method, params)
        elif self._manifest.has_handshake(self._version):
            version = self._version if method != "initialize" and _is_empty(params) else None
        else:
            version = self._version if _envelope_version(params) == self._version else None
        result = self._manifest.result(method, version) if version is not None else None
        if result is not None:
            self._version = version
        return result

    def _opening_version(self, method: str, params: object) -> str | None:
        if method == "initialize":
            version = _handshake_version(params)
            return self._manifest.negotiated(version) if version is not None else None
        version = _envelope_version(params)
        return None if version is None or self._manifest.has_handshake(version) else version

    def _is_late_cancellation(self, message: "dict[str, object]") -> bool:
        """Whether this cancels an answered request: the server must not apply it to its copy."""
        params = message.get("params")
        return (
            message.get("method") == "notifications/cancelled"
            and isinstance(params, dict)
            and type(params.get("requestId")) in (int, str)
            and params["requestId"] in self._answered
        )

    def _stop_answering(self) -> None:
        """From here on the server determines the order of answers."""
        self._can_answer = False
        self.waiting = True

    def _keep(self, line: bytes) -> None:
        self._kept.append(line)
        self._kept_bytes += len(line)


def _parse_message(line: bytes) -> "dict[str, object] | None":
    """The message on a line; None if the server might parse it differently or refuse it."""
    # Lines that the server might refuse or read differently are left to the server: its answer counts.
    if line.count(b"{") + line.count(b"[") > _MAX_BRACKETS or b"\\ud" in line.lower():
        return None
    try:
        message = read_json(line)
    except ValueError:
        return None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return None
    if "method" in message and not _is_call(message):
        return None
    return message


def _is_call(message: "dict[str, object]") -> bool:
    return (
        isinstance(message["method"], str)
        and type(message.get("id", 0)) in (int, str)
        and isinstance(message.get("params", {}), dict)
        and message.keys() <= {"jsonrpc", "id", "method", "params"}
    )


def _handshake_version(params: object) -> str | None:
    """The version requested by a valid `initialize`."""
    if not isinstance(params, dict) or not params.keys() <= {"protocolVersion", "capabilities", "clientInfo", "_meta"}:
        return None
    if not _is_empty({"_meta": params.get("_meta", {})}):
        return None
    if not _is_client(params.get("clientInfo")) or not _are_capabilities(params.get("capabilities")):
        return None
    version = params.get("protocolVersion")
    return version if isinstance(version, str) else None


def _is_empty(params: object) -> bool:
    """Whether a request's parameters contain only metadata that does not affect the result."""
    if params is None or params == {}:
        return True
    if not isinstance(params, dict) or params.keys() != {"_meta"}:
        return False
    meta = params["_meta"]
    return isinstance(meta, dict) and _has_valid_token(meta) and not any(map(_is_reserved, meta))


def _envelope_version(params: object) -> str | None:
    """The version in the envelope of a modern client's request, if it contains nothing else."""
    meta = params.get("_meta") if isinstance(params, dict) and len(params) == 1 else None
    if not isinstance(meta, dict) or not _has_valid_token(meta):
        return None
    if not set(filter(_is_reserved, meta)) <= {_VERSION, _CAPABILITIES, _CLIENT}:
        return None
    if not _are_capabilities(meta.get(_CAPABILITIES)) or (_CLIENT in meta and not _is_client(meta[_CLIENT])):
        return None
    version = meta.get(_VERSION)
    return version if isinstance(version, str) else None


def _is_reserved(key: str) -> bool:
    return key.startswith(_RESERVED)


def _has_valid_token(meta: "dict[str, object]") -> bool:
    return type(meta.get("progressToken", 0)) in (int, str)


def _is_client(client: object) -> bool:
    if not isinstance(client, dict) or not {"name", "version"} <= client.keys() or "icons" in client:
        return False
    return all(isinstance(value, str) for value in client.values())


def _are_capabilities(capabilities: object) -> bool:
    """Objects within objects, like all known capabilities; the only boolean among them is known by name."""
    if not isinstance(capabilities, dict):
        return False
    for name, capability in capabilities.items():
        if not isinstance(capability, dict):
            return False
        for key, value in capability.items():
            is_switch = name == "roots" and key == "listChanged"
            if not (isinstance(value, bool) if is_switch else _is_valid_detail(name, value)):
                return False
    return True


def _is_valid_detail(name: str, value: object) -> bool:
    if not isinstance(value, dict):
        return False
    if name in ("experimental", "extensions"):
        return True
    return all(_is_valid_detail(name, inner) or isinstance(inner, bool) for inner in value.values())
