"""`tui`: the terminal interface."""

import argparse
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ...client.connections import McpClient
from ...client.live_sessions import LiveSessions
from ...client.targets import add_own, add_target, target_of
from ...core.claude.executable import find_executable
from ...core.config import load_settings
from ...core.errors import InvalidArgument
from ...core.installation import extra_command


def add_tui(commands: Any) -> None:
    parser = commands.add_parser(
        "tui",
        help="open the terminal interface for all sessions",
        description="Shows all sessions of the shared server, which is started if needed: live conversations and "
        "open questions. You can answer, and start sessions. `?` lists the keys. Sessions continue "
        "when you quit.",
    )
    parser.add_argument("session", nargs="?", help="session to open: its id, the start of its id, or its title")
    add_target(parser)
    add_own(parser)
    parser.add_argument("--light", action="store_true", help="use the light theme (Ctrl+T switches)")
    parser.add_argument("--demo", action="store_true", help="try it on a scripted model, without an account")
    parser.set_defaults(run=_run_tui)


def _run_tui(arguments: argparse.Namespace) -> int:
    if find_spec("textual") is None:
        raise InvalidArgument(f"The terminal interface needs Textual: `{extra_command('tui')}`.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgument("tui needs a terminal. `ps`, `questions` and `answer` work without one.")
    if arguments.demo:
        return _run_demo(arguments.light)
    target = target_of(arguments)
    session_id = None
    if arguments.session is not None:
        with target.open() as client:
            session_id = LiveSessions(client).find(arguments.session)
    return _run_app(target.open, os.getcwd(), session_id=session_id, light=arguments.light)


def _run_demo(light: bool) -> int:
    from ...cli.demo import demo_server  # noqa: PLC0415 - the scripted model is for this alone

    executable = find_executable(load_settings().claude_path)  # fails now, with a one-line message
    with demo_server(executable) as (server, sessions):
        started = server.start_sessions(sessions)
        return _run_app(server.open, str(server.sandbox.project), session_id=started["shop"], light=light)


def _run_app(
    open_client: Callable[[], McpClient], directory: str, *, session_id: str | None = None, light: bool = False
) -> int:
    """Runs the interface until the user quits; the exit code is 1 after an internal error."""
    from .application import Tui  # noqa: PLC0415 - after it is known to be installed

    app = Tui(open_client, directory, session_id=session_id, light=light)
    app.run()
    return app.return_code or 0
