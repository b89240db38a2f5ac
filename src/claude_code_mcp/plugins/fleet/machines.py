"""The machines of a fleet: what each reports of itself, and which are there.

A machine's report is the value of its lease, so that a machine that cannot renew is gone with everything it said. What
the operator decides about a machine (its name, its key, that it is drained) is in another bucket, which no machine may
write: a drained machine is passed over whether or not it agrees.
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
from .connection import MACHINE_SECONDS, FleetConnection, follow_bucket
from .nats_client import KeyNotFoundError, KeyValue, KeyWrongLastSequenceError

log = logging.getLogger(__name__)

_MAX_REPOSITORIES = 500
_MAX_TEXT = 200
GRACE_SECONDS = 0.5
"""How long after the end of a lease at NATS a machine counts as gone, at the latest."""
_ATTEMPTS = 8


class MachineNotFound(ClaudeCodeError):
    """No machine of the fleet has this id or name, or several have the name."""

    code = "NOT_FOUND"
    exit_code = ExitCode.NOT_FOUND


@dataclass(frozen=True)
class Machine:
    """A machine that is alive, as it reports itself."""

    id: str
    name: str
    version: str
    """Of claude-code-mcp."""
    cli_version: str
    """Of Claude Code; empty if the machine has none."""
    labels: frozenset[str]
    capacity: int
    sessions: int
    free_memory: int
    draining: bool
    repositories: tuple[str, ...]
    run: str = ""
    """Tells this process of the machine from those before it. Connections to an earlier one lead nowhere."""

    @property
    def free_slots(self) -> int:
        """How many more sessions it takes."""
        return max(0, self.capacity - self.sessions)

    def to_json(self) -> dict[str, Any]:
        """The fields, for a report or for people."""
        return {**asdict(self), "labels": sorted(self.labels)}

    @classmethod
    def from_json(cls, machine_id: str, value: Mapping[str, Any]) -> Self:
        """A machine as it was reported, within bounds: it is a claim of that machine. The id is that of the key, which
        the machine cannot choose. What is missing or not known is what another version reports otherwise: the machine
        is seen, and not chosen, since its version differs or it says nothing of it. Raises ValueError."""
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
    """What this machine reports with each renewal of its lease; measured anew each time."""

    machine: Machine
    """What does not change by itself. Replace it, and have the lease renewed, to report something else at once."""
    count_sessions: Callable[[], int] = field(default=lambda: 0)

    def measure(self) -> Machine:
        """The machine now. A few lines of /proc are read, which never waits."""
        found = memory.machine()
        return replace(
            self.machine, sessions=self.count_sessions(), free_memory=found.available if found is not None else 0
        )

    def __call__(self) -> bytes:
        return json.dumps(self.measure().to_json()).encode()


@dataclass(frozen=True)
class FleetMember:
    """A machine that was let in, whether it is there or not."""

    id: str
    name: str
    public_key: str = ""
    draining: bool = False
    joined: float = 0.0

    @property
    def run(self) -> str:
        """Of a machine that is not there none is known."""
        return ""


class Members:
    """The machines that were let in; for keys that may write them."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    @classmethod
    async def opened(cls, connection: FleetConnection) -> Self:
        """Those of a fleet."""
        return cls(await connection.jetstream.key_value(names.MEMBERS))

    async def all(self) -> list[FleetMember]:
        """Every member, by name."""
        found = []
        watcher = await self._bucket.watchall(ignore_deletes=True)
        async for entry in watcher:
            if entry is None:
                break  # these were all
            found.append(_member(entry.key, entry.value or b""))
        await watcher.stop()  # type: ignore[no-untyped-call]
        return sorted(found, key=lambda member: (member.name, member.id))

    async def add(self, member: FleetMember) -> None:
        """Lets a machine in."""
        await self._bucket.put(names.token(member.id), _member_value(member))

    async def drain(self, machine_id: str, draining: bool, name: str = "") -> FleetMember:
        """Passes the machine over from now on, or no longer. One that is no member yet, as at an operator's own NATS,
        becomes one of this name; without a name InvalidArgument is raised for it."""
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
                continue  # somebody else has changed it meanwhile
            return member
        raise UpstreamUnavailable(f"Machine {machine_id} changes faster than it can be read.")

    async def remove(self, machine_id: str) -> None:
        """Forgets a machine. Its key must be revoked as well: see `tickets.py`."""
        await self._bucket.delete(names.token(machine_id))


def _member(machine_id: str, value: bytes) -> FleetMember:
    """What another version has added is left out, and what is missing has its default."""
    known = {each.name for each in fields(FleetMember)}
    found = {name: value for name, value in json.loads(value).items() if name in known}
    return FleetMember(**{"name": machine_id, **found, "id": machine_id})


def _member_value(member: FleetMember) -> bytes:
    return json.dumps(asdict(member)).encode()


class Membership:
    """All machines that are alive, followed from both buckets without polling; for keys that may read them.

    A machine whose lease ends is gone within half a second after it ended at NATS. While NATS does not answer nothing
    is known: after the time of a lease no machine is alive.
    """

    def __init__(self, connection: FleetConnection) -> None:
        self.changed = anyio.Event()
        """Set when a machine came, went or reports something new; then replaced by a new one."""
        self._connection = connection
        self._alive: dict[str, tuple[Machine, float]] = {}
        """With the time at which each is gone unless it reports again."""
        self._members: dict[str, FleetMember] = {}
        self._removed: set[str] = set()
        """Those that the operator has removed: their leases end by themselves, a moment later."""
        self._earliest = anyio.Event()

    def machines(self) -> list[Machine]:
        """Those that are alive now, by name."""
        now = time.monotonic()
        alive = [
            self._judged(machine)
            for machine, end in self._alive.values()
            if now < end and machine.id not in self._removed
        ]
        return sorted(alive, key=lambda machine: (machine.name, machine.id))

    def was_removed(self, machine_id: str) -> bool:
        """Whether the operator has removed a machine of this id."""
        return machine_id in self._removed

    def gone(self) -> list[FleetMember]:
        """Those that were let in and are not there."""
        alive = {machine.id for machine in self.machines()}
        return sorted(
            (member for member in self._members.values() if member.id not in alive), key=lambda member: member.name
        )

    def find(self, name: str) -> FleetMember:
        """The machine of this id, or the only one of this name, alive or not. Raises MachineNotFound."""
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
        """Follows the machines until the end of the block, which begins when all that are there are known."""
        async with anyio.create_task_group() as tasks:
            try:
                await tasks.start(follow_bucket, self._connection, names.MEMBERS, self._member_changed)
                await tasks.start(follow_bucket, self._connection, names.MACHINES, self._machine_changed)
                tasks.start_soon(self._expire)
                yield self
            finally:
                tasks.cancel_scope.cancel()

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
            self._alive[entry.key] = (machine, time.monotonic() + MACHINE_SECONDS + GRACE_SECONDS)
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
        """NATS says nothing when a lease ends (see `connection.create_stores`): a timer for the next end."""
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
