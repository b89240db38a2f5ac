"""One server of the hub as one session meets it: JSON-RPC messages in, JSON-RPC messages out.

Speaks the protocol with a handshake (2025-11-25 and before) to its client, whichever the server behind it speaks. An
idle endpoint is a few fields: no task, no stream. While the server is away the client sees one with no tools, and
is told when that changes, so that a dead server never keeps a session from starting.
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

from ..errors import ClaudeCodeError, UpstreamUnavailable
from .client_session import UpstreamClient
from .dependencies import Permit
from .elicitation import Ask, with_input
from .trimming import cut_result
from .upstream import Upstream

log = logging.getLogger(__name__)

Message = dict[str, Any]
Push = Callable[[Message], None]
"""Sends a message to the client that is not an answer: a notification, or a request of the server's."""

PATIENCE = 5.0
"""Seconds that a client waits for a server that is not there yet, before it sees one with no tools."""
_UNAVAILABLE = -32000
_WITH_INPUT = frozenset({"tools/call", "prompts/get", "resources/read"})
_PASSED_ON = _WITH_INPUT | {"completion/complete"}
_NOTHING_TO_DO = frozenset({"ping", "logging/setLevel"})
_LISTS = {
    "tools/list": ("tools", "tools"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "templates"),
    "prompts/list": ("prompts", "prompts"),
}
"""From a method to the key of its result and the list of the server."""


