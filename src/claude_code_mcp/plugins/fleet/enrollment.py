"""Admission of machines to a fleet.

`Enrollment` answers tickets and the operator in the process that runs the server, because only that can change the
server's keys. `join` is the other side of a ticket; `ask_operator` of `fleet ticket` and `fleet remove`.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, UpstreamUnavailable
from . import names
from .connection import FleetConnection, FleetUnreachable
from .machines import FleetMember, Members
from .nats_client import Msg, NatsError
from .nats_server import Running
from .tickets import (
    KeyRing,
    MachineKey,
    Ticket,
    connect_machine,
    connect_ticket,
    new_seed,
    public_key,
)

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 20.0
"""Admission needs a change of the server's configuration and a reload."""


class Enrollment:
    """Answers while `serving` runs. One change at a time: each is on disk and active before the next."""

    def __init__(
        self,
        connection: FleetConnection,
        server: Running,
        keys: KeyRing,
        members: Members,
        address: str,
        authority: str,
    ) -> None:
        self._connection = connection
        self._server = server
        self._keys = keys
        self._members = members
        self._address = address
        self._authority = authority
        self._changing = anyio.Lock()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers tickets and the operator until the end of the block."""
        async with self._connection.answering({"fleet.join.*": self._join, "fleet.operator.*": self._operate}):
            yield

    async def ticket(self) -> Ticket:
        """A new ticket, known to the server on return."""
        async with self._changing:
            ticket = await anyio.to_thread.run_sync(self._keys.issue, self._address, self._authority)
            await self._reload()
        log.info("ticket %s was issued", ticket.id)
        return ticket

    async def remove(self, machine_id: str) -> None:
        """Revokes a machine's key, closes its connections and forgets it. Its lease expires, which frees its
        sessions."""
        async with self._changing:
            await anyio.to_thread.run_sync(self._keys.remove, machine_id)
            await self._reload()
            await self._members.remove(machine_id)
        log.info("machine %s was removed", machine_id)

    async def _join(self, message: Msg) -> None:
        ticket_id = message.subject.rsplit(".", 1)[1]
        if not message.reply.startswith(f"{names.inbox(ticket_id)}."):
            log.warning("ignored a request with ticket %s: its reply subject is not allowed", ticket_id)
            return
        async with self._changing:
            await _answer(message, self._let_in(ticket_id, message.data))
            with suppress(NatsError):  # also if the answer was not sent: the machine asks again
                await self._connection.flushed()
            # After the answer: the reload closes the connection of the used ticket.
            await self._reload()

    async def _reload(self, answering: str = "") -> None:
        # Open requests to machines are answered first: the server would reject those answers after the reload.
        async with self._connection.without_requests():
            await self._server.reload(self._keys.users(answering=answering))

    async def _let_in(self, ticket_id: str, data: bytes) -> Any:
        asked = json.loads(data)
        key, name = str(asked["key"]), str(asked["name"])
        machine_id = await anyio.to_thread.run_sync(self._keys.admit, ticket_id, key, name)
        await self._reload(answering=ticket_id)
        admitted = self._keys.machines[machine_id]
        await self._members.add(FleetMember(machine_id, admitted.name, key, joined=admitted.joined))
        log.info("machine %s (%s) joined with ticket %s", machine_id, admitted.name, ticket_id)
        return {"machine": machine_id}

    async def _operate(self, message: Msg) -> None:
        async def carried_out() -> dict[str, str]:
            match message.subject.rsplit(".", 1)[1]:
                case "ticket":
                    return {"ticket": str(await self.ticket())}
                case "remove":
                    await self.remove(str(json.loads(message.data)["machine"]))
                    return {}
                case verb:
                    raise InvalidArgument(f"Unknown request: {verb!r}.")

        await _answer(message, carried_out())


async def _answer(message: Msg, work: Any) -> None:
    try:
        answer = {"result": await work}
    except ClaudeCodeError as problem:
        answer = {"error": problem.code, "message": problem.message}
    except (KeyError, TypeError, ValueError):
        answer = {"error": "INVALID_ARGUMENT", "message": "The request is not valid."}
    except (NatsError, OSError, TimeoutError) as problem:
        log.warning("a request to add or remove a machine (%s) failed: %s", message.subject, problem)
        answer = {
            "error": "UPSTREAM_UNAVAILABLE",
            "message": "The fleet's server could not be reconfigured; see its log.",
        }
    try:
        await message.respond(json.dumps(answer).encode())
    except NatsError as problem:
        log.warning("the answer to %s was not sent: %s", message.subject, problem)


_REFUSALS: dict[str, type[ClaudeCodeError]] = {
    refusal.code: refusal for refusal in (InvalidArgument, PermissionDenied, UpstreamUnavailable)
}


async def _ask(connection: FleetConnection, subject: str, **arguments: Any) -> dict[str, Any]:
    """Sends one request. Raises the refusal, or FleetUnreachable without an answer."""
    try:
        message = await connection.client.request(subject, json.dumps(arguments).encode(), timeout=_REQUEST_SECONDS)
    except (NatsError, OSError, TimeoutError) as problem:
        reason = str(problem) or type(problem).__name__
        raise FleetUnreachable(f"`claude-code-mcp fleet up` does not respond: {reason}.") from None
    answer: dict[str, Any] = json.loads(message.data)
    if "error" in answer:
        raise _REFUSALS.get(answer["error"], ClaudeCodeError)(answer["message"])
    result: dict[str, Any] = answer["result"]
    return result


async def _ask_while_accepted(connection: FleetConnection, subject: str, **arguments: Any) -> None:
    """Like `_ask`; raises FleetUnreachable as soon as the server rejects the connection's key: no answer can come."""
    asking = asyncio.ensure_future(_ask(connection, subject, **arguments))
    refused = asyncio.ensure_future(connection.refused.wait())
    try:
        await asyncio.wait([asking, refused], return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise FleetUnreachable("The fleet no longer accepts this ticket: it was used or has expired.")
        asking.result()
    finally:
        asking.cancel()
        refused.cancel()
        await asyncio.wait([asking, refused])


async def ask_operator(connection: FleetConnection, verb: str, **arguments: Any) -> dict[str, Any]:
    """Sends a request to `fleet up`; needs the operator's key."""
    return await _ask(connection, names.operating(verb), **arguments)


async def join(ticket: Ticket, file: Path, name: str) -> MachineKey:
    """Exchanges a ticket for this machine's own key, stored in `file`. The key is on disk before it is sent; if the
    answer was lost, a repeated call finds that the key works. Raises PermissionDenied for a used or expired ticket,
    InvalidArgument if the machine belongs to a fleet."""
    key = await anyio.to_thread.run_sync(MachineKey.load, file)
    if key is not None and key.admitted and key.ticket_id == ticket.id:
        return key  # a repeated command, for example from a service manager
    if key is not None and key.admitted:
        raise InvalidArgument(f"This machine already belongs to a fleet. To join another one, remove {file}.")
    if key is None or key.ticket_id != ticket.id:
        key = MachineKey(ticket.address, ticket.authority, new_seed(), ticket.id)
        await anyio.to_thread.run_sync(key.save, file)
    try:
        connection = await connect_ticket(ticket)
        try:
            await _ask_while_accepted(connection, names.joining(ticket.id), key=public_key(key.seed), name=name)
        finally:
            await connection.abandon()
    except (FleetUnreachable, PermissionDenied):
        # Either the ticket is invalid, or an earlier answer was lost: in that case the key works.
        try:
            await (await connect_machine(key)).close()
        except FleetUnreachable:
            pass
        else:
            return await _admitted(key, file)
        raise
    return await _admitted(key, file)


async def _admitted(key: MachineKey, file: Path) -> MachineKey:
    key = MachineKey(key.address, key.authority, key.seed, key.ticket_id, admitted=True)
    await anyio.to_thread.run_sync(key.save, file)
    return key
