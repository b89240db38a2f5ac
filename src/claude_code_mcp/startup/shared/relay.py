"""The state of a conversation that a relay needs to continue it with another server; no I/O.

After a connection is lost, read-only requests are repeated, and so are messages with a key, which only one server
accepts. All other requests are answered with an error, since their progress is unknown. Questions of the lost server
are withdrawn from the client. The next server gets the client's handshake and subscriptions again, and its answers to
those are not passed on.

Servers number their own requests from one, so after the first reconnection these get ids that no earlier server has
used: a late answer to a question of an earlier server must not count as the answer to another question.
"""

from ..greeting.first_answers import encode_string
from .handshake import MAX_LINE, Lines, first_members, look, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeGuard

    from ..greeting.first_answers import GreetedInput

READING_METHODS = frozenset(
    {
        "initialize",
        "ping",
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "subscriptions/listen",
        "tasks/get",
        "tasks/list",
        "tasks/result",
    }
)
"""Requests that may be repeated."""
READING_TOOLS = frozenset({"claude_get_status", "claude_list_sessions", "claude_read_session", "claude_session_costs"})
"""The tools that are declared read-only; a test compares."""
KEYED_TOOLS = frozenset(
    {"claude_create_session", "claude_send_message", "claude_code", "claude_code_reply", "claude_code_query"}
)
"""The tools that take a `messageKey`; a test compares."""
_MAX_REPEATED = 1 << 20
"""Maximum bytes of a request that is kept for repetition."""
_ANSWER_START = b'{"jsonrpc":"2.0","id":'
_SMALL_ANSWER = 1 << 10
"""Maximum bytes of a server's line that is parsed completely: of answers only the id matters, and it comes first."""
_TRIES = 3
"""How often a request is sent: it might be the cause of the servers' failures."""

_LOST = -32000
_LOST_TEXT = (
    "The shared server of claude-code-mcp exited while this request was in flight; it may or may not have carried it "
    "out. A new server is being started. Sessions are kept: claude_list_sessions shows them, and the next message to "
    "one resumes it."
)


_TOO_LONG_TEXT = f"The answer is longer than {MAX_LINE >> 20} MiB and cannot be forwarded."


class _Sent:
    """A request in flight, with its line if it may be repeated."""

    def __init__(self, line: bytes | None) -> None:
        self.line = line
        self.tries = 1


