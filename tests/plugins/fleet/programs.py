"""A machine and a gateway, in this process or as programs of their own; a fleet whose machines are named beforehand.

    python -m tests.plugins.fleet.programs machine NATS_URL ID [--stdio]
    python -m tests.plugins.fleet.programs gateway NATS_URL ID [ID ...] [--http]

A machine says `ready` when gateways can reach it, or serves a client on stdio besides; a gateway speaks MCP on stdio,
or says where it serves it over HTTP.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.abc import TaskStatus
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.events import AuditEvent, Event, TurnStarted
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.gateway import Gateway
from claude_code_mcp.plugins.fleet.leases import Holding
from claude_code_mcp.plugins.fleet.live_fleet import LiveFleet
from claude_code_mcp.plugins.fleet.machine_server import MachineServer
from claude_code_mcp.plugins.fleet.page_link import answer_page, machine_pages
from claude_code_mcp.plugins.fleet.routing import MachineIdentity, PlacementRequest, find_machine
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.http import Address, HttpServer, http_app
from claude_code_mcp.server.transports.stdio import stdio_streams
from claude_code_mcp.startup.greeting.first_answers import GreetedInput

TOOLSETS = ("sessions", "code", "query", "care")


@dataclass(frozen=True)
class NamedMachine:
    id: str
    run: str = ""

    @property
    def name(self) -> str:
        return f"{self.id}.example.org"


class NamedFleet(LiveFleet):
    """Machines that are said to be there; who holds a session is read from the bucket."""

    def __init__(self, sessions: KeyValue, machine_ids: Sequence[str]) -> None:
        self._sessions = sessions
        self._machines = [NamedMachine(id_) for id_ in machine_ids]
        self._gone: list[NamedMachine] = []
        self._changed = asyncio.Event()
        self.absent_sessions: list[Holding] = []

    def machines(self) -> Sequence[MachineIdentity]:
        return self._machines

    def gone(self) -> Sequence[MachineIdentity]:
        return self._gone

    def set_machines(self, machine_ids: Sequence[str], gone: Sequence[str] = (), run: str = "") -> None:
        self._machines = [NamedMachine(id_, run) for id_ in machine_ids]
        self._gone = [NamedMachine(id_) for id_ in gone]
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        await self._changed.wait()

    async def holder(self, session_id: str) -> str | None:
        with suppress(KeyNotFoundError):
            value = json.loads((await self._sessions.get(session_id)).value or b"{}")
            return "" if value.get("arriving") else str(value["machine"])
        return None

    async def stays(self, session_id: str) -> bool:
        with suppress(KeyNotFoundError):
            return json.loads((await self._sessions.get(session_id)).value or b"{}").get("stays") is True
        return False

    async def absent(self, principal: str | None) -> Sequence[Holding]:
        return self.absent_sessions

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        """The machine writes down itself that it has the session."""

    async def return_to_source(self, session_id: str, principal: str, machine_id: str) -> None: ...

    async def take_back(self, holding: Holding) -> None: ...


def choose(machines: Sequence[MachineIdentity], placement: PlacementRequest) -> MachineIdentity:
    """The one that is wished for, else the first."""
    return find_machine(machines, placement.machine) if placement.machine is not None else machines[0]


class Claims:
    """An observer that writes down which machine runs a session, before anybody asks."""

    def __init__(self, sessions: KeyValue, machine_id: str) -> None:
        self._sessions = sessions
        self._value = json.dumps({"machine": machine_id}).encode()
        self._writing: set[asyncio.Task[int]] = set()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, TurnStarted):
            task = asyncio.ensure_future(self._sessions.put(session_id, self._value))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def act(self, act: AuditEvent) -> None: ...


class Started(TaskStatus[None]):
    """Tells when a task has started, without a group of tasks."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def started(self, value: None = None) -> None:
        self.event.set()


@asynccontextmanager
async def running_machine(
    url: str, machine_id: str, service: Service, *, claims: bool = True, most: int = 1024
) -> AsyncIterator[FleetConnection]:
    """Serves a service that runs as a machine of the fleet, until the end of the block."""
    connection = await connect(url)
    try:
        if claims:
            service.observe(Claims(await connection.jetstream.key_value(names.SESSIONS), machine_id))
        started = Started()
        # A task and no group of them: fixtures are left by another task than entered them.
        server = McpServer(service)
        pages = partial(answer_page, pages=machine_pages(server, lambda: None))
        serving = asyncio.ensure_future(
            MachineServer(connection, machine_id, server, answer_page=pages, most=most).serve(task_status=started)
        )
        await started.event.wait()
        try:
            yield connection
        finally:
            serving.cancel()
            await asyncio.wait([serving])
    finally:
        await connection.client.close()


async def run_machine(url: str, machine_id: str, *, stdio: bool) -> None:
    settings = load_settings(os.environ, toolsets=TOOLSETS)
    async with Service(settings, dict(os.environ)) as service, running_machine(url, machine_id, service):
        if stdio:
            async with stdio_streams(GreetedInput()) as (inbox, outbox):
                await McpServer(service).serve(inbox, outbox)
            return
        print("ready", flush=True)
        await anyio.sleep_forever()


async def run_gateway(url: str, machine_ids: Sequence[str], *, http: bool) -> None:
    connection = await connect(url)
    settings = load_settings(os.environ, toolsets=TOOLSETS)
    fleet = NamedFleet(await connection.jetstream.key_value(names.SESSIONS), machine_ids)
    gateway = Gateway(connection, fleet, choose, settings)
    try:
        if http:
            callers = Callers(settings)
            server = HttpServer(
                Address("127.0.0.1", 0),
                lambda at: http_app(gateway, settings, at, callers),
                settings=settings,
                callers=callers,
            )
            gateway.service.start_task(callers.follow(gateway.service))

            def stop() -> None:
                gateway.leave()
                server.stop()

            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
            print(server.url, flush=True)
            await server.serve()
        else:
            async with stdio_streams(GreetedInput()) as (inbox, outbox):
                await gateway.serve(inbox, outbox)
    finally:
        await gateway.close()
        await connection.client.close()


if __name__ == "__main__":
    role, nats_url, *ids = sys.argv[1:]
    if role == "machine":
        asyncio.run(run_machine(nats_url, ids[0], stdio="--stdio" in ids))
    else:
        asyncio.run(run_gateway(nats_url, [id_ for id_ in ids if id_ != "--http"], http="--http" in ids))
