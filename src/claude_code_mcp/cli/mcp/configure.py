"""`mcp list`, `get`, `add`, `import`, `remove`, `enable` and `disable`: the configuration of servers.

`load_configuration` and `select_servers` are shared with the actions that connect to servers. Only our own file is
changed, through `edit_entries`: under a lock, via a temporary file that replaces the old one, and with everything else
in the file unchanged. A file that cannot be read is refused and left unchanged.

The lines of `mcp add` and `mcp add-json` have the syntax of Claude Code's own commands, so that lines from the README
of a server can be pasted: `NAME -- COMMAND …`, `NAME COMMAND …`, `NAME URL`, with `-e`, `-H`, `-s` and `-t` anywhere
before `--`. Other options belong to a command without `--`, a form that Claude Code refuses; together with our options
the assignment would be ambiguous, so the line is refused. argparse repeats unknown parts in its messages, and these may
be secrets. Messages here name options and the expected values; they never repeat a value.
"""

import argparse
import copy
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from ...client.conventions import NotFound, print_json, print_outcome, standard_input
from ...core.config import load_settings
from ...core.errors import InvalidArgument
from ...core.json_text import decode_with_comments
from ...core.private_files import FILE, private_directory, replace_file
from ...hub.config_entry import (
    SECTIONS,
    InvalidEntry,
    MissingVariable,
    ServerConfig,
    expand,
    input_defaults,
    normalized_entry,
    parse_entry,
    read_text,
    section_of,
)
from ...hub.config_files import ConfiguredServer, HubConfig, hub_servers
from ...hub.registry_file import chosen_entries, registry_documents, short_name
from ..json_edit import remove_value, set_value
from .terminal import clean, print_table

# -- the line of `mcp add` ---------------------------------------------------------------------------------------------

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
_FORCE = "--force"
_WANTED = {
    "env": "--env needs NAME=VALUE.",
    "header": "--header needs 'NAME: VALUE'.",
    "scope": f"--scope is one of {', '.join(SCOPES)}.",
    "transport": f"--transport is one of {', '.join(KINDS)}.",
    "callback_port": "--callback-port needs a number.",
    "client_secret": "--client-secret needs a value: --client-secret=SECRET, or ${VARIABLE}.",
}


@dataclass(slots=True)
class AddLine:
    """The contents of the line."""

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
    """Whether one of our options stands after the beginning of the command."""


def read_add_line(argv: Sequence[str]) -> AddLine:
    """Reads the arguments of `mcp add`. Raises InvalidArgument, which never repeats a value."""
    line, rest = AddLine(), list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            line.command, rest = [*line.command, *rest], []
        elif line.command:
            _add_command_word(line, word, rest)
        elif word.startswith("-") and len(word) > 1:
            _take_option(line, word, rest)
        elif not line.name:
            line.name = checked_name(word)
        elif line.url is None and _ADDRESS.match(word) and line.transport != "stdio":
            line.url = word
        elif line.url is not None:
            raise InvalidArgument("Only options may follow the URL.")
        else:
            line.command = [word]
    _check(line)
    return line


def _add_command_word(line: AddLine, word: str, rest: list[str]) -> None:
    """Handles a word after the first one of a command without `--`. If it is an option of the command, all following
    words belong to the command."""
    if not word.startswith("-") or len(word) == 1:
        line.command.append(word)
    elif _is_ours(word):
        _take_option(line, word, rest)
        line.ours_behind = True
    else:
        # A wrong guess would pass a secret to the program as an argument, or lose an argument.
        if line.ours_behind or any(map(_is_ours, takewhile(lambda each: each != "--", rest))):
            raise InvalidArgument("Some of these options belong to mcp add: put the server's command after --.")
        line.command += [word, *rest]
        rest.clear()


def _is_ours(word: str) -> bool:
    return (word.partition("=")[0] if word.startswith("--") else word[:2]) in (*_WITH_VALUE, _FORCE)


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
        raise InvalidArgument("mcp add-json needs a name and an entry as one argument: mcp add-json NAME 'JSON'.")
    if line.scope is not None and line.scope not in SCOPES:
        raise InvalidArgument(_WANTED["scope"])
    return line


def _take_option(
    line: AddLine, word: str, rest: list[str], action: str = "mcp add", allowed: Collection[str] | None = None
) -> None:
    """Applies an option; takes its value, or values, from the rest of the line."""
    option, separator, value = word.partition("=")
    if not word.startswith("--"):  # -eNAME=VALUE
        option, separator, value = word[:2], word[2:], word[2:]
    if option == _FORCE and not separator:
        line.force = True
        return
    target = _WITH_VALUE.get(option)
    if target is None or (allowed is not None and target not in allowed):
        where = "" if allowed is not None else "; put the server's command after --"
        # Shown only if it looks like the name of an option: a mistyped one may contain its value.
        shown = option if re.match(r"--?[a-zA-Z][a-z-]{0,20}$", option) else "An argument that begins with -"
        raise InvalidArgument(f"{shown} is not an option of {action}{where}.")
    if not separator:
        if not rest or rest[0] == "--":
            raise InvalidArgument(_WANTED.get(target, f"{option} needs a value."))
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


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgument("A server name has at most 64 letters, digits, _, - and dots.")
    return name


