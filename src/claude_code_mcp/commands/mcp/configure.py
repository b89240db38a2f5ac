"""`mcp list`, `get`, `add`, `add-json`, `import`, `remove`, `enable`, `disable`: the configuration. Connect to nothing.

`load_configuration` and `select_servers` are shared with the actions that do connect. Only our own
file is ever changed, through `edit_entries`: under a lock, written to a temporary file that then replaces the old one,
and with everything else in the file kept. A file that cannot be read is refused and left as it is.
"""

import argparse
import json
import os
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
from ...hub.config_dialects import SECTIONS, in_our_words
from ...hub.config_entry import InvalidEntry, MissingVariable, ServerConfig, expand, parse_entry
from ...hub.config_files import ConfiguredServer, HubConfig, hub_servers
from ...json_text import decode_with_comments
from ...private_files import FILE, private_directory, replace_file
from ..flags import standard_input
from .add_line import checked_name, entry_of, read_add_json_line, read_add_line
from .render import as_json, clean, table
from .sources import entries_of

_KEY = "mcpServers"


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
    """The configuration with only these servers. Raises InvalidArgument for a name that it does not have, or
    whose entry cannot be used."""
    for name in names:
        if name not in configuration.servers:
            for problem in configuration.problems:
                if problem.entry == name:
                    raise InvalidArgument(f"{name!r} is configured, and cannot be used: {problem.message}.")
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
    line = read_add_line(arguments.line)
    _add_entry(line.name, entry_of(line), force=line.force)
    _explain_scope(line.scope)
    return 0


def add_json(arguments: argparse.Namespace) -> int:
    """An entry as JSON, as Claude Code's own `add-json` takes it; `-` reads it from standard input."""
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
    _add_entry(line.name, in_our_words(entry, {}), force=line.force)
    _explain_scope(line.scope)
    return 0


def _add_entry(name: str, entry: dict[str, Any], *, force: bool) -> None:
    description = _check_entry(name, entry)
    file = load_settings().hub_file
    with edit_entries(file) as entries:
        if name in entries and not force:
            raise InvalidArgument(f"There is already a server called {name!r} in {file}; --force replaces it.")
        entries[name] = entry
    print(f"Added {name} ({description}) to {file}.")


def _explain_scope(scope: str | None) -> None:
    if scope is not None:
        print("claude-code-mcp: note: --scope is for Claude Code; our own file is for all sessions.", file=sys.stderr)


def import_servers(arguments: argparse.Namespace) -> int:
    """Copies the servers of another program into our own file. One that is there already, or cannot be used, is told
    and left out; ends with 1 where one could not be used."""
    found = entries_of(arguments.source, os.environ, arguments.project.resolve())
    wanted = arguments.names or list(found)
    for name in wanted:
        if name not in found:
            raise InvalidArgument(f"There is no server called {name!r}; there are: {', '.join(found) or 'none'}.")
    failed = 0
    with edit_entries(load_settings().hub_file) as entries:
        for name in wanted:
            file, entry = found[name]
            if name in entries and not arguments.force:
                print(f"{clean(name)}: already there; --force replaces it")
                continue
            try:
                entry = _with_whole_path(entry, file, arguments.project.resolve())
                description = _check_entry(checked_name(name), entry)
            except InvalidArgument as error:
                failed += 1
                print(f"claude-code-mcp: left out: {clean(error.message)}", file=sys.stderr)
                continue
            entries[name] = entry
            print(f"{name}: {description}, from {file}")
    return 1 if failed else 0


def _with_whole_path(entry: dict[str, Any], file: Path, project: Path) -> dict[str, Any]:
    """The entry with the whole path of its `envFile`, which our own file is not beside."""
    named = entry.get("envFile")
    if not isinstance(named, str):
        return entry
    return {**entry, "envFile": os.path.join(file.parent, named.replace("${workspaceFolder}", str(project)))}


def get(arguments: argparse.Namespace) -> int:
    """Tells all of one entry that may be shown."""
    server = select_servers(load_configuration(arguments), [arguments.name]).servers[arguments.name]
    data = {**_server_data(server), "variables": sorted(getattr(server.config, "env", {}))}
    if arguments.json:
        print(as_json(data))
        return 0
    for key, value in data.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list | dict) else value
        if shown not in (None, ""):
            print(f"{key}: {clean(str(shown))}")
    return 0


def _check_entry(name: str, entry: Mapping[str, Any]) -> str:
    """A description of a usable entry, without secrets; InvalidArgument for one that the hub would refuse.

    A variable that is not set here is no mistake: it may be set where the server runs.
    """
    try:
        expand(dict(entry), os.environ)
    except MissingVariable as error:
        print(f"claude-code-mcp: note: {error} here", file=sys.stderr)
        return str(entry.get("type") or "type not known yet")
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
            entries = content.setdefault(next((key for key in SECTIONS if key in content), _KEY), {})
            if not isinstance(entries, dict):
                raise InvalidArgument(f"{file}: {_KEY} must be an object; it was left as it is.")
            yield entries
            _write_file(file, content)
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be changed: {error.strerror or error}.") from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8") or "{}"
        content = decode_with_comments(text)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}; it was left as it is.") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} must hold an object; it was left as it is.")
    _keep_comments(file, text)
    return content


def _keep_comments(file: Path, text: str) -> None:
    """Keeps a file that has comments under another name: what is written has none."""
    try:
        json.loads(text)
    except ValueError:
        kept = file.with_name(f"{file.name}.with-comments")
        replace_file(kept, text.encode())
        print(f"claude-code-mcp: note: comments are not written back; they are in {kept}", file=sys.stderr)


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
    "get": get,
    "add": add,
    "add-json": add_json,
    "import": import_servers,
    "remove": remove,
    "enable": partial(set_disabled, disabled=False),
    "disable": partial(set_disabled, disabled=True),
}
