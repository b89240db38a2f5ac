"""A gateway over machines that are members of the fleet: leases, holders and placement as they are."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from claude_code_mcp import __version__
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.model.events import AuditEvent, Event, TurnStarted
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.gateway import Gateway
from claude_code_mcp.plugins.fleet.leases import Holding, Holdings
from claude_code_mcp.plugins.fleet.live_fleet import LiveFleet
from claude_code_mcp.plugins.fleet.machines import FleetMember, Machine, Members, Membership
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.placement import choose_machine
from claude_code_mcp.plugins.fleet.runner import joined
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import RUN
from tests.support.tool_calls import call, finished, refused
from tests.support.waiting import until_true

from .conftest import in_own_task
from .programs import running_machine
from .test_gateway import client_of


class NoTurns:
    def pause(self) -> None: ...
    async def resume(self, holding: Holding) -> None: ...
    async def end(self, holding: Holding) -> None: ...


class ClaimsHoldings:
    """An observer that claims a session when its turn begins."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._claiming: set[asyncio.Task[Holding]] = set()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, TurnStarted):
            task = asyncio.ensure_future(self._holdings.claim(session_id, owner))
            self._claiming.add(task)
            task.add_done_callback(self._claiming.discard)

    def act(self, act: AuditEvent) -> None: ...


def reported(id_: str, *labels: str) -> Machine:
    return Machine(
        id=id_,
        name=f"{id_}-name",
        version=__version__,
        cli_version="2.1",
        labels=frozenset(labels),
        capacity=4,
        sessions=0,
        free_memory=8 << 30,
        draining=False,
        repositories=(),
    )


@asynccontextmanager
async def member(url: str, machine: Machine, service: Service) -> AsyncIterator[None]:
    connection = await connect(url)
    try:
        ownership = await OwnershipBucket.opened(connection)
        async with joined(connection, machine, ownership, NoTurns()) as holdings:
            service.observe(ClaimsHoldings(holdings))
            async with running_machine(url, machine.id, service, claims=False):
                yield
    finally:
        await connection.client.close()


@pytest.mark.soak  # from end to end: test_story.py; in parts: test_placement.py, test_gateway.py
async def test_sessions_are_placed_found_and_missed(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> None:
    members = await Members.opened(fleet)
    machines = {"a": reported("a"), "b": reported("b", "gpu")}
    for machine in machines.values():
        await members.add(FleetMember(id=machine.id, name=machine.name, public_key="none", draining=False))
    async with AsyncExitStack() as stack, Membership(fleet).followed() as membership:
        places, leaving = {}, {}
        for id_, machine in machines.items():
            place = places[id_] = Sandbox(tmp_path / id_, model.url)
            settings = load_settings({}, state_dir=place.root / "state")
            service = await stack.enter_async_context(Service(settings, place.environment(**{RUN: os.environ[RUN]})))
            leaving[id_] = await stack.enter_async_context(AsyncExitStack())
            await leaving[id_].enter_async_context(in_own_task(member(engine.url, machine, service)))
        await until_true(lambda: len(membership.machines()) == 2)
        ownership = await OwnershipBucket.opened(fleet)
        following = asyncio.ensure_future(ownership.follow(fleet))
        stack.callback(following.cancel)
        view = LiveFleet(membership, ownership)
        gateway = Gateway(fleet, view, choose_machine, load_settings({}))
        async with client_of(gateway, "2026-07-28") as client:
            made = await finished(
                client,
                "claude_create_session",
                prompt=script("go", "x"),
                labels=["gpu"],
                waitSeconds=40,
                workingDirectory=str(places["b"].project),
            )
            assert made["machine"] == "b-name"
            assert await view.holder(made["sessionId"]) == "b"
            problem = await refused(client, "claude_create_session", prompt="x", labels=["tpu"])
            assert problem["code"] == "LIMIT_REACHED"
            assert "without the label tpu" in problem["message"]
            await leaving["b"].aclose()
            await until_true(lambda: len(membership.machines()) == 1)
            assert [held.session_id for held in await view.absent(LOCAL)] == [made["sessionId"]]
            assert await view.absent("somebody else") == []
            listed = await call(client, "claude_list_sessions")
            assert listed["unanswered"] == [{"machine": "b-name", "reason": "Machine b-name is offline."}]
            problem = await refused(client, "claude_get_status", sessionId=made["sessionId"])
            assert "which is offline" in problem["message"]
        await gateway.close()
