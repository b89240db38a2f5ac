"""The files that Claude Code keeps for its user, and which credentials of the model a session gets.

The CLI has no lock, and two processes that write to one session split its transcript; but each process keeps a small
file `sessions/<pid>.json`. Such a file counts only while the very process lives that wrote it: it is left behind when
that process is killed, and its number may belong to another one by then. Functions block on the disk.

Credentials: by the operator's choice the principals of a server share what the server's environment has
(`environment`), get a copy of the login of the server's user (`login`), or have each their own, in a directory with a
file per principal: `NAME.env` with lines `VARIABLE=value`, and `NAME.credentials.json`, a login that Claude Code has
written. With such a directory nothing of the server's own credentials is passed on, so that a principal without a file
has none.

Whatever a session gets, its commands can read.
"""

import contextlib
import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, SessionBusy
from ..model.paths import user_file
from ..model.tool_names import is_this_server
from ..private_files import entries_at, open_at, read_regular, remove_at
from ..processes.leftovers import created_at, has_ended, started_at
from ..redaction import hide_shapes

_Commands = tuple[tuple[str, ...], ...]
MAX_BYTES = 64 << 20
"""A larger file is not read."""

CONVERSATIONS = ("projects", "file-history", "todos", "tasks", "plans")
"""What sessions write of themselves into the configuration directory, the transcripts first."""
USER_SETTINGS = (
    *("settings.json", "CLAUDE.md", "agents", "commands", "skills", "output-styles", "plugins", "rules"),
    *("themes", "workflows", "hooks", "keybindings.json"),
)
"""What the user configures there, the settings first."""


def own_registrations(environment: Mapping[str, str], cwd: str) -> _Commands:
    """The command lines, as they are configured, that would start this server in a session in `cwd`.

    Read are `.claude.json` of the user and `.mcp.json` of the directory and all above it; a file that is missing or
    malformed has none. Blocks on the disk.
    """
    files = [user_file(environment)]
    files += [directory / ".mcp.json" for directory in (Path(cwd), *Path(cwd).parents)]
    return tuple(dict.fromkeys(command for file in files for command in _registered_in(str(file))))


def _registered_in(file: str) -> _Commands:
    try:
        facts = os.stat(file)
    except (OSError, ValueError):
        return ()
    return _read_commands(file, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=256)
