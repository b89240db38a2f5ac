"""The command line: registers every command, parses the arguments and turns failures into exit codes.

Exit codes: 0 for success, 1 when something was found wrong, 2 for a mistake in the call or the settings, 130 for
Ctrl-C. Standard output takes any character on any terminal, and a reader that leaves early, as `| head` does, is no
error.
"""

import argparse
import errno
import io
import json
import os
import re
import sys
from codecs import register_error
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..errors import ClaudeCodeError, InvalidArgument
from ..greeting.protocol import GreetedInput

COMMANDS = {
    "serve": "serve",
    "shared": "shared",
    "tui": "tui",
    "run": "chat",
    "send": "chat",
    "attach": "chat",
    "ps": "watching",
    "questions": "watching",
    "answer": "steering",
    "interrupt": "steering",
    "cancel": "steering",
    "show": "watching",
    "logs": "watching",
    "sessions": "sessions",
    "costs": "costs",
    "mcp": "mcp.command",
    "web": "web",
    "stats": "stats",
    "doctor": "doctor",
    "demo": "demo",
    "claude": "claude",
    "config": "config",
    "token": "token",
    "completion": "shell_completion",
}
"""Every command with the module that adds it; in the order of the help, but for those of one module."""


_DESCRIPTION = """\
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
            # None of its arguments is ours, `--help` and `--version` neither.
            return int(_module("claude").run(argv[1:]))
        only = argv[:1] if argv[0] in COMMANDS else tuple(COMMANDS)  # somebody waits: no other command is imported
        arguments = build_parser(only).parse_args(argv, argparse.Namespace(greeted=greeted))
        return int(arguments.run(arguments))
    except _Misuse as error:
        print(error.usage, end="", file=sys.stderr)
        on_http = any(argument.startswith("--ht") for argument in argv)
        return int(_module("serve").refuse(error, None if on_http else greeted))
    except ClaudeCodeError as error:
        from ..model.text import visible  # noqa: PLC0415 - only here, and it takes its time

        print(f"claude-code-mcp: {visible(error.message)}", file=sys.stderr)  # names of files may be in it
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
        raise _Misuse(_without_values(message), self.format_usage())


def _without_values(message: str) -> str:
    """A message of argparse that repeats options it does not know, without their values: these may be secrets."""
    start, separator, unknown = message.partition("unrecognized arguments: ")
    if not separator:
        return message
    options = [option for option in unknown.split(" ") if re.fullmatch(r"--?[A-Za-z][A-Za-z-]{0,30}", option)]
    return f"{start}{separator}{' '.join(options) or 'there is more than the command takes'}"


def build_parser(names: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser with these commands; each sets `run` to the function that takes the parsed arguments. A mistake on the
    command line raises InvalidArgument instead of ending the process."""
    parser = _Parser(
        prog="claude-code-mcp", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-V", "--version", action="version", version=f"claude-code-mcp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in dict.fromkeys(COMMANDS[name] for name in names):
        import_module(f".{name}", __package__).add_to(commands)
    return parser


def _module(command: str) -> Any:
    return import_module(f".{COMMANDS[command]}", __package__)


_ESCAPE = "claude_code_mcp_escape"


def run_with_output(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; 0 if the reader of its output leaves.

    What the encoding of a stream lacks is escaped. Output is flushed before this returns: when the interpreter ends it
    would be too late to handle the error. A BrokenPipeError counts also where task groups have wrapped it. Output that
    cannot be written for another reason, such as a full disk, is 1 and a line on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPE)
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except (BrokenPipeError, BaseExceptionGroup) as error:
        if _other_than_broken_pipe(error):
            raise
        _discard_output()
        return 0
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _discard_output()
        print(f"claude-code-mcp: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


_UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""The characters as JSON writes them (`\u2026`), so that JSON stays the JSON that it was."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


register_error(_ESCAPE, _escaped)


def _other_than_broken_pipe(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup) and error.split(BrokenPipeError)[1] is not None


def _discard_output() -> None:
    """What is still buffered goes nowhere; the interpreter flushes it once more when it ends."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