def _check(line: AddLine) -> None:
    if not line.name:
        raise InvalidArgument("mcp add needs a name first: mcp add NAME -- COMMAND, or mcp add NAME URL.")
    if (line.url is None) == (not line.command):
        raise InvalidArgument("Give either a URL or a command after --.")
    if line.transport is not None and line.transport not in KINDS:
        raise InvalidArgument(_WANTED["transport"])
    if line.scope is not None and line.scope not in SCOPES:
        raise InvalidArgument(_WANTED["scope"])
    if line.callback_port is not None and not (line.callback_port.isascii() and line.callback_port.isdigit()):
        raise InvalidArgument(_WANTED["callback_port"])


def entry_of(line: AddLine) -> dict[str, Any]:
    """The entry that a line describes."""
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
    """An entry in the form of a configuration file: a program if `url` is None, otherwise a remote server.

    Raises InvalidArgument for contradicting values; the message never repeats a value, which may be a secret.
    """
    if url is None:
        if headers or kind not in (None, "stdio"):
            raise InvalidArgument("--header and --transport are for remote servers.")
        entry = {"type": "stdio", "command": command[0], "args": command[1:]}
        return {**entry, "env": _pairs(variables, "=", _WANTED["env"])} if variables else entry
    if variables:
        raise InvalidArgument("--env is for servers that are local programs.")
    kind = kind or ("ws" if url.startswith(_SCHEMES["ws"]) else "http")
    if kind not in _SCHEMES or not url.startswith((*_SCHEMES[kind], "${")):
        schemes = _SCHEMES.get(kind, _SCHEMES["http"])
        raise InvalidArgument(f"The URL of a server of type {kind} begins with {' or '.join(schemes)}.")
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


# -- the files of other programs ---------------------------------------------------------------------------------------


