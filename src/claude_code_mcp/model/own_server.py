"""Whether a configured MCP server is this very product: such an entry must not be started from within it. Pure."""

import re
from collections.abc import Sequence

_NAMES = frozenset({"claude-code-mcp", "claude_code_mcp"})
_RUNNERS = re.compile(r"(uvx?|pipx|env|python[0-9.]*w?|pypy[0-9.]*|py)\Z")


def is_this_server(command: str, arguments: Sequence[str]) -> bool:
    """Whether a command line starts our server: by its name, or through one of the usual runners of Python programs.

    Our other commands are not servers, nor is a path of ours among the arguments of a foreign program. What is missed
    here, such as a script around it, is caught when it starts: it finds our mark in its environment.
    """
    name = _program(command)
    if name in _NAMES:
        return _serves(arguments)
    if not _RUNNERS.match(name):
        return False
    positions = [at for at, argument in enumerate(arguments) if _program(_distribution(argument)) in _NAMES]
    return any(_serves(arguments[at + 1 :]) for at in positions)


def _serves(rest: Sequence[str]) -> bool:
    return not rest or rest[0] == "serve"


def _distribution(requirement: str) -> str:
    """The bare name in `name[extra]==1.0` or `name@latest`."""
    return re.split(r"[\[=@<>~! ]", requirement, maxsplit=1)[0]


def _program(command: str) -> str:
    name = re.split(r"[/\\]", command)[-1].lower()
    return re.sub(r"\.(exe|cmd|bat)\Z", "", name)
