"""The host of a fleet: the embedded server, its keys and certificate, and the keeper.

Everything is in one directory, for one user: `machine.json` is this machine's own key, as on every machine; `server/`
exists only on the host. A second `fleet up` in the same directory is refused.
"""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import filelock

from ...core.errors import InvalidArgument
from ...core.private_files import private_directory, read_secret, replace_file
from .connection import FleetConnection, FleetUnreachable, create_stores
from .keeper import Keeper
from .machines import FleetMember, Members
from .nats_server import Running, ServerCertificate, ServerConfiguration, running_server, server_certificate
from .ownership import OwnershipBucket
from .removals import Removals
from .store_keeper import StoreKeeper
from .tickets import (
    KeyRing,
    MachineKey,
    connect_operator,
    new_seed,
    public_key,
)

if TYPE_CHECKING:
    from .push_receivers import FleetReceivers
from .enrollment import Enrollment

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
    enrollment: Enrollment
    kept: "GatewayServices"
    machine: MachineKey
    """This machine, which is admitted."""
    address: str
    """The server's address for other machines."""

    @property
    def ownership(self) -> OwnershipBucket:
        return self.kept.ownership


def reachable_address() -> str:
    """The address by which other machines probably reach this one; loopback without a network. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address reserved for documentation: only the route is looked up
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@asynccontextmanager
async def hosting(
    directory: Path,
    *,
    host: str,
    port: int,
    address: str | None = None,
    name: str | None = None,
    lease_seconds: float | None = None,
) -> AsyncIterator[Host]:
    """Runs the server of a fleet and its services until the end of the block. `address` is HOST or HOST:PORT for other
    machines; default: `host`, or for all interfaces the address of this machine. `name` is this machine's display name;
    default: its host name. `lease_seconds` as for `create_stores`. Raises InvalidArgument if a fleet is up in this
    directory, EngineUnavailable if the server does not start."""
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
                async with (
                    keeping(connection, keys.operator_seed, lease_seconds=lease_seconds) as kept,
                    _enrolling(connection, server, keys, reached, certificate.authority) as enrollment,
                ):
                    own = await anyio.to_thread.run_sync(MachineKey.load, machine_file(directory))
                    assert own is not None
                    yield Host(server, connection, enrollment, kept, own, reached)
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
        address = reachable_address()
    if address.count(":") == 1:
        return f"tls://{address}"  # the address has its own port, as behind port forwarding
    return f"tls://[{address}]:{port}" if ":" in address else f"tls://{address}:{port}"


@asynccontextmanager
async def _enrolling(
    connection: FleetConnection, server: Running, keys: KeyRing, address: str, authority: str
) -> AsyncIterator[Enrollment]:
    members = await Members.opened(connection)
    known = {member.id: member for member in await members.all()}
    for machine_id, machine in keys.machines.items():
        before = known.get(machine_id)
        draining = before is not None and before.draining
        member = FleetMember(machine_id, machine.name, machine.public_key, draining, machine.joined)
        if member != before:  # the file of keys is authoritative: a crash may have happened between the two writes
            await members.add(member)
    enrollment = Enrollment(connection, server, keys, members, address, authority)
    async with enrollment.serving():
        yield enrollment


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """What a keeper provides to the gateway next to it."""

    ownership: OwnershipBucket
    receivers: "FleetReceivers"


@asynccontextmanager
async def keeping(
    connection: FleetConnection, seed: str, replicas: int = 1, lease_seconds: float | None = None
) -> AsyncIterator[GatewayServices]:
    """Creates missing stores (`create_stores`) and runs the keeper until the end of the block, next to every gateway,
    whether this process or another one runs the server. `seed` is the operator key's secret."""
    from .push_receivers import FleetReceivers  # noqa: PLC0415 - loads the console, which other commands do not need

    await create_stores(connection, replicas, lease_seconds)
    bucket = await OwnershipBucket.opened(connection)
    receivers = FleetReceivers(connection, bucket, seed)
    verbs = {**receivers.verbs, **Removals(connection).verbs}
    keeper = Keeper(connection, bucket, seed, verbs, receivers.verbs_for_all)
    async with keeper.serving(), StoreKeeper(connection, bucket).serving():
        try:
            yield GatewayServices(bucket, receivers)
        finally:
            with anyio.CancelScope(shield=True):
                await receivers.close()


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
