"""`mcp list`, `add`, `remove`, `enable`, `disable`: what is configured. Connects to nothing.

`load_configuration` and `select_servers` are shared with the actions that do connect. Only our own file is ever
changed, through `edit_entries`: under a lock, written to a temporary file that then replaces the old one, and with
everything else in the file kept. A file that cannot be read is refused and left as it is.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...config import Settings, load_settings
from ...errors import InvalidArgument
from ...hub.config_entry import InvalidEntry, MissingVariable, ServerConfig, expand, parse_entry
from ...hub.config_files import ConfiguredServer, HubConfig, hub_servers
from ...private_files import FILE, private_directory
from .render import as_json, clean, table

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = "mcpServers"
_SCHEMES = {"http": ("http://", "https://"), "sse": ("http://", "https://"), "ws": ("ws://", "wss://")}


def load_configuration(arguments: argparse.Namespace) -> HubConfig:
    """What the hub would use, or with --all what all files say. Problems are printed to stderr; the servers that can
    be used are there all the same."""
    settings = load_settings()
    configuration = _read(settings, arguments, everything=arguments.all or settings.hub == "all")
    for problem in configuration.problems:
        print(f"claude-code-mcp: {clean(str(problem))}", file=sys.stderr)
    return configuration


def _read(settings: Settings, arguments: argparse.Namespace, *, everything: bool) -> HubConfig:
    return hub_servers(settings, os.environ, arguments.project, "all" if everything else "own")


def select_servers(configuration: HubConfig, names: Iterable[str]) -> HubConfig:
    """The configuration with only these servers. Raises InvalidArgument for a name that it does not have."""
    for name in names:
        if name not in configuration.servers:
            known = ", ".join(configuration.servers) or "none"
            raise InvalidArgument(f"There is no MCP server called {name!r}; there are: {known}.")
    return replace(configuration, servers={name: configuration.servers[name] for name in names})


def list_servers(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    servers = list(configuration.servers.values())
    if arguments.json:
        print(as_json([_server_data(server) for server in servers]))
    elif servers:
        for line in table(("name", "type", "scope", "state", "address", "file"), map(_server_row, servers)):
            print(line)
    elif not configuration.problems:
        print("No servers. Add one: claude-code-mcp mcp add NAME -- COMMAND")
    return 1 if configuration.problems else 0


def _server_row(server: ConfiguredServer) -> tuple[object, ...]:
    state = "enabled" if server.barred is None else server.barred
    return server.name, server.config.type, server.scope.value, state, _address(server.config), server.file


def _address(config: ServerConfig) -> str:
    """How a server is reached, without its secrets."""
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
    name = arguments.name
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r} is no name for a server: at most 64 letters, digits, _ and -, please.")
    if bool(arguments.url) == bool(arguments.command):
        raise InvalidArgument("Give either --url, or a command after --.")
    entry = raw_entry(arguments.command, arguments.url, arguments.transport, arguments.header, arguments.env)
    description = _check_entry(name, entry)
    file = load_settings().hub_file
    with edit_entries(file) as entries:
        if name in entries and not arguments.force:
            raise InvalidArgument(f"There is already a server called {name!r} in {file}; --force replaces it.")
        entries[name] = entry
    print(f"Added {name} ({description}) to {file}.")
    return 0


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
        return {**entry, "env": _pairs(variables, "=", "--env wants NAME=VALUE.")} if variables else entry
    if variables:
        raise InvalidArgument("--env is for servers that are programs.")
    kind = kind or ("ws" if url.startswith(_SCHEMES["ws"]) else "http")
    if not url.startswith((*_SCHEMES[kind], "${")):
        raise InvalidArgument(f"The address of a server of type {kind} begins with {' or '.join(_SCHEMES[kind])}.")
    entry = {"type": kind, "url": url}
    return {**entry, "headers": _pairs(headers, ":", "--header wants 'NAME: VALUE'.")} if headers else entry


def _pairs(texts: list[str], separator: str, usage: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise InvalidArgument(usage)
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs


def _check_entry(name: str, entry: Mapping[str, Any]) -> str:
    """A description of a usable entry, without secrets; InvalidArgument for one that the hub would refuse.

    A variable that is not set here is no mistake: it may be set where the server runs.
    """
    try:
        expand(dict(entry), os.environ)
    except MissingVariable as error:
        print(f"claude-code-mcp: note: {error} here", file=sys.stderr)
        return str(entry["type"])
    try:
        config = parse_entry(name, dict(entry), os.environ)
    except InvalidEntry as error:
        raise InvalidArgument(f"{name}: {error}") from None
    return f"{config.type}, {_address(config)}"


def remove(arguments: argparse.Namespace) -> int:
    with edit_entries(load_settings().hub_file) as entries:
        _own_entry(entries, arguments)
        del entries[arguments.name]
    print(f"Removed {arguments.name}.")
    other = load_configuration(arguments).servers.get(arguments.name)
    if other is not None:
        print(f"There is another one of that name in {other.file}, which counts now.")
    return 0


def set_disabled(arguments: argparse.Namespace, disabled: bool) -> int:
    with edit_entries(load_settings().hub_file) as entries:
        entry = _own_entry(entries, arguments)
        if not isinstance(entry, dict):
            raise InvalidArgument(f"The entry {arguments.name!r} is not an object; remove it and add it again.")
        entry.pop("disabled", None)
        if disabled:
            entry["disabled"] = True
    print(f"{arguments.name} is {'disabled' if disabled else 'enabled'}.")
    return 0


def _own_entry(entries: Mapping[str, Any], arguments: argparse.Namespace) -> Any:
    """The named entry of our own file. Raises InvalidArgument; for a server of another file it says which one."""
    if arguments.name in entries:
        return entries[arguments.name]
    elsewhere = _read(load_settings(), arguments, everything=True).servers.get(arguments.name)
    if elsewhere is None:
        raise InvalidArgument(f"There is no MCP server called {arguments.name!r}.")
    raise InvalidArgument(f"{arguments.name!r} is configured in {elsewhere.file}, which is not ours to change.")


@contextmanager
def edit_entries(file: Path) -> Iterator[dict[str, Any]]:
    """The entries of the file, to be changed in place; written when the block ends without an exception.

    Raises InvalidArgument for a file that cannot be locked, read or written, or is not what it should be.
    """
    from filelock import FileLock  # noqa: PLC0415 - only changes need it

    file = file.resolve()  # a link to a file kept elsewhere stays a link
    try:
        private_directory(file.parent)
        with FileLock(f"{file}.lock", mode=FILE):
            content = _read_file(file)
            entries = content.setdefault(_KEY, {})
            if not isinstance(entries, dict):
                raise InvalidArgument(f"{file}: {_KEY} must be an object; it was left as it is.")
            yield entries
            _write_file(file, content)
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be changed: {error.strerror or error}.") from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8") or "{}")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}; it was left as it is.") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} must hold an object; it was left as it is.")
    return content


def _write_file(file: Path, content: dict[str, Any]) -> None:
    descriptor, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # created with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
    except BaseException:
        os.unlink(new)
        raise


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": list_servers,
    "add": add,
    "remove": remove,
    "enable": partial(set_disabled, disabled=False),
    "disable": partial(set_disabled, disabled=True),
}
