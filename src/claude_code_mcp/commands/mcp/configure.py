"""`mcp list`, `get`, `add`, `import`, `remove`, `enable` and `disable`: the configuration of servers.

`load_configuration` and `select_servers` are shared with the actions that do connect. Only our own
file is ever changed, through `edit_entries`: under a lock, written to a temporary file that then replaces the old one,
and with everything else in the file kept. A file that cannot be read is refused and left as it is.
"""

import argparse
import copy
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...config import Settings, load_settings
from ...errors import InvalidArgument
from ...hub.config_entry import (
    SECTIONS,
    InvalidEntry,
    MissingVariable,
    ServerConfig,
    expand,
    in_our_words,
    input_defaults,
    parse_entry,
    read_text,
    section_of,
)
from ...hub.config_files import ConfiguredServer, HubConfig, hub_servers
from ...json_text import decode_with_comments
from ...model.paths import user_file
from ...private_files import FILE, private_directory, replace_file
from ..conventions import NotFound, print_json, print_outcome, standard_input
from ..json_edit import remove_value, set_value
from .add_line import checked_name, entry_of, read_add_json_line, read_add_line
from .terminal import clean, print_table

PROGRAMS = ("claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "gemini")


def files_of(source: str, environment: Mapping[str, str], project: Path) -> list[Path]:
    """The files of a program, those of the project first; or the one file that was named instead."""
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    data = _application_data(environment, home)
    files = {
        "claude-desktop": [data / "Claude" / "claude_desktop_config.json"],
        "claude-code": [user_file(environment)],
        "cursor": [project / ".cursor" / "mcp.json", home / ".cursor" / "mcp.json"],
        "vscode": [
            project / ".vscode" / "mcp.json",
            data / "Code" / "User" / "mcp.json",
            data / "Code" / "User" / "settings.json",
        ],
        "windsurf": [home / ".codeium" / "windsurf" / "mcp_config.json"],
        "gemini": [project / ".gemini" / "settings.json", home / ".gemini" / "settings.json"],
    }
    return files.get(source) or [Path(source)]


def _application_data(environment: Mapping[str, str], home: Path) -> Path:
    if sys.platform == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config")


def entries_of(source: str, environment: Mapping[str, str], project: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The entries of a program in our words, by name, each with its file; the first file that has a name counts.

    Raises InvalidArgument where there is no file, or one cannot be read.
    """
    files = files_of(source, environment, project)
    present = [file for file in files if file.exists()]
    if not present:
        known = "" if source in PROGRAMS else f" Known programs: {', '.join(PROGRAMS)}."
        raise NotFound(f"There is no {' and no '.join(map(str, files))}.{known}")
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in present:
        for name, entry in _entries_in(file).items():
            # Files of the project come first, and count as they do in the program itself.
            found.setdefault(name, (file, entry))
    return found


def _entries_in(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = decode_with_comments(read_text(file))
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}.") from None
    section = section_of(content)[1] if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise InvalidArgument(f"{file} has no MCP servers that can be read.")
    defaults = input_defaults(content)
    return {name: in_our_words(entry, defaults) for name, entry in section.items() if isinstance(entry, dict)}


# -- configure --------------------------------------------------------------------------------------------------------


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
            raise NotFound(f"There is no MCP server called {name!r}; there are: {known}.")
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
        print("No servers. Add one: claude-code-mcp mcp add NAME -- COMMAND")
    return 1 if configuration.problems else 0


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
    """Copies the servers of another program into our own file. One that is there already, or cannot be used, is
    reported and left out. The exit code is 1 if one could not be used."""
    found = entries_of(arguments.source, os.environ, arguments.project.resolve())
    wanted = arguments.names or list(found)
    for name in wanted:
        if name not in found:
            raise NotFound(f"There is no server called {name!r}; there are: {', '.join(found) or 'none'}.")
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
                report(name, "kept", f"{clean(name)}: already there; --force replaces it")
                continue
            try:
                if isinstance(named := entry.get("envFile"), str):
                    # The whole path: our own file is not beside it.
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
    """Tells all of one entry that may be shown."""
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
    other = load_configuration(arguments).servers.get(arguments.name)
    if arguments.json:
        print_json({"name": arguments.name, "removed": True, "file": str(other.file) if other is not None else None})
        return 0
    print(f"Removed {arguments.name}.")
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
    return print_outcome(
        arguments,
        {"name": arguments.name, "enabled": not disabled},
        f"{arguments.name} is {'disabled' if disabled else 'enabled'}.",
    )


def _own_entry(entries: Mapping[str, Any], arguments: argparse.Namespace) -> Any:
    """The named entry of our own file. Raises InvalidArgument; for a server of another file it says which one."""
    if arguments.name in entries:
        return entries[arguments.name]
    elsewhere = _read(load_settings(), arguments, everything=True).servers.get(arguments.name)
    if elsewhere is None:
        raise NotFound(f"There is no MCP server called {arguments.name!r}.")
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
        # From the reading to the writing: of two commands at once the second sees what the first has written.
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
    """The text of the file and what it says."""
    try:
        text = file.read_text(encoding="utf-8")
        content = decode_with_comments(text or "{}")
    except FileNotFoundError:
        return "", {}
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}; it was left as it is.") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} must hold an object; it was left as it is.")
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
