"""The command line: registers every command, parses the arguments and turns failures into exit codes.

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
from . import claude, config, demo, doctor, serve, sessions, stats, token
from .mcp import command as mcp
from .output import run_with_output

COMMANDS = (serve, demo, doctor, claude, config, token, sessions, stats, mcp)
"""In the order of the help."""

_ABOUT = """\
Run Claude Code from any MCP client, with a person able to watch and answer at any moment.
Without a command it serves MCP on standard input and output, which is how clients start it; the flags of
`serve` may then be given too."""


def run(argv: Sequence[str], greeted: GreetedInput | None = None) -> int:
    """Runs one command line and returns the exit code; no exception of ours escapes.

    `greeted` is what a client on stdio has said before the command was loaded. Such a client waits for an answer, so
    it is told of a command line that makes no sense too.
    """
    return run_with_output(lambda: _run(argv, greeted))


def _run(argv: Sequence[str], greeted: GreetedInput | None) -> int:
    try:
        if argv[:1] == ["claude"]:
            return claude.run(argv[1:])  # none of its arguments is ours, `--help` and `--version` neither
        arguments = build_parser().parse_args(argv, argparse.Namespace(greeted=greeted))
        return int(arguments.run(arguments))
    except _Misuse as error:
        print(error.usage, end="", file=sys.stderr)
        on_http = any(argument.startswith("--ht") for argument in argv)
        return serve.refuse(error, None if on_http else greeted)
    except ClaudeCodeError as error:
        print(f"claude-code-mcp: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


class _Misuse(InvalidArgument):
    """A command line that does not parse; `usage` goes to stderr before the message."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """Raises `_Misuse` where argparse would end the process, so that a waiting client can be told why."""

    def error(self, message: str) -> NoReturn:
        raise _Misuse(message, self.format_usage())


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands; each sets `run` to the function that takes the parsed arguments. A mistake on the
    command line raises InvalidArgument instead of ending the process."""
    parser = _Parser(prog="claude-code-mcp", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-V", "--version", action="version", version=f"claude-code-mcp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser
