"""Isolation of sessions: the extension point, and its default.

A `Home` holds the files of a caller's sessions. If it has an `Enclosure`, everything that the server runs for them
(Claude Code and git) runs inside it. An `Isolation` creates the homes of all callers by their policy profiles. The
default isolates nothing: every session uses the home of its caller's user, and profiles that need more are refused. The
plug-in `sandbox` provides real isolation.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .claude.command_line import ConversationStart
from .claude.model_traffic import ModelTraffic
from .config import Settings
from .errors import InvalidArgument, PermissionDenied
from .model.events import AuditEvent
from .model.options import SessionOptions
from .model.paths import config_directory
from .policy.policy import Policy, Profile, Resources
from .processes.limits import UNLIMITED, EnforcedLimits

log = logging.getLogger(__name__)

_UNLIMITED = Resources()


@dataclass(slots=True)
class IsolatedCommand:
    """A command that runs a program in an enclosure, and the resources that the command needs."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...] = ()
    """Open descriptors that the command refers to by number. The command must close them before it starts the
    program."""
    removal: tuple[str, ...] = ()
    """A command that removes what remains after the program has ended."""

    def close(self) -> None:
        """Close our copies of the descriptors; call this after starting the command, or if it will not be started."""
        for descriptor in self.descriptors:
            # A descriptor that cannot be closed must not keep the others open.
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.descriptors = ()


class Connections(contextlib.ExitStack):
    """The outside connections of a program in an enclosure. Closed when the program has ended."""

    traffic: ModelTraffic | None = None
    """The meter of its requests to the model; None if this server does not carry them."""


class Enclosure:
    """The enclosure of the programs that the server runs for the sessions of one home: Claude Code and, if it hides
    files, git."""

    hides_files: ClassVar[bool] = False
    """Whether programs see only the listed files. A command may then run although it could read files that the policy
    denies, because they do not exist there. Claude Code's own sandbox, if a session has one, uses its weaker form that
    works inside another sandbox. Git needs no other protection from a repository's configuration."""

    @property
    def kind(self) -> str:
        """Its name in audit lines."""
        raise NotImplementedError

    def secrets(self) -> Mapping[str, str]:
        """Variables with secrets that it uses and that are not in the home's environment. Blocks on the disk."""
        return {}

    def check(self, options: SessionOptions, cwd: str) -> None:
        """PermissionDenied if a session with these options cannot run in it. Blocks on the disk."""

    def sees(self, path: str, options: SessionOptions, cwd: str) -> bool:
        """Whether a session with these options may read the file at this real path."""
        raise NotImplementedError

    def entered(
        self,
        argv: Sequence[str],
        options: SessionOptions,
        cwd: str,
        files: Iterable[Path],
        scratch: Path,
        environment: Mapping[str, str],
        *,
        conversation: ConversationStart | None = None,
        connected: bool = True,
    ) -> AbstractAsyncContextManager[tuple[IsolatedCommand, Connections]]:
        """The command that runs `argv` in the enclosure, and its connections, which the caller closes when the program
        has ended. The caller starts the command within the context; if that fails, nothing remains.

        The program sees `files` and the directories that `options` and `cwd` name. `scratch` is a directory for this
        run; the caller removes it. With a `conversation` the program is Claude Code and gets the parts of its
        configuration directory that it needs. With `connected=False` the program has no network. ProcessFailed if the
        enclosure cannot be created.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Home:
    """The home of one caller's sessions."""

    config_dir: str
    """Claude Code's configuration directory."""
    environment: Mapping[str, str]
    """The environment that Claude Code is started with, in addition to the session's own variables."""
    own: bool = False
    """Whether the directory belongs to this caller alone."""
    enclosure: Enclosure | None = None
    """The enclosure of its sessions; None if they are not isolated."""
    limits: EnforcedLimits = UNLIMITED
    """The resource limits of each of its processes."""

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> "Home":
        """The home of the user with this environment, shared with all of their Claude Code."""
        return cls(config_directory(environment), environment)

    @property
    def secrets(self) -> Mapping[str, str]:
        """Every variable that may hold a secret of its sessions. Blocks on the disk."""
        return self.environment if self.enclosure is None else {**self.environment, **self.enclosure.secrets()}

    @property
    def sandbox(self) -> Enclosure | None:
        """The enclosure, if it hides files."""
        return self.enclosure if self.enclosure is not None and self.enclosure.hides_files else None

    def make(self) -> None:
        """Prepare the home for a process. OSError if that fails. Blocks on the disk."""


