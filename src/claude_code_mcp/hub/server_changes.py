"""The changes that a server announces: of its lists, and of the resources that callers follow.

A server with a handshake announces changed lists unsolicited, and resources after a subscription. One of 2026-07-28
announces changes only on a requested stream (`subscriptions/listen`), which it may end at any time: the stream is
requested again, with growing pauses, and all earlier lists count as stale.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost

from .client_session import LISTS, UpstreamClient

LIST_CHANGES = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}
"""From a notification to the lists that it makes stale."""
_LISTEN_TIMEOUT = 5.0
"""Seconds that a follower of a resource waits for the server's subscription."""
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 60.0
_LASTING = 10.0
"""Seconds after which a stream counts as successful, which resets the pauses."""
_REFUSALS = frozenset({types.METHOD_NOT_FOUND, types.INVALID_REQUEST, types.INVALID_PARAMS})
"""The errors of a server that does not support such streams."""


class ServerChanges:
    """The subscriptions at one server, on the current connection and all later ones."""

    def __init__(self, forget_lists: Callable[..., None], log_level: Callable[[], str | None]) -> None:
        """`forget_lists` is called with lists that may have changed without notice; `log_level` returns the requested
        log level, if any."""
        self._forget_lists = forget_lists
        self._log_level = log_level
        self._followed: set[str] = set()
        self._follow_changed = asyncio.Event()
        self._listening = anyio.CancelScope()
        self._listened_to: set[str] = set()
        """The resources whose changes the open stream announces."""
        self._stream_changed = asyncio.Event()
        """Set the next time that a stream is opened or ends."""

    async def follow(self, client: UpstreamClient, uri: str) -> None:
        """Subscribe to a resource. Returns when the server has confirmed, or after `_LISTEN_TIMEOUT` seconds if a
        stream is still pending. Raises MCPError if it refuses."""
        if not client.is_modern:
            await client.request("resources/subscribe", {"uri": uri})
            # Only confirmed subscriptions: every new connection repeats them.
            self._followed.add(uri)
            return
        if uri not in self._followed:
            # Before the stream is ended: the next stream is opened with the contents of the set.
            self._followed.add(uri)
            self._follow_changed.set()
            self._listening.cancel()
        with anyio.move_on_after(_LISTEN_TIMEOUT):
            while uri not in self._listened_to:
                await self._stream_changed.wait()

    async def follow_again(self, client: UpstreamClient) -> None:
        """Repeat the subscriptions and the log level of earlier connections, at a server with a handshake."""
        level = self._log_level()
        if level is not None:
            await client.set_log_level(level)
        for uri in sorted(self._followed):
            # A refusal must not prevent the other subscriptions.
            with suppress(MCPError):
                await client.request("resources/subscribe", {"uri": uri})

    async def listen(self, client: Client) -> None:
        """Keep a stream open to a server without a handshake; its messages arrive as notifications. A server without
        streams is asked again only when the subscriptions change."""
        pause = _FIRST_PAUSE
        while True:
            # Before the set is read: an address that is added from here on sets it again.
            self._follow_changed.clear()
            opened = anyio.current_time()
            try:
                with anyio.CancelScope() as self._listening, suppress(SubscriptionLost):
                    await self._read_stream(client)
            except MCPError as error:
                if error.code in _REFUSALS:
                    await self._follow_changed.wait()
            finally:
                self._now_listening_to(set())
            if self._follow_changed.is_set():
                continue  # we ended it to request more resources
            if anyio.current_time() - opened > _LASTING:
                pause = _FIRST_PAUSE
            with anyio.move_on_after(pause):
                await self._follow_changed.wait()
            pause = min(2 * pause, _MAX_PAUSE)

    async def _read_stream(self, client: Client) -> None:
        """Open one stream and read it to its end; wait while there is nothing to subscribe to."""
        capabilities = client.server_capabilities
        tools, prompts, resources = (
            bool(offered and offered.list_changed)
            for offered in (capabilities.tools, capabilities.prompts, capabilities.resources)
        )
        if not (tools or prompts or resources or self._followed):
            await self._follow_changed.wait()
            return
        asked_for = set(self._followed)
        async with client.listen(
            tools_list_changed=tools,
            prompts_list_changed=prompts,
            resources_list_changed=resources,
            resource_subscriptions=sorted(asked_for),
        ) as subscription:
            self._now_listening_to(asked_for)
            self._forget_lists(*LISTS)  # changes before the stream were not announced
            async for _ in subscription:
                pass

    def _now_listening_to(self, uris: set[str]) -> None:
        self._listened_to = uris
        changed, self._stream_changed = self._stream_changed, asyncio.Event()
        changed.set()
