"""The policy: which profile applies to which caller, and what a profile allows.

A profile contains only limits: callers can request less, never more. There are built-in profiles for callers on this
machine and for remote ones, and a TOML file can define more (`parse_policy`). An unknown or invalid entry in the file
raises InvalidArgument, because ignoring it could allow more than its author intended.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors import InvalidArgument
from ..model.network import CredentialRule, HostRule, parse_credential, parse_host_rule
from ..model.options import BYPASS
from ..model.usage_limits import OnLimit
from .rules import SHELL_TOOLS, Rule, Shell, check_tool_name, concerns, names_tool, parse_rule

MODE_LADDER = ("plan", "dontAsk", "default", "acceptEdits", "auto", BYPASS)
"""Permission modes, the most restrictive first."""
AFTER_PLAN = ("default", "acceptEdits", "dontAsk")
"""The modes that can be chosen when a plan is approved."""
NEVER_SET = (
    # They decide which code runs instead of, or inside, the programs that are called
    *("LD_*", "DYLD_*", "PATH", "PATHEXT", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH", "MALLOC_*"),
    *("NODE_*", "BUN_*", "DENO_*", "NPM_*", "PYTHON*", "PIP_*", "UV_*", "PERL*", "RUBY*", "GEM_*", "BUNDLE_*"),
    *("JAVA_*", "_JAVA_OPTIONS", "JDK_*", "CLASSPATH", "MAVEN_*", "GRADLE_*", "CARGO_*", "RUST*", "GO*", "DOTNET_*"),
    *("BASH*", "ENV", "SHELL", "SHELLOPTS", "PS4", "IFS", "CDPATH", "PROMPT_COMMAND", "ZDOTDIR", "COMSPEC"),
    *("GIT_*", "SSH_*", "SUDO_*", "EDITOR", "VISUAL", "PAGER", "MANPAGER", "LESS*", "BROWSER", "MAKEFLAGS"),
    *("CC", "CXX"),
    # They decide where requests and credentials go
    *("ANTHROPIC_*", "CLAUDE*", "AWS_*", "AZURE_*", "GOOGLE_*", "GCLOUD_*", "CLOUD_ML_*", "VERTEX_*", "OPENAI_*"),
    *("*_PROXY", "*_BASE_URL", "*_ENDPOINT", "OTEL_*", "SSL_*", "CURL_*", "REQUESTS_*", "OPENSSL_*"),
    *("HOSTALIASES", "RES_OPTIONS", "LOCALDOMAIN", "KUBECONFIG", "DOCKER_*"),
    # They decide whose files are read, and what the CLI assumes about its environment
    *("HOME", "USERPROFILE", "HOMEPATH", "HOMEDRIVE", "APPDATA", "LOCALAPPDATA", "XDG_*", "TMPDIR", "TMP", "TEMP"),
    *("USER", "LOGNAME", "IS_SANDBOX", "DISABLE_*", "MCP_*"),
)
"""Variables that a caller may set only if their exact name is in `env`; a pattern never covers them, in any case."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Limits(_Frozen):
    """How much one caller may use. Unset is unlimited; a value that a caller omits becomes the ceiling."""

    sessions: int | None = Field(default=None, gt=0)
    """Sessions that may work at the same time."""
    turns: int | None = Field(default=None, gt=0)
    """Steps of the model within one turn."""
    session_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Cost of one session."""
    daily_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Cost of all sessions of one caller per day (UTC)."""
    monthly_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Cost of all sessions of one caller per month (UTC)."""
    requests_per_minute: int | None = Field(default=None, gt=0)
    """HTTP requests of one caller, to `/mcp` and the console together; further requests get status 429."""
    sessions_per_minute: int | None = Field(default=None, gt=0)
    """New sessions of one caller, including copies."""
    tokens_per_minute: int | None = Field(default=None, gt=0)
    """Tokens used by the sessions of one caller, except cache reads; above that, sessions accept no messages until the
    average is below the limit again."""
    turn_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Maximum duration of one turn."""


class GroupBudget(_Frozen):
    """The budget that all callers of a group share. Unset is unlimited."""

    daily_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    monthly_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)


