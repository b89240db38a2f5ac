"""The homes of callers' sessions: their Claude Code directory, credentials and working directory.

With at most one principal (a caller with its own token), sessions use the Claude Code directory of the server's user,
so that interactive sessions are found. With several, each principal has a directory below the state directory with its
transcripts, settings and list of running sessions, which determines the sessions that tools can reach.
`docs/security.md` describes each level of isolation. `sandbox_contents.py` decides what a sandboxed session sees of
this.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.claude.model_access import CREDENTIALS_FILE, PrincipalCredentials, sandbox_variables, withheld_proxies
from ...core.claude.user_config import USER_SETTINGS
from ...core.config import Settings
from ...core.errors import InvalidArgument, PermissionDenied
from ...core.isolation import Home, Isolation
from ...core.model.caller import LOCAL
from ...core.model.events import AuditEvent
from ...core.model.network import NetworkRules
from ...core.model.paths import config_directory
from ...core.policy.policy import Policy, Profile, Resources
from ...core.private_files import private_directory, replace_file
from ...core.processes.control_groups import GroupParent, find_parent
from ...core.processes.limits import UNLIMITED, EnforcedLimits, ResourceLimits
from ...core.state.state_directory import PRINCIPALS
from ...core.working_directory import default_directory
from . import bubblewrap, container
from .network.allowed_hosts import NetworkByList
from .protected_paths import ProtectedPath, ProtectedPaths, protected_paths
from .sandbox_contents import HomeSandbox, ListedPaths
from .settings import SandboxSettings

if TYPE_CHECKING:
    from .network.egress import RunCertificateAuthority


log = logging.getLogger(__name__)
_NOT_LOOKED = "not checked"
_UNLIMITED = Resources()

_DIGITS = 32
"""Hash digits in the name of a principal's directory."""
_WAY_OUT = (
    "Give sessions only project directories: start the server in one, set CLAUDE_CODE_DEFAULT_CWD, or list them as "
    '`roots` of a profile in the policy file. Or move the named files elsewhere. With isolation = "none" '
    "there is no sandbox, and every session can read and change everything that this server's user can."
)


@dataclass(frozen=True, slots=True)
class PrincipalHome(Home):
    """A home in the state directory, or in a sandbox."""

    login: Path | None = None
    """The login file that is copied to the directory."""

    def make(self) -> None:
        if not self.own:
            return
        directory = private_directory(Path(self.config_dir))
        _settings_in(directory)
        if self.login is not None:
            _copy_newer(self.login, directory / CREDENTIALS_FILE)


