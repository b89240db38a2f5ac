"""`uninstall`: removes the entries in clients and our own files, and prints how to remove the package.

Only files of this product are removed. Claude Code's files, with its conversations and its login, stay, and so do
worktrees, which are part of repositories.
"""

import argparse
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..client.conventions import ExitCode, add_config_file, agreed, failed
from ..client.shared_server import running_servers, stop_servers
from ..core.config import Settings, load_settings
from ..core.errors import ClaudeCodeError, InvalidArgument
from ..core.installation import PACKAGE, uninstall_command
from ..core.model.paths import config_directory, user_file
from ..core.model.text import count_of, visible
from ..startup.greeting.first_answers import cache_file
from ..startup.shared import place
from .backup import ASIDE, refuse_while_served, states_aside
from .config import (
    HOSTS,
    VSCODE_USER,
    McpHost,
    entry_in_claude_code,
    has_entry,
    is_ours,
    remove_by_command,
    remove_from_file,
)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "uninstall",
        help="remove the entries in clients and all files of claude-code-mcp",
        description="Lists everything it would remove and, after confirmation, removes the entries in your "
        "clients, stops the shared server and deletes the state of claude-code-mcp. Claude Code's own "
        "files stay. Quit your clients first.",
    )
    parser.add_argument("--keep-state", action="store_true", help="remove only the entries in clients")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_config_file(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = load_settings(file=arguments.config)
    unreadable: list[str] = []
    registered = list(_registered(unreadable))
    files = [] if arguments.keep_state else [path for path in _own_files(settings) if os.path.lexists(path)]
    kept = [path for path in files if not _is_ours_alone(path)]
    files = [path for path in files if path not in kept]
    has_state = not arguments.keep_state and settings.state_dir.exists()
    servers = _servers_without_clients(settings.state_dir) if has_state else []
    for host_name, host in registered:
        print(f"entry in {host_name}: {visible(str(_file_of(host)))}")
    for status in servers:
        print(f"stop: the shared server, pid {status['pid']}")
    for path in files:
        print(f"delete: {visible(str(path))}{_contents(path)}")
    if not registered and not servers and not files:
        print("Nothing to remove: no client has an entry, and there are no files.")
    elif not arguments.yes and not agreed("Remove all of this?"):
        return failed("Nothing was changed.", ExitCode.REFUSED)
    problems = [
        *unreadable,
        *(f"{path} is set by a setting and may be used by other programs: delete it by hand." for path in kept),
    ]
    for host_name, host in registered:
        try:
            _remove_entry(host)
        except ClaudeCodeError as error:
            problems.append(f"{host_name}: {error.message}")
    if has_state:
        stop_servers()
        # Again, at the last moment: a client may have started another server since.
        refuse_while_served(settings.state_dir)
    for path in files:
        try:
            _delete(path)
            print(f"Deleted: {visible(str(path))}")
        except OSError as error:
            problems.append(f"{path} cannot be deleted: {error.strerror or error}.")
    print(f"To remove the package: {uninstall_command()}")
    for problem in problems:
        failed(visible(problem))
    return int(ExitCode.FAILED if problems else ExitCode.DONE)


# -- entries in clients -----------------------------------------------------------------------------------------------


def _registered(unreadable: list[str]) -> Iterator[tuple[str, McpHost | None]]:
    """The clients with an entry of this server; Claude Code has no host, since only its own command changes its file.
    What cannot be read is added to `unreadable`."""
    if is_ours(entry_in_claude_code()):
        yield "claude-code", None
    for name, host in [*HOSTS.items(), ("vscode --user", VSCODE_USER)]:
        try:
            if has_entry(host):
                yield name, host
        except InvalidArgument as error:
            unreadable.append(f"{name}: {_file_of(host)}: {error.message}")


def _file_of(host: McpHost | None) -> Path:
    return user_file(os.environ) if host is None or host.file is None else host.file().absolute()


def _remove_entry(host: McpHost | None) -> None:
    if host is None:
        if remove_by_command(yes=True):
            raise ClaudeCodeError("its command failed; see above.")
    elif host.file is not None and host.dialect is not None:
        remove_from_file(host.file(), host.dialect, yes=True)


# -- files ------------------------------------------------------------------------------------------------------------


def _own_files(settings: Settings) -> list[Path]:
    """The files of this product: its state, earlier states that restores have moved aside, the hub's MCP servers, the
    cached first answers on stdio, and the sockets of shared servers if they are outside the state directory."""
    state = settings.state_dir
    found = [state, *states_aside(state), settings.hub_file, Path(cache_file("")).parent]
    # Only if there is a state: checking the sockets creates a directory for them.
    if state.exists() and place.possible():
        with contextlib.suppress(OSError):
            sockets = Path(place.runtime_directory(os.environ))
            found += [] if sockets.is_relative_to(state) else [sockets]
    return list(dict.fromkeys(found))


def _is_ours_alone(path: Path) -> bool:
    """Whether a directory may be deleted with all its contents, or a file in such a directory. A directory with another
    name may contain a person's other files: it may be a home directory, or belong to Claude Code."""
    directory = path if path.is_dir() else path.parent
    holds_claude = Path(config_directory(os.environ)).resolve().is_relative_to(directory.resolve())
    return directory.name.partition(ASIDE)[0] == PACKAGE and not path.is_symlink() and not holds_claude


def _delete(path: Path) -> None:
    """Delete a directory with its contents; or a file, and its directory if that is then empty. Raises OSError."""
    if path.is_dir():
        shutil.rmtree(path)
        return
    path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _contents(path: Path) -> str:
    """A note on the contents that are lost with this directory only."""
    callers = path / "principals"
    count = len(list(callers.iterdir())) if callers.is_dir() else 0
    return f" (with the conversations of {count_of(count, 'caller')})" if count else ""


def _servers_without_clients(state_dir: Path) -> list[dict[str, Any]]:
    """The running shared servers. InvalidArgument if one has clients, which would start it again, or if another server
    uses the state."""
    running = running_servers()
    for status in running:
        if status["clients"]:
            clients = ", ".join(f"pid {client['pid']} in {client['directory']}" for client in status["clients"])
            raise InvalidArgument(f"Quit the clients that use the shared server first: {clients}.")
    if not running:
        refuse_while_served(state_dir)
    return running
