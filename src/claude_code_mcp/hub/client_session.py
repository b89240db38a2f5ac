"""One living connection to a server: requests, lists, and what the server said of itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from pydantic import TypeAdapter

from .config_entry import ServerConfig
from .elicitation import Ask, Askers
from .streams import sound_params
from .trimming import cut_description, present_tools

Message = dict[str, Any]

_MOST_PAGES = 100
_AS_IT_IS: TypeAdapter[Any] = TypeAdapter(Any)
_OF_A_HOP = "io.modelcontextprotocol/"
"""What `_meta` says about one connection under this prefix says nothing about the next."""

KINDS = ("tools", "resources", "templates", "prompts")
CHANGES = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}
"""The notifications that make lists stale."""


class _AnyRequest(types.Request[dict[str, Any] | None, str]):
    """A request that is passed on as it came."""


class UpstreamClient:
    """Made by the owner of the connection; used by any task."""

    def __init__(self, session: ClientSession, config: ServerConfig, askers: Askers) -> None:
        self._session = session
        self._config = config
        self._askers = askers
        self._lists: dict[str, list[Any]] = {}
        self._fetching = {kind: asyncio.Lock() for kind in KINDS}
        self._version = dict.fromkeys(self._fetching, 0)
        self.capabilities = session.server_capabilities or types.ServerCapabilities()
        self.server_info = session.server_info
        self.protocol_version = session.protocol_version or ""
        self.instructions = cut_description(session.instructions)

    @property
    def known_tools(self) -> int | None:
        """How many tools there are, if they have been asked for."""
        tools = self._lists.get("tools")
        return None if tools is None else len(tools)

    async def request(
        self, method: str, params: Message, on_progress: ProgressFnT | None = None, ask: Ask | None = None
    ) -> Message:
        """Sends any request; the result is what came. Raises MCPError."""
        request = _AnyRequest(method=method, params=_for_this_hop(sound_params(params)))
        with self._askers.during_call(ask):
            result: Message = await self._session.send_request(request, _AS_IT_IS, progress_callback=on_progress)
        return result

    async def notify(self, method: str, params: Message) -> None:
        """Sends any notification."""
        notification = types.Notification[dict[str, Any], str](method=method, params=sound_params(params))
        await self._session.send_notification(notification)  # type: ignore[arg-type] # any method may go out

    def drop(self, *kinds: str) -> list[str]:
        """Forgets lists that are no longer true, also those that are on their way; tells which somebody knows."""
        known = [kind for kind in kinds if kind in self._lists or self._fetching[kind].locked()]
        for kind in kinds:
            self._lists.pop(kind, None)
            self._version[kind] += 1
        return known

    async def tools(self) -> list[types.Tool]:
        """The tools that may be used."""
        if self.capabilities.tools is None:
            return []
        return await self._list("tools", self._fetch_tools)

    async def _fetch_tools(self, params: types.PaginatedRequestParams) -> tuple[list[Any], str | None]:
        page = await self._session.list_tools(params=params)
        return present_tools(page.tools, self._config), page.next_cursor

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

    async def _list(
        self, kind: str, fetch: Callable[[types.PaginatedRequestParams], Awaitable[tuple[list[Any], str | None]]]
    ) -> list[Any]:
        async with self._fetching[kind]:  # those who ask at the same time share one answer
            if kind in self._lists:
                return self._lists[kind]
            version = self._version[kind]
            items: list[Any] = []
            cursor = None
            for _ in range(_MOST_PAGES):
                page, cursor = await fetch(types.PaginatedRequestParams(cursor=cursor))
                items += page
                if cursor is None:
                    break
            if self._version[kind] == version:
                self._lists[kind] = items
            return items


def _for_this_hop(params: Message) -> Message:
    meta = params.get("_meta")
    if not meta:
        return params
    kept = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(_OF_A_HOP)}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest
