"""The life of the shared server's socket, without a server behind it."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from claude_code_mcp.server.transports.unix_socket import SharedSocket
from claude_code_mcp.startup.shared.handshake import Hello
from claude_code_mcp.startup.shared.place import Place
from tests.support.clock import stopped_clock
from tests.support.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from claude_code_mcp.server.server import McpServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sockets of POSIX")


async def test_busy_server_does_not_exit_without_clients(tmp_path: Path) -> None:
    working = True
    with socket.socket(socket.AF_UNIX) as listener, stopped_clock() as clock:

        async def needed() -> bool:
            return working

        shared = SharedSocket(listener, Place(str(tmp_path), "name"))
        unused = asyncio.create_task(shared.unused(10, needed))
        for _ in range(20):
            await clock.advance(10)
        assert not unused.done()
        working = False
        await clock.advance(9)
        assert not unused.done()
        await clock.advance(1)
        assert unused.done()


async def test_a_command_that_needs_the_server_waits_while_it_is_made(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        shared = SharedSocket(listener, Place(str(tmp_path), "name"))
        running = asyncio.create_task(shared.run())

        async def ask(what: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(Hello(directory="/", environment={}, fingerprint="f", ask=what).line())
            assert b"welcome" in await reader.readline()
            return reader, writer

        # Nobody has come yet, of whose settings a server could be made: the answer is the status.
        early, first = await ask("sessions")
        assert json.loads(await early.readline())["state"] == "starting"
        shared.settle_settings(Hello(directory="/", environment={}, fingerprint="f"))
        waiting, second = await ask("sessions")
        status, third = await ask("status")
        assert json.loads(await status.readline())["state"] == "starting"

        async def sessions() -> dict[str, str]:
            return {"a": "running"}

        shared.open(cast("McpServer", None), dict, {"sessions": sessions})
        assert json.loads(await waiting.readline()) == {"a": "running"}
        for writer in (first, second, third):
            writer.close()
        shared.end()
        await running


async def test_the_log_says_which_process_had_a_connection_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        shared = SharedSocket(listener, Place(str(tmp_path), "name"))
        running = asyncio.create_task(shared.run())
        shared.settle_settings(Hello(directory="/", environment={}, fingerprint="f"))

        async def fail() -> dict[str, str]:
            raise RuntimeError("a bug")

        shared.open(cast("McpServer", None), dict, {"sessions": fail})
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(Hello(directory="/", environment={}, fingerprint="f", ask="sessions").line())
        async with asyncio.timeout(HANG_SECONDS):
            await reader.read()
        writer.close()
        shared.end()
        await running
    assert f"process {os.getpid()} " in caplog.text
