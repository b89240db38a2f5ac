"""Assembles a fleet's parts: the ordinary server as a machine, and a gateway on the user's shared socket and over
HTTP."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from ...app import running_service, tools_with
from ...core.config import Settings
from ...core.errors import InvalidArgument
from ...core.model.caller import LOCAL
from ...server.server import McpServer
from ...server.transports.http import Address, HttpServer, Probes, check_exposure, http_app, metrics_route, read_address
from ...server.transports.unix_socket import STOPPING, SharedSocket
from ...serving import shared_callers, shared_policy
from ...startup.shared import place
from ...startup.shared.handshake import Hello
from ..console.interface import Accounts, Console, ConsolePort, ConsoleSettings, PageRoutes, StillSignedIn
from ..push.interface import PushRoutes, PushSettings
from .connection import FleetConnection
from .gateway import Gateway
from .live_fleet import LiveFleet
from .machines import Membership
from .nats_client import Client
from .ownership import OwnershipBucket
from .page_gateway import FleetRoutes
from .page_link import machine_pages
from .placement import PlacementQueue, choose_machine
from .runner import MachineParts
from .settings import FleetSettings

if TYPE_CHECKING:
    from ...core.service import Service
    from ...core.sessions.stored.replica import SessionReplica
    from .nats_server import Running
    from .push_receivers import FleetReceivers


async def _nothing() -> None:
    return None


_ASKS = {"sessions": _nothing, "metrics": _nothing, "hub": _nothing}
"""Requests of commands to a shared server that a gateway does not support."""


@asynccontextmanager
async def machine_server(settings: Settings, name: str, replica: "SessionReplica") -> AsyncIterator[MachineParts]:
    """The ordinary server for callers of gateways, with a separate audit trail that names it. Callers with tokens must
    be known here too, through the same tokens file or the same issuer. People who sign in at a gateway's own
    authorization server are accepted if the settings here enable it too."""
    # No caller signs in here, so the authorization server's dependencies need not be installed.
    known = settings.model_copy(update={"oauth": False})
    listed = settings.http_tokens_file is not None or settings.oauth_issuer is not None
    several = listed or settings.oauth
    callers = await asyncio.to_thread(shared_callers, known, "the gateway" if listed else None)
    policy = shared_policy(settings, "the gateway" if several else None)
    names = callers.names if callers is not None else ()
    principals = {LOCAL, *names} if several else ()
    others = settings.oauth or (callers is not None and callers.open)
    audit_file = settings.state_dir / "audit.jsonl"
    async with running_service(
        settings, policy, audit_file, principals=principals, others=others, replica=replica, machine=name
    ) as (service, hosting, running):
        server = McpServer(service, "keep", hosting.shared_hub, tools_with(running.plugins, settings))
        has_page = settings.section(ConsoleSettings).web
        yield MachineParts(server, machine_pages(server, lambda: hosting.hub) if has_page else None)


class GatewayPlace:
    """The socket of this user's shared server, held for a gateway so that `claude-code-mcp --shared` connects to it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Raises InvalidArgument if a shared server already runs there. `arguments` are settings, as for `serve`."""
        try:
            self.where, self._fingerprint = place.find_place(arguments, os.environ)
            found = place.take_lock(self.where)
        except OSError as error:
            raise InvalidArgument(f"The socket for clients cannot be created: {error}.") from None
        if found is None:
            raise InvalidArgument(
                f"A shared server is already running at {self.where.socket}: stop it with `claude-code-mcp shared "
                "stop`."
            )
        # After taking the lock: only its holder may replace an existing socket.
        self._lock = found
        self._listener = socket.socket(fileno=place.listen(self.where).detach())
        place.write_holder(self._lock, gateway=True)

    def opened(self) -> SharedSocket:
        """Serves the socket. Call it once, on the event loop."""
        shared = SharedSocket(self._listener, self.where)
        shared.settle_settings(
            Hello(directory=place.working_directory(), environment=dict(os.environ), fingerprint=self._fingerprint)
        )
        return shared

    def close(self) -> None:
        """Releases the socket for another server."""
        self._listener.close()
        with contextlib.suppress(OSError):
            os.close(self._lock)


