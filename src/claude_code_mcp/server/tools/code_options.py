"""The many options of a `claude_code` call, and what they mean for a session."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...config import Settings
from ...model.options import Preset, SessionOptions, Thinking, ToolPreset
from .argument_types import Count
from .base import Arguments


class SystemPromptPreset(Arguments):
    type: Literal["preset"]
    preset: Literal["claude_code"]
    append: str | None = None


class ToolsPreset(Arguments):
    type: Literal["preset"]
    preset: Literal["claude_code"]


class ThinkingMode(Arguments):
    type: Literal["adaptive", "enabled", "disabled"]
    budget_tokens: Count | None = None


class OutputFormat(Arguments):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class SessionArguments(Arguments):
    """Everything that shapes a session; only what is set is passed on."""

    written_as: ClassVar[Mapping[str, str]] = {
        "at_message": "resumeSessionAt",
        "executable": "pathToClaudeCodeExecutable",
        "file_checkpointing": "enableFileCheckpointing",
        "output_schema": "outputFormat.schema",
        "persist": "persistSession",
        "turn_timeout": "timeout",
    }

    cwd: str | None = None
    allowed_tools: list[str] | None = Field(None, description="Run without asking; with dontAsk, all that may run")
    disallowed_tools: list[str] | None = None
    tools: list[str] | ToolsPreset | None = None
    persist_session: bool | None = Field(None, description="Keep a transcript (default true)")
    permission_mode: str | None = Field(None, description="Default dontAsk")
    max_turns: Count | None = None
    model: str | None = None
    system_prompt: str | SystemPromptPreset | None = None
    agents: dict[str, Any] | None = None
    max_budget_usd: float | None = Field(None, gt=0)
    effort: str | None = None
    betas: list[str] | None = None
    additional_directories: list[str] | None = None
    output_format: OutputFormat | None = None
    thinking: ThinkingMode | None = None
    path_to_claude_code_executable: str | None = None
    agent: str | None = None
    mcp_servers: dict[str, dict[str, Any]] | None = None
    hub_servers: list[str] | None = None
    sandbox: dict[str, Any] | None = None
    fallback_model: str | None = None
    enable_file_checkpointing: bool | None = None
    include_partial_messages: bool | None = None
    strict_mcp_config: bool | None = None
    setting_sources: list[str] | None = None
    debug: bool | None = None
    debug_file: str | None = None
    env: dict[str, str] | None = None


DEFAULT_MODE = "dontAsk"


def session_options(given: SessionArguments, settings: Settings) -> SessionOptions:
    """The options of the session that these arguments ask for."""
    return SessionOptions(
        cwd=given.cwd or settings.default_cwd,
        allowed_tools=tuple(given.allowed_tools or ()),
        disallowed_tools=tuple(given.disallowed_tools or ()),
        tools=ToolPreset() if isinstance(given.tools, ToolsPreset) else _tuple(given.tools),
        persist=given.persist_session is not False,
        permission_mode=given.permission_mode or DEFAULT_MODE,
        max_turns=given.max_turns,
        model=given.model,
        system_prompt=_system_prompt(given.system_prompt),
        agents=given.agents,
        max_budget_usd=given.max_budget_usd,
        effort=given.effort,
        betas=tuple(given.betas or ()),
        additional_directories=tuple(given.additional_directories or ()),
        output_schema=given.output_format.schema_ if given.output_format else None,
        thinking=_thinking(given.thinking),
        executable=given.path_to_claude_code_executable,
        agent=given.agent,
        mcp_servers=given.mcp_servers,
        hub_servers=_tuple(given.hub_servers),
        sandbox=given.sandbox,
        fallback_model=given.fallback_model,
        file_checkpointing=bool(given.enable_file_checkpointing),
        include_partial_messages=given.include_partial_messages is not False,
        strict_mcp_config=bool(given.strict_mcp_config),
        setting_sources=_tuple(given.setting_sources),
        debug=bool(given.debug),
        debug_file=given.debug_file,
        env=given.env or {},
    )


_NAMES = {
    "persist_session": "persist",
    "output_format": "output_schema",
    "path_to_claude_code_executable": "executable",
    "enable_file_checkpointing": "file_checkpointing",
}


def resume_options(given: SessionArguments, settings: Settings) -> SessionOptions:
    """The same for a session that is resumed: only what the call itself set counts as set, and may go over what is
    recorded of the session. The rest is for a session of which nothing is recorded."""
    full = session_options(given, settings)
    named = {_NAMES.get(name, name) for name in given.model_fields_set if getattr(given, name) is not None}
    return SessionOptions.model_construct(_fields_set=named & full.model_fields_set, **dict(full))


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _system_prompt(given: str | SystemPromptPreset | None) -> str | Preset | None:
    return Preset(append=given.append) if isinstance(given, SystemPromptPreset) else given


def _thinking(given: ThinkingMode | None) -> Thinking | None:
    return None if given is None else Thinking(type=given.type, budget_tokens=given.budget_tokens)
