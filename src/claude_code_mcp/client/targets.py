"""The arguments of a command that is a client of a server: which server it is."""

import argparse

from .connections import Target


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which server it is."""
    parser.add_argument("--url", metavar="URL", help="a server that runs with --http, instead of the shared one")
    parser.add_argument("--token", metavar="TOKEN", help="the token for --url (default: CLAUDE_CODE_MCP_TOKEN)")
    parser.add_argument("--config", metavar="FILE", help="the TOML file with settings that the shared server has")


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own", action="store_true", help="on a server that is started for this and ends with it, not the shared one"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    return Target(arguments.url, arguments.token, arguments.config, getattr(arguments, "own", False))