class GatewayConsoles:
    """The consoles of a gateway: `OpenConsoles` of `plugins/console/console.py`."""

    def __init__(
        self, gateway: Gateway, nats: Client, fleet: LiveFleet, receivers: "FleetReceivers | None" = None
    ) -> None:
        """Without `receivers`, notifications appear only on the page."""
        self._receivers = receivers
        self._gateway = gateway
        self._nats = nats
        self._fleet = fleet
        self._made: list[Console] = []

    @property
    def first(self) -> Console | None:
        return self._made[0] if self._made else None

    def open(self, address: Address, accounts: Accounts) -> Console | None:
        """The console of a server that listens there; None if the settings disable it. Blocks on the disk."""
        service = self._gateway.service

        def over_machines(still_signed_in: StillSignedIn) -> PageRoutes:
            dispatch, receivers = self._gateway.dispatch, self._receivers
            push = PushRoutes(service.audit, receivers) if receivers is not None else None
            return FleetRoutes(self._nats, dispatch, self._fleet, service.groups_of, still_signed_in, push)

        if not service.settings.section(ConsoleSettings).web:
            return None
        console = Console(service, accounts, address, over_machines)
        self._made.append(console)
        if self._receivers is not None:
            self._receivers.base = self._receivers.base or console.url  # the first open console
            self._receivers.knows = accounts.has  # last: sending starts here
        return console

    async def watched(self) -> dict[str, Any]:
        """Whether the user of this gateway will see questions: a page is open, or questions are pushed."""
        if any(console.watched(LOCAL) for console in self._made):
            return {"watched": True}
        return {"watched": self._receivers is not None and (await self._receivers.read(LOCAL)).pushes_questions}

    def close(self) -> None:
        """Ends every open stream."""
        for console in self._made:
            console.close()


@dataclass(frozen=True, slots=True)
class ServedGateway:
    """A gateway that serves clients."""

    url: str | None
    """Its address over HTTP."""
    ended: Callable[[], Awaitable[None]]
    """Returns when a command on the socket requested its end."""


def _probes(connection: FleetConnection, embedded: "Running | None") -> Probes:
    """A gateway without NATS cannot serve clients. If this process runs the NATS server, restarting both may help."""

    async def problem() -> str | None:
        return None if await connection.answers() else "the fleet's NATS server does not respond"

    return Probes(health=problem, ready=problem) if embedded is not None else Probes(ready=problem)


@asynccontextmanager
async def serving_gateway(
    connection: FleetConnection,
    settings: Settings,
    at: GatewayPlace,
    http: str | None,
    machine: "Service",
    receivers: "FleetReceivers",
    embedded: "Running | None" = None,
) -> AsyncIterator[ServedGateway]:
    """Serves clients of the fleet until the end of the block. `connection` has a key with all permissions. Events at
    the gateway itself, such as sign-ins, go to the audit trail of the `machine` in this process. `receivers` are the
    keeper's, which sends to them. `embedded` is the fleet's own NATS server in this process."""
    callers = await asyncio.to_thread(shared_callers, settings, http)
    async with Membership(connection).followed() as membership:
        ownership = await OwnershipBucket.opened(connection)
        fleet = LiveFleet(membership, ownership)
        queue = PlacementQueue(membership.machines, fleet.changed, settings.section(FleetSettings).fleet_wait_ms / 1000)
        gateway = Gateway(connection, fleet, choose_machine, settings, queue.place)
        gateway.service.audited, gateway.service.learned = machine.audit, machine.add_secrets
        gateways_work = gateway.follow_machines(), gateway.dispatch.continue_waiting()
        for work in (*gateways_work, fleet.note_absences(), ownership.follow(connection)):
            gateway.service.start_task(work)
        shared = at.opened()

        receivers.private = settings.section(PushSettings).push_private
        consoles = GatewayConsoles(gateway, connection.client, fleet, receivers)
        port = ConsolePort(consoles, gateway.service, shared.name)

        def status() -> dict[str, Any]:
            http_url = server.url if server is not None else None
            return {"http": http_url, "web": port.url, "machines": len(membership.machines())}

        server = None
        if http is not None and callers is not None:
            bind = read_address(http)
            check_exposure(bind, callers, settings)
            from .fleet_metrics import FleetMetrics  # noqa: PLC0415 - imports prometheus_client

            metrics = FleetMetrics(membership.machines, membership.gone, lambda: len(queue))

            def app(address: Address) -> ASGIApp:
                def routes() -> Sequence[BaseRoute]:
                    page = consoles.open(address, Accounts(callers, by_socket=True))
                    return [
                        metrics_route(lambda _: metrics.render(), gateway.service, address, callers),
                        *callers.routes(page),
                        *(page.routes() if page is not None else ()),
                    ]

                return http_app(gateway, settings, address, callers, routes, probes)

            probes = _probes(connection, embedded)
            server = HttpServer(bind, app, settings=settings, callers=callers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shared.run)
            serving = None
            if server is not None and callers is not None:
                gateway.service.start_task(callers.follow(gateway.service))
                serving = gateway.service.start_task(server.serve())
            if server is None:
                gateway.service.start_task(port.reopen())
            shared.open(gateway, status, {**_ASKS, "web": port.link, "watched": consoles.watched})
            try:
                yield ServedGateway(server.url if server is not None else None, shared.ended)
            finally:
                # In this order: requests that are cut off after `leave` continue on their machines and are not
                # cancelled.
                gateway.leave()
                shared.end(STOPPING)
                consoles.close()
                with anyio.CancelScope(shield=True):
                    await port.close()
                    if server is not None and serving is not None:
                        server.stop()
                        await asyncio.wait([serving])
                    await gateway.close()
