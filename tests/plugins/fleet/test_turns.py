"""What a machine's lease does to turns: the real CLI at work on a machine that is cut off from the fleet."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from nats.js.errors import KeyNotFoundError

from claude_code_mcp import __version__
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied, UpstreamUnavailable
from claude_code_mcp.core.model.caller import LOCAL, LOCAL_CALLER
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.stored.replica import SessionReplica
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import MIN_LEASE_SECONDS, FleetConnection, connect
from claude_code_mcp.plugins.fleet.leases import HeldByOtherMachine
from claude_code_mcp.plugins.fleet.machines import Machine
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.runner import MachineParts, running_machine
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.server.tools.manage_session import release_for_move
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import RUN
from tests.core.sessions.support import end_of
from tests.support.parts import service_parts
from tests.support.waiting import HANG_SECONDS, until_true

MACHINE = Machine(
    id="m", name="m", version=__version__, cli_version="2.1", labels=frozenset(), capacity=4, sessions=0,
    free_memory=8 << 30, draining=False, repositories=(),
)  # fmt: skip


@asynccontextmanager
async def serving(engine: Running, sandbox: Sandbox) -> AsyncIterator[Service]:
    """A machine of a fleet; its service."""
    settings = load_settings({}, state_dir=sandbox.root / "state")
    services: list[Service] = []

    @asynccontextmanager
    async def server_with(replica: SessionReplica) -> AsyncIterator[MachineParts]:
        environment = sandbox.environment(**{RUN: os.environ[RUN]})
        async with Service(settings, environment, replica=replica, **service_parts()) as service:
            services.append(service)
            yield MachineParts(McpServer(service))

    connection = await connect(engine.url)
    try:
        ownership = await OwnershipBucket.opened(connection)
        async with running_machine(connection, MACHINE, ownership, settings, server_with):
            yield services[0]
    finally:
        await connection.abandon()


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def runs(process: psutil.Process) -> bool:
    """Whether it can still execute code. What ended while its parent was stopped stays a zombie until that goes on."""
    try:
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED and not any(runs(each) for each in tree(pid))


def until_there(file: Path, waiting: Path) -> str:
    """A turn that waits for a file, and makes another one when it does."""
    command = f"touch {waiting}; until [ -e {file} ]; do sleep 0.1; done; echo done"
    return script("go", tool("Bash", command=command), "after ${tool_result}")


@pytest.mark.soak
@pytest.mark.parametrize("lease_seconds", [MIN_LEASE_SECONDS])
async def test_a_session_that_stays_on_its_machine_continues_without_the_fleet_which_has_nothing_of_it(
    engine: Running, fleet: FleetConnection, sandbox: Sandbox, model: ScriptedModelThread, tmp_path: Path
) -> None:
    waiting, go_on = tmp_path / "waiting", tmp_path / "go_on"
    async with serving(engine, sandbox) as service:
        options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
        turn = await service.create(until_there(go_on, waiting), options.model_copy(update={"stay_on_machine": True}))
        other = await service.create(until_there(tmp_path / "never", tmp_path / "other"), options)
        await until_true(waiting.exists)
        await until_true((tmp_path / "other").exists)
        session = turn.session
        assert other.session.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            await until_true(lambda: is_stopped(other.session.pid or 0), "nothing was paused")
            go_on.touch()
            assert (await end_of(turn)).result == "after done"
            assert (await end_of(await service.send(session.id, script("more", "more")))).result == "more"
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        await until_true(lambda: not is_stopped(other.session.pid or 0), "the other does not go on")
        ownership = await OwnershipBucket.opened(fleet)
        held = await ownership.read(session.id)
        assert held is not None
        assert (held.machine, held.stays) == ("m", True)
        with pytest.raises(KeyNotFoundError):
            await (await fleet.jetstream.key_value(names.RECORDS)).get(session.id)
        stored = await fleet.jetstream.stream_info(names.TRANSCRIPTS, subjects_filter=">")
        assert [*(stored.state.subjects or {})] == [names.transcript(other.session.id)]
        with pytest.raises(InvalidArgument, match="pinned to its machine"):
            await release_for_move(service, LOCAL_CALLER, session.id, wait=False, without_tree=False)
        # Nobody else can have it, whether or not its machine is there, nor is it to be brought there.
        for other_machine in ("another", "m"):
            with pytest.raises(HeldByOtherMachine):
                await ownership.claim(session.id, LOCAL, other_machine, taking=True)
        # One that has left its machine is not marked afterward.
        with pytest.raises(PermissionDenied):
            await ownership.claim(other.session.id, LOCAL, "m", stays=True)


@pytest.mark.parametrize("lease_seconds", [MIN_LEASE_SECONDS])
# One that is back in time goes on, as test_leases.py shows without the CLI.
@pytest.mark.parametrize(
    "taken", [pytest.param(False, marks=pytest.mark.soak), True], ids=["back in time", "taken meanwhile"]
)
async def test_a_turn_is_paused_before_the_lease_ends(
    engine: Running, fleet: FleetConnection, sandbox: Sandbox, model: ScriptedModelThread, taken: bool, tmp_path: Path
) -> None:
    waiting, go_on = tmp_path / "waiting", tmp_path / "go_on"
    async with serving(engine, sandbox) as service:
        options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
        turn = await service.create(until_there(go_on, waiting), options)
        await until_true(waiting.exists)
        session = turn.session
        assert session.pid is not None
        running = tree(session.pid)
        assert len(running) > 1, "the command is a process of its own"
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            await until_true(lambda: is_stopped(running[0].pid), "nothing was paused")
            with pytest.raises(UpstreamUnavailable, match="disconnected"):
                await service.send(session.id, "x")
            if taken:
                # Waits at the server before anything that this machine can ask when it is back.
                holder = b'{"machine": "other", "epoch": 9, "principal": "local"}'
                await fleet.client.publish(names.entry(names.SESSIONS, session.id), holder)
                await until_true(lambda: not fleet.client.pending_data_size)
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        go_on.touch()
        async with asyncio.timeout(HANG_SECONDS):
            outcome = await turn.outcome()
        if not taken:
            assert (outcome.code, outcome.result) == ("completed", "after done")
            return
        assert outcome.code == "machine_lost"
        await until_true(lambda: not any(each.is_running() for each in running), "something of it goes on")