class Relay:
    """The conversation of one client with successive servers."""

    def __init__(self) -> None:
        self._opening: bytes | None = None
        self._initialized = b""
        self._level: bytes | None = None
        self._subscriptions: dict[str, bytes] = {}
        self._in_flight: dict[int | str, _Sent] = {}
        self._asked: dict[int | str, int | str] = {}
        self._withdrawn: set[int | str] = set()
        self._replayed: set[str] = set()
        self._generation = 0
        self._replays = 0

    @property
    def waiting(self) -> bool:
        """Whether the client waits for an answer."""
        return bool(self._in_flight)

    def greeted(self, handed_over: "GreetedInput") -> tuple[list[bytes], bytes]:
        """Takes over from the greeting: the complete lines still to be sent, and the beginning of the next."""
        lines = Lines(unreadable)
        left = []
        for line in lines.receive(handed_over.unread):
            message = look(line)
            request_id = message.get("id")
            if not _is_id(request_id) or request_id not in handed_over.answered or "method" not in message:
                left.append(line)
            elif message["method"] == "initialize":
                self._opening = line
        return left, lines.take_rest()

    # -- from the client --------------------------------------------------------------------------------------

    def from_client(self, line: bytes) -> bytes:
        """The line for the server, from a client's line."""
        if line.startswith(b"!"):
            return b" " + line  # not a message; clients must not send a front's own lines to the server
        message = look(line)
        method, request_id = message.get("method"), message.get("id")
        if method is None:
            return self._answer(line, message) if _is_id(request_id) else line
        if _is_id(request_id):
            self._request(line, method, request_id, message.get("params"))
        elif method == "notifications/initialized":
            self._initialized = line
        elif method == "notifications/cancelled":
            params = message.get("params")
            cancelled = params.get("requestId") if isinstance(params, dict) else None
            if _is_id(cancelled):
                self._in_flight.pop(cancelled, None)
        return line

    def _request(self, line: bytes, method: object, request_id: int | str, params: object) -> None:
        self._in_flight[request_id] = _Sent(line if _may_repeat(line, method, params) else None)
        uri = params.get("uri") if isinstance(params, dict) else None
        if method == "initialize" and self._opening is None:
            self._opening = line
        elif method == "logging/setLevel":
            self._level = line
        elif method == "resources/subscribe" and isinstance(uri, str):
            self._subscriptions[uri] = line
        elif method == "resources/unsubscribe" and isinstance(uri, str):
            self._subscriptions.pop(uri, None)

    def _answer(self, line: bytes, message: "dict[str, Any]") -> bytes:
        """The answer to a server's question; nothing if that server is gone."""
        shown = message["id"]
        # It was in transit when the question was withdrawn: the server that asked is gone, or no longer wants an
        # answer.
        if shown in self._withdrawn:
            self._withdrawn.discard(shown)
            return b""
        original = self._asked.pop(shown, shown)
        return line if original == shown else _with_id(line, original)

    # -- from the server --------------------------------------------------------------------------------------

    def from_server(self, line: bytes) -> bytes:
        """The line for the client, from a server's line."""
        if line.startswith(_ANSWER_START):  # the usual answer, in the only form in which our servers write it
            end = line.find(b",", len(_ANSWER_START), 60)
            digits = line[len(_ANSWER_START) : end]
            if digits.isdigit() and line.startswith((b'"result":', b'"error":'), end + 1):
                self._in_flight.pop(int(digits), None)
                return line
        message = look(line, _SMALL_ANSWER)
        method, request_id = message.get("method"), message.get("id")
        if method is None:
            if isinstance(request_id, str) and request_id in self._replayed:
                self._replayed.discard(request_id)
                return b""
            if _is_id(request_id):
                self._in_flight.pop(request_id, None)
            return line
        if _is_id(request_id):  # a question of the server
            shown = self._shown(request_id)
            self._asked[shown] = request_id
            return line if shown == request_id else _with_id(line, shown)
        return self._withdrawal(line, message) if method == "notifications/cancelled" else line

    def too_long(self, head: bytes) -> bytes:
        """The replacement for a server's line that is too long, from its beginning."""
        message, _ = first_members(head)
        request_id = message.get("id")
        if not _is_id(request_id) or "method" in message:
            return b"\n"
        return self.from_server(_error(request_id, _TOO_LONG_TEXT))

    def _withdrawal(self, line: bytes, message: "dict[str, Any]") -> bytes:
        params = message.get("params")
        original = params.get("requestId") if isinstance(params, dict) else None
        if not _is_id(original) or self._shown(original) not in self._asked:
            return line
        shown = self._shown(original)
        del self._asked[shown]
        self._withdrawn.add(shown)
        return line if shown == original else _cancellation(shown, "the server withdrew it")

    def _shown(self, original: int | str) -> int | str:
        return f"{self._generation}/{original}" if self._generation else original

    # -- one server after the other ---------------------------------------------------------------------------

    def lost(self) -> bytes:
        """Call it when the connection is lost. Returns the messages for the client: withdrawals of open questions, and
        errors for requests that cannot be repeated."""
        messages = [_cancellation(shown, "the server that asked has exited") for shown in self._asked]
        for request_id, sent in list(self._in_flight.items()):
            if sent.line is None or sent.tries >= _TRIES:
                del self._in_flight[request_id]
                messages.append(_error(request_id, _LOST_TEXT))
        self._withdrawn |= self._asked.keys()
        self._asked.clear()
        self._replayed.clear()
        # Last: the questions above have the names of the lost server; those of the next server get new names.
        self._generation += 1
        return b"".join(messages)

    def resume(self) -> bytes:
        """A new connection exists: the first messages for the server."""
        return b"".join(self._resumed())

    def _resumed(self) -> "Iterator[bytes]":
        opening = look(self._opening)["id"] if self._opening is not None else None
        # The client already has its answer and must not get a second one. A request still in flight is repeated under
        # its own id.
        if self._opening is not None and opening not in self._in_flight:
            yield self._replay(self._opening)
        elif self._opening is not None:
            yield self._opening
        yield self._initialized
        for line in (self._level, *self._subscriptions.values()):
            if line is not None and look(line)["id"] not in self._in_flight:
                yield self._replay(line)
        for request_id, sent in self._in_flight.items():
            if request_id != opening and sent.line is not None:
                sent.tries += 1
                yield sent.line

    @property
    def replayed(self) -> frozenset[str]:
        """The requests of `resume` whose answers are not for the client."""
        return frozenset(self._replayed)

    def _replay(self, line: bytes) -> bytes:
        self._replays += 1
        request_id = f"claude-code-mcp/replay/{self._replays}"
        self._replayed.add(request_id)
        return _with_id(line, request_id)


def _is_id(value: object) -> "TypeGuard[int | str]":
    """Whether a server accepts this as an id: it treats a request with any other as one without an id."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    return isinstance(value, int) and not isinstance(value, bool)


def _may_repeat(line: bytes, method: object, params: object) -> bool:
    if len(line) > _MAX_REPEATED or not isinstance(method, str):
        return False
    if method != "tools/call":
        return method in READING_METHODS
    name = params.get("name") if isinstance(params, dict) else None
    if not isinstance(name, str):
        return False
    return name in READING_TOOLS or (name in KEYED_TOOLS and _has_key(params))


def _has_key(params: object) -> bool:
    arguments = params.get("arguments") if isinstance(params, dict) else None
    # Every call creates another fork, whatever its key.
    return (
        isinstance(arguments, dict)
        and isinstance(arguments.get("messageKey"), str)
        and not arguments.get("forkSession")
    )


def _with_id(line: bytes, request_id: int | str) -> bytes:
    import json  # noqa: PLC0415 - seldom, and not before the first answer

    return json.dumps({**json.loads(line), "id": request_id}).encode() + b"\n"


def _encoded(request_id: int | str) -> str:
    return encode_string(request_id) if isinstance(request_id, str) else str(request_id)


def _cancellation(request_id: int | str, reason: str) -> bytes:
    params = f'{{"requestId":{_encoded(request_id)},"reason":{encode_string(reason)}}}'
    return f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}\n'.encode()


def _error(request_id: int | str, text: str) -> bytes:
    problem = f'{{"code":{_LOST},"message":{encode_string(text)}}}'
    return f'{{"jsonrpc":"2.0","id":{_encoded(request_id)},"error":{problem}}}\n'.encode()
