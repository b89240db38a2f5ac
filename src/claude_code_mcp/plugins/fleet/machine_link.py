"""A gateway's connection to one machine, on behalf of one client.

Messages pass through unchanged: nothing in the protocol between a client and a machine is translated, whatever its
revision and extensions. Ids belong to the link, because the machines behind one client do not know each other. Messages
from a machine with the id of a request go to the request's sender (`Exchange`), all others to the client's connection
(`ClientSide`).
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic_core import from_json, to_json

from ...core.errors import UpstreamUnavailable
from . import names
from .machine_server import opening_request, refusal_in, run_in
from .nats_client import Client, NatsError
from .wire import Wire, WireBroken, open_wire

log = logging.getLogger(__name__)

JsonObject = Mapping[str, Any]
_OPENING_SECONDS = 5.0
_TAKEN_IN_A_ROW = 64
_MAX_WAITING = 10_000
"""Maximum number of notifications waiting for the client of one request; beyond that the machine is throttled."""


class MachineUnavailable(UpstreamUnavailable):
    """The machine does not answer, refuses a connection, or was lost during a request."""


class ClientSide(Protocol):
    """The client of a gateway, as machines reach it."""

    async def notify(self, method: str, params: JsonObject) -> None:
        """Sends the client a notification that does not belong to any of its requests."""

    async def request(self, exchange: "Exchange | None", method: str, params: JsonObject) -> JsonObject:
        """Asks the client, on the stream of one of its requests if the question belongs to one. Raises MCPError."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A machine's notification during a request."""

    method: str
    params: dict[str, Any]
    line: bytes
    """The complete notification as received, without a line break."""


Notified = Callable[[list[Notification]], Awaitable[None]]


class Exchange:
    """One request to a machine until it is answered. Only the task that made it reads from it."""

    def __init__(self, context: Any = None) -> None:
        self.context = context
        """The client's request that this one serves; whatever the client's side needs to reach it."""
        self._waiting: deque[Notification] = deque()
        self._arrived, self._room = asyncio.Event(), asyncio.Event()
        self._outcome: dict[str, Any] | Exception | None = None

    def settle(self, outcome: dict[str, Any] | Exception) -> None:
        """The result has arrived, or never will; the first one counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._arrived.set()
            self._room.set()

    async def put(self, notification: Notification) -> None:
        """Adds a notification; waits while too many are pending."""
        while len(self._waiting) >= _MAX_WAITING and self._outcome is None:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(notification)
        self._arrived.set()

    async def result(self, notified: Notified) -> dict[str, Any]:
        """Passes notifications on, in order and in batches, until the result arrives. Raises MCPError for an error from
        the machine, MachineUnavailable if the machine was lost."""
        while True:
            # The outcome is checked first: notifications before it are already in the queue.
            outcome = self._outcome
            if self._waiting:
                notifications, self._waiting = list(self._waiting), deque()
                self._room.set()
                await notified(notifications)
            elif isinstance(outcome, Exception):
                raise outcome
            elif outcome is not None:
                return outcome
            else:
                self._arrived.clear()
                await self._arrived.wait()


class MachineLink:
    """An open connection to a machine. Created by `open_link`; used by any task of its loop."""

    def __init__(self, machine_name: str, wire: Wire, client: ClientSide, run: str = "") -> None:
        self._name = machine_name
        self.run = run
        """The process of the machine that it leads to (`Machine.run`)."""
        self._wire = wire
        self._client = client
        self._last_id = 0
        self._exchanges: dict[int, Exchange] = {}
        self._asked: dict[str | int, asyncio.Task[None]] = {}
        """The machine's current questions to the client, by request id."""
        self.ended = asyncio.Event()
        """Set when the connection is over."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._wire.ended

    def drop(self) -> None:
        """The machine is offline, whether or not the connection shows it yet: every open request fails."""
        self._wire.fail("The machine is offline.")

    async def unused(self, seconds: float) -> None:
        """Returns when there was no request for this long."""
        last = -1
        while self._exchanges or last != self._last_id:
            last = self._last_id
            await asyncio.sleep(seconds)

    async def request(
        self,
        method: str,
        params: JsonObject | None,
        context: Any = None,
        notified: Notified | None = None,
        is_wanted: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """The machine's result of a request. Notifications in between go to `notified`. On cancellation, the machine
        receives a request to cancel, unless the request `is_wanted` to continue. Raises MCPError for an error from the
        machine, MachineUnavailable if the machine is lost before it answers."""
        self._last_id += 1
        number, exchange = self._last_id, Exchange(context)
        # Before the request is sent: from then on the answer may arrive at any time.
        self._exchanges[number] = exchange
        try:
            self._write({"id": number, "method": method, **({"params": params} if params is not None else {})})
            await self._wire.drain()
            return await exchange.result(notified or _drop)
        except WireBroken as broken:
            raise self._lost(broken.message) from None
        except asyncio.CancelledError:
            if not is_wanted():
                self._write({"method": "notifications/cancelled", "params": {"requestId": number}})
            raise
        finally:
            del self._exchanges[number]
            exchange.settle({})  # unblocks a reader that waits for room in it: other requests use this connection too

    def notify(self, method: str, params: JsonObject) -> None:
        self._write({"method": method, "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        self._wire.write(to_json({"jsonrpc": "2.0", **message}) + b"\n")

    def _lost(self, reason: str) -> MachineUnavailable:
        return MachineUnavailable(
            f"Machine {self._name} was lost during this call; it is not known whether it was carried out. {reason}",
            machine=self._name,
        )

    # -- incoming messages --------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Handles the machine's messages until the connection ends; then every open request has failed."""
        reason = "The connection was closed."
        try:
            taken = 0
            while (line := await self._wire.line()) is not None:
                await self._take(line)
                taken += 1
                # Available lines are read without waiting: other tasks would not run until none is left.
                if taken % _TAKEN_IN_A_ROW == 0:
                    await asyncio.sleep(0)
        except WireBroken as broken:
            reason = broken.message
        finally:
            for exchange in self._exchanges.values():
                exchange.settle(self._lost(reason))
            for asked in self._asked.values():
                asked.cancel()
            self.ended.set()

    async def _take(self, line: bytes) -> None:
        related, _, text = line.partition(b"\t")
        try:
            message = from_json(text)
            exchange = self._exchanges.get(int(related)) if related else None
            method, id_ = message.get("method"), message.get("id")
        except (ValueError, AttributeError):
            self._wire.fail("A line is not a protocol message.")
            return
        if method is None:
            self._settle(message, id_)
        elif id_ is not None:
            asking = asyncio.ensure_future(self._ask(exchange, id_, method, message.get("params") or {}))
            self._asked[id_] = asking
            asking.add_done_callback(lambda _: self._asked.pop(id_, None))
        elif method == "notifications/cancelled":
            asked = self._asked.get((message.get("params") or {}).get("requestId", ""))
            if asked is not None:
                asked.cancel()
        elif exchange is not None:
            await exchange.put(Notification(method, message.get("params") or {}, text))
        elif not related:  # messages of a finished request have no recipient
            await self._client.notify(method, message.get("params") or {})

    def _settle(self, message: dict[str, Any], id_: object) -> None:
        exchange = self._exchanges.get(id_) if isinstance(id_, int) else None
        if exchange is None:
            return  # it was cancelled
        error = message.get("error")
        if error is None:
            exchange.settle(message.get("result") or {})
        else:
            exchange.settle(MCPError(error.get("code", 0), str(error.get("message", "")), error.get("data")))

    async def _ask(self, exchange: Exchange | None, id_: str | int, method: str, params: dict[str, Any]) -> None:
        """Passes a question of the machine to the client and returns the answer. Cancelled when it is withdrawn."""
        try:
            answer: dict[str, Any] = {"result": await self._client.request(exchange, method, params)}
        except MCPError as error:
            answer = {"error": error.error.model_dump(exclude_none=True)}
        except Exception as error:
            log.debug("a question from machine %s did not reach its client: %r", self._name, error)
            answer = {"error": {"code": types.CONNECTION_CLOSED, "message": "The client cannot be asked."}}
        self._write({"id": id_, **answer})


