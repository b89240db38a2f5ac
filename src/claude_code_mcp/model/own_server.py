"""Whether a configured MCP server is this very product: such an entry must not be started from within it. Pure."""

import re
from collections.abc import Sequence

_NAMES = frozenset({"claude-code-mcp", "claude_code_mcp"})
_RUNNERS = re.compile(r"(uvx?|pipx|env|python[0-9.]*w?|pypy[0-9.]*|py)\Z")


def is_this_server(command: str, arguments: Sequence[str]) -> bool:
    """Whether a command line starts our server: by its name, or through one of the usual runners of Python programs.

    Our other commands are no servers, and a path among the arguments of a foreign program is none either. What is not
    recognised here, such as a script around it, is still recognised by its environment when it starts.
    """
    name = _program(command)
    if name in _NAMES:
        return _serves(arguments)
    if not _RUNNERS.match(name):
        return False
    places = [place for place, word in enumerate(arguments) if _program(_distribution(word)) in _NAMES]
    return any(_serves(arguments[place + 1 :]) for place in places)


def _serves(rest: Sequence[str]) -> bool:
    return not rest or rest[0] == "serve"


def _distribution(word: str) -> str:
    """`name[extra]==1.0` and `name@latest` without what is behind the name."""
    return re.split(r"[\[=@<>~! ]", word, maxsplit=1)[0]


def _program(command: str) -> str:
    name = re.split(r"[/\\]", command)[-1].lower()
    return re.sub(r"\.(exe|cmd|bat)\Z", "", name)
