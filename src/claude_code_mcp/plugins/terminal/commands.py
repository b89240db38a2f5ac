"""`claude-code-mcp terminal`: connects Claude Code sessions in terminals with this user's servers."""

import argparse
import asyncio
import os
import sys
import webbrowser
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...client.conventions import add_config_file, add_json, print_outcome
from ...core.config import Settings, load_settings
from ...core.errors import ClaudeCodeError, InvalidArgument
from ...core.model.text import visible
from ...core.private_files import read_secret
from ...plugin import Finding
from .forwarding_target import ForwardingPlace, ForwardingTarget, new_target
from .installation import ConnectionStatus, Installation

_CONNECT = "claude-code-mcp terminal connect"
_FORWARD = "claude-code-mcp terminal forward"
_MAX_TOKEN = 10_000


def add_terminal(commands: Any) -> None:
    parser = commands.add_parser(
        "terminal",
        help="answer the questions of `claude` in a terminal from the console, the phone or another client",
        description="Installs or removes a plugin for Claude Code. While it is installed, sessions that you start with "
        "`claude` in a terminal are listed with all others, and their questions can be answered in the terminal and "
        "in any client; the first answer counts.",
    )
    steps = parser.add_subparsers(title="steps", metavar="STEP", required=True)
    for name, summary, run in (
        ("connect", "install the plugin for Claude Code", _connect),
        ("disconnect", "remove the plugin and restore the settings", _disconnect),
        ("status", "show whether terminals are connected", _status),
    ):
        step = steps.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        add_config_file(step)
        add_json(step)
        step.set_defaults(run=_on(run))
    forward = steps.add_parser(
        "forward",
        help="also show the terminals on another server",
        description="From now on, the questions of your terminals also appear on another server, for example your "
        "team's server, and can be answered there. It gets the directory and first message of each terminal session, "
        "and its questions. Your policy applies to every answer.",
    )
    forward.add_argument("url", nargs="?", metavar="URL", help="the server, such as https://team.example.com")
    forward.add_argument(
        "--token-file", metavar="FILE", help="your token there; - reads it from standard input (default: sign in)"
    )
    forward.add_argument("--off", action="store_true", help="stop forwarding")
    add_config_file(forward)
    add_json(forward)
    forward.set_defaults(run=_forward)


def _on(step: Callable[[argparse.Namespace, Installation], int]) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        _refuse_windows()
        return step(arguments, Installation(load_settings(file=arguments.config), os.environ))

    return run


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise InvalidArgument("Terminals cannot be connected on Windows: there are no Unix sockets.")


def _connect(arguments: argparse.Namespace, installation: Installation) -> int:
    found = installation.connect()
    lines = [
        f"Connected: Claude Code {found.version or 'of an unknown version'} ({found.claude}).",
        "Start `claude` as usual. Open sessions are connected after they are restarted.",
    ]
    return print_outcome(arguments, asdict(found), "\n".join(lines))


def _disconnect(arguments: argparse.Namespace, installation: Installation) -> int:
    was_there = installation.disconnect()
    return print_outcome(arguments, {"removed": was_there}, "Removed." if was_there else "It was not installed.")


def _status(arguments: argparse.Namespace, installation: Installation) -> int:
    found = installation.status()
    line = "Connected." if found.connected else f"Not connected. Connect with `{_CONNECT}`."
    lines = [line, f"Claude Code {found.version or 'of an unknown version'}: {found.claude}", found.problem or ""]
    place = ForwardingPlace(load_settings(file=arguments.config).state_dir)
    try:
        target = place.read()
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidArgument(
            f"{place.file} cannot be read. Run `{_FORWARD}` again, with the server or --off."
        ) from None
    if target is not None:
        lines.append(f"The terminals are also shown on {target.url}.")
    outcome = {**asdict(found), "forwardedTo": target.url if target is not None else None}
    return print_outcome(arguments, outcome, "\n".join(filter(None, lines)))


def _forward(arguments: argparse.Namespace) -> int:
    _refuse_windows()
    place = ForwardingPlace(load_settings(file=arguments.config).state_dir)
    if arguments.off:
        was_there = place.remove()
        return print_outcome(arguments, {"removed": was_there}, "Forwarding is off.")
    if arguments.url is None:
        raise InvalidArgument("Pass the address of the server, or --off.")
    target = new_target(arguments.url, _token_in(arguments.token_file) if arguments.token_file is not None else None)
    principal = asyncio.run(_sign_in(place, target))
    place.write(target)
    text = f"Your terminals are shown on {target.url}, to {visible(principal)}. Stop with `{_FORWARD} --off`."
    return print_outcome(arguments, {"url": target.url, "principal": principal}, text)


def _token_in(file: str) -> str:
    try:
        return (sys.stdin.readline(_MAX_TOKEN) if file == "-" else read_secret(Path(file), _MAX_TOKEN)).strip()
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}.") from None


async def _sign_in(place: ForwardingPlace, target: ForwardingTarget) -> str:
    """The name that the server has for this person, after signing in there if there is no token."""
    from .forwarding_connection import ForwardingConnection, sign_in_at  # noqa: PLC0415 - takes a while
    from .forwarding_messages import Report  # noqa: PLC0415

    async def show(url: str) -> None:
        sys.stderr.write(f"Sign in with your browser:\n{url}\n")
        await asyncio.to_thread(webbrowser.open, url)

    if target.token is None:
        await sign_in_at(place, target, show)
    async with ForwardingConnection(place, target) as connection:
        return (await connection.send(Report(client=target.client, revision="unknown"))).principal


def check_terminal(settings: Settings) -> Iterable[Finding]:
    """Whether terminals are connected; nothing for users who have not connected them."""
    if sys.platform == "win32":
        return []
    installation = Installation(settings, os.environ)
    if not installation.is_connected():
        return []
    try:
        found: ConnectionStatus = installation.status()
    except ClaudeCodeError as problem:
        return [Finding("terminals", ok=False, detail=problem.message, fix=f"run `{_CONNECT}` again")]
    if found.problem is not None:
        return [Finding("terminals", ok=False, detail=found.problem, fix="run `claude update`")]
    if not installation.directory.is_dir():
        return [Finding("terminals", ok=False, detail="the plugin's files are missing", fix=f"run `{_CONNECT}` again")]
    return [Finding("terminals", ok=True, detail=f"connected, Claude Code {found.version}")]
