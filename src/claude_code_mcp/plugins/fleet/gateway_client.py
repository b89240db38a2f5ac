"""One client of a gateway: its connections to machines, how machines reach it, and its subscriptions.

A client with a handshake (2025) has its own connections, opened with the capabilities from its handshake, so that a
machine serves it like a directly connected client. Requests of 2026-07-28 belong to no connection: all requests of a
principal share one connection to each machine.

`subscriptions/listen` (2026-07-28) is one stream for the client, fed by a stream of each machine. The acknowledgment
is the first frame, sent once every online machine has acknowledged or failed. A machine that comes online later, or
comes back, is subscribed to as well. The client may have missed its notifications meanwhile, so it is notified that the
lists have changed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

import mcp_types as types
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from ...core.errors import InvalidArgument
from ...server import sdk
from ...server.client_capabilities import without_person
from ...server.sdk import Context
from .live_fleet import LiveFleet
from .machine_link import Exchange, JsonObject, MachineLink, MachineUnavailable, Notification, open_link
from .nats_client import Client
from .routing import ListenFilter, MachineIdentity, session_of, split_id, with_machine

log = logging.getLogger(__name__)

_FIRST_RETRY, _MAX_RETRY = 0.5, 30.0
_UNUSED_SECONDS = 300.0
"""Seconds after which an unused connection of a principal is closed."""
_DISCONNECTED = "The client disconnected."
MAX_FOLLOWED: Final = 1000
"""Maximum number of resources that one client may subscribe to."""


class GatewayClient:
    """A client as machines see it: `ClientSide` of `machine_link.py`."""

    def __init__(
        self,
        nats: Client,
        principal: str,
        groups: Callable[[], Collection[str]],
        context: Context | None,
        can_push: Callable[[], bool] = lambda: True,
    ) -> None:
        """`groups` are the principal's at that time. `context` is the first request of the client with a handshake that
        owns this connection; None for all handshake-free requests of a principal. `can_push` says whether the client
        now reads messages sent outside of a call."""
        self._nats = nats
        self.principal = principal
        self._groups = groups
        self._context = context
        self._can_push = can_push
        self._links: dict[str, asyncio.Future[MachineLink]] = {}
        self._connected: dict[MachineLink, str] = {}
        """The open ones of `_links` with their machines, including links on which the client is not introduced yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.followed: dict[str, str] = {}
        """The resources that a client with a handshake is subscribed to, and on which machine (empty: all)."""
        self.calls: list[Context] = []
        """Its current requests."""
        self._reachable = asyncio.Event()
        self._is_closed = False

    @property
    def connection(self) -> str | None:
        """The id of its HTTP connection."""
        return sdk.connection_id(self._context) if self._context is not None else None

    async def link(self, machine: MachineIdentity) -> MachineLink:
        """The connection to a machine, opened if needed. Raises MachineUnavailable."""
        if self._is_closed:
            raise MachineUnavailable(_DISCONNECTED)
        known = self._links.get(machine.id)
        if known is not None and known.done() and (known.exception() is not None or known.result().is_over):
            # It has ended, and its owner has not noticed yet: nothing may be sent on it.
            self._forget(machine.id, known)
            known = None
        if known is None:
            known = self._links[machine.id] = asyncio.get_running_loop().create_future()
            known.add_done_callback(_retrieve_exception)
            self._run(self._own(machine, known))
        # Shielded: other tasks wait for it too.
        return await asyncio.shield(known)

    @property
    def open_links(self) -> list[MachineLink]:
        """The open connections."""
        return [link.result() for link in self._links.values() if link.done() and link.exception() is None]

    def keep_links_to(self, present: Collection[str], ended: Collection[tuple[str, str]]) -> None:
        """Closes the connections to all other machines, which are offline, and to processes of machines that have
        exited."""
        for link, machine_id in self._connected.items():
            if machine_id not in present or (machine_id, link.run) in ended:
                link.drop()

    async def _own(self, machine: MachineIdentity, opened: "asyncio.Future[MachineLink]") -> None:
        """Opens a connection and keeps it until it ends or is unused."""
        try:
            async with open_link(self._nats, machine.id, machine.name, self.principal, self._groups(), self) as link:
                self._connected[link] = machine.id
                if self._context is not None:
                    await self._introduce(link, self._context)
                    await self._follow_again(link, machine)
                opened.set_result(link)
                ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(link.ended.wait())]
                if self._context is None:
                    ends.append(asyncio.ensure_future(link.unused(_UNUSED_SECONDS)))
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # No await between this check and the close: no caller receives a connection that is ending.
                    self._forget(machine.id, opened)
                    for end in ends:
                        end.cancel()
            if self._follows_at(machine):
                self._run(self._reopen(machine))
        except MachineUnavailable as problem:
            _fail(opened, problem)
        except MCPError as error:
            _fail(opened, MachineUnavailable(f"Machine {machine.name} refuses this client: {error.message}"))
        finally:
            self._connected = {link: at for link, at in self._connected.items() if not link.ended.is_set()}
            self._forget(machine.id, opened)
            _fail(opened, MachineUnavailable(_DISCONNECTED))

    def _forget(self, machine_id: str, link: "asyncio.Future[MachineLink]") -> None:
        if self._links.get(machine_id) is link:
            del self._links[machine_id]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _introduce(self, link: MachineLink, context: Context) -> None:
        """Repeats the client's handshake on a machine."""
        announced = context.session.client_params
        assert announced is not None
        params = announced.model_dump(mode="json", by_alias=True, exclude_none=True)
        params["protocolVersion"] = context.protocol_version
        if context.request is not None:
            params["capabilities"] = without_person(params.get("capabilities") or {})
        await link.request("initialize", params)
        link.notify("notifications/initialized", {})

    def _follows_at(self, machine: MachineIdentity) -> list[str]:
        return [uri for uri, at in self.followed.items() if at in ("", machine.id)]

    async def _reopen(self, machine: MachineIdentity) -> None:
        """Reopens a connection on which the client expects notifications, as soon as the machine is back."""
        pause = _FIRST_RETRY
        while self._follows_at(machine):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY)
            with suppress(MachineUnavailable):
                await self.link(machine)
                return

    async def _follow_again(self, link: MachineLink, machine: MachineIdentity) -> None:
        """After a lost connection with subscriptions: changes in between are unknown, so each resource is announced."""
        for uri in self._follows_at(machine):
            try:
                await link.request("resources/subscribe", {"uri": uri})
                await self.notify("notifications/resources/updated", {"uri": uri})
            except MCPError as error:
                log.info("no longer watching %s on %s: %s", uri, machine.name, error.message)

    def close(self) -> None:
        """The client disconnected: its connections and requests end."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        for link in self._links.values():
            _fail(link, MachineUnavailable(_DISCONNECTED))  # a task that has not started yet never does this

    async def closed(self) -> None:
        """Returns when the connections of a closed client have ended."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # -- messages from machines ---------------------------------------------------------------------------------

    def stream_opened(self) -> None:
        """The client can now receive messages outside of a call, or another call has a stream."""
        self._reachable.set()

    async def notify(self, method: str, params: JsonObject) -> None:
        if self._context is not None:
            await sdk.notify_client(self._context, method, params)

    async def request(self, exchange: Exchange | None, method: str, params: JsonObject) -> JsonObject:
        if exchange is not None and exchange.context is not None:
            return await sdk.ask_client(exchange.context, method, params)
        if self._context is None:
            raise MCPError(types.INVALID_REQUEST, "Clients of this protocol revision do not accept requests.")
        # Over HTTP the client may have no open stream now: the question then waits for a stream or for the client's
        # next call.
        while not self._can_push():
            if self.calls:
                return await sdk.ask_client(self.calls[-1], method, params)
            self._reachable.clear()
            await self._reachable.wait()
        return await sdk.ask_client(self._context, method, params, in_call=False)


