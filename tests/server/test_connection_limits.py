"""Connections that send nothing keep nobody else from being served."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from claude_code_mcp.server.transports.http import ConnectionLimits, report_accept_failures_sparingly
from tests.support.local_http import serving
from tests.support.ports import free_port

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
FOREVER = 3600.0


@asynccontextmanager
async def limited(limits: ConnectionLimits, head_seconds: float = FOREVER) -> AsyncIterator[int]:
    """A server with these limits; the value is its port."""
    app, port = Starlette(routes=[Route("/", lambda _: PlainTextResponse("hello"))]), free_port()
    async with serving(app, port, http=limits.protocol(head_seconds), timeout_keep_alive=3600):
        yield port


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(connection: Connection) -> bytes:
    connection[1].write(REQUEST)
    return await connection[0].readuntil(b"\r\n")


async def test_excess_connection_is_refused_until_another_ends() -> None:
    async with limited(ConnectionLimits(3, 100)) as port:
        idle = [await connect(port) for _ in range(3)]
        assert b"200" in await ask(idle[0])  # the others are counted by now, they were accepted before its answer
        refused = await connect(port)
        assert b"503" in await refused[0].readuntil(b"\r\n")
        assert await refused[0].read() != b"", "and closed"
        idle[1][1].close()
        async with asyncio.timeout(60):
            while b"200" not in await ask(last := await connect(port)):
                last[1].close()
        for _, writer in (*idle, refused, last):
            writer.close()


async def test_one_address_has_not_all_connections_unless_it_is_a_proxy() -> None:
    limits = ConnectionLimits(100, 2, proxies=["10.0.0.9"])
    assert [limits.admit("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert limits.admit("10.0.0.2")
    assert [limits.admit("10.0.0.9") for _ in range(5)] == [True] * 5
    limits.release("10.0.0.1")
    assert limits.admit("10.0.0.1")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", REQUEST[:-2]])
async def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    async with limited(ConnectionLimits(10, 10), head_seconds=0.05) as port:
        reader, writer = await connect(port)
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()


async def test_a_second_request_that_is_begun_and_not_ended_is_not_waited_for() -> None:
    async with limited(ConnectionLimits(10, 10), head_seconds=0.5) as port:
        connection = await connect(port)
        assert b"200" in await ask(connection)
        connection[1].write(b"GET / H")
        assert (await connection[0].read()).endswith(b"hello")
        connection[1].close()


async def test_connections_that_cannot_be_accepted_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    loop, now, others = asyncio.get_running_loop(), 0.0, []
    loop.set_exception_handler(lambda _, context: others.append(context["message"]))
    report_accept_failures_sparingly(loop, lambda: now)
    failure = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            loop.call_exception_handler(failure)
        now = 1.0
        loop.call_exception_handler(failure)
    loop.call_exception_handler({"message": "something else"})
    assert (len(caplog.records), others) == (2, ["something else"])
    loop.set_exception_handler(None)
