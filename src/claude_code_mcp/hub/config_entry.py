"""One entry of `mcpServers`, in the format that Claude Code, Cursor and Claude Desktop share, and its dialects.

VS Code has `servers` and `inputs`, and asks a person for `${input:id}`; here the environment variable of that name is
used (`${input:api-key}` is `${API_KEY}`), or the default of the input. Windsurf has `serverUrl`, Gemini CLI `httpUrl`,
and VS Code and Cursor `envFile`. Everything except the functions that read files is pure.

There is one class for each `type`. A class has everything that depends on the type except the transport: the fields of
the entry, whether the server runs on this machine, its secrets, and what may be shown. `parse_entry` makes one from
JSON.

References to variables in an entry, `${NAME}`, `${NAME:-default}` and `${env:NAME}`, are replaced by `expand`.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from ..core.private_files import read_regular
from ..core.processes.environment import is_own
from ..core.redaction import (
    MIN_LENGTH_PER_SERVER,
    Redactor,
    redact_headers,
    redact_url,
    secret_arguments,
    secret_values,
    secrets_of_url,
)

_INPUT = re.compile(r"\$\{input:([^{}]*)\}")
_NO_LETTER = re.compile(r"[^A-Za-z0-9]")
_MAX_BYTES = 64 << 20
_MAX_ENV_BYTES = 1 << 20
SECTIONS = ("mcpServers", "servers")
"""The keys under which servers are configured; the first one present counts."""


def section_of(content: Mapping[str, Any]) -> tuple[str, Any]:
    """The key under which a file has its servers, and its value."""
    nested = content.get("mcp")  # VS Code's settings.json has the servers one level down
    if isinstance(nested, dict) and not any(key in content for key in SECTIONS):
        content = nested
    key = next((key for key in SECTIONS if key in content), SECTIONS[0])
    return key, content.get(key, {})


def input_defaults(content: Mapping[str, Any]) -> dict[str, str]:
    """The defaults of the `inputs` that have one, by id."""
    inputs = content.get("inputs")
    found = [each for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    return {str(each.get("id")): each["default"] for each in found if isinstance(each.get("default"), str)}


def normalized_entry(entry: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """Translate an entry of another program, or ours, to our format."""

    def variable(found: re.Match[str]) -> str:
        name = _NO_LETTER.sub("_", found[1]).upper()
        name = f"_{name}" if not name or name[0].isdigit() else name
        default = defaults.get(found[1])
        return f"${{{name}:-{default}}}" if default is not None and "}" not in default else f"${{{name}}}"

    ours: dict[str, Any] = _with_texts(dict(entry), lambda text: _INPUT.sub(variable, text))
    for key, type_ in (("serverUrl", None), ("httpUrl", "http")):
        if key in ours and "url" not in ours and "command" not in ours:
            ours["url"] = ours.pop(key)
            if type_ is not None:
                ours.setdefault("type", type_)
    return ours


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with all its strings changed, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _with_texts(item, change) for key, item in value.items()}
    return [_with_texts(item, change) for item in value] if isinstance(value, list) else value


def texts_in(value: object) -> Iterator[str]:
    """All strings in a JSON value, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


# -- files ------------------------------------------------------------------------------------------------------------


def read_text(file: Path, most: int = _MAX_BYTES) -> str:
    """The text of a file. OSError if it is not a regular file, ValueError if it is not text."""
    return read_regular(file, most).decode("utf-8-sig")


def read_env_file(file: Path) -> dict[str, str]:
    """The variables of a file with `NAME=value` lines; `export`, quotes and comments as usual. Raises OSError and
    ValueError."""
    found: dict[str, str] = {}
    for line in read_text(file, _MAX_ENV_BYTES).splitlines():
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if separator and name.strip() and not name.startswith("#"):
            found[name.strip()] = _unquoted(value.strip())
    return found


def _unquoted(value: str) -> str:
    if value[:1] in ('"', "'"):
        end = value.find(value[0], 1)
        return value[1:end] if end > 0 else value
    return value.partition(" #")[0].rstrip()


# -- config entry -----------------------------------------------------------------------------------------------------


_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*+))?(\}|\Z)")
"""A reference to a variable, or an unterminated one: that extends to the end, so that it is not scanned again from each
start within it."""


_OF_DIRECTORY = ("workspaceFolder", "PWD", "CLAUDE_PROJECT_DIR")
"""References to the directory of the server's user; replaced when connecting, by `for_directory`."""
_SCRIPT = re.compile(r"\.(?:[cm]?[jt]s|py|sh|rb|jar|json|toml|ya?ml|db|sqlite3?)$", re.IGNORECASE)
_CONTAINER_PROGRAMS = ("docker", "podman", "nerdctl")
"""Their arguments with a slash are names of images."""


