"""Arguments that several commands take, the values that they refuse; standard input, and output as JSON. Light: `serve`
imports this before a client's first call is answered."""

import argparse
import json
import math
import os
import re
import select
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument


def add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")


def add_json(parser: argparse._ActionsContainer, summary: str = "print JSON instead of lines") -> None:
    parser.add_argument("--json", action="store_true", help=summary)


def print_json(value: Any) -> None:
    """Prints a value for scripts: indented, in the characters that it has."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def camel_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ours as every `--json` spells them: `session_id` becomes `sessionId`. Values stay as they are."""
    return {_camel(name): value for name, value in fields.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def standard_input() -> str:
    """All of standard input, whatever is in it; nothing if it is closed."""
    return sys.stdin.buffer.read().decode("utf-8", "replace") if sys.stdin is not None else ""


def agreed(question: str) -> bool:
    """Asks the person at the terminal for a yes; InvalidArgument if there is none."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidArgument(f"{question} Not a terminal: pass --yes to confirm.")
    from ..model.text import visible  # noqa: PLC0415 - `serve` asks nobody

    print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)  # names of files may be in it
    return sys.stdin.readline().strip().lower() in ("y", "yes")


_PIPE_SECONDS = 3.0


def piped_input() -> str:
    """What a pipe or a file on standard input holds, to its end; nothing for a terminal or the null device. A pipe in
    which nothing comes is not waited for: whoever started us may have left its own there, open."""
    if sys.stdin is None:
        return ""
    try:
        mode = os.fstat(0).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
            return ""
        if os.name == "posix" and not select.select([0], [], [], _PIPE_SECONDS)[0]:
            print("Nothing came on standard input; going on without it.", file=sys.stderr, flush=True)
            return ""
    except OSError:
        return ""  # it is closed
    return standard_input()


_RULE = re.compile(r"[A-Za-z][\w.*-]*(\(.+\))?", re.DOTALL)


def tool_rule(text: str) -> str:
    """The type of a permission rule, such as `Edit` or `Bash(make *)`."""
    if not _RULE.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rule; one looks like Edit, Bash(make *) or mcp__server")
    return text.strip()


def positive(text: str) -> int:
    """The type of a limit: a whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def seconds(text: str) -> float:
    """The type of a time to wait; 0 is allowed, and waits for nothing."""
    number = float(text)
    if math.isnan(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return number
