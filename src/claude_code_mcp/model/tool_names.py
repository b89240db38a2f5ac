"""The names of tools that come from MCP servers: `mcp__server__tool`.

Server and tool may be called anything, but models and clients take only letters, digits, `_` and `-`, and 128
characters. A single name can therefore not be read back; a whole set of them can, which is what `ToolNames` is.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping

PREFIX = "mcp__"
LONGEST = 128
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8


def normalise(name: str) -> str:
    """The name with everything replaced that a tool name cannot have."""
    return _NOT_ALLOWED.sub("_", name)


def prefix_of(server: str) -> str:
    """What the names of all tools of a server begin with."""
    return f"{PREFIX}{normalise(server)}__"


def plain_name(server: str, tool: str) -> str:
    """`mcp__server__tool`, as Claude Code itself calls the tool."""
    return f"{prefix_of(server)}{normalise(tool)}"


class ToolNames(Mapping[str, tuple[str, str]]):
    """The names of a set of tools, and from each name back to its server and tool.

    A name that would be too long, or that another tool already has, ends in a few digits that are always the same
    for this server and tool.
    """

    def __init__(self, tools: Iterable[tuple[str, str]]) -> None:
        pairs = list(dict.fromkeys(tools))
        plain: dict[str, list[tuple[str, str]]] = {}
        for pair in pairs:
            plain.setdefault(plain_name(*pair), []).append(pair)
        # Whether a name needs digits depends on the set alone, never on the order in which servers came up.
        self._names = {
            pair: name if len(same) == 1 and len(name) <= LONGEST else _with_digits(name, pair)
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


def _with_digits(name: str, pair: tuple[str, str]) -> str:
    digits = hashlib.sha256("\0".join(pair).encode()).hexdigest()[:_DIGITS]
    return f"{name[: LONGEST - _DIGITS - 1]}_{digits}"
