"""`tui` and `web`: the terminal interface, and a link to the console in the browser."""

import argparse
import http.client
import json
import os
import sys
import time
import webbrowser
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ..client.connections import McpClient, NotRunning, address_of, ask_server
from ..client.live_sessions import LiveSessions
from ..core.claude.executable import find_executable
from ..core.config import load_settings
from ..core.errors import InvalidArgument
from ..core.installation import extra_command
from ..core.processes.environment import OWN_PREFIX
from .conventions import Unavailable, add_json, print_json, print_outcome
from .running_sessions import add_own, add_target, target_of
from .serve import add_settings, running_place


def add_to(commands: Any) -> None:
    _add_tui(commands)
    _add_web(commands)


def _add_tui(commands: Any) -> None:
    parser = commands.add_parser(
        "tui",
        help="watch, answer and steer sessions in the terminal",
        description="All sessions of the shared server, which is started if need be: conversations as they happen, "
        "open questions, new sessions. `?` shows the keys. Leaving it ends no session.",
    )
    parser.add_argument("session", nargs="?", help="open this one: its id, the beginning of it, or its title")
    add_target(parser)
    add_own(parser)
    parser.add_argument("--light", action="store_true", help="for a light background (Ctrl+T switches)")
    parser.add_argument("--demo", action="store_true", help="on a scripted model, with no account: see what it does")
    parser.set_defaults(run=_run_tui)


def _run_tui(arguments: argparse.Namespace) -> int:
    if find_spec("textual") is None:
        raise InvalidArgument(f"The terminal interface needs Textual: `{extra_command('tui')}`.")
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
    from .demo import demo_server  # noqa: PLC0415 - the scripted model is for this alone

    executable = find_executable(load_settings().claude_path)  # refused now, in one line
    with demo_server(executable) as (server, sessions):
        started = server.start_sessions(sessions)
        return _run_app(server.open, str(server.sandbox.project), session_id=started["shop"], light=light)


def _run_app(
    open_client: Callable[[], McpClient], directory: str, *, session_id: str | None = None, light: bool = False
) -> int:
    """Runs the interface until the person leaves it; the exit code is 1 if it broke."""
    from ..plugins.tui.application import Tui  # noqa: PLC0415 - after it is known to be installed

    app = Tui(open_client, directory, session_id=session_id, light=light)
    app.run()
    return app.return_code or 0


# -- web --------------------------------------------------------------------------------------------------------------


_TIMEOUT = 30.0
_TOKEN = f"{OWN_PREFIX}TOKEN"


def _add_web(commands: Any) -> None:
    parser = commands.add_parser(
        "web",
        help="a link to the console in the browser",
        description="Prints a link, and a QR code of it where the extra `web` is installed, with which a browser signs "
        "in once at the console: that of the shared server, which is started if need be and opens a port on loopback "
        "for it, or that of a server that runs with --http.",
    )
    parser.add_argument("--url", metavar="URL", help="a server that runs with --http, instead of the shared one")
    parser.add_argument("--token", metavar="TOKEN", help=f"the token for --url (default: {_TOKEN})")
    parser.add_argument("--open", action="store_true", help="open the link in a browser of this machine, too")
    parser.add_argument(
        "--sign-out-all",
        action="store_true",
        help="give no link, but end every sign-in of every browser, whether a server runs or not",
    )
    add_json(parser)
    add_settings(parser)
    parser.set_defaults(run=_run_web, http=None)


def _run_web(arguments: argparse.Namespace) -> int:
    if arguments.sign_out_all:
        return _sign_out_all(arguments)
    found = _from_url(arguments) if arguments.url else _from_shared(arguments)
    if arguments.json:
        print_json(found)
    else:
        _print_link(found)
    if arguments.open:
        webbrowser.open(found["url"])
    return 0


def _from_shared(arguments: argparse.Namespace) -> dict[str, Any]:
    where = running_place(arguments)
    try:
        answer, connection = ask_server(where, "web")
    except NotRunning as error:
        raise Unavailable(f"The shared server gives no link: {error}.") from None
    connection.close()
    if "url" not in answer:
        if answer.get("state") == "starting":
            raise Unavailable("The shared server is still starting; try again in a moment.")
        reason = answer.get("error") or "It is of an older version; `claude-code-mcp shared restart` renews it."
        raise Unavailable(reason)
    return {"url": answer["url"], "address": answer["address"], "expiresAt": int(answer["expires_at"])}


def _from_url(arguments: argparse.Namespace) -> dict[str, Any]:
    """Asks a server over HTTP, as the caller with the token. A server that lets everybody in needs no ticket."""
    parts = address_of(arguments.url)
    base, token = f"{parts.scheme}://{parts.netloc}/", arguments.token or os.environ.get(_TOKEN)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        # `http.client` follows no redirects: the token goes nowhere but to the address that was given.
        connection.request("POST", "/api/tickets", b"{}", headers)
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read(1 << 20))
    except OSError as error:
        raise Unavailable(f"{base} gives no link: it cannot be reached ({error.strerror or error}).") from None
    except (http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{base} gives no link: what answers there is not claude-code-mcp ({error}).") from None
    finally:
        connection.close()
    if status == http.client.OK:
        return {"url": answer["url"], "address": base, "expiresAt": answer["expiresAt"]}
    if answer.get("signIn", {}).get("open"):
        return {"url": base, "address": base, "expiresAt": None}
    raise Unavailable(f"{base} gives no link: {answer.get('error', {}).get('message') or status}")


def _print_link(found: dict[str, Any]) -> None:
    from ..plugins.console.sign_in_routes import qr_rows, qr_text  # noqa: PLC0415

    rows = qr_rows(found["url"])
    if rows is not None:
        print(qr_text(rows))
    print(found["url"])
    expires_at = found["expiresAt"]
    if expires_at is not None:
        until = time.strftime("%H:%M", time.localtime(expires_at)) if isinstance(expires_at, int) else expires_at
        print(f"It signs in one browser, once, until {until}. Whoever has it is you: do not pass it on.")


def _sign_out_all(arguments: argparse.Namespace) -> int:
    from ..core.state.state_directory import database_in  # noqa: PLC0415
    from ..plugins.team.known_people import SignIns  # noqa: PLC0415

    ended = SignIns(database_in(load_settings(file=arguments.config).state_dir)).end_all(None)
    return print_outcome(arguments, {"ended": ended}, f"{ended} sign-ins were ended.")
