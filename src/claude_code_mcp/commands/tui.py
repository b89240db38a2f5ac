"""`tui`: sessions, conversations and questions in the terminal. A client of the server, like every other."""

import argparse
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ..claude.executable import find_executable
from ..client.live_sessions import LiveSessions
from ..config import load_settings
from ..errors import InvalidArgument
from ..shared.client import McpClient
from .verbs import target_of

_INSTALL = (
    "the terminal interface needs Textual: `pip install 'claude-code-mcp[tui]'`, or in a clone `pip install '.[tui]'`."
)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "tui",
        help="watch, answer and steer sessions in the terminal",
        description="All sessions of the shared server, which is started if need be: conversations as they happen, "
        "open questions, new sessions. `?` shows the keys. Leaving it ends no session.",
    )
    parser.add_argument("session", nargs="?", help="open this one: its id, the beginning of it, or its title")
    parser.add_argument("--url", metavar="URL", help="a server that runs with --http, instead of the shared one")
    parser.add_argument("--token", metavar="TOKEN", help="the token for --url (default: CLAUDE_CODE_MCP_TOKEN)")
    parser.add_argument("--config", metavar="FILE", help="the TOML file with settings that the shared server has")
    parser.add_argument(
        "--own", action="store_true", help="on a server that is started for this and ends with it, not the shared one"
    )
    parser.add_argument("--light", action="store_true", help="for a light background (Ctrl+T switches)")
    parser.add_argument("--demo", action="store_true", help="on a scripted model, with no account: see what it does")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if find_spec("textual") is None:
        raise InvalidArgument(_INSTALL)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgument("tui needs a terminal; `ps`, `questions` and `answer` do without.")
    if arguments.demo:
        return _run_demo(arguments.light)
    target = target_of(arguments)
    session_id = None
    if arguments.session is not None:
        with target.open() as client:
            session_id = LiveSessions(client).find(arguments.session)
    return _run_app(target.open, os.getcwd(), session_id=session_id, light=arguments.light)


def _run_demo(light: bool) -> int:
    from .tui_demo import demo_server  # noqa: PLC0415 - only the demo needs the scripted model

    executable = find_executable(load_settings().claude_path)  # refused now, in one line
    with demo_server(executable) as (server, sessions):
        started = server.start_sessions(sessions)
        return _run_app(server.open, str(server.sandbox.project), session_id=started["shop"], light=light)


def _run_app(
    open_client: Callable[[], McpClient], directory: str, *, session_id: str | None = None, light: bool = False
) -> int:
    """Runs the interface until the person leaves it; the exit code is 1 if it broke."""
    from ..tui.application import Tui  # noqa: PLC0415 - after it is known to be installed

    app = Tui(open_client, directory, session_id=session_id, light=light)
    app.run()
    return app.return_code or 0
