"""The lease of a machine: its clock, its renewal, and what happens to sessions when it lapses."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import MIN_LEASE_SECONDS, FleetConnection, connect, create_stores
from claude_code_mcp.plugins.fleet.keeper import Keeper
from claude_code_mcp.plugins.fleet.leases import (
    FencingClock,
    HeldByOtherMachine,
    Holding,
    Holdings,
    LeaseLapsed,
    MachineInUse,
    MachineLease,
    TransferUnfinished,
)
from claude_code_mcp.plugins.fleet.nats_server import Running, running
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.tickets import new_seed
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS, until_true

ROOT = Path(__file__).parents[3]


class RecordedTurns:
    """What the lease has had done."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    async def resume(self, holding: Holding) -> None:
        self.calls.append(f"resume {holding.epoch}")

    async def end(self, holding: Holding) -> None:
        self.calls.append(f"end {holding.epoch}")


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


# -- the clock, without a server --------------------------------------------------------------------------------------


def test_a_lease_counts_from_before_its_renewal_was_sent() -> None:
    now = ManualClock()
    clock = FencingClock(now, duration=4.0)
    assert clock.remaining <= 0
    sent = now.time
    now.time += 3  # the answer took its time
    clock.renewed(sent)
    assert clock.remaining == pytest.approx(1.0)
    now.time += 1
    assert clock.remaining <= 0


def test_an_answer_that_arrives_after_a_newer_one_shortens_nothing() -> None:
    now = ManualClock()
    clock = FencingClock(now, duration=4.0)
    clock.renewed(104.0)
    clock.renewed(101.0)
    assert clock.remaining == pytest.approx(8.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans()), max_size=40))
def test_by_its_own_clock_a_lease_never_outlives_the_one_at_the_server(
    renewals: list[tuple[float, float, bool]],
) -> None:
    """Each renewal is stored at some moment after it was sent, and answered later or not at all."""
    now = ManualClock()
    clock = FencingClock(now, duration=4.5)
    ends_at_server = float("-inf")
    for until_stored, until_answered, answered in renewals:
        sent = now.time
        now.time += until_stored
        ends_at_server = now.time + 6.0
        now.time += until_answered
        if answered:
            clock.renewed(sent)
        if clock.remaining > 0:
            assert now.time < ends_at_server


# -- at a server ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def machine(
    connection: FleetConnection, name: str, clock: FencingClock | None = None
) -> AsyncIterator[tuple[Holdings, RecordedTurns, MachineLease]]:
    turns = RecordedTurns()
    lease = MachineLease(connection, name, lambda: b"{}", clock)
    holdings = Holdings(lease, await OwnershipBucket.opened(connection), turns)
    async with lease.kept():
        yield holdings, turns, lease


async def lease_is_gone(connection: FleetConnection, name: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while name in await _keys(connection):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.1)


async def _keys(connection: FleetConnection) -> set[str]:
    info = await connection.jetstream.stream_info(f"KV_{names.MACHINES}", subjects_filter=">")
    return {subject.rsplit(".", 1)[1] for subject in info.state.subjects or {}}


async def test_a_session_that_a_living_machine_holds_cannot_be_taken(fleet: FleetConnection) -> None:
    async with machine(fleet, "a") as (a, _, _), machine(fleet, "b") as (b, _, _):
        holding = await a.claim("s1", "alice")
        assert holding.epoch == 1
        assert a.valid(holding)
        assert await a.claim("s1", "alice") == holding
        with pytest.raises(HeldByOtherMachine) as refused:
            await b.claim("s1", "alice")
        assert refused.value.data["machine"] == "a"
        assert await b.holder("s1") == holding


async def test_a_session_of_one_principal_is_not_claimed_for_another(fleet: FleetConnection) -> None:
    async with machine(fleet, "a") as (a, _, _):
        await a.release(await a.claim("s1", "alice"))
        with pytest.raises(PermissionDenied):
            await a.claim("s1", "bob")


