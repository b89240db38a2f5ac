"""`serve`: MCP on stdio, or over HTTP.

A client on stdio waits while this is imported.
"""

import argparse
import asyncio
import os
import sys
from typing import Any

from ..client.conventions import add_config_file
from ..client.setting_flags import SETTINGS_WITH_FLAG, add_setting
from ..core.config import CONFIG_FILE_VARIABLE, Settings, load_settings
from ..core.errors import ClaudeCodeError, InvalidArgument
from ..core.settings_section import variable_of
from ..startup.greeting.first_answers import GreetedInput


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve MCP on stdio (default) or over HTTP",
        description="Serves MCP on standard input and output, or with --http over Streamable HTTP. Over HTTP a "
        f"bearer token is required unless it listens on loopback only: set {variable_of('http_token', Settings)}, or "
        f"{variable_of('http_tokens_file', Settings)} for several callers.",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve over HTTP at this address, path /mcp; `systemd`: on the socket that systemd passes",
    )
    parser.add_argument(
        "--oauth",
        action="store_true",
        help=f"with --http: let invited people sign in with passkeys ({variable_of('oauth', Settings)})",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help=f"on stdio, connect to your shared server, starting it if needed ({variable_of('shared', Settings)})",
    )
    add_config_file(parser)
    for field in SETTINGS_WITH_FLAG:
        add_setting(parser, field)
    parser.set_defaults(run=_run_serve)


def _run_serve(arguments: argparse.Namespace) -> int:
    from ..core.audit.session_log import log_to_stderr  # noqa: PLC0415 - not for other commands
    from ..serving import run_http, run_stdio  # noqa: PLC0415 - loads the MCP SDK

    if arguments.http and arguments.shared:
        raise InvalidArgument("The shared server serves over HTTP with `claude-code-mcp shared run --http HOST:PORT`.")
    try:
        settings = load_settings(file=arguments.config, **overrides(arguments))
        if arguments.config is not None:  # so that it is known, and hidden from sandboxes
            os.environ[CONFIG_FILE_VARIABLE] = str(arguments.config.absolute())
        log_to_stderr(settings)
        asyncio.run(run_http(settings, arguments.http) if arguments.http else run_stdio(settings, arguments.greeted))
    except ClaudeCodeError as error:
        if arguments.http:
            raise
        return refuse(error, arguments.greeted)
    return 0


def overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the arguments of `serve` have set."""
    fields = (*SETTINGS_WITH_FLAG, "oauth")
    return {field: getattr(arguments, field) for field in fields if getattr(arguments, field, None)}


def refuse(problem: ClaudeCodeError, greeted: GreetedInput | None) -> int:
    """Report in one line on stderr why no server can run, and return the exit code.

    A client on stdio (`greeted` is given, and stdin is not a terminal) is then served by a server that refuses every
    call with the same line, until it disconnects: most clients never show a server's stderr.
    """
    from ..serving import refuse_stdio  # noqa: PLC0415

    print(f"claude-code-mcp: {problem.message}", file=sys.stderr)
    if greeted is not None and not os.isatty(0):
        asyncio.run(refuse_stdio(problem, greeted))
    return int(problem.exit_code)
