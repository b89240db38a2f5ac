"""`fleet up` and a runner end soon after SIGTERM, also when the NATS server does not answer."""

import asyncio
import signal
from pathlib import Path

import psutil
import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from claude_code_mcp.testing import ScriptedModelThread
from tests.support.fleet import Computer, claude_processes, front_of, processes_of
from tests.support.waiting import until

from .test_story import begun_on

pytestmark = pytest.mark.programs

STOP_SECONDS = 30.0
"""After that a service manager kills. They take about six; without limits on what they wait for, 17 and 43."""


def nats_server_of(pid: int) -> psutil.Process:
    (server,) = [each for each in psutil.Process(pid).children() if each.name().startswith("nats-server")]
    return server


async def test_both_end_soon_although_the_server_is_frozen(tmp_path: Path, model: ScriptedModelThread) -> None:
    """Each with a session in the middle of a turn, whose last lines cannot leave the machine."""
    server, laptop = places = [Computer(tmp_path / name, model.url) for name in ("server", "laptop")]
    with server.up() as up, laptop.joined("laptop", ticket=server.ticket) as runner:
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            for place, process in ((server, up), (laptop, runner)):
                await begun_on(client, place.root.name, place.project)
                assert claude_processes(process.pid)
        frozen = nats_server_of(up.pid)
        frozen.suspend()
        for process in (runner, up):
            process.send_signal(signal.SIGTERM)
        for process in (runner, up):
            assert await asyncio.to_thread(process.wait, STOP_SECONDS) == 0
    until(lambda: not processes_of(places), "something was left running")
    for place in places:
        assert "Traceback" not in place.errors
        assert "was never retrieved" not in place.errors
