"""`shared`: the server that all clients of this user share: its status, starting and stopping it, and running as it."""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..client.conventions import ExitCode, add_json, failed, positive, print_outcome
from ..client.setting_flags import add_settings
from ..client.shared_server import asked, own_place, places, running_servers, settings_arguments, started
from ..core.config import Settings, load_settings
from ..core.errors import InvalidArgument
from ..core.model.text import count_of
from ..core.processes.environment import DEPTH, MARK
from ..core.settings_section import variable_of
from ..startup.shared import place
from ..startup.shared.handshake import Hello
from .serve import overrides

_INHERITED_HELP = "internal: the socket and the lock of the server are open as descriptors 3 and 4"
_FOLLOW_INTERVAL = 0.3


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "shared",
        help="show, start and stop your shared server",
        description="Manages the server behind `claude-code-mcp --shared`. Clients start it when they need it, and "
        f"it exits when it has not been used for a while ({variable_of('shared_idle_ms', Settings)}).",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="show whether it runs and for which clients; exit code 5 if it does not")
    add_json(status)
    status.set_defaults(run=_status)
    for name, act, summary in (
        ("start", _start, "start it if it is not running"),
        ("restart", _restart, "restart it; clients stay connected"),
        ("run", _run, "run it in the foreground, for service managers"),
    ):
        action = actions.add_parser(name, help=summary)
        action.add_argument(
            "--http", metavar="HOST:PORT", help="also serve over HTTP; the server then runs until it is stopped"
        )
        if name == "run":
            action.add_argument(place.INHERITED, metavar="PATH", help=_INHERITED_HELP)
        else:
            add_json(action)
        add_settings(action)
        action.set_defaults(run=act)
    stop = actions.add_parser("stop", help="stop the server and its sessions' processes; sessions can be resumed")
    stop.add_argument("--all", action="store_true", help="include servers that were started with other settings")
    add_json(stop)
    stop.set_defaults(run=_stop)
    logs = actions.add_parser("logs", help="print its log")
    add_json(logs, "print one JSON object per line")
    logs.add_argument("--lines", type=positive, default=50, metavar="N", help="the last N lines (default 50)")
    logs.add_argument("--follow", action="store_true", help="keep printing new lines until Ctrl-C")
    logs.set_defaults(run=_logs)


def _status(arguments: argparse.Namespace) -> int:
    running = running_servers()
    text = "\n".join(line for status in running for line in _status_lines(status)) or "No shared server is running."
    print_outcome(arguments, running, text)
    return int(ExitCode.DONE if running else ExitCode.UNAVAILABLE)


def _status_lines(status: dict[str, Any]) -> Iterator[str]:
    clients = status["clients"]
    yield f"pid {status['pid']}, version {status['version']}, {status['state']} since {_time(status['started'])}"
    yield f"  socket {status['socket']}"
    if "sessions" in status:
        yield (
            f"  {count_of(status['sessions'], 'session')} in memory, {status['processes']} with a process, "
            f"{status['busy']} busy; {count_of(status['questions'], 'open question')}"
        )
    if status.get("http"):
        yield f"  serves {status['http']}"
    if status.get("web"):
        yield f"  the console is at {status['web']}"
    if status["handover"]:
        yield f"stops for version {status['handover']} when all sessions are idle"
    yield f"  {count_of(len(clients), 'client')}"
    for entry in clients:
        since = _time(entry["since"])
        yield f"    pid {entry['pid']} in {entry['directory']} since {since}, version {entry['version']}"


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _print_line(line: bytes, arguments: argparse.Namespace) -> None:
    text = line.decode(errors="replace")
    print(json.dumps({"line": text}, ensure_ascii=False) if arguments.json else text)


def _logs(arguments: argparse.Namespace) -> int:
    file = Path(own_place()[0].log_file)
    try:
        with file.open("rb") as log:
            for line in log.read().splitlines()[-arguments.lines :]:
                _print_line(line, arguments)
            sys.stdout.flush()
            while arguments.follow:
                at = log.seek(0, os.SEEK_CUR)
                new = log.readline()
                if new.endswith(b"\n"):
                    _print_line(new[:-1], arguments)
                    sys.stdout.flush()
                else:
                    log.seek(at)  # the rest of the line is still to come
                    time.sleep(_FOLLOW_INTERVAL)  # another process writes it
    except FileNotFoundError:
        return failed(f"There is no log at {file}.", ExitCode.NOT_FOUND)
    return 0


