"""The shared server of this user: where it runs, starting and ending it."""

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from ..startup.shared import place
from ..startup.shared.handshake import Hello, new_identity
from .conventions import Unavailable
from .setting_flags import SETTINGS_WITH_FLAG

_STOP_SECONDS = 60.0
_POLL_INTERVAL = 0.05


def places() -> list[place.Place]:
    try:
        return place.places(os.environ)
    except OSError as error:
        raise Unavailable(f"A shared server cannot run here: {error}.") from None


def own_place(arguments: Sequence[str] = ()) -> tuple[place.Place, str]:
    try:
        return place.find_place(arguments, os.environ)
    except OSError as error:
        raise Unavailable(f"A shared server cannot run here: {error}.") from None


def asked(where: place.Place, ask: str) -> Any:
    """The answer of the server at a place; None if none runs there. A request that ends the server returns only when
    its process has ended."""
    from .connections import NotRunning, ask_server  # noqa: PLC0415 - `serve` does not need it

    try:
        status, connection = ask_server(where, ask)
    except NotRunning:
        return None
    with connection:
        if ask != "status":
            _await_end(connection, status["pid"])
    return status


def running_place(arguments: argparse.Namespace) -> place.Place:
    """The place of the shared server for these settings; starts it if needed."""
    where, fingerprint = own_place(settings_arguments(arguments))
    if asked(where, "status") is None:
        started(where, fingerprint, arguments)
    return where


def started(where: place.Place, fingerprint: str, arguments: argparse.Namespace) -> Any:
    """Start a server and return its status once it serves; the status of another one if that was started first."""
    from .connections import NotRunning, say_hello  # noqa: PLC0415

    http = ["--http", arguments.http] if arguments.http else []
    connection, deadline = place.start(where, http), time.monotonic() + _STOP_SECONDS
    while connection is None and time.monotonic() < deadline:
        # Another process has the lock. If it serves, that server is
        # used; if it is ending, the next attempt gets the lock.
        if (running := asked(where, "status")) is not None:
            return running
        time.sleep(_POLL_INTERVAL)  # it is just starting or ending
        connection = place.start(where, http)
    if connection is None:
        raise Unavailable(f"The server at {where.socket} neither responds nor exits; see `shared logs`.")
    client_hello = Hello(
        directory=place.working_directory(),
        environment=dict(os.environ),
        fingerprint=fingerprint,
        arguments=settings_arguments(arguments),
        identity=new_identity(),
        pid=os.getpid(),
    )
    with socket.socket(fileno=connection.detach()) as opened:
        try:
            say_hello(opened, client_hello, _STOP_SECONDS)
        except NotRunning as problem:
            raise Unavailable(f"It could not be started: {problem}. See `claude-code-mcp shared logs`.") from None
        status = asked(where, "status")
    if status is None:
        raise Unavailable("It exited immediately; see `claude-code-mcp shared logs`.")
    return status


def settings_arguments(arguments: argparse.Namespace) -> list[str]:
    """The arguments that are settings, in the form of flags of `serve`."""
    flags = [("--config", arguments.config)]
    flags += [(f"--{field.replace('_', '-')}", getattr(arguments, field)) for field in SETTINGS_WITH_FLAG]
    return [word for flag, value in flags if value for word in (flag, str(value))]


def running_servers() -> list[dict[str, Any]]:
    """The status of every running shared server of this user."""
    found = places() if place.possible() else []
    return [status for where in found if (status := asked(where, "status")) is not None]


def stop_servers() -> None:
    """End all shared servers of this user; return when their processes have ended."""
    for where in places() if place.possible() else []:
        asked(where, "stop")


def _await_end(connection: socket.socket, pid: int) -> None:
    """Wait until the server has closed the connection and its process has ended."""
    deadline = time.monotonic() + _STOP_SECONDS
    connection.settimeout(_STOP_SECONDS)
    with contextlib.suppress(OSError):
        # The connection ends before the process does; only with the process is its lock free for the next server.
        while connection.recv(4096):
            pass
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except OSError:
            return
        time.sleep(_POLL_INTERVAL)
    raise Unavailable(f"The server (pid {pid}) has not exited within {_STOP_SECONDS:g} s.")
