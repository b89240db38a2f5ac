"""Every setting, from the environment, a TOML file and keyword arguments, in that rising order of strength
reversed: an argument beats a variable, a variable beats the file, the file beats the default.

The variables that other servers of this kind made familiar keep their names; new ones start with
`CLAUDE_CODE_MCP_`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from .errors import InvalidArgument

_OWN = "CLAUDE_CODE_MCP_"
CONFIG_FILE_VARIABLE = f"{_OWN}CONFIG"


def _named(variable: str) -> AliasChoices:
    return AliasChoices(variable)


class Settings(BaseModel):
    """Times are in the unit that the variable's name says; properties give seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    claude_path: str | None = Field(None, validation_alias=_named("CLAUDE_CODE_PATH"))
    """The Claude Code executable; unset, `claude` on PATH and then the bundled one are tried."""
    permission_timeout_ms: int = Field(300_000, gt=0, validation_alias=_named("PERMISSION_TIMEOUT_MS"))
    """How long a question stays open before it counts as denied."""
    max_sessions: int = Field(10, gt=0, validation_alias=_named("MAX_SESSIONS"))
    """How many Claude Code processes may live at once."""
    log_level: Literal["debug", "info", "warn", "warning", "error"] = Field(
        "info", validation_alias=_named("LOG_LEVEL")
    )
    """What the server writes to stderr."""
    event_buffer_size: int = Field(500, gt=0, validation_alias=_named("EVENT_BUFFER_SIZE"))
    """Events kept per session."""
    event_buffer_bytes: int = Field(4 << 20, gt=0, validation_alias=_named(f"{_OWN}EVENT_BUFFER_BYTES"))
    """Bytes of events kept per session."""
    session_ttl_ms: int = Field(1_800_000, gt=0, validation_alias=_named(f"{_OWN}SESSION_TTL_MS"))
    """How long a session that does nothing stays in memory. Its transcript stays on disk."""
    running_session_max_ms: int = Field(14_400_000, gt=0, validation_alias=_named(f"{_OWN}RUNNING_SESSION_MAX_MS"))
    """How long one turn may run before it is taken for stuck and ended."""
    cleanup_interval_ms: int = Field(60_000, gt=0, validation_alias=_named(f"{_OWN}CLEANUP_INTERVAL_MS"))
    """How often idle and stuck sessions are looked for."""
    idle_park_ms: int = Field(600_000, gt=0, validation_alias=_named(f"{_OWN}IDLE_PARK_MS"))
    """How long the process of a finished turn is kept warm for the next one."""
    stall_ms: int = Field(120_000, gt=0, validation_alias=_named(f"{_OWN}STALL_MS"))
    """Silence after which a running turn is reported as stalled."""
    start_timeout_ms: int = Field(60_000, gt=0, validation_alias=_named(f"{_OWN}START_TIMEOUT_MS"))
    """How long a new process may take to say that it is ready."""
    stop_timeout_ms: int = Field(3_000, gt=0, validation_alias=_named(f"{_OWN}STOP_TIMEOUT_MS"))
    """How long each step of stopping a process may take before the next, harder one."""
    spawn_limit: int = Field(
        default_factory=lambda: max(2, os.cpu_count() or 2),
        gt=0,
        validation_alias=_named(f"{_OWN}SPAWN_LIMIT"),
    )
    """How many processes may be starting up at the same time."""
    state_dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_state_dir("claude-code-mcp")),
        validation_alias=_named(f"{_OWN}STATE_DIR"),
    )
    """Where locks live. All servers of one user must share it."""

    @property
    def permission_timeout(self) -> float:
        return self.permission_timeout_ms / 1000

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
    def stop_timeout(self) -> float:
        return self.stop_timeout_ms / 1000


def variable_of(field: str) -> str:
    """The environment variable that sets a field."""
    alias = Settings.model_fields[field].validation_alias
    assert isinstance(alias, AliasChoices)
    return str(alias.choices[0])


def load_settings(
    environment: Mapping[str, str] | None = None, file: Path | None = None, **given: Any
) -> Settings:
    """Settings from a TOML file (`file`, or the one CLAUDE_CODE_MCP_CONFIG names), the environment, arguments.

    Raises InvalidArgument with one line that names what does not parse.
    """
    environment = os.environ if environment is None else environment
    values = {**_from_file(_config_file(environment, file)), **_from_environment(environment), **given}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise _readable(error, values) from None


def _config_file(environment: Mapping[str, str], file: Path | None) -> Path | None:
    named = environment.get(CONFIG_FILE_VARIABLE)
    return file or (Path(named) if named else None)


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"The configuration file {file} cannot be read: {error}") from None
    by_variable = {variable_of(name): name for name in Settings.model_fields}
    return {by_variable.get(key, key): value for key, value in raw.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    named = ((field, environment.get(variable_of(field))) for field in Settings.model_fields)
    return {field: value for field, value in named if value not in (None, "")}


def _readable(error: ValidationError, values: Mapping[str, Any]) -> InvalidArgument:
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        return InvalidArgument(f"There is no setting named {field!r}.", field=field)
    name = variable_of(field) if field in Settings.model_fields else field
    given = values.get(field)
    return InvalidArgument(f"{name}={given!r} is not valid: {first['msg']}.", field=field)
