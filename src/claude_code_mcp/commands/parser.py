"""All commands on one command line: what they are called, what they take, and how they end.

Exit codes: 0 for success, 1 when something was found wrong, 2 for a mistake in the call or the settings, 130 for
Ctrl-C.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from ..errors import ClaudeCodeError, InvalidArgument
from ..greeting.protocol import GreetedInput
from . import claude, demo, doctor, serve, sessions, stats
from . import config as registration
from .mcp import command as mcp

_ABOUT = """\
Run Claude Code from any MCP client, with a person able to watch and answer at any moment.
Without a command it serves MCP on standard input and output, which is how clients start it."""


def run(argv: Sequence[str], heard: GreetedInput | None = None) -> int:
    """Runs one command line; `heard` is what a client on stdio said before the command was loaded."""
    try:
        if argv[:1] == ["claude"]:
            return claude.run(argv[1:])  # none of its arguments is ours, `--help` and `--version` neither
        arguments = build_parser().parse_args(argv, argparse.Namespace(heard=heard))
        return int(arguments.run(arguments))
    except _Misuse as error:
        print(error.usage, end="", file=sys.stderr)
        is_for_a_client = heard is not None and not any(one.startswith("--ht") for one in argv)
        return serve.refuse(error, heard if is_for_a_client else None)
    except ClaudeCodeError as error:
        print(f"claude-code-mcp: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has heard enough
        return 0


class _Misuse(InvalidArgument):
    """A command line that makes no sense."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would end the process with: a client may be waiting that must be told."""

    def error(self, message: str) -> NoReturn:
        raise _Misuse(message, self.format_usage())


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. A mistake raises InvalidArgument instead of ending the process."""
    parser = _Parser(prog="claude-code-mcp", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"claude-code-mcp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (serve, demo, doctor, claude, registration, sessions, stats, mcp):
        command.add_to(commands)
    return parser