class SessionEndpoint:
    """`answer` takes every message of the client; `push` gets what the client did not ask for."""

    def __init__(
        self,
        upstream: Upstream,
        push: Push,
        *,
        permit: Permit,
        caller: str = "",
        ask: Ask | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._upstream = upstream
        self._push = push
        self._permit = permit
        self._caller = caller
        self._ask = ask
        self._patience = patience
        self._waited = False
        self._in_flight: dict[str | int, anyio.CancelScope] = {}
        self._questions: dict[str, _Question] = {}
        self._ids = itertools.count(1)
        self._asks_itself = False
        self._unwatch: Callable[[], None] | None = None

    def close(self) -> None:
        """Stops listening to the server; calls in flight are cancelled."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        for scope in self._in_flight.values():
            scope.cancel()

    async def answer(self, message: Message) -> Message | None:
        """The answer to a message; None where it wants none, or is cancelled before there is one."""
        method, id_, params = message.get("method"), message.get("id"), message.get("params") or {}
        if not isinstance(method, str):
            self._take_answer(message)
        elif id_ is None:
            self._take_notification(method, params)
        else:
            with anyio.CancelScope() as scope:
                self._in_flight[id_] = scope
                try:
                    return await self._respond(id_, method, params)
                finally:
                    self._in_flight.pop(id_, None)
        return None

    async def _respond(self, id_: str | int, method: str, params: Message) -> Message:
        try:
            return {"jsonrpc": "2.0", "id": id_, "result": await self._result(method, params)}
        except MCPError as error:
            return _error(id_, error.code, error.message, error.data)
        except ClaudeCodeError as error:
            return _error(id_, _UNAVAILABLE, error.message, {"code": error.code, **error.data})
        except ValidationError:
            return _error(id_, types.INTERNAL_ERROR, "The server's answer does not follow the protocol.")

    # -- requests ---------------------------------------------------------------------------------------------

    async def _result(self, method: str, params: Message) -> Message:
        if method == "initialize":
            return await self._initialize(params)
        if method in _LISTS:
            key, kind = _LISTS[method]
            return {key: await self._list(kind)}
        if method in _PASSED_ON:
            return await self._pass_on(method, params)
        if method in _NOTHING_TO_DO:
            return {}
        # `server/discover` too: its caller then begins with the handshake.
        raise MCPError(types.METHOD_NOT_FOUND, f"Method not found: {method}")

    async def _initialize(self, params: Message) -> Message:
        asked = params.get("protocolVersion")
        self._asks_itself = (params.get("capabilities") or {}).get("elicitation") is not None
        if self._unwatch is None:
            self._unwatch = self._upstream.watch(self._changed)
        link = await self._link_soon()
        info = (link and link.server_info) or types.Implementation(name=self._upstream.name, version="0")
        result: Message = {
            "protocolVersion": asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": _capabilities(link),
            "serverInfo": _dump(info),
        }
        if link is not None and link.instructions:
            result["instructions"] = link.instructions
        return result

    async def _link_soon(self) -> UpstreamClient | None:
        # Who has waited in vain does not wait again with each request: it is told when the server is there.
        with anyio.move_on_after(0 if self._waited else self._patience) as waiting:
            try:
                link = await self._upstream.connected()
                self._waited = False
                return link
            except UpstreamUnavailable as error:
                log.info("%s", error.message)
        self._waited = waiting.cancelled_caught
        return None

    async def _list(self, kind: str) -> list[Message]:
        link = await self._link_soon()
        if link is None:
            return []
        fetch: Callable[[], Awaitable[list[BaseModel]]] = getattr(link, kind)
        return [_dump(item) for item in await fetch()]

    async def _pass_on(self, method: str, params: Message) -> Message:
        is_call = method == "tools/call"
        if is_call:
            await self._check(params)
        ask = self._ask or (self._ask_client if self._asks_itself else None)
        progress = self._progress(params)

        async def send(more: Message) -> Message:
            return await self._upstream.request(method, {**params, **more}, progress, ask)

        result = await (with_input(send, ask or _nobody) if method in _WITH_INPUT else send({}))
        result.pop("resultType", None)
        return cut_result(result) if is_call else result

    async def _check(self, params: Message) -> None:
        tool = params.get("name")
        if not isinstance(tool, str) or not self._upstream.server.config.allows(tool):
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {tool}")
        await self._permit(self._caller, self._upstream.name, tool, params.get("arguments") or {})

    def _progress(self, params: Message) -> ProgressFnT | None:
        token = (params.get("_meta") or {}).get("progressToken")
        if token is None:
            return None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            told = {"progressToken": token, "progress": progress, "total": total, "message": message}
            self._notify("notifications/progress", {key: value for key, value in told.items() if value is not None})

        return report

    # -- what is not asked for --------------------------------------------------------------------------------

    def _take_notification(self, method: str, params: Message) -> None:
        called_off = params.get("requestId") if method == "notifications/cancelled" else None
        scope = self._in_flight.get(called_off) if isinstance(called_off, int | str) else None
        if scope is not None:
            scope.cancel()

    def _changed(self, what: str) -> None:
        if what in {"tools", "resources", "prompts"}:
            self._notify(f"notifications/{what}/list_changed")

    def _notify(self, method: str, params: Message | None = None) -> None:
        message: Message = {"jsonrpc": "2.0", "method": method}
        self._push({**message, "params": params} if params is not None else message)

    async def _ask_client(self, params: Message) -> Message:
        """Asks the client itself, which said that it has somebody to ask."""
        id_ = f"hub-{next(self._ids)}"
        question = self._questions[id_] = _Question()
        try:
            self._push({"jsonrpc": "2.0", "id": id_, "method": "elicitation/create", "params": params})
            await question.answered.wait()
            return question.answer
        except BaseException:
            self._notify("notifications/cancelled", {"requestId": id_})
            raise
        finally:
            del self._questions[id_]

    def _take_answer(self, message: Message) -> None:
        question = self._questions.get(str(message.get("id")))
        if question is not None:
            question.answer = message.get("result") or {"action": "cancel"}
            question.answered.set()


class _Question:
    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: Message = {"action": "cancel"}


async def _nobody(params: Message) -> Message:
    """There is nobody to ask."""
    return {"action": "cancel"}


def _capabilities(link: UpstreamClient | None) -> Message:
    """What the server can do, as far as it is passed on; all of it while that is not known."""
    if link is None:
        return {kind: {"listChanged": True} for kind in ("tools", "resources", "prompts")}
    offered = link.capabilities
    found: Message = {
        kind: {"listChanged": True} for kind in ("tools", "resources", "prompts") if getattr(offered, kind) is not None
    }
    if offered.completions is not None:
        found["completions"] = {}
    if offered.experimental:
        found["experimental"] = offered.experimental
    return found


def _dump(model: BaseModel) -> Message:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _error(id_: str | int, code: int, message: str, data: Any = None) -> Message:
    error: Message = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": id_, "error": error}