_SIZE = re.compile(r"(?P<amount>[1-9][0-9]{0,17})(?P<unit>[KMGT]?)(?:i?B)?")


def _size(value: object) -> object:
    """An amount such as `4G` in bytes."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and found is None:
        raise ValueError("must be an amount such as 4G or 512M")
    return value if found is None else int(found["amount"]) << 10 * " KMGT".index(found["unit"] or " ")


Size = Annotated[int, BeforeValidator(_size)]


class Resources(_Frozen):
    """The resources that one session with its child processes may use. Unset is unlimited."""

    memory: Size | None = Field(default=None, ge=256 << 20)
    """Memory of all processes together, in bytes."""
    processes: int | None = Field(default=None, ge=32)
    """Processes and threads at the same time."""
    cpus: float | None = Field(default=None, ge=0.1, allow_inf_nan=False)
    """Number of processors; fractions are allowed."""
    cpu_seconds: int | None = Field(default=None, ge=60)
    """Processor time of one process, in seconds."""
    file_size: Size | None = Field(default=None, ge=64 << 20)
    """Maximum size of a written file, in bytes."""


class Profile(_Frozen):
    """A profile. Its fields are the keys of a `[profiles.NAME]` table of the policy file."""

    roots: tuple[str, ...] | None = None
    """Directories that sessions may work in, including subdirectories. `.` is the server's default directory. Unset:
    anywhere; empty: nowhere."""
    mode_ceiling: str = BYPASS
    """The most permissive permission mode a caller may choose."""
    bypass: Literal["never", "confirm", "allow"] = "allow"
    """Whether permissions can be bypassed: never, after a person has switched it on, or whenever a caller requests
    it."""
    answers: Literal["anybody", "person"] = "anybody"
    """Who may answer a session's questions with an approval: `anybody`, including the agent that started the session;
    or only a `person` who sees the question. With `person`, callers cannot allow tools in advance; only `allow` can."""
    tools: tuple[str, ...] | None = None
    """The tools that exist for the caller, by name; `mcp__server__*` for those of a server. Unset: all; empty: none."""
    allow: tuple[str | Rule, ...] = ()
    """Calls that are allowed without a question, such as `Bash(npm test)`."""
    deny: tuple[str | Rule, ...] = ()
    """Calls that are always denied, such as `Bash(rm *)`. Takes precedence over `allow` and over answers."""
    env: tuple[str, ...] | None = None
    """Variables that callers may set for a session, as names or patterns. Variables that decide which program runs,
    where requests go or whose files are read must be listed by their exact name. Unset: all; empty: none."""
    executable: bool = True
    """Whether callers may choose programs, such as another Claude Code executable or hooks of agents."""
    mcp_servers: tuple[str, ...] = ("stdio", "http", "sse", "ws", "sdk")
    """Kinds of MCP servers that callers may add."""
    costs: Literal["own", "everybody"] = "own"
    """The costs and budgets that callers can see: their `own`, or those of `everybody`, all callers of the server."""
    on_limit: OnLimit | None = None
    """What sessions do at a usage limit by default: `end`, or `wait` and continue automatically after the reset. With
    `end`, callers cannot choose `wait`. Unset: they end unless the caller chooses `wait`."""
    steer_hub: bool = True
    """Whether callers may control the shared MCP servers: reconnect, enable, disable, sign in."""
    setting_sources: tuple[str, ...] | None = None
    """Settings files that sessions read: `user`, `project`, `local`. Listing `project` or `local` means trusting the
    directories that sessions work in, because these files name programs that Claude Code runs. Unset: the caller
    chooses; in a profile without a shell only `user`."""
    slash_commands: tuple[str, ...] | None = None
    """Slash commands that a prompt may begin with, without the slash. `mcp__server__prompt` need not be listed, because
    the rules for the server's tools apply. Unset: all; empty: none."""
    isolation: Literal["auto", "sandbox", "container", "none"] = "none"
    """How sessions are separated from the files and processes of the server's user: in a `sandbox`; in a `container` of
    Podman or Docker; not at all (`none`); or `auto`, a sandbox if the machine supports it. With several callers, the
    server does not start with `auto` on a machine without support."""
    image: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")
    """The image for containers; it must exist on the machine."""
    network: Literal["host", "model"] | tuple[HostRule, ...] | None = None
    """The network of a sandbox: only the `model` API, which is the default; the model API and a list of hosts; or the
    network of the `host`. Without a sandbox nothing can be enforced, and only `host` is accepted."""
    server_tools: tuple[Literal["web_search"], ...] = ()
    """Tools that run at the model's provider and that a sandbox without the host's network may use: `web_search`, which
    Claude Code's WebSearch needs. Search queries leave the sandbox."""
    readable: tuple[str, ...] = ()
    """Files and directories that a sandbox can read in addition to the system's and the roots, such as tools in a home
    directory."""
    writable: tuple[str, ...] = ()
    """Directories that a sandbox can write to in addition to the roots, such as a cache that sessions share. Sessions
    cannot use them as working directories."""
    environment: tuple[str, ...] = ()
    """Names of variables that a sandbox inherits from the server's environment, in addition to those that programs and
    Claude Code need. Their values are not checked for secrets."""
    limits: Limits = Limits()
    resources: Resources = Resources()
    credentials: tuple[CredentialRule, ...] = ()
    """Credentials that are added to requests for listed hosts: the file's `[[credentials]]` for this profile."""

    @field_validator("network", mode="before")
    @classmethod
    def _hosts(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        return tuple(parse_host_rule(entry) if isinstance(entry, str) else entry for entry in value)

    @property
    def sandbox_network(self) -> Literal["host", "model"] | tuple[HostRule, ...]:
        """What a sandbox of this profile can reach; the host's network only if the operator has set it."""
        return "model" if self.network is None else self.network

    @property
    def hosts(self) -> tuple[HostRule, ...] | None:
        """The hosts that a sandbox can reach; None if there is no list."""
        return self.network if isinstance(self.network, tuple) else None

    @field_validator("allow", "deny", mode="before")
    @classmethod
    def _rules(cls, value: object) -> object:
        return tuple(parse_rule(rule) if isinstance(rule, str) else rule for rule in _as_tuple(value))

    @cached_property
    def allow_rules(self) -> tuple[Rule, ...]:
        """`allow`, parsed."""
        return tuple(rule for rule in self.allow if isinstance(rule, Rule))

    @cached_property
    def deny_rules(self) -> tuple[Rule, ...]:
        """`deny`, parsed."""
        return tuple(rule for rule in self.deny if isinstance(rule, Rule))

    @field_validator(
        *("roots", "tools", "env", "mcp_servers", "setting_sources", "slash_commands", "readable", "writable"),
        "environment",
        "server_tools",
        mode="before",
    )
    @classmethod
    def _tuples(cls, value: object) -> object:
        return value if value is None else _as_tuple(value)

    @field_validator("tools")
    @classmethod
    def _names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            check_tool_name(name)
        return value

    @field_validator("environment")
    @classmethod
    def _variables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is not a variable name; patterns are not supported here")
        return value

    @model_validator(mode="after")
    def _network_needs_sandbox(self) -> "Profile":
        if self.network not in (None, "host") and self.isolation not in ("sandbox", "container"):
            raise ValueError('network needs isolation = "sandbox", unless it is "host"')
        if self.hosts is not None and self.isolation != "sandbox":
            raise ValueError('a list of hosts as network needs isolation = "sandbox"')
        if self.isolation == "container" and self.image is None:
            raise ValueError('isolation = "container" needs an image')
        return self

    @field_validator("mode_ceiling")
    @classmethod
    def _mode(cls, value: str) -> str:
        if value not in MODE_LADDER:
            raise ValueError(f"must be one of {', '.join(MODE_LADDER)}")
        return value

    @property
    def careful_mode(self) -> str:
        """The permission mode `default`, or the ceiling if that is lower."""
        return min("default", self.mode_ceiling, key=MODE_LADDER.index)

    @property
    def shell(self) -> Shell:
        """Which commands sessions may run."""
        listed = self.tools is None or any(names_tool(name, tool) for name in self.tools for tool in SHELL_TOOLS)
        denied = [rule for rule in self.deny_rules if any(names_tool(rule.tool, tool) for tool in SHELL_TOOLS)]
        if not listed or any(rule.specifier is None for rule in denied):
            return Shell.NONE
        return Shell.LIMITED if denied else Shell.FREE

    @property
    def judges_commands(self) -> bool:
        """Whether there are rules on single commands, whose effect depends on the directory."""
        named = (rule.specifier for rule in self.allow_rules if any(concerns(rule, tool) for tool in SHELL_TOOLS))
        return self.shell is Shell.LIMITED or any(named) or self.denies_files

    @property
    def denies_files(self) -> bool:
        """Whether there are rules on which files must not be read."""
        return any(rule.specifier and concerns(rule, "Read") for rule in self.deny_rules)

    @property
    def sources(self) -> tuple[str, ...] | None:
        """The settings files that may be read; None for all. A project's files must not allow what the profile forbids,
        unless the operator has named them."""
        return ("user",) if self.setting_sources is None and self.shell is Shell.NONE else self.setting_sources

    @property
    def limits_reading(self) -> bool:
        """Whether there are files that a session may not read."""
        listed = self.tools is None or any(names_tool(name, "Read") for name in self.tools)
        return self.roots is not None or not listed or any(concerns(rule, "Read") for rule in self.deny_rules)


def _as_tuple(value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list")
    return tuple(value)


LOCAL_PROFILE = Profile(bypass="confirm", env=("*",))
"""For stdio: the caller is the user of the machine, or an agent on their behalf."""
REMOTE_PROFILE = Profile(
    roots=(".",),
    mode_ceiling="acceptEdits",
    bypass="never",
    env=("CI", "LANG", "LC_*", "TZ", "NO_COLOR", "FORCE_COLOR"),
    executable=False,
    mcp_servers=(),
    steer_hub=False,
    setting_sources=("user",),
    slash_commands=("clear", "compact", "context", "cost", "init", "recap", "usage"),
    isolation="auto",
    limits=Limits(sessions=5, turns=200, session_usd=10.0, daily_usd=50.0, turn_seconds=3600.0),
    resources=Resources(memory=4 << 30, processes=512, cpu_seconds=4 * 3600, file_size=4 << 30),
)
"""For HTTP: the caller is not the user of this machine."""
OPEN_PROFILE = Profile()
"""No limits: for programs that use the engine as a library and have their own limits."""
BUILT_IN: Mapping[str, Profile] = {"local": LOCAL_PROFILE, "remote": REMOTE_PROFILE}


@dataclass(frozen=True, slots=True)
class Policy:
    """Which profile applies to which caller: `principals` by the caller's name, `groups` by the first group of the file
    that contains the caller, `default` for all others."""

    default: Profile = OPEN_PROFILE
    principals: Mapping[str, Profile] = field(default_factory=dict)
    groups: Mapping[str, Profile] = field(default_factory=dict)
    budgets: Mapping[str, GroupBudget] = field(default_factory=dict)
    """By the name of a group."""
    _by_groups: dict[str, Profile] = field(default_factory=dict, compare=False, repr=False)
    """The profiles that callers have through their groups, by the caller's name."""
    _groups_of: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)
    """The groups of each caller by its name, whether or not the policy names them."""

    def profile(self, principal: str) -> Profile:
        return self.principals.get(principal) or self._by_groups.get(principal, self.default)

    def groups_of(self, principal: str) -> frozenset[str]:
        """The groups of a caller according to its newest token."""
        return self._groups_of.get(principal, frozenset())

    def counted_groups(self, principal: str) -> list[str]:
        """The groups whose budgets a caller's spending counts toward: those that the policy names, in its order."""
        mine = self.groups_of(principal)
        return [group for group in dict.fromkeys((*self.groups, *self.budgets)) if group in mine]

    def profile_in(self, principal: str, groups: Collection[str]) -> Profile:
        """The profile that a caller would have in these groups, regardless of its current ones."""
        return self.principals.get(principal) or self._of_groups(groups) or self.default

    @property
    def needs_token(self) -> bool:
        """Whether a server over HTTP must distinguish callers from its own sessions, because some sessions run in a
        sandbox or only a person may answer their questions. Without a token, a session that reaches the server could
        act as its user."""
        return any(profile.isolation != "none" or profile.answers == "person" for profile in self.profiles)

    @property
    def isolates(self) -> bool:
        """Whether any profile uses a sandbox or a container, at least where one is available."""
        return any(profile.isolation != "none" for profile in self.profiles)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """All profiles that callers can have."""
        return (self.default, *self.principals.values(), *self.groups.values())

    def notes(self) -> list[str]:
        """Notes for the author of the policy about its rules, one or two sentences for each kind of rule."""
        found = []
        for profile in self.profiles:
            rules = ", ".join(str(rule) for rule in profile.deny_rules if rule.specifier and concerns(rule, "Read"))
            if rules and profile.shell is not Shell.NONE:
                found.append(f"{rules}: {_SANDBOXED if profile.isolation in _ENCLOSED else _NOT_SANDBOXED}")
        return list(dict.fromkeys(found))

    def assign(self, principal: str, groups: Collection[str]) -> None:
        """Set the groups of a caller; its profile changes at once."""
        self._groups_of[principal] = frozenset(groups)
        found = self._of_groups(groups)
        if found is None:
            self._by_groups.pop(principal, None)
        else:
            self._by_groups[principal] = found

    def _of_groups(self, groups: Collection[str]) -> Profile | None:
        return next((profile for group, profile in self.groups.items() if group in groups), None)


_ENCLOSED = ("sandbox", "container")
_HISTORY = "The history of git and copies elsewhere are not covered."
_SANDBOXED = f"these files are empty for commands in the sandbox, if they exist when the session starts. {_HISTORY}"
_NOT_SANDBOXED = (
    "outside a sandbox this covers Claude Code's file tools. Commands that may read such a file are asked about; "
    f"a command that is allowed can read it. {_HISTORY}"
)


def built_in(name: str) -> Policy:
    """A policy with one of the built-in profiles for all callers."""
    return Policy(_named(name, BUILT_IN, "The profile"))


def parse_policy(text: str, where: str, default: str | None = None, fallback: str = "remote") -> Policy:
    """Parse the policy in a TOML text. `where` names the text in errors.

    The profile for callers without an entry is `default`, otherwise the one that the text names, otherwise `fallback`.
    Raises InvalidArgument with a single line that names the invalid entry.
    """
    import tomllib  # noqa: PLC0415 - most servers have no policy file

    try:
        raw = tomllib.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"The policy file {where} is not valid TOML: {error}") from None
    # Refused, not ignored: a misspelled limit would otherwise mean no limit.
    unknown = next((name for name in raw if name not in _ENTRIES), None)
    if unknown is not None:
        raise _error(where, unknown, "unknown entry")
    profiles = _with_credentials(_profiles(_table(raw, "profiles", where), where), raw.get("credentials", []), where)
    principals, groups = (
        {
            name: _named(profile, profiles, f"The policy file {where}: {table}.{name}")
            for name, profile in _table(raw, table, where).items()
        }
        for table in ("principals", "groups")
    )
    usual = _named(default or raw.get("default", fallback), profiles, f"The policy file {where}: default")
    return Policy(usual, principals, groups, _budgets(_table(raw, "budgets", where), where))


