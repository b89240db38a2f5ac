"""The operator's own files, and which directories can be given to a sandbox without them.

A sandbox is given whole directories. Nothing in one can be kept from it: what is covered by name must exist to be
covered, and comes to light again when somebody renames another file over it. So a directory that holds something of the
operator's is not given at all, whether that exists yet or not. The same goes for a directory that lies inside of such a
place, and for one that holds programs which the server runs outside of the sandbox.

Paths are compared as they are written, where their links lead, and by what they are on the disk: a directory that is
mounted in two places is one directory.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
"""What runs, or is read by programs that run, whenever the user of the home does something."""
_SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"),
    *("/var/lib", "/var/spool"),
)
_MAX_CHAIN = 40
"""Links that are followed one after the other; the kernel follows no more."""


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """Something of the operator's."""

    path: str
    what: str
    """What it is, for a person."""
    inside: bool = True
    """Whether a directory that lies in it cannot be given either."""
    can_be_listed: bool = False
    """Whether a profile may name it, or something in it, as readable."""


@dataclass(frozen=True, slots=True)
class ProtectedPaths:
    """All of them. Methods block on the disk for a moment, and tell the present state of it."""

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
        # Made anew for each question: the answer is of the disk as it is now.
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
        """The same for a directory that a caller chose by itself, with nobody having listed it: neither a part of the
        system nor anything that the user of a home keeps out of sight."""
        if any(HERE.is_below(directory, path) for path in _SYSTEM):
            return "is a system directory"
        if any(is_scratch_name(part) for part in Path(directory).parts):
            return "belongs to a session"
        for home in map(os.path.realpath, self.homes):
            if HERE.is_below(directory, home) and directory[len(home) :].startswith(f"{os.sep}."):
                return f"is inside a user's settings ({home})"
        return self.conflict(directory)

    def conflict_of_listed(self, path: str) -> str | None:
        """The same for a real path that a profile lists as readable. Keys can be listed one by one."""
        disk = _Disk()
        named = (place for entry in self.paths if entry.can_be_listed for place in disk.places(entry.path))
        return None if any(HERE.is_below(path, place) for place in named) else self.conflict(path)


def protected_paths(settings: Settings, *environments: Mapping[str, str]) -> ProtectedPaths:
    """What is the operator's under these settings and in these environments, the server's first."""
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
    config = environment.get(CONFIG_FILE_VARIABLE)
    named: dict[str, object] = {
        "this server's state": settings.state_dir,
        "the sockets of this server": settings.runtime_dir,
        "the tokens": settings.http_tokens_file,
        "the policy": settings.policy_file,
        "the MCP servers of the hub": settings.hub_file,
        "the audit trail": settings.audit_file,
        "the credentials of callers": settings.section(SandboxSettings).principal_credentials,
        "a token of the identity provider": settings.identity_provider_token_file,
        "the settings of this server": Path(config).expanduser() if config else None,
    }
    for what, path in named.items():
        if isinstance(path, Path):
            yield ProtectedPath(os.path.abspath(path), what)
    # The directory of our file of MCP servers is read again whenever it changes.
    yield ProtectedPath(os.path.dirname(os.path.abspath(settings.hub_file)), "the configuration of this server")
    yield ProtectedPath(tempfile.gettempdir(), "the files of other sessions", inside=False)


def _of_claude_code(environment: Mapping[str, str]) -> Iterator[ProtectedPath]:
    yield ProtectedPath(os.path.abspath(config_directory(environment)), "Claude Code's files", can_be_listed=True)
    yield ProtectedPath(os.path.abspath(user_file(environment)), "Claude Code's settings", can_be_listed=True)
    if environment.get("XDG_RUNTIME_DIR"):
        # Whoever reaches a socket there is taken for the user: a shared server, an agent with keys, D-Bus.
        yield ProtectedPath(environment["XDG_RUNTIME_DIR"], "the sockets of the user")


def _programs(settings: Settings, environments: Iterable[Mapping[str, str]]) -> Iterator[ProtectedPath]:
    """What the server runs, or loads while it runs, outside of every sandbox."""
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
            # An empty or relative entry means the directory that the server was started in.
            yield ProtectedPath(os.path.abspath(expand_home(entry, environment)), "a directory on PATH", inside=False)


def _parts(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [name for name in reversed(path.split(os.sep)) if name not in ("", os.curdir)]


class _Disk:
    """What is found of paths on the disk, each looked at once: most of them share the directories above them."""

    def __init__(self) -> None:
        self._links: dict[str, str | None] = {}
        self._found: dict[str, tuple[int, int] | None] = {}
        self._above: dict[str, list[tuple[int, int]]] = {}

    def places(self, path: str) -> Iterator[str]:
        """Where a path is: the place of every link on the way, and where the last one leads."""
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
                return  # it leads nowhere
            if os.path.isabs(target):
                place = os.sep
            ahead += _parts(target)
        yield place

    def _link(self, path: str) -> str | None:
        if path not in self._links:
            try:
                self._links[path] = os.readlink(path)
            except OSError:  # it is no link, or not there
                self._links[path] = None
        return self._links[path]

    def identity(self, path: str) -> tuple[int, int] | None:
        """What tells a file from all others; None if there is none."""
        if path not in self._found:
            try:
                found = os.stat(path)
                self._found[path] = found.st_dev, found.st_ino
            except OSError:
                self._found[path] = None
        return self._found[path]

    def with_parents(self, path: str) -> list[tuple[int, int]]:
        """The identities of a path and of everything above it, as far as they exist."""
        if path not in self._above:
            parent = os.path.dirname(path)
            own, above = self.identity(path), self.with_parents(parent) if parent != path else []
            self._above[path] = above if own is None else [own, *above]
        return self._above[path]
