"""The line between one machine of a fleet and the NATS servers, which can be cut and healed.

A machine connects to ports of this process, which passes everything on. A line that is cut is silent, as a network is
that drops its packets: nothing is refused, and what was sent meanwhile arrives when it is healed, or never.
"""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

_PIECE = 1 << 16


class Line:
    """The ports at which one machine reaches the servers, each for one of them."""

    def __init__(self, lines: "Lines", servers: Sequence[int]) -> None:
        self._lines = lines
        self._servers = servers
        self._whole = asyncio.Event()
        self._whole.set()
        self._open: set[asyncio.StreamWriter] = set()
        self.ports: list[int] = []

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.ports)

    def cut(self) -> None:
        """From now on nothing passes, in either direction."""
        self._lines.call(self._whole.clear)

    def heal(self, *, reset: bool) -> None:
        """Everything passes again; with `reset` the connections that were cut are gone, else what was sent over them
        arrives late."""
        if reset:
            self._lines.call(self._reset)
        self._lines.call(self._whole.set)

    def _reset(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def open(self) -> None:
        for port in self._servers:
            server = await asyncio.start_server(lambda *ends, port=port: self._serve(port, *ends), "127.0.0.1", 0)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._whole.wait()
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            self._open.add(server_writer)
            try:
                await asyncio.gather(self._pass(reader, server_writer), self._pass(server_reader, writer))
            finally:
                self._open.discard(server_writer)
                server_writer.close()
        except OSError:
            pass  # the server is not there, or one of the ends has gone
        finally:
            self._open.discard(writer)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(_PIECE):
                await self._whole.wait()
                writer.write(piece)
                await writer.drain()
        finally:
            await self._whole.wait()  # a cut line does not tell that the other end has gone either
            with suppress(OSError):
                writer.close()


class Lines:
    """The lines of all machines, in a thread of their own: whoever cuts them may block meanwhile."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="lines").start()

    def call(self, act: object) -> None:
        """Has something done on the thread of the lines, and returns when it is."""
        assert callable(act)

        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def line(self, servers: Sequence[int]) -> Line:
        """A new line to the servers at these ports."""

        async def opened() -> Line:
            line = Line(self, servers)
            await line.open()
            return line

        return asyncio.run_coroutine_threadsafe(opened(), self._loop).result()
