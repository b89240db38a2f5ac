"""What the verbs share: which server they go to, the session they are about, and failures as exit codes."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from ..client.connections import Target
from ..client.live_sessions import LiveSessions
from ..errors import ClaudeCodeError
from ..shared.client import CallFailed, NotRunning
from .flags import add_json, print_json

Verb = Callable[[LiveSessions, argparse.Namespace], int]


def add_verb(commands: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int]) -> Any:
    """A command that is a client of a server."""
    parser = commands.add_parser(name, help=summary)
    parser.add_argument("--url", metavar="URL", help="a server that runs with --http, instead of the shared one")
    parser.add_argument("--token", metavar="TOKEN", help="the token for --url (default: CLAUDE_CODE_MCP_TOKEN)")
    parser.add_argument("--config", metavar="FILE", help="the TOML file with settings that the shared server has")
    add_json(parser)
    parser.set_defaults(run=run)
    return parser


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="its id, the beginning of it, or its title")


def target_of(arguments: argparse.Namespace) -> Target:
    return Target(arguments.url, arguments.token, arguments.config, getattr(arguments, "own", False))


def at_running_server(verb: Verb) -> Callable[[argparse.Namespace], int]:
    """Runs a verb on a server that must be running already."""
    return lambda arguments: _failures_as_code(lambda: _joined(verb, arguments))


def at_server(verb: Verb) -> Callable[[argparse.Namespace], int]:
    """Runs a verb on a server that is started if need be."""
    return lambda arguments: _failures_as_code(lambda: _opened(verb, arguments))


def _joined(verb: Verb, arguments: argparse.Namespace) -> int:
    with target_of(arguments).join() as client:
        return verb(LiveSessions(client), arguments)


def _opened(verb: Verb, arguments: argparse.Namespace) -> int:
    with target_of(arguments).open() as client:
        return verb(LiveSessions(client), arguments)


def _failures_as_code(work: Callable[[], int]) -> int:
    """What is refused, not there or not running is 1 with a line on stderr. A mistake in the call stays one, 2."""
    try:
        return work()
    except CallFailed as error:
        return failed(str(error))
    except NotRunning as error:
        return failed(f"{error}; sessions are kept, and the next message to one resumes it")
    except ClaudeCodeError as error:
        if error.code == "INVALID_ARGUMENT":
            raise
        return failed(error.message)


def failed(problem: str) -> int:
    print(f"claude-code-mcp: {problem}", file=sys.stderr)
    return 1


def print_outcome(arguments: argparse.Namespace, report: dict[str, Any], text: str) -> None:
    """What came of a verb: the server's own report as JSON, or a line."""
    print_json(report) if arguments.json else print(text)