def _start(arguments: argparse.Namespace) -> int:
    where, fingerprint = own_place(settings_arguments(arguments))
    running = asked(where, "status")
    if running is None:
        running = started(where, fingerprint, arguments)
        text = f"Started: pid {running['pid']}, {running['socket']}"
    elif arguments.http:
        raise InvalidArgument(
            f"It is already running (pid {running['pid']}); to serve over HTTP too: shared restart --http."
        )
    else:
        text = f"It is already running: pid {running['pid']}, {running['socket']}"
    return print_outcome(arguments, running, text)


def _stop(arguments: argparse.Namespace) -> int:
    chosen = places() if arguments.all else [own_place()[0]]
    stopped = [status for where in chosen if (status := asked(where, "stop")) is not None]
    lines = [f"Stopped: pid {status['pid']}; {count_of(status.get('busy', 0), 'session')} busy" for status in stopped]
    print_outcome(arguments, stopped, "\n".join(lines) or "No shared server is running.")
    return 0 if stopped else 1


def _restart(arguments: argparse.Namespace) -> int:
    where, fingerprint = own_place(settings_arguments(arguments))
    asked(where, "restart")
    status = started(where, fingerprint, arguments)
    return print_outcome(arguments, status, f"Restarted: pid {status['pid']}, {status['socket']}")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.inherited:
        where = place.Place(*os.path.split(arguments.inherited))
        # Inherited by a session, the socket and the lock would be held by it after this server has ended.
        os.set_inheritable(place.LISTENER, False)
        os.set_inheritable(place.LOCK, False)
        listener, lock, first = socket.socket(fileno=place.LISTENER), place.LOCK, None
    else:
        where, fingerprint = own_place(settings_arguments(arguments))
        found = place.take_lock(where)
        if found is None:
            raise InvalidArgument(f"A shared server is already running at {where.socket}.")
        # After the lock: only its holder may take the place of a socket that is there.
        listener, lock = socket.socket(fileno=place.listen(where).detach()), found
        first = Hello(
            directory=place.working_directory(),
            environment=dict(os.environ),
            fingerprint=fingerprint,
            arguments=settings_arguments(arguments),
        )
    place.write_holder(lock)
    asyncio.run(_serve(listener, where, first, arguments.http, to_file=bool(arguments.inherited)))
    return 0


async def _serve(
    listener: socket.socket, where: place.Place, first: Hello | None, http: str | None, *, to_file: bool
) -> None:
    from ..core.audit.session_log import log_to_file, log_to_stderr  # noqa: PLC0415 - not for other commands
    from ..server.transports.unix_socket import SharedSocket  # noqa: PLC0415 - loads the MCP SDK
    from ..serving import run_shared  # noqa: PLC0415

    def settings_of(client_hello: Hello) -> Settings:
        _take_over(client_hello)
        settings = _settings(client_hello)
        log_to_file(settings, Path(where.log_file)) if to_file else log_to_stderr(settings)
        return settings

    shared = SharedSocket(listener, where)
    if first is not None:
        shared.settle_settings(first)
    await run_shared(shared, settings_of, http)


def _take_over(client_hello: Hello) -> None:
    """Adopt the client's environment (in memory only) and directory, as a server in the client's process would have
    them, except the variables that tie the client to a session: this server belongs to no session."""
    # Before the settings are read from it: nothing of the starter's own environment may remain.
    os.environ.clear()
    os.environ.update({name: value for name, value in client_hello.environment.items() if name not in (MARK, DEPTH)})
    with contextlib.suppress(OSError):
        os.chdir(client_hello.directory)


def _settings(client_hello: Hello) -> Settings:
    """The settings of the server; the path of the CLI and the default directory are each client's own."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--shared", action="store_true")
    add_settings(parser)
    try:
        arguments = parser.parse_args(client_hello.arguments)
    except (argparse.ArgumentError, SystemExit) as error:
        raise InvalidArgument(f"The arguments cannot be used: {error}") from None
    own = {variable_of("claude_path", Settings), variable_of("default_cwd", Settings)}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    return load_settings(environment, arguments.config, **overrides(arguments))
