"""Connections over a real NATS server: lines in order and once, or an end with a reason on both sides."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from claude_code_mcp.plugins.fleet import nats_server as engine
from claude_code_mcp.plugins.fleet import wire
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.plugins.fleet.wire import Wire, WireBroken, open_wire
from tests.support.waiting import HANG_SECONDS

from .test_nats_client import HIGH_WATER, unsent

_LIMIT = 120.0


@contextlib.asynccontextmanager
async def two_sides(url: str) -> AsyncIterator[tuple[Wire, Wire, FleetConnection]]:
    """Both sides of a connection, each with a NATS client of its own, and a third client."""
    left, right, stranger = await connect(url), await connect(url), await connect(url)
    try:
        async with (
            open_wire(left.client, sends="a", receives="b") as one,
            open_wire(right.client, sends="b", receives="a") as other,
        ):
            await left.flushed()
            await right.flushed()
            yield one, other, stranger
    finally:
        for connection in (left, right, stranger):
            await connection.client.close()


async def send_all(side: Wire, lines: list[bytes]) -> None:
    for line in lines:
        side.write(line + b"\n")
        await side.drain()


async def take(side: Wire, count: int) -> list[bytes | None]:
    return [await side.line() for _ in range(count)]


async def until(happened: Callable[[], bool]) -> None:
    """Waits for something that has no event of its own."""
    while not happened():  # noqa: ASYNC110 - it is the state of another task
        await asyncio.sleep(0.01)


async def take_to_the_end(side: Wire, into: list[bytes]) -> str:
    """Reads everything; returns why it ended, empty if the other side closed."""
    try:
        while (line := await side.line()) is not None:
            into.append(line)
    except WireBroken as error:
        return error.message
    return ""


async def test_a_hundred_thousand_lines_arrive_in_order(engine: Running) -> None:
    lines = [b'{"line":%d}' % number for number in range(100_000)]
    with anyio.fail_after(_LIMIT):
        async with two_sides(engine.url) as (one, other, _):
            sending = asyncio.ensure_future(send_all(one, lines))
            assert await take(other, len(lines)) == lines
            await sending


async def test_a_line_of_twenty_megabytes_arrives_whole(engine: Running) -> None:
    long = os.urandom(10 << 20).hex().encode()
    with anyio.fail_after(_LIMIT):
        async with two_sides(engine.url) as (one, other, _):
            one.write(long + b"\nnext\n")
            assert await take(other, 2) == [long, b"next"]


async def test_lines_pass_in_both_directions_at_once(engine: Running) -> None:
    lines = [b"%d " % number + b"x" * 1000 for number in range(10_000)]
    with anyio.fail_after(_LIMIT):
        async with two_sides(engine.url) as (one, other, _), anyio.create_task_group() as tasks:
            tasks.start_soon(send_all, one, lines)
            tasks.start_soon(send_all, other, lines)
            assert await take(one, len(lines)) == lines
            assert await take(other, len(lines)) == lines


async def test_stopped_reader_applies_backpressure(engine: Running) -> None:
    line, sent = b"x" * 10_000, 0
    with anyio.fail_after(_LIMIT):
        async with two_sides(engine.url) as (one, other, _):

            async def write_on() -> None:
                nonlocal sent
                while sent < 5000:
                    one.write(line + b"\n")
                    sent += 1
                    await one.drain()

            writing = asyncio.ensure_future(write_on())
            await until(lambda: one._sent - one._acknowledged_by_peer >= wire.WINDOW)
            await until(lambda: len(one._outgoing) > wire._BUFFERED)
            before = -1
            while before != sent:  # signs of life open no window that is full
                before = sent
                for side in (other, one):
                    side._send_sign()
                    await until(lambda side=side: not side._sign_due)  # type: ignore[misc]
                    for each in (one, other, one):  # it has arrived, and what the other side answers
                        await each._client.flush()
            held = sent * len(line)
            assert wire.WINDOW <= held <= wire.WINDOW + (2 << 20)
            assert not one.ended
            assert await take(other, 5000) == [line] * 5000
            await writing


async def test_the_end_of_one_side_is_noticed_after_its_last_line(engine: Running) -> None:
    left, right = await connect(engine.url), await connect(engine.url)
    taken: list[bytes] = []
    with anyio.fail_after(_LIMIT):
        async with open_wire(right.client, sends="b", receives="a") as other:
            await right.flushed()
            async with open_wire(left.client, sends="a", receives="b") as one:
                for number in range(1000):
                    one.write(b"%d\n" % number)
            assert await take_to_the_end(other, taken) == ""
            assert taken == [b"%d" % number for number in range(1000)]
            with pytest.raises(WireBroken):
                await other.drain()
    await left.client.close()
    await right.client.close()


async def test_a_side_that_fails_tells_the_other_why(engine: Running) -> None:
    with anyio.fail_after(_LIMIT):
        async with two_sides(engine.url) as (one, other, _):
            one.write(b"before\n")
            assert await other.line() == b"before"
            one.fail("the disk is full")
            for side in (one, other):
                with pytest.raises(WireBroken, match="disk is full"):
                    await side.line()


@pytest.mark.soak
async def test_a_dead_peer_is_noticed(engine: Running) -> None:
    left = await connect(engine.url)
    with anyio.fail_after(_LIMIT):
        async with open_wire(left.client, sends="a", receives="b") as one:
            with pytest.raises(WireBroken, match="The other side sent nothing"):
                await one.line()
    await left.client.close()


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(wire._HEAD.pack(b"D", 7, 0) + b"forged\n", id="a part of the future"),
        pytest.param(wire._HEAD.pack(b"D", 0, 0) + b"forged\n", id="a part that was there"),
        pytest.param(wire._HEAD.pack(b"E", 7, 0), id="an end that is too early"),
        pytest.param(wire._HEAD.pack(b"S", 1, 1 << 40), id="an acknowledgment of what was not sent"),
        pytest.param(wire._HEAD.pack(b"?", 1, 0), id="an unknown kind"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_out_of_order_part_closes_both_sides(engine: Running, forged: bytes) -> None:
    with anyio.fail_after(_LIMIT):
        async with two_sides(engine.url) as (one, other, stranger):
            one.write(b"first\n")
            assert await other.line() == b"first"
            await stranger.client.publish("a", forged)
            with pytest.raises(WireBroken):
                await other.line()
            with pytest.raises(WireBroken):
                await one.line()


async def test_parts_that_were_lost_with_a_server_end_both_sides(tmp_path: Path) -> None:
    """The server is stopped with parts in its hands, killed, and started again at the same address."""
    lines = [b"%06d " % number + b"x" * 1000 for number in range(100_000)]
    taken: list[bytes] = []
    with anyio.fail_after(_LIMIT):
        async with engine_at(tmp_path, "127.0.0.1:-1") as first, two_sides(first.url) as (one, other, _):
            sending = asyncio.ensure_future(send_all(one, lines))
            reading = asyncio.ensure_future(take_to_the_end(other, taken))
            await until(lambda: len(taken) >= 1000)
            os.kill(first.pid, signal.SIGSTOP)
            # What is sent now is in the hands of the stopped server, and is lost with it: the rest of a window.
            await until(lambda: one._sent - one._acknowledged_by_peer >= wire.WINDOW)
            os.kill(first.pid, signal.SIGKILL)
            await first.ended  # only then is its port free
            async with engine_at(tmp_path, first.url.removeprefix("nats://")):
                reason = await reading
                with pytest.raises(WireBroken):
                    await sending
    assert reason
    assert 1000 <= len(taken) < len(lines)
    assert taken == lines[: len(taken)]


async def test_block_can_be_exited_while_the_server_does_not_read(tmp_path: Path) -> None:
    """With so much to send, a message waits for the server, and a client of nats-py drops the cancellation."""
    async with engine_at(tmp_path, "127.0.0.1:-1") as server:
        connection = await connect(server.url)
        os.kill(server.pid, signal.SIGSTOP)
        with anyio.fail_after(HANG_SECONDS) as limit:
            async with open_wire(connection.client, sends="a", receives="b") as side:
                side._acknowledged_by_peer = 1 << 40  # as if somebody had read all of it: the window does not end
                for _ in range(16):
                    side.write(b"x" * (1 << 20) + b"\n")
                await until(lambda: unsent(connection.client) > HIGH_WATER)
                limit.deadline = anyio.current_time() + 15
        await connection.abandon()
    assert connection.client.is_closed


class StartedServer(NamedTuple):
    url: str
    pid: int
    ended: asyncio.Future[None]


@contextlib.asynccontextmanager
async def engine_at(directory: Path, address: str) -> AsyncIterator[StartedServer]:
    """A server at an address, so that another can take its place."""
    config = directory / "nats.conf"
    config.write_text(f'listen: "{address}"\n')
    transport, output = await asyncio.get_running_loop().subprocess_exec(
        engine.ServerOutput, engine.executable(), "-c", str(config), stdin=asyncio.subprocess.DEVNULL
    )
    try:
        yield StartedServer(await output.ready, transport.get_pid(), output.ended)
    finally:
        if transport.get_returncode() is None:
            transport.kill()
            await output.ended
        transport.close()
