"""`subscriptions/listen` (2026-07-28) over a fleet: one stream for the client, fed by a stream of each machine.

The acknowledgement is the first frame, once every machine that is there has acknowledged or failed. A machine that
comes later, or comes back, is listened to as well; what it may have told meanwhile is made good by telling that the
lists have changed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from ..errors import InvalidArgument
from ..server import sdk
from ..server.sdk import Context
from .gateway_client import MOST_FOLLOWED, GatewayClient
from .machine_link import MachineUnavailable, Notification
from .routing import FleetView, ListenFilter, MachineIdentity, session_of, split_id, with_machine

log = logging.getLogger(__name__)

_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_RETRY_SECONDS = 1.0
_LIST_CHANGES = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}


class Listening:
    """One stream of a client."""

    def __init__(self, fleet: FleetView, client: GatewayClient, context: Context, params: dict[str, Any]) -> None:
        self._fleet = fleet
        self._client = client
        self._context = context
        self._params = params
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            raise MCPError(types.INVALID_PARAMS, "notifications: required")
        self._wanted = wanted
        self._filter = ListenFilter({key: True for key in _LIST_CHANGES if wanted.get(key)})
        self._meta = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        self._begun = asyncio.Event()
        """Set when the client has the acknowledgement: nothing may come before it."""
        self._streams: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> dict[str, Any]:
        """Serves the stream until its client goes away."""
        await self._split()
        try:
            first = self._attach(self._fleet.machines())
            if first:
                await asyncio.wait(first)
            honoured = {key: value for key, value in self._wanted.items() if value}
            await self._send(_ACKNOWLEDGED, {"notifications": honoured})
            self._begun.set()
            while True:
                await self._fleet.changed()
                self._attach(self._fleet.machines())
        finally:
            streams = list(self._streams.values())
            for stream in streams:
                stream.cancel()
            if streams:
                await asyncio.wait(streams)

    async def _split(self) -> None:
        """Which machine each resource and task is at; what is about all sessions is at all of them."""
        everywhere = []
        uris = self._wanted.get("resourceSubscriptions")
        for uri in map(str, uris[:MOST_FOLLOWED] if isinstance(uris, list) else ()):
            session_id = session_of(uri)
            holder = await self._fleet.holder(session_id) if session_id is not None else None
            if holder is not None:
                self._filter = self._filter.with_resource(holder, uri)
            else:  # one that no machine holds is told of by whichever has it
                everywhere.append(uri)
        if everywhere:
            at_all = {"resourceSubscriptions": everywhere}
            by_machine = {
                machine: {**wanted, "resourceSubscriptions": [*everywhere, *wanted.get("resourceSubscriptions", ())]}
                for machine, wanted in self._filter.by_machine.items()
            }
            self._filter = ListenFilter({**self._filter.lists, **at_all}, by_machine)
        tasks = self._wanted.get("taskIds")
        for task in tasks[:MOST_FOLLOWED] if isinstance(tasks, list) else ():
            with contextlib.suppress(InvalidArgument):
                self._filter = self._filter.with_task(*split_id(task))

    def _attach(self, machines: Sequence[MachineIdentity]) -> "list[asyncio.Future[None]]":
        """Listens at every machine that is not listened to; the futures are done when it is known whether each does."""
        acknowledged = []
        for machine in machines:
            stream = self._streams.get(machine.id)
            if self._filter.at(machine.id) and (stream is None or stream.done()):
                known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                acknowledged.append(known)
                self._streams[machine.id] = asyncio.ensure_future(self._listen_at(machine, known))
        return acknowledged

    async def _listen_at(self, machine: MachineIdentity, known: "asyncio.Future[None]") -> None:
        """Listens for as long as the machine is there."""
        params = {**self._params, "notifications": self._filter.at(machine.id)}

        async def notified(notifications: list[Notification]) -> None:
            for each in notifications:
                if each.method == _ACKNOWLEDGED:
                    await self._acknowledged(known)
                else:
                    # Not before the acknowledgement, which waits for all machines.
                    await self._begun.wait()
                    await self._send(each.method, _with_machine_in_task(machine, each.params))

        try:
            while any(each.id == machine.id for each in self._fleet.machines()):
                try:
                    link = await self._client.link(machine)
                    await link.request("subscriptions/listen", params, self._context, notified)
                except (MachineUnavailable, MCPError) as problem:
                    log.info("machine %s is not listened to: %s", machine.name, problem)
                _done(known)
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            _done(known)

    async def _acknowledged(self, known: "asyncio.Future[None]") -> None:
        if known.done() and self._begun.is_set():  # it was away: nobody knows what has changed meanwhile
            for key, method in _LIST_CHANGES.items():
                if self._filter.lists.get(key):
                    await self._send(method, {})
        _done(known)

    async def _send(self, method: str, content: dict[str, Any]) -> None:
        meta = {**(content.get("_meta") or {}), **self._meta}
        await sdk.send_notification(self._context, method, {**content, "_meta": meta})


def _with_machine_in_task(machine: MachineIdentity, content: dict[str, Any]) -> dict[str, Any]:
    """What a machine tells, with the machine in the id of a task."""
    if isinstance(content.get("taskId"), str):
        return {**content, "taskId": with_machine(machine.id, content["taskId"])}
    return content


def _done(known: "asyncio.Future[None]") -> None:
    if not known.done():
        known.set_result(None)
