"""`token`: a random bearer token."""

import argparse
import secrets
from typing import Any

from ..client.conventions import add_json, print_outcome

_BYTES = 32


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "token",
        help="print a random token for CLAUDE_CODE_MCP_TOKEN",
        description="Prints a new random token for CLAUDE_CODE_MCP_TOKEN, CLAUDE_CODE_MCP_METRICS_TOKEN or a line "
        "of CLAUDE_CODE_MCP_TOKENS_FILE. The token is not stored.",
    )
    add_json(parser)
    parser.set_defaults(run=_print_token)


def _print_token(arguments: argparse.Namespace) -> int:
    token = secrets.token_urlsafe(_BYTES)
    return print_outcome(arguments, {"token": token}, token)