async def test_a_released_session_goes_to_the_next_with_a_newer_epoch(fleet: FleetConnection) -> None:
    async with machine(fleet, "a") as (a, _, _), machine(fleet, "b") as (b, _, _):
        old = await a.claim("s1", "alice")
        await a.release(old)
        assert await a.holder("s1") is None
        assert not a.valid(old)
        new = await b.claim("s1", "alice")
        assert (new.machine, new.epoch) == ("b", 2)
        await a.release(old)  # too late: it changes nothing
        assert await a.holder("s1") == new


async def test_a_machine_under_a_new_id_continues_with_what_stays_on_it(fleet: FleetConnection) -> None:
    """It was removed and has joined again: the fleet knows the session as that of the machine before."""
    bucket = await OwnershipBucket.opened(fleet)
    before = await bucket.claim("s1", "alice", "before", stays=True)
    async with machine(fleet, "a") as (a, _, _):
        await a.note_staying("s1", "alice")  # not raised: nobody else has the session
        await a.note_staying("s2", "alice")
    assert await bucket.read("s1") == before
    noted = await bucket.read("s2")
    assert noted is not None
    assert (noted.machine, noted.stays) == ("a", True)
    keeper = Keeper(fleet, bucket, new_seed())
    asked = {"sessions": ["s1", "s2"]}
    assert await keeper._elsewhere("a", asked) == [], "its costs are counted where its files are"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bucket.follow, fleet)
        assert await bucket.not_held_by([], "alice") == [], "there is nothing to be listed"
        tasks.cancel_scope.cancel()


async def test_one_of_many_concurrent_claims_succeeds(fleet: FleetConnection) -> None:
    bucket = await OwnershipBucket.opened(fleet)
    names_of_machines = [f"m{number}" for number in range(8)]
    for name in names_of_machines:
        await fleet.jetstream.publish(names.entry(names.MACHINES, name), b"{}")
    claims = (bucket.claim("s1", "alice", name) for name in names_of_machines)
    results = await asyncio.gather(*claims, return_exceptions=True)
    (won,) = [result for result in results if isinstance(result, Holding)]
    assert sum(isinstance(result, HeldByOtherMachine) for result in results) == 7
    assert await bucket.read("s1") == won


async def test_claims_of_one_machine_at_once_share_one_epoch(fleet: FleetConnection) -> None:
    async with machine(fleet, "a") as (a, _, _):
        holdings = await asyncio.gather(*(a.claim("s1", "alice") for _ in range(5)))
        assert {holding.epoch for holding in holdings} == {1}
        assert all(map(a.valid, holdings))


async def test_the_machine_that_left_on_purpose_is_gone_at_once(fleet: FleetConnection) -> None:
    async with machine(fleet, "a") as (a, _, _):
        await a.claim("s1", "alice")
    async with machine(fleet, "b") as (b, _, _):
        assert (await b.claim("s1", "alice")).epoch == 2


async def test_the_last_holder_has_the_first_claim_for_a_moment(fleet: FleetConnection) -> None:
    bucket = await OwnershipBucket.opened(fleet)
    held = await bucket.claim("s1", "alice", "a")  # by a machine that has no lease now
    taking = asyncio.ensure_future(bucket.claim("s1", "alice", "b"))
    await until_true(lambda: "a" in bucket._missing)
    await fleet.jetstream.publish(names.entry(names.MACHINES, "a"), b"{}")  # it is back
    with pytest.raises(HeldByOtherMachine):
        await taking
    assert await bucket.read("s1") == held


async def test_the_first_question_after_a_lapse_finds_it_and_pauses_before_it_answers(fleet: FleetConnection) -> None:
    now = ManualClock()
    async with machine(fleet, "a", FencingClock(now)) as (a, turns, lease):
        holding = await a.claim("s1", "alice")
        now.time += 60  # as after a closed lid; no timer of the event loop has run
        assert not a.valid(holding)
        assert turns.calls == ["pause"]
        assert not a.valid(holding)
        assert turns.calls == ["pause"]
        with pytest.raises(LeaseLapsed):
            await a.claim("s2", "alice")
        lease.renew_now()
        await until_true(lambda: "resume 1" in turns.calls)
        assert a.valid(holding)


