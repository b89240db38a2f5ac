"""Rules that answer permission questions: `Bash(npm test)`, `Edit(src/**)`, `WebFetch(domain:example.org)`,
`mcp__server__*`. A denial wins over everything; a call that no rule covers is asked about.

The two kinds of rules read a call differently. Allow rules read commands strictly and match them exactly. Deny rules
match broadly: they ignore case and options, and consider everything that might run. Callers resolve paths before
matching.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from itertools import pairwise, takewhile
from typing import Any
from urllib.parse import urlsplit

from ..model.paths import HERE, PathRules
from ..model.tool_names import prefix_of
from .git_commands import option_to_ask_about
from .harmless_commands import TOO_LONG, UNREADABLE, doubt_about, doubt_about_reading, named_files
from .shell import MAX_COMMAND, FileGlob, Words, read_loosely, read_strictly

Resolve = Callable[[str], str]
"""Resolves a path: absolute, `~` expanded, existing symlinks followed. A `..` in the result means that its location is
unknown."""
MAX_PATH = 4096
"""Maximum characters of a path. Longer paths are refused: no common system opens them, and resolving them takes
long."""
_MAX_NAMED_FILES = 50
"""Maximum files in one command line, because each is looked up on the disk."""
_ANY_DEPTH = "**"


def fits(path: str, pattern: str, cwd: str, rules: PathRules = HERE) -> bool:
    """Whether an absolute path matches a pattern: `**` for any depth, `*` and `?` within a name.

    A relative pattern starts at `cwd`; a pattern without a wildcard also matches everything below it. The time is
    linear in the length of the path.
    """
    names: list[str] = rules.parts(path)
    # An unresolved path may lead anywhere; no pattern matches it.
    if ".." in names:
        return False
    absolute = rules.pattern_start(pattern, cwd)
    if absolute is None:
        below = rules.below(path, cwd)
        if below is None:
            return False
        names = names[-len(below) :] if below else ["."]
    expected = rules.parts(absolute or pattern)
    if not set("*?") & set(pattern):
        return names[: len(expected)] == expected
    return _fit(names, expected)


def _fit(names: Sequence[str], expected: Sequence[str]) -> bool:
    """Match name by name. On a mismatch, the last `**` takes one more name; earlier ones never need to."""
    name_at = part_at = 0
    # Where to resume: the first name after those that the last `**` took, and the part after that `**`.
    retry_name = retry_part = -1
    while name_at < len(names):
        if part_at < len(expected) and expected[part_at] == _ANY_DEPTH:
            part_at += 1
            retry_name, retry_part = name_at, part_at
        elif part_at < len(expected) and _word_fits(names[name_at], expected[part_at]):
            name_at, part_at = name_at + 1, part_at + 1
        elif retry_part >= 0:
            retry_name += 1
            name_at, part_at = retry_name, retry_part
        else:
            return False
    return all(part == _ANY_DEPTH for part in expected[part_at:])


_FORM = re.compile(r"([A-Za-z][\w.-]*\*?|\*)(?:\((.+)\))?", re.DOTALL)
_FAMILIES: Mapping[str, frozenset[str]] = {
    "Edit": frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"}),
    "Read": frozenset({"Read", "NotebookRead", "Glob", "Grep", "LS"}),
    "Bash": frozenset({"Bash", "Monitor"}),
}
_FILE_TOOLS = _FAMILIES["Edit"] | _FAMILIES["Read"]
_PATH_FIELDS = ("file_path", "notebook_path", "path")
_NEVER_BY_WILDCARD = frozenset({"AskUserQuestion", "ExitPlanMode"})
_RESOURCE_TOOLS = frozenset({"ListMcpResourcesTool", "ReadMcpResourceTool", "ReadMcpResourceDirTool"})
"""Tools that read MCP servers' resources: of the `server` in their arguments, or of all servers without one."""
SHELL_TOOLS = ("Bash", "Monitor", "PowerShell")
"""The tools that run a command of the model's choice."""
_BEGINS_SUBAGENT = ("Agent", "Task")
ASKED_BY_DIRECTORY = ("EnterWorktree", *_BEGINS_SUBAGENT, *SHELL_TOOLS)
"""The tools with which a session or its subagent changes to another directory without a question from Claude Code; and
the tools whose calls mean something else in another directory."""
_PLACES = ("isolation", "cwd")
"""The arguments that give a subagent another directory."""
_NAMES_PROGRAMS = frozenset(
    {
        *(".claude", ".git", ".mcp.json", ".claude.json", ".gitconfig"),
        *(".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_aliases", ".zshenv", ".zprofile", ".zshrc"),
    }
)
"""Settings of Claude Code and git, and the startup files of shells."""
_HARMLESS = frozenset({"worktrees", "plans", "tasks", "todos", "claude.md"})
"""Entries of Claude Code's directories that name no programs: checkouts, plans, notes."""
_NOTES = ("projects", "memory")
"""Notes on a project, in `projects/NAME/memory`. Tools must not write the transcripts next to them, which record what a
session has done and which files it can be rewound to."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A tool, or the calls of a tool that match a specifier."""

    tool: str
    specifier: str | None = None

    def __str__(self) -> str:
        return self.tool if self.specifier is None else f"{self.tool}({self.specifier})"


