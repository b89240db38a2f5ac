"""The operator's files, and which directories can be given to a sandbox without exposing them.

A sandbox is given whole directories. No file in one can be hidden reliably: it must exist to be hidden by name, and it
reappears when another file is renamed over it. Therefore a directory that contains a path of the operator is not given
at all, whether or not that path exists yet. The same applies to a directory inside such a path, and to one with
programs that the server runs outside of the sandbox. Paths are compared as written, with links resolved, and by
identity on the disk: a directory that is mounted in two places is one directory.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...core.audit.trail import essential_path
from ...core.claude.executable import bundled_executable
from ...core.config import CONFIG_FILE_VARIABLE, Settings
from ...core.model.paths import HERE, config_directory, user_file
from ...core.processes.environment import expand_home
from ...core.processes.leftovers import is_scratch_name
from .settings import SandboxSettings

_KEYS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc"),
    *(".git-credentials", ".password-store", ".vault-token", ".terraform.d", ".pgpass", ".my.cnf", ".cargo", ".gem"),
    *(".m2", ".gradle", ".config/gcloud", ".config/gh", ".config/op", ".config/rclone", ".config/containers"),
    *(".local/share/keyrings", ".config/claude-code-mcp", ".mozilla", ".thunderbird"),
)
_STARTS = (
    *(
        ".bashrc",
        ".bash_profile",
        ".bash_login",
        ".bash_logout",
        ".profile",
        ".zshrc",
        ".zshenv",
        ".zprofile",
        ".zlogin",
    ),
    *(".config/fish", ".config/autostart", ".config/systemd", ".config/git", ".gitconfig", ".pam_environment"),
    *(".local/bin", "bin", "Library/LaunchAgents"),
)
"""Files that run, or are read by programs that run, at almost any activity of a home's user."""
_SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"),
    *("/var/lib", "/var/spool"),
)
_MAX_CHAIN = 40
"""Maximum number of consecutive links, as in the kernel."""


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """A path that belongs to the operator."""

    path: str
    what: str
    """A human-readable description."""
    inside: bool = True
    """Whether directories inside of it are protected too."""
    can_be_listed: bool = False
    """Whether a profile may list it, or something in it, as readable."""


@dataclass(frozen=True, slots=True)
class ProtectedPaths:
    """All protected paths. Methods block on the disk briefly and report its present state."""

    paths: tuple[ProtectedPath, ...]
    homes: tuple[str, ...] = ()
    """Home directories of the operator and the client."""

    def conflict(self, directory: str) -> str | None:
        """Why this real directory cannot be given to a sandbox, as the end of a sentence that begins with the
        directory; None if it can."""
        if directory == os.path.abspath(os.sep):
            return "is the whole machine"
        if any(HERE.is_below(path, directory) for path in _SYSTEM):
            return "is a system directory, or contains one"
        # Created for each call: the answer reflects the disk's current state.
        disk = _Disk()
        itself, parents = disk.identity(directory), set(disk.with_parents(directory))
        for protected in self.paths:
            for place in disk.places(protected.path):
                if HERE.is_below(place, directory) or (itself is not None and itself in disk.with_parents(place)):
                    return f"contains {protected.what} ({protected.path}), or will once that exists"
                if protected.inside and (HERE.is_below(directory, place) or disk.identity(place) in parents):
                    return f"is inside {protected.what} ({protected.path})"
        return None

    def conflict_of_choice(self, directory: str) -> str | None:
        """The same for a directory that a caller chose and the operator did not list: it must neither be part of the
        system nor a hidden directory in a user's home."""
        if any(HERE.is_below(directory, path) for path in _SYSTEM):
            return "is a system directory"
        if any(is_scratch_name(part) for part in Path(directory).parts):
            return "belongs to a session"
        for home in map(os.path.realpath, self.homes):
            if HERE.is_below(directory, home) and directory[len(home) :].startswith(f"{os.sep}."):
                return f"is inside a user's settings ({home})"
        return self.conflict(directory)

    def conflict_of_listed(self, path: str) -> str | None:
        """The same for a real path that a profile lists as readable. Keys can be listed individually."""
        disk = _Disk()
        named = (place for entry in self.paths if entry.can_be_listed for place in disk.places(entry.path))
        return None if any(HERE.is_below(path, place) for place in named) else self.conflict(path)


def protected_paths(settings: Settings, *environments: Mapping[str, str]) -> ProtectedPaths:
    """The protected paths for these settings and environments, the server's first."""
    homes = tuple(dict.fromkeys(_homes(environments)))
    listed = [*_of_server(settings, environments[0]), *_programs(settings, environments)]
    for environment in environments:
        listed += _of_claude_code(environment)
    for home in homes:
        listed += [ProtectedPath(os.path.join(home, name), "keys", can_be_listed=True) for name in _KEYS]
        listed += [
            ProtectedPath(os.path.join(home, name), "programs that run at login", False, True) for name in _STARTS
        ]
    return ProtectedPaths(tuple(dict.fromkeys(listed)), homes)


