"""Checks the options and prompts of a session against the caller's profile.

Mentions (`@path`) and slash commands in a prompt are recognized at least as broadly as by any supported version of
Claude Code; the worst effect of a false match is a refusal. The time is linear in the length of the prompt.

Errors name the field: PermissionDenied if the policy forbids it, InvalidArgument if the request is invalid.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ..errors import ENABLE_BYPASS, ClaudeCodeError, InvalidArgument, PermissionDenied
from ..model.options import BYPASS, SessionOptions, ToolPreset
from ..model.paths import HERE, PathRules
from ..model.question import MAX_RULE
from ..model.usage_limits import OnLimit
from .policy import AFTER_PLAN, MODE_LADDER, NEVER_SET, Limits, Profile
from .rules import MAX_PATH, Decision, Resolve, ToolCall, judge, names_tool, same_family

_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]*"
)
_COMMAND = re.compile(r"/([^\s/]+)(?=\s|$)")
# At the beginning, or after a space or a non-ASCII character: an address such as me@example.org is not a mention.
_QUOTED = re.compile(r'(?<![!-~])@"([^"]+)"')
_MENTION = re.compile(r"(?<![!-~])@([^\s\"]\S*)")
_OF_A_WORD = re.compile(r"[A-Za-z0-9_]")
_SERVER = re.compile(r"([\w.-]+):.")


def slash_command(prompt: str) -> str | None:
    """The name of the command that a prompt begins with; None if it begins with something else, such as a path."""
    beginning = _INVISIBLE.match(prompt)
    found = _COMMAND.match(prompt, beginning.end() if beginning is not None else 0)
    return None if found is None else found[1]


def mentioned_paths(prompt: str) -> Iterator[str]:
    """Everything after an `@` that could be a path: as written, without trailing punctuation, and without a line
    range."""
    for found in _QUOTED.finditer(prompt):
        yield from _readings(found[1])
    for word in _mentions(prompt):
        yield from _readings(word)


def mentioned_servers(prompt: str) -> Iterator[str]:
    """The names before the colon in mentions such as `@server:resource`."""
    for word in _mentions(prompt):
        found = _SERVER.match(word)
        if found is not None:
            yield found[1]


def _mentions(prompt: str) -> Iterator[str]:
    for found in _MENTION.finditer(prompt):
        yield found[1]


def _readings(written: str) -> Iterator[str]:
    for reading in (written, written.partition("#")[0]):
        yield reading
        last = _OF_A_WORD.search(reading[::-1])
        yield reading[: len(reading) - last.start()] if last is not None else ""


Number = TypeVar("Number", int, float)
MAX_RULES = 20
"""The maximum number of rules in one allowance for the session; every interface can show this many."""
_SAME_MODE = {"manual": "default"}
_TIGHTER_SANDBOX: Mapping[str, Any] = {
    "enabled": True,
    "autoAllowBashIfSandboxed": False,
    "allowUnsandboxedCommands": False,
    "network": {"deniedDomains": ...},
    "filesystem": {"denyRead": ..., "denyWrite": ...},
}
"""The settings of Claude Code's own sandbox that a caller may choose, with the only accepted value if there is one. Any
other setting could override the operator's settings, or let commands run without a question."""
_SERVER_PROGRAMS = ("command", "headersHelper")
"""The fields in which the definition of an MCP server names a program, for all types."""
_SANDBOX_PROGRAMS = ("ripgrep", "bwrapPath", "socatPath")
_MAX_MENTIONED = 2000
"""Maximum paths mentioned in one prompt, because each is looked up on the disk."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One caller's profile and the functions that apply it."""

    profile: Profile
    resolve: Resolve
    default_directory: str
    bypass_on: bool = False
    """Whether a person has switched bypassing on."""
    paths: PathRules = HERE
    exists: Callable[[str], bool] = lambda path: True
    """Whether a path exists."""
    checks: Sequence[Callable[[SessionOptions], None]] = ()
    """Called with the admitted options; each may raise PermissionDenied."""

    @property
    def limits(self) -> Limits:
        return self.profile.limits

    def turn_time(self, seconds: float | None) -> float | None:
        """The timeout of a turn, if the caller sets one; PermissionDenied above the limit."""
        return None if seconds is None else within("timeout", seconds, self.limits.turn_seconds)

    def admit(self, options: SessionOptions, cwd: str | None = None) -> SessionOptions:
        """The options to run with; `cwd` overrides their directory. Idempotent: admitting admitted options changes
        nothing."""
        profile, limits = self.profile, self.profile.limits
        cwd = options.cwd if cwd is None else cwd
        base = cwd or self.default_directory
        changes: dict[str, Any] = {"cwd": cwd}

        if options.executable is not None and not profile.executable:
            raise _denied("executable", "you may not name an executable")
        self._check_servers("mcp_servers", options.mcp_servers or {})
        for name in options.env if profile.env is not None else ():
            if not may_set(name, profile.env or ()):
                raise _denied("env", f"you may not set {name[:100]!r}")
        self._check_agents(options.agents or {}, base)

        if profile.roots is not None:
            # The resolved paths, so that a link that changes later has no effect.
            changes["cwd"] = inside = self.inside("cwd", base, self.default_directory)
            changes["additional_directories"] = tuple(
                self.inside("additional_directories", directory, inside) for directory in options.additional_directories
            )
            changes["debug_file"] = options.debug_file and self.inside("debug_file", options.debug_file, inside)

        if options.dangerously_skip_permissions:
            self._check_bypass("dangerously_skip_permissions")
        if profile.mode_ceiling != BYPASS or options.permission_mode is not None:
            # Always set below a ceiling: otherwise a settings file could choose the mode.
            changes["permission_mode"] = options.permission_mode or profile.careful_mode
            self.check_mode("permission_mode", changes["permission_mode"])

        changes.update(self._tools(options))

        changes["max_turns"] = within("max_turns", options.max_turns, limits.turns)
        changes["max_budget_usd"] = within("max_budget_usd", options.max_budget_usd, limits.session_usd)
        changes["turn_timeout"] = within("turn_timeout", options.turn_timeout, limits.turn_seconds)
        changes["on_limit"] = self.on_limit(options.on_limit)

        sources = profile.sources
        if sources is not None:
            changes["setting_sources"] = sources if options.setting_sources is None else options.setting_sources
            for source in changes["setting_sources"]:
                if source not in sources:
                    raise _denied("setting_sources", f"the settings of {source!r} may not be used")

        # Claude Code's own sandbox for commands, which applies in addition to the profile's isolation.
        for name in _SANDBOX_PROGRAMS if not profile.executable else ():
            if name in (options.sandbox or {}):
                raise _denied(f"sandbox.{name}", "you may not name programs to run")
        if options.sandbox is not None and profile.mode_ceiling != BYPASS:
            _check_only_tightens("sandbox", options.sandbox, _TIGHTER_SANDBOX)
            asked = {"autoAllowBashIfSandboxed": False, "allowUnsandboxedCommands": False}
            changes["sandbox"] = {**options.sandbox, **asked}

        admitted = options.model_copy(update=changes)
        for check in self.checks:
            check(admitted)
        return admitted

    # -- directories ------------------------------------------------------------------------------------------

    def inside(self, field: str, path: str, base: str) -> str:
        """The resolved path. PermissionDenied if it is outside the roots, InvalidArgument if it is not a usable
        path."""
        if "\0" in path:
            raise InvalidArgument(f"{field}: a path cannot contain a NUL character.", field=field)
        if len(path) > MAX_PATH:
            raise InvalidArgument(f"{field}: a path has at most {MAX_PATH} characters.", field=field)
        # Before it is resolved: on Windows a path may depend on the
        # current directory of a drive, which is not the session's.
        joined = self.paths.joined(base, path)
        if joined is None:
            raise InvalidArgument(
                f"{field}: {path!r} is relative to the current directory of a drive; use a full path.", field=field
            )
        # Links are resolved before the comparison: a link inside a root may lead out of it.
        resolved = self.resolve(joined)
        roots = [self.resolve(self.default_directory if root == "." else root) for root in self.profile.roots or ()]
        if self.profile.roots is not None and all(self.paths.below(resolved, root) is None for root in roots):
            raise _denied(field, f"{path!r} is outside the directories that you may use")
        return resolved

    # -- permission mode --------------------------------------------------------------------------------------

    def check_mode(self, field: str, mode: str) -> None:
        """PermissionDenied for a mode above the ceiling."""
        if mode == BYPASS:
            self._check_bypass(field)
        step = _SAME_MODE.get(mode, mode)
        if self.profile.mode_ceiling == BYPASS:
            return
        if step not in MODE_LADDER:
            raise InvalidArgument(f"{field}: {mode!r} is not one of {', '.join(MODE_LADDER)}.", field=field)
        if MODE_LADDER.index(step) > MODE_LADDER.index(self.profile.mode_ceiling):
            raise _denied(
                field, f"{mode!r} allows more than {self.profile.mode_ceiling!r}, the most permissive mode for you"
            )

    def modes_after_plan(self) -> tuple[tuple[str, ...], str | None]:
        """The modes that may be chosen when a plan is approved, and the default. A default of None leaves the choice to
        Claude Code, which may take it from a settings file; so it is used only without a ceiling."""
        ceiling = MODE_LADDER.index(self.profile.mode_ceiling)
        modes = tuple(mode for mode in AFTER_PLAN if MODE_LADDER.index(mode) <= ceiling)
        return modes, None if self.profile.mode_ceiling == BYPASS else self.profile.careful_mode

    def _check_bypass(self, field: str) -> None:
        if self.profile.bypass == "never" or self.profile.mode_ceiling != BYPASS:
            raise _denied(field, "the policy never allows bypassing permissions")
        if self.profile.bypass == "confirm" and not self.bypass_on:
            raise _denied(field, "bypassing permissions is switched off", remedy=ENABLE_BYPASS)

    # -- tools and programs -----------------------------------------------------------------------------------

    def _tools(self, options: SessionOptions) -> dict[str, Any]:
        # Claude Code itself refuses these too, in every mode, even without asking.
        refused = tuple(dict.fromkeys((*options.disallowed_tools, *map(str, self.profile.deny))))
        if self.profile.answers == "person":
            # Only a person may answer questions, so callers must not allow tools in advance.
            known = {str(rule) for rule in self.profile.allow}
            for rule in options.allowed_tools:
                if rule not in known:
                    raise _denied(
                        "allowed_tools", f"{rule[:200]!r} would run without asking, and only a person may allow it"
                    )
        if self.profile.tools is None:
            return {"disallowed_tools": refused}
        self._check_tools("allowed_tools", (_tool_of(rule) for rule in options.allowed_tools))
        built_in = tuple(name for name in self.profile.tools if not name.startswith("mcp__"))
        if isinstance(options.tools, tuple):
            self._check_tools("tools", options.tools)
            built_in = options.tools
        mcp_tools = any(name.startswith("mcp__") or name == "*" for name in self.profile.tools)
        tools: object = ToolPreset() if "*" in built_in else built_in
        strict = options.strict_mcp_config or not mcp_tools
        return {"disallowed_tools": refused, "tools": tools, "strict_mcp_config": strict}

    def _check_tools(self, field: str, names: Iterable[str]) -> None:
        for name in names if self.profile.tools is not None else ():
            if not any(names_tool(allowed, name) for allowed in self.profile.tools or ()):
                raise _denied(field, f"you may not use the tool {name!r}")

    def _check_servers(self, field: str, servers: Mapping[str, Any]) -> None:
        for name, server in servers.items():
            kind = str(server.get("type", "stdio")) if isinstance(server, Mapping) else "unreadable"
            # A definition that names a program starts it, whatever its type.
            starts = isinstance(server, Mapping) and not set(_SERVER_PROGRAMS).isdisjoint(server)
            kinds = {kind, "stdio"} if starts else {kind}
            if not kinds <= set(self.profile.mcp_servers):
                raise _denied(field, f"you may not add {name!r}, an MCP server of type {kind!r}")
            self._check_tools(field, (f"mcp__{name}__tool",))

    def _check_agents(self, agents: Mapping[str, Any], cwd: str) -> None:
        """Check agents, which can have their own mode, tools, servers, hooks and first prompt."""
        for name, agent in agents.items():
            field = f"agents.{name}"
            if not isinstance(agent, Mapping):
                raise InvalidArgument(f"{field}: must be an object.", field=field)
            if agent.get("hooks") and not self.profile.executable:
                raise _denied(f"{field}.hooks", "you may not name programs to run")
            if agent.get("permissionMode") is not None:
                self.check_mode(f"{field}.permissionMode", str(agent["permissionMode"]))
            self.check_prompt(f"{field}.initialPrompt", str(agent.get("initialPrompt") or ""), cwd)
            self._check_tools(f"{field}.tools", (_tool_of(str(rule)) for rule in _as_sequence(agent.get("tools"))))
            for servers in _as_sequence(agent.get("mcpServers")):
                self._check_servers(f"{field}.mcpServers", servers if isinstance(servers, Mapping) else {})

    # -- prompts ----------------------------------------------------------------------------------------------

    def check_prompt(self, field: str, prompt: str, cwd: str) -> None:
        """PermissionDenied for a prompt that makes Claude Code run a slash command, or read a file or resource
        mentioned with `@`, that the policy does not allow."""
        command, listed = slash_command(prompt), self.profile.slash_commands
        if command is not None:
            if command.startswith("mcp__"):
                refused = self._is_refused(command, {}, self.default_directory)
            else:
                refused = listed is not None and command not in listed
            if refused:
                allowed = ", ".join(f"/{name}" for name in listed or ()) or "none"
                hint = "If you mean a path or a text, do not begin the prompt with it"
                raise _denied(field, f"you may not use the command /{command[:100]} (allowed: {allowed}). {hint}")
        if self.profile.limits_reading:
            written = dict.fromkeys(mentioned_paths(prompt))
            mentioned = [path for path in written if path and len(self.paths.normal(path)) <= MAX_PATH]
            # Before any of them is looked up, so that a prompt cannot keep the disk busy.
            if len(mentioned) > _MAX_MENTIONED:
                raise _denied(field, f"it mentions more than {_MAX_MENTIONED} files with @")
            for path in mentioned:
                if not self._may_read(path, cwd):
                    hint = "Leave out the @: Claude then asks before it reads the file"
                    raise _denied(field, f"@{path[:200]} is a file that you may not read. {hint}")
        for server in dict.fromkeys(mentioned_servers(prompt)):
            if self._is_refused(f"mcp__{server}__resource", {}, cwd):
                raise _denied(field, f"you may not use the MCP server {server!r}, mentioned with @")

    def _may_read(self, path: str, cwd: str) -> bool:
        """Whether a mentioned path may be read; true for a missing file, since nothing is read. Claude Code removes
        each `..` together with the name before it; the system resolves that name first, and it may be a link. Both
        results are checked."""
        if len(path) > MAX_PATH:
            return False  # Claude Code removes every `..`, and the result may be short enough to be read
        if path.startswith("~/"):
            path = self.resolve("~") + path[1:]
        joined = self.paths.joined(cwd, path)
        if "\0" in path or joined is None:
            return True
        for place in dict.fromkeys((joined, self.paths.normal(joined))):
            if not self.exists(place):
                continue
            try:
                self.inside("prompt", place, cwd)
            # InvalidArgument is not caught: it tells the caller what is wrong with the path itself.
            except PermissionDenied:
                return False
            if self._is_refused("Read", {"file_path": place}, cwd):
                return False
        return True

    def readable(self, field: str, path: str, cwd: str) -> str:
        """The resolved path. PermissionDenied if it is outside the roots, or if a rule denies reading it."""
        resolved = self.inside(field, path, cwd)
        for name in (path, resolved):
            if self._is_refused("Read", {"file_path": name}, cwd):
                raise _denied(field, f"{path[:200]!r} is a file that you may not read")
        return resolved

    def readable_directory(self, field: str, path: str, base: str) -> str:
        """The resolved path. PermissionDenied if it is outside the roots, or if a rule denies reading the directory or
        the files in it."""
        resolved = self.inside(field, path, base)
        if any(self._is_refused("Read", {"file_path": name}, base) for name in (path, resolved, f"{resolved}/file")):
            raise _denied(field, f"{path[:200]!r} is a directory that you may not read")
        return resolved

    def _is_refused(self, tool: str, arguments: Mapping[str, Any], cwd: str) -> bool:
        call = ToolCall(tool, arguments, cwd, self.resolve, self.paths)
        return judge(call, (), self.profile.deny_rules, self.profile.tools).decision is Decision.DENY

    # -- limits -----------------------------------------------------------------------------------------------

    def on_limit(self, wanted: OnLimit | None) -> OnLimit | None:
        """The behavior of a session at a usage limit; PermissionDenied if it may not wait."""
        if wanted == "wait" and self.profile.on_limit == "end":
            raise _denied("on_limit", "the policy does not let sessions wait for a usage limit")
        return wanted or self.profile.on_limit

    # -- while it runs ----------------------------------------------------------------------------------------

    def suggestions(self, offered: Sequence[Mapping[str, Any]], cwd: str) -> list[Mapping[str, Any]]:
        """The suggestions that "allow for this session" may apply: those that only allow more and stay within the
        ceiling of modes and roots. Claude Code makes no suggestions of other kinds, such as removing a denial."""
        return [
            suggestion
            for suggestion in offered
            if isinstance(suggestion, Mapping) and self._within_ceiling(suggestion, cwd)
        ]

    def offers(self, offered: object, tool: str, tool_input: Mapping[str, Any], cwd: str) -> list[Mapping[str, Any]]:
        """The suggestions of a frame that a person may grant with the answer to a question about a call.

        A command of the session may have written the frame. So the suggestions are rebuilt from the fields that are
        understood: everything that is granted is shown, and concerns this call. A rule must be for the tool in
        question, or for files that it reads. A text too long to be shown must be part of the call, which is shown. With
        more than `MAX_RULES` rules, no suggestion is offered.
        """
        found = self.suggestions(offered if isinstance(offered, list) else [], cwd)
        parts: list[Mapping[str, Any]] = [
            part for each in found if (part := _understood(each, tool, tool_input)) is not None
        ]
        return parts if sum(len(part.get("rules", ())) for part in parts) <= MAX_RULES else []

    def _within_ceiling(self, suggestion: Mapping[str, Any], cwd: str) -> bool:
        try:
            match suggestion.get("type"):
                case "addRules":
                    return suggestion.get("behavior") == "allow"
                case "setMode":
                    self.check_mode("suggestion", str(suggestion.get("mode")))
                case "addDirectories":
                    for directory in _as_sequence(suggestion.get("directories")):
                        self.inside("suggestion", str(directory), cwd)
                # A command of the session may have written the frame:
                # only known kinds are offered.
                case _:
                    return False
        except ClaudeCodeError:
            return False
        return True


