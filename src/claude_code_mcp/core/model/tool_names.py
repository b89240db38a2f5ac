"""Names of tools: Claude Code's, and those of MCP servers, which begin with the server's name.

Servers and tools can have any name, but models and clients accept only letters, digits, `_` and `-`, up to 128
characters. A single name can therefore not be mapped back; `ToolNames` maps a whole set.

This product must not start itself: see `is_this_server`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

PREFIX = "mcp__"
MAX_LENGTH = 128
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8


SKILLS = "io.modelcontextprotocol/skills"
"""The extension of servers that have skills (SEP-2640)."""
UPDATED = "updated "
"""Prefix of the notification to a server's watchers that a resource changed; the resource's address follows."""


def normalize(name: str) -> str:
    """The name with every character replaced that a tool name cannot have."""
    return _NOT_ALLOWED.sub("_", name)


def prefix_of(server: str) -> str:
    """The prefix of all tool names of a server."""
    return f"{PREFIX}{normalize(server)}__"


def plain_name(server: str, tool: str) -> str:
    """`mcp__server__tool`, the form that Claude Code uses."""
    return f"{prefix_of(server)}{normalize(tool)}"


def server_names(servers: Iterable[str]) -> dict[str, str]:
    """Maps the names that Claude Code gets to the servers: the server's own name, unless an earlier server has the same
    tool names; then a name with a few digits at the end, always the same for this server."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for server in servers:
        name = server if normalize(server) not in taken else _with_digits(normalize(server), (server,))
        taken.add(normalize(name))
        names[name] = server
    return names


class ToolNames(Mapping[str, tuple[str, str]]):
    """The names of a set of tools, and the server and tool for each name. A name that is too long or taken ends in a
    few digits, always the same for this server and tool."""

    def __init__(self, tools: Iterable[tuple[str, str]]) -> None:
        pairs = list(dict.fromkeys(tools))
        plain: dict[str, list[tuple[str, str]]] = {}
        for pair in pairs:
            plain.setdefault(plain_name(*pair), []).append(pair)
        # Whether a name needs digits depends only on the set, never on the order in which servers connected.
        self._names = {
            pair: name if len(same) == 1 and len(name) <= MAX_LENGTH else _with_digits(name, pair)
            for name, same in plain.items()
            for pair in same
        }
        self._pairs = {name: pair for pair, name in self._names.items()}

    def name(self, server: str, tool: str) -> str:
        """The name of a tool of the set."""
        return self._names[server, tool]

    def __getitem__(self, name: str) -> tuple[str, str]:
        return self._pairs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


def _with_digits(name: str, pair: tuple[str, ...]) -> str:
    digits = hashlib.sha256("\0".join(pair).encode()).hexdigest()[:_DIGITS]
    return f"{name[: MAX_LENGTH - _DIGITS - 1]}_{digits}"


_NAMES = frozenset({"claude-code-mcp", "claude_code_mcp"})
_FLAGS = frozenset({"--shared", "--http", "--config", "--toolsets", "--on-disconnect"})
"""Flags of `serve`, which may be given without the command."""
_RUNNERS = re.compile(r"(uvx?|pipx|env|python[0-9.]*w?|pypy[0-9.]*|py)\Z")


def is_this_server(command: str, arguments: Sequence[str]) -> bool:
    """Whether a command line starts our server: by its name, or through one of the usual runners of Python programs.
    Our other commands are not servers, nor is a path of ours in the arguments of another program. Anything missed here,
    such as a wrapper script, is detected when it starts, by our mark in its environment."""
    name = _program(command)
    if name in _NAMES:
        return _serves(arguments)
    if not _RUNNERS.match(name):
        return False
    positions = [at for at, argument in enumerate(arguments) if _program(_distribution(argument)) in _NAMES]
    return any(_serves(arguments[at + 1 :]) for at in positions)


def _serves(rest: Sequence[str]) -> bool:
    return not rest or rest[0] == "serve" or rest[0].partition("=")[0] in _FLAGS


def _distribution(requirement: str) -> str:
    """The bare name in `name[extra]==1.0` or `name@latest`."""
    return re.split(r"[\[=@<>~! ]", requirement, maxsplit=1)[0]


def _program(command: str) -> str:
    name = re.split(r"[/\\]", command)[-1].lower()
    return re.sub(r"\.(exe|cmd|bat)\Z", "", name)
