"""The socket for hooks of terminal sessions. Only processes of this user can connect."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from ...core.errors import ClaudeCodeError
from ...core.private_files import private_directory
from ...core.processes.leftovers import started_by_us
from ...core.sessions.background_tasks import StartTask
from ...startup.shared.place import bind, connect, peer_is_ours, peer_pid
from .hook_events import MAX_HEAD, HookEvent, read_event, read_head
from .terminals import Terminals

log = logging.getLogger(__name__)

DIRECTORY = "terminal"
"""Below the state directory: the sockets of all of this user's servers."""
_OVER = b"over"
_MAX_CONNECTIONS = 500
_TRANSFER_SECONDS = 10.0
"""How long a hook may take to send its event or to read the answer."""
_MAX_READ = 16
"""Events read concurrently: one may have megabytes."""


class HookListener:
    """Accepts the connections of hooks."""

    def __init__(self, terminals: Terminals, start_task: StartTask) -> None:
        self._terminals = terminals
        self._start_task = start_task
        self._connections: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Semaphore(_MAX_READ)
        self._closed = False

    @contextlib.asynccontextmanager
    async def listening(self, state_dir: Path) -> AsyncIterator[None]:
        """Within the block, hooks find a socket below the state directory."""
        path = await asyncio.to_thread(_free_place, state_dir)
        listener = bind(str(path))
        # `bind` makes a plain socket object without methods of the `socket` module.
        server = await asyncio.start_unix_server(
            self._accept, sock=socket.socket(fileno=listener.detach()), limit=MAX_HEAD
        )
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._close(server, path)

    async def _close(self, server: asyncio.Server, path: Path) -> None:
        self._closed = True
        # First: a hook that finds the socket gone looks for the next server.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(os.unlink, path)
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        full = len(self._connections) >= _MAX_CONNECTIONS
        if self._closed or full or not peer_is_ours(writer.get_extra_info("socket")):
            writer.close()
            return
        task = self._start_task(self._serve(reader, writer), True)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # A task that is cancelled before its first step never reaches its own `finally`.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._reading, asyncio.timeout(_TRANSFER_SECONDS):
                head = read_head(await reader.readline())
                body = await reader.readexactly(head.size)
            event = read_event(head, body, self._terminals.config_dir)
            if event.name == "SessionEnd":
                self._terminals.ended(event)
                return
            if event.name == "SessionStart":
                # Its hook does not wait. It reports nothing beyond Claude Code's own record.
                await _refuse_own(event.pid)
            else:
                hook = peer_pid(writer.get_extra_info("socket"))
                await _refuse_own(hook)
                await _refuse_foreign(hook, event.pid)
            if event.name == "PermissionRequest":
                await self._ask(event, reader, writer)
            else:
                await self._terminals.happened(event)
        # Without an answer, a hook would wait for the next server.
        except (ValueError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            log.debug("a hook event could not be parsed: %r", error)
            writer.write(_OVER + b"\n")
        except ClaudeCodeError as error:
            log.info("questions of a terminal are asked only there: %s", error.message)
            writer.write(_OVER + b"\n")
        except Exception:
            log.exception("an event from a terminal could not be handled")
            writer.write(_OVER + b"\n")
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_TRANSFER_SECONDS):
                    await writer.wait_closed()

    async def _ask(self, event: HookEvent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if event.is_of_subagent:
            # Claude Code shows the dialog of a background subagent only after the hooks have ended: the person at the
            # terminal must not wait for a remote answer.
            writer.write(_OVER + b"\n")
            return
        answered = asyncio.Event()

        def reply(line: bytes | None) -> None:
            # No answer if this server stops: the hook then asks the next one.
            if line is not None or not self._terminals.closed:
                writer.write((line or _OVER) + b"\n")
            answered.set()

        hook_ended = await self._terminals.ask(event, reply)

        async def until_gone() -> None:
            await reader.read(1)  # a hook sends nothing more
            answered.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(until_gone)
                await answered.wait()
                await writer.drain()
                tasks.cancel_scope.cancel()
        finally:
            hook_ended()


async def _refuse_own(pid: int) -> None:
    """Raises ValueError for a process started by this or another server, such as a session's command."""
    if await asyncio.to_thread(started_by_us, pid):
        raise ValueError(f"process {pid} is not a terminal's")


async def _refuse_foreign(hook: int, terminal: int) -> None:
    """Raises ValueError for a process that was not started by the Claude Code process it names: a command of one
    terminal cannot ask on behalf of another."""
    if not await asyncio.to_thread(_descends_from, hook, terminal):
        raise ValueError(f"process {hook} was not started by process {terminal}")


def _descends_from(pid: int, ancestor: int) -> bool:
    import psutil  # noqa: PLC0415

    try:
        return pid == ancestor or any(process.pid == ancestor for process in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _free_place(state_dir: Path) -> Path:
    """A path for this process's socket. Removes the sockets of killed servers."""
    directory = private_directory(state_dir / DIRECTORY)
    for left in directory.glob("*.sock"):
        try:
            connect(str(left)).close()
        except ConnectionRefusedError:
            left.unlink(missing_ok=True)
        except OSError:
            continue  # it is busy or was just removed
    return directory / f"{os.getpid()}.sock"
