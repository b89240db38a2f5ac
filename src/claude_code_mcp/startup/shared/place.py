"""Finds and starts the shared server of this user.

There is one socket per set of server settings: a client with another policy must not reach a server that runs under
this one. Settings that concern only the client (its credentials, its directory, the path of the CLI) are ignored: see
`fingerprint`.

A server holds the lock next to its socket for as long as it runs, and only the holder of the lock may bind or remove
the socket. The module is imported before the first answer, so it imports only built-in modules.

The starter binds the socket and takes the lock, and the server inherits both. So there is never a second server, and
all clients can connect at once: connections wait at the socket until the server is loaded. The first one in the queue
is the starter's own, whose hello has the settings.

The server has its own process session. It inherits only those two descriptors and its log, and no variables that could
be secret: clients send it their environment over the socket.
"""

import os
import sys
from binascii import crc32
from stat import S_ISDIR

from ...core.processes.environment import DEPTH, MARK, OWN_PREFIX
from ..greeting.first_answers import config_file

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
    from typing import NoReturn, TypeVar

    T = TypeVar("T")

RUNTIME_DIR = f"{OWN_PREFIX}RUNTIME_DIR"
SHARED = f"{OWN_PREFIX}SHARED"

OF_THE_CLIENT = frozenset(
    {MARK, DEPTH, SHARED, RUNTIME_DIR, f"{OWN_PREFIX}GREETING", f"{OWN_PREFIX}CONFIG", f"{OWN_PREFIX}SHARED_IDLE_MS"}
)
"""Our variables that do not affect the server's settings. (The file's content counts, not its name.)"""
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
"""Our variables that are irrelevant for clients on a socket."""
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
"""Settings of the server whose variables lack our prefix."""
_DIRECTORIES = ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
"""The variables that determine the default locations of the server's files."""
_PATHS = tuple(f"{OWN_PREFIX}{name}" for name in ("STATE_DIR", "POLICY", "AUDIT_FILE", "HUB_FILE"))

_MAX_ADDRESS = 100
"""Maximum bytes of a socket path on every platform."""
_OTHERS = 0o077
_OTHERS_WRITE = 0o022
_BACKLOG = 512


def possible() -> bool:
    """Whether this platform supports a shared server."""
    return _usable


class SharedServerUnavailable(OSError):
    """No shared server is possible here; the text says why."""


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
    """The place for a client with these arguments of `serve` and this environment, and the fingerprint of its settings.
    Its directory then exists and is private. Raises SharedServerUnavailable if that is impossible, or if it cannot be
    determined whether a server runs elsewhere."""
    directory, print_ = runtime_directory(environment), fingerprint(arguments, environment)
    name = f"{crc32(print_.encode(errors='surrogateescape')):08x}"
    return Place(directory, name), print_


def places(environment: "Mapping[str, str]") -> list[Place]:
    """Every place of this user in which a server was ever started."""
    directory = runtime_directory(environment)
    return [
        Place(directory, name.removesuffix(".lock")) for name in sorted(os.listdir(directory)) if name.endswith(".lock")
    ]


def is_held(place: Place) -> bool:
    """Whether a server runs at this place. Raises SharedServerUnavailable if that cannot be determined: a second one
    must not start then."""
    descriptor = -1
    try:
        descriptor = os.open(place.lock, os.O_RDWR | os.O_NOFOLLOW)
        # There is no other test. It holds the lock for an instant: a process that wants to start a server right then
        # retries.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise SharedServerUnavailable(
            f"cannot determine whether a server runs at {place.socket}: {error.strerror or error}"
        ) from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return False


_GATEWAY = b"gateway"


