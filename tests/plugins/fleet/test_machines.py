"""Which machines there are, as everybody who follows them sees it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.plugins.fleet import machines, names
from claude_code_mcp.plugins.fleet.connection import (
    MIN_LEASE_SECONDS,
    FleetConnection,
    FleetUnreachable,
    connect,
    create_stores,
)
from claude_code_mcp.plugins.fleet.leases import MachineLease
from claude_code_mcp.plugins.fleet.live_fleet import LiveFleet
from claude_code_mcp.plugins.fleet.machines import (
    FleetMember,
    Machine,
    MachineNotFound,
    MachineReport,
    Members,
    Membership,
)
from claude_code_mcp.plugins.fleet.nats_server import Running, running
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS, until_true

MACHINE = Machine("a", "server", "1.0", "2.1.325", frozenset({"gpu"}), 6, 0, 0, False, ("git@example.org:a.git",))


@asynccontextmanager
async def reporting(connection: FleetConnection, report: MachineReport) -> AsyncIterator[MachineLease]:
    lease = MachineLease(connection, report.machine.id, report)
    async with lease.kept():
        yield lease


async def when(membership: Membership, reached: object) -> None:
    assert callable(reached)
    async with asyncio.timeout(HANG_SECONDS):
        while not reached():
            await membership.changed.wait()


async def test_a_machine_is_seen_with_what_it_reports_and_measures(fleet: FleetConnection) -> None:
    async with Membership(fleet).followed() as membership:
        assert membership.machines() == []
        report = MachineReport(MACHINE, lambda: 2)
        async with reporting(fleet, report) as lease:
            await when(membership, membership.machines)
            (seen,) = membership.machines()
            assert seen.free_memory > 0
            assert seen == replace(MACHINE, sessions=2, free_memory=seen.free_memory)
            assert seen.free_slots == 4
            report.machine = replace(MACHINE, repositories=("b",))
            lease.renew_now()
            await when(membership, lambda: membership.machines()[0].repositories == ("b",))
        await when(membership, lambda: not membership.machines())  # it has said that it leaves


async def test_a_machine_is_there_for_the_length_of_the_fleets_leases(fleet: FleetConnection) -> None:
    async with Membership(fleet).followed() as membership:
        await fleet.jetstream.publish(names.entry(names.MACHINES, "a"), MachineReport(MACHINE)())
        await when(membership, membership.machines)
        _, end = membership._alive["a"]
        assert end > time.monotonic() + MIN_LEASE_SECONDS + machines.GRACE_SECONDS


async def test_who_comes_later_knows_all_that_are_there(fleet: FleetConnection) -> None:
    async with (
        reporting(fleet, MachineReport(MACHINE)),
        reporting(fleet, MachineReport(replace(MACHINE, id="b", name="laptop"))),
        Membership(fleet).followed() as membership,
    ):
        assert [machine.id for machine in membership.machines()] == ["b", "a"]


async def test_a_fleet_without_stores_is_not_waited_for(engine: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an operator's own servers before the first `fleet up`, or with too few of them."""
    monkeypatch.setattr(machines, "_FOLLOW_SECONDS", 0.5)
    connection = await connect(engine.url)
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(FleetUnreachable, match="stores cannot be read"):
            async with Membership(connection).followed():
                raise AssertionError
    await connection.close()


@pytest.mark.parametrize("lease_seconds", [MIN_LEASE_SECONDS])
@pytest.mark.soak  # so is the one of test_story.py
async def test_machine_that_stops_reporting_becomes_offline(fleet: FleetConnection) -> None:
    members = await Members.opened(fleet)
    await members.add(FleetMember("a", "server"))
    async with Membership(fleet).followed() as membership:
        assert [member.id for member in membership.gone()] == ["a"]
        await fleet.jetstream.publish(names.entry(names.MACHINES, "a"), MachineReport(MACHINE)())
        await when(membership, membership.machines)
        assert membership.gone() == []
        await when(membership, lambda: not membership.machines())  # it never reported again
        assert [member.name for member in membership.gone()] == ["server"]


