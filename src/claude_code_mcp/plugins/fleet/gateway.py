"""The gateway: an MCP server whose requests are answered by the machines of a fleet.

Stateless: the fleet's bucket says which machine holds a session, and everything a machine hands out to be returned
later (tasks, calls that wait for an answer) contains the machine's id. A client that loses one gateway continues at
another; sessions do not notice.

Requests pass through unchanged, in a middleware of the SDK's server in front of its handlers: tools, tasks and
resources are not defined again, and machines implement both protocol revisions. Notifications and questions of a
machine during a request go to the client that made it, on that request's stream.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ... import __version__
from ...core.config import Settings
from ...core.errors import ClaudeCodeError, InvalidArgument, UpstreamUnavailable
from ...core.model.caller import ClientEnvironment
from ...core.model.events import AuditEvent
from ...core.state.database import Database
from ...core.state.state_directory import database_in
from ...server import app_page, sdk
from ...server.client_capabilities import TASKS_EXTENSION
from ...server.content_handlers import refusing_handlers
from ...server.http_streams import OpenStreams
from ...server.sdk import Context
from ...server.server import NAME, principal, refusal
from ...server.tools.guidance import instructions
from ...server.tools.toolsets import offers_sessions, tools_of
from ...server.transports.running_calls import RunningCalls
from ...server.transports.stdio import Inbox, Outbox
from . import names
from .connection import FleetConnection
from .dispatch import Choose, Dispatch, Place
from .gateway_client import GatewayClient
from .live_fleet import LiveFleet
from .machine_server import assigning_request, ending_request
from .nats_client import NatsError
from .removals import Removals
from .routing import (
    ABOUT_A_MACHINE,
    ABOUT_ALL,
    BEGINNING,
    LABELS_SCHEMA,
    MACHINE_SCHEMA,
    MANAGING,
    MOVE_SCHEMA,
    STAY_SCHEMA,
    STAYING,
    MachineIdentity,
    fleet_output,
)

log = logging.getLogger(__name__)

_OWN_METHODS = frozenset({"initialize", "server/discover", "ping", "tools/list", "logging/setLevel"})
_NOTICE_SECONDS = 5.0
_ABOUT_MACHINES = (
    "Sessions run on the machines of a fleet; each result names its machine. Pass machine or labels to choose where a "
    "new one starts."
)


class GatewayService:
    """What the HTTP transport needs from a service; the service itself is on the machines."""

    def __init__(self, settings: Settings, assigned: Callable[[str, Collection[str]], None]) -> None:
        """`assigned` is called for a caller whose groups changed."""
        self.settings = settings
        self.own_addresses: list[str] = []
        """The gateway's own addresses."""
        self._assigned = assigned
        self._tasks: set[asyncio.Task[Any]] = set()
        self._groups: dict[str, tuple[str, ...]] = {}
        self.audited: Callable[[AuditEvent], None] = lambda _: None
        """Receives the gateway's own audit events; machines audit their sessions."""
        self.learned: Callable[[Iterable[str]], None] = lambda _: None
        """Receives secrets that must not appear in the log."""

    def audit(self, event: AuditEvent) -> None:
        self.audited(event)

    def start_task(self, work: Coroutine[Any, Any, Any], *, endless: bool = False) -> "asyncio.Task[Any]":
        """Runs a task in the background until it is done or the gateway closes, also if it is `endless`. Failures are
        logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("%s failed", getattr(task.get_coro(), "__qualname__", "a task"), exc_info=problem)

    @property
    def state(self) -> Database:
        """The gateway's own directory, which stores the names of people who sign in at a provider."""
        return database_in(self.settings.state_dir)

    async def admit(self, _: str, __: Collection[str]) -> str | None:
        """Each machine decides whether it serves a caller."""
        return None

    async def why_restart_for(self, _: str) -> str | None:
        return None

    def add_secrets(self, secrets: Iterable[str]) -> None:
        self.learned(secrets)

    def assign(self, name: str, groups: Collection[str]) -> None:
        known, self._groups[name] = self._groups.get(name), tuple(groups)
        if known is not None and {*known} != {*groups}:
            self._assigned(name, groups)

    def groups_of(self, name: str) -> tuple[str, ...]:
        """The groups in the caller's newest token; machines get them with each connection."""
        return self._groups.get(name, ())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class Gateway:
    """A gateway for any number of clients on any transport that serves an `McpServer`."""

    def __init__(
        self,
        connection: FleetConnection,
        fleet: LiveFleet,
        choose: Choose,
        settings: Settings,
        place: Place | None = None,
    ) -> None:
        self._connection = connection
        self._fleet = fleet
        self.dispatch = Dispatch(connection, fleet, choose, place)
        self._settings = settings
        self._shared: dict[str, GatewayClient] = {}
        """By principal, for requests of 2026-07-28."""
        self._clients: set[GatewayClient] = set()
        """Clients with a handshake."""
        self.streams = OpenStreams(self._stream_opened)
        self.running_tool: Callable[[], AbstractContextManager[object]] = nullcontext
        """Wraps each tool call; a transport can end the call by leaving it."""
        self.service = GatewayService(settings, self._assigned)

    def join_calls(self, running: RunningCalls) -> None:
        """Machines enforce rate limits and shares; a running call ends with its caller."""
        self.running_tool = running.running_tool

    # -- as a server --------------------------------------------------------------------------------------------

    async def serve(self, inbox: Inbox, outbox: Outbox, environment: ClientEnvironment | None = None) -> None:
        """Serves one connection until the client ends it. Sessions run in the environments of their machines."""
        server = self.server(environment)
        await server.run(inbox, outbox, server.create_initialization_options())

    def server(self, _: ClientEnvironment | None = None) -> Server[Any]:
        """A low-level SDK server that describes itself like a machine's server."""
        # Never called, because the middleware runs first. They declare the server's capabilities.
        handlers = refusing_handlers(UpstreamUnavailable("No machine was called."))
        server = sdk.ChangingServer(
            NAME,
            version=__version__,
            title="Claude Code",
            instructions=f"{instructions(self._settings)}\n{_ABOUT_MACHINES}",
            lifespan=_no_lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=_unreached,
            on_subscriptions_listen=_unreached,
            **(handlers if offers_sessions(self._settings) else {}),
        )
        server.extensions[TASKS_EXTENSION] = {}
        if offers_sessions(self._settings):
            server.extensions[app_page.EXTENSION] = {}
        server.middleware[:] = [sdk.with_line_outbox, self._forward]
        return server

    async def end_caller(self, name: str, calls_over: Callable[[], Awaitable[None]]) -> None:
        """A caller was removed: ends their connections here and everything they have on the machines. Raises OSError if
        offline machines could not be notified; it can then be called again."""
        shared = self._shared.pop(name, None)
        for client in [*([shared] if shared is not None else []), *self._clients]:
            if client.principal == name:
                client.close()
        await calls_over()
        removal, failed = None, None
        try:
            # Recorded before the online machines are notified: if the gateway dies in between, all machines still learn
            # it.
            removal = await Removals(self._connection).note(name)
        except (NatsError, TimeoutError) as error:
            failed = error
        await self._notify_machines(ending_request(name, removal), f"that {name} is no longer a caller")
        if failed is not None:
            # Not recorded as done: the caller records only completed removals.
            raise OSError(
                f"machines that are offline now cannot be informed that {name} is no longer a caller: {failed!r}"
            )

    def _assigned(self, name: str, groups: Collection[str]) -> None:
        """A caller's groups changed: their permissions change on every machine."""
        self.service.start_task(self._notify_machines(assigning_request(name, groups), f"in which groups {name} is"))

    async def _notify_machines(self, request: bytes, what: str) -> None:
        async def notify(machine: MachineIdentity) -> None:
            try:
                await self._connection.client.request(names.opening(machine.id), request, timeout=_NOTICE_SECONDS)
            except (NatsError, TimeoutError) as error:
                log.error("could not inform machine %s: %s: %r", machine.name, what, error)

        await asyncio.gather(*(notify(machine) for machine in self._fleet.machines()))

    async def follow_machines(self) -> None:
        """Closes connections to machines that are offline or were restarted, until cancelled. Their silence would show
        it too, but later; waiting calls are notified at once."""
        runs = {machine.id: machine.run for machine in self._fleet.machines()}
        while True:
            await self._fleet.changed()
            # No await from here to the next wait, so that no change is missed.
            present = {machine.id: machine.run for machine in self._fleet.machines()}
            # Only processes that were reported and then replaced: a new process may connect before its report arrives
            # here.
            ended = {(id_, run) for id_, run in runs.items() if run and present.get(id_, run) != run}
            for client in (*self._clients, *self._shared.values()):
                client.keep_links_to(present, ended)
            runs = present

    def leave(self) -> None:
        """Announces that this gateway is stopping: its requests are cut off, not cancelled. Call it before the
        transports stop."""
        self.dispatch.leaving = True

    async def close(self) -> None:
        """Closes every connection to a machine, and this gateway's tasks."""
        self.leave()
        clients = (*self._clients, *self._shared.values())
        for client in clients:
            client.close()
        # Waited for, so that machines learn of the end now and not from missing keep-alives.
        await asyncio.gather(*(client.closed() for client in clients))
        await self.service.close()

    @cached_property
    def _listing(self) -> types.ListToolsResult:
        listed = [tool.listing() for tool in tools_of(self._settings).values()]
        for tool in listed:
            added: dict[str, Any] = {}
            if tool.name in BEGINNING | ABOUT_ALL | ABOUT_A_MACHINE:
                added["machine"] = MACHINE_SCHEMA
            if tool.name in BEGINNING:
                added["labels"] = LABELS_SCHEMA
            if tool.name in STAYING:
                added["stayOnMachine"] = STAY_SCHEMA
            if tool.name == MANAGING:
                action = tool.input_schema["properties"]["action"]
                added = {"action": {**action, "enum": [*action["enum"], "move"]}, **MOVE_SCHEMA}
            tool.input_schema = {
                **tool.input_schema,
                "properties": {**tool.input_schema.get("properties", {}), **added},
            }
            if tool.output_schema is not None:
                tool.output_schema = fleet_output(tool.output_schema)
        return types.ListToolsResult(tools=listed)

    async def _list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return self._listing

    # -- clients ------------------------------------------------------------------------------------------------

    def _client(self, context: Context) -> GatewayClient:
        who = principal()
        groups = partial(self.service.groups_of, who)
        if sdk.is_modern(context.protocol_version):
            if who not in self._shared:
                self._shared[who] = GatewayClient(self._connection.client, who, groups, None)
            return self._shared[who]
        if context.session.client_params is None:
            raise MCPError(types.INVALID_PARAMS, "Invalid request parameters", "")  # before the handshake

        def made() -> GatewayClient:
            connection = sdk.connection_id(context)

            def reads_stream() -> bool:
                return context.request is None or self.streams.is_open(connection)

            client = GatewayClient(self._connection.client, who, groups, context, reads_stream)
            self._clients.add(client)
            return client

        def disconnected(client: GatewayClient) -> None:
            self._clients.discard(client)
            client.close()

        return sdk.once_per_connection(context, made, disconnected)

    def _stream_opened(self, connection: str) -> None:
        for client in self._clients:
            if client.connection == connection:
                client.stream_opened()

    # -- requests -----------------------------------------------------------------------------------------------

    async def _forward(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware: forwards requests to machines."""
        context = ctx  # the SDK fixes the parameter's name
        if context.method in _OWN_METHODS:
            return await call_next(context)
        if context.request_id is None:
            if context.method == "notifications/roots/list_changed" and context.session.client_params is not None:
                for link in self._client(context).open_links:
                    link.notify(context.method, context.params or {})
            return await call_next(context)
        client = self._client(context)
        client.calls.append(context)
        client.stream_opened()
        try:
            with self.running_tool():
                return await self.dispatch.answer(client, context)
            # Reached only if the transport ended the call: the context exits without an error then.
            raise MCPError(types.INVALID_REQUEST, "The caller's token is no longer valid.")
        except ClaudeCodeError as error:
            return _refused(context, error)
        except (NatsError, TimeoutError) as error:
            log.warning("%s of %s was refused: %r", context.method, client.principal, error)
            return _refused(context, UpstreamUnavailable("The fleet cannot be reached at the moment."))
        except MCPError:
            raise
        except Exception:
            log.exception("%s of %s failed", context.method, client.principal)
            return _refused(context, ClaudeCodeError("Internal error in the gateway; see its log for details."))
        finally:
            client.calls.remove(context)


def _refused(context: Context, error: ClaudeCodeError) -> dict[str, Any]:
    """The error in a machine's format: a tool call returns a refusal as its result. Raises MCPError for other
    requests."""
    if context.method != "tools/call":
        code = types.INVALID_PARAMS if isinstance(error, InvalidArgument) else types.INTERNAL_ERROR
        raise MCPError(code, error.message, {"code": error.code, **error.data}) from None
    refused = refusal(error).model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**refused, "resultType": "complete"} if sdk.is_modern(context.protocol_version) else refused


async def _unreached(_: Context, __: Any) -> Any:
    raise MCPError(types.INTERNAL_ERROR, "No machine was called.")


@asynccontextmanager
async def _no_lifespan(_: Server[Any]) -> AsyncIterator[None]:
    yield None
