"""The session options of the `claude_code` tools."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...core.model.options import Preset, SessionOptions, Thinking, ToolPreset
from ...core.model.usage_limits import OnLimit
from .arguments import Arguments, Count


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
    """The session options; only those that are set take effect."""

    written_as: ClassVar[Mapping[str, str]] = {
        "at_message": "resumeSessionAt",
        "executable": "pathToClaudeCodeExecutable",
        "file_checkpointing": "enableFileCheckpointing",
        "output_schema": "outputFormat.schema",
        "persist": "persistSession",
        "turn_timeout": "timeout",
    }

    cwd: str | None = None
    allowed_tools: list[str] | None = Field(
        None, description="Run without asking; with dontAsk, the only tools that run"
    )
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
    on_limit: OnLimit | None = None


_DEFAULT_MODE = "dontAsk"


def session_options(
    arguments: SessionArguments, *, worktree: bool = False, stay_on_machine: bool = False
) -> SessionOptions:
    """The session options from these arguments."""
    prompt, thinking = arguments.system_prompt, arguments.thinking
    return SessionOptions(
        cwd=arguments.cwd,
        allowed_tools=tuple(arguments.allowed_tools or ()),
        disallowed_tools=tuple(arguments.disallowed_tools or ()),
        tools=ToolPreset() if isinstance(arguments.tools, ToolsPreset) else _tuple(arguments.tools),
        persist=arguments.persist_session is not False,
        permission_mode=arguments.permission_mode or _DEFAULT_MODE,
        max_turns=arguments.max_turns,
        model=arguments.model,
        system_prompt=Preset(append=prompt.append) if isinstance(prompt, SystemPromptPreset) else prompt,
        agents=arguments.agents,
        max_budget_usd=arguments.max_budget_usd,
        effort=arguments.effort,
        betas=tuple(arguments.betas or ()),
        additional_directories=tuple(arguments.additional_directories or ()),
        output_schema=arguments.output_format.schema_ if arguments.output_format else None,
        thinking=thinking and Thinking(type=thinking.type, budget_tokens=thinking.budget_tokens),
        executable=arguments.path_to_claude_code_executable,
        agent=arguments.agent,
        mcp_servers=arguments.mcp_servers,
        hub_servers=_tuple(arguments.hub_servers),
        sandbox=arguments.sandbox,
        fallback_model=arguments.fallback_model,
        file_checkpointing=bool(arguments.enable_file_checkpointing),
        include_partial_messages=arguments.include_partial_messages is not False,
        strict_mcp_config=bool(arguments.strict_mcp_config),
        setting_sources=_tuple(arguments.setting_sources),
        debug=bool(arguments.debug),
        debug_file=arguments.debug_file,
        env=arguments.env or {},
        on_limit=arguments.on_limit,
        worktree=worktree,
        stay_on_machine=stay_on_machine,
    )


_OPTION_NAMES = {
    "persist_session": "persist",
    "output_format": "output_schema",
    "path_to_claude_code_executable": "executable",
    "enable_file_checkpointing": "file_checkpointing",
}


def resume_options(arguments: SessionArguments) -> SessionOptions:
    """The options for a session that is resumed from disk: arguments of the call override the recorded options;
    defaults apply only to options that are not recorded."""
    full = session_options(arguments)
    options_set = {
        _OPTION_NAMES.get(name, name) for name in arguments.model_fields_set if getattr(arguments, name) is not None
    }
    return SessionOptions.model_construct(_fields_set=options_set & full.model_fields_set, **dict(full))


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