async def test_a_drained_machine_is_drained_whatever_it_reports(fleet: FleetConnection) -> None:
    members = await Members.opened(fleet)
    await members.add(FleetMember("a", "server"))
    async with Membership(fleet).followed() as membership, reporting(fleet, MachineReport(MACHINE)):
        await when(membership, membership.machines)
        await members.drain("a", True)
        await when(membership, lambda: membership.machines()[0].draining)
        await members.drain("a", False)
        await when(membership, lambda: not membership.machines()[0].draining)
        with pytest.raises(InvalidArgument):
            await members.drain("b", True)


async def test_members_are_found_by_id_and_by_a_name_that_is_not_ambiguous(fleet: FleetConnection) -> None:
    members = await Members.opened(fleet)
    for machine_id, name in (("a", "server"), ("b", "laptop"), ("c", "laptop")):
        await members.add(FleetMember(machine_id, name))
    async with Membership(fleet).followed() as membership, reporting(fleet, MachineReport(replace(MACHINE, id="d"))):
        await when(membership, membership.machines)
        assert membership.find("b").id == "b"
        assert membership.find("d").name == "server"  # no member, but there
        for name, problem in (("laptop", "2 machines"), ("server", "2 machines"), ("e", "No machine")):
            with pytest.raises(MachineNotFound, match=problem):
                membership.find(name)
        await members.remove("c")
        await when(membership, lambda: len(membership.gone()) == 2)
        assert membership.find("laptop").id == "b"
        await members.drain("d", True, "server")
        await when(membership, lambda: membership.machines()[0].draining)
        await members.remove("d")
        await when(membership, lambda: not membership.machines())  # at once, though it goes on reporting


@pytest.mark.parametrize("value", [[], {**MACHINE.to_json(), "name": 3}, {**MACHINE.to_json(), "labels": None}])
async def test_wrong_machine_data_does_not_hide_other_machines(fleet: FleetConnection, value: object) -> None:
    async with Membership(fleet).followed() as membership:
        await fleet.jetstream.publish(names.entry(names.MACHINES, "wrong"), json.dumps(value).encode())
        async with reporting(fleet, MachineReport(MACHINE)):
            await when(membership, membership.machines)
            assert [machine.id for machine in membership.machines()] == ["a"]


def test_the_id_of_a_machine_is_that_of_its_key() -> None:
    assert Machine.from_json("a", {**MACHINE.to_json(), "id": "b"}).id == "a"


async def test_machines_are_followed_on_after_the_server_was_restarted(tmp_path: Path) -> None:
    port = free_port()
    async with running(tmp_path, port) as server:
        connection = await connect(server.url)
        await create_stores(connection, lease_seconds=60)
        following = Membership(connection).followed()
        membership = await following.__aenter__()
        lease = reporting(connection, MachineReport(MACHINE))
        await lease.__aenter__()
        await when(membership, membership.machines)
    async with running(tmp_path, port):
        other = await connect(server.url)
        async with reporting(other, MachineReport(replace(MACHINE, id="b"))):
            await when(membership, lambda: {machine.id for machine in membership.machines()} == {"a", "b"})
        await lease.__aexit__(None, None, None)
        await following.__aexit__(None, None, None)
        await connection.close()
        await other.close()


@pytest.mark.parametrize(
    "report", [b"[" * 10_000, b'{"capacity": Infinity}', b'{"sessions": -1e999}', b'{"labels": {}}', b"\xff", b"7"]
)
async def test_invalid_machine_report_does_not_hide_other_machines(fleet: FleetConnection, report: bytes) -> None:
    async with Membership(fleet).followed() as membership:
        await fleet.jetstream.publish(names.entry(names.MACHINES, "b"), report)
        async with reporting(fleet, MachineReport(MACHINE)):
            await when(membership, membership.machines)
            assert [machine.id for machine in membership.machines()] == ["a"]


async def test_what_stays_on_a_machine_that_was_removed_is_looked_for_on_the_disks(fleet: FleetConnection) -> None:
    """The machine may join again, with a new key and so under another id."""
    members, holders = await Members.opened(fleet), await OwnershipBucket.opened(fleet)
    await members.add(FleetMember(id="a", name="desk"))
    await holders.claim("s1", "alice", "a", stays=True)
    async with Membership(fleet).followed() as membership:
        view = LiveFleet(membership, holders)
        assert (await view.holder("s1"), await view.stays("s1")) == ("a", True)
        await members.remove("a")
        await until_true(lambda: membership.was_removed("a"))
        assert await view.holder("s1") is None