class MissingVariable(ValueError):
    """A reference without a default names a variable that is not set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the variable {name} is not set and has no default")


def expand(value: Any, environment: Mapping[str, str]) -> Any:
    """Replace the references in all strings of a JSON value, at any depth. Raises MissingVariable.

    Takes time linear in the length of the strings.
    """

    def value_of(reference: re.Match[str]) -> str:
        name, default, _ = reference.groups()
        if name in _OF_DIRECTORY:
            return reference.group()
        # Our own variables hold tokens, and a file could send them anywhere: they count as unset.
        value = None if is_own(name) else environment.get(name)
        if value is not None and (value or default is None):
            return value
        if default is None:
            raise MissingVariable(name)
        return str(default)

    return _with_references(value, value_of)


def _with_references(value: Any, value_of: Callable[["re.Match[str]"], str]) -> Any:
    def replaced(text: str) -> str:
        return _REFERENCE.sub(lambda found: value_of(found) if found[3] else found[0], text)

    return _with_texts(value, replaced)


IDE_TOOLS = ("executeCode", "getDiagnostics")
"""The tools of an IDE's server that are meant for a model; the others are for the IDE's own user interface."""
_TYPE_ALIASES = {"streamable-http": "http", "streamableHttp": "http", "streamable_http": "http", "websocket": "ws"}
"""The names of types in other programs."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)


class OAuthConfig(_Entry):
    """How to sign in if the server's own metadata is insufficient."""

    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = Field(None, validation_alias=AliasChoices("scope", "scopes"))
    callback_port: int | None = Field(None, gt=0, lt=65536)
    """The loopback port of the redirect address, where the authorization server allows only one."""
    auth_server_metadata_url: str | None = None
    """The URL of the authorization server's metadata, overriding the server's; https, or on loopback."""
    xaa: bool = False
    """Cross-app access: show an assertion of the organization's identity provider instead of asking a person."""
    issuer: str | None = None
    """The authorization server that takes such assertions."""

    @field_validator("auth_server_metadata_url")
    @classmethod
    def _is_trustworthy(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "")
        is_loopback = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
        if value is not None and parts.scheme != "https" and not is_loopback:
            raise ValueError("must be an https address")
        return value


class TlsConfig(_Entry):
    """TLS of a remote server."""

    verify: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class ToolOverride(_Entry):
    """Replacements for a tool's name and description."""

    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    description: str | None = None


class CallLimits(_Entry):
    """Limits on calls to an MCP server for each client of this server, by principal."""

    calls_at_once: int | None = Field(None, gt=0)
    calls_per_minute: int | None = Field(None, gt=0)


class _ServerConfig(_Entry):
    """The fields of all types. A new type needs its fields, `type`, and overrides of the methods below."""

    type: str
    disabled: bool = False
    include_tools: tuple[str, ...] | None = Field(None, validation_alias=AliasChoices("includeTools", "enabledTools"))
    """Only these tools, by their own names."""
    exclude_tools: tuple[str, ...] = Field((), validation_alias=AliasChoices("excludeTools", "disabledTools"))
    """All except these."""
    tool_overrides: dict[str, ToolOverride] = {}
    """Other names and descriptions for tools, by their own names."""
    limits: CallLimits = CallLimits()

    @property
    def is_local(self) -> bool:
        """Whether connecting starts a process on this machine; local and remote servers are throttled separately."""
        return False

    def secrets(self) -> Iterator[str]:
        """The values in the entry that must not appear in any output; empty strings are ignored."""
        return iter(())

    def describe(self) -> dict[str, object]:
        """What may be shown of the entry: its type and its address, without secrets."""
        return {"type": self.type}

    def secrets_redactor(self) -> Redactor:
        """Removes this server's secrets from its output and from messages about it."""
        return Redactor(self.secrets(), shortest=MIN_LENGTH_PER_SERVER)

    def allows(self, tool: str) -> bool:
        """Whether `includeTools` and `excludeTools` allow a tool, by its own name."""
        return tool not in self.exclude_tools and (self.include_tools is None or tool in self.include_tools)

    def own_name(self, tool: str) -> str | None:
        """The server's own name for a tool with this name here; None if there is no such usable tool. A renamed tool
        cannot be called by its own name: policy rules apply to the visible names."""
        own = next((own for own, override in self.tool_overrides.items() if override.name == tool), tool)
        renamed = self.tool_overrides.get(own)
        hidden = renamed is not None and renamed.name not in (None, tool)
        return own if self.allows(own) and not hidden else None


