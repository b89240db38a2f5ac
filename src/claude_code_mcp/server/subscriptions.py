"""`subscriptions/listen` of 2026-07-28: the response to the request is a stream of what the client asked to hear of.

The SDK's own handler knows only the core kinds of events; this one knows tasks too, and keeps a bounded backlog without
ever ending a slow stream: of each thing that changed, only the latest state waits to be sent. The acknowledgement is
the first frame, every frame bears the id of the request, and nothing is sent that was not asked for. There is no
replay: who listens again asks for the current state first.
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
_MAX_IDS = 1000
"""Resources, or tasks, that one stream may name."""

Key = tuple[str, str]
"""What a stream can be told of: the kind, and which one of it."""
Frame = Callable[[], tuple[str, Mapping[str, Any]]]
"""Makes the notification when it is sent, of the state at that time: method and parameters."""

TOOLS_CHANGED: Key = ("toolsListChanged", "")
PROMPTS_CHANGED: Key = ("promptsListChanged", "")
RESOURCES_CHANGED: Key = ("resourcesListChanged", "")
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

    def list_changed(self, which: Key, owner: str | None = None) -> None:
        """One of the lists has changed, for every client or for those of an owner."""
        for stream in self._streams:
            if owner is None or stream.owner == owner:
                stream.put(which, lambda: (_LISTS[which], {}))

    def wants(self, uri: str, owner: str | None = None) -> bool:
        """Whether anybody, or anybody of an owner, listens to changes of a resource."""
        return any((owner is None or stream.owner == owner) and stream.wants(uri) for stream in self._streams)

    def resource_updated(self, uri: str, owner: str | None = None) -> None:
        """A resource has changed; with an `owner`, only its streams are told."""
        for stream in self._streams:
            if owner is None or stream.owner == owner:
                stream.put(("resource", uri), lambda: ("notifications/resources/updated", {"uri": uri}))

    def task_changed(self, owner: str, task_id: str, listing: Callable[[], Mapping[str, Any]]) -> None:
        """A task of this owner has changed."""
        for stream in self._streams:
            if stream.owner == owner:
                stream.put(("task", task_id), lambda: ("notifications/tasks", listing()))

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serves one stream until its client goes away."""
        if context.request_id is None:
            raise MCPError(types.INVALID_REQUEST, "subscriptions/listen needs a request id")
        if len(self._streams) >= _MAX_STREAMS:
            raise MCPError(types.INTERNAL_ERROR, "Too many clients are listening.")
        stream = _Stream(self._principal(), params.notifications)
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

    def __init__(self, owner: str, wanted: types.SubscriptionFilter) -> None:
        self.owner = owner
        lists = {
            TOOLS_CHANGED: wanted.tools_list_changed,
            PROMPTS_CHANGED: wanted.prompts_list_changed,
            RESOURCES_CHANGED: wanted.resources_list_changed,
        }
        uris = list(wanted.resource_subscriptions or ())[:_MAX_IDS]
        tasks = _task_ids(wanted)
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
        self._waiting: dict[Key, Frame] = {}
        self._ready = asyncio.Event()

    def wants(self, uri: str) -> bool:
        return ("resource", uri) in self._wanted

    def put(self, key: Key, frame: Frame) -> None:
        if key in self._wanted:
            self._waiting.setdefault(key, frame)
            self._ready.set()

    async def take(self) -> list[Frame]:
        """Waits until there is something to send, and takes all of it."""
        await self._ready.wait()
        self._ready.clear()
        frames, self._waiting = list(self._waiting.values()), {}
        return frames


def _task_ids(wanted: types.SubscriptionFilter) -> list[str]:
    ids = (wanted.model_extra or {}).get("taskIds")
    return [id_ for id_ in ids if isinstance(id_, str)][:_MAX_IDS] if isinstance(ids, list) else []
