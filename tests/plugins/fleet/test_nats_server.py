"""The embedded NATS server is watched: it is restarted with its data, but not forever."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import httpx2
import pytest

from claude_code_mcp.plugins.fleet import nats_server as engine
from claude_code_mcp.plugins.fleet.connection import connect, create_stores
from claude_code_mcp.plugins.fleet.host import connect_to_host, hosting
from claude_code_mcp.plugins.fleet.nats_server import EngineUnavailable, Running, running
from tests.support.program import OURS, started
from tests.support.waiting import HANG_SECONDS, until, until_true

from .test_fleet_command import environment, run
from .test_stopping import nats_server_of


async def killed_and_restarted(server: Running) -> None:
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    await until_true(lambda: server.pid != pid and not server._output.ended.done() and server._output.ready.done())


async def test_a_server_that_was_killed_is_back_with_its_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as server:
        connection = await connect(server.url)
        await create_stores(connection)
        sessions = await connection.jetstream.key_value("fleet_sessions")
        await sessions.put("s1", b"held")
        url, pid = server.url, server.pid
        back = asyncio.Event()
        connection.when_reconnected.append(back.set)
        await killed_and_restarted(server)
        assert server.url == url
        async with asyncio.timeout(HANG_SECONDS):
            await back.wait()
        assert (await sessions.get("s1")).value == b"held"
        assert await connection.answers()
        await connection.close()
    assert f"nats-server (pid {pid}) exited with code -9; restart 1 of at most 5" in caplog.text
    assert "is running again with its data" in caplog.text


async def test_a_server_that_ends_again_and_again_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_RESTART_PAUSE", 0.0)
    async with running(tmp_path) as server:
        for _ in range(engine.MAX_RESTARTS):
            await killed_and_restarted(server)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="nats-server exited 6 times"):
            async with asyncio.timeout(HANG_SECONDS):
                await asyncio.shield(server.failed)


async def test_keys_that_were_added_before_a_restart_count_after_it(tmp_path: Path) -> None:
    async with hosting(tmp_path, host="127.0.0.1", port=-1) as host:
        ticket = await host.enrollment.ticket()
        await killed_and_restarted(host.server)
        assert ticket.id in (tmp_path / "server" / "nats" / "nats.conf").read_text()
        connection = await connect_to_host(tmp_path)
        assert await connection.answers()
        await connection.close()


@pytest.mark.programs
def test_health_depends_on_the_server_and_fleet_up_ends_when_it_cannot_be_kept_running(tmp_path: Path) -> None:
    home = tmp_path / "server"
    up_as = ("fleet", "up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    variables = {**environment(home), "CLAUDE_CODE_MCP_TOKEN": "a-token-0123456789abcdefghij"}
    with started([OURS, *up_as], variables, exit_codes=(1,)) as up:
        up.until_said("--join ")
        base = up.output.split("Clients with a token: ")[1].split()[0].removesuffix("/mcp")

        def answers(path: str) -> int:
            return httpx2.get(f"{base}{path}", timeout=HANG_SECONDS).status_code

        assert (answers("/health"), answers("/ready")) == (200, 200)
        frozen = nats_server_of(up.process.pid)
        frozen.suspend()
        until(lambda: (answers("/health"), answers("/ready")) == (503, 503))
        frozen.resume()
        until(lambda: (answers("/health"), answers("/ready")) == (200, 200))
        for number in range(engine.MAX_RESTARTS):
            nats_server_of(up.process.pid).kill()
            until(lambda number=number: up.errors.count("is running again with its data") > number)  # type: ignore[misc]
            until(lambda: answers("/ready") == 200)
        assert run(home, "fleet", "status").returncode == 0
        nats_server_of(up.process.pid).kill()
        up.until_said("nats-server exited 6 times")
        assert up.process.wait(HANG_SECONDS) == 1
    assert "Traceback" not in up.errors
