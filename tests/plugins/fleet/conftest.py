"""A NATS server of its own for each test, on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

pytest.importorskip("nats", reason="the extra `fleet` is not installed")

from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect, create_stores
from claude_code_mcp.plugins.fleet.nats_server import Running, running
from tests.support.waiting import HANG_SECONDS


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Running]:
    (tmp_path / "nats").mkdir()
    async with running(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def lease_seconds() -> float | None:
    """The length of the fleet's leases. A machine that hardly gets to run must not lose its lease: tests of that give
    another one with `parametrize`."""
    return 60.0


@pytest.fixture
async def fleet(engine: Running, lease_seconds: float | None) -> AsyncIterator[FleetConnection]:
    connection = await connect(engine.url)
    await create_stores(connection, lease_seconds=lease_seconds)
    # A server whose disk is busy answers late, and each write is on the disk before it is answered.
    yield replace(connection, jetstream=connection.client.jetstream(timeout=HANG_SECONDS))
    await connection.close()


T = TypeVar("T")


@asynccontextmanager
async def in_own_task(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enters and leaves a context in one task, as its task groups need it: a fixture is set up and torn down in two."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def run() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as problem:
            if entered.done():
                raise
            entered.set_exception(problem)

    task = asyncio.ensure_future(run())
    try:
        yield await entered
    finally:
        leave.set()
        await task
