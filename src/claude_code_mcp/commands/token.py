"""`token`: prints a random bearer token for the HTTP server. Nothing is stored."""

import argparse
import secrets
from typing import Any

_BYTES = 32


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "token",
        help="print a random token for CLAUDE_CODE_MCP_TOKEN",
        description="Prints a new random token, good as CLAUDE_CODE_MCP_TOKEN, CLAUDE_CODE_MCP_METRICS_TOKEN or in a "
        "line of CLAUDE_CODE_MCP_TOKENS_FILE. It is stored nowhere.",
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    print(secrets.token_urlsafe(_BYTES))
    return 0
