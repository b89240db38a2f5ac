"""`fleet`: commands for the operator of several machines behind one address. `runner`: run as one of the machines."""

import argparse
import asyncio
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ... import __version__
from ...client.conventions import (
    ExitCode,
    add_config_file,
    add_json,
    agreed,
    camel_names,
    failed,
    positive,
    print_json,
    print_outcome,
    standard_input,
    table,
)
from ...core.config import Settings, load_settings
from ...core.errors import ClaudeCodeError, ExecutableNotFound, InvalidArgument
from ...core.installation import extra_command
from ...core.settings_section import variable_of
from .settings import FleetSettings

if TYPE_CHECKING:
    from ...core.service import Service
    from .app import GatewayPlace
    from .connection import FleetConnection
    from .leases import Ownership
    from .machines import FleetMember, Machine

T = TypeVar("T")

_PORT = 4222
_LISTEN = f"0.0.0.0:{_PORT}"
_MAX_LABEL = 64


def add_fleet(commands: Any) -> None:
    parser = commands.add_parser(
        "fleet",
        help="run sessions on several machines behind one address",
        description="Runs sessions on several machines behind one address. `fleet up` starts a fleet on this "
        "machine and prints the command with which other machines join.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    up = actions.add_parser("up", help="run the fleet's server, a gateway and a machine here, until Ctrl-C")
    up.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=_LISTEN,
        help=f"address for machines to connect to, with TLS (default {_LISTEN})",
    )
    up.add_argument(
        "--address",
        metavar="HOST[:PORT]",
        help="address that other machines use (default: the address of this machine)",
    )
    up.add_argument("--http", metavar="HOST:PORT", help="also serve clients over HTTP, with tokens; path /mcp")
    up.add_argument(
        "--oauth",
        action="store_true",
        help=f"with --http: let invited people sign in with passkeys ({variable_of('oauth', Settings)})",
    )
    _add_machine(up)
    _add_nats(up)
    add_config_file(up)
    up.set_defaults(run=partial(_serve, _up))
    for name, act, summary in (
        ("status", _status, "list the machines: load, versions, labels, and whether they respond"),
        ("ticket", _ticket, "print a ticket for one more machine, valid for an hour"),
        ("drain", _drain, "let a machine finish its sessions and accept no new ones"),
        ("remove", _remove, "revoke the key of a machine and forget it"),
    ):
        action = actions.add_parser(name, help=summary)
        if name in ("drain", "remove"):
            action.add_argument("machine", metavar="MACHINE", help="machine id, or its name if it is unique")
        if name == "drain":
            action.add_argument("--undo", action="store_true", help="let the machine accept sessions again")
        if name == "remove":
            action.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        add_json(action)
        if name in ("status", "drain"):
            _add_nats(action)
        add_config_file(action)
        action.set_defaults(run=_at_fleet(act))


def add_runner(commands: Any) -> None:
    parser = commands.add_parser(
        "runner",
        help="run as a machine of a fleet, until Ctrl-C",
        description="Connects this machine to a fleet with outbound connections only. The first start needs "
        "--join; later starts use the machine's stored key.",
    )
    parser.add_argument(
        "--join", metavar="TICKET", help="ticket printed by `fleet ticket`; - reads it from standard input"
    )
    _add_machine(parser)
    _add_nats(parser)
    add_config_file(parser)
    parser.set_defaults(run=partial(_serve, _runner))


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="name of this machine (default: its host name)")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        type=_label,
        metavar="LABEL",
        help="label that sessions can require; repeatable",
    )
    parser.add_argument(
        "--capacity",
        type=positive,
        metavar="N",
        help=f"maximum number of sessions (default: {variable_of('max_sessions', Settings)})",
    )


def _add_nats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nats", metavar="URL", help=f"URLs of your own NATS servers ({variable_of('fleet_nats', FleetSettings)})"
    )
    parser.add_argument(
        "--creds", type=Path, metavar="FILE", help=f"credentials for them ({variable_of('fleet_creds', FleetSettings)})"
    )


def _label(text: str) -> str:
    if not text.strip() or len(text) > _MAX_LABEL or "," in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label: up to {_MAX_LABEL} characters without a comma")
    return text.strip()