class StdioConfig(_ServerConfig):
    """A program on this machine."""

    type: Literal["stdio"] = "stdio"
    command: str = Field(min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    unset: dict[str, str] = {}
    """Variables of `env` that the program does not get, with the reason: their value refers to an unset variable."""
    cwd: str | None = None

    @field_validator("args", "env", mode="before")
    @classmethod
    def _accept_numbers(cls, value: object) -> object:
        if isinstance(value, list):
            return tuple(_number_as_text(item) for item in value)
        return {key: _number_as_text(item) for key, item in value.items()} if isinstance(value, dict) else value

    @property
    def is_local(self) -> bool:
        return True

    def secrets(self) -> Iterator[str]:
        yield from secret_values(self.env)
        yield from secret_arguments(self.args)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "command": self.secrets_redactor().text(" ".join([self.command, *self.args]))}


class _RemoteConfig(_ServerConfig):
    url: str
    headers: dict[str, str] = {}
    headers_helper: str | None = Field(None, min_length=1)
    """A shell command that prints additional headers as a JSON object; run for every connection."""
    tls: TlsConfig = TlsConfig()
    oauth: OAuthConfig = OAuthConfig()

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        scheme, separator, rest = value.partition("://")
        if not separator or not rest or scheme not in {"http", "https", "ws", "wss"}:
            raise ValueError("must be an http(s) or ws(s) address")
        return value

    def secrets(self) -> Iterator[str]:
        yield from secret_values(self.headers)
        yield from secrets_of_url(self.url)
        yield self.oauth.client_secret or ""

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "url": redact_url(self.url), "headers": redact_headers(self.headers)}


class HttpConfig(_RemoteConfig):
    """A remote server over streamable HTTP."""

    type: Literal["http"]


class SseConfig(_RemoteConfig):
    """A remote server over HTTP with server-sent events, as before 2025."""

    type: Literal["sse"]


class WebSocketConfig(_RemoteConfig):
    """A remote server over a WebSocket."""

    type: Literal["ws"]


class _IdeConfig(_RemoteConfig):
    ide_name: str | None = None
    auth_token: str | None = None
    """The token that the IDE expects; if unset, it is read from the IDE's lock file."""

    def secrets(self) -> Iterator[str]:
        yield from super().secrets()
        yield self.auth_token or ""


class SseIdeConfig(_IdeConfig):
    """An IDE extension over server-sent events."""

    type: Literal["sse-ide"]


class WebSocketIdeConfig(_IdeConfig):
    """An IDE extension over a WebSocket."""

    type: Literal["ws-ide"]


class SdkConfig(_ServerConfig):
    """A server in this process, by name."""

    type: Literal["sdk"]
    name: str | None = None

    @property
    def is_local(self) -> bool:
        return True


IdeConfig = SseIdeConfig | WebSocketIdeConfig
OAuthServerConfig = HttpConfig | SseConfig
"""The types whose servers may require a token from an authorization server."""
ServerConfig = StdioConfig | HttpConfig | SseConfig | WebSocketConfig | SseIdeConfig | WebSocketIdeConfig | SdkConfig
_ADAPTER: TypeAdapter[ServerConfig] = TypeAdapter(Annotated[ServerConfig, Field(discriminator="type")])
_TYPES = [get_args(config.model_fields["type"].annotation)[0] for config in get_args(ServerConfig)]


class InvalidEntry(ValueError):
    """An entry cannot be used. The message is one line, without the entry's values, which may be secret."""