class Shell(StrEnum):
    """Which commands sessions may run."""

    FREE = "free"
    LIMITED = "limited"
    """Some commands are denied."""
    NONE = "none"


class Decision(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on a call, and the rule that made it. If a denial could not be ruled out, `doubt` says why, as a
    sentence fragment: then a person must be asked, even if another rule allows the call."""

    decision: Decision
    rule: str = ""
    doubt: str = ""


def combined(first: Verdict, second: Verdict | None) -> Verdict:
    """The verdict that counts if two judges were asked. A denial beats everything and a doubt beats an allowance; an
    allowance answers for a judge that would only have asked."""
    if second is None or first.decision is Decision.DENY:
        return first
    if second.decision is Decision.DENY or second.doubt:
        return second
    return second if first.decision is Decision.ASK and not first.doubt else first


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call of a tool by a session in the directory `cwd`; `resolve` resolves paths."""

    tool: str
    arguments: Mapping[str, Any]
    cwd: str
    resolve: Resolve
    paths: PathRules = HERE
    guarded: Sequence[str] = ()
    """Directories with settings of Claude Code and this server, which name programs."""
    roots: Sequence[str] | None = None
    """Where sessions may work; None means anywhere."""
    hides_denied_files: bool = False
    """Whether commands run in a sandbox in which unreadable files appear empty."""
    subagent_directory: str | None = None
    """The directory of the subagent that makes the call, if it differs from the session's and no rule or person has
    allowed it."""


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises ValueError with the reason if it is invalid."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rule such as Bash(npm test), Edit(src/**) or mcp__server__*")
    tool, specifier = match.groups()
    if specifier is None:
        check_tool_name(tool)
    elif tool == "WebFetch" and not specifier.startswith("domain:"):
        raise ValueError(f"{text!r}: WebFetch takes domain:NAME")
    elif tool not in _FILE_TOOLS | {"Bash", "WebFetch"}:
        raise ValueError(f"{text!r}: {tool} takes no specifier; Bash, WebFetch and the file tools do")
    elif not specifier.strip():
        raise ValueError(f"{text!r}: the specifier is empty")
    elif tool in _FILE_TOOLS and ".." in re.split(r"[/\\]", specifier):
        raise ValueError(f"{text!r}: a path must not contain '..'; one outside the session's directory begins with /")
    return Rule(tool, specifier)


def check_tool_name(name: str) -> None:
    """Raise ValueError unless it is the name of a tool, or a pattern for tools of MCP servers."""
    if not re.fullmatch(r"\*|[A-Za-z][\w.-]*|mcp__[\w.-]*\*?", name):
        raise ValueError(f"{name!r} is not a tool name; patterns work only for MCP tools, as in mcp__server__*")


def names_tool(pattern: str, tool: str) -> bool:
    """Whether a name or pattern matches a tool. `mcp__server` matches all tools of that server."""
    if pattern.startswith("mcp__") and pattern.count("__") == 1:
        pattern += "__*"
    if pattern == "*":
        return tool not in _NEVER_BY_WILDCARD
    return fnmatchcase(tool, pattern) if pattern.startswith("mcp__") else tool == pattern


def covers_server(pattern: str, server: str) -> bool:
    """Whether a name or pattern matches all tools of an MCP server, and so the server itself."""
    return pattern == "*" or (pattern.startswith("mcp__") and names_tool(pattern, prefix_of(server)))


