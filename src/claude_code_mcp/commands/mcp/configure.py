"""`mcp list`, `add`, `remove`, `enable`, `disable`: what is configured. Connects to nothing."""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config import Settings, load_settings
from ...errors import InvalidArgument
from ...hub.config_entry import InvalidEntry, ServerConfig, parse_entry
from ...hub.config_files import ConfiguredServer, HubConfig, hub_servers
from ...hub.config_variables import MissingVariable, expand
from ...private_files import FILE, private_directory
from .render import clean, table

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


_SCHEMES = {"http": ("http://", "https://"), "sse": ("http://", "https://"), "ws": ("ws://", "wss://")}


def configured(arguments: argparse.Namespace) -> HubConfig:
    """What the hub would use, or with --all what all files say; problems are told at once, and break nothing."""
    settings = load_settings()
    configuration = _read(settings, arguments, everything=arguments.all or settings.hub == "all")
    for problem in configuration.problems:
        print(f"claude-code-mcp: {clean(str(problem))}", file=sys.stderr)
    return configuration


def _read(settings: Settings, arguments: argparse.Namespace, *, everything: bool) -> HubConfig:
    return hub_servers(settings, os.environ, arguments.project, "all" if everything else "own")


def chosen(configuration: HubConfig, names: Iterable[str]) -> HubConfig:
    """Only these servers. Raises InvalidArgument for one that there is not."""
    for name in names:
        if name not in configuration.servers:
            known = ", ".join(configuration.servers) or "none"
            raise InvalidArgument(f"There is no MCP server called {name!r}; there are: {known}.")
    return replace(configuration, servers={name: configuration.servers[name] for name in names})


def list_servers(arguments: argparse.Namespace) -> int:
    configuration = configured(arguments)
    servers = list(configuration.servers.values())
    if arguments.json:
        print(json.dumps([_told(server) for server in servers], indent=2, ensure_ascii=False))
    elif servers:
        rows = [
            (one.name, one.config.type, one.scope.value, _state(one), address(one.config), one.file) for one in servers
        ]
        for line in table(("name", "type", "scope", "state", "address", "file"), rows):
            print(line)
    elif not configuration.problems:
        print("No servers. Add one: claude-code-mcp mcp add NAME -- COMMAND")
    return 1 if configuration.problems else 0


def address(config: ServerConfig) -> str:
    """How a server is reached, without its secrets."""
    shown = config.describe()
    return str(shown.get("command") or shown.get("url") or "in this process")


def _state(server: ConfiguredServer) -> str:
    return "enabled" if server.barred is None else server.barred


def _told(server: ConfiguredServer) -> dict[str, Any]:
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
    told = _checked(name, entry)
    file = load_settings().hub_file
    with changing(file) as entries:
        if name in entries and not arguments.force:
            raise InvalidArgument(f"There is already a server called {name!r} in {file}; --force replaces it.")
        entries[name] = entry
    print(f"Added {name} ({told}) to {file}.")
    return 0


def raw_entry(
    command: list[str], url: str | None, kind: str | None, headers: list[str], variables: list[str]
) -> dict[str, Any]:
    """An entry as files have it. Raises InvalidArgument, without repeating what may be a secret."""
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


def _pairs(given: list[str], separator: str, wanted: str) -> dict[str, str]:
    pairs = {}
    for one in given:
        name, found, value = one.partition(separator)
        if not found or not name.strip():
            raise InvalidArgument(wanted)
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs


def _checked(name: str, entry: Mapping[str, Any]) -> str:
    """What may be told of an entry that can be used."""
    try:
        expand(dict(entry), os.environ)
    except MissingVariable as error:
        print(f"claude-code-mcp: note: {error} here", file=sys.stderr)
        return str(entry["type"])
    try:
        config = parse_entry(name, dict(entry), os.environ)
    except InvalidEntry as error:
        raise InvalidArgument(f"{name}: {error}") from None
    return f"{config.type}, {address(config)}"


def remove(arguments: argparse.Namespace) -> int:
    with changing(load_settings().hub_file) as entries:
        _own(entries, arguments)
        del entries[arguments.name]
    print(f"Removed {arguments.name}.")
    still = configured(arguments).servers.get(arguments.name)
    if still is not None:
        print(f"There is another one of that name in {still.file}, which counts now.")
    return 0


def enable(arguments: argparse.Namespace) -> int:
    return _set_disabled(arguments, False)


def disable(arguments: argparse.Namespace) -> int:
    return _set_disabled(arguments, True)


def _set_disabled(arguments: argparse.Namespace, disabled: bool) -> int:
    with changing(load_settings().hub_file) as entries:
        entry = _own(entries, arguments)
        if not isinstance(entry, dict):
            raise InvalidArgument(f"The entry {arguments.name!r} is not an object; remove it and add it again.")
        entry.pop("disabled", None)
        if disabled:
            entry["disabled"] = True
    print(f"{arguments.name} is {'disabled' if disabled else 'enabled'}.")
    return 0


def _own(entries: Mapping[str, Any], arguments: argparse.Namespace) -> Any:
    """The entry, if it is in our own file. Raises InvalidArgument that says where it is instead."""
    if arguments.name in entries:
        return entries[arguments.name]
    elsewhere = _read(load_settings(), arguments, everything=True).servers.get(arguments.name)
    if elsewhere is None:
        raise InvalidArgument(f"There is no MCP server called {arguments.name!r}.")
    raise InvalidArgument(f"{arguments.name!r} is configured in {elsewhere.file}, which is not ours to change.")


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": list_servers,
    "add": add,
    "remove": remove,
    "enable": enable,
    "disable": disable,
}


_KEY = "mcpServers"


ServerEntries = dict[str, Any]


@contextmanager
def changing(file: Path) -> Iterator[ServerEntries]:
    """The entries of the file, to be changed; written when the block ends well. All else in the file is kept."""
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
    descriptor, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # born with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
    except BaseException:
        os.unlink(new)
        raise