async def test_what_was_taken_while_the_lease_had_lapsed_is_ended_when_it_is_regained(fleet: FleetConnection) -> None:
    now = ManualClock()
    bucket = await OwnershipBucket.opened(fleet)
    async with machine(fleet, "a", FencingClock(now)) as (a, turns, lease):
        kept, lost = await a.claim("kept", "alice"), await a.claim("lost", "alice")
        now.time += 60
        assert not a.valid(lost)
        await bucket.release(lost)
        taken = await bucket.claim("lost", "alice", "b")
        lease.renew_now()
        await until_true(lambda: len(turns.calls) == 3)
        assert sorted(turns.calls) == ["end 1", "pause", "resume 1"]
        assert a.valid(kept)
        assert not a.valid(lost)
        assert await a.holder("lost") == taken


async def test_a_take_over_that_has_begun_fails_when_the_holder_is_back(fleet: FleetConnection) -> None:
    """The other machine has seen that the lease is gone, and has not written yet."""
    now = ManualClock()
    bucket = await OwnershipBucket.opened(fleet)
    async with machine(fleet, "a", FencingClock(now)) as (a, turns, lease):
        holding = await a.claim("s1", "alice")
        seen = await bucket.read("s1")
        assert seen is not None
        now.time += 60
        assert not a.valid(holding)
        lease.renew_now()
        await until_true(lambda: "resume 1" in turns.calls)
        with pytest.raises(HeldByOtherMachine):
            # What the other would write now is compared with what it has seen.
            await bucket.confirm(Holding("s1", "b", 1, "alice", seen.revision))
        sessions = await fleet.jetstream.key_value(names.SESSIONS)
        assert (await sessions.get("s1")).revision != seen.revision
        assert a.valid(holding)


async def test_a_session_that_was_given_is_not_used_before_it_has_arrived(fleet: FleetConnection) -> None:
    bucket = await OwnershipBucket.opened(fleet)
    first = await bucket.claim("s1", "alice", "a")
    await bucket.release(first)
    given = await bucket.give("s1", "alice", "b")
    assert given is not None
    assert (given.machine, given.arriving, given.epoch) == ("b", True, 2)
    async with machine(fleet, "b") as (b, _, _):
        # As when a message comes before it was taken, or after a restart in the middle of that.
        with pytest.raises(TransferUnfinished):
            await b.claim("s1", "alice")
        taking = await b.claim("s1", "alice", taking=True)
        with pytest.raises(TransferUnfinished):
            await b.claim("s1", "alice")
        assert (await bucket.confirm(taking)).arriving, "a lapse in between changes nothing"
        assert not (await b.arrived(taking)).arriving
        assert (await b.claim("s1", "alice")).epoch == taking.epoch == 3
        assert await bucket.last("s1") == b.held("s1")
        await b.release(taking)
        with pytest.raises(HeldByOtherMachine):
            await b.arrived(taking)


async def test_session_is_returned_only_if_it_has_no_holder(fleet: FleetConnection) -> None:
    bucket = await OwnershipBucket.opened(fleet)
    await bucket.release(await bucket.claim("s1", "alice", "a"))
    await bucket.return_to_source("s1", "alice", "a")
    back = await bucket.read("s1")
    assert back is not None
    assert (back.machine, back.arriving) == ("a", False), "it has all of it"
    with pytest.raises(HeldByOtherMachine):
        await bucket.return_to_source("s1", "alice", "b")


async def test_the_time_to_come_back_begins_when_a_machine_is_gone_and_not_with_the_first_message(
    fleet: FleetConnection,
) -> None:
    bucket = await OwnershipBucket.opened(fleet)
    bucket.note_present(["a", "b"])
    assert not bucket._missing
    bucket.note_present(["b"])
    since = bucket._missing["a"]
    bucket.note_present(["b"])
    assert bucket._missing == {"a": since}
    bucket.note_present(["a", "b"])
    assert not bucket._missing, "when it goes again, it has its whole time again"


