"""Where the sessions of each caller live: their Claude Code directory, their credentials and what keeps them in.

With at most one principal (a caller with a token of its own) sessions use the Claude Code directory of the server's
user, so that interactive sessions are found. With several, each principal has a directory of its own below the state
directory: its transcripts, settings and list of running sessions, which is what the tools that reach other sessions go
by. See `docs/security.md` for what each level of isolation promises.

A sandboxed session has a home directory of its own in any case. Of the user's Claude Code directory it sees the
conversations (writable) and the settings (read-only), and nothing else.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ..claude.model_access import CREDENTIALS_FILE, PrincipalCredentials, sandbox_variables
from ..claude.model_socket import INSIDE, ModelSocket, reachable_by_socket
from ..claude.user_config import CONVERSATIONS, USER_SETTINGS
from ..claude_home import config_directory, user_file
from ..config import CONFIG_FILE_VARIABLE, Settings
from ..errors import InvalidArgument, PermissionDenied, ProcessFailed
from ..model.events import AuditEvent
from ..model.options import SessionOptions
from ..model.worktree import Worktree
from ..network.by_list import NetworkByList, command_before, interpreter_files
from ..network.network_rules import NetworkRules
from ..policy.policy import Policy, Profile
from ..private_files import private_directory, replace_file
from ..processes import bubblewrap
from ..processes.bubblewrap import SandboxSpec
from ..store.session_records import LOCAL

if TYPE_CHECKING:
    from ..network.interception import RunAuthority

log = logging.getLogger(__name__)
_NOT_LOOKED = "nobody has looked"

PRINCIPALS = "principals"
"""The directory below the state directory that has one for each principal."""
_WELL_KNOWN_SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".config/gh", ".netrc", ".npmrc"),
    *(".pypirc", ".git-credentials", ".config/claude-code-mcp", ".password-store", ".local/share/keyrings"),
)
"""What is hidden of the user's home where a root lies above it."""
_ENDLESS = ("/", "/proc", "/dev")
"""No directories to work in: given to a sandbox, they would undo it."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where the sessions of one caller live."""

    config_dir: str
    """Claude Code's configuration directory."""
    environment: Mapping[str, str]
    """What Claude Code is started with, beside what the session itself says."""
    own: bool = False
    """Whether the directory is this caller's alone, and is to be made."""
    login: Path | None = None
    """The file of a login that is copied to the directory."""
    enclosure: "Enclosure | None" = None
    """The sandbox that its sessions run in; None where they are not isolated."""

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> "Home":
        """That of whoever has this environment, shared with all of their Claude Code."""
        return cls(config_directory(environment), environment)

    @property
    def secrets(self) -> Mapping[str, str]:
        """Every variable that may hold a secret of its sessions; and, under names that say so, what the proxy of its
        sandboxes puts into requests. Blocks on the disk."""
        if self.enclosure is None:
            return self.environment
        network = self.enclosure.network
        used = {} if network is None else network.secrets()
        return {**self.environment, **self.enclosure.credentials, **used}

    @property
    def isolation(self) -> str:
        """`sandbox` or `none`."""
        return "none" if self.enclosure is None else "sandbox"

    def make(self) -> None:
        """Has everything in place for a process. OSError if that cannot be done. Blocks on the disk."""
        if not self.own:
            return
        directory = private_directory(Path(self.config_dir))
        _settings_in(directory)
        if self.login is not None:
            _copy_newer(self.login, directory / CREDENTIALS_FILE)


