"""The host of a fleet: the embedded server, its keys and certificate, the keeper, and admission of machines.

Everything is in one directory, for one user: `machine.json` is this machine's own key, as on every machine; `server/`
exists only on the host. A second `fleet up` in the same directory is refused. `Enrolment` answers tickets and the
operator in the process that runs the server, because only that can change the server's keys. `join` is the other side
of a ticket; `ask_operator` of `fleet ticket` and `fleet remove`.
"""

import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import filelock

from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, UpstreamUnavailable
from ...core.private_files import private_directory, read_secret, replace_file
from . import names
from .connection import FleetConnection, FleetUnreachable, create_stores
from .engine import Running, ServerCertificate, ServerConfiguration, running_server, server_certificate
from .kept_stores import StoreKeeper
from .machines import FleetMember, Members
from .nats_client import Msg, NatsError
from .ownership import Keeper, OwnershipBucket
from .removals import Removals
from .tickets import (
    KeyRing,
    MachineKey,
    Ticket,
    connect_machine,
    connect_operator,
    connect_ticket,
    new_seed,
    public_key,
)

if TYPE_CHECKING:
    from .push_receivers import FleetReceivers

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 20.0
"""Admission takes a change of the server's configuration and a reload."""


class Enrolment:
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
            await self._connection.flushed()
            # After the answer: this closes the connection of the ticket, which is used up.
            await self._reload()

    async def _reload(self, answering: str = "") -> None:
        # What machines were asked by then is answered first: the server would refuse the answer afterwards.
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
        await _answer(message, self._operated(message.subject.rsplit(".", 1)[1], message.data))

    async def _operated(self, verb: str, data: bytes) -> Any:
        if verb == "ticket":
            return {"ticket": str(await self.ticket())}
        if verb == "remove":
            await self.remove(str(json.loads(data)["machine"]))
            return {}
        raise InvalidArgument(f"Unknown request: {verb!r}.")


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


async def ask_operator(connection: FleetConnection, verb: str, **arguments: Any) -> dict[str, Any]:
    """Sends a request to `fleet up`; needs the operator's key."""
    return await _ask(connection, names.operating(verb), **arguments)


async def join(ticket: Ticket, file: Path, name: str) -> MachineKey:
    """Exchanges a ticket for this machine's own key, stored in `file`. The key is on disk before it is sent; if the
    answer was lost, a repeated call finds that the key works. Raises PermissionDenied for a used or expired ticket,
    InvalidArgument if the machine belongs to a fleet."""
    key = await anyio.to_thread.run_sync(MachineKey.load, file)
    if key is not None and key.admitted and key.ticket_id == ticket.id:
        return key  # the same command again, as a service manager gives it
    if key is not None and key.admitted:
        raise InvalidArgument(f"This machine already belongs to a fleet. To join another one, remove {file}.")
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


# -- the host ---------------------------------------------------------------------------------------------------------


_MAX_FILE = 64 << 10


def machine_file(directory: Path) -> Path:
    """The file of a machine's key."""
    return directory / "machine.json"


@contextmanager
def only_process(file: Path, refusal: str) -> Iterator[None]:
    """Ensures that this is the only process in the block, of all that use this file. Raises InvalidArgument with the
    refusal."""
    lock = filelock.FileLock(private_directory(file.parent) / file.name, mode=0o600)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise InvalidArgument(refusal) from None
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class Host:
    """A running fleet."""

    server: Running
    connection: FleetConnection
    """With the operator's key."""
    enrolment: Enrolment
    kept: "Kept"
    machine: MachineKey
    """This machine, which is admitted."""
    address: str
    """The server's address for other machines."""

    @property
    def ownership(self) -> OwnershipBucket:
        return self.kept.ownership