async def test_an_entry_that_expired_at_the_server_is_a_lapse_whatever_the_clock_says(fleet: FleetConnection) -> None:
    async with machine(fleet, "a") as (a, turns, lease):
        holding = await a.claim("s1", "alice")
        await fleet.jetstream.purge_stream(f"KV_{names.MACHINES}")
        lease.renew_now()
        await until_true(lambda: turns.calls == ["pause", "resume 1"])
        assert a.valid(holding)


async def test_a_machine_counts_with_the_length_of_its_fleets_leases(fleet: FleetConnection) -> None:
    now = ManualClock()
    async with machine(fleet, "a", FencingClock(now)) as (a, turns, lease):
        holding = await a.claim("s1", "alice")
        now.time += 40
        assert a.valid(holding), "a lease of 60 s counts for 45"
        now.time += 10
        assert not a.valid(holding)
        lease.renew_now()
        await until_true(lambda: "resume 1" in turns.calls)
        now.time += 40
        assert a.valid(holding), "the entry was there all the time"


class AskedForTheLength:
    """Says what the fleet said when it was asked, each time when it is let to."""

    def __init__(self, bucket: OwnershipBucket) -> None:
        self._bucket = bucket
        self.asked = 0
        self.let_through = asyncio.Semaphore(1)

    async def __call__(self) -> float:
        length = await self._bucket.lease_seconds()
        self.asked += 1
        await self.let_through.acquire()
        return length


async def test_a_machine_whose_entry_had_expired_counts_with_the_shortest_lease_until_it_has_asked_again(
    fleet: FleetConnection,
) -> None:
    """The fleet may have shortened its leases while there was no entry."""
    now, asking = ManualClock(), AskedForTheLength(await OwnershipBucket.opened(fleet))
    lease = MachineLease(fleet, "a", lambda: b"{}", FencingClock(now))
    lease.read_length = asking

    def stands() -> bool:
        return lease.standing

    async with lease.kept():
        now.time += 40
        assert stands()
        for note_reconnection in fleet.when_reconnected:
            note_reconnection()
        lease.renew_now()
        await until_true(lambda: asking.asked == 2)
        await fleet.jetstream.purge_stream(f"KV_{names.MACHINES}")
        lease.renew_now()
        await until_true(lambda: lease.lapses == 1 and lease.standing)
        asking.let_through.release()  # the answer is from before the entry expired

        def asked_again() -> bool:
            lease.renew_now()
            return asking.asked == 3

        await until_true(asked_again)
        now.time += MIN_LEASE_SECONDS
        assert not stands()
        asking.let_through.release()
        lease.renew_now()
        await until_true(lambda: lease.standing and lease._clock.duration > 40)
        now.time += 40
        assert stands()


async def test_a_fleet_that_does_not_tell_the_length_keeps_no_machine_out(fleet: FleetConnection) -> None:
    async def refused() -> float:
        raise LeaseLapsed("no gateway")

    now = ManualClock()
    lease = MachineLease(fleet, "a", lambda: b"{}", FencingClock(now))
    lease.read_length = refused
    async with lease.kept():
        assert lease.standing
        now.time += MIN_LEASE_SECONDS
        assert lease._clock.remaining <= 0


async def test_a_copied_key_is_found_and_the_machine_that_was_first_stops(
    fleet: FleetConnection, engine: Running
) -> None:
    copy = await connect(engine.url)
    with pytest.raises(MachineInUse):  # noqa: PT012 - it is raised at the end of the block
        async with machine(fleet, "a") as (a, turns, lease):
            holding = await a.claim("s1", "alice")
            async with machine(copy, "a"):
                lease.renew_now()
                await asyncio.sleep(HANG_SECONDS)
    assert turns.calls == ["pause"]
    assert not a.valid(holding)
    await copy.close()


# -- many sessions to confirm -----------------------------------------------------------------------------------------


