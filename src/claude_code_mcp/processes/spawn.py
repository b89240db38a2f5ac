"""Starts a child in the strongest containment that this platform has.

| containment  | where | what holds |
| ------------ | ----- | ---------- |
| `supervisor` | Linux | everything that a child starts ends with it, whatever it does to its session, name or environment, also when this process is killed with SIGKILL |
| `marks`      | elsewhere | a child's process group is signalled; what has left the group is found by the mark in its environment, when the child ends or when the next server starts |
"""  # noqa: E501 - a table

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from . import supervision

log = logging.getLogger(__name__)

ProtocolT = TypeVar("ProtocolT", bound=asyncio.SubprocessProtocol)


def containment() -> str:
    """The name of the containment that children get: `supervisor` or `marks`."""
    return "supervisor" if supervision.available() else "marks"


async def prepare() -> None:
    """Does ahead of time what the first child would otherwise have to wait for. Never fails."""
    if supervision.available():
        with contextlib.suppress(OSError):
            await supervision.prepare()


async def spawn(
    factory: Callable[[], ProtocolT], argv: Sequence[str], *, cwd: str | None, environment: Mapping[str, str]
) -> tuple[asyncio.SubprocessTransport, ProtocolT]:
    """Starts a program with three pipes, in a session of its own, so that a Ctrl-C meant for us does not reach it.

    `argv[0]` is a path. Raises OSError or ValueError if it cannot be started; then nothing runs.
    """
    if supervision.available():
        return await supervision.spawn(factory, argv, cwd=cwd, environment=environment)
    loop = asyncio.get_running_loop()
    return await loop.subprocess_exec(factory, *argv, cwd=cwd, env=dict(environment), **_own_group())


def _own_group() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def terminate(transport: asyncio.SubprocessTransport) -> None:
    """Asks a child and its process group to end."""
    _signal(transport, "SIGTERM")


def kill(transport: asyncio.SubprocessTransport) -> None:
    """Ends a child and its process group; under a supervisor, everything that it started."""
    _signal(transport, "SIGKILL")


def _signal(transport: asyncio.SubprocessTransport, name: str) -> None:
    if transport.get_returncode() is not None:
        return  # only its pipes are left, and its number may belong to somebody else by now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32" or isinstance(transport, supervision.SupervisedTransport):
            (transport.terminate if name == "SIGTERM" else transport.kill)()
        else:
            os.killpg(transport.get_pid(), getattr(signal, name))