def _settings(arguments: argparse.Namespace) -> Settings:
    """The settings; flags override the fleet's settings. Raises InvalidArgument if the extra is missing."""
    try:
        from . import nats_client  # noqa: F401, PLC0415 - of an extra, and slow to import
    except ImportError:
        raise InvalidArgument(f"The fleet is not installed: {extra_command('fleet')}") from None
    flags = {"fleet_nats": getattr(arguments, "nats", None), "fleet_creds": getattr(arguments, "creds", None)}
    oauth: dict[str, Any] = {"oauth": True} if getattr(arguments, "oauth", False) else {}
    if oauth and not arguments.http:
        raise InvalidArgument("--oauth needs --http HOST:PORT: people and their clients sign in over HTTP.")
    settings = load_settings(file=arguments.config, **oauth)
    fleet = settings.section(FleetSettings, **{field: value for field, value in flags.items() if value})
    if (fleet.fleet_nats is None) != (fleet.fleet_creds is None):
        raise InvalidArgument("--nats and --creds must be used together.")
    return settings


def directory_of(settings: Settings) -> Path:
    return settings.state_dir / "fleet"


# -- running a fleet or one of its machines ---------------------------------------------------------------------------


def _serve(
    act: Callable[[argparse.Namespace, Settings], Coroutine[Any, Any, None]], arguments: argparse.Namespace
) -> int:
    """Runs one of the two until a signal arrives, with a log on stderr."""
    from ...core.audit.session_log import log_to_stderr  # noqa: PLC0415
    from ...serving import on_signals  # noqa: PLC0415 - loads the MCP SDK

    settings = _settings(arguments)
    log_to_stderr(settings)

    async def until_signal() -> None:
        task, stopped = asyncio.ensure_future(act(arguments, settings)), False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        with on_signals(stop):
            await asyncio.wait([task])
        # Any other cancellation means a failure, which must be reported.
        if not (stopped and task.cancelled()):
            task.result()

    _run(until_signal())
    return 0


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs to the end. An error is raised itself, not in the exception groups of tasks that ended with it."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        found: BaseException | None = group.subgroup(ClaudeCodeError)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        raise found from None


async def _up(arguments: argparse.Namespace, settings: Settings) -> None:
    from .app import GatewayPlace  # noqa: PLC0415 - of the extra, and loads the MCP SDK

    # Before anything is started: where clients connect must be free.
    place = GatewayPlace(["--config", str(arguments.config)] if arguments.config is not None else [])
    fleet = settings.section(FleetSettings)
    try:
        if fleet.fleet_nats is not None:
            await _run_with_own_servers(arguments, settings, place)
        else:
            await _run_with_embedded_server(arguments, settings, place)
    finally:
        place.close()


