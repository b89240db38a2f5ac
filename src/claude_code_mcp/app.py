"""The composition root: which parts a running server is made of, and how it starts and ends."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from .config import Settings
from .greeting import Heard
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

    heard, serving = heard or Heard(), anyio.CancelScope()
    with _on_signals(serving.cancel):
        async with Service(settings) as service, stdio_streams(heard) as (inbox, outbox):
            server = Surface(service).server()
            if heard.leave_manifest is not None:
                service.start_task(leave_manifest(server, heard.leave_manifest))
            with serving:
                await server.run(inbox, outbox, server.create_initialization_options())
                await _after_the_client(service, settings.on_disconnect or "stop")


async def _after_the_client(service: Service, wish: str) -> None:
    """Turns may come to their end, or are interrupted; the service then closes in any case."""
    running = [session for session in service.sessions(owner=None) if session.busy]
    if wish == "keep":
        await asyncio.gather(*(session.wait(None, for_questions=False) for session in running))
    elif wish == "interrupt":
        await asyncio.gather(*(session.interrupt() for session in running))


async def run_http(settings: Settings, where: str) -> None:
    """Serves any number of clients over HTTP until a signal comes."""
    from .server.http import HttpServer, read_address  # noqa: PLC0415

    service = Service(settings)
    server = HttpServer(Surface(service, settings.on_disconnect or "keep"), settings, read_address(where))
    with _on_signals(server.stop):
        async with service:
            await server.serve()


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop`, and do no more than that: closing down is not to be cut short."""
    loop = asyncio.get_running_loop()
    signals = () if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
