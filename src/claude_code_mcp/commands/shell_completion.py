"""`completion`: prints what makes a shell complete our commands, made from the parser's own tables."""

import argparse
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_IDS = "claude-code-mcp ps --all --ids 2>/dev/null"
"""Prints the sessions of the shared server; nothing if none runs."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="print what makes bash, zsh or fish complete our commands",
        description="For bash: source <(claude-code-mcp completion bash). For zsh, after compinit: source "
        "<(claude-code-mcp completion zsh). For fish: claude-code-mcp completion fish | source.",
    )
    parser.add_argument("shell", choices=sorted(_SHELLS))
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from .parser import build_parser  # noqa: PLC0415 - which adds this command

    print(_SHELLS[arguments.shell](list(commands_of(build_parser()))), end="")
    return 0


class CompletedCommand(NamedTuple):
    """What may follow a command; `path` is how it is called, such as `shared start`."""

    path: str
    below: dict[str, str]
    """Commands below it, each with its help."""
    flags: dict[str, str]
    choices: list[str]
    """Values of its arguments."""
    takes_session: bool


def commands_of(parser: argparse.ArgumentParser, path: str = "") -> Iterator[CompletedCommand]:
    """The command of a parser and all below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    summaries: dict[str, str] = {}
    choices: list[str] = []
    flags: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below.update(action.choices)
            summaries.update({choice.dest: choice.help or "" for choice in action._choices_actions})
        elif action.option_strings:
            flags.update(dict.fromkeys(action.option_strings, "" if action.help is None else action.help))
        elif action.choices is not None:
            choices += map(str, action.choices)
    positionals = [action.dest for action in parser._actions if not action.option_strings]
    yield CompletedCommand(path, summaries, flags, choices, "session" in positionals)
    for name, found in below.items():
        yield from commands_of(found, f"{path} {name}".strip())


def _plain(text: str) -> str:
    return " ".join(text.replace("%%", "%").split())


# -- bash and zsh -------------------------------------------------------------------------------------------------

_BASH = """\
# claude-code-mcp: completion for bash
_claude_code_mcp() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" word candidates=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$path $word" in
            {paths}) path="${{path:+$path }}$word" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$candidates" -- "$current"))
}}
complete -o default -F _claude_code_mcp claude-code-mcp
"""


def _bash(commands: list[CompletedCommand]) -> str:
    paths = "|".join(shlex.quote(_before_last(command.path)) for command in commands if command.path)
    cases = "\n".join(
        f"        {shlex.quote(command.path)}) candidates={_bash_words(command)} ;;" for command in commands
    )
    return _BASH.format(paths=paths, cases=cases)


def _before_last(path: str) -> str:
    """How a path looks when its last word has just been read: what is before it, a space and the word."""
    before, _, last = path.rpartition(" ")
    return f"{before} {last}"


def _bash_words(command: CompletedCommand) -> str:
    fixed = shlex.quote(" ".join((*command.below, *command.choices, *command.flags)))
    return f'{fixed}" $({_IDS})"' if command.takes_session else fixed


def _zsh(commands: list[CompletedCommand]) -> str:
    head = (
        "# claude-code-mcp: completion for zsh, by way of that for bash\nautoload -U +X bashcompinit && bashcompinit\n"
    )
    return head + _bash(commands)


# -- fish ---------------------------------------------------------------------------------------------------------


def _fish(commands: list[CompletedCommand]) -> str:
    return "# claude-code-mcp: completion for fish\n" + "".join(
        f"{line}\n" for command in commands for line in _fish_lines(command)
    )


def _fish_lines(command: CompletedCommand) -> Iterator[str]:
    base = f"complete -c claude-code-mcp -n {shlex.quote(_fish_condition(command))}"
    for name, summary in command.below.items():
        yield f"{base} -f -a {shlex.quote(name)} -d {shlex.quote(_plain(summary))}"
    for choice in command.choices:
        yield f"{base} -f -a {shlex.quote(choice)}"
    for flag, summary in command.flags.items():
        kind = f"-l {shlex.quote(flag[2:])}" if flag.startswith("--") else f"-s {shlex.quote(flag[1:])}"
        yield f"{base} {kind} -d {shlex.quote(_plain(summary))}"
    if command.takes_session:
        yield f"{base} -f -a {shlex.quote(f'({_IDS})')}"


def _fish_condition(command: CompletedCommand) -> str:
    seen = [f"__fish_seen_subcommand_from {word}" for word in command.path.split()]
    if not seen:
        return "__fish_use_subcommand"
    unseen = [f"not __fish_seen_subcommand_from {' '.join(command.below)}"] if command.below else []
    return "; and ".join([*seen, *unseen])


_SHELLS: dict[str, Callable[[list[CompletedCommand]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