def parse_entry(
    name: str,
    raw: object,
    environment: Mapping[str, str],
    input_defaults: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> ServerConfig:
    """Make an entry from JSON: expand variables, determine the type, validate. Raises InvalidEntry.

    An `envFile` is read, relative to `directory`, and `env` overrides it. Blocks on the disk for that. A value of `env`
    that refers to an unset variable is omitted, and the program is used anyway: most such variables are optional.
    Anywhere else such a reference is an error.

    An IDE's server offers only `IDE_TOOLS` unless the entry lists others.
    """
    if not isinstance(raw, dict):
        raise InvalidEntry("must be an object")
    try:
        known, unset = _without_unset(normalized_entry(raw, input_defaults or {}), environment)
        entry = {**_with_env_file(expand(known, environment), directory), "unset": unset}
        config = _ADAPTER.validate_python({**entry, "type": _type_of(entry)})
    except MissingVariable as error:
        raise InvalidEntry(str(error)) from None
    except ValidationError as error:
        raise InvalidEntry(_first_fault(error)) from None
    if config.include_tools is None and (name == "ide" or isinstance(config, IdeConfig)):
        return config.model_copy(update={"include_tools": IDE_TOOLS})
    return config


def _without_unset(entry: dict[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The entry without `env` values that cannot be expanded, and the reason for each."""
    env, unset = entry.get("env"), dict[str, str]()
    if not isinstance(env, dict):
        return entry, unset
    for name, value in env.items():
        try:
            expand(value, environment)
        except MissingVariable as error:
            unset[name] = str(error)
    return {**entry, "env": {name: value for name, value in env.items() if name not in unset}}, unset


def _with_env_file(entry: dict[str, Any], directory: Path | None) -> dict[str, Any]:
    named = entry.pop("envFile", None)
    if not isinstance(named, str) or not named:
        return entry
    base = str(directory or Path())
    file = Path(base, _replace_directory(named, base)).expanduser()
    try:
        variables = read_env_file(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "has the wrong form"
        raise InvalidEntry(f"envFile: {file} cannot be read: {reason}") from None
    env = entry.get("env")
    return {**entry, "env": {**variables, **env} if isinstance(env, dict) else variables}


def depends_on_directory(config: ServerConfig) -> bool:
    """Whether the server depends on the directory: the entry refers to it, or names a relative path."""
    refers = any(_refers_to_directory(text) for text in texts_in(config.model_dump(mode="json")))
    return refers or names_relative_path(config)


def names_relative_path(config: ServerConfig) -> bool:
    """Whether a program's entry names a path relative to its working directory."""
    if not isinstance(config, StdioConfig) or (config.cwd is not None and os.path.isabs(config.cwd)):
        return False
    if config.cwd is not None and _refers_to_directory(config.cwd):
        return True
    if config.cwd is not None or (_has_slash(config.command) and not os.path.isabs(config.command)):
        return True
    images = os.path.basename(config.command) in _CONTAINER_PROGRAMS
    return not images and any(_is_relative_path(argument) for argument in config.args)


def for_directory(config: ServerConfig, directory: str) -> ServerConfig:
    """The entry for users in a directory: references to it replaced, and relative paths resolved from it."""
    if not depends_on_directory(config):
        return config
    entry = _replace_directory(config.model_dump(mode="json"), directory)
    if isinstance(config, StdioConfig):
        entry["cwd"] = os.path.join(directory, entry.get("cwd") or "")
    return type(config).model_validate(entry)


def _replace_directory(value: Any, directory: str) -> Any:
    return _with_references(value, lambda found: directory if found[1] in _OF_DIRECTORY else found[0])


def _refers_to_directory(text: str) -> bool:
    return any(reference[3] and reference[1] in _OF_DIRECTORY for reference in _REFERENCE.finditer(text))


def _is_relative_path(argument: str) -> bool:
    """Whether an argument, or the value of an option, looks like a path that is not absolute. When in doubt it is a
    path: a wrong guess costs a connection, the opposite error serves the wrong directory."""
    name, separator, value = argument.partition("=")
    path = value if separator and name.startswith("-") else argument
    if path in (".", ".."):
        return True
    if path.startswith(("-", "@", "~", "$")) or "://" in path or os.path.isabs(path):
        return False
    return _has_slash(path) or _SCRIPT.search(path) is not None


def _has_slash(path: str) -> bool:
    return "/" in path or os.sep in path


def fingerprint(name: str, config: ServerConfig) -> str:
    """A hash of the name and configuration that reveals neither."""
    content = json.dumps([name, config.model_dump(mode="json")], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _type_of(entry: Mapping[str, Any]) -> str:
    type_ = entry.get("type", entry.get("transport"))
    if type_ is not None:
        return _TYPE_ALIASES.get(type_, type_) if isinstance(type_, str) else str(type_)
    if "command" in entry:
        return "stdio"
    if "url" in entry:
        return "ws" if str(entry["url"]).startswith(("ws://", "wss://")) else "http"
    raise InvalidEntry("has neither a command nor a url")


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_context=False)[0]
    if fault["type"] == "union_tag_invalid":
        return f"type must be one of {', '.join(_TYPES)}"
    field = ".".join(str(part) for part in fault["loc"][1:])
    problem = fault["msg"].removeprefix("Value error, ")
    return f"{field}: {problem}" if field else problem