async def _drop(_: list[Notification]) -> None:
    return None


@asynccontextmanager
async def open_connection(
    nats: Client, machine_id: str, machine_name: str, opening: Callable[[str], bytes]
) -> AsyncIterator[tuple[Wire, str]]:
    """A connection to a machine until the end of the block, and the process of that machine (`Machine.run`); `opening`
    builds the request for it from its id. Raises MachineUnavailable if the machine does not answer or refuses."""
    id_ = secrets.token_hex(16)
    sends, receives = names.to_machine(machine_id, id_), names.to_gateway(machine_id, id_)
    async with open_wire(nats, sends=sends, receives=receives) as wire:
        try:
            reply = await nats.request(names.opening(machine_id), opening(id_), timeout=_OPENING_SECONDS)
        except (NatsError, TimeoutError) as error:
            wire.fail("The machine did not respond.")
            raise MachineUnavailable(f"Machine {machine_name} does not respond.", machine=machine_name) from error
        if refused := refusal_in(reply.data):
            wire.fail(refused)
            raise MachineUnavailable(f"Machine {machine_name} refuses the connection: {refused}", machine=machine_name)
        yield wire, run_in(reply.data)


@asynccontextmanager
async def open_link(
    nats: Client, machine_id: str, machine_name: str, principal: str, groups: Collection[str], client: ClientSide
) -> AsyncIterator[MachineLink]:
    """A connection of a principal to a machine's MCP server until the end of the block. Raises MachineUnavailable if
    the machine does not answer or refuses."""
    opening = partial(opening_request, principal=principal, groups=groups)
    async with open_connection(nats, machine_id, machine_name, opening) as (wire, run):
        link = MachineLink(machine_name, wire, client, run)
        reading = asyncio.ensure_future(link.read())
        try:
            yield link
        finally:
            reading.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([reading])