def offers_server(server: str, deny: Sequence[Rule], tools: Sequence[str] | None) -> bool:
    """Whether any tool of an MCP server can be used: not if rules deny the whole server, or if `tools`, the tools that
    exist for the caller, contains none of its tools."""
    if any(rule.specifier is None and covers_server(rule.tool, server) for rule in deny):
        return False
    return tools is None or any(_may_name_tool_of(name, server) for name in tools)


def _may_name_tool_of(pattern: str, server: str) -> bool:
    prefix = prefix_of(server)
    if covers_server(pattern, server):
        return True
    beginning = pattern.removesuffix("*")
    return beginning.startswith(prefix) and beginning != prefix


def judge(
    call: ToolCall,
    allow: Sequence[Rule],
    deny: Sequence[Rule],
    tools: Sequence[str] | None = None,
    shell: Shell = Shell.FREE,
) -> Verdict:
    """The verdict on a call. `tools` are the tools that exist for the caller; None means all.

    In addition to the rules:

    - If the `shell` is not free, writing a file that names programs is restricted: with no shell it is denied, as is
      any write outside the roots; with a limited shell a person is always asked.
    - If rules deny commands, a person is asked about any command that is not known to be harmless.
    - If rules deny reading files, a person is asked about any command that may read files other than its operands.
    - If rules name commands, a person is asked about a change of directory, and about a command in a directory that a
      subagent has changed to without a question, unless a rule allows that.
    """
    if tools is not None and not any(names_tool(name, call.tool) for name in (*tools, *_NEVER_BY_WILDCARD)):
        return Verdict(Decision.DENY, "tools")
    # All rules check the same paths: each is looked up on the disk only once for this call.
    call = replace(call, resolve=cache(call.resolve))
    # Denials first: neither an allow rule nor a person's answer overrides them.
    refusing = next((rule for rule in deny if _denies(rule, call)), None)
    if refusing is not None:
        return Verdict(Decision.DENY, str(refusing))
    # Not with a free shell: the session could write such a file with a command anyway.
    names_programs = shell is not Shell.FREE and _names_programs(call)
    if shell is Shell.NONE and (names_programs or _writes_outside(call)):
        return Verdict(Decision.DENY, "no shell")
    allowing = [rule for rule in allow if concerns(rule, call.tool)]
    doubt = "the file may name programs to run" if names_programs else _doubt(call, allowing, deny)
    if any(rule.tool == "Bash" and rule.specifier for rule in (*allow, *deny)):
        doubt = _doubt_about_directory(call, allow) or doubt
    # Allow rules are skipped: they must not decide if a denial cannot be ruled out.
    granting = None if doubt else _granting(call, allowing)
    return Verdict(Decision.ALLOW, granting) if granting else Verdict(Decision.ASK, doubt=doubt)


def _doubt_about_directory(call: ToolCall, allow: Sequence[Rule]) -> str:
    """Why a call concerns another directory than the session's, which the rules on commands were written for; empty if
    it does not, or if a rule allows it. A subagent changes directory by an argument of the call that starts it, which
    causes a question, or by its definition, which is not visible here: then its commands cause questions."""
    if call.tool in SHELL_TOOLS and call.subagent_directory:
        if any(concerns(rule, tool) for rule in allow for tool in _BEGINS_SUBAGENT):
            return ""
        return f"the program that this runs depends on the directory of its subagent, {call.subagent_directory}"
    moves = call.tool == "EnterWorktree" or (call.tool in _BEGINS_SUBAGENT and any(map(call.arguments.get, _PLACES)))
    if not moves or any(concerns(rule, call.tool) for rule in allow):
        return ""
    return "the programs that they run depend on the directory that this changes to"


def _denies(rule: Rule, call: ToolCall) -> bool:
    if concerns(rule, call.tool):
        return _refuses(rule, call)
    if call.tool in _FAMILIES["Bash"] and rule.specifier and concerns(rule, "Read"):
        files = _named_files(_text(call.arguments, "command"))
        return any(_refuses(rule, replace(call, tool="Read", arguments={"file_path": file})) for file in files)
    return call.tool in _RESOURCE_TOOLS and rule.specifier is None and _denies_reading(rule.tool, call.arguments)


@lru_cache(maxsize=1)  # all rules check the same command in turn
def _named_files(command: str) -> tuple[str, ...]:
    """The files that a line certainly prints. Above `_MAX_NAMED_FILES` a person is asked."""
    files = named_files(read_strictly(command) or ())
    return tuple(dict.fromkeys(files)) if len(files) <= _MAX_NAMED_FILES else ()