def write_holder(lock: int, *, gateway: bool = False) -> None:
    """Writes the holder's data into a held lock."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n%b" % (os.getpid(), _GATEWAY if gateway else b""), 0)


def is_gateway(place: Place) -> bool:
    """Whether a fleet's gateway serves at a place, or did so last. Its first answers differ from a server's."""
    try:
        descriptor = os.open(place.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False  # no server was ever started there
    try:
        return _GATEWAY in os.read(descriptor, 64)
    finally:
        os.close(descriptor)


def fingerprint(arguments: "Sequence[str]", environment: "Mapping[str, str]") -> str:
    """Everything that determines a server's settings, as a text that is equal only for equal settings. Relative paths
    count with their base directory."""
    ours = [name for name in environment if name.startswith(OWN_PREFIX)]
    names = sorted({*ours, *FAMILIAR, *_DIRECTORIES} - OF_THE_CLIENT - OF_HTTP)
    parts = [f"{name}={value}" for name in names if (value := environment.get(name))]
    parts.append(f"arguments={list(server_arguments(arguments))}")
    if any(path and path != "off" and not path.startswith(("/", "~")) for path in map(environment.get, _PATHS)):
        parts.append(f"directory={working_directory()}")
    file = config_file(arguments, environment)
    if file:
        try:
            # By its content: a server that was started before the file changed runs with other settings.
            with open(os.path.expanduser(file), "rb") as opened:
                parts.append(f"file={opened.read().hex()}")
        except OSError:
            parts.append(f"file={os.path.abspath(file)}")
    return "\n".join(parts)


def working_directory() -> str:
    """This process's working directory, even if it no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def server_arguments(arguments: "Sequence[str]") -> "Iterator[str]":
    """The arguments of `serve` for the server: all except `--shared` and the file, whose content counts."""
    skip = False
    for argument in arguments:
        name, joined, _ = argument.partition("=")
        # argparse accepts abbreviated long flags.
        is_shared_flag = len(argument) > 2 and "--shared".startswith(argument)
        if not skip and not is_shared_flag and not _is_config_flag(name):
            yield argument
        skip = not skip and _is_config_flag(name) and not joined


def _is_config_flag(name: str) -> bool:
    return len(name) > 2 and "--config".startswith(name)


# -- the directory --------------------------------------------------------------------------------------------


def runtime_directory(environment: "Mapping[str, str]") -> str:
    """The directory of the sockets, created if missing. Raises SharedServerUnavailable if no private one is
    available."""
    if not _usable:
        raise SharedServerUnavailable("this platform has no Unix sockets")
    named = environment.get(RUNTIME_DIR)
    if named:
        return _private(os.path.abspath(os.path.expanduser(named)))
    problems = []
    for directory in (os.path.join(_state_directory(environment), "run"), *_runtime_candidates(environment)):
        try:
            return _private(directory)
        except SharedServerUnavailable as error:
            problems.append(str(error))
    raise SharedServerUnavailable("; ".join(problems))


def _runtime_candidates(environment: "Mapping[str, str]") -> list[str]:
    """Alternatives if the state directory cannot be used. Many clients pass on few variables, so the usual runtime
    directory is tried even without XDG_RUNTIME_DIR."""
    named = environment.get("XDG_RUNTIME_DIR", "")
    usual = f"/run/user/{os.geteuid()}"
    found = [directory for directory in (named, usual) if os.path.isabs(directory) and os.path.isdir(directory)]
    return [os.path.join(directory, "claude-code-mcp") for directory in dict.fromkeys(found)]


def _state_directory(environment: "Mapping[str, str]") -> str:
    """Our state directory according to the settings, unless a file says otherwise."""
    named = environment.get(f"{OWN_PREFIX}STATE_DIR")
    if named:
        return os.path.abspath(os.path.expanduser(named))
    default = "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/state"
    base = environment.get("XDG_STATE_HOME", "").strip() or os.path.expanduser(default)
    return os.path.join(base, "claude-code-mcp")


def _private(path: str) -> str:
    """The directory, created if missing. Only we may enter it, and only we or root may replace it."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        found, above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError as error:
        raise SharedServerUnavailable(f"{path} cannot be created: {error.strerror or error}") from None
    if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise SharedServerUnavailable(f"{path} is not a private directory (mode 0700)")
    if above.st_uid not in (os.geteuid(), 0) or above.st_mode & _OTHERS_WRITE:
        raise SharedServerUnavailable(f"others can write to {os.path.dirname(path)}")
    return path


# -- the socket and the lock ----------------------------------------------------------------------------------


def connect(path: str) -> "_socket.socket":
    """A non-blocking connection to the server. Raises OSError if nothing listens, PermissionError if it is not ours."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        _with_address(path, connection.connect)
        # Before anything is sent: the hello has the whole environment of the client, with its secrets.
        if not peer_is_ours(connection):
            raise PermissionError(13, "the server at this socket belongs to another user", path)
    except BaseException:
        connection.close()
        raise
    os.set_inheritable(connection.fileno(), False)
    return connection


