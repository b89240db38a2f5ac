"""`web`: a link to the console in the browser."""

import argparse
import http.client
import json
import os
import sys
import time
import webbrowser
from collections.abc import Callable
from typing import Any

from ...client.connections import NotRunning, address_of, ask_server
from ...client.conventions import Unavailable, add_json, print_json, print_outcome
from ...client.setting_flags import add_settings
from ...client.shared_server import running_place
from ...core.config import load_settings
from ...core.errors import InvalidArgument
from ...core.processes.environment import OWN_PREFIX
from ...startup.shared.place import Place

_TIMEOUT = 30.0
_TOKEN = f"{OWN_PREFIX}TOKEN"


def add_web(commands: Any) -> None:
    parser = commands.add_parser(
        "web",
        help="print a link to the console, for a browser or a phone",
        description="Prints a link that signs one browser in to the console. The console belongs to the shared server, "
        "which is started if needed and listens on 127.0.0.1; with --url, to a server that runs with --http. For a "
        "phone use --lan or --tunnel, which also print a QR code if the extra `web` is installed.",
    )
    parser.add_argument(
        "--url", metavar="URL", help="URL of a server that runs with --http (default: the shared server)"
    )
    parser.add_argument("--token", metavar="TOKEN", help=f"the token for --url (default: {_TOKEN})")
    phone = parser.add_mutually_exclusive_group()
    phone.add_argument(
        "--tunnel",
        choices=("cloudflared", "tailscale"),
        help="start this tunnel, so that a phone can open the link, until Ctrl+C",
    )
    phone.add_argument(
        "--lan",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="serve the console over TLS on this machine's address in the local network, until Ctrl+C",
    )
    parser.add_argument("--open", action="store_true", help="also open the link in a browser on this machine")
    parser.add_argument(
        "--sign-out-all",
        action="store_true",
        help="print no link; sign out every browser, even if no server is running",
    )
    add_json(parser)
    add_settings(parser)
    parser.set_defaults(run=_run_web, http=None)


def _run_web(arguments: argparse.Namespace) -> int:
    if arguments.sign_out_all:
        return _sign_out_all(arguments)
    show = print_json if arguments.json else _print_link
    if arguments.tunnel is not None or arguments.lan is not None:
        if arguments.url:
            raise InvalidArgument("--tunnel and --lan are for the console of the shared server: omit --url.")
        return _serve_phone(arguments, show)
    found = _from_url(arguments) if arguments.url else _from_shared(running_place(arguments))
    show(found)
    if arguments.open:
        webbrowser.open(found["url"])
    return 0


def _serve_phone(arguments: argparse.Namespace, show: Callable[[Any], None]) -> int:
    from .phone import serve_phone  # noqa: PLC0415 - starts programs, which no link needs

    where = running_place(arguments)
    state_dir = load_settings(file=arguments.config).state_dir

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    return serve_phone(state_dir, arguments.tunnel, arguments.lan, lambda: _from_shared(where), show, say)


def _from_shared(where: Place) -> dict[str, Any]:
    try:
        answer, connection = ask_server(where, "web")
    except NotRunning as error:
        raise Unavailable(f"The shared server did not return a link: {error}.") from None
    connection.close()
    if "url" not in answer:
        if answer.get("state") == "starting":
            raise Unavailable("The shared server is still starting; try again in a moment.")
        reason = answer.get("error") or "It runs an older version; `claude-code-mcp shared restart` updates it."
        raise Unavailable(reason)
    return {"url": answer["url"], "address": answer["address"], "expiresAt": int(answer["expires_at"])}


def _from_url(arguments: argparse.Namespace) -> dict[str, Any]:
    """Asks a server over HTTP, as the caller with the token. A server without authentication needs no ticket."""
    parts = address_of(arguments.url)
    base, token = f"{parts.scheme}://{parts.netloc}/", arguments.token or os.environ.get(_TOKEN)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        # `http.client` follows no redirects: the token is sent only to the given address.
        connection.request("POST", "/api/tickets", b"{}", headers)
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read(1 << 20))
    except OSError as error:
        raise Unavailable(f"{base} cannot be reached ({error.strerror or error}).") from None
    except (http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{base} is not a claude-code-mcp server ({error}).") from None
    finally:
        connection.close()
    if status == http.client.OK:
        return {"url": answer["url"], "address": base, "expiresAt": answer["expiresAt"]}
    if answer.get("signIn", {}).get("open"):
        return {"url": base, "address": base, "expiresAt": None}
    raise Unavailable(f"{base} did not return a link: {answer.get('error', {}).get('message') or status}")


def _print_link(found: dict[str, Any]) -> None:
    from .phone_address import HINT, is_only_here  # noqa: PLC0415
    from .sign_in_routes import qr_rows, qr_text  # noqa: PLC0415

    only_here = is_only_here(found["address"])
    rows = None if only_here else qr_rows(found["url"])
    if rows is not None:
        print(qr_text(rows))
    print(found["url"])
    expires_at = found["expiresAt"]
    if expires_at is not None:
        until = time.strftime("%H:%M", time.localtime(expires_at)) if isinstance(expires_at, int) else expires_at
        print(f"The link works once, in one browser, until {until}. Anyone who opens it acts as you: do not share it.")
    if only_here:
        print(f"\n{HINT}")
    sys.stdout.flush()


def _sign_out_all(arguments: argparse.Namespace) -> int:
    from ...core.state.state_directory import database_in  # noqa: PLC0415
    from .sign_ins import SignIns  # noqa: PLC0415

    ended = SignIns(database_in(load_settings(file=arguments.config).state_dir)).end_all(None)
    return print_outcome(arguments, {"ended": ended}, f"{ended} sign-ins were ended.")
