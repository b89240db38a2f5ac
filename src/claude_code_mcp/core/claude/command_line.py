"""The command line of a Claude Code process, made from the options of its session.

Values that may be long or secret (prompts, agents, MCP servers, rules, settings) go through files, because a command
line is limited in length and visible to everyone. Every value is attached to its flag with `=`, so that none can
pass for a flag of its own.

`build_command` is pure: it names the files and their contents, and writes none. `write_files` writes them into a
private directory, which `ChildProcess` removes when the process has ended.

Grants, permission updates that a person gave for the whole session, are forgotten by the CLI with its process:
`granted_rules` and `with_grants` give them to the next one as settings and options. Updates of unknown types and
malformed ones are left out.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..model.options import Preset, SessionOptions, ToolPreset

_MAX_INLINE = 100_000
"""Maximum bytes of JSON on the command line itself."""
_MAX_ARGUMENT = (128 << 10) - 100
"""Maximum bytes of a value on the command line, with room for its flag: Linux accepts 128 KiB per argument."""
_USUAL_RULE = re.compile(
    r"[A-Z][A-Za-z]*|mcp__[\w-]+\*?|Bash\([^():*\0][^():\0]*(?::\*)?\)"
    r"|(?:Read|Edit|Write|Glob|NotebookEdit)\([^():\0]+\)|WebFetch\(domain:[\w.*-]+\)"
)
"""Rules that every version accepts in a settings file. Early versions drop the whole file, including the sandbox, for
one invalid rule: other rules go on the command line, where they are ignored at worst."""
_VALUE_FLAGS = {
    "permission_mode": "permission-mode",
    "model": "model",
    "fallback_model": "fallback-model",
    "effort": "effort",
    "max_turns": "max-turns",
    "agent": "agent",
    "debug_file": "debug-file",
}
"""Options with one value, and their flags."""
_LIST_FLAGS = {"additional_directories": "add-dir", "betas": "betas"}
"""Options with several values, and the flag that each value gets."""
_SWITCHES = {
    "dangerously_skip_permissions": "--dangerously-skip-permissions",
    "strict_mcp_config": "--strict-mcp-config",
    "include_partial_messages": "--include-partial-messages",
    "debug": "--debug",
}
_STREAMS = ("-p", "--output-format=stream-json", "--input-format=stream-json", "--verbose")


@dataclass(frozen=True, slots=True)
class ConversationStart:
    """How the conversation begins: empty, or from another session's transcript."""

    session_id: str
    resume: str | None = None
    at_message: str | None = None
    api_ms: int = 0
    """The API time from which the CLI continues to count."""

    @property
    def fork(self) -> bool:
        return self.resume is not None and self.resume != self.session_id