def bind(path: str) -> "_socket.socket":
    """A private socket that listens at the path, which must be free."""
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        os.set_inheritable(listener.fileno(), False)
        _with_address(path, listener.bind)
        # Before it listens: until then no process can connect, whatever the mode was.
        os.chmod(path, 0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def take_lock(place: Place) -> int | None:
    """A server's lock, as a descriptor that holds it until closed; None if another process has it."""
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
    """Whether the peer has our user id. True if the system does not report it: there the private directory keeps others
    out."""
    if hasattr(_socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
    elif hasattr(_socket, "LOCAL_PEERCRED"):
        credentials = connection.getsockopt(0, _socket.LOCAL_PEERCRED, 76)  # version, uid, groups
    else:
        return True
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def peer_pid(connection: "_socket.socket") -> int:
    """The peer's pid according to the kernel; 0 if it does not report it."""
    try:
        if hasattr(_socket, "SO_PEERCRED"):
            credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
        else:
            credentials = connection.getsockopt(0, _LOCAL_PEERPID, 4)  # macOS
    except OSError:
        return 0
    return int.from_bytes(credentials[:4], sys.byteorder)


_LOCAL_PEERPID = 2


def _with_address(path: str, use: "Callable[[str], T]") -> "T":
    """Calls `use` with the path, or with a shorter name for the same file, because socket addresses have 104 bytes on
    some platforms. Only one thread may be running without /proc."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
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


# -- launch -----------------------------------------------------------------------------------------------------------


LISTENER, LOCK = 3, 4
"""The numbers of the descriptors that the server inherits."""
INHERITED = "--inherited"

_LOG_LIMIT = 1 << 20
_HIGHEST = 1 << 16
"""Above every descriptor that a front may have inherited."""
_KEPT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT"}
)
_KEPT_PREFIXES = ("LC_", "XDG_", "PYTHON", "DYLD_")


def start(place: Place, arguments: "Sequence[str]" = ()) -> "_socket.socket | None":
    """Starts a server at the place and returns the first connection to it; None if another process holds the lock,
    because a server runs, starts or exits there. Raises OSError if it cannot be started; then nothing remains."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise SharedServerUnavailable("there is no Python interpreter to run it")
    lock = take_lock(place)
    if lock is None:
        return None
    try:
        listener, connection = _listen_and_connect(place)
        try:
            log = open_log(place)
            try:
                path = os.path.join(place.directory, place.name)
                command = [sys.executable, "-P", "-m", "claude_code_mcp", "shared", "run", INHERITED, path]
                _detach(listener.fileno(), lock, log, [*command, *arguments])
            finally:
                os.close(log)
        except BaseException:
            connection.close()
            raise
        finally:
            listener.close()
        return connection
    finally:
        # Does not release it once the server runs: the lock belongs
        # to the open file, of which the server has inherited a copy.
        os.close(lock)


def listen(place: Place) -> "_socket.socket":
    """The socket of a server that no other process can find yet; only for the holder of the lock."""
    listener, connection = _listen_and_connect(place)
    connection.close()
    return listener


def _listen_and_connect(place: Place) -> "tuple[_socket.socket, _socket.socket]":
    """The server's socket, and a connection made before others can find it."""
    temporary = f"{place.socket}.new"
    if os.path.lexists(temporary):
        os.unlink(temporary)  # left by a killed starter; the holder of the lock may remove it
    listener = bind(temporary)
    try:
        connection = connect(temporary)
        os.rename(temporary, place.socket)  # replaces the socket of a killed server
    except BaseException:
        listener.close()
        raise
    return listener, connection


def open_log(place: Place) -> int:
    """The log, opened for appending and rotated if too long. Private to its owner."""
    try:
        if os.stat(place.log_file).st_size > _LOG_LIMIT:
            os.rename(place.log_file, f"{place.log_file}.1")
    except FileNotFoundError:
        pass
    return os.open(place.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def clean_environment(environment: "Mapping[str, str]") -> dict[str, str]:
    """The variables that the interpreter needs to start; none can contain a secret."""
    return {name: value for name, value in environment.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def _detach(listener: int, lock: int, log: int, argv: list[str]) -> None:
    """Double-forks so that the command is reparented to init. Only one thread may be running."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            # Twice, so that the server is reparented to init: no front has to wait for it, and it does not end with the
            # client.
            if os.fork() == 0:
                _execute(listener, lock, log, argv)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _execute(listener: int, lock: int, log: int, argv: list[str]) -> "NoReturn":
    """Becomes the command, with the descriptors at their numbers and all others closed."""
    import fcntl  # noqa: PLC0415 - not on Windows

    kept = [os.open(os.devnull, os.O_RDONLY), log, log, listener, lock]
    # In two steps: moved directly to its number, a descriptor could overwrite another one that has not been moved yet.
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in kept]  # above all the final numbers
    for number, descriptor in enumerate(aside):
        os.dup2(descriptor, number)
    os.closerange(len(aside), _HIGHEST)
    os.chdir("/")
    os.execve(argv[0], argv, clean_environment(os.environ))