class Homes(Isolation):
    """The homes of all callers. Call `prepare` first."""

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
        """`others`: callers other than the principals may appear while the server runs. `audit` receives refusals of
        the sandboxes' proxies and the credentials that they use."""
        super().__init__(settings, environment, policy, principals, audit, others=others)
        self._admitted: dict[str, Profile] = {}
        """The other callers that could be served when they appeared, with the profile that was checked."""
        self._credentials = PrincipalCredentials(settings.section(SandboxSettings).principal_credentials)
        self._unavailable: str | None = _NOT_LOOKED
        self._no_container: dict[str, str | None] = {}
        """By image, why its containers are unavailable."""
        self._group: GroupParent | None = None
        self._all_plain = not self.separate and all(
            profile.isolation == "none" and profile.resources == _UNLIMITED for profile in policy.profiles
        )
        """Whether `is_plain` is true for every possible caller: callers may change groups, the policy stays."""

    @classmethod
    def writable_directories(cls, policy: Policy, environment: Mapping[str, str], directory: str) -> set[str]:
        found: set[str] = set()
        # The availability of a sandbox does not matter here.
        for profile in policy.profiles:
            if profile.isolation != "none":
                listed = ListedPaths.of(profile, directory, environment)
                found.update((os.sep,) if listed.roots is None else listed.roots, listed.writable)
        return found

    # -- the start --------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Checks whether sandboxes work. Raises InvalidArgument if one is required and unavailable, or if a principal's
        credentials cannot be read. Runs nothing for callers that need no sandbox."""
        await self._check(self._principals)
        if self._others:
            # Every caller has one of these profiles: a missing requirement is reported at the start.
            await self._check_profiles([self._policy.default, *self._policy.groups.values()])
        self._check_proxies_here([*self._policy.profiles])

    async def admit(self, principal: str, groups: Collection[str]) -> str | None:
        """Why a caller with these groups cannot be served before a restart; None if it can. Does not change its groups:
        see `assign`."""
        # The requirements of a profile, such as a sandbox, are checked when the first caller with it appears.
        profile = self._policy.profile_in(principal, groups)
        if self._admitted.get(principal) == profile:
            return None
        reason = await self.objection(principal, profile)
        if reason is None:
            self._admitted[principal] = profile
        return reason

    async def objection(self, principal: str, profile: Profile | None = None) -> str | None:
        """Why a caller that appeared after the start cannot be served before a restart, with this profile or its
        current one; None if it can."""
        if not self.separate:
            return "this server was started for one caller, whose sessions share the directory of its user"
        try:
            await self._check({principal}, profile)
        except InvalidArgument as error:
            return error.message
        return None

    async def _check(self, principals: Collection[str], profile: Profile | None = None) -> None:
        profiles = [profile or self._policy.profile(name) for name in sorted(principals)] or [self._policy.default]
        await self._check_profiles(profiles)
        for name in filter(self._has_own, sorted(principals)):
            await asyncio.to_thread(self._credentials.applied, self._environment, name)

    async def _check_profiles(self, profiles: Collection[Profile]) -> None:
        # Availability is checked once: it must not change for running sessions.
        for image in sorted({profile.image or "" for profile in profiles if profile.isolation == "container"}):
            if image not in self._no_container:
                self._no_container[image] = await asyncio.to_thread(container.unavailable, self._environment, image)
            if self._no_container[image] is not None:
                raise InvalidArgument(
                    f"The policy needs a container of {image}, which is not available: {self._no_container[image]}.",
                    field="isolation",
                )
        profiles_of_sandboxes = [profile for profile in profiles if profile.isolation in ("auto", "sandbox")]
        if profiles_of_sandboxes and self._unavailable == _NOT_LOOKED:
            self._unavailable = await asyncio.to_thread(bubblewrap.unavailable, self._environment)
        if self._unavailable is not None:
            self._refuse_without(profiles_of_sandboxes, self._unavailable)
        without_host = [each for each in profiles if self._is_isolated(each) and each.sandbox_network != "host"]
        if without_host and not _reaches_by_socket(self._environment):
            raise InvalidArgument(
                "A sandbox without the host's network can reach only the Anthropic API, and this server uses the API "
                'of a cloud provider: set network = "host" in the profiles whose sessions run in a sandbox.',
                field="network",
            )
        if any(profile.credentials for profile in profiles):
            from .network.http_exchange import read_credential  # noqa: PLC0415 - few policies have any

            # Read at the start, so that the operator learns of a missing one, not a session.
            for credential in {credential for profile in profiles for credential in profile.credentials}:
                await asyncio.to_thread(read_credential, credential, self._environment)
        if self.separate and any(profile.isolation == "none" for profile in profiles):
            log.warning(
                "callers with isolation = none in their profile can read everything that this server's user can"
            )
        if any(profile.resources != _UNLIMITED for profile in profiles):
            self._group = await asyncio.to_thread(find_parent)
            self._warn_of_unenforced(profiles)
        isolated = [profile for profile in profiles if self._is_isolated(profile)]
        await asyncio.to_thread(self._check_layout, isolated)

    def _refuse_without(self, profiles: Iterable[Profile], reason: str) -> None:
        wanted = {profile.isolation for profile in profiles}
        if "sandbox" in wanted or (self.separate and "auto" in wanted):
            why = "The policy" if "sandbox" in wanted else "Keeping several callers apart"
            raise InvalidArgument(
                f"{why} needs a sandbox, which is not available here: {reason}. Install bubblewrap and allow user "
                'namespaces (`claude-code-mcp doctor` checks it), or set isolation = "none" in the profiles of the '
                "policy: then every session can read everything that this server's user can read.",
                field="isolation",
            )
        if "auto" in wanted:
            log.warning("sessions run without a sandbox: %s", reason)

    def _check_proxies_here(self, profiles: Collection[Profile]) -> None:
        """A proxy is identified by its address, and every program on this machine shares the address of a proxy on this
        machine. Raises InvalidArgument if sandboxed sessions could impersonate it; without a sandbox sessions can do
        whatever this server's user can, which is logged."""
        settings = self._settings
        here = [proxy for proxy in settings.http_proxies if _is_loopback(proxy)]
        if settings.proxy_user_header is None or not here:
            return
        where = f"{settings.proxy_user_header} is trusted from {', '.join(here)}"
        isolated = [profile for profile in profiles if self._is_isolated(profile)]
        if settings.proxy_secret is None and any(profile.sandbox_network == "host" for profile in isolated):
            raise InvalidArgument(
                f"{where}, and sessions with the host's network share that address: they could claim to be any user. "
                "Set CLAUDE_CODE_MCP_PROXY_SECRET and have the proxy send it in X-Proxy-Secret, or give the "
                'profiles network = "model" or a list.',
                field="network",
            )
        if len(isolated) < len(profiles):
            log.warning("sessions without a sandbox can claim to be any user: %s", where)

    def _warn_of_unenforced(self, profiles: Iterable[Profile]) -> None:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        names: dict[str, None] = {}
        for profile in profiles:
            limits = EnforcedLimits(ResourceLimits(**profile.resources.model_dump()), self._group)
            sandboxed = profile.isolation != "container" and self._is_isolated(profile)
            if profile.isolation == "container":
                continue  # the engine limits it
            names |= dict.fromkeys(limits.unenforced(sandboxed=sandboxed, root=root))
        if names:
            log.warning("sessions have no limit on %s: no control group is available", ", ".join(names))

    def _check_layout(self, profiles: Collection[Profile]) -> None:
        """Raises InvalidArgument if a profile gives its sessions something that belongs to the operator. Blocks."""
        protected, directory = self._protected(self._environment), default_directory(self._settings)
        for profile in profiles:
            problem = ListedPaths.of(profile, directory, self._environment).problem(protected)
            if problem is not None:
                raise InvalidArgument(f"{problem} {_WAY_OUT}", field="roots")
        for name in withheld_proxies(self._environment, [name for each in profiles for name in each.environment]):
            log.warning("sessions in a sandbox do not get %s, which has a password in it", name)

    def _protected(self, *environments: Mapping[str, str]) -> ProtectedPaths:
        """The operator's files, including credential files of proxies. Blocks on the disk."""
        found = protected_paths(self._settings, *environments)
        sources = {rule.source for profile in self._policy.profiles for rule in profile.credentials}
        files = [source.removeprefix("file:") for source in sources if source.startswith("file:")]
        paths = [ProtectedPath(os.path.abspath(os.path.expanduser(file)), "a credential") for file in files]
        return replace(found, paths=(*found.paths, *paths))

    # -- one caller -------------------------------------------------------------------------------------------

    def is_plain(self, principal: str) -> bool:
        if self._all_plain:
            return True
        if self._has_own(principal) or self._isolated(principal):
            return False
        return self._policy.profile(principal).resources == _UNLIMITED

    def _has_own(self, principal: str) -> bool:
        """Whether a caller has a separate directory: with several callers, everyone except this server's user."""
        return self.separate and principal != LOCAL

    def of(self, principal: str, environment: Mapping[str, str], directory: str) -> Home:
        """The home of a caller in this environment; `directory` is the default directory of its sessions. Blocks on the
        disk briefly."""
        if self.is_plain(principal):
            return Home.of_user(environment)
        user_dir, place = config_directory(environment), self._place(principal)
        protected = self._protected(self._environment, environment)
        config_dir, login = user_dir, None
        if self._has_own(principal):
            config_dir = str(place / "claude")
            login = self._credentials.login(principal, user_dir)
            environment = {**self._credentials.applied(environment, principal), "CLAUDE_CONFIG_DIR": config_dir}
        if not self._isolated(principal):
            return PrincipalHome(
                config_dir, environment, self._has_own(principal), limits=self._limits(principal), login=login
            )
        enclosure = HomeSandbox(
            self._policy.profile(principal),
            directory,
            protected,
            place,
            config_dir,
            self._environment,
            environment,
            shares_directory=not self._has_own(principal),
            network=self._network(principal),
            model_features=frozenset(self._settings.section(SandboxSettings).model_features),
        )
        listed = enclosure.profile.environment
        variables = sandbox_variables(environment, config_dir, str(place / "home"), listed)
        if enclosure.profile.sandbox_network != "host":
            variables = enclosure.model_socket().replaced(variables)
        if enclosure.network is not None:
            variables |= enclosure.network.variables(variables.get("ANTHROPIC_BASE_URL"))
        return PrincipalHome(config_dir, variables, self._has_own(principal), enclosure, self._limits(principal), login)

    def _network(self, principal: str) -> NetworkByList | None:
        profile = self._policy.profile(principal)
        if profile.hosts is None:
            return None
        rules = NetworkRules(profile.hosts, profile.credentials)
        authority = self._authority if rules.credentials else None
        return NetworkByList(rules, self._environment, authority, self._audit, principal)

    @cached_property
    def _authority(self) -> "RunCertificateAuthority":
        """The certificate authority of this run, created for the first credential."""
        from .network.egress import RunCertificateAuthority  # noqa: PLC0415 - cryptography takes a while to load

        return RunCertificateAuthority()

    def _isolated(self, principal: str) -> bool:
        profile = self._policy.profile(principal)
        if profile.isolation == "sandbox" and self._unavailable is not None:
            raise PermissionDenied(f"Your sessions must run in a sandbox, which is not available: {self._unavailable}.")
        if profile.isolation == "container" and not self._is_isolated(profile):
            raise PermissionDenied(f"Your sessions must run in a container of {profile.image}, which is not available.")
        return self._is_isolated(profile)

    def _is_isolated(self, profile: Profile) -> bool:
        if profile.isolation == "container":
            return self._no_container.get(profile.image or "", _NOT_LOOKED) is None
        return profile.isolation != "none" and self._unavailable is None

    def _limits(self, principal: str) -> EnforcedLimits:
        profile = self._policy.profile(principal)
        if profile.isolation == "container":
            return UNLIMITED  # the engine limits the container; these limits would apply to its client
        return EnforcedLimits(ResourceLimits(**profile.resources.model_dump()), self._group)

    def _place(self, principal: str) -> Path:
        """The directory of a caller, for any name."""
        name = "".join(letter for letter in principal if letter.isascii() and (letter.isalnum() or letter in "-_"))
        digest, directory = sha256(principal.encode()).hexdigest(), self._settings.state_dir / PRINCIPALS
        return directory / f"{name[:40]}-{digest[:_DIGITS]}"


def _is_loopback(proxy: str) -> bool:
    try:
        return ip_network(proxy, strict=False).is_loopback
    except ValueError:
        return False


def _reaches_by_socket(environment: Mapping[str, str]) -> bool:
    """Whether Claude Code reaches its provider through the model's socket in this environment."""
    return not any(environment.get(f"CLAUDE_CODE_USE_{cloud}") for cloud in ("BEDROCK", "VERTEX", "FOUNDRY"))


def _settings_in(directory: Path) -> Path:
    """The settings in one of our directories, created if missing: a sandbox can protect only existing files."""
    settings = directory / USER_SETTINGS[0]
    if not settings.exists() or not settings.stat().st_size:
        replace_file(settings, b"{}\n")
    return settings


def _copy_newer(source: Path, target: Path) -> None:
    """Copies a login that is newer than the copy, which Claude Code may have renewed itself."""
    try:
        content, changed = source.read_bytes(), source.stat().st_mtime
        if not target.exists() or target.lstat().st_mtime < changed:
            replace_file(target, content)
    except FileNotFoundError:
        return