class Homes:
    """The homes of all callers. `prepare` comes first."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        policy: Policy,
        principals: Collection[str] = (),
        audit: Callable[[AuditEvent], None] = lambda _: None,
    ) -> None:
        """`audit` is told what the proxies of sandboxes refuse, and which credentials they use."""
        self._audit = audit
        self._settings = settings
        self._environment = environment
        self._policy = policy
        self._principals = frozenset(principals)
        self._credentials = PrincipalCredentials(settings.principal_credentials)
        self._unavailable: str | None = _NOT_LOOKED

    @property
    def separate(self) -> bool:
        """Whether each caller has a directory of its own."""
        return len(self._principals) > 1

    # -- the start --------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Finds out whether there can be a sandbox; InvalidArgument if there must be one and cannot, or if the
        credentials of a principal cannot be read. Nothing is run for callers that need none."""
        await self._check(self._principals)

    async def objection(self, principal: str) -> str | None:
        """Why a caller that was not there at the start cannot be served before a restart; None if it can."""
        if not self.separate:
            return "this server was started for one caller, whose sessions share the directory of its user"
        try:
            await self._check({principal})
        except InvalidArgument as error:
            return error.message
        return None

    async def _check(self, principals: Collection[str]) -> None:
        profiles = [self._policy.profile(name) for name in sorted(principals)] or [self._policy.default]
        # Found out once: what is true for the sessions that run must not change under them.
        if self._unavailable == _NOT_LOOKED and any(profile.isolation != "none" for profile in profiles):
            self._unavailable = await asyncio.to_thread(bubblewrap.unavailable, self._environment)
        if self._unavailable is not None:
            self._refuse_without(profiles, self._unavailable)
        if any(profile.network != "host" for profile in profiles) and not reachable_by_socket(self._environment):
            raise InvalidArgument(
                'network = "model", or a list, works with the API of Anthropic only, not with that of a cloud.',
                field="network",
            )
        if any(profile.credentials for profile in profiles):
            from ..network.credential_values import read_credential  # noqa: PLC0415 - few policies have any

            for credential in {credential for profile in profiles for credential in profile.credentials}:
                await asyncio.to_thread(read_credential, credential, self._environment)
        if self.separate and any(profile.isolation == "none" for profile in profiles):
            log.warning("callers whose profile says isolation = none can read what this server's user can read")
        for name in filter(self._has_own, sorted(principals)):
            await asyncio.to_thread(self._credentials.applied, self._environment, name)

    def _refuse_without(self, profiles: Iterable[Profile], reason: str) -> None:
        wanted = {profile.isolation for profile in profiles}
        if "sandbox" in wanted or (self.separate and "auto" in wanted):
            why = "The policy" if "sandbox" in wanted else "Keeping several callers apart"
            raise InvalidArgument(
                f"{why} needs a sandbox, and there can be none here: {reason}. Install bubblewrap and allow user "
                'namespaces (`claude-code-mcp doctor` checks it), or say isolation = "none" in the profiles of the '
                "policy: then every session can read what this server's user can read.",
                field="isolation",
            )
        if "auto" in wanted:
            log.warning("sessions run without a sandbox: %s", reason)

    # -- one caller -------------------------------------------------------------------------------------------

    def is_plain(self, owner: str) -> bool:
        """Whether the sessions of a caller live in the home of whoever's environment they run in, with nothing around
        them. PermissionDenied if its profile wants a sandbox that there cannot be."""
        return not self._has_own(owner) and not self._isolated(owner)

    def _has_own(self, owner: str) -> bool:
        """Whether a caller has a directory of its own: of several, all but the user who runs this server."""
        return self.separate and owner != LOCAL

    def of(self, owner: str, environment: Mapping[str, str], directory: str) -> Home:
        """The home of a caller in this environment; `directory` is where its sessions work by default. Blocks on the
        disk for a moment."""
        if self.is_plain(owner):
            return Home.of_user(environment)
        user_dir, hidden, place = config_directory(environment), self._hidden(environment), self._place(owner)
        config_dir, login = user_dir, None
        if self._has_own(owner):
            config_dir = str(place / "claude")
            login = self._credentials.login(owner, user_dir)
            environment = {**self._credentials.applied(environment, owner), "CLAUDE_CONFIG_DIR": config_dir}
        if not self._isolated(owner):
            return Home(config_dir, environment, self._has_own(owner), login)
        enclosure = Enclosure(
            self._policy.profile(owner),
            directory,
            hidden,
            place,
            config_dir,
            self._environment,
            environment,
            shares_directory=not self._has_own(owner),
            network=self._network(owner),
        )
        variables = sandbox_variables(environment, config_dir, str(place / "home"))
        if enclosure.profile.network != "host":
            variables |= ModelSocket(environment).variables()
        if enclosure.network is not None:
            variables |= enclosure.network.variables(variables.get("ANTHROPIC_BASE_URL"))
        return Home(config_dir, variables, self._has_own(owner), login, enclosure)

    def _isolated(self, owner: str) -> bool:
        isolation = self._policy.profile(owner).isolation
        if isolation == "sandbox" and self._unavailable is not None:
            raise PermissionDenied(f"Your sessions must run in a sandbox, and there is none: {self._unavailable}.")
        return isolation != "none" and self._unavailable is None

    def _place(self, owner: str) -> Path:
        """The directory of a caller, whatever its name is."""
        name = "".join(letter for letter in owner if letter.isascii() and (letter.isalnum() or letter in "-_"))
        return self._settings.state_dir / PRINCIPALS / f"{name[:40]}-{sha256(owner.encode()).hexdigest()[:12]}"

    # -- the sandbox ------------------------------------------------------------------------------------------

    def _network(self, owner: str) -> "NetworkByList | None":
        profile = self._policy.profile(owner)
        if profile.hosts is None:
            return None
        rules = NetworkRules(profile.hosts, profile.credentials)
        authority = self._authority if rules.credentials else None
        return NetworkByList(rules, self._environment, authority, self._audit, owner)

    @cached_property
    def _authority(self) -> "RunAuthority":
        """Made for the first that has a credential, for all of this run."""
        from ..network.interception import RunAuthority  # noqa: PLC0415 - cryptography takes a while to load

        return RunAuthority()

    def _hidden(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Everything that a sandbox must not show, wherever the operator keeps it."""
        settings, config = self._settings, self._environment.get(CONFIG_FILE_VARIABLE)
        paths = [
            settings.state_dir,
            settings.runtime_dir,
            settings.http_tokens_file,
            settings.policy_file,
            settings.hub_file,
            settings.audit_file if isinstance(settings.audit_file, Path) else None,
            settings.principal_credentials if isinstance(settings.principal_credentials, Path) else None,
            Path(config).expanduser() if config else None,
            *_of_user(self._environment),
            *_of_user(environment),
        ]
        return tuple(dict.fromkeys(os.path.realpath(path) for path in paths if path is not None))


def _of_user(environment: Mapping[str, str]) -> Iterator[str | Path]:
    home = environment.get("HOME") or os.path.expanduser("~")
    yield config_directory(environment)
    yield user_file(environment)
    yield from (os.path.join(home, name) for name in _WELL_KNOWN_SECRETS)
    if environment.get("XDG_RUNTIME_DIR"):
        # Whoever reaches a socket there is taken for the user: a shared server, an agent with keys, D-Bus.
        yield environment["XDG_RUNTIME_DIR"]


@dataclass(frozen=True)
class Enclosure:
    """The sandbox of one caller's sessions."""

    profile: Profile
    default_directory: str
    hidden: tuple[str, ...]
    place: Path
    config_dir: str
    server_environment: Mapping[str, str]
    credentials: Mapping[str, str]
    """The environment with the address and the credentials of the model, where the sandbox itself has none."""
    shares_directory: bool
    """Whether `config_dir` is that of the server's user."""
    network: NetworkByList | None = None
    """The hosts that it reaches through a proxy; None where the profile has no list."""

    @cached_property
    def _roots(self) -> tuple[str, ...] | None:
        roots = self.profile.roots
        return roots and tuple(self._real(self.default_directory if root == "." else root) for root in roots)

    @staticmethod
    def _real(path: str) -> str:
        return os.path.realpath(os.path.expanduser(path))

    def check(self, options: SessionOptions, cwd: str) -> None:
        """PermissionDenied for directories that cannot be given to a sandbox."""
        writable = self._writable(options, cwd)
        debug_file = options.debug_file and self._real(os.path.join(cwd, options.debug_file))
        if debug_file and not any(Path(debug_file).is_relative_to(path) for path in writable):
            raise PermissionDenied(
                "debug_file: it lies outside of what the session's sandbox sees.", field="debug_file"
            )

    @asynccontextmanager
    async def entered(
        self,
        argv: Sequence[str],
        options: SessionOptions,
        cwd: str,
        files: Iterable[Path],
        scratch: Path,
        *,
        session_id: str | None = None,
        connected: bool = True,
    ) -> AsyncIterator[tuple[list[str], ExitStack]]:
        """The command that runs `argv` in the sandbox, where it sees `files`, and the ways through which it reaches the
        model and listed hosts, if it has no network; they must be closed with the process. Without `connected` it has
        none of them. ProcessFailed if they cannot be had. If the block fails, nothing of them is left."""
        ways = ExitStack()
        try:
            await asyncio.to_thread(scratch.mkdir, mode=0o700, exist_ok=True)
            visible = [(str(file), str(file)) for file in files]
            before: Sequence[str] = ()
            if self.profile.network != "host" and connected:
                model = ModelSocket(self.credentials)
                ways.callback(model.close)
                visible.append((str(await model.open(scratch)), INSIDE))
            if self.network is not None and connected:
                way_out = self.network.way_out(session_id)
                ways.callback(way_out.close)
                visible += [*await way_out.open(scratch), *((file, file) for file in interpreter_files())]
                before = command_before()
            reaches_host = self.profile.network == "host" and connected
            enclose = partial(self._enclose, argv, before, options, cwd, visible, scratch, reaches_host)
            yield await asyncio.to_thread(enclose), ways
        except BaseException as error:
            ways.close()
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise ProcessFailed(f"The sandbox could not be made: {error}") from None
            raise

    def _enclose(
        self,
        argv: Sequence[str],
        before: Sequence[str],
        options: SessionOptions,
        cwd: str,
        visible: Iterable[tuple[str, str]],
        scratch: Path,
        reaches_host: bool,
    ) -> list[str]:
        executable = os.path.realpath(argv[0])
        home = private_directory(self.place / "home")
        own, own_readable = [(str(home), str(home))], [*visible]
        if self.shares_directory:
            private_directory(Path(self.config_dir) / CONVERSATIONS[0])
            directory = private_directory(self.place / "claude")
            own += [(str(directory), self.config_dir), *self._inside(CONVERSATIONS)]
            own_readable.append((str(_settings_in(directory)), os.path.join(self.config_dir, USER_SETTINGS[0])))
            own_readable += self._inside((*USER_SETTINGS, CREDENTIALS_FILE))
        else:
            own += [(self.config_dir, self.config_dir)]
            own_readable += self._inside(USER_SETTINGS[:1])
        readable = [*map(self._real, self.profile.readable)]
        own_readable += [(path, path) for path in readable if self._is_hidden(path)]  # the operator says so
        spec = SandboxSpec(
            writable=self._writable(options, cwd),
            readable=(*readable, *_program_files(executable)),
            hidden=self.hidden,
            own=tuple(own),
            own_readable=tuple(own_readable),
            private=(os.path.join(self.config_dir, "sessions"),),
            network=reaches_host,
        )
        command = [*before, executable, *argv[1:]]
        return bubblewrap.enclose(spec, command, cwd, scratch, self.server_environment)

    def _writable(self, options: SessionOptions, cwd: str) -> tuple[str, ...]:
        """The roots of the profile, not the directory of the session: what lies below a root may be replaced by
        another session at any moment, the root itself cannot. Without roots the caller names the directories;
        PermissionDenied for one that would uncover what is hidden."""
        git = (options.worktree.common_dir,) if isinstance(options.worktree, Worktree) else ()
        named = () if self._roots is not None else (cwd, *options.additional_directories, *git)
        chosen = tuple(os.path.realpath(os.path.join(cwd, path)) for path in named)
        writable = chosen if self._roots is None else self._roots
        for path in writable:
            if path in _ENDLESS or (path in chosen and self._is_hidden(path)):
                raise PermissionDenied(f"cwd: a session in a sandbox cannot work in {path}.", field="cwd")
        return writable

    def sees(self, path: str, options: SessionOptions, cwd: str) -> bool:
        """Whether a session there may read what this real path leads to, beside what belongs to the system."""
        visible = any(Path(path).is_relative_to(directory) for directory in self._writable(options, cwd))
        return visible and not self._is_hidden(path)

    def _is_hidden(self, path: str) -> bool:
        return any(Path(path).is_relative_to(hidden) for hidden in self.hidden)

    def _inside(self, names: Iterable[str]) -> list[tuple[str, str]]:
        paths = (os.path.join(self.config_dir, name) for name in names)
        return [(os.path.realpath(path), path) for path in paths]


def _settings_in(directory: Path) -> Path:
    """The settings in a directory of ours, made if they are missing: a sandbox can keep a session from changing only
    what is there."""
    settings = directory / USER_SETTINGS[0]
    if not settings.exists() or not settings.stat().st_size:
        replace_file(settings, b"{}\n")
    return settings


def _program_files(executable: str) -> tuple[str, ...]:
    """The executable; of a script the directory that it is in too, where the rest of it is."""
    try:
        with open(executable, "rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        is_script = False
    return (executable, os.path.dirname(executable)) if is_script else (executable,)


def _copy_newer(source: Path, target: Path) -> None:
    """Copies a login that is newer than the copy, which Claude Code may have renewed itself since."""
    try:
        content, changed = source.read_bytes(), source.stat().st_mtime
        if not target.exists() or target.lstat().st_mtime < changed:
            replace_file(target, content)
    except FileNotFoundError:
        return