class Isolation:
    """Creates the homes of all callers. This default isolates nothing and refuses anything that needs isolation:
    several callers, and profiles with a sandbox, a container or resource limits."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        policy: Policy,
        principals: Collection[str] = (),
        audit: Callable[[AuditEvent], None] = lambda _: None,
        *,
        others: bool = False,
    ) -> None:
        """`principals` are the named callers; with `others`, more may appear while the server runs. `audit` receives
        the refusals and the uses that an enclosure reports."""
        self._settings = settings
        self._environment = environment
        self._policy = policy
        self._principals = frozenset(principals)
        self._others = others
        self._audit = audit

    @classmethod
    def writable_directories(cls, policy: Policy, environment: Mapping[str, str], directory: str) -> set[str]:
        """The real paths of the directories that enclosed sessions can write to, by default `directory`; `/` if callers
        choose them. Their contents are not trusted. Blocks on the disk."""
        return set()

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def separate(self) -> bool:
        """Whether each caller needs a separate home."""
        return self._others or len(self._principals) > 1

    async def prepare(self) -> None:
        """Called once before the first session; InvalidArgument if the callers or the policy need something that this
        isolation does not have."""
        if self.separate:
            raise InvalidArgument(
                "This server has several callers, and the plug-in `sandbox`, which keeps them apart, is not enabled. "
                "Enable it, or configure one caller only.",
                field="isolation",
            )
        profiles = [self._policy.profile(name) for name in self._principals] or [self._policy.default]
        for profile in profiles:
            problem = _unsupported_part(profile)
            if problem is not None:
                raise InvalidArgument(problem, field="isolation")
        if any(profile.isolation == "auto" for profile in profiles):
            log.warning("sessions run without a sandbox: the plug-in `sandbox` is not enabled")

    def profile_of(self, principal: str) -> Profile:
        return self._policy.profile(principal)

    def is_plain(self, principal: str) -> bool:
        """Whether a caller's sessions use the home of the user whose environment they run in, without an enclosure.
        PermissionDenied if the caller's profile needs isolation that is not available."""
        problem = _unsupported_part(self._policy.profile(principal))
        if problem is not None:
            raise PermissionDenied(problem, field="isolation")
        return True

    def of(self, principal: str, environment: Mapping[str, str], directory: str) -> Home:
        """The home of a caller in this environment, whose sessions work in `directory` by default. Raises like
        `is_plain`. Blocks on the disk."""
        self.is_plain(principal)
        return Home.of_user(environment)

    async def admit(self, principal: str, groups: Collection[str]) -> str | None:
        """Why a caller in these groups cannot be served before a restart; None if it can. Does not change its groups:
        see `assign`."""
        return await self.objection(principal)

    def assign(self, principal: str, groups: Collection[str]) -> None:
        """Set a caller's groups."""
        self._policy.assign(principal, groups)

    async def objection(self, principal: str) -> str | None:
        """Why a caller added after the start cannot be served before a restart; None if it can."""
        return "this server was started for one caller, whose sessions share the directory of its user"


def _unsupported_part(profile: Profile) -> str | None:
    """The part of a profile that needs the plug-in, as part of a sentence; None if it needs none."""
    if profile.isolation in ("sandbox", "container"):
        wanted, otherwise = f'isolation = "{profile.isolation}"', 'set isolation = "none" in the policy'
    elif profile.resources != _UNLIMITED:
        wanted, otherwise = "`resources`", "remove them from the policy"
    else:
        return None
    return f"The policy says {wanted}, and the plug-in `sandbox` is not enabled. Enable it, or {otherwise}."