_ENTRIES = frozenset({"default", "profiles", "principals", "groups", "budgets", "credentials"})


def _budgets(tables: Mapping[str, Any], where: str) -> dict[str, GroupBudget]:
    found = {}
    for group in tables:
        entry = _table(tables, group, f"{where}: budgets")
        try:
            found[group] = GroupBudget.model_validate(entry)
        except ValidationError as error:
            raise _fault(where, f"budgets.{group}", error) from None
    return found


def _table(raw: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, dict):
        raise _error(where, name, "must be a table")
    return table


def _profiles(tables: Mapping[str, Any], where: str) -> dict[str, Profile]:
    # In the order of the file, after the built-in ones: a profile can be based only on an earlier one, so there are no
    # cycles.
    profiles = dict(BUILT_IN)
    for name in tables:
        entry = _table(tables, name, f"{where}: profiles")
        base = _named(entry.get("base", "remote"), profiles, f"The policy file {where}: profiles.{name}.base")
        profiles[name] = _profile(base, entry, f"profiles.{name}", where)
    return profiles


_CREDENTIAL: Mapping[str, type] = {"host": str, "header": str, "from": str, "prefix": str, "profiles": list}


def _with_credentials(profiles: Mapping[str, Profile], entries: object, where: str) -> dict[str, Profile]:
    """The profiles with their credentials: those for hosts on a profile's list whose entry names the profile, or names
    no profiles."""
    found = dict(profiles)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _error(where, "credentials", "must be a list of tables, [[credentials]]")
    for number, entry in enumerate(entries):
        name = f"credentials[{number}]"
        credential = _credential(entry, name, where)
        wanted = entry.get("profiles", [*profiles])
        for profile in wanted:
            _named(profile, profiles, f"The policy file {where}: {name}.profiles")
        having = [profile for profile in wanted if _reaches(found[profile], credential)]
        if not having:
            raise _error(where, f"{name}.host", "no profile lists this host under `network`")
        for profile in having:
            credentials = (*found[profile].credentials, credential)
            found[profile] = found[profile].model_copy(update={"credentials": credentials})
    return found


