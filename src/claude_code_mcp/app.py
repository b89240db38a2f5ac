"""The composition root: which parts a running server is made of, and how it starts and ends."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .config import Settings
from .greeting import Heard
from .model.states import BUSY
from .server.surface import Surface
from .service import Service

log = logging.getLogger(__name__)

_LEVELS = {"warn": "WARNING"}


def log_to_stderr(settings: Settings) -> None:
    """stdout belongs to the protocol; everything for people goes to stderr."""
    level = _LEVELS.get(settings.log_level, settings.log_level.upper())
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("filelock", "asyncio", "mcp", "uvicorn", "sse_starlette"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


async def run_stdio(settings: Settings, heard: Heard | None = None) -> None:
    """Serves one client on stdin and stdout until it goes away or a signal comes; `heard` is what went before."""
    from .server.answers import leave_manifest  # noqa: PLC0415 - each transport is loaded only where it is used
    from .server.stdio import stdio_streams  # noqa: PLC0415

    heard = heard or Heard()
    async with Service(settings) as service, stdio_streams(heard) as (inbox, outbox):
        server = Surface(service).server()
        if heard.leave_manifest is not None:
            service.start_task(leave_manifest(server, heard.leave_manifest))
        async with _ended_by_signals():
            await server.run(inbox, outbox, server.create_initialization_options())
        await _after_the_client(service, settings.on_disconnect or "stop")


async def _after_the_client(service: Service, wish: str) -> None:
    """With `keep`, the turns that are running come to their end first; the service then closes in any case."""
    if wish == "keep":
        running = [session for session in service.sessions(owner=None) if session.state in BUSY]
        await asyncio.gather(*(session.wait(None, for_questions=False) for session in running))


async def run_http(settings: Settings, where: str) -> None:
    """Serves any number of clients over HTTP until a signal comes."""
    from .server.http import http_app, read_address, serve_http  # noqa: PLC0415

    address = read_address(where)
    async with Service(settings) as service:
        await serve_http(http_app(Surface(service), settings, address), address)


@asynccontextmanager
async def _ended_by_signals() -> AsyncIterator[None]:
    """Ends the block, and no more than that, on SIGINT and SIGTERM."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    signals = () if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        if not stopped or task.uncancel() > 0:
            raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
