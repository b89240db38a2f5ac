"""Announces changed lists and resources to clients, in both eras of the protocol, at most twice a second.

Clients with a handshake (2025) get notifications on their connection: about a list after they have first requested it,
about a resource after `resources/subscribe`. Clients of 2026-07-28 are notified on their `subscriptions/listen`
streams. Changes are not queued: a slow client gets one notification for many changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial

import anyio

from ..core.service import Service
from .dialogs import Dialogs
from .subscriptions import PROMPTS_CHANGED, RESOURCES_CHANGED, TOOLS_CHANGED, Subscriptions

_INTERVAL = 0.5
"""Seconds between two announcements of the same list or resource to one client."""
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)
LISTS = {"tools": TOOLS_CHANGED, "resources": RESOURCES_CHANGED, "prompts": PROMPTS_CHANGED}


class Changes:
    """All clients of a server, and the changes that each is notified of."""

    def __init__(
        self, service: Service, subscriptions: Subscriptions, connections: Callable[[], Iterable[Dialogs]]
    ) -> None:
        """`connections` are those that are open now."""
        self._service = service
        self._subscriptions = subscriptions
        self._connections = connections
        self._readers: dict[Dialogs, str] = {}
        """The connections that have asked for resources, with their principals."""
        self._followers: dict[str, set[Dialogs]] = {}
        self._pending: dict[Hashable, bool] = {}
        """The lists and resources being announced, and whether each has changed since its announcement began."""

    def reads(self, dialogs: Dialogs, principal: str) -> None:
        """Notify this connection from now on when the list of the principal's sessions has changed."""
        self._readers[dialogs] = principal

    def follow(self, uri: str, dialogs: Dialogs) -> None:
        """Notify this connection from now on when a resource has changed."""
        self._followers.setdefault(uri, set()).add(dialogs)

    def unfollow(self, uri: str, dialogs: Dialogs) -> None:
        followers = self._followers.get(uri, set())
        followers.discard(dialogs)
        if not followers:
            self._followers.pop(uri, None)

    def disconnected(self, dialogs: Dialogs) -> None:
        self._readers.pop(dialogs, None)
        for uri in [uri for uri, followers in self._followers.items() if dialogs in followers]:
            self.unfollow(uri, dialogs)

    def list_changed(self, kind: str) -> None:
        """Announce that a list has changed, to every client."""
        self._announce((kind,), lambda: self._subscriptions.list_changed(LISTS[kind]))
        for dialogs in self._connections():
            self._push((kind, dialogs), partial(dialogs.notify_changed, kind))

    def sessions_changed(self, principal: str) -> None:
        """Announce that the list of resources has changed, to this principal's clients."""
        self._announce(("resources", principal), lambda: self._subscriptions.list_changed(RESOURCES_CHANGED, principal))
        for dialogs, whose in self._readers.items():
            if whose == principal:
                self._push(("resources", dialogs), partial(dialogs.notify_changed, "resources"))

    def resource_updated(self, uri: str, principal: str | None = None) -> None:
        """Announce that a resource has changed; to one principal's clients if it has a `principal`."""
        if self._subscriptions.wants(uri, principal):
            self._announce((uri, principal), lambda: self._subscriptions.resource_updated(uri, principal))
        for dialogs in self._followers.get(uri, ()):
            if principal is None or self._readers.get(dialogs) == principal:
                self._push((uri, dialogs), partial(self._notify_follower, uri, dialogs))

    async def _notify_follower(self, uri: str, dialogs: Dialogs) -> None:
        if dialogs in self._followers.get(uri, ()):  # unless the client has unsubscribed since the change
            await dialogs.notify_updated(uri)

    def _announce(self, what: Hashable, notify: Callable[[], None]) -> None:
        async def notified() -> None:
            notify()

        self._push(what, notified)

    def _push(self, what: Hashable, notify: Callable[[], Awaitable[None]]) -> None:
        """Announce a change now, or once the interval has passed and the last announcement was accepted."""
        if what not in self._pending:
            self._service.start_task(self._notify_until_quiet(what, notify), endless=True)
        # Set in any case: a running task sees it and notifies again.
        self._pending[what] = True

    async def _notify_until_quiet(self, what: Hashable, notify: Callable[[], Awaitable[None]]) -> None:
        try:
            while self._pending[what]:
                # Before the notification: a change in the meantime is announced in another round.
                self._pending[what] = False
                await notify()
                await asyncio.sleep(_INTERVAL)
        except _GONE:
            pass  # the client disconnected
        finally:
            del self._pending[what]
