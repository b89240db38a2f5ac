"""`serve`: MCP on stdio, or over HTTP."""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any, get_args

from ..config import ALL_TOOLSETS, TOOLSETS, OnDisconnect, load_settings, variable_of
from ..errors import ClaudeCodeError
from ..greeting.protocol import GreetedInput


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve MCP on stdio (the default) or over HTTP",
        description="Serves MCP on standard input and output, or with --http over Streamable HTTP. Over HTTP a "
        f"bearer token is required unless it listens on loopback only: set {variable_of('http_token')}, or "
        f"{variable_of('http_tokens_file')} for several callers.",
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="serve over HTTP at this address, path /mcp")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    parser.add_argument(
        "--on-disconnect",
        choices=get_args(OnDisconnect),
        help="what becomes of a client's running turns when it goes away (default: stop on stdio, keep over HTTP)",
    )
    parser.add_argument(
        "--toolsets",
        metavar="NAMES",
        help=f"the families of tools to offer, of {','.join(ALL_TOOLSETS)} (default: {','.join(TOOLSETS)})",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..app import log_to_stderr, run_http, run_stdio  # noqa: PLC0415 - loads the MCP SDK

    given = {name: getattr(arguments, name) for name in ("on_disconnect", "toolsets") if getattr(arguments, name)}
    try:
        settings = load_settings(file=arguments.config, **given)
        log_to_stderr(settings)
        asyncio.run(run_http(settings, arguments.http) if arguments.http else run_stdio(settings, arguments.heard))
    except ClaudeCodeError as error:
        if arguments.http:
            raise
        return refuse(error, arguments.heard)
    return 0


def refuse(problem: ClaudeCodeError, heard: GreetedInput | None) -> int:
    """Tells a client on stdio, which may have been greeted already, why there is no server; a person in a terminal
    needs no more than a line. The value is the exit code."""
    from ..app import refuse_stdio  # noqa: PLC0415

    print(f"claude-code-mcp: {problem.message}", file=sys.stderr)
    if heard is not None and not os.isatty(0):
        asyncio.run(refuse_stdio(problem, heard))
    return 2
