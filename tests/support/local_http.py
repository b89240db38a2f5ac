"""HTTP servers on loopback that play the other side of a test.

`site` serves a `Handler` class in a thread, `serving` an ASGI application in the running loop, and `in_thread` runs any
asynchronous context in the loop of a thread of its own. Each server has ended when its block ends: a thread that does
not end within `HANG_SECONDS` fails the test.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import uvicorn

from .ports import free_port
from .waiting import HANG_SECONDS, until_true

T = TypeVar("T")
_POLL_SECONDS = 0.05  # how soon a server notices that it is to stop


class Handler(BaseHTTPRequestHandler):
    """Reads and answers a request; logs nothing. Subclasses define `do_GET`, `do_POST` and the like."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def answer(self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def site(handler: Any, tls: Any = None) -> Iterator[str]:
    """Serve a handler class in a thread; the value is its address, without a slash at the end.

    With `tls`, a server-side SSL context, the site speaks HTTPS.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        thread.start()
        try:
            yield f"http{'s' if tls is not None else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            _join(thread)


@asynccontextmanager
async def serving(app: Any, port: int | None = None, **options: Any) -> AsyncIterator[str]:
    """Serve an ASGI application in this loop; the value is its address. `options` are those of `uvicorn.Config`."""
    port = port or free_port()
    given = {"log_config": None, "timeout_graceful_shutdown": 1, "ws": "none", **options}
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **given))
    running = asyncio.create_task(server._serve())  # `serve` would take the signals of the test run
    await until_true(lambda: server.started or running.done())
    if running.done():
        await running  # raises the reason
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await running


@contextmanager
def in_thread(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an asynchronous context in the loop of another thread, and leave it there at the end of the block."""
    entered: Future[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def live() -> None:
        try:
            async with context as value:
                leave = asyncio.Event()
                entered.set_result((value, asyncio.get_running_loop(), leave))
                await leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    value, loop, leave = entered.result(HANG_SECONDS)
    try:
        yield value
    finally:
        loop.call_soon_threadsafe(leave.set)
        _join(thread)


def _join(thread: threading.Thread) -> None:
    thread.join(HANG_SECONDS)
    assert not thread.is_alive(), "the server did not end"