def _read_commands(file: str, changed: int, size: int) -> _Commands:
    """Cached by time and size of the file: `.claude.json` can be large, and is needed at every start of a process."""
    try:
        content = json.loads(read_regular(file, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(_own_commands(content))


def _own_commands(content: object) -> Iterator[tuple[str, ...]]:
    projects = _mapping(_mapping(content).get("projects"))
    for scope in (content, *projects.values()):
        for entry in _mapping(_mapping(scope).get("mcpServers")).values():
            command, arguments = _mapping(entry).get("command"), _mapping(entry).get("args") or []
            if not isinstance(command, str) or not isinstance(arguments, list):
                continue
            argv = (command, *map(str, arguments))
            if is_this_server(argv[0], argv[1:]):
                yield argv


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_CLOCK_SLACK = 5.0
"""Seconds by which a process may seem to be younger than what it wrote: clocks are set."""
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""Failures to read that say nothing of the file. They must not pass for its absence."""


def process_with(session_id: str, config_dir: str) -> int | None:
    """The number of a living process that has this session open, None if there is none. SessionBusy if it cannot be
    determined, as with no file descriptor left."""
    try:
        for path in _registrations(config_dir, lambda name: name.endswith(".json")):
            entry = _read(path)
            pid = entry.get("pid")
            if entry.get("sessionId") == session_id and isinstance(pid, int) and _is_alive(pid, entry):
                return pid
    except OSError as error:
        raise SessionBusy(
            f"Cannot determine whether session {session_id} is open in another Claude Code process "
            f"({error.strerror}). Try again.",
            session_id=session_id,
        ) from error
    return None


def noted_session(pid: int, config_dir: str) -> Mapping[str, Any] | None:
    """What a living process has noted about the session that it has open; empty if it has noted nothing readable, None
    if the process is gone. SessionBusy if that cannot be determined."""
    try:
        entries = [_read(path) for path in _registrations(config_dir, lambda name: name == f"{pid}.json")]
    except OSError as error:
        raise SessionBusy(f"The session of process {pid} cannot be read now ({error.strerror}). Try again.") from error
    entry = entries[0] if entries else {}
    return entry if _is_alive(pid, entry) else None


def noted_sessions(config_dir: str) -> list[Mapping[str, Any]]:
    """What all living processes have noted about their sessions. SessionBusy as `noted_session`."""
    try:
        entries = [_read(path) for path in _registrations(config_dir, lambda name: name.endswith(".json"))]
    except OSError as error:
        raise SessionBusy(f"The open sessions cannot be read now ({error.strerror}). Try again.") from error
    return [entry for entry in entries if isinstance(pid := entry.get("pid"), int) and _is_alive(pid, entry)]


@dataclass(frozen=True, slots=True)
class Registration:
    """The files by which a process is in the CLI's list of open sessions, with their contents."""

    files: Mapping[Path, bytes] = field(default_factory=dict)

    def put_back(self) -> None:
        """Lists the process again. It goes on to update the entry, which it does not miss meanwhile."""
        for path, content in self.files.items():
            with (
                contextlib.suppress(OSError),
                open(open_at(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file,
            ):
                file.write(content)


def take_registration(session_id: str, config_dir: str) -> Registration:
    """Takes the living process that has this session open from the list of open sessions, so that no other session
    finds it there. Nothing is taken where there is no such entry. SessionBusy if that cannot be told."""
    pid = process_with(session_id, config_dir)
    files: dict[Path, bytes] = {}
    for path in _registrations(config_dir, lambda name: name.startswith(f"{pid}.")) if pid is not None else ():
        with contextlib.suppress(OSError):
            # The content first: a file that cannot be read could not be put back, and so is left in its place.
            files[path] = _content(path)
            remove_at(str(path))
    return Registration(files)


def _registrations(config_dir: str, wanted: Callable[[str], bool]) -> list[Path]:
    """The files in the list of open sessions. No link is followed below the directory, which sessions may write to.
    OSError if the list cannot be read."""
    directory = os.path.join(os.path.realpath(config_dir), "sessions")
    try:
        return [Path(directory, entry.name) for entry in entries_at(directory, wanted)]
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES:
            raise
        return []  # then no CLI of this user can have an entry there


def _content(path: Path) -> bytes:
    """OSError for what is no regular file, or larger than such a file can be."""
    with open(path, "rb", opener=open_at) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise OSError(22, "not a regular file, or too large", str(path))
        return file.read(MAX_BYTES)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        entry = json.loads(_content(path))
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES:
            raise
        return {}  # it has just gone, or is no file that the CLI writes
    except (ValueError, RecursionError):  # it is being written
        return {}
    return entry if isinstance(entry, dict) else {}


def _is_alive(pid: int, entry: Mapping[str, Any]) -> bool:
    """Whether the process that wrote this lives. One in another container cannot be seen and does not count. What
    cannot be told counts as alive: a session that is refused can be asked for again, two writers cannot be undone."""
    if pid <= 0 or not _is_in_our_pid_namespace(entry.get("pidDomain")):
        return False
    try:
        return not has_ended(pid) and _started_as_noted(pid, entry)
    except (FileNotFoundError, ProcessLookupError, ValueError, OverflowError):
        return False  # the last two: no process has such a number, or could have been started then
    except OSError:
        return True


def _started_as_noted(pid: int, entry: Mapping[str, Any]) -> bool:
    """Whether this is the very process, and not one that got its number later. On Linux the CLI notes the kernel's own
    count, which alone counts where it is there: the clock may have been set since the entry was written."""
    start, written = entry.get("procStart"), entry.get("startedAt")
    if sys.platform == "linux" and isinstance(start, str) and start.isascii() and start.isdigit():
        return started_at(pid) == int(start)
    if isinstance(written, int | float):
        return not created_at(pid) > written / 1000 + _CLOCK_SLACK
    return True


def _is_in_our_pid_namespace(domain: object) -> bool:
    if sys.platform != "linux" or not isinstance(domain, str) or ":pid:[" not in domain:
        return True
    return domain.endswith(os.readlink("/proc/self/ns/pid"))


# -- model access -----------------------------------------------------------------------------------------------------


CREDENTIALS_FILE = ".credentials.json"
"""Claude Code's login, in its configuration directory."""
_CREDENTIALS = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_FOUNDRY_API_KEY"),
    "CLAUDE_CODE_OAUTH_TOKEN",
)
_PROVIDER_CREDENTIALS = {
    "CLAUDE_CODE_USE_BEDROCK": ("AWS_",),
    "CLAUDE_CODE_USE_VERTEX": ("GOOGLE_", "CLOUD_ML_", "VERTEX_"),
    "CLAUDE_CODE_USE_FOUNDRY": ("AZURE_",),
}
"""By the switch that chooses a provider, how the names of variables begin that may hold its credentials."""
_ACCESS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_CUSTOM_HEADERS",
    _CREDENTIALS[-1],
)
"""How Claude Code reaches the model, and with what."""
_PROVIDERS = {
    "CLAUDE_CODE_USE_BEDROCK": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION"),
        *("AWS_DEFAULT_REGION", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_BEDROCK_SERVICE_TIER"),
        *("ANTHROPIC_SMALL_FAST_MODEL_AWS_REGION", "CLAUDE_CODE_SKIP_BEDROCK_AUTH"),
    ),
    "CLAUDE_CODE_USE_VERTEX": (
        *("ANTHROPIC_VERTEX_PROJECT_ID", "ANTHROPIC_VERTEX_BASE_URL", "CLOUD_ML_REGION", "GOOGLE_CLOUD_PROJECT"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "GCLOUD_PROJECT", "CLAUDE_CODE_SKIP_VERTEX_AUTH"),
    ),
    "CLAUDE_CODE_USE_FOUNDRY": (
        *("ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_BASE_URL", "ANTHROPIC_FOUNDRY_RESOURCE", "AZURE_CLIENT_ID"),
        *("AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "CLAUDE_CODE_SKIP_FOUNDRY_AUTH"),
    ),
}
"""By the switch that chooses a provider, the variables that Claude Code reaches it with."""
_PLAIN = frozenset(
    {
        *("PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR"),
        *("TZ", "CI"),
        # Certificates of a proxy or a gateway; the files are given by `readable`
        *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
        # How Claude Code works
        *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_BETAS", "API_TIMEOUT_MS", "DO_NOT_TRACK"),
        *("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "BASH_MAX_OUTPUT_LENGTH", "MAX_THINKING_TOKENS"),
        *("CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE", "CLAUDE_CODE_EFFORT_LEVEL"),
        *("CLAUDE_CODE_SUBAGENT_MODEL", "CLAUDE_CODE_SUBPROCESS_ENV_SCRUB", "CLAUDE_STREAM_IDLE_TIMEOUT_MS"),
        *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY", "ENABLE_TOOL_SEARCH"),
        *("IS_SANDBOX", "MCP_TIMEOUT", "MCP_TOOL_TIMEOUT", "MAX_MCP_OUTPUT_TOKENS", "SLASH_COMMAND_TOOL_CHAR_BUDGET"),
    }
)
"""What a sandbox gets of the server's environment by name; nothing that is not listed here enters."""
_PLAIN_PREFIXES = (
    *("LC_", "DISABLE_", "ANTHROPIC_DEFAULT_", "CLAUDE_CODE_DISABLE_", "CLAUDE_CODE_ENABLE_", "CLAUDE_CODE_MAX_"),
    "CLAUDE_CODE_AUTO_COMPACT_",
)
_PROXIES = frozenset(
    name for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for name in (proxy, proxy.lower())
)


def sandbox_variables(
    environment: Mapping[str, str], config_dir: str, home: str, listed: Collection[str] = ()
) -> dict[str, str]:
    """The environment of a sandbox with this home: what every program and Claude Code itself needs, the way to the
    model with its credentials, and what the profile has listed. Everything else is left out, whatever it is called;
    so is an address with a password, and every other value with the shape of a secret, unless it was listed."""
    kept = {name: value for name, value in environment.items() if name in listed or _enters(name, value, environment)}
    return {**kept, "HOME": home, "CLAUDE_CONFIG_DIR": config_dir, "TMPDIR": "/tmp"}  # noqa: S108 - the sandbox's own


def withheld_proxies(environment: Mapping[str, str], listed: Collection[str]) -> list[str]:
    """The variables of proxies that a sandbox does not get because there is a password in them."""
    return sorted(name for name in _PROXIES & environment.keys() - {*listed} if "@" in environment[name])


def _enters(name: str, value: str, environment: Mapping[str, str]) -> bool:
    if _is_model_access(name, environment):
        return True
    if name in _PROXIES:
        return "@" not in value
    return (name in _PLAIN or name.startswith(_PLAIN_PREFIXES)) and hide_shapes(value) == value


def _is_model_credential(name: str, environment: Mapping[str, str]) -> bool:
    switched_on = (names for switch, names in _PROVIDER_CREDENTIALS.items() if environment.get(switch))
    return name in _CREDENTIALS or any(name.startswith(prefixes) for prefixes in switched_on)


def _is_model_access(name: str, environment: Mapping[str, str]) -> bool:
    return name in _ACCESS or any(name in names for switch, names in _PROVIDERS.items() if environment.get(switch))


class PrincipalCredentials:
    """What each of several principals gets: `environment`, `login`, or a directory with files of their own."""

    def __init__(self, choice: "str | Path") -> None:
        self._directory = choice if isinstance(choice, Path) else None
        self._shares_login = choice == "login"

    def applied(self, environment: Mapping[str, str], principal: str) -> dict[str, str]:
        """The environment with the credentials of a principal. InvalidArgument if its file cannot be used. Blocks."""
        if self._directory is None:
            return dict(environment)
        own = _read_variables(self._file(principal, ".env"))
        # Nothing of the server's own, also where the file has another
        # kind of credential: the CLI would choose between them.
        others = {name: value for name, value in environment.items() if not _is_model_credential(name, environment)}
        return {**others, **own}

    def login(self, principal: str, user_dir: str) -> Path | None:
        """The login that a principal gets a copy of; None if it gets none. `user_dir` is the user's directory."""
        if self._directory is not None:
            return self._file(principal, CREDENTIALS_FILE)
        return Path(user_dir, CREDENTIALS_FILE) if self._shares_login else None

    def _file(self, principal: str, suffix: str) -> Path:
        assert self._directory is not None
        # Such a name would lead to a file elsewhere, or to a hidden one.
        if os.sep in principal or principal.startswith("."):
            raise InvalidArgument(f"The principal name {principal!r} cannot be used as the name of a credentials file.")
        return self._directory / f"{principal}{suffix}"


def _read_variables(path: Path) -> dict[str, str]:
    """The variables in a file of `NAME=value` lines; none if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            # Asked of the open file: by its name it could be another one by now.
            if sys.platform != "win32" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidArgument(f"The credentials in {path} can be read by others; `chmod 600` it.")
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"The credentials in {path} cannot be read: {error}") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(name.isidentifier() and equals for name, equals, _ in pairs):
        raise InvalidArgument(f"Every line of {path} must be `NAME=value`.")
    return {name: value for name, _, value in pairs}