def outward_address() -> str:
    """The address by which other machines probably reach this one; loopback without a network. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documents: only the route is looked up
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@asynccontextmanager
async def hosting(
    directory: Path, *, host: str, port: int, address: str | None = None, name: str | None = None
) -> AsyncIterator[Host]:
    """Runs the server of a fleet and its services until the end of the block. `address` is HOST or HOST:PORT for other
    machines; default: `host`, or for all interfaces the address of this machine. `name` is this machine's display name;
    default: its host name. Raises InvalidArgument if a fleet is up in this directory, EngineUnavailable if the server
    does not start."""
    home = directory / "server"
    with only_process(home / "lock", "The fleet is already up on this machine."):
        certificate, keys, machine = await anyio.to_thread.run_sync(
            _prepare, directory, home, name or socket.gethostname()
        )
        configuration = ServerConfiguration(home / "nats", host, port, certificate, keys.users())
        async with running_server(configuration) as server:
            reached = _reached_at(address or host, server.port)
            await anyio.to_thread.run_sync(_note_address, home, server.url, machine, machine_file(directory))
            connection = await connect_operator(server.url, certificate.authority, keys.operator_seed)
            try:
                async with _serving(connection, server, keys, reached, certificate.authority) as (enrolment, kept):
                    own = await anyio.to_thread.run_sync(MachineKey.load, machine_file(directory))
                    assert own is not None
                    yield Host(server, connection, enrolment, kept, own, reached)
            finally:
                with anyio.CancelScope(shield=True):
                    await connection.close()


def _prepare(directory: Path, home: Path, name: str) -> tuple[ServerCertificate, KeyRing, MachineKey]:
    certificate = server_certificate(home / "tls")
    keys = KeyRing.opened(home / "keys.json")
    found = MachineKey.load(machine_file(directory))
    if found is not None and found.authority != certificate.authority:
        raise InvalidArgument(
            f"This machine belongs to another fleet. To make it the host of one, remove {machine_file(directory)}."
        )
    machine = found or MachineKey("", certificate.authority, new_seed(), admitted=True)
    keys.admit_directly(public_key(machine.seed), name)
    return certificate, keys, machine


def _note_address(home: Path, url: str, machine: MachineKey, file: Path) -> None:
    """Stores the address for commands on this machine and its own runner."""
    replace_file(home / "server.json", json.dumps({"url": url}).encode())
    MachineKey(url, machine.authority, machine.seed, machine.ticket_id, admitted=True).save(file)


def _reached_at(address: str, port: int) -> str:
    if address in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        address = outward_address()
    if address.count(":") == 1:
        return f"tls://{address}"  # with its own port, as behind a forwarding
    return f"tls://[{address}]:{port}" if ":" in address else f"tls://{address}:{port}"


@asynccontextmanager
async def _serving(
    connection: FleetConnection, server: Running, keys: KeyRing, address: str, authority: str
) -> AsyncIterator[tuple[Enrolment, "Kept"]]:
    async with keeping(connection, keys.operator_seed) as kept:
        members = await Members.opened(connection)
        known = {member.id: member for member in await members.all()}
        for machine_id, machine in keys.machines.items():
            before = known.get(machine_id)
            draining = before is not None and before.draining
            member = FleetMember(machine_id, machine.name, machine.public_key, draining, machine.joined)
            if member != before:  # the file of keys is the truth: a crash may have come between the two
                await members.add(member)
        enrolment = Enrolment(connection, server, keys, members, address, authority)
        async with enrolment.serving():
            yield enrolment, kept


@dataclass(frozen=True, slots=True)
class Kept:
    """What a keeper provides to the gateway next to it."""

    ownership: OwnershipBucket
    receivers: "FleetReceivers"


@asynccontextmanager
async def keeping(connection: FleetConnection, seed: str, replicas: int = 1) -> AsyncIterator[Kept]:
    """Creates missing stores and runs the keeper until the end of the block, next to every gateway, whoever runs the
    server. `seed` is the operator key's secret."""
    from .push_receivers import FleetReceivers  # noqa: PLC0415 - loads the console, which other commands do not need

    await create_stores(connection, replicas)
    bucket = await OwnershipBucket.opened(connection)
    receivers = FleetReceivers(connection, bucket, seed)
    verbs = {**receivers.verbs, **Removals(connection).verbs}
    keeper = Keeper(connection, bucket, seed, verbs, receivers.verbs_for_all)
    async with keeper.serving(), StoreKeeper(connection, bucket).serving():
        yield Kept(bucket, receivers)


async def connect_to_host(directory: Path) -> FleetConnection:
    """Connects with the operator's key to the fleet on this machine. Raises FleetUnreachable."""

    def read() -> tuple[str, str, str]:
        home = directory / "server"
        url = json.loads(read_secret(home / "server.json", _MAX_FILE))["url"]
        authority = (home / "tls" / "authority.pem").read_text(encoding="ascii")
        return url, authority, KeyRing.opened(home / "keys.json").operator_seed

    try:
        url, authority, seed = await anyio.to_thread.run_sync(read)
    except FileNotFoundError:
        raise FleetUnreachable("There is no fleet on this machine: `claude-code-mcp fleet up` creates one.") from None
    return await connect_operator(url, authority, seed)