def _denies_reading(pattern: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a rule that denies a whole MCP server denies a call that reads servers' resources. A call without a
    server reads from all of them, including the denied one."""
    server = arguments.get("server")
    if isinstance(server, str) and server:
        return covers_server(pattern, server)
    return pattern.startswith("mcp__") and (pattern.count("__") == 1 or pattern.endswith("__*"))


def concerns(rule: Rule, tool: str) -> bool:
    """Whether a rule applies to a tool, or to some of its calls."""
    return names_tool(rule.tool, tool) or tool in _FAMILIES.get(rule.tool, ())


def same_family(tool: str, other: str) -> bool:
    """Whether rules for one tool also apply to the other."""
    return tool == other or any({tool, other} <= family for family in _FAMILIES.values())


def _doubt(call: ToolCall, allowing: Sequence[Rule], deny: Sequence[Rule]) -> str:
    """Why a call may run a denied command or read a denied file; empty if that can be ruled out."""
    denied = [_without_directory(rule.specifier) for rule in deny if rule.tool == "Bash" and rule.specifier]
    secret = not call.hides_denied_files and any(rule.specifier and concerns(rule, "Read") for rule in deny)
    if not (denied or secret) or call.tool not in SHELL_TOOLS:
        return ""
    command = call.arguments.get("command")
    commands = read_strictly(command) if call.tool in _FAMILIES["Bash"] and isinstance(command, str) else None
    if commands is None:
        return TOO_LONG if isinstance(command, str) and len(command) > MAX_COMMAND else UNREADABLE
    # Earlier commands in the line can change its effect through its directory or its input.
    spelled_out = next((at for at, words in enumerate(commands) if not _spells_out(allowing, words)), len(commands))
    unclear = commands[spelled_out:]
    names = [_expected(pattern)[0] for pattern in denied]
    doubt = ""
    if denied:
        doubt = doubt_about(unclear, cache(lambda name: any(_word_fits(name.casefold(), fit) for fit in names)))
    if secret and not doubt:
        doubt = doubt_about_reading(unclear)
        if len(named_files(unclear)) > _MAX_NAMED_FILES:
            doubt = "it reads too many files to check"
    return doubt


def _spells_out(rules: Sequence[Rule], words: Words) -> bool:
    """Whether a rule names a command word by word, so that its author has decided on exactly this command. A `*` at the
    end of the rule may match zero words."""
    if any(isinstance(word, FileGlob) for word in words):
        return False
    exact = (_expected(rule.specifier) for rule in rules if rule.specifier)
    return any(words == (spelled[:-1] if spelled[-1] == "*" else spelled) for spelled in exact)


def _names_programs(call: ToolCall) -> bool:
    """Whether a call writes a file from which Claude Code or git run programs: settings, hooks, servers, agents,
    skills. Also true if the location is unknown."""
    if call.tool not in _FAMILIES["Edit"]:
        return False
    path = _path_of(call)
    if path is None:
        return True
    resolved = call.resolve(path)
    below = [call.paths.below(resolved, call.resolve(directory)) for directory in call.guarded]
    inmost = min((names for names in below if names is not None), key=len, default=None)
    if inmost is not None and not _is_harmless(inmost):
        return True
    return any(_has_programs(call.paths.parts(spelling)) for spelling in (call.paths.normal(path), resolved))


def _writes_outside(call: ToolCall) -> bool:
    """Whether a call writes outside the roots, except Claude Code's notes and plans: other programs of the user may run
    programs from there."""
    path = _path_of(call) if call.tool in _FAMILIES["Edit"] and call.roots is not None else None
    if path is None:
        return False
    resolved = call.resolve(path)
    inside = (*(call.roots or ()), *call.guarded)
    return all(call.paths.below(resolved, call.resolve(directory)) is None for directory in inside)


def _has_programs(names: Sequence[str]) -> bool:
    names = [name.casefold() for name in names]
    return (".config", "git") in pairwise(names) or any(
        name in _NAMES_PROGRAMS and not (name == ".claude" and _is_harmless(names[at + 1 :]))
        for at, name in enumerate(names)
    )


def _is_harmless(below: Sequence[str]) -> bool:
    names = [name.casefold() for name in below[:3]]
    return names[:1] != [] and (names[0] in _HARMLESS or (names[0], *names[2:]) == _NOTES)


def _granting(call: ToolCall, rules: Sequence[Rule]) -> str | None:
    """The rules that together allow the whole call."""
    whole = next((rule for rule in rules if rule.specifier is None), None)
    if whole is not None:
        return str(whole)
    if call.tool in _FAMILIES["Bash"]:
        return _granting_command(_text(call.arguments, "command"), rules)
    return next((str(rule) for rule in rules if _allows(rule, call)), None)


def _granting_command(command: str, rules: Sequence[Rule]) -> str | None:
    parts = read_strictly(command)
    # The files that match a pattern are unknown here, and their names may look like options.
    if not parts or any(isinstance(word, FileGlob) for part in parts for word in part):
        return None
    by_name: dict[str, list[Rule]] = {}
    granting: dict[str, None] = {}
    for part in parts:
        if part[0] not in by_name:
            by_name[part[0]] = [rule for rule in rules if _word_fits(part[0], _expected(rule.specifier or "")[0])]
        rule = next((rule for rule in by_name[part[0]] if _allows_words(rule, part)), None)
        if rule is None:
            return None
        granting[str(rule)] = None
    return ", ".join(granting)


def _allows_words(rule: Rule, words: Words) -> bool:
    """Whether a rule allows a command. A wildcard does not match options that make git write files or run programs."""
    if not fits_words(words, rule.specifier or ""):
        return False
    if words[0].rpartition("/")[2] != "git":
        return True
    pairs = zip(words, _expected(rule.specifier or ""), strict=False)
    spelled_out = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return option_to_ask_about(words, max(1, spelled_out)) is None


def _allows(rule: Rule, call: ToolCall) -> bool:
    specifier = rule.specifier or ""
    if call.tool == "WebFetch":
        return _host_fits(_text(call.arguments, "url"), specifier, below=False)
    path = _path_of(call)
    if path is None:
        return False
    return fits(call.resolve(path), _resolved(specifier, call), call.resolve(call.cwd), call.paths)


def _resolved(pattern: str, call: ToolCall) -> str:
    """The pattern with its part before the first wildcard resolved, if it is absolute."""
    start = call.paths.pattern_start(pattern, call.cwd)
    if start is None:
        return pattern
    wildcard = re.search(r"[*?]", start)
    if wildcard is None:
        return call.resolve(start)
    directory, name = call.paths.split_head(start[: wildcard.start()])
    resolved = call.resolve(directory)
    separated = resolved if resolved.endswith(("/", "\\")) else f"{resolved}/"
    return f"{separated}{name}{start[wildcard.start() :]}"


def unreadable_paths(deny: Sequence[Rule], cwd: str, resolve: Resolve) -> "re.Pattern[str] | None":
    """A regular expression for the resolved paths, in lower case (`casefold`), that rules deny reading in a session in
    this directory; None if there are no such rules. For many paths this is faster than `judge`. POSIX only."""
    call = ToolCall("Read", {}, cwd, resolve)
    specifiers = [rule.specifier for rule in deny if rule.specifier and concerns(rule, "Read")]
    patterns = [pattern for each in specifiers for pattern in (each, _resolved(each, call))]
    texts = dict.fromkeys(_expression(pattern.casefold(), resolve(cwd).casefold()) for pattern in patterns)
    return re.compile("|".join(texts), re.DOTALL) if texts else None


def _expression(pattern: str, cwd: str) -> str:
    """A regular expression for whole absolute paths that is equivalent to `fits`."""
    start = "" if pattern.startswith("/") else re.escape(cwd.rstrip("/"))
    names = []
    for part in pattern.split("/"):
        if part == _ANY_DEPTH:
            names.append("(?:/[^/]+)*")
        elif part not in ("", "."):
            names.append("/" + re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]"))
    below = "" if set("*?") & set(pattern) else "(?:/.*)?"
    return f"(?:{start}{''.join(names)}{below})"


def _refuses(rule: Rule, call: ToolCall) -> bool:
    if rule.specifier is None:
        return True
    if call.tool in _FAMILIES["Bash"]:
        return _may_run(_text(call.arguments, "command"), rule.specifier)
    if call.tool == "WebFetch":
        return _host_fits(_text(call.arguments, "url"), rule.specifier, below=True)
    path = _path_of(call)
    if path is None:
        return True
    resolved = call.resolve(path)
    if ".." in call.paths.names(resolved):
        return True
    # Compare the path as written and as resolved with the pattern as written and as resolved.
    spellings = {call.paths.normal(path): call.cwd, resolved: call.resolve(call.cwd)}
    patterns = {_resolved(rule.specifier, call), rule.specifier}
    return any(
        fits(spelling.casefold(), pattern.casefold(), cwd.casefold(), call.paths)
        for spelling, cwd in spellings.items()
        for pattern in patterns
    )


def _may_run(command: str, pattern: str) -> bool:
    """Whether a text may run a command that matches a deny rule's pattern. Case, the path of the program, options and
    their values are ignored."""
    pattern = _without_directory(pattern)
    runs, expected = _runs_by_name(command), _expected(pattern)[0]
    # Looked up by name: a long command may run thousands of programs, and there may be thousands of rules.
    names = [name for name in runs if _word_fits(name, expected)] if _is_pattern(expected) else [expected]
    return any(fits_words(run, pattern) for name in names for run in runs.get(name, ()))


@lru_cache(maxsize=1)  # all rules check the same command in turn
def _runs_by_name(command: str) -> Mapping[str, Collection[Words]]:
    """Everything that a text may run, by the first word: as written, without options, and without options and their
    values."""
    runs: dict[str, dict[Words, None]] = {}
    for run in read_loosely(command):
        words = tuple(map(str.casefold, run))
        readings = [words]
        if any(word.startswith("-") for word in words):
            behind = zip(words, (words[0], *words), strict=False)
            readings.append(tuple(word for word in words if not word.startswith("-")))
            readings.append(tuple(word for word, before in behind if "-" not in (word[:1], before[:1])))
        for reading in filter(None, readings):
            runs.setdefault(reading[0], {})[reading] = None
    return runs


def fits_words(words: Words, pattern: str) -> bool:
    """Whether a command matches a pattern word by word; a `*` at the end matches any number of words."""
    expected = _expected(pattern)
    if expected[-1] == "*" and len(words) >= len(expected) - 1:
        expected = expected[:-1]
        words = words[: len(expected)]
    return len(words) == len(expected) and all(map(_word_fits, words, expected))


@lru_cache(maxsize=10_000)  # at least the number of rules
def _expected(pattern: str) -> Words:
    return (*pattern.removesuffix(":*").split(), *(["*"] if pattern.endswith(":*") else []))


@lru_cache(maxsize=10_000)
def _without_directory(pattern: str) -> str:
    name, *rest = pattern.casefold().split(maxsplit=1)
    return " ".join((name.rpartition("/")[2], *rest))


def _is_pattern(word: str) -> bool:
    return "*" in word or "?" in word


def _word_fits(word: str, pattern: str) -> bool:
    """Match a word; `*` and `?` are wildcards, brackets are literal, unlike in fnmatch."""
    if not _is_pattern(pattern):
        return word == pattern
    return fnmatchcase(word, pattern.replace("[", "[[]"))


def _host_fits(url: str, specifier: str, *, below: bool) -> bool:
    """Whether an address is on the host of a specifier. With `below` (deny rules), subdomains and unparsable addresses
    match too; without it (allow rules), only a plain address does."""
    domain = specifier.removeprefix("domain:").strip().casefold().rstrip(".")
    clean = re.fullmatch(r"https?://[A-Za-z0-9.-]+(?::\d+)?(?:[/?#][^\s\\]*)?", url) is not None
    try:
        host = (urlsplit(url if "://" in url else f"//{url}").hostname or "").rstrip(".")
    except ValueError:
        return below
    fitting = fnmatchcase(host, domain) or (below and host.endswith(f".{domain}"))
    return fitting if below else fitting and clean


def _path_of(call: ToolCall) -> str | None:
    """The path that a file tool uses: the named file, otherwise the session's directory. None if it is not a usable
    path."""
    arguments = call.arguments
    path = next((arguments[name] for name in _PATH_FIELDS if arguments.get(name) not in (None, "")), call.cwd)
    pattern = arguments.get("pattern") if call.tool == "Glob" else None
    searched_elsewhere = isinstance(pattern, str) and call.paths.may_lead_outside(pattern)
    if not isinstance(path, str) or "\0" in path or len(path) > MAX_PATH or searched_elsewhere:
        return None
    return call.paths.joined(call.cwd, path)


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    return value if isinstance(value, str) else ""
