"""The machines of a fleet: their reports, and which are online.

A machine's report is the value of its lease, so a machine that cannot renew disappears with its report. The operator's
data about a machine (its name, its key, whether it is drained) is in another bucket that no machine may write: a
drained machine is skipped whether or not it agrees.
"""

import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import anyio

from ...core import json_text
from ...core.errors import ClaudeCodeError, ExitCode, InvalidArgument, UpstreamUnavailable
from ...core.processes import memory
from . import names
from .connection import (
    MIN_LEASE_SECONDS,
    FleetConnection,
    FleetUnreachable,
    entries_of,
    follow_bucket,
    read_lease_seconds,
)
from .nats_client import KeyNotFoundError, KeyValue, KeyWrongLastSequenceError

log = logging.getLogger(__name__)

_MAX_REPOSITORIES = 500
_MAX_TEXT = 200
GRACE_SECONDS = 0.5
"""How long after the end of its lease at NATS a machine counts as offline, at the latest."""
_ATTEMPTS = 8
_FOLLOW_SECONDS = 20.0


class MachineNotFound(ClaudeCodeError):
    """No machine of the fleet has this id or name, or several have the name."""

    code = "NOT_FOUND"
    exit_code = ExitCode.NOT_FOUND


@dataclass(frozen=True)
class Machine:
    """An online machine, according to its report."""

    id: str
    name: str
    version: str
    """The version of claude-code-mcp."""
    cli_version: str
    """The version of Claude Code; empty if not installed."""
    labels: frozenset[str]
    capacity: int
    sessions: int
    free_memory: int
    draining: bool
    repositories: tuple[str, ...]
    run: str = ""
    """Distinguishes this process of the machine from earlier ones. Connections to earlier ones lead nowhere."""

    @property
    def free_slots(self) -> int:
        """How many more sessions it accepts."""
        return max(0, self.capacity - self.sessions)

    def to_json(self) -> dict[str, Any]:
        """The fields, for reports."""
        return {**asdict(self), "labels": sorted(self.labels)}

    @classmethod
    def from_json(cls, machine_id: str, value: Mapping[str, Any]) -> Self:
        """A machine from its report, within bounds, because the report is a claim. The id is derived from the key, so
        the machine cannot choose it. Fields that other versions lack or add are tolerated: the machine is visible but
        not chosen, because its version differs. Raises ValueError."""
        try:
            return cls(
                id=machine_id,
                name=_text(value.get("name", "")) or machine_id,
                version=_text(value.get("version", "")),
                cli_version=_text(value.get("cli_version", "")),
                labels=frozenset(_text(label) for label in value.get("labels", ())[:_MAX_REPOSITORIES]),
                capacity=max(0, int(value.get("capacity", 0))),
                sessions=max(0, int(value.get("sessions", 0))),
                free_memory=max(0, int(value.get("free_memory", 0))),
                draining=value.get("draining", False) is True,
                repositories=tuple(_text(name) for name in value.get("repositories", ())[:_MAX_REPOSITORIES]),
                run=_text(value.get("run", "")),
            )
        except (TypeError, AttributeError, KeyError, OverflowError) as problem:
            raise ValueError(f"machine {machine_id} sent a report that cannot be parsed: {problem}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value[:_MAX_TEXT]


@dataclass
class MachineReport:
    """What this machine reports with each renewal of its lease, measured each time."""

    machine: Machine
    """The constant part. Replace it and renew the lease to report a change at once."""
    count_sessions: Callable[[], int] = field(default=lambda: 0)

    def measure(self) -> Machine:
        """The machine's current report. Reads a few lines of /proc, which never blocks."""
        found = memory.machine()
        return replace(
            self.machine, sessions=self.count_sessions(), free_memory=found.available if found is not None else 0
        )

    def __call__(self) -> bytes:
        return json.dumps(self.measure().to_json()).encode()


@dataclass(frozen=True)
class FleetMember:
    """An admitted machine, whether or not it is online."""

    id: str
    name: str
    public_key: str = ""
    draining: bool = False
    joined: float = 0.0

    @property
    def run(self) -> str:
        """Unknown for a machine that is offline."""
        return ""


class Members:
    """The admitted machines; for keys that may write them."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    @classmethod
    async def opened(cls, connection: FleetConnection) -> Self:
        """The members of a fleet."""
        return cls(await connection.jetstream.key_value(names.MEMBERS))

    async def all(self) -> list[FleetMember]:
        """Every member, by name. Raises NATS errors."""
        found = [_member(entry.key, entry.value or b"") for entry in await entries_of(self._bucket)]
        return sorted(found, key=lambda member: (member.name, member.id))

    async def add(self, member: FleetMember) -> None:
        """Admits a machine."""
        await self._bucket.put(names.token(member.id), _member_value(member))

    async def drain(self, machine_id: str, draining: bool, name: str = "") -> FleetMember:
        """Drains the machine, or accepts sessions again. A machine that is not a member yet, as on an operator's own
        NATS, becomes one with this name; without a name, raises InvalidArgument."""
        for _ in range(_ATTEMPTS):
            try:
                entry = await self._bucket.get(names.token(machine_id))
                before, revision = _member(machine_id, entry.value or b""), entry.revision
            except KeyNotFoundError as missing:
                if not name:
                    raise InvalidArgument(f"There is no machine {machine_id}.") from None
                before, revision = FleetMember(machine_id, name), missing.entry.revision if missing.entry else 0
            member = replace(before, draining=draining)
            try:
                await self._bucket.update(machine_id, _member_value(member), last=revision)
            except KeyWrongLastSequenceError:
                continue  # another gateway changed it meanwhile
            return member
        raise UpstreamUnavailable(f"Machine {machine_id} keeps changing while it is read; try again.")

    async def remove(self, machine_id: str) -> None:
        """Forgets a machine. Its key must be revoked as well: see `tickets.py`."""
        await self._bucket.delete(names.token(machine_id))


def _member(machine_id: str, value: bytes) -> FleetMember:
    """Ignores fields of other versions; missing ones have their defaults."""
    known = {each.name for each in fields(FleetMember)}
    found = {name: value for name, value in json.loads(value).items() if name in known}
    return FleetMember(**{"name": machine_id, **found, "id": machine_id})


def _member_value(member: FleetMember) -> bytes:
    return json.dumps(asdict(member)).encode()


class Membership:
    """All online machines, followed in both buckets without polling; for keys that may read them. A machine is removed
    within half a second after its lease ended at NATS. While NATS does not answer nothing is known: after the length of
    a lease no machine is online."""

    def __init__(self, connection: FleetConnection) -> None:
        self.changed = anyio.Event()
        """Set when a machine comes, goes or reports something new; then replaced."""
        self._connection = connection
        self._lease_seconds = MIN_LEASE_SECONDS
        self._alive: dict[str, tuple[Machine, float]] = {}
        """With the time at which each is gone unless it reports again."""
        self._members: dict[str, FleetMember] = {}
        self._removed: set[str] = set()
        """Machines that the operator removed: their leases expire a moment later."""
        self._earliest = anyio.Event()

    def machines(self) -> list[Machine]:
        """The online machines, by name."""
        now = time.monotonic()
        alive = [
            self._judged(machine)
            for machine, end in self._alive.values()
            if now < end and machine.id not in self._removed
        ]
        return sorted(alive, key=lambda machine: (machine.name, machine.id))

    def was_removed(self, machine_id: str) -> bool:
        """Whether the operator removed a machine with this id."""
        return machine_id in self._removed

    def gone(self) -> list[FleetMember]:
        """Admitted machines that are offline."""
        alive = {machine.id for machine in self.machines()}
        return sorted(
            (member for member in self._members.values() if member.id not in alive), key=lambda member: member.name
        )

    def find(self, name: str) -> FleetMember:
        """The machine with this id, or the only one with this name, online or not. Raises MachineNotFound."""
        alive = {machine.id: FleetMember(machine.id, machine.name) for machine in self.machines()}
        known = {**alive, **self._members}
        found = [known[name]] if name in known else [member for member in known.values() if member.name == name]
        if len(found) != 1:
            problem = f"{len(found)} machines have the name" if found else "No machine has the id or name"
            raise MachineNotFound(f"{problem} {name!r}; `claude-code-mcp fleet status` lists them with their ids.")
        return found[0]

    def _judged(self, machine: Machine) -> Machine:
        member = self._members.get(machine.id)
        if member is None:
            return machine
        return replace(machine, name=member.name, draining=machine.draining or member.draining)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[Self]:
        """Follows the machines until the end of the block, which begins when all online ones are known. Raises
        FleetUnreachable if that takes too long."""
        async with anyio.create_task_group() as tasks:
            try:
                with anyio.move_on_after(_FOLLOW_SECONDS) as limit:
                    await tasks.start(follow_bucket, self._connection, names.MEMBERS, self._member_changed)
                    await tasks.start(
                        follow_bucket, self._connection, names.MACHINES, self._machine_changed, self._opened
                    )
                if not limit.cancelled_caught:
                    tasks.start_soon(self._expire)
                    yield self
            finally:
                tasks.cancel_scope.cancel()
        if limit.cancelled_caught:
            raise FleetUnreachable(
                "The fleet's stores cannot be read. Check that `claude-code-mcp fleet up` is running."
            )

    async def _opened(self, machines: KeyValue) -> None:
        self._lease_seconds = await read_lease_seconds(machines)

    def _machine_changed(self, entry: KeyValue.Entry) -> None:
        if entry.operation is not None:
            self._alive.pop(entry.key, None)
        else:
            try:
                machine = Machine.from_json(entry.key, json_text.decode(entry.value or b""))
            except ValueError as problem:
                log.warning("%s", problem)
                return
            before = self._alive.get(entry.key)
            self._alive[entry.key] = (machine, time.monotonic() + self._lease_seconds + GRACE_SECONDS)
            if before is None:
                self._earliest.set()
            elif before[0] == machine:
                return  # a renewal, and nothing new
        self._announce()

    def _member_changed(self, entry: KeyValue.Entry) -> None:
        if entry.operation is not None:
            self._members.pop(entry.key, None)
            self._removed.add(entry.key)
        else:
            self._removed.discard(entry.key)
            self._members[entry.key] = _member(entry.key, entry.value or b"")
        self._announce()

    def _announce(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def _expire(self) -> None:
        """NATS does not report the end of a lease (see `connection.create_stores`): a timer for the next one."""
        while True:
            now = time.monotonic()
            ended = [machine_id for machine_id, (_, end) in self._alive.items() if end <= now]
            for machine_id in ended:
                log.info("machine %s is offline", machine_id)
                del self._alive[machine_id]
            if ended:
                self._announce()
            next_end = min((end for _, end in self._alive.values()), default=None)
            self._earliest = anyio.Event()
            with anyio.move_on_after(None if next_end is None else max(0.0, next_end - now)):
                await self._earliest.wait()