class GuardedOwnership:
    """The bucket, whose confirmations each wait until they are let through."""

    def __init__(self, bucket: OwnershipBucket) -> None:
        self._bucket = bucket
        self.read, self.claim, self.arrived = bucket.read, bucket.claim, bucket.arrived
        self.release, self.lease_seconds = bucket.release, bucket.lease_seconds
        self.begun: list[str] = []
        self.running: set[str] = set()
        self.let_through = asyncio.Semaphore(0)
        self.when_begun: Callable[[str], None] = lambda _: None

    async def confirm(self, holding: Holding) -> Holding:
        assert holding.session_id not in self.running, "two confirmations of one session at once"
        self.when_begun(holding.session_id)
        self.begun.append(holding.session_id)
        self.running.add(holding.session_id)
        try:
            await self.let_through.acquire()
            return await self._bucket.confirm(holding)
        finally:
            self.running.discard(holding.session_id)


class ConfirmingMachine:
    """A machine with two sessions whose lease has lapsed and is regained, and which is about to confirm the first."""

    def __init__(self, connection: FleetConnection, bucket: OwnershipBucket) -> None:
        self.now, self.turns, self.reports = ManualClock(), RecordedTurns(), 0
        self.ownership = GuardedOwnership(bucket)
        self.lease = MachineLease(connection, "a", self._report, FencingClock(self.now))
        self.holdings = Holdings(self.lease, self.ownership, self.turns)
        self.begun_without_lease: list[str] = []
        self.ownership.when_begun = self._note

    def _note(self, session_id: str) -> None:
        if not self.lease.standing:
            self.begun_without_lease.append(session_id)

    def _report(self) -> bytes:
        self.reports += 1
        return b"{}"

    def lapse(self) -> None:
        self.now.time += 60
        assert not self.lease.standing

    async def renewed(self) -> None:
        before = self.reports
        self.lease.renew_now()
        await until_true(lambda: self.reports > before and self.lease.standing)


@asynccontextmanager
async def confirming(connection: FleetConnection) -> AsyncIterator[tuple[ConfirmingMachine, Holding, Holding]]:
    at = ConfirmingMachine(connection, await OwnershipBucket.opened(connection))
    async with at.lease.kept():
        first, second = await at.holdings.claim("s1", "alice"), await at.holdings.claim("s2", "alice")
        at.lapse()
        await at.renewed()
        await until_true(lambda: at.ownership.begun == ["s1"])
        yield at, first, second


async def test_the_lease_is_renewed_while_sessions_are_confirmed(fleet: FleetConnection) -> None:
    async with confirming(fleet) as (at, first, second):
        for _ in range(3):
            await at.renewed()
        assert at.ownership.begun == ["s1"]
        assert not at.holdings.valid(first)
        assert not at.holdings.valid(second)
        at.ownership.let_through.release()
        await until_true(lambda: at.ownership.begun == ["s1", "s2"])
        assert at.holdings.valid(first), "each goes on when it is confirmed, and not when all are"
        assert not at.holdings.valid(second)
        at.ownership.let_through.release()
        await until_true(lambda: at.holdings.valid(second))
        assert at.turns.calls == ["pause", "resume 1", "resume 1"]


async def test_expired_lease_makes_all_sessions_unconfirmed(fleet: FleetConnection) -> None:
    async with confirming(fleet) as (at, first, second):
        at.ownership.let_through.release()
        await until_true(lambda: at.ownership.begun == ["s1", "s2"])
        assert at.holdings.valid(first)
        at.lapse()
        await at.renewed()
        # The answer that was on its way is from before the lapse.
        at.ownership.let_through.release()
        await until_true(lambda: len(at.ownership.begun) == 3)
        assert not at.holdings.valid(first)
        assert not at.holdings.valid(second)
        at.ownership.let_through.release()
        at.ownership.let_through.release()
        await until_true(lambda: at.holdings.valid(first) and at.holdings.valid(second))
        assert at.turns.calls == ["pause", "resume 1", "pause", "resume 1", "resume 1"]


async def test_nothing_is_confirmed_while_the_lease_does_not_stand(fleet: FleetConnection) -> None:
    """Another machine that reads it then could still take the session before the next renewal is stored."""
    async with confirming(fleet) as (at, first, second):
        at.lapse()
        for _ in range(3):
            at.ownership.let_through.release()
        await until_true(lambda: at.holdings.valid(first) and at.holdings.valid(second))
        assert at.begun_without_lease == []


