"""`mcp`: the MCP servers of the hub, from the shell. Only the command line is here; what it does is in `servers`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PATIENCE = 30.0
_KINDS = {
    "http": "a remote server over streamable HTTP",
    "sse": "a remote server over server-sent events, as before 2025",
    "ws": "a remote server over a WebSocket",
}


class _Action(argparse.ArgumentParser):
    """Where an action takes a command, that is all that stands after `--`, whatever it looks like."""

    takes_command = False

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        if not self.takes_command:
            return super().parse_known_args(args, namespace)
        given = list(args or ())
        end = given.index("--") if "--" in given else len(given)
        found, unknown = super().parse_known_args(given[:end], namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)} (the command of a server goes after --)")
        found.command = given[end + 1 :]
        return found, unknown


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "mcp",
        help="configure, look at and call the MCP servers of the hub, or try any other",
        description="The MCP servers that the hub shares: those of our own file, and with --all or "
        "CLAUDE_CODE_MCP_HUB=all those of ~/.claude.json and .mcp.json too. Only our own file is ever changed.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=_Action)
    _configuring(actions)
    _looking(actions)
    _using(actions)
    _connecting(actions)


def _configuring(actions: Any) -> None:
    listing = actions.add_parser("list", help="what is configured, and where; connects to nothing")
    _places(listing)
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(run=_configure, action="list")
    add = actions.add_parser(
        "add",
        help="configure a server in our own file",
        usage="%(prog)s NAME [--env NAME=VALUE] [--force] -- COMMAND [ARGUMENT …]\n"
        "       %(prog)s NAME --url URL [--transport {http,sse,ws}] [--header 'NAME: VALUE'] [--force]",
        description="${VARIABLE} and ${VARIABLE:-default} are kept as they are and replaced when the server is used.",
    )
    add.takes_command = True
    add.add_argument("name", metavar="NAME", help="letters, digits, _ and -")
    add.add_argument("--url", help="the address of a remote server")
    add.add_argument("--transport", choices=tuple(_KINDS), help="how it is spoken to (default: what the address says)")
    add.add_argument("--force", action="store_true", help="replace the one of this name")
    _secrets(add, "header", "env")
    _places(add)
    add.set_defaults(run=_configure, action="add")
    for name, told in (
        ("remove", "take a server out of our own file"),
        ("enable", "let a server of our own file be used again"),
        ("disable", "keep a server of our own file, but do not use it"),
    ):
        action = actions.add_parser(name, help=told)
        action.add_argument("name", metavar="NAME")
        _places(action)
        action.set_defaults(run=_configure, action=name)


def _looking(actions: Any) -> None:
    status = actions.add_parser("status", help="connect to servers and tell how they stand")
    tools = actions.add_parser("tools", help="the tools of all servers, or of one")
    for action, name in ((status, "status"), (tools, "tools")):
        action.add_argument("servers", nargs="*", metavar="SERVER", help="only these")
        action.add_argument("--json", action="store_true", help="as JSON")
        action.add_argument(
            "--patience", type=float, default=_PATIENCE, metavar="SECONDS", help="how long to wait (default 30)"
        )
        _places(action)
        action.set_defaults(run=_use, action=name)


def _using(actions: Any) -> None:
    call = actions.add_parser(
        "call",
        help="call a tool",
        description="Prints what the tool answers; its progress goes to standard error. Ends with 1 when the tool "
        "says that it failed.",
    )
    call.add_argument("server", metavar="SERVER")
    call.add_argument("tool", metavar="TOOL")
    call.add_argument(
        "arguments",
        nargs="*",
        metavar="JSON | NAME=VALUE",
        help="one object, - to read it from standard input, or pairs",
    )
    call.add_argument("--json", action="store_true", help="print the whole result as JSON")
    call.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after this long")
    _places(call)
    call.set_defaults(run=_use, action="call")
    for name, told in (("login", "sign in to a remote server"), ("logout", "forget the tokens for a server")):
        action = actions.add_parser(name, help=told)
        action.add_argument("server", metavar="SERVER")
        if name == "login":
            action.add_argument(
                "--timeout", type=float, default=300.0, metavar="SECONDS", help="how long to wait (default 300)"
            )
        _places(action)
        action.set_defaults(run=_use, action=name)


def _connecting(actions: Any) -> None:
    connect = actions.add_parser(
        "connect",
        help="try a server that need not be configured: a small interactive client",
        description="Connects, tells what is there, and reads commands line by line until the end of input, `quit` "
        "or Ctrl-C. `help` lists them.",
    )
    kinds = connect.add_subparsers(title="kinds", metavar="KIND", required=True, parser_class=argparse.ArgumentParser)
    stdio = kinds.add_parser(
        "stdio", help="a program on this machine", usage="%(prog)s [--env NAME=VALUE] COMMAND [ARGUMENT …]"
    )
    _secrets(stdio, "env")
    stdio.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    stdio.set_defaults(run=_connect, kind="stdio", url=None, header=[])
    for kind, told in _KINDS.items():
        remote = kinds.add_parser(kind, help=told)
        remote.add_argument("url", metavar="URL")
        _secrets(remote, "header")
        remote.set_defaults(run=_connect, kind=kind, command=[], env=[])


def _secrets(parser: argparse.ArgumentParser, *names: str) -> None:
    """Parsed by the action, not here: argparse repeats what it does not like, and that may be a secret."""
    if "header" in names:
        parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent every time")
    if "env" in names:
        parser.add_argument(
            "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the program"
        )


def _places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also the servers that Claude Code is configured with")
    parser.add_argument(
        "--project", type=Path, default=Path(), metavar="DIR", help="whose .mcp.json counts (default: this directory)"
    )


def _configure(arguments: argparse.Namespace) -> int:
    from . import configure as entries  # noqa: PLC0415 - what an action needs is loaded when it is called

    return entries.ACTIONS[arguments.action](arguments)


def _use(arguments: argparse.Namespace) -> int:
    from . import live as use  # noqa: PLC0415 - loads the MCP SDK

    return use.ACTIONS[arguments.action](arguments)


def _connect(arguments: argparse.Namespace) -> int:
    from . import connect  # noqa: PLC0415 - loads the MCP SDK

    return connect.connect(arguments)
