"""`claude-code-mcp terminal`: connects Claude Code sessions in terminals with this user's servers."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from ...client.conventions import add_config_file, add_json, print_outcome
from ...core.config import Settings, load_settings
from ...core.errors import ClaudeCodeError, InvalidArgument
from ...plugin import Finding
from .installation import ConnectionStatus, Installation

_CONNECT = "claude-code-mcp terminal connect"


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


def _on(step: Callable[[argparse.Namespace, Installation], int]) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        if sys.platform == "win32":
            raise InvalidArgument("Terminals cannot be connected on Windows: there are no Unix sockets.")
        return step(arguments, Installation(load_settings(file=arguments.config), os.environ))

    return run


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
    return print_outcome(arguments, asdict(found), "\n".join(lines).rstrip())


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
