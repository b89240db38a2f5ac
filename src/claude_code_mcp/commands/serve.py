"""`serve`: MCP on stdio, or over HTTP; `token`: a random bearer token for it."""

import argparse
import asyncio
import os
import secrets
import sys
from typing import Any, get_args

from ..config import CONFIG_FILE_VARIABLE, Settings, description_of, load_settings, variable_of
from ..errors import ClaudeCodeError, InvalidArgument
from ..greeting.protocol import GreetedInput
from .conventions import add_config_file, add_json, exit_code_of, print_outcome

SETTINGS_WITH_FLAG = ("on_disconnect", "toolsets")
"""Fields of `Settings` that can be set on the command line too."""


def add_to(commands: Any) -> None:
    _add_serve(commands)
    _add_token(commands)


def _add_serve(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve MCP on stdio (the default) or over HTTP",
        description="Serves MCP on standard input and output, or with --http over Streamable HTTP. Over HTTP a "
        f"bearer token is required unless it listens on loopback only: set {variable_of('http_token')}, or "
        f"{variable_of('http_tokens_file')} for several callers.",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve over HTTP at this address, path /mcp; `systemd`: on the socket that it was started for",
    )
    parser.add_argument(
        "--oauth",
        action="store_true",
        help=f"with --http: people who are invited sign in here with passkeys ({variable_of('oauth')})",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help=f"on stdio, be a client's way to the one server of this user, which is started if need be "
        f"({variable_of('shared')})",
    )
    add_config_file(parser)
    for field in SETTINGS_WITH_FLAG:
        add_setting(parser, field)
    parser.set_defaults(run=_run_serve)


class _SettingFlag(argparse.Action):
    """A flag for a setting, whose help is read from the setting when it is shown."""

    @property
    def help(self) -> str:
        default = Settings.model_fields[self.dest].default
        listed = f" Default: {','.join(default)}." if isinstance(default, tuple) else ""
        return f"{description_of(self.dest)}{listed} ({variable_of(self.dest)})".replace("%", "%%")

    @help.setter  # noqa: A003
    def help(self, _: str | None) -> None:
        """`argparse` sets it to nothing."""

    def __call__(self, _: object, namespace: argparse.Namespace, value: object, __: object = None) -> None:
        setattr(namespace, self.dest, value)


def add_setting(parser: argparse.ArgumentParser, field: str) -> None:
    """A flag for a setting. Its choices, default and help are those of the setting, so that they cannot differ."""
    setting = Settings.model_fields[field]
    choices = [choice for part in get_args(setting.annotation) for choice in get_args(part) if isinstance(choice, str)]
    several = isinstance(setting.default, tuple)
    parser.add_argument(
        f"--{field.replace('_', '-')}",
        action=_SettingFlag,
        choices=None if several else choices,
        metavar="NAMES" if several else None,
    )


def _run_serve(arguments: argparse.Namespace) -> int:
    from ..app import log_to_stderr, run_http, run_stdio  # noqa: PLC0415 - loads the MCP SDK

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
    """Reports why there is no server, in one line on stderr, and returns the exit code.

    A client on stdio (`greeted` is given, and stdin is no terminal) is then served until it leaves by a server that
    refuses every call with the same line: most clients never show what a server wrote to stderr.
    """
    from ..app import refuse_stdio  # noqa: PLC0415

    print(f"claude-code-mcp: {problem.message}", file=sys.stderr)
    if greeted is not None and not os.isatty(0):
        asyncio.run(refuse_stdio(problem, greeted))
    return exit_code_of(problem.code)


# -- token ------------------------------------------------------------------------------------------------------------


_BYTES = 32


def _add_token(commands: Any) -> None:
    parser = commands.add_parser(
        "token",
        help="print a random token for CLAUDE_CODE_MCP_TOKEN",
        description="Prints a new random token, good as CLAUDE_CODE_MCP_TOKEN, CLAUDE_CODE_MCP_METRICS_TOKEN or in a "
        "line of CLAUDE_CODE_MCP_TOKENS_FILE. It is stored nowhere.",
    )
    add_json(parser)
    parser.set_defaults(run=_print_token)


def _print_token(arguments: argparse.Namespace) -> int:
    token = secrets.token_urlsafe(_BYTES)
    return print_outcome(arguments, {"token": token}, token)
