"""Commands that are clients of a server: selects the server and runs the command on it."""

import argparse
from collections.abc import Callable

from .connections import CallFailed, McpClient, NotRunning, Target
from .conventions import Unavailable, exit_code_of, failed
from .live_sessions import LiveSessions

Verb = Callable[[LiveSessions, argparse.Namespace], int]


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select the server."""
    parser.add_argument(
        "--url", metavar="URL", help="URL of a server that runs with --http (default: the shared server)"
    )
    parser.add_argument("--token", metavar="TOKEN", help="the token for --url (default: CLAUDE_CODE_MCP_TOKEN)")
    parser.add_argument("--config", metavar="FILE", help="the settings file that the shared server uses")


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own", action="store_true", help="use a separate server for this command instead of the shared server"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    return Target(arguments.url, arguments.token, arguments.config, getattr(arguments, "own", False))


def at_running_server(verb: Verb) -> Callable[[argparse.Namespace], int]:
    """Run a verb on a server that must already be running."""
    return lambda arguments: _run(verb, arguments, target_of(arguments).join)


def at_server(verb: Verb) -> Callable[[argparse.Namespace], int]:
    """Run a verb on a server, starting it if needed."""
    return lambda arguments: _run(verb, arguments, target_of(arguments).open)


def _run(verb: Verb, arguments: argparse.Namespace, connect: Callable[[], McpClient]) -> int:
    """Run a verb and return its exit code. A server's refusal or end is a line on stderr; our own errors are raised."""
    try:
        with connect() as client:
            return verb(LiveSessions(client), arguments)
    except CallFailed as error:
        return failed(str(error), exit_code_of(error.code))
    except NotRunning as error:
        raise Unavailable(f"{error}; sessions are kept, and the next message to one resumes it") from None
