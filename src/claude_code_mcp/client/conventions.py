"""Shared parts of all commands: exit codes, common arguments, confirmation, standard input, tables, JSON and
suggestions. Cheap to import: `serve` imports this before a client's first call is answered.
"""

import argparse
import json
import math
import os
import re
import select
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import ClaudeCodeError, InvalidArgument
from ..core.errors import ExitCode as ExitCode  # noqa: PLC0414 - commands take it from here


class NotFound(ClaudeCodeError):
    """A thing that a command names does not exist."""

    code = "NOT_FOUND"
    exit_code = ExitCode.NOT_FOUND


class Unavailable(ClaudeCodeError):
    """A service that a command needs does not answer."""

    code = "UNAVAILABLE"
    exit_code = ExitCode.UNAVAILABLE


def exit_code_of(code: str) -> int:
    """The exit code for an error code, ours or a server's: the exit code of the class with this error code, or FAILED
    for a code of a later version."""
    kinds = [ClaudeCodeError]
    for kind in kinds:  # grows while it is read: parents come before their subclasses
        if kind.code == code:
            return int(kind.exit_code)
        kinds += kind.__subclasses__()
    return int(ExitCode.FAILED)


# -- arguments ---------------------------------------------------------------------------------------------------------


def add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")


def add_json(parser: argparse._ActionsContainer, summary: str = "print JSON instead of lines") -> None:
    parser.add_argument("--json", action="store_true", help=summary)


def standard_input() -> str:
    """All of standard input, whatever is in it; nothing if it is closed."""
    return sys.stdin.buffer.read().decode("utf-8", "replace") if sys.stdin is not None else ""


def agreed(question: str) -> bool:
    """Ask the person at the terminal to confirm; InvalidArgument without a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidArgument(f"{question} Not a terminal: pass --yes to confirm.")
    from ..core.model.text import visible  # noqa: PLC0415 - `serve` asks nobody

    print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)  # names of files may be in it
    return sys.stdin.readline().strip().lower() in ("y", "yes")


_PIPE_SECONDS = 3.0


def piped_input() -> str:
    """All input from a pipe or file on standard input; empty for a terminal or the null device. A pipe without data is
    not waited for: our parent process may have left its own pipe open there."""
    if sys.stdin is None:
        return ""
    try:
        mode = os.fstat(0).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
            return ""
        if os.name == "posix" and not select.select([0], [], [], _PIPE_SECONDS)[0]:
            print("No data arrived on standard input; continuing without it.", file=sys.stderr, flush=True)
            return ""
    except OSError:
        return ""  # it is closed
    return standard_input()


_RULE = re.compile(r"[A-Za-z][\w.*-]*(\(.+\))?", re.DOTALL)


def tool_rule(text: str) -> str:
    """The type of a permission rule, such as `Edit` or `Bash(make *)`."""
    if not _RULE.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rule such as Edit, Bash(make *) or mcp__server")
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


# -- output -----------------------------------------------------------------------------------------------------------


def suggestion(word: str, known: Iterable[str]) -> str:
    """A sentence that suggests a correction of a mistyped word; empty if no known word is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only here

    near = get_close_matches(word.casefold(), list(known), 2)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def failed(problem: str, code: int = ExitCode.FAILED) -> int:
    """Print one line to stderr; return the exit code."""
    print(f"claude-code-mcp: {problem}", file=sys.stderr)
    return int(code)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, without escaping non-ASCII characters."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_outcome(arguments: argparse.Namespace, report: Any, text: str) -> int:
    """Print the result of a successful command: the report with `--json`, otherwise the text."""
    print_json(report) if arguments.json else print(text)
    return int(ExitCode.DONE)


def camel_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Field names as in all `--json` output: `session_id` becomes `sessionId`. Values are unchanged."""
    return {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in fields.items()}


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as their contents."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