def _understood(suggestion: Mapping[str, Any], tool: str, tool_input: Mapping[str, Any]) -> dict[str, Any] | None:
    """A suggestion rebuilt from the fields read here; None if Claude Code would not make it for this call."""
    match suggestion:
        case {"type": "setMode", "mode": str(mode)}:
            return {"type": "setMode", "mode": mode}
        case {"type": "addDirectories", "directories": [*directories]} if all(map(_is_shown_whole, directories)):
            return {"type": "addDirectories", "directories": directories}
        case {"type": "addRules", "rules": [*rules]}:
            parts = [_offered_rule(rule, tool, tool_input) for rule in rules]
            known = [part for part in parts if part is not None]
            # All or none: a part of the rules may allow something other than all of them together.
            return {"type": "addRules", "behavior": "allow", "rules": known} if known == parts != [] else None
    return None


def _is_shown_whole(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_RULE


def _offered_rule(rule: object, tool: str, tool_input: Mapping[str, Any]) -> dict[str, str] | None:
    match rule:
        case {"toolName": str(name), "ruleContent": str(content)}:
            spelled = content.removesuffix("*").rstrip(" :")
            whole = _is_shown_whole(content) or any(spelled in str(value) for value in tool_input.values())
            fits = same_family(name, tool) or (name == "Read" and bool(content.strip("/* ")))
            return {"toolName": name, "ruleContent": content} if whole and fits else None
        case {"toolName": str(name), "ruleContent": None} if name == tool:
            return {"toolName": name}
        case {"toolName": str(name), **more} if "ruleContent" not in more and name == tool:
            return {"toolName": name}
    return None


# -- records of other machines -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """A part of a session's options that decides which program runs."""

    field: str
    option: str
    """The option that contains it."""
    line: str | None = None
    """The program as a shell command; None if no rule could match it."""


def programs_named(options: SessionOptions) -> Iterator[NamedProgram]:
    """Everything in a session's options that decides which program runs, or which file a program writes session output
    to. New options of this kind must be added here."""
    if options.executable is not None:
        yield NamedProgram("executable", "executable", shlex.quote(options.executable))
    if options.debug_file is not None:
        yield NamedProgram("debug_file", "debug_file")
    yield from _decisive_variables("env", "env", options.env)
    for name in options.sandbox or ():
        if name in _SANDBOX_PROGRAMS:
            yield NamedProgram(f"sandbox.{name}", "sandbox")
    for name, server in (options.mcp_servers or {}).items():
        yield from _programs_of_server(f"mcp_servers.{name}", "mcp_servers", server)
    for name, definition in (options.agents or {}).items():
        agent = definition if isinstance(definition, Mapping) else {"hooks": definition}
        if agent.get("hooks"):
            yield NamedProgram(f"agents.{name}.hooks", "agents")
        for servers in _as_sequence(agent.get("mcpServers")):
            for server in servers.values() if isinstance(servers, Mapping) else ():
                yield from _programs_of_server(f"agents.{name}.mcpServers", "agents", server)


def _programs_of_server(field: str, option: str, server: object) -> Iterator[NamedProgram]:
    if not isinstance(server, Mapping):
        yield NamedProgram(field, option)
        return
    variables = server.get("env")
    yield from _decisive_variables(f"{field}.env", option, variables if isinstance(variables, Mapping) else {})
    if "headersHelper" in server:
        yield NamedProgram(f"{field}.headersHelper", option, str(server["headersHelper"]))
    if "command" in server or server.get("type", "stdio") == "stdio":
        arguments = (server.get("command"), *_as_sequence(server.get("args")))
        yield NamedProgram(field, option, shlex.join(map(str, arguments)))


def _decisive_variables(field: str, option: str, variables: Mapping[str, Any]) -> Iterator[NamedProgram]:
    for name in variables:
        if any(fnmatchcase(name.upper(), never) for never in NEVER_SET):
            yield NamedProgram(f"{field}.{name[:100]}", option)


def within(field: str, requested: Number | None, ceiling: Number | None) -> Number | None:
    """The requested amount, or the ceiling if none was requested. PermissionDenied above the ceiling."""
    if ceiling is None or requested is None:
        return ceiling if requested is None else requested
    # Every comparison with NaN is false, so it would pass the check against the ceiling.
    if requested > ceiling or (isinstance(requested, float) and math.isnan(requested)):
        raise _denied(field, f"{requested:g} is more than the {ceiling:g} that the operator's policy allows you")
    return requested


def may_set(name: str, patterns: Sequence[str]) -> bool:
    """Whether a caller may set a variable. Case is ignored, as it is by some systems and programs."""
    # First: an exact name in the policy allows even a variable that no pattern covers.
    if name in patterns:
        return True
    upper = name.upper()
    if any(fnmatchcase(upper, never) for never in NEVER_SET):
        return False
    return any(fnmatchcase(upper, pattern.upper()) for pattern in patterns)


def _check_only_tightens(field: str, requested: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
    for name, value in requested.items():
        path, permitted = f"{field}.{name}", allowed.get(name)
        if isinstance(permitted, Mapping) and isinstance(value, Mapping):
            _check_only_tightens(path, value, permitted)
        # By identity: 1 and 0 are equal to true and false here, but not to Claude Code.
        elif permitted is not ... and (permitted is None or value is not permitted):
            raise _denied(path, "you may only make the sandbox stricter")


def _tool_of(rule: str) -> str:
    return rule.partition("(")[0].strip()


def _as_sequence(value: object) -> Sequence[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value if isinstance(value, list | tuple) else () if value is None else (value,)


def _denied(field: str, reason: str, **data: str) -> PermissionDenied:
    return PermissionDenied(f"{field}: {reason}.", field=field, **data)