def entries_of(
    source: str, environment: Mapping[str, str], project: Path, names: Collection[str] = ()
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The entries of a program in our format, by name, each with its file; for a name in several files, the first file
    counts. From a registry, only the entries with the given `names` are included.

    Raises InvalidArgument if there is no file, or if one cannot be read.
    """
    from ..config import PROGRAMS, files_of  # noqa: PLC0415 - only here

    files = files_of(source, environment, project)
    present = [file for file in files if file.exists()]
    if not present:
        if source not in PROGRAMS:
            raise NotFound(f"{source!r} is neither a file nor one of the known programs: {', '.join(PROGRAMS)}.")
        raise NotFound(f"There is no {' and no '.join(map(str, files))}.")
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in present:
        for name, entry in _entries_in(file, names).items():
            # Files of the project come first and take precedence, as in the program itself.
            found.setdefault(name, (file, entry))
    return found


def _entries_in(file: Path, names: Collection[str]) -> dict[str, dict[str, Any]]:
    try:
        content = decode_with_comments(read_text(file))
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}.") from None
    documents = registry_documents(content)
    if documents is not None:
        return chosen_entries(documents, names)
    section = section_of(content)[1] if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise InvalidArgument(f"{file} has no usable MCP servers.")
    defaults = input_defaults(content)
    return {name: normalized_entry(entry, defaults) for name, entry in section.items() if isinstance(entry, dict)}


# -- actions -----------------------------------------------------------------------------------------------------------


_KEY = "mcpServers"


NO_SERVERS = "No servers. Add one: claude-code-mcp mcp add NAME -- COMMAND"


def load_configuration(arguments: argparse.Namespace) -> HubConfig:
    """The configuration that the hub would use or, with --all, the entries of all files. Problems are printed to
    stderr; usable servers are included nevertheless."""
    settings = load_settings()
    everything = arguments.all or settings.hub == "all"
    configuration = hub_servers(settings, os.environ, arguments.project, "all" if everything else "own")
    for problem in configuration.problems:
        print(f"claude-code-mcp: {clean(str(problem))}", file=sys.stderr)
    return configuration


def select_servers(configuration: HubConfig, names: Iterable[str]) -> HubConfig:
    """The configuration with only these servers. Raises InvalidArgument for a name that it does not have, or
    whose entry cannot be used."""
    for name in names:
        if name not in configuration.servers:
            for problem in configuration.problems:
                if problem.entry == name:
                    raise InvalidArgument(f"{name!r} is configured, but cannot be used: {problem.message}.")
            known = f"configured: {', '.join(configuration.servers)}" if configuration.servers else "none is configured"
            raise NotFound(f"There is no MCP server called {name!r}; {known}.")
    return replace(configuration, servers={name: configuration.servers[name] for name in names})


def list_servers(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    servers = list(configuration.servers.values())
    if arguments.json:
        print_json([_server_data(server) for server in servers])
    elif servers:
        rows = [
            (each.name, each.config.type, each.scope.value, each.barred or "enabled", _address(each.config), each.file)
            for each in servers
        ]
        print_table(("name", "type", "scope", "state", "address", "file"), rows)
    elif not configuration.problems:
        print(NO_SERVERS)
    return 1 if configuration.problems else 0


def _address(config: ServerConfig) -> str:
    """The address of a server, without its secrets."""
    description = config.describe()
    return str(description.get("command") or description.get("url") or "in this process")


def _server_data(server: ConfiguredServer) -> dict[str, Any]:
    return {
        "name": server.name,
        "scope": server.scope.value,
        "file": str(server.file),
        "enabled": server.barred is None,
        "reason": server.barred,
        **server.config.describe(),
    }


def add(arguments: argparse.Namespace) -> int:
    line = read_add_line(arguments.line)
    return _add_entry(line, entry_of(line))


def add_json(arguments: argparse.Namespace) -> int:
    """Adds an entry from JSON, like Claude Code's own `add-json`; `-` reads it from standard input."""
    line = read_add_json_line(arguments.line)
    [text] = line.command
    try:
        entry = decode_with_comments(standard_input() if text == "-" else text)
    except ValueError as error:
        raise InvalidArgument(f"The entry is not JSON: {error}.") from None
    if not isinstance(entry, dict):
        raise InvalidArgument("The entry must be an object.")
    if line.client_secret is not None:
        oauth = entry.get("oauth")
        entry["oauth"] = {**(oauth if isinstance(oauth, dict) else {}), "clientSecret": line.client_secret}
    return _add_entry(line, normalized_entry(entry, {}))


def _add_entry(line: AddLine, entry: dict[str, Any]) -> int:
    description = _check_entry(line.name, entry)
    file = load_settings().hub_file
    with edit_entries(file) as entries:
        if line.name in entries and not line.force:
            raise InvalidArgument(f"There is already a server called {line.name!r} in {file}; --force replaces it.")
        entries[line.name] = entry
    print(f"Added {line.name} ({description}) to {file}.")
    if line.scope is not None:
        print("claude-code-mcp: note: --scope is ignored: the hub's file applies to all sessions.", file=sys.stderr)
    return 0


def import_servers(arguments: argparse.Namespace) -> int:
    """Copies the servers of another program into our own file. A server that already exists, or cannot be used, is
    reported and skipped. The exit code is 1 if one could not be used."""
    found = entries_of(arguments.source, os.environ, arguments.project.resolve(), arguments.names)
    # A server from a registry may be named by its registry name or by the name it gets here.
    wanted = [short_name(name) if "/" in name else name for name in arguments.names] or list(found)
    for name in wanted:
        if name not in found:
            raise NotFound(f"There is no server called {name!r}; available: {', '.join(found) or 'none'}.")
    failed = 0
    results: list[dict[str, str]] = []

    def report(name: str, outcome: str, line: str) -> None:
        results.append({"name": name, "outcome": outcome})
        if not arguments.json:
            print(line)

    with edit_entries(load_settings().hub_file) as entries:
        for name in wanted:
            file, entry = found[name]
            if name in entries and not arguments.force:
                report(name, "kept", f"{clean(name)}: already exists; --force replaces it")
                continue
            try:
                if isinstance(named := entry.get("envFile"), str):
                    # The full path, because our own file is not in the project.
                    named = named.replace("${workspaceFolder}", str(arguments.project.resolve()))
                    entry = {**entry, "envFile": os.path.join(file.parent, named)}
                description = _check_entry(checked_name(name), entry)
            except InvalidArgument as error:
                failed += 1
                results.append({"name": name, "outcome": "refused"})
                print(f"claude-code-mcp: left out: {clean(error.message)}", file=sys.stderr)
                continue
            entries[name] = entry
            report(name, "added", f"{name}: {description}, from {file}")
    if arguments.json:
        print_json(results)
    return 1 if failed else 0


def get(arguments: argparse.Namespace) -> int:
    """Prints a complete entry, without its secrets."""
    server = select_servers(load_configuration(arguments), [arguments.name]).servers[arguments.name]
    data = {**_server_data(server), "variables": sorted(getattr(server.config, "env", {}))}
    if arguments.json:
        print_json(data)
        return 0
    for key, value in data.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list | dict) else value
        if shown not in (None, ""):
            print(f"{key}: {clean(str(shown))}")
    return 0


