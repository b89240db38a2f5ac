"""The `subscriptions/listen` streams of clients of 2026-07-28.

The SDK's own handler knows only the core kinds of events. This one also handles tasks, and keeps a bounded backlog
without ever closing a slow stream: for each thing that changed, only the latest state waits to be sent. The
acknowledgment is the first frame, every frame bears the id of the request, and nothing is sent that was not asked for.
There is no replay: a client that listens again asks for the current state first.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from . import sdk
from .sdk import Context

_MAX_STREAMS = 1024
_MAX_STREAMS_OF_ONE = 256
"""Maximum streams of one caller, so that others can listen too."""
_MAX_IDS = 1000
"""Maximum resources, and maximum tasks, that one stream may name."""
ListKey = tuple[str, str]
"""Identifies what a notification is about: its kind, and an item of that kind."""
Frame = Callable[[], tuple[str, Mapping[str, Any]]]
"""Creates the notification, method and parameters, from the state at the time of sending."""
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
        """Called for each request that becomes a stream; over HTTP such a stream ends with its token."""

    def list_changed(self, which: ListKey, principal: str | None = None) -> None:
        """Announce that a list has changed, to all clients or to those of a principal."""
        for stream in self._streams:
            if principal in (None, stream.principal):
                stream.put(which, lambda: (_LISTS[which], {}))

    def wants(self, uri: str, principal: str | None = None) -> bool:
        """Whether any client, or any of a principal's clients, listens to changes of a resource."""
        return any(principal in (None, stream.principal) and stream.wants(uri) for stream in self._streams)

    def resource_updated(self, uri: str, principal: str | None = None) -> None:
        """Announce that a resource has changed; with a `principal`, only to the streams of that principal."""
        for stream in self._streams:
            if principal in (None, stream.principal):
                stream.put(("resource", uri), lambda: ("notifications/resources/updated", {"uri": uri}))

    def task_changed(self, principal: str, task_id: str, listing: Callable[[], Mapping[str, Any]]) -> None:
        """Announce that a task of this principal has changed."""
        for stream in self._streams:
            if stream.principal == principal:
                stream.put(("task", task_id), lambda: ("notifications/tasks", listing()))

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream until its client disconnects."""
        if context.request_id is None:
            raise MCPError(types.INVALID_REQUEST, "subscriptions/listen needs a request id")
        principal = self._principal()
        own = sum(stream.principal == principal for stream in self._streams)
        if len(self._streams) >= _MAX_STREAMS or own >= _MAX_STREAMS_OF_ONE:
            raise MCPError(types.INTERNAL_ERROR, "Too many clients are listening.")
        self.stand()
        stream = _Stream(principal, params.notifications)
        meta = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        self._streams.add(stream)  # before the acknowledgment: changes in the meantime are sent right after it
        try:
            acknowledged = {"notifications": stream.honored, "_meta": meta}
            await sdk.send_notification(context, "notifications/subscriptions/acknowledged", acknowledged)
            while True:
                for frame in await stream.take():
                    method, content = frame()
                    await sdk.send_notification(context, method, {**content, "_meta": meta})
        finally:
            self._streams.discard(stream)


class _Stream:
    """One client's subscription, and its pending notifications."""

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
        self.honored: dict[str, Any] = {key[0]: True for key, on in lists.items() if on}
        if uris:
            self.honored["resourceSubscriptions"] = uris
        if tasks:
            self.honored["taskIds"] = tasks
        self._waiting: dict[ListKey, Frame] = {}
        self._ready = asyncio.Event()

    def wants(self, uri: str) -> bool:
        return ("resource", uri) in self._wanted

    def put(self, key: ListKey, frame: Frame) -> None:
        if key in self._wanted:
            # A pending one keeps its place: its frame is built when it is sent, from the state at that time.
            self._waiting.setdefault(key, frame)
            self._ready.set()

    async def take(self) -> list[Frame]:
        """Wait until there is something to send; remove and return all of it."""
        await self._ready.wait()
        self._ready.clear()
        frames, self._waiting = list(self._waiting.values()), {}
        return frames