async def test_a_claim_waits_for_the_confirmation_and_continues_with_the_same_epoch(fleet: FleetConnection) -> None:
    async with confirming(fleet) as (at, first, second):
        # One that is being confirmed, and one whose turn would come later.
        claims = [asyncio.ensure_future(at.holdings.claim(name, "alice")) for name in ("s1", "s2")]
        await until_true(lambda: sorted(at.ownership.begun) == ["s1", "s2"])
        assert not any(claim.done() for claim in claims)
        at.ownership.let_through.release()
        at.ownership.let_through.release()
        claimed = await asyncio.gather(*claims)
        assert [each.epoch for each in claimed] == [first.epoch, second.epoch]
        assert at.turns.calls == ["pause", "resume 1", "resume 1"], "what was paused goes on, once"


async def test_a_session_that_is_abandoned_while_it_is_confirmed_is_free_and_not_lost(fleet: FleetConnection) -> None:
    async with confirming(fleet) as (at, first, second):
        await at.holdings.release(first)
        at.ownership.let_through.release()
        at.ownership.let_through.release()
        await until_true(lambda: at.holdings.valid(second))
        assert at.turns.calls == ["pause", "resume 1"]
        assert await at.holdings.holder("s1") is None
        assert at.holdings.held("s1") is None


# -- a machine as a process of its own --------------------------------------------------------------------------------


class MachineProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().strip())

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def machine_process(url: str, name: str, session: str) -> AsyncIterator[MachineProcess]:
    arguments = (sys.executable, "-m", "tests.plugins.fleet.lease_holder", url, name, session)
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    started = MachineProcess(process)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(started.read())
        try:
            await until_true(lambda: "write" in started.lines)
            yield started
        finally:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("lease_seconds", [MIN_LEASE_SECONDS])
@pytest.mark.soak  # with the CLI: test_turns.py; the decision: test_what_was_taken_…
async def test_a_machine_that_was_frozen_for_longer_than_its_lease_writes_nothing_more(
    fleet: FleetConnection, engine: Running
) -> None:
    async with machine_process(engine.url, "a", "s1") as a:
        a.signal(signal.SIGSTOP)
        bucket = await OwnershipBucket.opened(fleet)
        await lease_is_gone(fleet, "a")
        taken = await bucket.claim("s1", "alice", "b")
        assert taken.epoch == 2
        before = len(a.lines)
        a.signal(signal.SIGCONT)
        await until_true(lambda: "end 1" in a.lines)
        assert a.lines[before:] == ["pause", "end 1"]


@pytest.mark.parametrize("lease_seconds", [MIN_LEASE_SECONDS])
@pytest.mark.soak
async def test_frozen_machine_continues_if_its_session_was_not_taken(fleet: FleetConnection, engine: Running) -> None:
    async with machine_process(engine.url, "a", "s1") as a:
        a.signal(signal.SIGSTOP)
        await lease_is_gone(fleet, "a")
        before = len(a.lines)
        a.signal(signal.SIGCONT)
        await until_true(lambda: a.lines[-1] == "write" and "resume 1" in a.lines)
        assert a.lines[before : before + 3] == ["pause", "resume 1", "write"]


@pytest.mark.soak  # of the real CLI: test_turns.py
async def test_turns_are_paused_while_the_server_is_gone_and_continue_when_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    async with running(tmp_path, port) as server:
        connection = await connect(server.url)
        await create_stores(connection)
        await connection.close()
        url = server.url
        context = machine_process(url, "a", "s1")
        a = await context.__aenter__()
    try:
        await until_true(lambda: "pause" in a.lines)  # it was killed here, and nobody said so to the machine
        paused = len(a.lines)
        async with running(tmp_path, port):
            await until_true(lambda: "resume 1" in a.lines)
            assert a.lines[paused] == "resume 1"
            await until_true(lambda: a.lines[-1] == "write")
    finally:
        await context.__aexit__(None, None, None)