def _check_entry(name: str, entry: Mapping[str, Any]) -> str:
    """A description of a usable entry, without secrets; InvalidArgument for one that the hub would refuse.

    A variable that is not set here is not an error: it may be set where the server runs.
    """
    try:
        expand(dict(entry), os.environ)
    except MissingVariable as error:
        print(f"claude-code-mcp: note: {error} here", file=sys.stderr)
        return str(entry.get("type") or "type unknown")
    try:
        config = parse_entry(name, dict(entry), os.environ)
    except InvalidEntry as error:
        raise InvalidArgument(f"{name}: {error}") from None
    return f"{config.type}, {_address(config)}"


def remove(arguments: argparse.Namespace) -> int:
    with edit_entries(load_settings().hub_file) as entries:
        _own_entry(entries, arguments)
        del entries[arguments.name]
    other = load_configuration(arguments).servers.get(arguments.name)
    if arguments.json:
        print_json({"name": arguments.name, "removed": True, "file": str(other.file) if other is not None else None})
        return 0
    print(f"Removed {arguments.name}.")
    if other is not None:
        print(f"The server with the same name in {other.file} is used now.")
    return 0


def set_disabled(arguments: argparse.Namespace, disabled: bool) -> int:
    with edit_entries(load_settings().hub_file) as entries:
        entry = _own_entry(entries, arguments)
        if not isinstance(entry, dict):
            raise InvalidArgument(f"The entry {arguments.name!r} is not an object; remove it and add it again.")
        entry.pop("disabled", None)
        if disabled:
            entry["disabled"] = True
    return print_outcome(
        arguments,
        {"name": arguments.name, "enabled": not disabled},
        f"{arguments.name} is {'disabled' if disabled else 'enabled'}.",
    )


def _own_entry(entries: Mapping[str, Any], arguments: argparse.Namespace) -> Any:
    """The named entry of our own file. Raises InvalidArgument; for a server from another file the message names that
    file."""
    if arguments.name in entries:
        return entries[arguments.name]
    elsewhere = hub_servers(load_settings(), os.environ, arguments.project, "all").servers.get(arguments.name)
    if elsewhere is None:
        raise NotFound(f"There is no MCP server called {arguments.name!r}.")
    raise InvalidArgument(
        f"{arguments.name!r} is configured in {elsewhere.file}, a file that only its owner program changes."
    )


# -- our own file ------------------------------------------------------------------------------------------------------


@contextmanager
def edit_entries(file: Path) -> Iterator[dict[str, Any]]:
    """Context with the entries of the file, to be changed in place; they are written when the block ends without an
    exception.

    Raises InvalidArgument for a file that cannot be locked, read or written, or has an unexpected structure.
    """
    from filelock import FileLock  # noqa: PLC0415 - only changes need it

    file = file.resolve()  # a link to a file kept elsewhere stays a link
    try:
        private_directory(file.parent)
        # From reading to writing: of two simultaneous commands, the second sees the first one's changes.
        with FileLock(f"{file}.lock", mode=FILE):
            text, content = _read_file(file)
            section = next((key for key in SECTIONS if key in content), _KEY)
            before = content.get(section, {})
            if not isinstance(before, dict):
                raise InvalidArgument(f"{file}: {_KEY} must be an object; it was left as it is.")
            entries = copy.deepcopy(before)
            yield entries
            replace_file(file, _with_entries(file, text, section, before, entries).encode())
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be changed: {error.strerror or error}.") from None


def _read_file(file: Path) -> tuple[str, dict[str, Any]]:
    """The text of the file and its parsed contents."""
    try:
        text = file.read_text(encoding="utf-8")
        content = decode_with_comments(text or "{}")
    except FileNotFoundError:
        return "", {}
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}; it was left as it is.") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} must contain a JSON object; it was left as it is.")
    return text, content


def _with_entries(file: Path, text: str, section: str, before: Mapping[str, Any], entries: Mapping[str, Any]) -> str:
    """The text with these entries; comments and everything else in it stay."""
    try:
        for name in before.keys() - entries.keys():
            text = remove_value(text, (section, name))
        for name, entry in entries.items():
            if name not in before or before[name] != entry:
                text = set_value(text, (section, name), entry)
        return text if section in decode_with_comments(text or "{}") else set_value(text, (section,), {})
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be changed: {error}; it was left as it is.") from None


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": list_servers,
    "get": get,
    "add": add,
    "add-json": add_json,
    "import": import_servers,
    "remove": remove,
    "enable": partial(set_disabled, disabled=False),
    "disable": partial(set_disabled, disabled=True),
}
