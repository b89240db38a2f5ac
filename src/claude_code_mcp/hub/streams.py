"""The two streams that every transport yields, and the private parts of the MCP SDK that the hub needs.

The stream protocols have no public name. The OAuth provider is made to be subclassed, but its hooks are private;
`OAuthProvider` gives them public names.

Messages of servers are parsed leniently, and outgoing messages are made writable: one unreadable or unwritable message
must fail its own call, not the connection with every call on it.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.client._transport import ReadStream, WriteStream
from mcp.client.auth import OAuthClientProvider
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from pydantic_core import to_json

from ..core import json_text

Inbox = ReadStream[SessionMessage | Exception]
Outbox = WriteStream[SessionMessage]


class OAuthProvider(OAuthClientProvider):
    """The SDK's OAuth client with public names for the methods that subclasses override."""

    async def load_context(self) -> None:
        """Fill `context` from storage. Called before the first request."""
        await super()._initialize()

    def authenticate(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yield the requests to send, including the given one, and receive their responses."""
        return super()._auth_flow(request)

    async def save_tokens(self, response: httpx2.Response) -> None:
        """Store the tokens of a sign-in's response."""
        await super()._handle_token_response(response)

    def prepare_token_request(self) -> None:
        """Called before each request to the token endpoint."""

    def select_authorization_server(self, advertised: list[str]) -> str:
        """Choose one of the authorization servers that a server names."""
        return super()._select_authorization_server(advertised)

    def expected_issuer(self) -> str:
        """The authorization server that must have issued metadata and registrations."""
        return super()._expected_issuer()

    @property
    def context_loaded(self) -> bool:
        return self._initialized

    async def refresh_request(self) -> httpx2.Request:
        """The request that refreshes the access token."""
        return await self._refresh_token()

    async def code_exchange_request(self, code: str, code_verifier: str) -> httpx2.Request:
        """The request that exchanges a sign-in's code for tokens."""
        return await self._exchange_token_authorization_code(code, code_verifier)

    async def save_refreshed_tokens(self, response: httpx2.Response) -> bool:
        """Store the tokens of a refresh response; False if the server refused the refresh."""
        return await self._handle_refresh_response(response)

    def add_bearer(self, request: httpx2.Request) -> None:
        """Add the access token to the headers of a request."""
        self._add_auth_header(request)

    async def reload(self) -> None:
        """Fill `context` from storage again."""
        await self.load_context()
        self._initialized = True

    async def _initialize(self) -> None:
        await self.reload()

    async def _refresh_token(self) -> httpx2.Request:
        self.prepare_token_request()
        return await super()._refresh_token()

    async def _exchange_token_authorization_code(self, auth_code: str, code_verifier: str) -> httpx2.Request:
        self.prepare_token_request()
        return await super()._exchange_token_authorization_code(auth_code, code_verifier)

    def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        return self.authenticate(request)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        return self.select_authorization_server(advertised)

    def _expected_issuer(self) -> str:
        return self.expected_issuer()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await self.save_tokens(response)


async def send_unchecked(
    session: ClientSession, method: str, params: "JsonObject", on_progress: ProgressFnT | None = None
) -> "JsonObject":
    """Send a request whose result type differs from the type that the SDK derives from its method. Raises MCPError."""
    data: JsonObject = {"method": method, "params": params}
    options: CallOptions = {}
    session._stamp(data, options)
    if on_progress is not None:
        options["on_progress"] = on_progress
    return await session._dispatcher.send_raw_request(method, data["params"], options)


JsonObject = dict[str, Any]
"""A JSON-RPC message, or the params or result of one, as decoded JSON."""
Streams = tuple[Inbox, Outbox]
Transport = AbstractAsyncContextManager[Streams]

_FULL = 256
"""Number of messages in a buffered inbox at which its source is asked to pause."""
_REMEMBERED_IDS = 1000
_YIELD_EVERY = 64
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
"""A string or a bracket. An unterminated string extends to the end, so that it is not scanned again from each of its
characters."""
_ID = re.compile(rb'\s*:\s*(?:(\d{1,18})|"([\w.:-]{1,100})")\s*[,}]')
_adapter = types.jsonrpc_message_adapter


def parse_message(line: bytes | str) -> SessionMessage | None:
    """The message in a line; None if it is not a message, since servers also print other output.

    An unreadable answer becomes an error response with its id, so that its call does not wait forever.
    """
    try:
        return SessionMessage(_adapter.validate_json(line, by_name=False))
    except ValueError:
        return _salvage(line)


def _salvage(line: bytes | str) -> SessionMessage | None:
    """The message in a line that does not validate: repaired, or an error response with its id, or None."""
    try:
        value = json_text.decode(line)
    except ValueError:
        request_id = id_of_answer(line)
        return None if request_id is None else _unreadable_answer(request_id)
    try:
        return SessionMessage(_adapter.validate_python(value, by_name=False))
    except ValueError:
        is_answer = isinstance(value, dict) and "method" not in value and ("result" in value or "error" in value)
        has_id = is_answer and type(value.get("id")) in (int, str)
        return _unreadable_answer(value["id"] if has_id else None) if is_answer else None


def _unreadable_answer(request_id: types.RequestId | None) -> SessionMessage:
    error = types.ErrorData(code=types.INTERNAL_ERROR, message="The server's answer violates the protocol.")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


def id_of_answer(line: bytes | str) -> types.RequestId | None:
    """The id of an answer that is nested too deeply to be parsed; found by counting brackets in one pass."""
    data = line.encode("utf-8", "replace") if isinstance(line, str) else line
    if not data.lstrip().startswith(b"{") or not data.rstrip().endswith(b"}"):
        return None
    depth, found, is_answer = 0, None, False
    for token in _TOKEN.finditer(data):
        text = token.group()
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and text == b'"id"' and (value := _ID.match(data, token.end())):
            found = int(value[1]) if value[1] else value[2].decode()
        elif depth == 1 and text in (b'"result"', b'"error"'):
            is_answer = True
        elif depth == 1 and text == b'"method"':
            return None
    return found if is_answer and depth == 0 else None


def render_message(message: SessionMessage) -> str:
    """The message as one line of JSON. Raises ValueError for values that JSON cannot express; a WritableOutbox has
    replaced those before."""
    return message.message.model_dump_json(by_alias=True, exclude_unset=True)


def writable_params(params: dict[str, Any]) -> dict[str, Any]:
    """The params or result with values that JSON cannot express replaced. Raises MCPError if they are nested too
    deeply."""
    try:
        to_json(params)
        return params
    except ValueError:
        pass
    try:
        mended: dict[str, Any] = json_text.sound(params)
    except ValueError as error:
        raise MCPError(types.INVALID_PARAMS, f"The message cannot be written as JSON: {error}") from None
    return mended


def _writable_message(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    match message:
        case types.JSONRPCResponse():
            return message.model_copy(update={"result": writable_params(message.result)})
        case types.JSONRPCError(error=error):
            changes = writable_params({"message": error.message, "data": error.data})
            return message.model_copy(update={"error": error.model_copy(update=changes)})
        case _ if message.params is not None:
            return message.model_copy(update={"params": writable_params(message.params)})
    return message


@dataclass(slots=True)
class TransportFailure:
    """Why a transport failed or ended, if known; filled in by the transport, read by the connection."""

    reason: str | None = None
    needs_auth: str | None = None
    """Why a person has to sign in; None if no sign-in is needed."""
    refused_token: str | None = None
    """The token that was rejected, if there was one."""
    has_read_input: Callable[[], bool] = lambda: True
    """Whether the server has read everything that was sent; until then, a missing answer means nothing."""
    grace: float = 2.0
    """Seconds that a program gets to exit after its input is closed, and again after SIGTERM; set by the connection."""


class _ClosableStream:
    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Does nothing unless a subclass overrides it."""


class _ReadableStream(_ClosableStream):
    async def receive(self) -> SessionMessage | Exception:
        raise NotImplementedError

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class BufferedInbox(_ReadableStream):
    """Messages from a callback for one reader.

    `pause_source` is called with True when `_FULL` messages wait, and with False once all of them are taken.
    """

    def __init__(self, pause_source: Callable[[bool], None]) -> None:
        self._pause_source = pause_source
        self._paused = False
        self._messages: deque[SessionMessage] = deque()
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._taken = 0

    def put(self, message: SessionMessage) -> None:
        self._messages.append(message)
        if len(self._messages) >= _FULL and not self._paused:
            self._paused = True
            self._pause_source(True)
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    async def receive(self) -> SessionMessage | Exception:
        self._taken += 1
        if self._taken % _YIELD_EVERY == 0:
            await asyncio.sleep(0)  # a server that never stops sending must not starve other tasks
        while not self._messages:
            if self._ended:
                raise anyio.EndOfStream
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message = self._messages.popleft()
        if self._paused and not self._messages:
            self._paused = False
            self._pause_source(False)
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class CallbackInbox(_ReadableStream):
    """Messages returned by an awaited function, which raises EndOfStream at the end."""

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive

    async def receive(self) -> SessionMessage | Exception:
        message: SessionMessage = await self._receive()
        return message


class CallbackOutbox(_ClosableStream):
    """Sends each message by awaiting a function, without a task in between."""

    def __init__(self, send: Callable[[SessionMessage], Any]) -> None:
        self._send = send

    async def send(self, item: SessionMessage, /) -> None:
        await self._send(item)


class RequestsInFlight:
    """The ids of the requests on one connection, to detect answers with wrong ids.

    A server that answers with a wrong id, or none, leaves its caller waiting. Once there are as many such answers as
    unanswered requests, all of these requests get an error. Answers to requests that were cancelled or already answered
    are normal, and are ignored.
    """

    def __init__(self) -> None:
        self._waiting: dict[types.RequestId, None] = {}
        self._standing: set[types.RequestId] = set()
        """Requests that are not answered before the connection ends."""
        self._over: dict[types.RequestId, None] = {}
        self._strays: list[types.ErrorData] = []

    def sent(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            if message.method == "subscriptions/listen":
                self._standing.add(message.id)
            else:
                self._waiting[message.id] = None
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._end((message.params or {}).get("requestId"))

    def received(self, message: types.JSONRPCMessage) -> list[SessionMessage]:
        """The messages to forward for a received one: the message itself, nothing, or errors for requests that would
        wait forever."""
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            return [SessionMessage(message)]
        if message.id in self._waiting or message.id in self._standing:
            self._end(message.id)
            return [SessionMessage(message), *self._overdue()]
        # Some servers return the id as a string.
        if isinstance(message.id, str) and message.id.isdecimal() and int(message.id) in self._waiting:
            return self.received(message.model_copy(update={"id": int(message.id)}))
        if message.id is None or message.id not in self._over:
            self._strays.append(_error_of(message))
        return self._overdue()

    def _end(self, id_: Any) -> None:
        if isinstance(id_, int | str) and id_ in self._waiting:
            del self._waiting[id_]
            self._over[id_] = None
            if len(self._over) > _REMEMBERED_IDS:
                del self._over[next(iter(self._over))]

    def _overdue(self) -> list[SessionMessage]:
        if not self._waiting or len(self._strays) < len(self._waiting):
            return []
        errors = [types.JSONRPCError(jsonrpc="2.0", id=id_, error=self._strays.pop()) for id_ in self._waiting]
        self._strays.clear()
        for error in errors:
            self._end(error.id)
        return [SessionMessage(error) for error in errors]


def _error_of(message: types.JSONRPCResponse | types.JSONRPCError) -> types.ErrorData:
    if isinstance(message, types.JSONRPCError) and message.id is None:
        return message.error
    return types.ErrorData(code=types.INTERNAL_ERROR, message="The server answered a request that was never sent.")


class WritableOutbox(_ClosableStream):
    """Makes each message writable before it reaches the transport: some transports end the connection, with every call
    on it, on a message that they cannot write. A message that cannot be repaired raises MCPError for its sender."""

    def __init__(self, outbox: Outbox, requests: RequestsInFlight) -> None:
        self._outbox = outbox
        self._requests = requests

    async def send(self, item: SessionMessage, /) -> None:
        message = _writable_message(item.message)
        # Recorded before it is sent: the answer may arrive before `send` returns.
        self._requests.sent(message)
        await self._outbox.send(SessionMessage(message, metadata=item.metadata))

    async def aclose(self) -> None:
        await self._outbox.aclose()


class ObservedInbox(_ReadableStream):
    """An inbox that reports notifications, the first answer, and its end."""

    def __init__(
        self,
        inbox: Inbox,
        requests: RequestsInFlight,
        on_notification: Callable[[str, dict[str, Any]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._inbox = inbox
        self._requests = requests
        self._ready: deque[SessionMessage] = deque()
        self._on_notification = on_notification
        self._on_end = on_end
        self.has_answered = False
        """Whether any request was answered."""

    @property
    def last_context(self) -> Context | None:
        """The context of the request that a message belongs to, if the transport keeps it."""
        return getattr(self._inbox, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        while not self._ready:
            try:
                item = await self._inbox.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                self._on_end()
                raise
            if isinstance(item, ValidationError):  # a transport of the SDK passes on unreadable messages
                text = item.errors(include_url=False)[0].get("input")
                item = (_salvage(text) if isinstance(text, str | bytes) else None) or item
            if not isinstance(item, SessionMessage):
                return item
            self._take(item)
        return self._ready.popleft()

    def _take(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self.has_answered = True
            passed = self._requests.received(message)
            self._ready.extend(SessionMessage(each.message, metadata=item.metadata) for each in passed)
            return
        if isinstance(message, types.JSONRPCNotification):
            self._on_notification(message.method, message.params or {})
        self._ready.append(item)

    async def aclose(self) -> None:
        await self._inbox.aclose()
