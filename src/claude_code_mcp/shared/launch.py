"""Starts the shared server, detached from whoever starts it.

The starter binds the socket and takes the lock, and the server inherits both. So there is never a second server, and
everybody can connect at once: connections wait at the socket until the server is loaded. The first in that queue is
the starter's own, whose hello has the settings.

The server is in a session of its own, has no descriptor of ours but those two and its log, and nothing of our
environment that could be a secret: clients tell it theirs over the socket.
"""

import os
import sys

from . import place as places
from .place import NoPlace, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

LISTENER, LOCK = 3, 4
"""The numbers under which the server finds what it inherits."""
INHERITED = "--inherited"

_LOG_LIMIT = 1 << 20
_HIGHEST = 1 << 16
"""Above every descriptor that a front could have inherited."""
_KEPT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT"}
)
_KEPT_PREFIXES = ("LC_", "XDG_", "PYTHON", "DYLD_")


def start(place: Place, arguments: "Sequence[str]" = ()) -> "_socket.socket | None":
    """Starts a server at the place and returns the first connection to it; None if somebody else holds the lock, and
    so serves, starts or ends there. OSError if it cannot be started; then nothing is left behind."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise NoPlace("there is no Python interpreter to run it")
    lock = places.take_lock(place)
    if lock is None:
        return None
    try:
        listener, connection = _listen_and_connect(place)
        try:
            log = open_log(place)
            try:
                _detach(listener.fileno(), lock, log, [*_command(place), *arguments])
            finally:
                os.close(log)
        except BaseException:
            connection.close()
            raise
        finally:
            listener.close()
        return connection
    finally:
        os.close(lock)


def listen(place: Place) -> "_socket.socket":
    """The socket of a server that is not found there yet by anybody else; only for the holder of the lock."""
    listener, connection = _listen_and_connect(place)
    connection.close()
    return listener


def _listen_and_connect(place: Place) -> "tuple[_socket.socket, _socket.socket]":
    """The socket of the server, and a connection that was there before anybody else could find it."""
    temporary = f"{place.socket}.new"
    if os.path.lexists(temporary):
        os.unlink(temporary)  # of a starter that was killed; whoever has the lock may do this
    listener = places.bind(temporary)
    try:
        connection = places.connect(temporary)
        os.rename(temporary, place.socket)  # takes the place of what a killed server has left
    except BaseException:
        listener.close()
        raise
    return listener, connection


def open_log(place: Place) -> int:
    """The log for appending; one that has grown too long is put aside first. Nobody else can read it."""
    try:
        if os.stat(place.log_file).st_size > _LOG_LIMIT:
            os.rename(place.log_file, f"{place.log_file}.1")
    except FileNotFoundError:
        pass
    return os.open(place.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _command(place: Place) -> list[str]:
    socket = os.path.join(place.directory, place.name)
    return [sys.executable, "-P", "-m", "claude_code_mcp", "shared", "run", INHERITED, socket]


def clean_environment(environment: "Mapping[str, str]") -> dict[str, str]:
    """What the interpreter needs to start, and nothing that could be a secret."""
    return {name: value for name, value in environment.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def _detach(listener: int, lock: int, log: int, argv: list[str]) -> None:
    """Runs the command as nobody's child. Only one thread may be running."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _execute(listener, lock, log, argv)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _execute(listener: int, lock: int, log: int, argv: list[str]) -> "NoReturn":
    """Becomes the command, with the descriptors at their numbers and all others closed."""
    import fcntl  # noqa: PLC0415 - not on Windows

    kept = [os.open(os.devnull, os.O_RDONLY), log, log, listener, lock]
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in kept]  # above all the final numbers
    for number, descriptor in enumerate(aside):
        os.dup2(descriptor, number)
    os.closerange(len(aside), _HIGHEST)
    os.chdir("/")
    os.execve(argv[0], argv, clean_environment(os.environ))