def _credential(entry: Mapping[str, Any], name: str, where: str) -> CredentialRule:
    for key, value in entry.items():
        if key not in _CREDENTIAL:
            raise _error(where, f"{name}.{key}", "unknown entry")
        if not isinstance(value, _CREDENTIAL[key]):
            raise _error(where, f"{name}.{key}", f"must be a {_CREDENTIAL[key].__name__}")
    missing = next((key for key in ("host", "header", "from") if key not in entry), None)
    if missing is not None:
        raise _error(where, f"{name}.{missing}", "is missing")
    try:
        return parse_credential(entry["host"], entry["header"], entry["from"], entry.get("prefix"))
    except ValueError as error:
        raise _error(where, name, str(error)) from None


def _reaches(profile: Profile, credential: CredentialRule) -> bool:
    rule = credential.rule
    return any(
        other.covers_host(rule.host) or (rule.below and other.host.endswith(rule.host)) for other in profile.hosts or ()
    )


def _profile(base: Profile, entry: Mapping[str, Any], name: str, where: str) -> Profile:
    """The profile `base` with the fields of a table replaced; the fields of `limits` and `resources` individually."""
    fields = {key: value for key, value in entry.items() if key != "base"}
    if "credentials" in fields:
        raise _error(where, f"{name}.credentials", "belongs at the top level of the file, as [[credentials]]")
    # Validated as a whole, with the inherited fields: a valid field may conflict with a field of the base.
    inherited = {key: getattr(base, key) for key in Profile.model_fields}
    try:
        if isinstance(fields.get("limits"), dict):
            fields["limits"] = Limits.model_validate({**base.limits.model_dump(), **fields["limits"]})
        if isinstance(fields.get("resources"), dict):
            fields["resources"] = Resources.model_validate({**base.resources.model_dump(), **fields["resources"]})
        return Profile.model_validate({**inherited, **fields})
    except ValidationError as error:
        table = f".{error.title.lower()}" if error.title in ("Limits", "Resources") else ""
        raise _fault(where, name + table, error) from None


def _named(name: object, profiles: Mapping[str, Profile], where: str) -> Profile:
    if not isinstance(name, str) or name not in profiles:
        raise InvalidArgument(f"{where}: there is no profile {name!r}; available: {', '.join(sorted(profiles))}.")
    return profiles[name]


def _fault(where: str, table: str, error: ValidationError) -> InvalidArgument:
    first = error.errors(include_url=False)[0]
    unknown = first["type"] == "extra_forbidden"
    problem = "unknown entry" if unknown else first["msg"].removeprefix("Value error, ")
    return _error(where, ".".join((table, *map(str, first["loc"]))), problem)


def _error(where: str, entry: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"The policy file {where}: {entry}: {problem}.", field=entry)
