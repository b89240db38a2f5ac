"""One entry of `mcpServers`, in the format that Claude Code, Cursor and Claude Desktop share."""

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from ..processes.environment import is_own

IDE_TOOLS = ("executeCode", "getDiagnostics")


"""The tools of an IDE's server that are meant for a model; the rest serve the IDE's own windows."""


_ALSO_CALLED = {"streamable-http": "http", "streamableHttp": "http", "streamable_http": "http", "websocket": "ws"}


class ConfigScope(StrEnum):
    """Where an entry comes from. Of entries with one name, the one of the first scope in this order counts."""

    OWN = "own"
    """A file of this product's own."""
    LOCAL = "local"
    """`~/.claude.json`, for one project."""
    PROJECT = "project"
    """`.mcp.json` in the project: written by whoever wrote the project, so used only when approved."""
    USER = "user"
    """`~/.claude.json`, for all projects."""


class _Entry(BaseModel):
    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class OAuthConfig(_Entry):
    """How to sign in, where the server's own metadata does not say enough."""

    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    callback_port: int | None = Field(None, gt=0, lt=65536)
    """The loopback port of the redirect address, where the authorization server allows only one."""
    xaa: bool = False
    """Cross-app access: show an assertion of the organisation's identity provider instead of asking a person."""
    issuer: str | None = None
    """The authorization server that takes such assertions."""


class TlsConfig(_Entry):
    """TLS of a remote server."""

    verify: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class _ServerConfig(_Entry):
    disabled: bool = False
    include_tools: tuple[str, ...] | None = Field(None, validation_alias=AliasChoices("includeTools", "enabledTools"))
    """Only these tools, by their own names."""
    exclude_tools: tuple[str, ...] = Field((), validation_alias=AliasChoices("excludeTools", "disabledTools"))
    """All but these."""

    @property
    def is_local(self) -> bool:
        return False


class StdioConfig(_ServerConfig):
    """A program on this machine."""

    type: Literal["stdio"] = "stdio"
    command: str = Field(min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    @field_validator("args", "env", mode="before")
    @classmethod
    def _numbers_are_words(cls, value: object) -> object:
        if isinstance(value, list):
            return tuple(_word(one) for one in value)
        return {key: _word(one) for key, one in value.items()} if isinstance(value, dict) else value

    @property
    def is_local(self) -> bool:
        return True


class _RemoteConfig(_ServerConfig):
    url: str
    headers: dict[str, str] = {}
    tls: TlsConfig = TlsConfig()
    oauth: OAuthConfig = OAuthConfig()

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        scheme, separator, rest = value.partition("://")
        if not separator or not rest or scheme not in {"http", "https", "ws", "wss"}:
            raise ValueError("must be an http(s) or ws(s) address")
        return value


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
    """What the IDE wants to be shown; unset, it is read from the lock file that the IDE wrote."""


class SseIdeConfig(_IdeConfig):
    """An IDE extension over server-sent events."""

    type: Literal["sse-ide"]


class WebSocketIdeConfig(_IdeConfig):
    """An IDE extension over a WebSocket."""

    type: Literal["ws-ide"]


class SdkConfig(_ServerConfig):
    """A server in this very process, known by name."""

    type: Literal["sdk"]
    name: str | None = None

    @property
    def is_local(self) -> bool:
        return True


IdeConfig = SseIdeConfig | WebSocketIdeConfig


RemoteConfig = HttpConfig | SseConfig | WebSocketConfig | IdeConfig


ServerConfig = StdioConfig | RemoteConfig | SdkConfig


_ADAPTER: TypeAdapter[ServerConfig] = TypeAdapter(Annotated[ServerConfig, Field(discriminator="type")])


class InvalidEntry(ValueError):
    """Why an entry cannot be used, in one line."""


def parse_entry(name: str, raw: object, environment: Mapping[str, str]) -> ServerConfig:
    """The configuration of a server. Raises InvalidEntry."""
    if not isinstance(raw, dict):
        raise InvalidEntry("must be an object")
    try:
        entry = expand(raw, environment)
        config = _ADAPTER.validate_python({**entry, "type": _type_of(entry)})
    except MissingVariable as error:
        raise InvalidEntry(str(error)) from None
    except ValidationError as error:
        raise InvalidEntry(_readable(error)) from None
    return _with_ide_tools(name, config)


def fingerprint(name: str, config: ServerConfig) -> str:
    """The same for the same server with the same configuration; tells nothing of what is in it."""
    told = json.dumps([name, config.model_dump(mode="json")], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def allows(config: ServerConfig, tool: str) -> bool:
    """Whether the lists of a server let a tool through."""
    return tool not in config.exclude_tools and (config.include_tools is None or tool in config.include_tools)


def _type_of(entry: Mapping[str, Any]) -> str:
    given = entry.get("type", entry.get("transport"))
    if given is not None:
        return _ALSO_CALLED.get(given, given) if isinstance(given, str) else str(given)
    if "command" in entry:
        return "stdio"
    if "url" in entry:
        return "ws" if str(entry["url"]).startswith(("ws://", "wss://")) else "http"
    raise InvalidEntry("has neither a command nor a url")


def _with_ide_tools(name: str, config: ServerConfig) -> ServerConfig:
    is_ide = name == "ide" or isinstance(config, IdeConfig)
    if is_ide and config.include_tools is None:
        return config.model_copy(update={"include_tools": IDE_TOOLS})
    return config


def _word(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _readable(error: ValidationError) -> str:
    """The first fault, with the field that has it but never with its value, which may be a secret."""
    first = error.errors(include_input=False, include_context=False)[0]
    if first["type"] == "union_tag_invalid":
        return "type must be one of stdio, http, sse, ws, sse-ide, ws-ide, sdk"
    where = ".".join(str(part) for part in first["loc"][1:])
    return f"{where}: {first['msg']}" if where else first["msg"]


_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class MissingVariable(ValueError):
    """A variable is named that is not set and has no default."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the variable {name} is not set and has no default")


def expand(value: Any, environment: Mapping[str, str]) -> Any:
    """The value with the variables in all of its strings replaced, however deep. Raises MissingVariable."""
    if isinstance(value, str):
        # No reference begins behind the last brace. Left in, each beginning of one would be read to the very end.
        end = value.rfind("}") + 1
        return _REFERENCE.sub(lambda found: _value(found, environment), value[:end]) + value[end:]
    if isinstance(value, dict):
        return {key: expand(one, environment) for key, one in value.items()}
    if isinstance(value, list):
        return [expand(one, environment) for one in value]
    return value


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name, default = found.groups()
    value = None if is_own(name) else environment.get(name)  # our own hold tokens, and a file sends them anywhere
    if value is not None and (value or default is None):
        return value
    if default is None:
        raise MissingVariable(name)
    return str(default)
