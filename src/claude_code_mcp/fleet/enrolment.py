"""Letting machines in and out, beside the embedded server: what answers tickets and the operator.

`Enrolment` runs in the process that runs the server, since it alone can change the server's keys. `join` is the other
side of a ticket; `ask_operator` that of `fleet ticket` and `fleet remove`.
"""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import nats.errors
from nats.aio.msg import Msg

from ..errors import ClaudeCodeError, InvalidArgument, PermissionDenied, UpstreamUnavailable
from . import names
from .connection import FleetConnection, FleetUnreachable
from .engine import Running
from .machines import FleetMember, Members
from .tickets import KeyRing, MachineKey, Ticket, connect_machine, connect_ticket, new_seed, public_key

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 20.0
"""A machine is let in when the server has its key: that is a change of the configuration, and a reload."""


class Enrolment:
    """Answers while `serving` runs. One change at a time: each is on the disk and at the server before the next."""

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
        """A new ticket, which the server knows when this returns."""
        async with self._changing:
            ticket = await anyio.to_thread.run_sync(self._keys.issue, self._address, self._authority)
            await self._server.reload(self._keys.users())
        log.info("ticket %s was issued", ticket.id)
        return ticket

    async def remove(self, machine_id: str) -> None:
        """Revokes a machine's key, closes its connections and forgets it. Its lease ends by itself, and with it its
        sessions are free."""
        async with self._changing:
            await anyio.to_thread.run_sync(self._keys.remove, machine_id)
            await self._server.reload(self._keys.users())
            await self._members.remove(machine_id)
        log.info("machine %s was removed", machine_id)

    async def _join(self, message: Msg) -> None:
        ticket_id = message.subject.rsplit(".", 1)[1]
        if not message.reply.startswith(f"{names.inbox(ticket_id)}."):
            log.warning("ticket %s wanted its answer elsewhere; it is not answered", ticket_id)
            return
        async with self._changing:
            await _answer(message, self._let_in(ticket_id, message.data))
            await self._connection.flushed()
            # After the answer: this closes the connection of the ticket, which is used up.
            await self._server.reload(self._keys.users())

    async def _let_in(self, ticket_id: str, data: bytes) -> Any:
        asked = json.loads(data)
        key, name = str(asked["key"]), str(asked["name"])
        machine_id = await anyio.to_thread.run_sync(self._keys.admit, ticket_id, key, name)
        await self._server.reload(self._keys.users(answering=ticket_id))
        admitted = self._keys.machines[machine_id]
        await self._members.add(FleetMember(machine_id, admitted.name, key, joined=admitted.joined))
        log.info("machine %s (%s) was let in with ticket %s", machine_id, admitted.name, ticket_id)
        return {"machine": machine_id}

    async def _operate(self, message: Msg) -> None:
        verb = message.subject.rsplit(".", 1)[1]
        await _answer(message, self._operated(verb, message.data))

    async def _operated(self, verb: str, data: bytes) -> Any:
        if verb == "ticket":
            return {"ticket": str(await self.ticket())}
        if verb == "remove":
            await self.remove(str(json.loads(data)["machine"]))
            return {}
        raise InvalidArgument(f"There is no {verb!r} to ask for.")


async def _answer(message: Msg, work: Any) -> None:
    try:
        answer = {"result": await work}
    except ClaudeCodeError as problem:
        answer = {"error": problem.code, "message": problem.message}
    except (KeyError, TypeError, ValueError):
        answer = {"error": "INVALID_ARGUMENT", "message": "The request makes no sense."}
    except (nats.errors.Error, OSError, TimeoutError) as problem:
        log.warning("a request to let a machine in or out failed: %s", problem)
        answer = {"error": "UPSTREAM_UNAVAILABLE", "message": "The fleet's server could not be changed; see its log."}
    try:
        await message.respond(json.dumps(answer).encode())
    except nats.errors.Error as problem:
        log.warning("an answer was not sent: %s", problem)


_REFUSALS: dict[str, type[ClaudeCodeError]] = {
    refusal.code: refusal for refusal in (InvalidArgument, PermissionDenied, UpstreamUnavailable)
}


async def _ask(connection: FleetConnection, subject: str, **arguments: Any) -> dict[str, Any]:
    """One request. Raises what it was refused with, and FleetUnreachable if nobody answers."""
    try:
        # Around all of it: the first request subscribes before its own limit begins, and that waits for ever where the
        # server has closed the connection of a key that it no longer knows.
        with anyio.fail_after(_REQUEST_SECONDS):
            message = await connection.client.request(subject, json.dumps(arguments).encode(), timeout=_REQUEST_SECONDS)
    except (nats.errors.Error, OSError, TimeoutError) as problem:
        reason = str(problem) or type(problem).__name__
        raise FleetUnreachable(f"`claude-code-mcp fleet up` does not answer: {reason}.") from None
    answer: dict[str, Any] = json.loads(message.data)
    if "error" in answer:
        raise _REFUSALS.get(answer["error"], ClaudeCodeError)(answer["message"])
    result: dict[str, Any] = answer["result"]
    return result


async def ask_operator(connection: FleetConnection, verb: str, **arguments: Any) -> dict[str, Any]:
    """Has `fleet up` do something; for the operator's key."""
    return await _ask(connection, names.operating(verb), **arguments)


async def join(ticket: Ticket, file: Path, name: str) -> MachineKey:
    """Turns a ticket into this machine's own key, kept in `file`.

    The key is on the disk before it is sent. If the answer was lost, the same call finds that the key works. Raises
    PermissionDenied for a ticket that was used or has expired, InvalidArgument if the machine belongs to a fleet.
    """
    key = await anyio.to_thread.run_sync(MachineKey.load, file)
    if key is not None and key.admitted and key.ticket_id == ticket.id:
        return key  # the same command again, as a service manager gives it
    if key is not None and key.admitted:
        raise InvalidArgument(f"This machine belongs to a fleet already. To join another one, remove {file}.")
    if key is None or key.ticket_id != ticket.id:
        key = MachineKey(ticket.address, ticket.authority, new_seed(), ticket.id)
        await anyio.to_thread.run_sync(key.save, file)
    try:
        connection = await connect_ticket(ticket)
        try:
            await _ask(connection, names.joining(ticket.id), key=public_key(key.seed), name=name)
        finally:
            await connection.abandon()
    except (FleetUnreachable, PermissionDenied):
        # Either the ticket is not good, or an earlier answer was lost: then the key is.
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
