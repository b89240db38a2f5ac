"""The command line: registers every command and parses arguments.

Exit codes are defined in `client/conventions.py`. Standard output accepts any character on any terminal, and a reader
that stops early, such as `| head`, is not an error.
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
from ..client.conventions import ExitCode, suggestion
from ..core.errors import ClaudeCodeError, InvalidArgument
from ..installed_plugins import all_plugins, bundled_plugins
from ..plugin import Command
from ..startup.greeting.first_answers import GreetedInput

COMMANDS = {
    "serve": "serve",
    "shared": "shared",
    "run": "chat",
    "send": "chat",
    "attach": "chat",
    "ps": "running_sessions",
    "questions": "running_sessions",
    "answer": "running_sessions",
    "interrupt": "running_sessions",
    "cancel": "running_sessions",
    "bypass": "running_sessions",
    "show": "running_sessions",
    "logs": "running_sessions",
    "sessions": "sessions",
    "costs": "costs",
    "mcp": "mcp",
    "stats": "stats",
    "doctor": "doctor",
    "demo": "demo",
    "claude": "claude",
    "config": "config",
    "token": "token",
    "audit": "audit",
    "backup": "backup",
    "restore": "backup",
    "uninstall": "uninstall",
    "completion": "shell_completion",
}
"""The commands of this package, each with the module that adds it; in the order of the help, except that the commands
of one module stand together. Plug-ins have more."""
_EXTENDED = "sessions"
"""The command to which plug-ins add commands."""


_DESCRIPTION = """\
Run Claude Code from any MCP client, with a person able to watch and answer at any moment.
Without a command it serves MCP on standard input and output, which is how clients start it; it then
also takes the flags of `serve`."""
_FIRST_STEPS = """\
first steps:
  claude-code-mcp doctor                    check the installation
  claude-code-mcp demo                      see it work without an account
  claude-code-mcp config CLIENT --install   register it in a client
  claude-code-mcp run 'Fix the tests'       start a session from the shell
  claude-code-mcp tui                       watch and answer all sessions"""


def run(argv: Sequence[str], greeted: GreetedInput | None = None) -> int:
    """Runs one command line and returns the exit code; no exception of ours escapes.

    `greeted` is the input that a client on stdio sent before the command was loaded. Such a client waits for an answer,
    so an invalid command line is also reported to it.
    """
    return run_with_output(lambda: _run(argv, greeted))


def _run(argv: Sequence[str], greeted: GreetedInput | None) -> int:
    try:
        if argv[:1] == ["claude"]:
            # All its arguments belong to Claude Code, including `--help` and `--version`.
            return int(_module("claude").run_claude(argv[1:]))
        names, extensions = _needed(argv[0])
        arguments = build_parser(names, extensions).parse_args(argv, argparse.Namespace(greeted=greeted))
        return int(arguments.run(arguments))
    except _Misuse as error:
        print(error.usage, end="", file=sys.stderr)
        if greeted is None or any(argument.startswith("--ht") for argument in argv):
            print(f"claude-code-mcp: {error.message}", file=sys.stderr)
            return int(ExitCode.MISUSE)
        return int(_module("serve").refuse(error, greeted))
    except ClaudeCodeError as error:
        from ..core.model.text import visible  # noqa: PLC0415 - only here, and it takes its time

        print(f"claude-code-mcp: {visible(error.message)}", file=sys.stderr)  # names of files may be in it
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def _needed(first: str) -> tuple[Sequence[str], Sequence[Command]]:
    """The commands of ours and of plug-ins that a command line needs; no other command is imported, since a client or a
    person waits."""
    if first in COMMANDS and first != _EXTENDED:
        return (first,), ()
    if first.startswith("-"):
        return tuple(COMMANDS), plugin_commands()
    own = (first,) if first in COMMANDS else ()
    # Bundled plug-ins are found by their directories, others only by reading the installed distributions.
    bundled = [command for plugin in bundled_plugins() for command in plugin.commands()]
    found = [command for command in bundled if command.name.partition(" ")[0] == first]
    if own or not found:
        found = [command for command in plugin_commands() if command.name.partition(" ")[0] == first]
    if not own and not found:
        known = [*COMMANDS, *(command.name for command in plugin_commands())]
        raise _Misuse(f"there is no command {first!r}.{suggestion(first, known)}", _USAGE)
    return own, found


def plugin_commands() -> Sequence[Command]:
    """The commands of all installed plug-ins."""
    return [command for plugin in all_plugins() for command in plugin.commands()]


_USAGE = "usage: claude-code-mcp COMMAND …; `claude-code-mcp --help` lists all of them\n"


class _Misuse(InvalidArgument):
    """A command line that does not parse; `usage` goes to stderr before the message."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _PrintVersion(argparse.Action):
    """Prints this version, its location, and the version of Claude Code that sessions run."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from .doctor import claude_code_in_use  # noqa: PLC0415 - no other command needs it

        print(f"claude-code-mcp {__version__}")
        print(f"installed in {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}")
        print(claude_code_in_use())
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Raises `_Misuse` where argparse would end the process, so that the reason can be reported to a waiting client."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        if action.nargs == "*":
            action.required = False  # argparse would name it where another argument is missing
        return action

    def error(self, message: str) -> NoReturn:
        message = _without_values(message)
        choice = _INVALID_CHOICE.search(message)
        near = suggestion(choice[1], re.findall(r"[\w-]+", choice[2])) if choice is not None else ""
        raise _Misuse(f"{message}.{near}" if near else message + self._missing(message), self.format_usage())

    def _missing(self, message: str) -> str:
        """Adds the names to choose from if the name of an action is missing."""
        if not message.startswith("the following arguments are required"):
            return ""
        below = next((action for action in self._actions if isinstance(action, argparse._SubParsersAction)), None)
        return f", one of {', '.join(below.choices)}" if below is not None else ""


_INVALID_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


def _without_values(message: str) -> str:
    """A message of argparse that repeats options it does not know, without their values: these may be secrets."""
    start, separator, unknown = message.partition("unrecognized arguments: ")
    if not separator:
        return message
    options = [option for option in unknown.split(" ") if re.fullmatch(r"--?[A-Za-z][A-Za-z-]{0,30}", option)]
    return f"{start}{separator}{' '.join(options)}" if options else f"{start}too many arguments"


def build_parser(
    names: Sequence[str] = tuple(COMMANDS), extensions: Sequence[Command] | None = None
) -> argparse.ArgumentParser:
    """The parser with these commands of ours and of plug-ins (all of them by default); each sets `run` to the function
    that takes the parsed arguments. A mistake on the command line raises InvalidArgument instead of ending the
    process."""
    parser = _Parser(
        prog="claude-code-mcp",
        description=_DESCRIPTION,
        epilog=_FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action=_PrintVersion, nargs=0, help="show the versions and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in dict.fromkeys(COMMANDS[name] for name in names):
        import_module(f".{module}", __package__).add_to(commands)
    for extension in plugin_commands() if extensions is None else extensions:
        above = extension.name.rpartition(" ")[0]
        if above and above not in commands.choices:
            continue  # a subcommand of a command that is not requested
        module_name, _, function = extension.add.partition(":")
        getattr(import_module(module_name), function)(_below(commands, above) if above else commands)
    return parser


def _below(commands: Any, name: str) -> Any:
    """The subparsers of a command."""
    parser = commands.choices[name]
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


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
            # Here and not at the end of the interpreter, whose own message about a broken pipe could not be prevented.
            if sys.stdout is not None:
                sys.stdout.flush()
    except (BrokenPipeError, BaseExceptionGroup) as error:
        if isinstance(error, BaseExceptionGroup) and error.split(BrokenPipeError)[1] is not None:
            raise
        _discard_output()
        return 0
    except OSError as error:
        # An error with a file name concerns the file, not the output: the caller that uses the file handles it.
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


def _discard_output() -> None:
    """Redirect the buffered output to the null device: the interpreter flushes again when it ends."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
