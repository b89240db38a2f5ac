"""Starts a child in the strongest containment that this platform has.

| containment  | where | what holds |
| ------------ | ----- | ---------- |
| `supervisor` | Linux | everything that a child starts ends with it, whatever it does to its session, name or environment, also when this process is killed with SIGKILL |
| `marks`      | elsewhere, and on Linux where the supervisor does not start | a child's process group is signalled; what has left the group is found by the mark in its environment, when the child ends or when the next server starts |
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
from .supervision import USUAL_OPTIONS, ChildOptions

log = logging.getLogger(__name__)

ProtocolT = TypeVar("ProtocolT", bound=asyncio.SubprocessProtocol)

_fallback_logged = False


def containment() -> str:
    """The name of the containment that this platform has: `supervisor` or `marks`."""
    return "supervisor" if supervision.available() else "marks"


def needs_sweep(transport: asyncio.SubprocessTransport) -> bool:
    """Whether what this child left behind, now that it has ended, must be looked for by its mark."""
    return not isinstance(transport, supervision.SupervisedTransport) or transport.keeper_lost


async def prepare() -> None:
    """Does ahead of time what the first child would otherwise have to wait for. Never fails."""
    if supervision.available():
        with contextlib.suppress(OSError):
            await supervision.prepare()


async def spawn(
    factory: Callable[[], ProtocolT],
    argv: Sequence[str],
    *,
    cwd: str | None,
    environment: Mapping[str, str],
    options: ChildOptions = USUAL_OPTIONS,
) -> tuple[asyncio.SubprocessTransport, ProtocolT]:
    """Starts a program with three pipes, in a session of its own, so that a Ctrl-C meant for us does not reach it, and
    at a lower priority than ours, so that children at work do not keep us from answering.

    `argv[0]` is a path. Raises OSError or ValueError if it cannot be started; then nothing runs. If the supervisor
    does not work, the child is started without it: the log says so once, and the next child tries it again.
    """
    global _fallback_logged  # noqa: PLW0603 - once per process is what is wanted
    if supervision.available():
        try:
            return await supervision.spawn(factory, argv, cwd=cwd, environment=environment, options=options)
        except supervision.SupervisorFailed as error:
            if not _fallback_logged:
                _fallback_logged = True
                log.warning(
                    "the supervisor of child processes does not work (%s): children run without it, and what they "
                    "leave behind is found only by its mark",
                    error,
                )
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        factory, *argv, cwd=cwd, env=dict(environment), **_platform_options(options.descriptors)
    )
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, transport.get_pid(), supervision.NICENESS)
    return transport, protocol


def _platform_options(descriptors: Sequence[int]) -> dict[str, Any]:
    """What puts a child into a process group of its own; on Windows also what lowers its priority."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    return {"start_new_session": True, "pass_fds": tuple(descriptors)}


def terminate(transport: asyncio.SubprocessTransport) -> None:
    """Asks a child and its process group to end."""
    _signal(transport, "SIGTERM")


def kill(transport: asyncio.SubprocessTransport) -> None:
    """Ends a child and its process group; under a supervisor, everything that it started."""
    _signal(transport, "SIGKILL")


def _signal(transport: asyncio.SubprocessTransport, name: str) -> None:
    if transport.get_returncode() is not None:
        return  # only its pipes are left, and its number may belong to another process by now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32" or isinstance(transport, supervision.SupervisedTransport):
            (transport.terminate if name == "SIGTERM" else transport.kill)()
        else:
            os.killpg(transport.get_pid(), getattr(signal, name))
