"""The life of the shared server's socket, without a server behind it."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from claude_code_mcp.server.transports.unix_socket import SharedSocket
from claude_code_mcp.shared.place import Place
from tests.support.clock import stopped_clock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sockets of POSIX")


async def test_a_server_at_work_is_not_unused_however_long_nobody_comes(tmp_path: Path) -> None:
    working = True
    with socket.socket(socket.AF_UNIX) as listener, stopped_clock() as clock:
        shared = SharedSocket(listener, Place(str(tmp_path), "name"))
        unused = asyncio.create_task(shared.unused(10, lambda: working))
        for _ in range(20):
            await clock.advance(10)
        assert not unused.done()
        working = False
        await clock.advance(9)
        assert not unused.done()
        await clock.advance(1)
        assert unused.done()
