"""A client of NATS ends when it is closed, whatever the server and nats-py do meanwhile."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import nats.aio.client
import pytest

from claude_code_mcp.plugins.fleet import nats_client
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.nats_client import (
    Client,
    ConnectionClosedError,
    IncompatibleNats,
    NatsError,
    cancellation_passes,
)
from claude_code_mcp.plugins.fleet.nats_server import running
from tests.support.waiting import HANG_SECONDS, until_true

INFO = b'INFO {"server_id": "x", "version": "2.10.0", "max_payload": 1048576, "headers": true}\r\n'


class BriefServer:
    """Speaks enough of NATS to connect a client, and can drop its clients at any moment, which a real server cannot."""

    def __init__(self) -> None:
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        writer.write(INFO)
        with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled with the loop that it runs in
            async for line in reader:
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")

    def drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@contextlib.asynccontextmanager
async def brief_server() -> AsyncIterator[BriefServer]:
    brief = BriefServer()
    server = await asyncio.start_server(brief.serve, "127.0.0.1", 0)
    brief.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield brief
    finally:
        brief.drop()
        server.close()


def tasks_of(client: Client) -> list[asyncio.Task[None]]:
    """Those that run a method of this client."""
    found = []
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_locals.get("self") is client:
            found.append(task)
    return found


HIGH_WATER = 64 << 10
"""Bytes that asyncio holds for a socket before whoever writes has to wait."""


def unsent(client: Client) -> int:
    """Bytes that the socket of a client does not take."""
    return int(client._transport._io_writer.transport.get_write_buffer_size())  # type: ignore[union-attr]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def reconnecting(brief: BriefServer) -> FleetConnection:
    connection = await connect(brief.url, reconnect_time_wait=0)
    brief.drop()
    async with asyncio.timeout(HANG_SECONDS):
        while connection.client.is_connected:  # noqa: ASYNC110 - the reconnection takes less than any pause
            await asyncio.sleep(0)
    return connection


async def test_a_client_that_is_closed_at_any_step_of_a_reconnection_stays_closed() -> None:
    steps = 40
    async with brief_server() as brief:
        for step in range(3 * steps):
            connection = await reconnecting(brief)
            await turns(step % steps)
            await connection.abandon()
            assert tasks_of(connection.client) == [], f"after {step} turns"
            await turns(steps)  # what was on its way when it was closed
            assert connection.client.is_closed
            assert tasks_of(connection.client) == [], f"after {step} turns"


async def test_a_handshake_that_ends_after_the_close_does_not_bring_the_client_back() -> None:
    async with brief_server() as brief:
        connection = await connect(brief.url)
        client = connection.client
        await connection.abandon()
        client._status = Client.CONNECTED
        assert client.is_closed
        with pytest.raises(asyncio.CancelledError):
            await client._connect_to_server(client._server_pool[0])
        late = [asyncio.ensure_future(run()) for run in (client._read_loop, client._ping_interval, client._flusher)]
        _, pending = await asyncio.wait(late, timeout=HANG_SECONDS)
        assert not pending


@pytest.mark.parametrize("step", range(30))
def test_an_event_loop_ends_although_a_client_reconnects_in_it(step: int) -> None:
    """Nobody has closed the client; the loop cancels its tasks, once."""

    async def leave() -> None:
        async with brief_server() as brief:
            await reconnecting(brief)
        await turns(step)

    thread = threading.Thread(target=asyncio.run, args=(leave(),), daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()


async def test_a_lost_cancellation_ends_an_attempt_to_reconnect() -> None:
    """As `asyncio.wait_for` of Python 3.11 loses one that comes together with a refused connection."""
    async with brief_server() as brief:
        connection = await connect(brief.url)
        attempts = asyncio.Event()

        async def lose(_: Exception) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            attempts.set()

        connection.client._error_cb = lose
    await until_true(attempts.is_set)
    await until_true(lambda: not [task for task in tasks_of(connection.client) if "reconnect" in str(task.get_coro())])
    await connection.abandon()


async def test_whoever_publishes_to_a_server_that_does_not_read_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as server:
        connection = await connect(server.url)
        client = connection.client
        os.kill(server.pid, signal.SIGSTOP)
        try:

            async def publish() -> None:
                while True:
                    await client.publish("a", b"x" * (1 << 20))

            publishing = asyncio.ensure_future(publish())
            await until_true(lambda: unsent(client) > HIGH_WATER)
            publishing.cancel()
            _, pending = await asyncio.wait([publishing], timeout=HANG_SECONDS)
            assert not pending
            assert publishing.cancelled()
            monkeypatch.setattr(nats_client, "SEND_SECONDS", 0.2)
            with pytest.raises(NatsError):  # it waits, but not forever
                await publish()
            async with asyncio.timeout(HANG_SECONDS):
                await connection.close()
            assert client.is_closed
            assert tasks_of(client) == []
        finally:
            os.kill(server.pid, signal.SIGCONT)


async def test_late_pong_is_ignored(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        connection = await connect(server.url)

        async def answer(message: nats_client.Msg) -> None:
            await message.respond(message.data)

        await connection.client.subscribe("a", cb=answer)
        os.kill(server.pid, signal.SIGSTOP)
        # Until all of its threads have stopped: one could still answer.
        await asyncio.to_thread(os.waitpid, server.pid, os.WUNTRACED)
        try:
            with pytest.raises(NatsError):
                await connection.client.flush(0.1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert (await connection.client.request("a", b"x", timeout=HANG_SECONDS)).data == b"x"
        await connection.close()


async def test_a_request_that_waits_when_the_client_is_closed_fails_at_once() -> None:
    async with brief_server() as brief:
        connection = await connect(brief.url)
        asking = asyncio.ensure_future(connection.client.request("a", timeout=10 * HANG_SECONDS))
        await until_true(lambda: connection.client._resp_map)
        await connection.abandon()
        with pytest.raises(NatsError):
            async with asyncio.timeout(HANG_SECONDS):
                await asking


@pytest.mark.parametrize("what", ["request", "flush"])
async def test_a_cancellation_that_comes_together_with_the_answer_counts(what: str) -> None:
    """`asyncio.wait_for` of Python 3.11, which nats-py uses, returns the answer and drops the cancellation."""
    async with brief_server() as brief:
        connection = await connect(brief.url)
        client = connection.client
        work = client.request("a", timeout=HANG_SECONDS) if what == "request" else client.flush(HANG_SECONDS)
        asking = asyncio.ensure_future(work)
        while not (answers := [*client._resp_map.values(), *client._pongs]):  # noqa: ASYNC110 - before the server answers
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        answers[0].set_result(nats_client.Msg(client, data=b"x"))
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        await connection.abandon()


async def test_the_limit_of_a_request_covers_a_pause_of_the_requests() -> None:
    async with brief_server() as brief:
        connection = await connect(brief.url)
        async with connection.without_requests():
            with pytest.raises(NatsError):
                async with asyncio.timeout(HANG_SECONDS):
                    await connection.client.request("a", timeout=0.01)
        await connection.abandon()


async def test_what_was_published_arrives_although_the_connection_is_closed_right_after(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        reader, writer = await connect(server.url), await connect(server.url)
        taken: list[bytes] = []

        async def take(message: nats_client.Msg) -> None:
            taken.append(message.data)

        await reader.client.subscribe("a", cb=take)
        await reader.flushed()
        for _ in range(8):
            await writer.client.publish("a", b"x" * (1 << 20))
        await writer.close()
        await until_true(lambda: len(taken) == 8)
        await reader.close()


def test_a_release_of_nats_py_without_the_private_names_is_refused() -> None:
    class Renamed(nats.aio.client.Client):
        _flusher = None  # type: ignore[assignment]

    with pytest.raises(IncompatibleNats, match=r"nats-py .*_flusher.*Install nats-py 2\.16"):
        nats_client._check_private_names(Renamed)


async def dropped(replacement: Exception | None) -> None:
    """Drops its cancellation, as the client of NATS does at times, or replaces it by another error."""
    with cancellation_passes():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if replacement is not None:
                raise replacement from None


@pytest.mark.parametrize("replacement", [None, ConnectionClosedError()], ids=["dropped", "replaced"])
async def test_a_cancellation_that_nats_drops_ends_the_task(replacement: Exception | None) -> None:
    task = asyncio.create_task(dropped(replacement))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancellation_that_nats_drops_ends_the_block_of_its_scope() -> None:
    with anyio.move_on_after(0.01) as scope:
        await dropped(None)
        await asyncio.Event().wait()
    assert scope.cancelled_caught