@dataclass(slots=True)
class CommandLine:
    """Arguments, the files they refer to, and variables for options without a flag."""

    arguments: list[str] = field(default_factory=list)
    files: dict[Path, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def flag(self, name: str, value: object) -> None:
        self.arguments.append(f"--{name}={value}")

    def file(self, name: str, path: Path, content: str) -> None:
        self.files[path] = content
        self.flag(name, path)


def build_command(
    options: SessionOptions,
    opening: ConversationStart,
    directory: Path,
    *,
    budget: float | None = None,
    rules: Mapping[str, Sequence[str]] | None = None,
    left_out: Sequence[Mapping[str, Any]] = (),
    alone: bool = False,
    variables: Mapping[str, str] | None = None,
    mirrored: bool = False,
) -> CommandLine:
    """The command that opens a session; its files belong in `directory`.

    `budget` is the rest of the session's budget, because the CLI counts from its own start. `rules` are permission
    rules by effect (`allow`, `deny`, `ask`), for this process only. `left_out` are MCP servers that the CLI must not
    use from any source: each a `serverCommand` or a `serverUrl`. `alone` makes the CLI refuse messages from other
    Claude Code sessions. `variables` apply to the CLI and its commands regardless of user and project settings.
    `mirrored` makes the CLI report on its output what it writes to its transcripts.
    """
    command = CommandLine([*_STREAMS])
    # A resumed session keeps its id; the CLI refuses an id together with `--resume` unless it forks.
    if opening.resume is None or opening.fork:
        command.flag("session-id", opening.session_id)
    if opening.resume is not None:
        command.flag("resume", opening.resume)
    if opening.fork:
        command.arguments.append("--fork-session")
    if opening.at_message is not None:
        command.flag("resume-session-at", opening.at_message)
    if mirrored:
        command.arguments.append("--session-mirror")

    for name, flag in _VALUE_FLAGS.items():
        if (value := getattr(options, name)) is not None:
            command.flag(flag, value)
    for name, flag in _LIST_FLAGS.items():
        for value in getattr(options, name):
            command.flag(flag, value)
    command.arguments.extend(switch for name, switch in _SWITCHES.items() if getattr(options, name))
    if options.ask:
        command.flag("permission-prompt-tool", "stdio")
    if not options.persist:
        command.arguments.append("--no-session-persistence")

    for name, own_rules in (("allowedTools", options.allowed_tools), ("disallowedTools", options.disallowed_tools)):
        for rule in own_rules:
            if _USUAL_RULE.fullmatch(rule) is None:  # the others are in the settings, see `_settings`
                command.flag(name, rule)
    if options.tools is not None:
        command.flag("tools", "default" if isinstance(options.tools, ToolPreset) else ",".join(options.tools))

    budget = options.max_budget_usd if budget is None else budget
    if budget is not None:
        command.flag("max-budget-usd", budget)
    thinking = options.thinking
    if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is not None:
        command.flag("max-thinking-tokens", thinking.budget_tokens)
    elif thinking is not None:
        command.flag("thinking", thinking.type)
    if options.output_schema is not None:
        command.flag("json-schema", _inline("output_schema", options.output_schema))

    appended = options.append_system_prompt
    if isinstance(options.system_prompt, Preset):
        appended = "\n\n".join(part for part in (options.system_prompt.append, appended) if part) or None
    elif options.system_prompt is not None:
        command.file("system-prompt-file", directory / "system-prompt.txt", options.system_prompt)
    if appended is not None:
        command.file("append-system-prompt-file", directory / "append-system-prompt.txt", appended)
    if options.agents is not None:
        command.file("agents", directory / "agents.json", json.dumps(options.agents))
    if options.mcp_servers is not None:
        command.file("mcp-config", directory / "mcp.json", json.dumps({"mcpServers": options.mcp_servers}))
    if options.setting_sources is not None:
        command.flag("setting-sources", ",".join(options.setting_sources))
    if options.file_checkpointing:
        command.variables["CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"] = "1"

    command.variables.update(variables or {})
    settings = _settings(options, rules or {}, left_out, alone=alone, variables=variables or {})
    if settings:
        command.file("settings", directory / "settings.json", json.dumps(settings))
    for argument in command.arguments:
        if "\0" in argument:
            raise InvalidArgument(f"{argument.split('=')[0]} must not contain a NUL character.")
    return command


def check_inline(options: SessionOptions) -> None:
    """Raises InvalidArgument, with the option's name, for a value that no operating system accepts on a command line.
    Called before a session is accepted; the command itself is built when its process starts."""
    inline: dict[str, Sequence[object]] = {
        **{name: (getattr(options, name),) for name in _VALUE_FLAGS},
        **{name: getattr(options, name) for name in _LIST_FLAGS},
        "allowed_tools": [rule for rule in options.allowed_tools if _USUAL_RULE.fullmatch(rule) is None],
        "disallowed_tools": [rule for rule in options.disallowed_tools if _USUAL_RULE.fullmatch(rule) is None],
        "tools": () if options.tools is None or isinstance(options.tools, ToolPreset) else (",".join(options.tools),),
        "output_schema": () if options.output_schema is None else (_inline("output_schema", options.output_schema),),
        "setting_sources": (",".join(options.setting_sources or ()),),
    }
    for field_name, values in inline.items():
        for value in values:
            if not isinstance(value, str):
                continue
            if "\0" in value:
                raise InvalidArgument(f"{field_name}: must not contain a NUL character.", field=field_name)
            if len(os.fsencode(value)) >= _MAX_ARGUMENT:
                raise InvalidArgument(
                    f"{field_name}: too long for a command line ({len(value)} characters).", field=field_name
                )


def write_files(command: CommandLine, directory: Path) -> Path | None:
    """Writes the files of a command, which was built for this directory, and creates the directory, which must not
    exist. Returns it, or None if the command has no files. If a file cannot be written (OSError), none remains. Blocks
    on the disk."""
    if not command.files:
        return None
    # Fails if it exists: the temporary directory is shared by all users, and another one may have created it.
    directory.mkdir(mode=0o700)
    try:
        for path, content in command.files.items():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content.encode("utf-8", "replace"))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


