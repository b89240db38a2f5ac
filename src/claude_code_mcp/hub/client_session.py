"""One established connection to a server: requests of any kind, cached lists, and what the server said of itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from ..model.question import AskPerson
from .config_entry import ServerConfig
from .elicitation import ANONYMOUS, Caller, CallersInFlight
from .streams import JsonObject, writable_params
from .trimming import trim_description, trim_tools

LISTS = ("tools", "resources", "templates", "prompts")
LIST_CHANGES = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}
"""From a notification to the lists that it makes stale."""

_MAX_PAGES = 100
_UNCHANGED: TypeAdapter[Any] = TypeAdapter(Any)
_HOP_PREFIX = "io.modelcontextprotocol/"
"""Keys of `_meta` with this prefix are about one connection, and are not passed on to the next."""

_FetchPage = Callable[[types.PaginatedRequestParams], Awaitable[tuple[list[Any], str | None]]]


class _AnyRequest(types.Request[dict[str, Any] | None, str]):
    """A request of any method."""


class UpstreamClient:
    """Made by the task that owns the connection, and used by any task.

    Lists are fetched once and kept until they are forgotten; callers that ask at the same time share one answer.
    """

    def __init__(self, session: ClientSession, config: ServerConfig, callers: CallersInFlight) -> None:
        self._session = session
        self._config = config
        self._callers = callers
        self._lists: dict[str, list[Any]] = {}
        self._fetching = {kind: asyncio.Lock() for kind in LISTS}
        self._version = dict.fromkeys(self._fetching, 0)
        self.capabilities = session.server_capabilities or types.ServerCapabilities()
        self.server_info = session.server_info
        self.protocol_version = session.protocol_version or ""
        self.is_modern = self.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.instructions = trim_description(session.instructions)

    @property
    def known_tools(self) -> int | None:
        """How many tools there are; None while they have not been listed."""
        tools = self._lists.get("tools")
        return None if tools is None else len(tools)

    async def request(
        self,
        method: str,
        params: JsonObject,
        on_progress: ProgressFnT | None = None,
        ask: AskPerson | None = None,
        caller: Caller = ANONYMOUS,
    ) -> JsonObject:
        """Sends a request of any method and returns its result unchanged; questions meanwhile go to `ask`.

        Raises MCPError with what the server answered, or for params that cannot be written, and MovedElsewhere where
        the request is to be sent again on a connection of the caller's own.
        """
        request = _AnyRequest(method=method, params=_for_next_hop(writable_params(params)))
        with self._callers.during_call(caller, ask):
            result: JsonObject = await self._session.send_request(request, _UNCHANGED, progress_callback=on_progress)
        return result

    async def notify(self, method: str, params: JsonObject) -> None:
        """Sends a notification of any method."""
        notification = types.Notification[dict[str, Any], str](method=method, params=writable_params(params))
        await self._session.send_notification(notification)  # type: ignore[arg-type] # any method may go out

    def forget_lists(self, *kinds: str) -> list[str]:
        """Forgets lists that are stale, those being fetched too; returns which of them were known to anybody."""
        known = [kind for kind in kinds if kind in self._lists or self._fetching[kind].locked()]
        for kind in kinds:
            self._lists.pop(kind, None)
            self._version[kind] += 1
        return known

    async def tools(self) -> list[types.Tool]:
        """The tools that the configuration lets through."""
        if self.capabilities.tools is None:
            return []
        return await self._list("tools", self._fetch_tools)

    async def _fetch_tools(self, params: types.PaginatedRequestParams) -> tuple[list[Any], str | None]:
        page = await self._session.list_tools(params=params)
        return trim_tools(page.tools, self._config), page.next_cursor

    async def resources(self) -> list[types.Resource]:
        if self.capabilities.resources is None:
            return []
        return await self._list("resources", self._fetch_resources)

    async def _fetch_resources(self, params: types.PaginatedRequestParams) -> tuple[list[Any], str | None]:
        page = await self._session.list_resources(params=params)
        return list(page.resources), page.next_cursor

    async def templates(self) -> list[types.ResourceTemplate]:
        if self.capabilities.resources is None:
            return []
        try:
            return await self._list("templates", self._fetch_templates)
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND:
                return []
            raise

    async def _fetch_templates(self, params: types.PaginatedRequestParams) -> tuple[list[Any], str | None]:
        page = await self._session.list_resource_templates(params=params)
        return list(page.resource_templates), page.next_cursor

    async def prompts(self) -> list[types.Prompt]:
        if self.capabilities.prompts is None:
            return []
        return await self._list("prompts", self._fetch_prompts)

    async def _fetch_prompts(self, params: types.PaginatedRequestParams) -> tuple[list[Any], str | None]:
        page = await self._session.list_prompts(params=params)
        return list(page.prompts), page.next_cursor

    async def _list(self, kind: str, fetch: _FetchPage) -> list[Any]:
        async with self._fetching[kind]:  # callers at the same time share one answer
            if kind in self._lists:
                return self._lists[kind]
            version = self._version[kind]
            items: list[Any] = []
            cursor = None
            for _ in range(_MAX_PAGES):
                page, cursor = await fetch(types.PaginatedRequestParams(cursor=cursor))
                items += page
                if cursor is None:
                    break
            if self._version[kind] == version:  # otherwise it was forgotten while it was fetched
                self._lists[kind] = items
            return items


def _for_next_hop(params: JsonObject) -> JsonObject:
    """The params without what `_meta` says about the connection that they came on."""
    meta = params.get("_meta")
    if not meta:
        return params
    kept = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(_HOP_PREFIX)}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest
