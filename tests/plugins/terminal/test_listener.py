"""The socket of the hooks closes every connection, however its server ends."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from claude_code_mcp.plugins.terminal.listener import HookListener
from claude_code_mcp.plugins.terminal.terminals import Terminals
from tests.conftest import StartService
from tests.support.waiting import HANG_SECONDS, until_true


def start_task(work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(work)


def start_cancelled(work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]":
    task = start_task(work)
    task.cancel()
    return task


@pytest.fixture
async def terminals(start_service: StartService) -> Terminals:
    return Terminals(await start_service())


@asynccontextmanager
async def connected(state: Path) -> AsyncIterator[asyncio.StreamReader]:
    (path,) = [path for path in (state / "terminal").iterdir() if path.is_socket()]
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        yield reader
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    with anyio.fail_after(HANG_SECONDS):
        return await reader.read() == b""


async def test_a_connection_whose_task_never_ran_is_closed(terminals: Terminals, tmp_path: Path) -> None:
    async with HookListener(terminals, start_cancelled).listening(tmp_path), connected(tmp_path) as reader:
        assert await ended(reader)


async def test_connections_are_closed_when_the_server_is_cancelled(terminals: Terminals, tmp_path: Path) -> None:
    listener = HookListener(terminals, start_task)
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def listen() -> None:
            with scope:
                async with listener.listening(tmp_path):
                    await anyio.sleep_forever()

        tasks.start_soon(listen)
        await until_true(lambda: any((tmp_path / "terminal").glob("*.sock")))
        async with connected(tmp_path) as reader:
            await until_true(lambda: len(listener._connections) == 1)
            scope.cancel()
            assert await ended(reader)
    assert not any((tmp_path / "terminal").iterdir())
