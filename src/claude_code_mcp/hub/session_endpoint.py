"""One server of the hub for one session: JSON-RPC messages in, JSON-RPC messages out.

Speaks the protocol with a handshake (2025-11-25 and before) to its client, whatever version the server speaks. An idle
endpoint has no task and no stream. While the server is unavailable, the client sees a server without tools and is
notified when that changes: an unavailable server never prevents a session from starting. Whether a client may call a
tool is decided before its message arrives here.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import BaseModel, ValidationError

from ..core.errors import ClaudeCodeError, UpstreamUnavailable
from ..core.model.question import AskPerson
from .client_session import CallerSide, UpstreamClient
from .server_memory import Offer
from .server_pool import Route
from .streams import JsonObject

log = logging.getLogger(__name__)

Push = Callable[[JsonObject], None]
"""Sends the client a message that is not an answer: a notification, or a request from the server."""

CONNECT_TIMEOUT = 5.0
"""Seconds that a client waits for a server to connect before it sees a server without tools."""
_HEAD_START = 1.0
"""The same timeout if the server's offer is known from an earlier connection: the session starts with that offer, and
only calls wait for the connection."""
_NEW_TOOLS = 1.0
"""Seconds that the result of a call is held back until the client has listed the tools that changed before it."""
_UNAVAILABLE = -32000
_MAY_WANT_INPUT = frozenset({"tools/call", "prompts/get", "resources/read"})
_FORWARDED = _MAY_WANT_INPUT | {"completion/complete"}
_ACKNOWLEDGED = frozenset({"ping", "logging/setLevel"})
_LISTS = {
    "tools/list": ("tools", "tools"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "templates"),
    "prompts/list": ("prompts", "prompts"),
}
"""Maps a method to the key of its result and the server's list."""


