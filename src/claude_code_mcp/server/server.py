"""The MCP server: lists and calls the tools of a service, for any number of connections.

Every result and every failure of a call leaves through `_call_tool`: an expected error becomes a refusal with its code,
an unexpected one an INTERNAL refusal whose details are only in the log, and known secrets are removed from both.

`refusing_server` is run instead when the settings cannot be used: many clients show nobody what a process writes to
stderr, so that every call reports the problem in the protocol.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError

from .. import __version__
from ..config import Settings
from ..errors import ClaudeCodeError, TurnTimeout
from ..model.events import AuditEvent, AuditKind
from ..model.origin import ClientOrigin
from ..model.text import cut
from ..questions.presentation import form_without_secrets
from ..service import LOCAL, Service
from . import sdk
from .elicitation.dialogs import Dialogs, is_modern
from .sdk import Context
from .subscriptions import TOOLS_CHANGED, Subscriptions
from .tasks import Tasks, declares_tasks
from .tools.answering import instructions, point_to_remedy
from .tools.base import Tool, ToolOutput
from .tools.code import code_tools
from .tools.context import Call, Switches, can_be_asked, read_state
from .tools.query import query_tools
from .tools.query_buffer import HeldEvents
from .tools.sessions import TOOLS as SESSION_TOOLS
from .tools.waiting import end_turns
from .transports.open_streams import OpenStreams
from .transports.wire import checked_results

if TYPE_CHECKING:
    from ..hub.hub import Hub
    from .tools.hub_proxy import HubProxy
    from .transports.stdio import Inbox, Outbox
from ..errors import InvalidArgument

log = logging.getLogger(__name__)
ToolRunner = Callable[
    [Call, Mapping[str, Any]], Awaitable[ToolOutput | types.CallToolResult | types.InputRequiredResult]
]
NAME = "claude-code-mcp"
_MAX_MESSAGE = 2000
"""Characters of an error message."""
_ANNOUNCE_DELAY = 0.5
"""Seconds in which changes of the tools are gathered into one announcement."""


class McpServer:
    """The tools of one service, for any number of connections."""

    def __init__(
        self,
        service: Service,
        on_disconnect: str = "keep",
        hub: "Hub | None" = None,
        tools: Mapping[str, Tool[Any]] | None = None,
    ) -> None:
        """`on_disconnect` says what becomes of the sessions that a connection has used when it ends; `tools` are those
        of the chosen toolsets unless given."""
        self.streams = OpenStreams(self._stream_opened)
        self.service = service
        self._hub = hub
        self._hub_proxy = _hub_proxy(service, hub)
        self._subscriptions = Subscriptions(principal)
        self._tasks = Tasks(service, principal, self._subscriptions.task_changed)
        self._on_disconnect = on_disconnect
        self._connections: set[Dialogs] = set()
        self._tools = tools_of(service.settings) if tools is None else tools
        self._listing = types.ListToolsResult(tools=[tool.listing() for tool in self._tools.values()])
        self._shared: dict[str, Dialogs] = {}
        self._held_events = HeldEvents()
        self._announcing = False
        if hub is not None and self._hub_proxy is not None:
            hub.watch_all(self._hub_changed)

    def server(self) -> Server[Any]:
        """A lowlevel server of the SDK with our handlers."""
        server = (Server[Any] if self._hub_proxy is None else sdk.ChangingServer)(
            NAME,
            version=__version__,
            title="Claude Code",
            instructions=instructions(self.service.settings),
            lifespan=self._lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._subscriptions.listen,
        )
        self._tasks.register(server)
        # A person may take as long as a question stays open to answer the form that a call returned.
        security = RequestStateSecurity.ephemeral(ttl=self.service.settings.permission_timeout + 600)
        server.middleware[:] = [checked_results, RequestStateBoundary(security, default_audience=NAME)]
        return server

    async def serve(self, inbox: "Inbox", outbox: "Outbox", origin: ClientOrigin | None = None) -> None:
        """Serves one connection until it ends; `origin` is where its client comes from."""
        server = self.server()
        await server.run(inbox, outbox, server.create_initialization_options())

    @asynccontextmanager
    async def _lifespan(self, _: Server[Any]) -> AsyncIterator[Service]:
        yield self.service

    async def _list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        if self._hub_proxy is None:
            return self._listing
        self._dialogs(context)  # from now on this connection is notified of changes
        return types.ListToolsResult(tools=[*self._listing.tools, *await self._hub_proxy.listing()])

    def _hub_changed(self, kind: str) -> None:
        if kind == "tools" and not self._announcing:
            self._announcing = True
            self.service.start_task(self._announce_tools())

    async def _announce_tools(self) -> None:
        """Notifies every client that the list of tools has changed: once for all changes within a short time, so that
        an upstream which comes and goes cannot flood the clients."""
        await asyncio.sleep(_ANNOUNCE_DELAY)
        self._announcing = False
        self._subscriptions.list_changed(TOOLS_CHANGED)
        for dialogs in list(self._connections):
            await dialogs.notify_tools_changed()

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        run = await self._runner(params.name)
        if run is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        call = Call(
            self.service,
            self._dialogs(context),
            principal(),
            context,
            Switches(self.service, principal()),
            self._held_events,
            self._hub,
            params.input_responses or {},
            read_state(params),
            self._on_disconnect,
        )
        round_ = partial(self._run_round, params, run)
        # The SDK passes on a result of an extension's own kind; its types do not say so.
        return await (self._tasks.start(call, params.name, round_) if declares_tasks(context) else round_(call))  # type: ignore[return-value]

    async def _run_round(
        self, params: types.CallToolRequestParams, run: "ToolRunner", call: Call
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Runs one round of a call to its reply, which may be a refusal; MCPError where the protocol was violated."""
        try:
            reply = await run(call, params.arguments or {})
            return self._without_secrets(success(reply) if isinstance(reply, ToolOutput) else reply)
        except ClaudeCodeError as error:
            self._audit_failure(params.name, error.code)
            point_to_remedy(error, self.service.settings)
            return self._without_secrets(refusal(error, self.service.redaction.text))
        except MCPError:
            raise
        except Exception:
            log.exception("tool %s failed", params.name)
            self._audit_failure(params.name, ClaudeCodeError.code)
            return refusal(
                ClaudeCodeError("Something went wrong inside the server; its log on stderr has the details.")
            )

    def _audit_failure(self, tool: str, code: str) -> None:
        self.service.audit(AuditEvent(AuditKind.FAILED, principal(), details={"tool": tool, "code": code}))

    async def _runner(self, name: str) -> "ToolRunner | None":
        """What runs a tool: one of ours or, through the proxy, one of the hub's; None if there is no such tool."""
        tool = self._tools.get(name)
        if tool is not None:
            return tool.call
        if self._hub_proxy is not None and await self._hub_proxy.knows(name):
            return partial(self._hub_proxy.call, name)
        return None

    def _without_secrets(
        self, result: types.CallToolResult | types.InputRequiredResult
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Every result passes here last, whatever tool it is from."""
        redactor = self.service.redaction
        if isinstance(result, types.InputRequiredResult):
            for request in (result.input_requests or {}).values():
                if isinstance(request, types.ElicitRequest):
                    params = request.params
                    params.message = redactor.text(params.message)
                    if isinstance(params, types.ElicitRequestFormParams):
                        params.requested_schema = form_without_secrets(params.requested_schema, redactor)
            return result
        for block in result.content:
            if isinstance(block, types.TextContent):
                block.text = redactor.text(block.text)
        result.structured_content = redactor.data(result.structured_content)
        return result

    def _dialogs(self, context: Context) -> Dialogs:
        """The dialogs of this request's connection. Requests of 2026-07-28 belong to no connection: all of a caller
        share one, which never pushes."""
        if is_modern(context.protocol_version):
            owner = principal()
            if owner not in self._shared:
                self._shared[owner] = self._new_dialogs(context, pushes=False)
            return self._shared[owner]
        return sdk.once_per_connection(
            context, lambda: self._new_dialogs(context, pushes=can_be_asked(context)), self._disconnected
        )

    def _stream_opened(self, connection: str) -> None:
        """An HTTP client has opened the stream on which it reads what is sent outside of its calls."""
        for dialogs in self._connections:
            if dialogs.connection == connection:
                dialogs.offer_pending()

    def _new_dialogs(self, context: Context, *, pushes: bool) -> Dialogs:
        connection = sdk.connection_id(context)
        dialogs = Dialogs(
            self.service,
            context.session,
            pushes=pushes,
            connection=connection,
            can_push=lambda: context.request is None or self.streams.is_open(connection),
        )
        self._connections.add(dialogs)
        return dialogs

    def _disconnected(self, dialogs: Dialogs) -> None:
        """A connection has ended: its dialogs close, and its sessions are treated as `on_disconnect` says, except those
        that another connection uses too."""
        dialogs.close()
        self._connections.discard(dialogs)
        if self._on_disconnect != "keep":
            unshared = dialogs.followed.difference(*(other.followed for other in self._connections))
            stop = self._on_disconnect == "stop"
            self.service.start_task(end_turns(self.service, unshared, stop=stop))


def tools_of(settings: Settings) -> Mapping[str, Tool[Any]]:
    """The tools of the chosen toolsets, in a fixed order."""
    makers: dict[str, Callable[[], Mapping[str, Tool[Any]]]] = {
        "sessions": lambda: SESSION_TOOLS,
        "code": lambda: code_tools(settings),
        "query": query_tools,
        "hub": _hub_tools,
    }
    chosen = [make for toolset, make in makers.items() if toolset in settings.toolsets]
    return {name: tool for make in chosen for name, tool in make().items()}


def _hub_tools() -> Mapping[str, Tool[Any]]:
    from .tools.hub_admin import hub_tools  # noqa: PLC0415 - a server without a hub does not pay for one

    return hub_tools()


def _hub_proxy(service: Service, hub: "Hub | None") -> "HubProxy | None":
    if hub is None or "hub-tools" not in service.settings.toolsets:
        return None
    from .tools.hub_proxy import HubProxy  # noqa: PLC0415 - a server without a hub does not pay for one

    return HubProxy(hub, service)


def principal() -> str:
    """Who is calling: the name behind the bearer token, or the one local user."""
    token = get_access_token()
    return token.client_id if token is not None else LOCAL


def success(output: ToolOutput) -> types.CallToolResult:
    """A result: structured content and its short rendering."""
    structured = output.model_dump(mode="json", by_alias=True, exclude_none=True)
    return types.CallToolResult(
        is_error=output.failed,
        content=[types.TextContent(type="text", text=output.text())],
        structured_content=structured,
    )


def refusal(error: ClaudeCodeError, clean: Callable[[str], str] = str) -> types.CallToolResult:
    """A failure: the code for programs, a sentence for people and, of a turn that took too long, its report so far.

    `clean` removes secrets from the message.
    """
    message = cut(clean(error.message), _MAX_MESSAGE)
    problem = {"code": error.code, "message": message}
    return types.CallToolResult(
        is_error=True,
        content=[types.TextContent(type="text", text=f"Error [{error.code}]: {message}")],
        structured_content={**(error.report if isinstance(error, TurnTimeout) else {}), "error": problem},
    )


def refusing_server(problem: ClaudeCodeError, settings: Settings) -> Server[Any]:
    """Answers the handshake and lists the tools of these settings as usual; refuses every call with the problem."""
    error = InvalidArgument(
        f"This server was started with something that it cannot use, and runs nothing. {problem.message} "
        "Correct that and start the server again.",
        **problem.data,
    )
    listing = types.ListToolsResult(tools=[tool.listing() for tool in tools_of(settings).values()])

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listing

    async def call_tool(_: Context, __: types.CallToolRequestParams) -> types.CallToolResult:
        return refusal(error)

    server = Server[Any](
        NAME,
        version=__version__,
        title="Claude Code",
        instructions=instructions(settings),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware[:] = [checked_results]
    return server
