"""The settings of a server, and those that its plug-ins add. `core/settings_section.py` says where they are read from.

Variables that other servers of this kind made familiar keep their names; new ones start with `CLAUDE_CODE_MCP_`.
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr, field_validator

from .processes.environment import MAX_DEPTH, OWN_PREFIX, expand_home
from .settings_section import Section, SectionT, Sources, UserPath, list_of, not_blank, secrets_in, variable_of

_OWN = OWN_PREFIX
CONFIG_FILE_VARIABLE = f"{_OWN}CONFIG"
_CLOSE = 0.6
"""Minimum similarity, from 0 to 1, of a suggested name."""


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _memory_size(value: object) -> object:
    """Refuses values that are not an amount of memory."""
    text = str(value).strip()
    if text != "off" and _MEMORY_SIZE.fullmatch(text) is None:
        raise ValueError("it must be a share such as 75%, an amount such as 6GiB, or off")
    return text


_MEMORY_SIZE = re.compile(r"(?P<percent>[1-9][0-9]?|100)%|(?P<amount>[1-9][0-9]{0,17})(?P<unit>[KMGT]i?B?)?")
_PAGE_ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?|https?://\[[0-9a-fA-F:]+\](:[0-9]{1,5})?/?")
MemorySize = Annotated[str, BeforeValidator(_memory_size)]
LogLevel = Annotated[Literal["debug", "info", "warn", "warning", "error"], BeforeValidator(_lower)]


Toolset = Literal["sessions", "code", "query", "care", "hub", "hub-tools", "hub-search"]
ALL_TOOLSETS: tuple[Toolset, ...] = get_args(Toolset)
TOOLSETS: tuple[Toolset, ...] = ("sessions", "code", "query")
"""Those that are offered by default."""

OnDisconnect = Literal["keep", "interrupt", "stop"]


_ACCESS_CONTROL = (
    "http_token",
    "http_tokens_file",
    "metrics_token",
    "oauth_issuer",
    "proxy_secret",
)
"""Settings that keep callers out; one that is set but empty is refused."""


class Settings(Section):
    """Times are in the unit that the variable's name says; properties give seconds."""

    must_have_value = frozenset(_ACCESS_CONTROL)
    _sources: Sources = PrivateAttr(default_factory=Sources)
    _sections: dict[type[Section], Section] = PrivateAttr(default_factory=dict)

    claude_path: str | None = Field(None, validation_alias="CLAUDE_CODE_PATH")
    """The Claude Code executable. Unset: `claude` on PATH, then the bundled one."""
    permission_timeout_ms: int = Field(300_000, gt=0, validation_alias="PERMISSION_TIMEOUT_MS")
    """How long a question stays open before it counts as denied. The time does not run while a person is expected: a
    page of the console is open, notifications are switched on, or a person is at a terminal of the shared server."""
    questions_wait: bool = Field(False, validation_alias=f"{_OWN}QUESTIONS_WAIT")
    """Whether questions stay open as long as their session, regardless of `PERMISSION_TIMEOUT_MS`."""
    max_sessions: int = Field(10, gt=0, validation_alias="MAX_SESSIONS")
    """The maximum number of Claude Code processes at the same time."""
    memory_limit: MemorySize = Field("75%", validation_alias=f"{_OWN}MEMORY_LIMIT")
    """How much memory all Claude Code processes may use together, with what they start: a share of the machine's or the
    container's (`75%`), bytes (`6GiB`), or `off`. Idle ones are parked before more is used; new ones wait."""
    memory_wait_ms: int = Field(120_000, ge=0, validation_alias=f"{_OWN}MEMORY_WAIT_MS")
    """How long a new process waits for memory before it is refused with `LIMIT_REACHED`; 0 refuses it at once."""
    log_level: LogLevel = Field("info", validation_alias="LOG_LEVEL")
    """What the server writes to stderr. `info`: each start, end, crash, refusal and failed turn; `debug`: the
    frames of both protocols too, without their contents."""
    event_buffer_size: int = Field(500, gt=0, validation_alias="EVENT_BUFFER_SIZE")
    """Events kept per session."""
    event_buffer_bytes: int = Field(4 << 20, gt=0, validation_alias=f"{_OWN}EVENT_BUFFER_BYTES")
    """Bytes of events kept per session."""
    session_ttl_ms: int = Field(1_800_000, gt=0, validation_alias=f"{_OWN}SESSION_TTL_MS")
    """How long an idle session stays in memory. Its transcript and its record stay on disk."""
    running_session_max_ms: int = Field(14_400_000, gt=0, validation_alias=f"{_OWN}RUNNING_SESSION_MAX_MS")
    """How long a turn, or background work, may run before it counts as stuck and is ended. Time spent waiting for an
    answer does not count."""
    cleanup_interval_ms: int = Field(60_000, gt=0, validation_alias=f"{_OWN}CLEANUP_INTERVAL_MS")
    """How often the server looks for idle and stuck sessions."""
    idle_park_ms: int = Field(600_000, gt=0, validation_alias=f"{_OWN}IDLE_PARK_MS")
    """How long the process of a finished turn is kept warm for the next one."""
    stall_ms: int = Field(120_000, gt=0, validation_alias=f"{_OWN}STALL_MS")
    """Time without output after which a running turn is reported as stalled."""
    start_timeout_ms: int = Field(60_000, gt=0, validation_alias=f"{_OWN}START_TIMEOUT_MS")
    """How long a new process may take to become ready."""
    stop_timeout_ms: int = Field(3_000, gt=0, validation_alias=f"{_OWN}STOP_TIMEOUT_MS")
    """How long each step of stopping a process may take before the next, stronger one."""
    spawn_limit: int = Field(
        default_factory=lambda: max(2, os.cpu_count() or 2),
        gt=0,
        validation_alias=f"{_OWN}SPAWN_LIMIT",
    )
    """How many processes may be starting up at the same time."""
    spare_processes: int | None = Field(None, ge=0, le=100, validation_alias=f"{_OWN}SPARE_PROCESSES")
    """How many Claude Code processes are started in advance for the next session, with the options of the last one.
    Each counts toward `MAX_SESSIONS` and memory until another session needs the room. Unset: 1 on a shared server,
    otherwise 0."""
    spare_max_age_ms: int = Field(300_000, gt=0, validation_alias=f"{_OWN}SPARE_MAX_AGE_MS")
    """How long such a process is kept if no session uses it."""
    mcp_timeout_ms: int = Field(30_000, gt=0, validation_alias="MCP_TIMEOUT")
    """How long connecting to an MCP server may take."""
    mcp_local_batch: int = Field(3, gt=0, validation_alias="MCP_SERVER_CONNECTION_BATCH_SIZE")
    """How many local MCP servers are started at the same time."""
    mcp_remote_batch: int = Field(20, gt=0, validation_alias="MCP_REMOTE_SERVER_CONNECTION_BATCH_SIZE")
    """How many remote MCP servers are connected to at the same time."""
    mcp_output_tokens: int = Field(25_000, gt=0, validation_alias="MAX_MCP_OUTPUT_TOKENS")
    """The size, in tokens of four characters, above which the result of a `hub-tools` call is saved to a file and
    replaced by the file's name. Sessions do this themselves."""
    state_dir: UserPath = Field(
        default_factory=lambda: Path(platformdirs.user_state_dir("claude-code-mcp")),
        validation_alias=f"{_OWN}STATE_DIR",
    )
    """The directory of the server's state: locks, session records, costs. All servers of one user must share it."""

    max_depth: int = Field(0, ge=0, lt=100, validation_alias=MAX_DEPTH)
    """How many levels of sessions may use this server themselves, if it is registered in Claude Code. 0: sessions do
    not see that registration. The sessions of named callers never do."""
    default_cwd: Annotated[str, AfterValidator(os.path.expanduser)] | None = Field(
        None, validation_alias="CLAUDE_CODE_DEFAULT_CWD"
    )
    """The default working directory of sessions. Unset: the directory in which the server was started."""
    on_disconnect: OnDisconnect | None = Field(None, validation_alias=f"{_OWN}ON_DISCONNECT")
    """What happens to a client's running turns when it disconnects: `keep` them, `interrupt` them, or `stop` their
    processes too. Unset: `stop` on stdio; `keep` over HTTP and on the shared server, except that a client of protocol
    2026-07-28 cancels a call over HTTP by closing its stream, which interrupts the turn that the call waits for."""
    shared: bool = Field(False, validation_alias=f"{_OWN}SHARED")
    """Whether a server on stdio connects to your shared server, as with `--shared`. It can be set by the variable
    only, not in a file."""
    shared_idle_ms: int = Field(600_000, gt=0, validation_alias=f"{_OWN}SHARED_IDLE_MS")
    """How long the shared server keeps running without clients and work."""
    runtime_dir: UserPath | None = Field(None, validation_alias=f"{_OWN}RUNTIME_DIR")
    """The directory of the shared server's socket, lock and log, which only its owner may enter. Unset: `run` in the
    state directory. It can be set by the variable only, not in a file."""
    http_token: SecretStr | None = Field(None, validation_alias=f"{_OWN}TOKEN")
    """The bearer token for HTTP clients. The caller with this token is named `default`."""
    http_tokens_file: UserPath | None = Field(None, validation_alias=f"{_OWN}TOKENS_FILE")
    """A file with one `name token` per line, for several callers who do not see each other's sessions. It is read
    again when it changes: a caller removed from it loses access at once, and everything they run ends."""
    oauth: bool = Field(False, validation_alias=f"{_OWN}OAUTH")
    """Whether this server is also an authorization server at which invited people sign in with passkeys, as with
    `--oauth`; see team.md. Needs the extra `oauth` and, beyond loopback, `WEB_URL`."""
    oauth_issuer: str | None = Field(None, validation_alias=f"{_OWN}OAUTH_ISSUER")
    """The issuer of access tokens that HTTP clients may use in addition to static tokens: your own authorization
    server, at which people sign in. Each person is a separate caller; see security.md."""
    http_allowed_hosts: tuple[str, ...] = Field((), validation_alias=f"{_OWN}ALLOWED_HOSTS")
    """Host headers that HTTP clients may send in addition to the listening address, separated by commas."""
    http_allowed_origins: tuple[str, ...] = Field((), validation_alias=f"{_OWN}ALLOWED_ORIGINS")
    """Origins that browsers may call from, separated by commas."""
    http_proxies: tuple[str, ...] = Field((), validation_alias=f"{_OWN}TRUSTED_PROXIES")
    """Addresses or networks of the proxies in front of the HTTP server, separated by commas. Only their
    `X-Forwarded-For` and `X-Forwarded-Proto` headers are used; for all other peers, the peer's own address counts."""

    proxy_user_header: str | None = Field(None, pattern=r"^[A-Za-z0-9-]+$", validation_alias=f"{_OWN}PROXY_USER_HEADER")
    """The header in which a trusted proxy names the signed-in user of the console, such as `X-Forwarded-User`. It is
    removed from requests of all other peers."""
    proxy_secret: SecretStr | None = Field(None, validation_alias=f"{_OWN}PROXY_SECRET")
    """The secret that the proxy sends in `X-Proxy-Secret`. Without it these headers are ignored. Needed if the proxy
    is on this machine and sandboxed sessions use the host's network, because their requests come from the same
    address."""
    web_url: str | None = Field(None, validation_alias=f"{_OWN}WEB_URL")
    """The public address of the console, if it differs from the listening address, such as
    `https://claude.example.org` behind a proxy. Links and notifications use it, and browsers may call from it."""

    policy_file: UserPath | None = Field(None, validation_alias=f"{_OWN}POLICY")
    """The policy file (TOML), which says what callers may do; see policy.md. Unset: a built-in profile."""
    profile: str | None = Field(None, min_length=1, validation_alias=f"{_OWN}PROFILE")
    """The profile of callers that the policy file does not name. Unset: the file's default, otherwise `local` on
    stdio and `remote` over HTTP."""
    audit_file: Literal["off"] | UserPath | None = Field(None, validation_alias=f"{_OWN}AUDIT_FILE")
    """Where the audit trail goes, or `off`. Unset: nowhere on stdio, `audit.jsonl` in the state directory on HTTP."""
    audit_prompts: bool = Field(False, validation_alias=f"{_OWN}AUDIT_PROMPTS")
    """Whether the audit trail contains complete prompts instead of only their hashes."""
    audit_arguments: bool = Field(False, validation_alias=f"{_OWN}AUDIT_ARGUMENTS")
    """Whether the audit trail contains the arguments of calls to MCP servers, up to 2,000 characters per call."""
    audit_max_bytes: int = Field(10 << 20, gt=0, validation_alias=f"{_OWN}AUDIT_MAX_BYTES")
    """The size at which each of the two audit files is rotated; five old files of each are kept."""
    metrics_token: SecretStr | None = Field(None, validation_alias=f"{_OWN}METRICS_TOKEN")
    """The bearer token for `/metrics`. Unset: any caller's token."""
    plugins_off: tuple[str, ...] = Field((), validation_alias=f"{_OWN}PLUGINS_OFF")
    """Installed plug-ins that servers do not use, separated by commas. Commands of these plug-ins stay available."""
    toolsets: tuple[Toolset, ...] = Field(TOOLSETS, validation_alias=f"{_OWN}TOOLSETS")
    """The families of tools that are offered, separated by commas: `sessions`, `code`, `query`, `care` (rename, tag,
    pin, archive, fork, export and delete sessions, their worktrees and checkpoints, and what they cost), `hub` (the
    servers of the hub), `hub-tools` (all their tools) and `hub-search` (two tools that find and call those)."""
    hub: Literal["off", "own", "all"] = Field("own", validation_alias=f"{_OWN}HUB")
    """The MCP servers that all sessions share: those in the hub's own file (`own`), also those that Claude Code is
    configured with (`all`), or none (`off`)."""
    hub_file: UserPath = Field(
        default_factory=lambda: Path(platformdirs.user_config_dir("claude-code-mcp")) / "mcp.json",
        validation_alias=f"{_OWN}HUB_FILE",
    )
    """The hub's own file of MCP servers."""
    trusted_projects: tuple[str, ...] = Field((), validation_alias=f"{_OWN}TRUSTED_PROJECTS")
    """Directories, separated by commas, of projects whose `.mcp.json` servers the hub may start without approval in
    Claude Code. Subdirectories are included; `*` means every project."""
    client_metadata_url: str | None = Field(None, validation_alias=f"{_OWN}CLIENT_METADATA_URL")
    """The https URL of a Client ID Metadata Document, which identifies the hub to authorization servers that support
    it instead of registration. hub.md describes its content."""
    principal_sign_in: bool | None = Field(None, validation_alias=f"{_OWN}PRINCIPAL_SIGN_IN")
    """Whether each named caller signs in to the hub's servers separately, with separate connections. Unset: yes if a
    tokens file is the only way in."""
    identity_provider: str | None = Field(None, validation_alias=f"{_OWN}IDENTITY_PROVIDER")
    """The issuer of your organization's identity provider, for servers with `xaa`."""
    identity_provider_client: str = Field(
        "claude-code-mcp", min_length=1, validation_alias=f"{_OWN}IDENTITY_PROVIDER_CLIENT"
    )
    """This program's client id at the identity provider."""
    identity_provider_secret: SecretStr | None = Field(None, validation_alias=f"{_OWN}IDENTITY_PROVIDER_SECRET")
    """The secret for that client id, if there is one."""
    identity_provider_port: int | None = Field(None, gt=0, lt=65536, validation_alias=f"{_OWN}IDENTITY_PROVIDER_PORT")
    """The loopback port of the redirect URI, if the identity provider allows only one."""
    identity_provider_token_file: UserPath | None = Field(None, validation_alias=f"{_OWN}IDENTITY_PROVIDER_TOKEN_FILE")
    """A file with an id token that another program renews. Unset: `mcp login` for a server with `xaa` signs in at the
    identity provider."""
    channels: tuple[str, ...] = Field((), validation_alias=f"{_OWN}CHANNELS")
    """Servers of the hub that may push messages into sessions, separated by commas."""
    permission_channels: tuple[str, ...] = Field((), validation_alias=f"{_OWN}PERMISSION_CHANNELS")
    """Servers of the hub that receive open questions and may answer them, separated by commas."""
    task_ttl_ms: int = Field(86_400_000, gt=0, validation_alias=f"{_OWN}TASK_TTL_MS")
    """How long a task can be queried after its last change."""
    call_limit_ms: int = Field(55_000, gt=0, validation_alias=f"{_OWN}CALL_LIMIT_MS")
    """How long `claude_code` and `claude_code_reply` wait for a turn before they return the session id. Many clients
    end a call after a minute."""
    allow_disk_resume: bool = Field(False, validation_alias=f"{_OWN}ALLOW_DISK_RESUME")
    """Whether `claude_code_reply` may resume sessions from disk."""
    allow_sensitive_session_details: bool = Field(False, validation_alias=f"{_OWN}ALLOW_SENSITIVE_SESSION_DETAILS")
    """Whether `claude_code_session` may return directories, prompts and agents of a session."""
    max_execution_time_ms: int = Field(300_000, gt=0, validation_alias="CLAUDE_CODE_MAX_EXECUTION_TIME")
    """How long `claude_code_query` may take before it returns the messages so far."""
    default_permission_mode: str | None = Field(None, validation_alias="CLAUDE_CODE_DEFAULT_PERMISSION_MODE")
    """The permission mode of `claude_code_query`."""
    query_allowed_tools: tuple[str, ...] = Field((), validation_alias="CLAUDE_CODE_ALLOWED_TOOLS")
    """Tools that `claude_code_query` allows without asking, separated by commas; case does not matter."""

    def section(self, kind: type[SectionT], **arguments: Any) -> SectionT:
        """The settings of a plug-in; the same from now on, if they come with arguments. InvalidArgument if one of them
        does not parse."""
        made = self._sections.get(kind)
        if made is None or arguments:
            made = self._sections[kind] = self._sources.section(kind, **arguments)
        assert isinstance(made, kind)
        return made

    def check_sections(self, kinds: Iterable[type[Section]]) -> None:
        """Reads these sections. InvalidArgument if one does not parse, or the configuration file has a name that is in
        none of them."""
        for kind in kinds:
            self.section(kind)
        self._sources.check_names(Settings, *self._sections)

    @property
    def sections(self) -> tuple[type[Section], ...]:
        """The sections that were read."""
        return Settings, *self._sections

    @field_validator(*_ACCESS_CONTROL, mode="before")
    @classmethod
    def _not_blank(cls, value: object) -> object:
        """An empty token must not count as unset: the server would admit every caller."""
        return not_blank(value)

    @field_validator("client_metadata_url")
    @classmethod
    def _is_document(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "")
        if value is not None and (parts.scheme != "https" or not parts.netloc or parts.path in ("", "/")):
            raise ValueError("it must be an https address with a path")
        return value

    @field_validator(
        "plugins_off",
        "toolsets",
        "trusted_projects",
        "channels",
        "permission_channels",
        "query_allowed_tools",
        "http_allowed_hosts",
        "http_allowed_origins",
        "http_proxies",
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        return list_of(value)

    @field_validator("http_proxies")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for part in value:
            try:
                ipaddress.ip_network(part)
            except ValueError:
                raise ValueError(f"{part!r} is not an address or a network, such as 127.0.0.1 or 10.0.0.0/8") from None
        return value

    @field_validator("web_url")
    @classmethod
    def _is_page_address(cls, value: str | None) -> str | None:
        if value is not None and _PAGE_ADDRESS.fullmatch(value) is None:
            raise ValueError("it must be an address without a path, such as https://claude.example.org")
        return value

    def memory_limit_bytes(self, total: int | None) -> int | None:
        """The limit in bytes on a machine with so much memory; None without a limit, or if it is a share of an amount
        that is not known."""
        size = _MEMORY_SIZE.fullmatch(self.memory_limit)
        if size is None:
            return None
        if size["percent"]:
            return None if total is None else total * int(size["percent"]) // 100
        return int(size["amount"]) << 10 * (" KMGT".index((size["unit"] or " ")[0]))

    @property
    def permission_timeout(self) -> float:
        return self.permission_timeout_ms / 1000

    @property
    def shared_idle(self) -> float:
        return self.shared_idle_ms / 1000

    @property
    def session_ttl(self) -> float:
        return self.session_ttl_ms / 1000

    @property
    def running_session_max(self) -> float:
        return self.running_session_max_ms / 1000

    @property
    def cleanup_interval(self) -> float:
        return self.cleanup_interval_ms / 1000

    @property
    def idle_park(self) -> float:
        return self.idle_park_ms / 1000

    @property
    def stall(self) -> float:
        return self.stall_ms / 1000

    @property
    def start_timeout(self) -> float:
        return self.start_timeout_ms / 1000

    @property
    def mcp_timeout(self) -> float:
        return self.mcp_timeout_ms / 1000

    @property
    def stop_timeout(self) -> float:
        return self.stop_timeout_ms / 1000


_NOT_SETTINGS = (CONFIG_FILE_VARIABLE, *(f"{_OWN}{name}" for name in ("MARK", "DEPTH", "GREETING", "SUPERVISOR")))
"""Variables of ours that are no settings: some are set for the processes that a server starts."""
_OF_CLAUDE_CODE = frozenset(
    f"{_OWN}{name}"
    for name in (
        "ALLOWLIST_ENV",
        "ALWAYS_LOAD_JOIN_BEFORE_INPUT",
        "APPS_HOST",
        "APPS_NO_TOOL_ROUTE",
        "AUTO_BACKGROUND_MS",
        "CONNECTOR_PREWAIT_MS",
        "MEMORY_CGROUP",
        "NO_REDIAL_AFTER_POLICY_REFUSAL",
        "PREWAIT_SERVERS",
        "PREWAIT_SERVERS_MS",
        "REGISTRY_FETCH_AT_STARTUP",
        "SERVER_NAME",
        "SERVER_URL",
        "SKIP_UNCHANGED_RELIST",
        "STARTUP_WAIT_MS",
        "TOOL_IDLE_TIMEOUT",
    )
)
"""Variables of Claude Code itself, which happen to begin as ours do: sessions understand them."""


def unknown_variables(environment: Mapping[str, str], sections: Iterable[type[Section]] = ()) -> dict[str, str | None]:
    """The variables with our prefix that no setting has, each with the variable that was probably meant, or None."""
    kinds: list[type[Section]] = [Settings, *sections]
    known = {variable_of(name, kind) for kind in kinds for name in kind.model_fields} | {*_NOT_SETTINGS}
    unknown = sorted(name for name in environment if name.startswith(_OWN) and name not in known | _OF_CLAUDE_CODE)
    endings = {name.removeprefix(_OWN): name for name in sorted(known) if name.startswith(_OWN)}
    nearest = {
        name: difflib.get_close_matches(name.removeprefix(_OWN), endings, n=1, cutoff=_CLOSE) for name in unknown
    }
    return {name: endings[close[0]] if close else None for name, close in nearest.items()}


def without_settings(environment: Mapping[str, str], sections: Iterable[type[Section]] = (Settings,)) -> dict[str, str]:
    """The variables that are not settings, or secret ones. The name of a variable of ours may suggest a secret although
    it holds an address, or the name of a claim."""
    harmless = {
        variable_of(name, kind) for kind in sections for name in kind.model_fields if name not in kind.secrets()
    }
    return {name: value for name, value in environment.items() if name not in harmless}


def secrets_of(settings: Settings) -> Iterator[str]:
    """The secrets in the settings and in the sections that were read."""
    for section in (settings, *settings._sections.values()):
        yield from secrets_in(section)


def load_settings(
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    sections: Iterable[Section] = (),
    **arguments: Any,
) -> Settings:
    """Settings from a TOML file (`file`, or the one CLAUDE_CODE_MCP_CONFIG names), the environment, arguments. Sections
    of plug-ins are read when they are asked for, unless they are given.

    Raises InvalidArgument with one line that names what does not parse.
    """
    environment = os.environ if environment is None else environment
    if file is None and environment.get(CONFIG_FILE_VARIABLE):
        file = Path(environment[CONFIG_FILE_VARIABLE]).expanduser()
    sources = Sources.read(dict(environment), file)
    settings = sources.section(Settings, **arguments)
    settings._sources = sources
    settings._sections = {type(section): section for section in sections}
    return settings


_OF_EACH_CLIENT = ("claude_path", "default_cwd")


def client_settings(settings: Settings, client: Mapping[str, str], server: Mapping[str, str] | None = None) -> Settings:
    """The settings of a server for one of its clients, by the client's environment: which Claude Code is run, and where
    sessions work by default, is each client's own. Where the client says nothing, the configuration file counts, but
    not the variables of the `server`, which may be those of another client."""
    server = os.environ if server is None else server
    values: dict[str, Any] = {}
    for field in _OF_EACH_CLIENT:
        variable = variable_of(field, Settings)
        # The environment of the shared server comes from the client that started it, and does not apply to this client.
        values[field] = client.get(variable) or (None if server.get(variable) else getattr(settings, field))
    if values["default_cwd"]:
        values["default_cwd"] = os.path.expanduser(expand_home(values["default_cwd"], client))
    return settings.model_copy(update=values)