class SessionEndpoint:
    """`answer` takes every message of the client; `push` receives the messages that are not answers."""

    def __init__(
        self,
        route: Route,
        push: Push,
        *,
        ask: AskPerson | None = None,
        timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        self._route = route
        self._push = push
        self._ask = ask
        self._timeout = timeout
        self._wait_timed_out = False
        self._reads_tools = False
        self._tool_changes = 0
        self._tool_changes_read = 0
        """`_tool_changes` counts the announced changes of tools that the client had listed; this one counts those
        after which it has listed them again."""
        self._tools_read = anyio.Event()
        """Set the next time that the client lists the tools."""
        self._in_flight: dict[str | int, anyio.CancelScope] = {}
        self._questions: dict[str, _ClientQuestion] = {}
        self._ids = itertools.count(1)
        self._client_can_ask = False
        self._closed = False

    def retire(self) -> None:
        """Stop listening to the server; calls in flight end when the server's connection ends them."""
        if not self._closed:
            self._closed = True
            self._route.close()

    def take_over(self) -> None:
        """Continue for a client that had its handshake with an earlier endpoint, and have it fetch all lists again."""
        self._route.watch(self._on_change)
        for kind in ("tools", "resources", "prompts"):
            self._on_change(kind)

    def close(self) -> None:
        """Stop listening to the server and cancel the calls in flight."""
        self.retire()
        for scope in self._in_flight.values():
            scope.cancel()

    async def answer(self, message: JsonObject) -> JsonObject | None:
        """The answer to a message; None for a notification, an answer or a cancelled request."""
        method, id_, params = message.get("method"), message.get("id"), message.get("params") or {}
        if not isinstance(method, str):
            self._take_answer(message)
        elif id_ is None:
            cancelled = params.get("requestId") if method == "notifications/cancelled" else None
            if isinstance(cancelled, int | str) and cancelled in self._in_flight:
                self._in_flight[cancelled].cancel()
        else:
            with anyio.CancelScope() as scope:
                self._in_flight[id_] = scope
                try:
                    return await self._respond_in_order(id_, method, params)
                finally:
                    self._in_flight.pop(id_, None)
        return None

    async def _respond_in_order(self, id_: str | int, method: str, params: JsonObject) -> JsonObject:
        """Answer a request; hold the result of a call until the client has listed the tools that changed during it.

        Without the wait, the client could continue with the result, and its model's next request would lack the new
        tools. The wait is bounded by `_NEW_TOOLS`.
        """
        # Read before the answer: a change while the list is being fetched may be missing from it.
        changes = self._tool_changes
        try:
            response = {"jsonrpc": "2.0", "id": id_, "result": await self._result(method, params)}
        except MCPError as error:
            response = _error(id_, error.code, error.message, error.data)
        except ClaudeCodeError as error:
            response = _error(id_, _UNAVAILABLE, error.message, {"code": error.code, **error.data})
        except ValidationError:
            response = _error(id_, types.INTERNAL_ERROR, "The server's answer violates the protocol.")
        if method == "tools/list":
            self._reads_tools = True
            self._tool_changes_read = max(self._tool_changes_read, changes)
            read, self._tools_read = self._tools_read, anyio.Event()
            read.set()  # the waiting results are sent after this answer
        elif method == "tools/call" and "result" in response:
            # Changes announced after the result do not delay it.
            changes = self._tool_changes
            with anyio.move_on_after(_NEW_TOOLS) as waiting:
                while self._reads_tools and self._tool_changes_read < changes:
                    await self._tools_read.wait()
            if waiting.cancelled_caught:
                self._reads_tools = False  # until it lists them again
        return response

    # -- requests ---------------------------------------------------------------------------------------------

    async def _result(self, method: str, params: JsonObject) -> JsonObject:
        if method == "initialize":
            return await self._initialize(params)
        if method in _LISTS:
            key, kind = _LISTS[method]
            return {key: await self._list(kind)}
        if method in _ACKNOWLEDGED:
            return {}
        if method not in _FORWARDED:
            # Includes `server/discover`: after this error its caller falls back to the handshake.
            raise MCPError(types.METHOD_NOT_FOUND, f"Method not found: {method}")
        if method == "tools/call" and not self._route.allows(params.get("name")):
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.get('name')}")
        ask = self._ask or (self._ask_client if self._client_can_ask else None)
        side = CallerSide(self._progress_reporter(params), ask)
        if method not in _MAY_WANT_INPUT:
            return await self._route.request(method, params, side)
        result = await self._route.answered(method, params, side)
        result.pop("resultType", None)
        return result

    async def _initialize(self, params: JsonObject) -> JsonObject:
        version = params.get("protocolVersion")
        self._client_can_ask = (params.get("capabilities") or {}).get("elicitation") is not None
        # Before waiting for the connection: if it is made after the timeout, the client is notified.
        self._route.watch(self._on_change)
        offer = self._route.offer
        known: UpstreamClient | Offer | None
        known = await self._connected_soon() if offer is None else await self._connected_soon(_HEAD_START) or offer
        info = (known and known.server_info) or types.Implementation(name=self._route.name, version="0")
        result: JsonObject = {
            "protocolVersion": version if version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": _capabilities(known),
            "serverInfo": _dump(info),
        }
        if known is not None and known.instructions:
            result["instructions"] = known.instructions
        return result

    async def _connected_soon(self, timeout: float | None = None) -> UpstreamClient | None:
        """The connection, or None if there is none within the timeout. The attempt continues."""
        # After one timeout, later requests do not wait again: the client is notified when the server is connected.
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        with anyio.move_on_after(0 if self._wait_timed_out else seconds) as waiting:
            try:
                client = await self._route.connected()
                self._wait_timed_out = False
                return client
            except UpstreamUnavailable as error:
                log.info("%s", error.message)
        self._wait_timed_out = waiting.cancelled_caught
        return None

    async def _list(self, kind: str) -> list[JsonObject]:
        """A list of the server; while it is not connected, the list from its last connection."""
        client = await self._connected_soon()
        if client is not None:
            fetch: Callable[[], Awaitable[list[BaseModel]]] = getattr(client, kind)
            return [_dump(item) for item in await fetch()]
        return [_dump(item) for item in getattr(self._route.offer, kind, ())]

    def _progress_reporter(self, params: JsonObject) -> ProgressFnT | None:
        token = (params.get("_meta") or {}).get("progressToken")
        if token is None:
            return None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            values = {"progressToken": token, "progress": progress, "total": total, "message": message}
            self._notify("notifications/progress", {key: value for key, value in values.items() if value is not None})

        return report

    # -- notifications, and questions to the client ------------------------------------------------------------

    def _on_change(self, what: str) -> None:
        if what == "tools" and self._reads_tools:
            self._tool_changes += 1
        if what in {"tools", "resources", "prompts"}:
            self._notify(f"notifications/{what}/list_changed")

    def _notify(self, method: str, params: JsonObject | None = None) -> None:
        message: JsonObject = {"jsonrpc": "2.0", "method": method}
        self._push({**message, "params": params} if params is not None else message)

    async def _ask_client(self, params: JsonObject) -> JsonObject:
        """Ask the client itself, which declared in its handshake that it can ask a person."""
        id_ = f"hub-{next(self._ids)}"
        question = self._questions[id_] = _ClientQuestion()
        try:
            self._push({"jsonrpc": "2.0", "id": id_, "method": "elicitation/create", "params": params})
            await question.answered.wait()
            return question.answer
        except BaseException:
            # Tells the client that the answer is no longer needed.
            self._notify("notifications/cancelled", {"requestId": id_})
            raise
        finally:
            del self._questions[id_]

    def _take_answer(self, message: JsonObject) -> None:
        question = self._questions.get(str(message.get("id")))
        if question is not None:
            question.answer = message.get("result") or {"action": "cancel"}
            question.answered.set()


class _ClientQuestion:
    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: JsonObject = {"action": "cancel"}


def _capabilities(known: UpstreamClient | Offer | None) -> JsonObject:
    """The forwarded capabilities of the server; all lists while they are unknown."""
    if known is None:
        return {kind: {"listChanged": True} for kind in ("tools", "resources", "prompts")}
    offered = known.capabilities
    capabilities: JsonObject = {
        kind: {"listChanged": True} for kind in ("tools", "resources", "prompts") if getattr(offered, kind) is not None
    }
    if offered.completions is not None:
        capabilities["completions"] = {}
    if offered.experimental:
        capabilities["experimental"] = offered.experimental
    return capabilities


def _dump(model: BaseModel) -> JsonObject:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _error(id_: str | int, code: int, message: str, data: Any = None) -> JsonObject:
    error: JsonObject = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": id_, "error": error}
