"""`completion`: the completion of commands, options and session ids in shells."""

import argparse
from typing import Any

from .parser import build_parser

_IDS = "claude-code-mcp ps --all --ids 2>/dev/null"
"""Prints the sessions of the shared server; nothing if none runs."""
_COMPLETE_SESSION = {"bash": "_claude_code_mcp_sessions", "zsh": "_claude_code_mcp_sessions", "fish": f"({_IDS})"}
_PREAMBLE = {
    "bash": f'_claude_code_mcp_sessions() {{ compgen -W "$({_IDS})" -- "$1"; }}',
    "zsh": f"_claude_code_mcp_sessions() {{ compadd -- $({_IDS}); }}",
}


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="print shell completion for bash, zsh or fish",
        description="For bash: source <(claude-code-mcp completion bash). For zsh, after compinit: eval "
        '"$(claude-code-mcp completion zsh)". For fish: claude-code-mcp completion fish | source.',
    )
    parser.add_argument("shell", choices=sorted(_COMPLETE_SESSION))
    parser.set_defaults(run=_print_completion)


def _print_completion(arguments: argparse.Namespace) -> int:
    import shtab  # noqa: PLC0415 - for this command alone

    parser = build_parser()
    _complete_sessions(parser)
    print(shtab.complete(parser, arguments.shell, preamble=_PREAMBLE.get(arguments.shell, "")))
    return 0


def _complete_sessions(parser: argparse.ArgumentParser) -> None:
    """Has ids of sessions offered wherever a command below this parser takes one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                _complete_sessions(below)
        elif not action.option_strings and action.dest == "session":
            action.complete = _COMPLETE_SESSION  # type: ignore[attr-defined]  # where shtab looks for it