def _homes(environments: Iterable[Mapping[str, str]]) -> Iterator[str]:
    for environment in environments:
        yield environment.get("HOME") or os.path.expanduser("~")
    if sys.platform != "win32":
        import pwd  # noqa: PLC0415 - not on Windows

        try:
            yield pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a user without an entry, as in many containers
            return


def _of_server(settings: Settings, environment: Mapping[str, str]) -> Iterator[ProtectedPath]:
    config, trail = environment.get(CONFIG_FILE_VARIABLE), settings.audit_file
    named: dict[str, object] = {
        "this server's state": settings.state_dir,
        "the sockets of this server": settings.runtime_dir,
        "the tokens": settings.http_tokens_file,
        "the policy": settings.policy_file,
        "the MCP servers of the hub": settings.hub_file,
        "the audit trail": trail,
        "the essential lines of the audit trail": essential_path(trail) if isinstance(trail, Path) else None,
        "the credentials of callers": settings.section(SandboxSettings).principal_credentials,
        "a token of the identity provider": settings.identity_provider_token_file,
        "the settings of this server": Path(config).expanduser() if config else None,
    }
    for what, path in named.items():
        if isinstance(path, Path):
            yield ProtectedPath(os.path.abspath(path), what)
    # The directory of our file of MCP servers, which is read again whenever it changes.
    yield ProtectedPath(os.path.dirname(os.path.abspath(settings.hub_file)), "the configuration of this server")
    yield ProtectedPath(tempfile.gettempdir(), "the files of other sessions", inside=False)


def _of_claude_code(environment: Mapping[str, str]) -> Iterator[ProtectedPath]:
    yield ProtectedPath(os.path.abspath(config_directory(environment)), "Claude Code's files", can_be_listed=True)
    yield ProtectedPath(os.path.abspath(user_file(environment)), "Claude Code's settings", can_be_listed=True)
    if environment.get("XDG_RUNTIME_DIR"):
        # A program that reaches a socket there acts as the user: a shared server, an agent with keys, D-Bus.
        yield ProtectedPath(environment["XDG_RUNTIME_DIR"], "the sockets of the user")


def _programs(settings: Settings, environments: Iterable[Mapping[str, str]]) -> Iterator[ProtectedPath]:
    """What the server runs, or loads at run time, outside of every sandbox."""
    package = str(Path(__file__).parents[2])
    code = dict.fromkeys([package, sys.prefix, sys.base_prefix, os.path.dirname(sys.executable or os.sep)])
    for path in code:
        yield ProtectedPath(path, "this server's program", inside=False)
    bundled = bundled_executable()
    for path in filter(None, (settings.claude_path, bundled)):
        if os.path.dirname(path):
            yield ProtectedPath(os.path.abspath(os.path.expanduser(path)), "the Claude Code program", inside=False)
    for environment in environments:
        for entry in environment.get("PATH", os.defpath).split(os.pathsep):
            # An empty or relative entry means the directory in which the server was started.
            yield ProtectedPath(os.path.abspath(expand_home(entry, environment)), "a directory on PATH", inside=False)


def _parts(path: str) -> list[str]:
    """The names in a path, last first."""
    return [name for name in reversed(path.split(os.sep)) if name not in ("", os.curdir)]


class _Disk:
    """Cached facts about paths on the disk: most of them share their parent directories."""

    def __init__(self) -> None:
        self._links: dict[str, str | None] = {}
        self._found: dict[str, tuple[int, int] | None] = {}
        self._above: dict[str, list[tuple[int, int]]] = {}

    def places(self, path: str) -> Iterator[str]:
        """The locations of a path: every link on the way, and where the last one leads."""
        place, ahead, followed = os.sep, _parts(path), 0
        while ahead:
            part = ahead.pop()
            if part == os.pardir:
                place = os.path.dirname(place)
                continue
            target = self._link(os.path.join(place, part))
            if target is None:
                place = os.path.join(place, part)
                continue
            yield os.path.join(place, part)
            followed += 1
            if followed > _MAX_CHAIN:
                return  # a broken link
            if os.path.isabs(target):
                place = os.sep
            ahead += _parts(target)
        yield place

    def _link(self, path: str) -> str | None:
        if path not in self._links:
            try:
                self._links[path] = os.readlink(path)
            except OSError:  # not a link, or missing
                self._links[path] = None
        return self._links[path]

    def identity(self, path: str) -> tuple[int, int] | None:
        """The identity of a file; None if it does not exist."""
        if path not in self._found:
            try:
                found = os.stat(path)
                self._found[path] = found.st_dev, found.st_ino
            except OSError:
                self._found[path] = None
        return self._found[path]

    def with_parents(self, path: str) -> list[tuple[int, int]]:
        """The identities of a path and all its parents, as far as they exist."""
        if path not in self._above:
            parent = os.path.dirname(path)
            own, above = self.identity(path), self.with_parents(parent) if parent != path else []
            self._above[path] = above if own is None else [own, *above]
        return self._above[path]
