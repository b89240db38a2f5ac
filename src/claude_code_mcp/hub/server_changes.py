"""What a server is asked to tell of: changes of its lists and of the resources that callers follow, and what it logs.

A server with a handshake announces changed lists by itself, and is asked for each resource. One of 2026-07-28 tells
only on a stream that it is asked for (`subscriptions/listen`), which it may end at any time: it is asked again then,
with growing pauses, and everything that was listed before counts as stale.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost

from .client_session import LISTS, UpstreamClient

_LISTEN_TIMEOUT = 5.0
"""Seconds that somebody who follows a resource waits for the server to listen to it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_LASTING = 10.0
"""Seconds after which a stream counts as one that worked: the pauses begin anew when it has ended."""
_REFUSALS = frozenset({types.METHOD_NOT_FOUND, types.INVALID_REQUEST, types.INVALID_PARAMS})
"""With these a server says that it has no such stream, and would say so again."""


class ServerChanges:
    """What is followed at one server, on the connection that there is and on each that comes after it."""

    def __init__(self, forget_lists: Callable[..., None], log_level: Callable[[], str | None]) -> None:
        """`forget_lists` is called with the lists that may have changed with nobody told; `log_level` says from which
        level on a server is to log, if anybody has said that."""
        self._forget_lists = forget_lists
        self._log_level = log_level
        self._followed: set[str] = set()
        self._follow_changed = asyncio.Event()
        self._listening = anyio.CancelScope()
        self._listened_to: set[str] = set()
        """The resources whose changes the open stream tells of."""
        self._stream_changed = asyncio.Event()
        """Of the next time that a stream is opened or ends."""

    async def follow(self, client: UpstreamClient, uri: str) -> None:
        """Asks for changes of a resource. Returns when the server has agreed, or after `_LISTEN_TIMEOUT` seconds where
        it is still to be asked on a stream. Raises MCPError where it refuses."""
        if not client.is_modern:
            await client.request("resources/subscribe", {"uri": uri})
            # Only what the server has taken: every new connection is asked for it again.
            self._followed.add(uri)
            return
        if uri not in self._followed:
            # Before the stream is ended: the next one is opened with what is in the set.
            self._followed.add(uri)
            self._follow_changed.set()
            self._listening.cancel()
        with anyio.move_on_after(_LISTEN_TIMEOUT):
            while uri not in self._listened_to:
                await self._stream_changed.wait()

    async def follow_again(self, client: UpstreamClient) -> None:
        """Asks a server with a handshake for the changes that an earlier connection was asked for, and to log."""
        level = self._log_level()
        if level is not None:
            await client.set_log_level(level)
        for uri in sorted(self._followed):
            # One that is refused now must not keep the others from being followed.
            with suppress(MCPError):
                await client.request("resources/subscribe", {"uri": uri})

    async def listen(self, client: Client) -> None:
        """Keeps a stream open to a server without a handshake; what comes on it arrives as notifications. A server that
        has none is asked again only when there is something else to ask for."""
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
                continue  # ended by us, to be asked for more
            if anyio.current_time() - opened > _LASTING:
                pause = _FIRST_PAUSE
            with anyio.move_on_after(pause):
                await self._follow_changed.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _read_stream(self, client: Client) -> None:
        """Opens one stream and reads it to its end; waits where there is nothing to ask for."""
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
            self._forget_lists(*LISTS)  # changes from before the stream were announced to nobody
            async for _ in subscription:
                pass

    def _now_listening_to(self, uris: set[str]) -> None:
        self._listened_to = uris
        changed, self._stream_changed = self._stream_changed, asyncio.Event()
        changed.set()
