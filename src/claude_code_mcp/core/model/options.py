"""The options of a session."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .usage_limits import OnLimit
from .worktree import Worktree


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Preset(_Strict):
    """A system prompt that starts from one of Claude Code's."""

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
"""The mode without permission checks; refused unless it was switched on."""
DIRECTORY_NAMES = ("workingDirectory", "cwd", "projectDirectory")
"""Names of the argument for the session's directory: every tool accepts all of them."""
PERMISSION_MODES = ("default", "acceptEdits", "plan", "dontAsk", "auto", BYPASS)
"""In the order in which they are shown."""


class SessionOptions(_Strict):
    """Options of one session, kept for every resume."""

    cwd: str | None = None
    worktree: bool | Worktree = False
    """In a request: whether the session works in its own git worktree. In a session that has one: the worktree."""
    model: str | None = Field(default=None, min_length=1)
    fallback_model: str | None = Field(default=None, min_length=1)
    permission_mode: str | None = None
    dangerously_skip_permissions: bool = False
    ask: bool = True
    """Whether questions come to us. If not, the CLI denies everything that needs a permission."""
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
    """Servers of the hub that the session gets; unset: all of them."""
    setting_sources: tuple[str, ...] | None = None
    sandbox: Mapping[str, Any] | None = None
    file_checkpointing: bool = False
    include_partial_messages: bool = True
    persist: bool = True
    on_limit: OnLimit | None = None
    """What happens at a usage limit: the turn ends (also None), or the session continues after the reset."""
    stay_on_machine: bool = False
    """In a fleet, whether the session stays on its machine: not copied, not taken over, not bound by the machine's
    lease."""
    debug: bool = False
    debug_file: str | None = None
    executable: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