def _fail(link: "asyncio.Future[MachineLink]", problem: MachineUnavailable) -> None:
    if not link.done():
        link.set_exception(problem)


def _retrieve_exception(link: "asyncio.Future[MachineLink]") -> None:
    """Keeps asyncio from logging a failure that nothing waits for any more."""
    if not link.cancelled():
        link.exception()


# -- listening --------------------------------------------------------------------------------------------------------


_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_RETRY_SECONDS = 1.0
_LIST_CHANGES = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}


class Listening:
    """One `subscriptions/listen` stream of a client."""

    def __init__(self, fleet: LiveFleet, client: GatewayClient, context: Context, params: dict[str, Any]) -> None:
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
        """Set when the client has the acknowledgment, which must come first."""
        self._streams: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> dict[str, Any]:
        """Serves the stream until its client disconnects."""
        await self._split()
        try:
            first = self._attach(self._fleet.machines())
            if first:
                await asyncio.wait(first)
            honored = {key: value for key, value in self._wanted.items() if value}
            await self._send(_ACKNOWLEDGED, {"notifications": honored})
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
        """Splits resources and tasks by machine; anything about all sessions is on all machines."""
        uris, tasks = self._wanted.get("resourceSubscriptions"), self._wanted.get("taskIds")
        for uri in map(str, uris[:MAX_FOLLOWED] if isinstance(uris, list) else ()):
            session_id = session_of(uri)
            # A task or resource without a holder is reported by any machine that has it.
            holder = await self._fleet.holder(session_id) if session_id is not None else None
            self._filter.add("resourceSubscriptions", uri, holder)
        for task in tasks[:MAX_FOLLOWED] if isinstance(tasks, list) else ():
            with contextlib.suppress(InvalidArgument):
                machine, task_id = split_id(task)
                self._filter.add("taskIds", task_id, machine)

    def _attach(self, machines: Sequence[MachineIdentity]) -> "list[asyncio.Future[None]]":
        """Listens on every machine not listened to yet; the futures are done when each result is known."""
        acknowledged = []
        for machine in machines:
            stream = self._streams.get(machine.id)
            if self._filter.at(machine.id) and (stream is None or stream.done()):
                known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                acknowledged.append(known)
                self._streams[machine.id] = asyncio.ensure_future(self._listen_at(machine, known))
        return acknowledged

    async def _listen_at(self, machine: MachineIdentity, known: "asyncio.Future[None]") -> None:
        """Listens for as long as the machine is online."""
        params = {**self._params, "notifications": self._filter.at(machine.id)}

        async def notified(notifications: list[Notification]) -> None:
            for each in notifications:
                if each.method == _ACKNOWLEDGED:
                    await self._acknowledged(known)
                else:
                    # Not before the acknowledgment, which waits for all machines.
                    await self._begun.wait()
                    await self._send(each.method, _with_machine_in_task(machine, each.params))

        try:
            while any(each.id == machine.id for each in self._fleet.machines()):
                try:
                    link = await self._client.link(machine)
                    await link.request("subscriptions/listen", params, self._context, notified)
                except (MachineUnavailable, MCPError) as problem:
                    log.info("not listening to machine %s: %s", machine.name, problem)
                _done(known)
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            _done(known)

    async def _acknowledged(self, known: "asyncio.Future[None]") -> None:
        if known.done() and self._begun.is_set():  # the machine was away: changes in between are unknown
            for key, method in _LIST_CHANGES.items():
                if self._filter.lists.get(key):
                    await self._send(method, {})
        _done(known)

    async def _send(self, method: str, content: dict[str, Any]) -> None:
        meta = {**(content.get("_meta") or {}), **self._meta}
        await sdk.send_notification(self._context, method, {**content, "_meta": meta})


def _with_machine_in_task(machine: MachineIdentity, content: dict[str, Any]) -> dict[str, Any]:
    """A machine's notification, with the machine in the id of a task."""
    if isinstance(content.get("taskId"), str):
        return {**content, "taskId": with_machine(machine.id, content["taskId"])}
    return content


def _done(known: "asyncio.Future[None]") -> None:
    if not known.done():
        known.set_result(None)