async def _run_with_embedded_server(arguments: argparse.Namespace, settings: Settings, place: "GatewayPlace") -> None:
    from .app import serving_gateway  # noqa: PLC0415
    from .host import hosting  # noqa: PLC0415
    from .keeper import KeeperOwnership  # noqa: PLC0415
    from .tickets import connect_machine  # noqa: PLC0415

    host, port = _host_and_port(arguments.listen)
    # Queried while the server starts, because Claude Code takes a while to report its version.
    version = asyncio.ensure_future(asyncio.to_thread(_cli_version, settings))
    async with hosting(
        directory_of(settings),
        host=host,
        port=port,
        address=arguments.address,
        name=arguments.name,
        lease_seconds=settings.section(FleetSettings).lease_seconds,
    ) as home:
        connection = await connect_machine(home.machine)
        try:
            machine = _machine(arguments, settings, home.machine.machine_id, await version)
            ownership = KeeperOwnership(connection, machine.id, machine.run)
            async with (
                _machine_at_work(settings, connection, machine, ownership) as service,
                serving_gateway(
                    home.connection, settings, place, arguments.http, service, home.kept.receivers, home.server
                ) as gateway,
            ):
                print(f"The fleet is up at {home.address}; this machine is {machine.name} ({machine.id}).")
                _print_clients(gateway.url)
                ticket = await home.enrollment.ticket()
                print(
                    "To add a machine, run this on it within an hour (`claude-code-mcp fleet ticket` prints another):\n"
                )
                print(f"  claude-code-mcp runner --join {ticket}\n", flush=True)
                ended = asyncio.ensure_future(gateway.ended())
                try:
                    await asyncio.wait([ended, home.server.failed], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ended.cancel()
                if home.server.failed.done():
                    home.server.failed.result()
        finally:
            await connection.abandon()


async def _run_with_own_servers(arguments: argparse.Namespace, settings: Settings, place: "GatewayPlace") -> None:
    from .app import serving_gateway  # noqa: PLC0415
    from .host import keeping  # noqa: PLC0415
    from .keeper import KeeperOwnership  # noqa: PLC0415
    from .tickets import connect_credentials, credentials_seed  # noqa: PLC0415

    fleet = settings.section(FleetSettings)
    assert fleet.fleet_nats is not None
    assert fleet.fleet_creds is not None
    connection, machine_id = await connect_credentials(fleet.fleet_nats, fleet.fleet_creds)
    try:
        replicas = 3 if len(fleet.fleet_nats.split(",")) >= 3 else 1
        seed = await asyncio.to_thread(credentials_seed, fleet.fleet_creds)
        async with keeping(connection, seed, replicas, fleet.lease_seconds) as kept:
            machine = _machine(arguments, settings, machine_id, await asyncio.to_thread(_cli_version, settings))
            # Through the keeper, like every machine: it may take only the sessions that were given to it.
            ownership = KeeperOwnership(connection, machine_id, machine.run)
            async with (
                _machine_at_work(settings, connection, machine, ownership) as service,
                serving_gateway(connection, settings, place, arguments.http, service, kept.receivers) as gateway,
            ):
                print(f"The fleet is up; this machine is {machine.name} ({machine.id}).")
                _print_clients(gateway.url)
                await gateway.ended()
    finally:
        await connection.abandon()


async def _runner(arguments: argparse.Namespace, settings: Settings) -> None:
    from .keeper import KeeperOwnership  # noqa: PLC0415

    version = asyncio.ensure_future(asyncio.to_thread(_cli_version, settings))
    connection, machine_id = await _connected_runner(arguments, settings)
    try:
        machine = _machine(arguments, settings, machine_id, await version)
        async with _machine_at_work(
            settings, connection, machine, KeeperOwnership(connection, machine_id, machine.run)
        ):
            print(f"{machine.name} ({machine.id}) is now a machine of the fleet.", flush=True)
            await asyncio.Event().wait()
    finally:
        await connection.abandon()


async def _connected_runner(arguments: argparse.Namespace, settings: Settings) -> "tuple[FleetConnection, str]":
    """The connection of this machine, and its id; joins the fleet first if there is a ticket."""
    from .enrollment import join  # noqa: PLC0415
    from .host import machine_file  # noqa: PLC0415
    from .tickets import Ticket, connect_machine  # noqa: PLC0415

    fleet = settings.section(FleetSettings)
    if arguments.join and fleet.fleet_nats is None:
        text = await asyncio.to_thread(standard_input) if arguments.join == "-" else arguments.join
        file = machine_file(directory_of(settings))
        key = await join(Ticket.parse(text), file, arguments.name or socket.gethostname())
        return await connect_machine(key), key.machine_id
    return await connected_machine(settings)


async def connected_machine(settings: Settings) -> "tuple[FleetConnection, str]":
    """A connection with this machine's key, and its id. Raises InvalidArgument if it belongs to no fleet."""
    from .host import machine_file  # noqa: PLC0415
    from .tickets import MachineKey, connect_credentials, connect_machine, connect_through_keeper  # noqa: PLC0415

    fleet = settings.section(FleetSettings)
    if fleet.fleet_nats is not None and fleet.fleet_creds is not None:
        connection, machine_id = await connect_credentials(fleet.fleet_nats, fleet.fleet_creds)
        # The server belongs to the operator, not to a keeper: a keeper may be away while the server keeps running.
        reports_itself = fleet.fleet_reports == "machine"
        return connect_through_keeper(connection, machine_id, reports_itself=reports_itself), machine_id
    found = await asyncio.to_thread(MachineKey.load, machine_file(directory_of(settings)))
    if found is None or not found.admitted:
        raise InvalidArgument("This machine has not joined a fleet yet: pass --join TICKET.")
    return await connect_machine(found), found.machine_id


# -- the machine itself -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _machine_at_work(
    settings: Settings, connection: "FleetConnection", machine: "Machine", ownership: "Ownership"
) -> AsyncIterator["Service"]:
    from .app import machine_server  # noqa: PLC0415
    from .host import only_process  # noqa: PLC0415
    from .runner import running_machine  # noqa: PLC0415

    # Before the lease is taken: a second runner with the same key would end the first.
    with only_process(directory_of(settings) / "runner.lock", "A runner is already running on this machine."):
        async with running_machine(
            connection, machine, ownership, settings, partial(machine_server, settings, machine.name)
        ) as service:
            yield service


def _machine(arguments: argparse.Namespace, settings: Settings, machine_id: str, cli_version: str) -> "Machine":
    from .machines import Machine  # noqa: PLC0415

    return Machine(
        id=machine_id,
        name=arguments.name or socket.gethostname(),
        version=__version__,
        cli_version=cli_version,
        labels=frozenset(arguments.label),
        capacity=arguments.capacity or settings.max_sessions,
        sessions=0,
        free_memory=0,
        draining=False,
        repositories=(),
        run=secrets.token_hex(8),
    )


