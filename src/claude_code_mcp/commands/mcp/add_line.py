"""The lines of `mcp add` and `mcp add-json`, read as Claude Code's own commands read them, so that what the README of a
server says can be pasted: `NAME -- COMMAND …`, `NAME COMMAND …`, `NAME URL`, with `-e`, `-H`, `-s` and `-t` anywhere
before `--`. Options of another name belong to a command without `--`, where Claude Code refuses them; with ours beside
them nobody could tell whose they are, and the line is refused. Pure.

argparse repeats in its messages what it does not understand, and that may be a secret. Messages here name options and
say what they want; they never repeat a value.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from ...errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_HEADER = re.compile(r"[A-Za-z0-9-]+:\s")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|\$\{[^}]*\}\S*$")
_SCHEMES = {"http": ("http://", "https://"), "sse": ("http://", "https://"), "ws": ("ws://", "wss://")}
KINDS = ("stdio", *_SCHEMES)
SCOPES = ("local", "user", "project")
_WITH_VALUE = {
    "-e": "env",
    "--env": "env",
    "-H": "header",
    "--header": "header",
    "-s": "scope",
    "--scope": "scope",
    "-t": "transport",
    "--transport": "transport",
    "--url": "url",
    "--client-id": "client_id",
    "--client-secret": "client_secret",
    "--callback-port": "callback_port",
}
_SWITCHES = {"--force": "force"}
_WANTED = {
    "env": "--env wants NAME=VALUE.",
    "header": "--header wants 'NAME: VALUE'.",
    "scope": f"--scope is one of {', '.join(SCOPES)}.",
    "transport": f"--transport is one of {', '.join(KINDS)}.",
    "callback_port": "--callback-port wants a number.",
    "client_secret": "--client-secret wants the secret: --client-secret=SECRET, or ${VARIABLE}.",
}


@dataclass(slots=True)
class AddLine:
    """What the line says."""

    name: str = ""
    command: list[str] = field(default_factory=list)
    url: str | None = None
    transport: str | None = None
    scope: str | None = None
    env: list[str] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    client_id: str | None = None
    client_secret: str | None = None
    callback_port: str | None = None
    force: bool = False
    ours_behind: bool = False
    """Whether an option of ours stands behind the beginning of the command."""


def read_add_line(argv: Sequence[str]) -> AddLine:
    """Reads the arguments of `mcp add`. Raises InvalidArgument, which never repeats a value."""
    line, rest = AddLine(), list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            line.command, rest = [*line.command, *rest], []
        elif line.command:
            _go_on_with_command(line, word, rest)
        elif word.startswith("-") and len(word) > 1:
            _take_option(line, word, rest)
        elif not line.name:
            line.name = checked_name(word)
        elif line.url is None and _ADDRESS.match(word) and line.transport != "stdio":
            line.url = word
        elif line.url is not None:
            raise InvalidArgument("There is something behind the address that is no option.")
        else:
            line.command = [word]
    _check(line)
    return line


def _go_on_with_command(line: AddLine, word: str, rest: list[str]) -> None:
    """A word behind the first one of a command that does not stand after `--`. With an option of its own, all that
    follows is the command's."""
    if not word.startswith("-") or len(word) == 1:
        line.command.append(word)
    elif _is_ours(word):
        _take_option(line, word, rest)
        line.ours_behind = True
    else:
        # Guessed wrongly, a secret would go to the program as an argument, or an argument would be lost.
        if line.ours_behind or any(map(_is_ours, takewhile(lambda each: each != "--", rest))):
            raise InvalidArgument("Some of these options are of mcp add: the command of a server goes after --.")
        line.command += [word, *rest]
        rest.clear()


def _is_ours(word: str) -> bool:
    return (word.partition("=")[0] if word.startswith("--") else word[:2]) in (*_WITH_VALUE, *_SWITCHES)


def read_add_json_line(argv: Sequence[str]) -> AddLine:
    """Reads the arguments of `mcp add-json`; the command of the line is the entry. Raises InvalidArgument, which never
    repeats a value."""
    line, rest = AddLine(), list(argv)
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and len(word) > 1:
            _take_option(line, word, rest, "mcp add-json", ("scope", "client_secret"))
        elif not line.name:
            line.name = checked_name(word)
        else:
            line.command.append(word)
    if not line.name or len(line.command) != 1:
        raise InvalidArgument("mcp add-json wants a name and an entry in one argument: mcp add-json NAME 'JSON'.")
    if line.scope is not None and line.scope not in SCOPES:
        raise InvalidArgument(_WANTED["scope"])
    return line


