"""The greeting without I/O: a client's first requests are answered from a manifest while the server is loading.

Only a request that the server would certainly answer with the same result is answered here. Everything else is kept for
the server, which takes over the pipe: it gets every byte that was not answered, and the request that opened the
connection once more, because that decides how it serves the rest; its second answer to that one is not sent. This
module knows nothing of the server and imports only the manifest.
"""

from .manifest import Manifest, encode_string, read_json

_MAX_KEPT = 1 << 20
"""Bytes that are kept for the server; what comes after stays in the pipe."""
_MAX_BRACKETS = 100
"""A request with more of them might be nested deeper than the server reads, and is left to it."""

_RESERVED = "io.modelcontextprotocol/"
_VERSION = f"{_RESERVED}protocolVersion"
_CAPABILITIES = f"{_RESERVED}clientCapabilities"
_CLIENT = f"{_RESERVED}clientInfo"


class GreetedInput:
    """What the server takes over from the greeting; empty if there was none."""

    def __init__(
        self, unread: bytes = b"", answered: "frozenset[str | int]" = frozenset(), leave_manifest: str | None = None
    ) -> None:
        self.unread = unread
        """What the client sent, as far as the server has to read it."""
        self.answered = answered
        """The requests in it that are answered already."""
        self.leave_manifest = leave_manifest
        """Where the server should leave a manifest for the next start."""


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
        """Whether something was sent that only the server can deal with."""
        self.listed = False
        """Whether the client has what it usually asks for first."""

    @property
    def satisfied(self) -> bool:
        """Whether the client got an answer to all that it asked, so that it may leave without having met the server."""
        return bool(self._answered) and not self.waiting

    @property
    def full(self) -> bool:
        """Whether no more should be read here."""
        return self._kept_bytes + len(self._partial) > _MAX_KEPT

    def handover(self) -> GreetedInput:
        """What the server has to read, and which of it is answered already."""
        return GreetedInput(b"".join(self._kept) + bytes(self._partial), frozenset(self._opening))

    def receive(self, data: bytes) -> bytes:
        """Takes what was read and returns what to write."""
        searched = len(self._partial)
        self._partial += data
        # Only in what is new: a long line in many pieces would be searched from its beginning for each of them.
        if self._partial.find(b"\n", searched) < 0:
            self.waiting = self.waiting or self.full
            return b""
        *lines, rest = bytes(self._partial).split(b"\n")
        self._partial = bytearray(rest)
        answers = b"".join([self._take(line + b"\n") for line in lines])
        self.waiting = self.waiting or self.full
        return answers

    def end(self) -> bytes:
        """Takes a last line without its end."""
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
            # Which version the connection speaks is not known here then, and every later answer depends on it.
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
        """The result, and with the first one the version that the connection speaks."""
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
        """Whether this cancels a request that is answered: the server must not take it for the copy that it gets."""
        params = message.get("params")
        return (
            message.get("method") == "notifications/cancelled"
            and isinstance(params, dict)
            and type(params.get("requestId")) in (int, str)
            and params["requestId"] in self._answered
        )

    def _stop_answering(self) -> None:
        """From here on the order of answers is the server's business."""
        self._can_answer = False
        self.waiting = True

    def _keep(self, line: bytes) -> None:
        self._kept.append(line)
        self._kept_bytes += len(line)


def _parse_message(line: bytes) -> "dict[str, object] | None":
    """The message on a line; None if the server might read it in another way, or refuse it."""
    # What the server might refuse or read differently is left to it: its answer is the one that counts.
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
    """The version that an `initialize` asks for, if there is nothing to refuse in it."""
    if not isinstance(params, dict) or not params.keys() <= {"protocolVersion", "capabilities", "clientInfo", "_meta"}:
        return None
    if not _is_empty({"_meta": params.get("_meta", {})}):
        return None
    if not _is_client(params.get("clientInfo")) or not _are_capabilities(params.get("capabilities")):
        return None
    version = params.get("protocolVersion")
    return version if isinstance(version, str) else None


def _is_empty(params: object) -> bool:
    """Whether the parameters of a request hold nothing but metadata without a meaning for the result."""
    if params is None or params == {}:
        return True
    if not isinstance(params, dict) or params.keys() != {"_meta"}:
        return False
    meta = params["_meta"]
    return isinstance(meta, dict) and _has_valid_token(meta) and not any(map(_is_reserved, meta))


def _envelope_version(params: object) -> str | None:
    """The version in the envelope that every request of a modern client carries, if it holds nothing else."""
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
    """Objects in objects, as all known capabilities are; the one switch among them is known by name."""
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