def _cli_version(settings: Settings) -> str:
    """The version of Claude Code on this machine; empty if not installed. Blocks."""
    from ...core.claude.executable import find_executable, read_version, run_cli, version_text  # noqa: PLC0415

    try:
        version = read_version(run_cli(find_executable(settings.claude_path), "--version").stdout)
    except (ExecutableNotFound, OSError, subprocess.SubprocessError):
        return ""
    return "" if version is None else version_text(version)


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(f"--listen needs HOST:PORT, such as {_LISTEN}.", field="listen")
    return host.strip("[]"), int(port) or -1


def _print_clients(url: str | None) -> None:
    """Prints how clients connect: with the same settings, because other settings mean another server."""
    print("Clients of this user reach all machines through `claude-code-mcp --shared`, registered with:\n")
    print("  claude-code-mcp config claude-code --install\n")
    if url is not None:
        print(f"Clients with a token: {url}")
    sys.stdout.flush()


# -- inspecting and changing a fleet ----------------------------------------------------------------------------------

Act = Callable[["FleetConnection", argparse.Namespace], Awaitable[int]]


def _at_fleet(act: Act) -> Callable[[argparse.Namespace], int]:
    """Runs a command that needs a connection with the operator's key."""

    def run(arguments: argparse.Namespace) -> int:
        settings = _settings(arguments)

        async def connected() -> int:
            from .host import connect_to_host  # noqa: PLC0415
            from .tickets import connect_credentials  # noqa: PLC0415

            fleet = settings.section(FleetSettings)
            if fleet.fleet_nats is not None and fleet.fleet_creds is not None:
                connection, _ = await connect_credentials(fleet.fleet_nats, fleet.fleet_creds)
            else:
                connection = await connect_to_host(directory_of(settings))
            try:
                return await act(connection, arguments)
            finally:
                await connection.abandon()

        return _run(connected())

    return run


async def _status(connection: "FleetConnection", arguments: argparse.Namespace) -> int:
    from .machines import Membership  # noqa: PLC0415

    async with Membership(connection).followed() as membership:
        alive, gone = membership.machines(), membership.gone()
    if arguments.json:
        reports = [{**camel_names(machine.to_json()), "gone": False} for machine in alive]
        print_json([*reports, *({"id": member.id, "name": member.name, "gone": True} for member in gone)])
    else:
        print("\n".join(_table(alive, gone)))
    return 0


def _table(alive: "list[Machine]", gone: "list[FleetMember]") -> list[str]:
    rows = [("NAME", "ID", "STATE", "SESSIONS", "MEMORY", "VERSION", "CLAUDE CODE", "LABELS")]
    for machine in alive:
        rows.append(
            (
                machine.name,
                machine.id,
                "drained" if machine.draining else "up",
                f"{machine.sessions}/{machine.capacity}",
                f"{machine.free_memory / (1 << 30):.1f} GiB free",
                machine.version,
                machine.cli_version or "none",
                ",".join(sorted(machine.labels)),
            )
        )
    rows += [(member.name, member.id, "gone", "", "", "", "", "") for member in gone]
    from ...core.model.text import visible  # noqa: PLC0415

    # Machines control the content of their reports: do not print it to the terminal unescaped.
    return table([[visible(cell) for cell in row] for row in rows])


async def _ticket(connection: "FleetConnection", arguments: argparse.Namespace) -> int:
    from .enrollment import ask_operator  # noqa: PLC0415

    ticket = (await ask_operator(connection, "ticket"))["ticket"]
    return print_outcome(arguments, {"ticket": ticket}, ticket)


async def _drain(connection: "FleetConnection", arguments: argparse.Namespace) -> int:
    from .machines import Members, Membership  # noqa: PLC0415

    async with Membership(connection).followed() as membership:
        found = membership.find(arguments.machine)
    member = await (await Members.opened(connection)).drain(found.id, not arguments.undo, found.name)
    state = "accepts no new sessions" if member.draining else "accepts sessions again"
    report = {"id": member.id, "name": member.name, "draining": member.draining}
    return print_outcome(arguments, report, f"{member.name} ({member.id}) {state}.")


async def _remove(connection: "FleetConnection", arguments: argparse.Namespace) -> int:
    from .enrollment import ask_operator  # noqa: PLC0415
    from .machines import Membership  # noqa: PLC0415

    async with Membership(connection).followed() as membership:
        member = membership.find(arguments.machine)
    question = f"Revoke the key of {member.name} ({member.id})? Its running sessions are cut off."
    if not arguments.yes and not agreed(question):
        return failed("Nothing was removed.", ExitCode.REFUSED)
    await ask_operator(connection, "remove", machine=member.id)
    report = {"id": member.id, "name": member.name}
    return print_outcome(arguments, report, f"{member.name} ({member.id}) is removed.")
