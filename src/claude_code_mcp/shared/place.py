"""Where the shared server of this user is found: a socket in a directory that nobody else can enter.

There is one socket per set of server settings: a client that was configured with another policy must not end up at a
server that runs under this one. What belongs to the client alone (its credentials, its directory, the path of the CLI)
does not count: see `fingerprint`.

A server holds the lock beside its socket for as long as it lives, and only the holder of the lock may bind or remove
the socket. The module is imported before the first answer, so it imports only built-in modules.
"""

import os
import sys
from binascii import crc32
from stat import S_ISDIR

from ..greeting.manifest import config_file
from ..processes.environment import DEPTH, MARK, OWN_PREFIX

try:
    import _socket
    import fcntl
except ImportError:  # Windows has no fcntl
    _usable = False
else:
    _usable = hasattr(_socket, "AF_UNIX")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")

RUNTIME_DIR = f"{OWN_PREFIX}RUNTIME_DIR"
SHARED = f"{OWN_PREFIX}SHARED"

OF_THE_CLIENT = frozenset(
    {MARK, DEPTH, SHARED, RUNTIME_DIR, f"{OWN_PREFIX}GREETING", f"{OWN_PREFIX}CONFIG", f"{OWN_PREFIX}SHARED_IDLE_MS"}
)
"""Variables of ours that say nothing about the server's settings. (The content of the file counts, not its name.)"""
OF_HTTP = frozenset(
    f"{OWN_PREFIX}{name}"
    for name in (
        "TOKEN",
        "TOKENS_FILE",
        "METRICS_TOKEN",
        "ALLOWED_HOSTS",
        "ALLOWED_ORIGINS",
        "WEB",
        "WEB_URL",
        "WEB_PORT",
        "PUSH_PRIVATE",
    )
)
"""Variables of ours that no client on a socket has to do with."""
FAMILIAR = (
    "PERMISSION_TIMEOUT_MS",
    "MAX_SESSIONS",
    "EVENT_BUFFER_SIZE",
    "MCP_TIMEOUT",
    "MAX_MCP_OUTPUT_TOKENS",
    "MCP_SERVER_CONNECTION_BATCH_SIZE",
    "MCP_REMOTE_SERVER_CONNECTION_BATCH_SIZE",
    "CLAUDE_CODE_MAX_EXECUTION_TIME",
    "CLAUDE_CODE_DEFAULT_PERMISSION_MODE",
    "CLAUDE_CODE_ALLOWED_TOOLS",
)
"""Settings of the server whose variables do not have our prefix."""
_DIRECTORIES = ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
"""What the default places of the server's files follow from."""
_PATHS = tuple(f"{OWN_PREFIX}{name}" for name in ("STATE_DIR", "POLICY", "AUDIT_FILE", "HUB_FILE"))

_LONGEST_ADDRESS = 100
"""Bytes of a path that every platform takes as the address of a socket."""
_OTHERS = 0o077
_OTHERS_WRITE = 0o022
_BACKLOG = 512


def possible() -> bool:
    """Whether this platform has what a shared server needs."""
    return _usable


class NoPlace(OSError):
    """There can be no shared server here; the text says why."""


class Place:
    """The files of one shared server."""

    def __init__(self, directory: str, name: str) -> None:
        self.directory = directory
        self.name = name

    @property
    def socket(self) -> str:
        return os.path.join(self.directory, f"{self.name}.sock")

    @property
    def lock(self) -> str:
        return os.path.join(self.directory, f"{self.name}.lock")

    @property
    def log_file(self) -> str:
        return os.path.join(self.directory, f"{self.name}.log")


def find_place(arguments: "Sequence[str]", environment: "Mapping[str, str]") -> tuple[Place, str]:
    """The place for a client with these arguments of `serve` and this environment, and the fingerprint of its
    settings. The directory exists and is private afterwards; NoPlace if that is not possible."""
    directory, print_ = runtime_directory(environment), fingerprint(arguments, environment)
    name = f"{crc32(print_.encode(errors='surrogateescape')):08x}"
    for earlier in _earlier_directories(environment):
        if is_held(
            Place(earlier, name)
        ):  # a server of an earlier version runs there: a second one would split the user
            return Place(earlier, name), print_
    return Place(directory, name), print_


def places(environment: "Mapping[str, str]") -> list[Place]:
    """Every place of this user in which a server has ever been started."""
    return [
        Place(directory, name.removesuffix(".lock"))
        for directory in (runtime_directory(environment), *_earlier_directories(environment))
        for name in sorted(os.listdir(directory))
        if name.endswith(".lock")
    ]