def _settings(
    options: SessionOptions,
    granted: Mapping[str, Sequence[str]],
    left_out: Sequence[Mapping[str, Any]],
    *,
    alone: bool,
    variables: Mapping[str, str],
) -> dict[str, Any]:
    """What has no flag, or belongs in a file that only this user can read."""
    settings: dict[str, Any] = {"crossSessionInbound": "refuse"} if alone else {}
    if variables:
        # `env` of a settings file replaces the variables a process was started with; this file's `env` comes after a
        # project's.
        settings["env"] = dict(variables)
    if options.sandbox is not None:
        # Without an available sandbox the session must stop instead of silently running without one.
        settings["sandbox"] = {"enabled": True, **options.sandbox, "failIfUnavailable": True}
    # The session's rules and those granted later, by effect.
    own = {"allow": options.allowed_tools, "deny": options.disallowed_tools}
    joined = {name: [*filter(_USUAL_RULE.fullmatch, own.get(name, ())), *granted.get(name, ())] for name in _BEHAVIORS}
    permissions = {name: list(dict.fromkeys(rules)) for name, rules in joined.items() if rules}
    if permissions:
        # As a list, which no character in a rule can split, unlike the flags; and not visible to all users.
        settings["permissions"] = permissions
    if left_out:
        settings["deniedMcpServers"] = [dict(server) for server in left_out]
    return settings


def _inline(name: str, value: Mapping[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":"))
    if len(text.encode()) > _MAX_INLINE:
        raise InvalidArgument(f"{name} is longer than {_MAX_INLINE} bytes.", field=name)
    return text


_BEHAVIORS = ("allow", "deny", "ask")


def granted_rules(grants: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The rules in permission updates, in the notation of settings files, by effect."""
    rules: dict[str, list[str]] = {}
    for grant in grants:
        behavior = grant.get("behavior", "allow")
        if grant.get("type") == "addRules" and behavior in _BEHAVIORS:
            texts = (text for rule in _items(grant.get("rules")) if (text := _rule_text(rule)) is not None)
            rules.setdefault(behavior, []).extend(texts)
    return {behavior: list(dict.fromkeys(texts)) for behavior, texts in rules.items() if texts}


def with_grants(options: SessionOptions, grants: Sequence[Mapping[str, Any]]) -> SessionOptions:
    """The options with the mode and directories from permission updates; the last mode counts."""
    mode, directories = options.permission_mode, list(options.additional_directories)
    for grant in grants:
        if grant.get("type") == "setMode" and isinstance(grant.get("mode"), str):
            mode = grant["mode"]
        elif grant.get("type") == "addDirectories":
            directories.extend(path for path in _items(grant.get("directories")) if isinstance(path, str))
    changes = {"permission_mode": mode, "additional_directories": tuple(dict.fromkeys(directories))}
    return options.model_copy(update=changes)


def _rule_text(rule: object) -> str | None:
    if not isinstance(rule, Mapping) or not isinstance(rule.get("toolName"), str):
        return None
    name, content = rule["toolName"], rule.get("ruleContent")
    if content is None:
        return str(name)
    escaped = str(content).replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"{name}({escaped})"


def _items(value: object) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()
