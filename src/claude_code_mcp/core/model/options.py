"""What a caller may ask of a session, with the small values that go with it: images, its worktree, its id; and who
makes a call, and where their client is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .usage_limits import OnLimit


class Worktree(BaseModel):
    """A checkout of its own with a branch of its own, made for a session. All paths are absolute and real."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    branch: str
    base: str
    """The commit that it began with."""
    into: str | None = None
    """The branch that was checked out where it began, into which it is merged; None for a detached HEAD."""
    repository: str
    """The checkout that it began in, and is merged into."""
    common_dir: str
    """The directory of the repository that all its checkouts share."""
    git_dir: str
    """What git keeps of this worktree alone. Named to git in every later call: the `.git` file in the worktree is as
    easily changed as any other file there."""


# -- options ----------------------------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Preset(_Strict):
    """A system prompt that starts from one of Claude Code's own."""

    type: Literal["preset"] = "preset"
    preset: Literal["claude_code"] = "claude_code"
    append: str | None = None


class ToolPreset(_Strict):
    """The default set of built-in tools."""

    type: Literal["preset"] = "preset"
    preset: Literal["claude_code"] = "claude_code"


class Thinking(_Strict):
    """Extended thinking: left to the model, with a budget, or off."""

    type: Literal["adaptive", "enabled", "disabled"]
    budget_tokens: int | None = Field(default=None, gt=0)


BYPASS = "bypassPermissions"
"""The mode in which nothing is asked; refused unless it was switched on."""
DIRECTORY_NAMES = ("workingDirectory", "cwd", "projectDirectory")
"""The names of the argument that is a session's directory: clients use any of them with every tool."""
PERMISSION_MODES = ("default", "acceptEdits", "plan", "dontAsk", "auto", BYPASS)
"""In the order in which people are offered them."""


class SessionOptions(_Strict):
    """Options of one session, kept for every resume of it."""

    cwd: str | None = None
    worktree: bool | Worktree = False
    """Asked for: whether the session works in a git worktree of its own. Of a session that has one: which."""
    model: str | None = Field(default=None, min_length=1)
    fallback_model: str | None = Field(default=None, min_length=1)
    permission_mode: str | None = None
    dangerously_skip_permissions: bool = False
    ask: bool = True
    """Whether questions come to us; off, the CLI denies whatever would need asking."""
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    tools: tuple[str, ...] | ToolPreset | None = None
    max_turns: int | None = Field(default=None, gt=0)
    max_budget_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    turn_timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds that one turn may take before it is interrupted."""
    system_prompt: str | Preset | None = None
    append_system_prompt: str | None = None
    agents: Mapping[str, Any] | None = None
    agent: str | None = None
    effort: str | None = None
    thinking: Thinking | None = None
    betas: tuple[str, ...] = ()
    additional_directories: tuple[str, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    mcp_servers: Mapping[str, Mapping[str, Any]] | None = None
    strict_mcp_config: bool = False
    hub_servers: tuple[str, ...] | None = None
    """Which servers of the hub the session gets; unset, all of them."""
    setting_sources: tuple[str, ...] | None = None
    sandbox: Mapping[str, Any] | None = None
    file_checkpointing: bool = False
    include_partial_messages: bool = True
    persist: bool = True
    on_limit: OnLimit | None = None
    """What follows a usage limit: the turn ends there (None too), or the session continues after the reset."""
    stay_on_machine: bool = False
    """In a fleet, whether it is its machine's own: not copied, not taken over, and not bound by the machine's lease."""
    debug: bool = False
    debug_file: str | None = None
    executable: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)


# -- image ------------------------------------------------------------------------------------------------------------


MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


PDF = "application/pdf"


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a message, or a PDF document."""

    media_type: str
    data: str
    """In base64."""


def media_type(data: bytes) -> str | None:
    """What kind of image these bytes begin, or PDF; None if it is none that the model takes."""
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    if data.startswith(b"%PDF-"):
        return PDF
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


# -- session ids ------------------------------------------------------------------------------------------------------


# Both cases spelled out and no group: thrice as fast, and every file of a listing is asked.
_HEX = "[0-9a-fA-F]"
_SESSION_ID = re.compile(f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}")


def is_session_id(text: str) -> bool:
    """Whether this has the form of a session id. Nothing else may be made part of a path."""
    return _SESSION_ID.fullmatch(text) is not None


# -- callers -----------------------------------------------------------------------------------------------------------


LOCAL = "local"
"""The principal where nobody else is told apart: the user, who owns the machine and with it every session on it."""


@dataclass(frozen=True, eq=False)
class ClientEnvironment:
    """One client of a server that serves several. Its sessions run in this environment, not in the server's own.

    The variables hold the client's secrets: they are kept in memory, never written to disk and never shown.
    """

    directory: str
    """The client's working directory, absolute."""
    variables: Mapping[str, str] = field(repr=False)
    """All of the client's environment variables."""
    id: str
    """Tells this connection from every other one of the server."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal at a client. Two are equal if they are the same principal at the same connection."""

    principal: str
    """The name under which the policy, budgets and sessions of this person are kept."""
    environment: ClientEnvironment | None = None
    """That of the client; None for a client that has that of this process, as on stdio and over HTTP."""
    key: str = field(init=False, repr=False, compare=False)
    """Tells this caller from others: what a person allows at one client is not allowed at another."""

    def __post_init__(self) -> None:
        key = f"{self.principal}:{self.environment.id}" if self.environment is not None else self.principal
        object.__setattr__(self, "key", key)


LOCAL_CALLER = Caller(LOCAL)

_RESERVED = frozenset({LOCAL, "operator", "unknown", "server"})
_RESERVED_PREFIXES = ("channel:", "group:")


def is_reserved(name: str) -> bool:
    """Whether a name means something to this server, in the audit trail and elsewhere, so that no caller who comes with
    a token can have it."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)
