"""New sessions that wait while all machines are full: whose turn it is, and what they hear meanwhile."""

import asyncio
from dataclasses import replace

import mcp_types as types
import pytest
from mcp import Client
from mcp.client._memory import InMemoryTransport

from claude_code_mcp import __version__
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.gateway import Gateway
from claude_code_mcp.plugins.fleet.machines import Machine
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.plugins.fleet.placement import NoMachine, PlacementQueue
from claude_code_mcp.plugins.fleet.routing import PlacementRequest
from claude_code_mcp.server import sdk
from tests.support.waiting import HANG_SECONDS, until_true

from .programs import NamedFleet, choose
from .test_machine_link import backend_machine, result

ROOM = Machine("m1", "one", __version__, "2.1.325", frozenset(), 2, 0, 8 << 30, False, ())


class Fleet:
    """Machines that report what a test says, and a clock that stands still."""

    def __init__(self, *machines: Machine, longest_wait: float = HANG_SECONDS) -> None:
        self.reported = list(machines)
        self.time = 0.0
        self._changed = asyncio.Event()
        self.queue = PlacementQueue(lambda: self.reported, self.changed, longest_wait, lambda: self.time)
        self.positions: dict[str, list[tuple[int, int]]] = {}

    async def changed(self) -> None:
        await self._changed.wait()

    def report(self, *machines: Machine, later: float = 60.0) -> None:
        """What the machines say by then, when every session that was sent to them is counted."""
        self.reported, self.time = list(machines), self.time + later
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def ask(self, name: str, **request: object) -> "asyncio.Task[Machine]":
        positions = self.positions.setdefault(name, [])

        async def tell(position: int, length: int) -> None:
            positions.append((position, length))

        principal = name.rstrip("0123456789")
        return asyncio.ensure_future(self.queue.place(PlacementRequest(principal, **request), tell))  # type: ignore[arg-type]

    async def queued(self, *names: str) -> "list[asyncio.Task[Machine]]":
        """Asked for one after the other; each of them waits when the next one comes."""
        tasks = []
        for name in names:
            tasks.append(self.ask(name))
            await until_true(lambda name=name: self.positions[name])  # type: ignore[misc]
        return tasks


async def test_a_session_gets_a_free_machine_at_once_and_no_more_than_it_has_room_for() -> None:
    fleet = Fleet(ROOM)
    assert [(await fleet.ask(name)).id for name in ("ann0", "ann1")] == ["m1", "m1"]
    assert fleet.positions == {"ann0": [], "ann1": []}
    # The machine has not reported them yet, and is full.
    (third,) = await fleet.queued("ann2")
    assert fleet.positions["ann2"] == [(1, 1)]
    fleet.report(replace(ROOM, sessions=1))
    assert (await third).id == ROOM.id
    assert len(fleet.queue) == 0


async def test_principals_are_served_in_turn_and_get_their_position() -> None:
    full = replace(ROOM, sessions=2)
    fleet = Fleet(full)
    first, second, third, other = await fleet.queued("ann0", "ann1", "ann2", "bob0")
    assert fleet.positions["bob0"] == [(2, 4)], "it does not wait for everything of another one"
    await until_true(lambda: fleet.positions["ann2"] == [(3, 3), (4, 4)])
    for task in (first, other, second, third):
        fleet.report(replace(full, sessions=1))
        await task
        fleet.report(full)
    assert [position for position, _ in fleet.positions["ann2"]] == [3, 4, 3, 2, 1]


async def test_who_leaves_or_is_cancelled_gives_its_place_to_the_next() -> None:
    full = replace(ROOM, sessions=2)
    fleet = Fleet(full)
    first, second = await fleet.queued("ann0", "ann1")
    first.cancel()
    await asyncio.wait([first])
    await until_true(lambda: fleet.positions["ann1"][-1] == (1, 1))
    fleet.report(replace(full, sessions=1))
    await second


async def test_a_cancelled_call_whose_turn_it_was_keeps_no_room() -> None:
    full = replace(ROOM, sessions=2)
    fleet = Fleet(full)
    first, second = await fleet.queued("ann0", "bob0")
    fleet.report(replace(full, sessions=1))
    fleet.queue._serve()
    first.cancel()  # before it has run again
    await second


async def test_where_waiting_does_not_help_or_is_not_wanted_it_is_refused() -> None:
    full = replace(ROOM, sessions=2)
    with pytest.raises(NoMachine, match=r"label\b.*\bgpu\b"):
        await Fleet(full).ask("ann0", labels=frozenset({"gpu"}))
    with pytest.raises(NoMachine, match=r"\b2\b.*\b2\b"):
        await Fleet(full, longest_wait=0).ask("ann0")
    with pytest.raises(LimitReached, match=r"within 0\.01 s; the session was number 1 of 1 in the queue"):
        await Fleet(full, longest_wait=0.01).ask("ann0")


async def test_others_do_not_wait_behind_what_fits_nowhere_now() -> None:
    gpu = replace(ROOM, id="m2", name="two", labels=frozenset({"gpu"}), sessions=2)
    fleet = Fleet(gpu, replace(ROOM, sessions=1))
    waiting = fleet.ask("ann0", labels=frozenset({"gpu"}))
    await until_true(lambda: fleet.positions["ann0"])
    assert (await fleet.ask("bob0")).id == ROOM.id
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_queued_client_gets_its_position_and_continues_when_capacity_is_free(
    engine: Running, fleet: FleetConnection
) -> None:
    notices: list[str] = []

    async def called(_: sdk.Context, request: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(
            content=result("begun").content, structured_content={"sessionId": "s", "status": "running"}
        )

    async def note(progress: float, total: float | None, message: str | None) -> None:
        notices.append(message or "")

    full = replace(ROOM, id="a", sessions=2)
    reports = Fleet(full)
    view = NamedFleet(await fleet.jetstream.key_value(names.SESSIONS), ["a"])
    gateway = Gateway(fleet, view, choose, load_settings({}), reports.queue.place)
    async with (
        Client(InMemoryTransport(gateway.server())) as client,
        backend_machine(engine.url, called, machine_id="a"),
    ):
        call = asyncio.ensure_future(client.call_tool("claude_create_session", {"prompt": "x"}, progress_callback=note))
        await until_true(lambda: notices)
        assert notices == ["Waiting for a machine: number 1 of 1."]
        reports.report(replace(full, sessions=1))
        assert "begun" in str((await call).content)
    await gateway.close()