def is_held(place: Place) -> bool:
    """Whether a server runs at this place."""
    try:
        descriptor = os.open(place.lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def fingerprint(arguments: "Sequence[str]", environment: "Mapping[str, str]") -> str:
    """All that the settings of a server follow from, as a text that is equal only for equal settings. Paths that are
    relative count together with the directory that they are relative to."""
    ours = [name for name in environment if name.startswith(OWN_PREFIX)]
    names = sorted({*ours, *FAMILIAR, *_DIRECTORIES} - OF_THE_CLIENT - OF_HTTP)
    parts = [f"{name}={value}" for name in names if (value := environment.get(name))]
    parts.append(f"arguments={list(server_arguments(arguments))}")
    if any(_is_relative(environment.get(name, "")) for name in _PATHS):
        parts.append(f"directory={working_directory()}")
    file = config_file(arguments, environment)
    if file:
        try:
            with open(os.path.expanduser(file), "rb") as opened:
                parts.append(f"file={opened.read().hex()}")
        except OSError:
            parts.append(f"file={os.path.abspath(file)}")
    return "\n".join(parts)


def working_directory() -> str:
    """The directory of this process, also when it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _is_relative(path: str) -> bool:
    return bool(path) and path != "off" and not path.startswith(("/", "~"))


def server_arguments(arguments: "Sequence[str]") -> "Iterator[str]":
    """The arguments of `serve` that are for the server: all but `--shared` and the file, whose content counts."""
    skip = False
    for argument in arguments:
        name, joined, _ = argument.partition("=")
        if not skip and not is_shared_flag(argument) and not _is_config_flag(name):
            yield argument
        skip = not skip and _is_config_flag(name) and not joined


def is_shared_flag(argument: str) -> bool:
    """argparse takes the beginning of a long flag for the whole."""
    return len(argument) > 2 and "--shared".startswith(argument)


def _is_config_flag(name: str) -> bool:
    return len(name) > 2 and "--config".startswith(name)


# -- the directory --------------------------------------------------------------------------------------------


def runtime_directory(environment: "Mapping[str, str]") -> str:
    """The directory of the sockets, made if it is missing. NoPlace if there is none that only we can enter."""
    if not _usable:
        raise NoPlace("this platform has no Unix sockets")
    named = environment.get(RUNTIME_DIR)
    if named:
        return _private(os.path.abspath(os.path.expanduser(named)))
    problems = []
    for directory in (os.path.join(_state_directory(environment), "run"), *_runtime_candidates(environment)):
        try:
            return _private(directory)
        except NoPlace as error:
            problems.append(str(error))
    raise NoPlace("; ".join(problems))


def _runtime_candidates(environment: "Mapping[str, str]") -> list[str]:
    """Where a server may be that does not run in the state directory: an earlier version preferred these. Many clients
    hand on few variables, without the one that names this directory, so it is also looked for where it usually is."""
    named = environment.get("XDG_RUNTIME_DIR", "")
    usual = f"/run/user/{os.geteuid()}"
    found = [directory for directory in (named, usual) if os.path.isabs(directory) and os.path.isdir(directory)]
    return [os.path.join(directory, "claude-code-mcp") for directory in dict.fromkeys(found)]


def _earlier_directories(environment: "Mapping[str, str]") -> list[str]:
    """Those of the candidates that exist and are ours alone, without the one that is used."""
    if environment.get(RUNTIME_DIR):
        return []
    used, found = runtime_directory(environment), []
    for directory in _runtime_candidates(environment):
        try:
            if directory != used and os.path.isdir(directory):
                found.append(_private(directory))
        except NoPlace:
            continue
    return found


def _state_directory(environment: "Mapping[str, str]") -> str:
    """Where our settings put the state, unless a file says otherwise."""
    named = environment.get(f"{OWN_PREFIX}STATE_DIR")
    if named:
        return os.path.abspath(os.path.expanduser(named))
    default = "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/state"
    base = environment.get("XDG_STATE_HOME", "").strip() or os.path.expanduser(default)
    return os.path.join(base, "claude-code-mcp")


def _private(path: str) -> str:
    """The directory, made if it is missing. Only we may enter it, and only we or root may put another in its place."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        found, above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError as error:
        raise NoPlace(f"{path} cannot be made: {error.strerror or error}") from None
    if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise NoPlace(f"{path} is not a directory of ours alone (0700)")
    if above.st_uid not in (os.geteuid(), 0) or above.st_mode & _OTHERS_WRITE:
        raise NoPlace(f"others can write to {os.path.dirname(path)}")
    return path


# -- the socket and the lock ----------------------------------------------------------------------------------


def connect(path: str) -> "_socket.socket":
    """A connection to the server, non-blocking. OSError where nobody listens, PermissionError if it is not ours."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        _with_address(path, connection.connect)
        if not peer_is_ours(connection):
            raise PermissionError(13, "the server at this socket belongs to another user", path)
    except BaseException:
        connection.close()
        raise
    os.set_inheritable(connection.fileno(), False)
    return connection


def bind(path: str) -> "_socket.socket":
    """A socket that listens at the path, which must be free; for us alone."""
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        os.set_inheritable(listener.fileno(), False)
        _with_address(path, listener.bind)
        os.chmod(path, 0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def take_lock(place: Place) -> int | None:
    """The lock of a server as a descriptor that holds it until it is closed; None if somebody else has it."""
    descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def peer_is_ours(connection: "_socket.socket") -> bool:
    """Whether the process at the other end has our user id, where the system tells; the directory holds elsewhere."""
    if hasattr(_socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
    elif hasattr(_socket, "LOCAL_PEERCRED"):
        credentials = connection.getsockopt(0, _socket.LOCAL_PEERCRED, 76)  # version, uid, groups
    else:
        return True
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def _with_address(path: str, use: "Callable[[str], T]") -> "T":
    """Calls `use` with the path, or with a shorter name for the same file: the address of a socket has 104 bytes on
    some platforms. Only one thread may be running where there is no /proc."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        return use(path)
    directory, name = os.path.split(path)
    opened = os.open(directory, os.O_RDONLY)
    here = -1
    try:
        if os.path.isdir(f"/proc/self/fd/{opened}"):
            return use(f"/proc/self/fd/{opened}/{name}")
        here = os.open(".", os.O_RDONLY)
        os.fchdir(opened)
        return use(name)
    finally:
        if here >= 0:
            os.fchdir(here)
            os.close(here)
        os.close(opened)
