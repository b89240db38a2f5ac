"""`claude-code-mcp mcp`: the MCP servers of the hub, from the shell, and an interactive client for any other.

`add_to` is the only public function: it adds the arguments of the actions. The actions are in `configure`, `live` and
`connect`, each of which is imported only when one of its actions is called.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...client.conventions import add_json, seconds

__all__ = ["add_to"]

_CONNECT_SECONDS = 30.0
_LOGIN_SECONDS = 300.0
_REMOTE_KINDS = {
    "http": "a remote server over streamable HTTP",
    "sse": "a remote server over server-sent events (the protocol before 2025)",
    "ws": "a remote server over a WebSocket",
}
_KINDS = ("server", "stdio", *_REMOTE_KINDS)


class _ActionParser(argparse.ArgumentParser):
    """A parser for actions with a special command line."""

    reads_line = False
    """Whether the action parses its line itself: argparse would repeat unknown parts of it in its messages, and these
    may be secrets."""
    finds_kind = False
    """Whether the kind of server to connect to may be omitted: an address shows its kind, and any other word is the
    name of a configured server."""
    options_anywhere = False
    """Whether options may also stand between the words of the line, not only before and after them."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        argv = list(args or ())
        if self.options_anywhere and "--" not in argv:
            self.options_anywhere = False  # for the two passes that follow, which call this method too
            try:
                return self.parse_known_intermixed_args(argv, namespace)
            finally:
                self.options_anywhere = True
        if not self.reads_line:
            return super().parse_known_args(_with_kind(argv) if self.finds_kind else argv, namespace)
        options = argv[: argv.index("--")] if "--" in argv else argv
        wants_help = [word for word in options if word in ("-h", "--help")][:1] if len(options) == 1 else []
        arguments, _ = super().parse_known_args(wants_help, namespace)
        arguments.line = argv
        return arguments, []


def _with_kind(argv: list[str]) -> list[str]:
    if not argv or argv[0].startswith("-") or argv[0] in _KINDS:
        return argv
    if "://" not in argv[0]:
        return ["server", *argv]
    return ["ws" if argv[0].startswith(("ws://", "wss://")) else "http", *argv]


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "mcp",
        help="configure, inspect and call MCP servers of the hub, or try another server",
        description="Manages the MCP servers that the hub shares: the servers in the hub's own file and, with "
        "--all or CLAUDE_CODE_MCP_HUB=all, those in ~/.claude.json and .mcp.json. Only the hub's own "
        "file is changed.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=_ActionParser)
    _add_configuring(actions)
    _add_lists(actions)
    _add_operations(actions)
    _add_watch(actions)
    _add_login_and_logout(actions)
    _add_connect(actions)


def _add_configuring(actions: Any) -> None:
    parser = actions.add_parser("list", help="list configured servers and their files, without connecting")
    _add_scope(parser)
    add_json(parser)
    parser.set_defaults(run=_configure, action="list")
    parser = actions.add_parser(
        "add",
        help="add a server to the hub's file; takes the arguments of `claude mcp add`",
        usage="%(prog)s NAME [-e NAME=VALUE …] [--force] -- COMMAND [ARGUMENT …]\n"
        "       %(prog)s NAME URL [-t {http,sse,ws}] [-H 'NAME: VALUE' …] [--force]",
        description="${VARIABLE} and ${VARIABLE:-default} are kept as they are and replaced when the server is used. "
        "-e or --env, -H or --header, -t or --transport, -s or --scope (accepted and ignored), "
        "--client-id, --client-secret and --callback-port are as in `claude mcp add`. --force replaces the "
        "server of this name.",
    )
    parser.reads_line = True
    parser.set_defaults(run=_configure, action="add")
    parser = actions.add_parser(
        "add-json",
        help="add a server to the hub's file from a JSON entry",
        usage="%(prog)s NAME JSON [--force]",
        description='JSON is an entry such as \'{"command": "npx", "args": ["-y", "a-server"]}\', or - to read it from '
        "standard input. -s or --scope is accepted and ignored; --client-secret goes into the "
        "entry. --force replaces the server of this name.",
    )
    parser.reads_line = True
    parser.set_defaults(run=_configure, action="add-json")
    parser = actions.add_parser("import", help="copy servers from another program into the hub's file")
    parser.add_argument(
        "source",
        metavar="PROGRAM | FILE",
        help="claude-desktop, claude-code, cursor, vscode, windsurf, gemini, or a file (a client's configuration "
        "or a registry's server.json)",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these servers")
    parser.add_argument("--force", action="store_true", help="replace servers with the same names")
    parser.add_argument(
        "--project", type=Path, default=Path(), metavar="DIR", help="also read the files of this project"
    )
    add_json(parser)
    parser.set_defaults(run=_configure, action="import")
    for action, summary in (
        ("get", "show the configuration of one server, without secrets"),
        ("remove", "remove a server from the hub's file"),
        ("enable", "enable a server in the hub's file"),
        ("disable", "disable a server in the hub's file without removing it"),
    ):
        parser = actions.add_parser(action, help=summary)
        parser.add_argument("name", metavar="NAME")
        add_json(parser)
        _add_scope(parser)
        parser.set_defaults(run=_configure, action=action)


def _add_lists(actions: Any) -> None:
    for action, summary in (
        ("status", "connect to the servers and show their status"),
        ("tools", "list the tools of all or some servers"),
        ("resources", "list the resources and resource templates of all or some servers"),
        ("prompts", "list the prompts of all or some servers"),
    ):
        parser = actions.add_parser(action, help=summary)
        parser.add_argument("servers", nargs="*", metavar="SERVER", help="only these servers")
        add_json(parser)
        _add_seconds(parser, "--connect-timeout", _CONNECT_SECONDS)
        _add_scope(parser)
        parser.set_defaults(run=_use, action=action)


def _add_operations(actions: Any) -> None:
    call = actions.add_parser(
        "call",
        help="call a tool",
        description="Prints the tool's result; progress goes to standard error. The exit code is 1 if the tool "
        "reports a failure.",
    )
    call.add_argument("server", metavar="SERVER")
    call.add_argument("tool", metavar="TOOL")
    call.add_argument(
        "arguments",
        nargs="*",
        metavar="JSON | NAME=VALUE",
        help="a JSON object, - to read one from standard input, or NAME=VALUE pairs",
    )
    read = actions.add_parser(
        "read",
        help="read a resource",
        description="Prints the content of a resource. Binary content is written unchanged to a file or a pipe.",
    )
    read.add_argument("server", metavar="SERVER")
    read.add_argument("uri", metavar="URI")
    prompt = actions.add_parser("prompt", help="get a prompt")
    prompt.add_argument("server", metavar="SERVER")
    prompt.add_argument("prompt", metavar="PROMPT")
    prompt.add_argument("arguments", nargs="*", metavar="JSON | NAME=VALUE", help="its arguments")
    complete = actions.add_parser(
        "complete", help="show completions for an argument of a prompt or a resource template"
    )
    complete.add_argument("server", metavar="SERVER")
    complete.add_argument("reference", metavar="PROMPT | TEMPLATE")
    complete.add_argument("argument", metavar="ARGUMENT")
    complete.add_argument("value", nargs="?", default="", metavar="BEGINNING", help="the text typed so far")
    complete.add_argument("pairs", nargs="*", metavar="NAME=VALUE", help="arguments that already have a value")
    for parser, action in ((call, "call"), (read, "read"), (prompt, "prompt"), (complete, "complete")):
        parser.options_anywhere = True
        add_json(parser, "print the whole result as JSON")
        parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="timeout in seconds")
        _add_scope(parser)
        parser.set_defaults(run=_use, action=action)