def _take_option(
    line: AddLine, word: str, rest: list[str], action: str = "mcp add", allowed: Collection[str] | None = None
) -> None:
    """Sets what an option says; takes its value, or values, from the rest of the line."""
    option, separator, value = word.partition("=")
    if not word.startswith("--"):  # -eNAME=VALUE
        option, separator, value = word[:2], word[2:], word[2:]
    if option in _SWITCHES and not separator:
        setattr(line, _SWITCHES[option], True)
        return
    target = _WITH_VALUE.get(option)
    if target is None or (allowed is not None and target not in allowed):
        where = "" if allowed is not None else "; the command of a server goes after --"
        raise InvalidArgument(f"{_shown(option)} is not an option of {action}{where}.")
    if not separator:
        if not rest or rest[0] == "--":
            raise InvalidArgument(_WANTED.get(target, f"{option} wants a value."))
        value = rest.pop(0)
    if target in ("env", "header"):
        values: list[str] = getattr(line, target)
        values.append(value)
        pattern = _VARIABLE if target == "env" else _HEADER
        # Claude Code's own option takes several values; the pattern keeps it from taking the name or the command.
        while rest and pattern.match(rest[0]):  # one option may have several
            values.append(rest.pop(0))
    else:
        setattr(line, target, value)


def _shown(option: str) -> str:
    """An option as far as it can be shown: one that is mistyped may have its value in it."""
    known = re.match(r"--?[a-zA-Z][a-z-]{0,20}$", option)
    return option if known else "What begins with -"


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgument("The name of a server has at most 64 letters, digits, _, - and dots.")
    return name


def _check(line: AddLine) -> None:
    if not line.name:
        raise InvalidArgument("mcp add wants a name first: mcp add NAME -- COMMAND, or mcp add NAME URL.")
    if (line.url is None) == (not line.command):
        raise InvalidArgument("Give either an address, or a command after --.")
    if line.transport is not None and line.transport not in KINDS:
        raise InvalidArgument(_WANTED["transport"])
    if line.scope is not None and line.scope not in SCOPES:
        raise InvalidArgument(_WANTED["scope"])
    if line.callback_port is not None and not (line.callback_port.isascii() and line.callback_port.isdigit()):
        raise InvalidArgument(_WANTED["callback_port"])


# -- the entry ----------------------------------------------------------------------------------------------------


def entry_of(line: AddLine) -> dict[str, Any]:
    """The entry that a line stands for."""
    entry = raw_entry(line.command, line.url, line.transport, line.header, line.env)
    oauth = {
        "clientId": line.client_id,
        "clientSecret": line.client_secret,
        "callbackPort": None if line.callback_port is None else int(line.callback_port),
    }
    settings = {key: value for key, value in oauth.items() if value is not None}
    if settings and line.url is None:
        raise InvalidArgument("--client-id, --client-secret and --callback-port are for remote servers.")
    return {**entry, "oauth": settings} if settings else entry


def raw_entry(
    command: list[str], url: str | None, kind: str | None, headers: list[str], variables: list[str]
) -> dict[str, Any]:
    """An entry in the form of a configuration file: a program if `url` is None, else a remote server.

    Raises InvalidArgument for what does not fit together; the message never repeats a value, which may be a secret.
    """
    if url is None:
        if headers or kind not in (None, "stdio"):
            raise InvalidArgument("--header and --transport are for remote servers.")
        entry = {"type": "stdio", "command": command[0], "args": command[1:]}
        return {**entry, "env": _pairs(variables, "=", _WANTED["env"])} if variables else entry
    if variables:
        raise InvalidArgument("--env is for servers that are programs.")
    kind = kind or ("ws" if url.startswith(_SCHEMES["ws"]) else "http")
    if kind not in _SCHEMES or not url.startswith((*_SCHEMES[kind], "${")):
        schemes = _SCHEMES.get(kind, _SCHEMES["http"])
        raise InvalidArgument(f"The address of a server of type {kind} begins with {' or '.join(schemes)}.")
    entry = {"type": kind, "url": url}
    return {**entry, "headers": _pairs(headers, ":", _WANTED["header"])} if headers else entry


def _pairs(texts: list[str], separator: str, usage: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise InvalidArgument(usage)
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs
