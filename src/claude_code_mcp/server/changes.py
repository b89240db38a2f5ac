"""Announces what has changed to clients, in both eras of the protocol, at most twice a second.

The SDK's own handler knows only the core kinds of events; this one knows tasks too, and keeps a bounded backlog without
ever ending a slow stream: of each thing that changed, only the latest state waits to be sent. The acknowledgement is
the first frame, every frame bears the id of the request, and nothing is sent that was not asked for. There is no
replay: who listens again asks for the current state first.

Clients with a handshake (2025) are sent notifications on their connection: of a list once it can matter to them, of a
resource after `resources/subscribe`. Those of 2026-07-28 hear of it on their `subscriptions/listen` streams. Nothing is
queued: a thing has changed or not, and whoever is slow is told once of many changes.

A session that runs here is heard of as an observer of the service. The transcript of every session that somebody
follows is watched besides, since another process may write it; that both tell of the same change is no harm, because
each thing is announced at most twice a second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from ..core.errors import ClaudeCodeError
from ..core.model.caller import Caller
from ..core.model.events import (
    AuditEvent,
    Event,
    QuestionOpened,
    QuestionSettled,
    StateChanged,
    TurnEnded,
    TurnStarted,
)
from ..core.service import Service
from . import sdk
from .dialogs import Dialogs
from .resources import LIST, ResourceAddress, View
from .sdk import Context

_MAX_STREAMS = 1024
_MAX_STREAMS_OF_ONE = 256
"""Of one caller: others must be able to listen too."""
_MAX_IDS = 1000
"""Resources, or tasks, that one stream may name."""

ListKey = tuple[str, str]
"""What a stream can be told of: the kind, and which one of it."""
Frame = Callable[[], tuple[str, Mapping[str, Any]]]
"""Makes the notification when it is sent, of the state at that time: method and parameters."""

TOOLS_CHANGED: ListKey = ("toolsListChanged", "")
PROMPTS_CHANGED: ListKey = ("promptsListChanged", "")
RESOURCES_CHANGED: ListKey = ("resourcesListChanged", "")
_LISTS = {
    TOOLS_CHANGED: "notifications/tools/list_changed",
    PROMPTS_CHANGED: "notifications/prompts/list_changed",
    RESOURCES_CHANGED: "notifications/resources/list_changed",
}


class Subscriptions:
    """All open streams of a server."""

    def __init__(self, principal: Callable[[], str]) -> None:
        self._principal = principal
        self._streams: set[_Stream] = set()
        self.stand: Callable[[], None] = lambda: None
        """Called for each request that becomes a stream; over HTTP such a one ends with its token."""

    def list_changed(self, which: ListKey, principal: str | None = None) -> None:
        """One of the lists has changed, for every client or for those of a principal."""
        for stream in self._streams:
            if principal in (None, stream.principal):
                stream.put(which, lambda: (_LISTS[which], {}))

    def wants(self, uri: str, principal: str | None = None) -> bool:
        """Whether anybody, or anybody of a principal, listens to changes of a resource."""
        return any(principal in (None, stream.principal) and stream.wants(uri) for stream in self._streams)

    def resource_updated(self, uri: str, principal: str | None = None) -> None:
        """A resource has changed; with a `principal`, only its streams are told."""
        for stream in self._streams:
            if principal in (None, stream.principal):
                stream.put(("resource", uri), lambda: ("notifications/resources/updated", {"uri": uri}))

    def task_changed(self, principal: str, task_id: str, listing: Callable[[], Mapping[str, Any]]) -> None:
        """A task of this principal has changed."""
        for stream in self._streams:
            if stream.principal == principal:
                stream.put(("task", task_id), lambda: ("notifications/tasks", listing()))

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serves one stream until its client goes away."""
        if context.request_id is None:
            raise MCPError(types.INVALID_REQUEST, "subscriptions/listen needs a request id")
        principal = self._principal()
        own = sum(stream.principal == principal for stream in self._streams)
        if len(self._streams) >= _MAX_STREAMS or own >= _MAX_STREAMS_OF_ONE:
            raise MCPError(types.INTERNAL_ERROR, "Too many clients are listening.")
        self.stand()
        stream = _Stream(principal, params.notifications)
        meta = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        self._streams.add(stream)  # before the acknowledgement: what happens meanwhile is sent right after it
        try:
            acknowledged = {"notifications": stream.honoured, "_meta": meta}
            await sdk.send_notification(context, "notifications/subscriptions/acknowledged", acknowledged)
            while True:
                for frame in await stream.take():
                    method, content = frame()
                    await sdk.send_notification(context, method, {**content, "_meta": meta})
        finally:
            self._streams.discard(stream)


class _Stream:
    """What one client asked for, and what of it waits to be sent."""

    def __init__(self, principal: str, wanted: types.SubscriptionFilter) -> None:
        self.principal = principal
        lists = {
            TOOLS_CHANGED: wanted.tools_list_changed,
            PROMPTS_CHANGED: wanted.prompts_list_changed,
            RESOURCES_CHANGED: wanted.resources_list_changed,
        }
        uris = list(wanted.resource_subscriptions or ())[:_MAX_IDS]
        ids = (wanted.model_extra or {}).get("taskIds")
        tasks = [id_ for id_ in ids if isinstance(id_, str)][:_MAX_IDS] if isinstance(ids, list) else []
        self._wanted = {
            *(key for key, on in lists.items() if on),
            *(("resource", uri) for uri in uris),
            *(("task", task_id) for task_id in tasks),
        }
        self.honoured: dict[str, Any] = {key[0]: True for key, on in lists.items() if on}
        if uris:
            self.honoured["resourceSubscriptions"] = uris
        if tasks:
            self.honoured["taskIds"] = tasks
        self._waiting: dict[ListKey, Frame] = {}
        self._ready = asyncio.Event()

    def wants(self, uri: str) -> bool:
        return ("resource", uri) in self._wanted

    def put(self, key: ListKey, frame: Frame) -> None:
        if key in self._wanted:
            # One that waits keeps its place: its frame is made when it is sent, of the state at that time.
            self._waiting.setdefault(key, frame)
            self._ready.set()

    async def take(self) -> list[Frame]:
        """Waits until there is something to send, and takes all of it."""
        await self._ready.wait()
        self._ready.clear()
        frames, self._waiting = list(self._waiting.values()), {}
        return frames


# -- changes ----------------------------------------------------------------------------------------------------------


_INTERVAL = 0.5
"""Seconds between two announcements of one thing to one client."""
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)
LISTS = {"tools": TOOLS_CHANGED, "resources": RESOURCES_CHANGED, "prompts": PROMPTS_CHANGED}


class Changes:
    """All clients of a server, and what each wants to hear of."""

    def __init__(
        self, service: Service, subscriptions: Subscriptions, connections: Callable[[], Iterable[Dialogs]]
    ) -> None:
        """`connections` are those that are open now."""
        self._service = service
        self._subscriptions = subscriptions
        self._connections = connections
        self._readers: dict[Dialogs, str] = {}
        """The connections that have asked for resources, and whose they are."""
        self._followers: dict[str, set[Dialogs]] = {}
        self._pending: dict[Hashable, bool] = {}
        """What is being announced, and whether it has changed since the announcement was made."""

    # -- who is told --------------------------------------------------------------------------------------------

    def reads(self, dialogs: Dialogs, principal: str) -> None:
        """From now on this connection hears when the list of the principal's sessions has changed."""
        self._readers[dialogs] = principal

    def follow(self, uri: str, dialogs: Dialogs) -> None:
        """From now on this connection hears when a resource has changed."""
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

    # -- what has changed ---------------------------------------------------------------------------------------

    def list_changed(self, kind: str) -> None:
        """One of the lists is another one for every client."""
        self._announce((kind,), lambda: self._subscriptions.list_changed(LISTS[kind]))
        for dialogs in self._connections():
            self._push((kind, dialogs), partial(dialogs.notify_changed, kind))

    def sessions_changed(self, principal: str) -> None:
        """The list of resources is another one for this principal's clients."""
        self._announce(("resources", principal), lambda: self._subscriptions.list_changed(RESOURCES_CHANGED, principal))
        for dialogs, whose in self._readers.items():
            if whose == principal:
                self._push(("resources", dialogs), partial(dialogs.notify_changed, "resources"))

    def resource_updated(self, uri: str, principal: str | None = None) -> None:
        """A resource has changed; one of a principal's is of no concern to others."""
        if self._subscriptions.wants(uri, principal):
            self._announce((uri, principal), lambda: self._subscriptions.resource_updated(uri, principal))
        for dialogs in self._followers.get(uri, ()):
            if principal is None or self._readers.get(dialogs) == principal:
                self._push((uri, dialogs), partial(self._notify_follower, uri, dialogs))

    async def _notify_follower(self, uri: str, dialogs: Dialogs) -> None:
        if dialogs in self._followers.get(uri, ()):  # not who has unsubscribed since the change
            await dialogs.notify_updated(uri)

    # -- telling ------------------------------------------------------------------------------------------------

    def _announce(self, what: Hashable, notify: Callable[[], None]) -> None:
        async def notified() -> None:
            notify()

        self._push(what, notified)

    def _push(self, what: Hashable, notify: Callable[[], Awaitable[None]]) -> None:
        """Tells of a change now, or as soon as the last time is long enough ago and has been taken."""
        if what not in self._pending:
            self._service.start_task(self._notify_until_quiet(what, notify), endless=True)
        # In any case: a task that is under way sees it, and tells once more.
        self._pending[what] = True

    async def _notify_until_quiet(self, what: Hashable, notify: Callable[[], Awaitable[None]]) -> None:
        try:
            while self._pending[what]:
                # Before it is told: a change meanwhile is told of in another round.
                self._pending[what] = False
                await notify()
                await asyncio.sleep(_INTERVAL)
        except _GONE:
            pass  # the client has left
        finally:
            del self._pending[what]