def _add_watch(actions: Any) -> None:
    parser = actions.add_parser(
        "watch",
        help="print notifications of a server as they arrive",
        description="Prints notifications until Ctrl-C or until the connection is lost: list changes and log "
        "messages, and updates of the resources that you name.",
    )
    parser.add_argument("server", metavar="SERVER")
    parser.add_argument("uris", nargs="*", metavar="URI", help="resources to follow")
    add_json(parser, "print one JSON object per line")
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="stop after this many seconds")
    _add_scope(parser)
    parser.set_defaults(run=_use, action="watch")
    parser.options_anywhere = True


def _add_login_and_logout(actions: Any) -> None:
    login = actions.add_parser("login", help="sign in to a remote server")
    _add_seconds(login, "--timeout", _LOGIN_SECONDS)
    logout = actions.add_parser("logout", help="forget the tokens for a server")
    for parser, action in ((login, "login"), (logout, "logout")):
        parser.add_argument("server", metavar="SERVER")
        add_json(parser)
        _add_scope(parser)
        parser.set_defaults(run=_use, action=action)


def _add_connect(actions: Any) -> None:
    parser = actions.add_parser(
        "connect",
        help="open an interactive client for a server",
        usage="%(prog)s NAME | URL | KIND …",
        description="Connects, lists what the server offers, and reads commands until the end of input, `quit` or "
        "Ctrl-C. `help` lists the commands. NAME is a configured server, used with its sign-in; KIND "
        "chooses another way to connect. With the extra `tui`, lines can be edited and completed.",
    )
    parser.finds_kind = True
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True, parser_class=argparse.ArgumentParser)
    server = kinds.add_parser("server", help="a configured server; the word `server` is optional")
    server.add_argument("name", metavar="NAME")
    _add_scope(server)
    server.set_defaults(run=_connect, kind="server")
    stdio = kinds.add_parser(
        "stdio", help="a program on this machine", usage="%(prog)s [--env NAME=VALUE] COMMAND [ARGUMENT …]"
    )
    # The action parses `--header` and `--env`: argparse would repeat a value that it cannot parse in its message, and
    # the value may be a secret.
    stdio.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="an environment variable for the program"
    )
    stdio.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    stdio.set_defaults(run=_connect, kind="stdio", url=None, header=[])
    for kind, summary in _REMOTE_KINDS.items():
        remote = kinds.add_parser(kind, help=summary)
        remote.add_argument("url", metavar="URL")
        remote.add_argument(
            "--header", action="append", default=[], metavar="'NAME: VALUE'", help="header to send with every request"
        )
        remote.set_defaults(run=_connect, kind=kind, command=[], env=[])


def _add_seconds(parser: argparse.ArgumentParser, flag: str, default: float) -> None:
    summary = f"how long to wait (default {default:g})"
    parser.add_argument(flag, dest="timeout", type=seconds, default=default, metavar="SECONDS", help=summary)


def _add_scope(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the configuration files."""
    parser.add_argument("--all", action="store_true", help="include the servers that Claude Code is configured with")
    parser.add_argument(
        "--project",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="project whose .mcp.json is read (default: the current directory)",
    )


def _configure(arguments: argparse.Namespace) -> int:
    from . import configure  # noqa: PLC0415 - what an action needs is loaded when it is called

    return configure.ACTIONS[arguments.action](arguments)


def _use(arguments: argparse.Namespace) -> int:
    from . import live  # noqa: PLC0415 - loads the MCP SDK

    return live.run(arguments)


def _connect(arguments: argparse.Namespace) -> int:
    from . import connect  # noqa: PLC0415 - loads the MCP SDK

    return connect.connect(arguments)
