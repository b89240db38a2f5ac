"""`web`: a link to the console, for this browser or for a phone."""

import argparse
import http.client
import json
import os
import time
import webbrowser
from typing import Any

from ..client.http_client import address_of
from ..config import load_settings
from ..errors import ClaudeCodeError
from ..processes.environment import OWN_PREFIX
from ..shared import client
from . import shared
from .flags import add_json, print_json

_TIMEOUT = 30.0
_TOKEN = f"{OWN_PREFIX}TOKEN"


def add_to(commands: Any) -> None:
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
    shared.add_settings(parser)
    parser.set_defaults(run=_run, http=None)


def _run(arguments: argparse.Namespace) -> int:
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
    where = shared.running_place(arguments)
    try:
        answer, connection = client.ask_server(where, "web")
    except client.NotRunning as error:
        raise ClaudeCodeError(f"The shared server gives no link: {error}.") from None
    connection.close()
    if "url" not in answer:
        reason = answer.get("error") or "It is of an older version; `claude-code-mcp shared restart` renews it."
        raise ClaudeCodeError(reason)
    return {"url": answer["url"], "address": answer["address"], "expires_at": int(answer["expires_at"])}


def _from_url(arguments: argparse.Namespace) -> dict[str, Any]:
    """Asks a server over HTTP, as the caller with the token. A server that lets everybody in needs no ticket."""
    parts = address_of(arguments.url)
    base, token = f"{parts.scheme}://{parts.netloc}/", arguments.token or os.environ.get(_TOKEN)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        connection.request("POST", "/api/tickets", b"{}", headers)
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read(1 << 20))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ClaudeCodeError(f"{base} gives no link: {error}") from None
    finally:
        connection.close()
    if status == http.client.OK:
        return {"url": answer["url"], "address": base, "expires_at": answer["expiresAt"]}
    if answer.get("signIn", {}).get("open"):
        return {"url": base, "address": base, "expires_at": None}
    raise ClaudeCodeError(f"{base} gives no link: {answer.get('error', {}).get('message') or status}")


def _print_link(found: dict[str, Any]) -> None:
    from ..web.qr_code import qr_rows, qr_text  # noqa: PLC0415

    rows = qr_rows(found["url"])
    if rows is not None:
        print(qr_text(rows))
    print(found["url"])
    expires_at = found["expires_at"]
    if expires_at is not None:
        until = time.strftime("%H:%M", time.localtime(expires_at)) if isinstance(expires_at, int) else expires_at
        print(f"It signs in one browser, once, until {until}. Whoever has it is you: do not pass it on.")


def _sign_out_all(arguments: argparse.Namespace) -> int:
    from ..state.sign_ins import SignIns  # noqa: PLC0415
    from ..state.state_directory import database_in  # noqa: PLC0415

    ended = SignIns(database_in(load_settings(file=arguments.config).state_dir)).end_all(None)
    print_json({"ended": ended}) if arguments.json else print(f"{ended} sign-ins were ended.")
    return 0
