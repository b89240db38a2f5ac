"""The arguments of a command that is a client of a server: which server it is."""

import argparse

from .connections import Target


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which server it is."""
    parser.add_argument(
        "--url", metavar="URL", help="URL of a server that runs with --http (default: the shared server)"
    )
    parser.add_argument("--token", metavar="TOKEN", help="the token for --url (default: CLAUDE_CODE_MCP_TOKEN)")
    parser.add_argument("--config", metavar="FILE", help="the settings file that the shared server uses")


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own", action="store_true", help="use a separate server for this command instead of the shared server"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    return Target(arguments.url, arguments.token, arguments.config, getattr(arguments, "own", False))