# -- session changes --------------------------------------------------------------------------------------------------


_WRITTEN: tuple[View, ...] = ("status", "transcript", "turns", "events")
"""What may be different when a transcript has grown."""
_WITH_QUESTIONS: tuple[View, ...] = (*_WRITTEN, "questions")

FollowedKey = tuple[str, Caller]
"""The session that is followed, and whose client follows it."""


@dataclass(slots=True)
class _Followed:
    followers: int = 0
    watch: "asyncio.Task[None] | None" = field(default=None)


class SessionChanges:
    """An observer of the service. Sessions that nobody follows cost nothing here."""

    def __init__(self, service: Service, changes: Changes) -> None:
        self._service = service
        self._changes = changes
        self._followed: dict[FollowedKey, _Followed] = {}
        self._names: dict[str, set[FollowedKey]] = {}
        """By the id under which a session goes on, how clients know it."""

    # -- who follows what ---------------------------------------------------------------------------------------

    def follow(self, session_id: str, caller: Caller) -> FollowedKey:
        """From now on changes of this session are told. Every call needs an `unfollow` of what it returned."""
        key = (session_id, caller)
        followed = self._followed.setdefault(key, _Followed())
        followed.followers += 1
        if followed.watch is None:
            followed.watch = self._service.start_task(self._watch(key), endless=True)
        self._learn_names()
        return key

    def unfollow(self, keys: Iterable[FollowedKey]) -> None:
        for key in keys:
            followed = self._followed[key]
            followed.followers -= 1
            if not followed.followers:
                del self._followed[key]
                if followed.watch is not None:
                    followed.watch.cancel()
        self._learn_names()

    def _learn_names(self) -> None:
        """A session that was cleared goes on under another id; clients follow it under the one that they know."""
        self._names = {}
        for key in self._followed:
            self._names.setdefault(self._service.current_id(key[0]), set()).add(key)

    async def _watch(self, key: FollowedKey) -> None:
        """Tells when the transcript grows, whoever writes it. Ends where there is none yet."""
        session_id, caller = key
        try:
            async for _ in self._service.stored.follow(session_id, caller=caller):
                self._updated(key, _WRITTEN)
        except ClaudeCodeError:
            pass  # it is looked for again at the end of the next turn

    def _updated(self, key: FollowedKey, views: Iterable[View]) -> None:
        for view in views:
            self._changes.resource_updated(ResourceAddress(view, key[0]).uri, key[1].principal)

    # -- what happens -------------------------------------------------------------------------------------------

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, StateChanged | TurnEnded):
            self._changes.resource_updated(LIST, owner)
        if not self._followed:
            return
        # A session is cleared within a turn, so that the names can have changed only then.
        turn = isinstance(event, TurnStarted | TurnEnded)
        if turn:
            self._learn_names()
        for key in self._names.get(session_id, ()):
            if key[1].principal == owner:
                self._updated(key, _WITH_QUESTIONS if isinstance(event, QuestionOpened | QuestionSettled) else _WRITTEN)
                followed = self._followed[key]
                # It ends where there was no transcript yet; a turn may have made one.
                if turn and followed.watch is not None and followed.watch.done():
                    followed.watch = self._service.start_task(self._watch(key), endless=True)

    def act(self, act: AuditEvent) -> None:
        """One of `LIST_CHANGES`: sessions come and go, or have another name."""
        self._changes.sessions_changed(act.who)
        self._changes.resource_updated(LIST, act.who)
        for key in self._names.get(act.session_id or "", ()):
            self._updated(key, _WRITTEN)
