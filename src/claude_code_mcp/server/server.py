"""The MCP server itself: tools listed and called, every failure mapped once, connections told apart."""

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
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError

from .. import __version__
from ..config import Settings
from ..errors import ClaudeCodeError, TurnTimeout
from ..model.audit_events import AuditEvent, AuditKind
from ..model.text import cut
from ..questions.presentation import form_without_secrets
from ..service import LOCAL, Service
from . import sdk
from .elicitation.dialogs import Dialogs, is_modern
from .tools.answering import instructions, point_to_remedy
from .tools.base import Tool, ToolOutput
from .tools.code import code_tools
from .tools.context import Call, Context, Switches, can_be_asked, read_state
from .tools.query import query_tools
from .tools.query_buffer import HeldEvents
from .tools.sessions import TOOLS as SESSION_TOOLS
from .tools.waiting import end_turns
from .transports.open_streams import OpenStreams
from .transports.wire import checked_results

if TYPE_CHECKING:
    from ..hub.hub import Hub
    from .tools.hub_proxy import HubProxy

log = logging.getLogger(__name__)

Run = Callable[[Call, Mapping[str, Any]], Awaitable[ToolOutput | types.CallToolResult | types.InputRequiredResult]]

NAME = "claude-code-mcp"
_LONGEST = 2000
_BETWEEN_CHANGES = 0.5


class McpServer:
    """The tools of one service, for any number of connections."""

    def __init__(self, service: Service, on_disconnect: str = "keep", hub: "Hub | None" = None) -> None:
        """`on_disconnect` says what becomes of the sessions that a connection has used when it ends."""
        self.streams = OpenStreams(self._stream_opened)
        self.service = service
        self._hub = hub
        self._passage = _passage(service, hub)
        self._bus = InMemorySubscriptionBus()
        self._on_disconnect = on_disconnect
        self._connections: set[Dialogs] = set()
        self._tools = tools_of(service.settings)
        self._listing = types.ListToolsResult(tools=[tool.listing() for tool in self._tools.values()])
        self._shared: dict[str, Dialogs] = {}
        self._holding = HeldEvents()
        self._telling = False
        if hub is not None and self._passage is not None:
            hub.watch_all(self._hub_changed)

    def server(self) -> Server[Any]:
        """A lowlevel server of the SDK with our handlers."""
        server = (Server[Any] if self._passage is None else sdk.ChangingServer)(
            NAME,
            version=__version__,
            title="Claude Code",
            instructions=instructions(self.service.settings),
            lifespan=self._lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=None if self._passage is None else ListenHandler(self._bus),
        )
        # A person may take as long as a question stays open to answer the form that a call returned.
        security = RequestStateSecurity.ephemeral(ttl=self.service.settings.permission_timeout + 600)
        server.middleware[:] = [checked_results, RequestStateBoundary(security, default_audience=NAME)]
        return server

    @asynccontextmanager
    async def _lifespan(self, _: Server[Any]) -> AsyncIterator[Service]:
        yield self.service

    async def _list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        if self._passage is None:
            return self._listing
        self._dialogs(context)  # a client that has seen the list is told when it changes
        return types.ListToolsResult(tools=[*self._listing.tools, *await self._passage.listing()])

    def _hub_changed(self, what: str) -> None:
        if what == "tools" and not self._telling:
            self._telling = True
            self.service.start_task(self._tell_tools_changed())

    async def _tell_tools_changed(self) -> None:
        """Tells every client that the list of tools is another one: once for all that changes at about the same time,
        so that a server which comes and goes cannot keep the clients busy."""
        await asyncio.sleep(_BETWEEN_CHANGES)
        self._telling = False
        await self._bus.publish(ToolsListChanged())
        for dialogs in list(self._connections):
            await dialogs.tell_tools_changed()

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        run = await self._runner(params.name)
        if run is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        try:
            dialogs = self._dialogs(context)
            call = Call(
                self.service,
                dialogs,
                principal(),
                context,
                Switches(self.service, principal()),
                self._holding,
                self._hub,
                params.input_responses or {},
                read_state(params),
                self._on_disconnect,
            )
            reply = await run(call, params.arguments or {})
            return self._without_secrets(success(reply) if isinstance(reply, ToolOutput) else reply)
        except ClaudeCodeError as error:
            self._tell_failure(params.name, error.code)
            point_to_remedy(error, self.service.settings)
            return self._without_secrets(refusal(error, self.service.redaction.text))
        except Exception:
            log.exception("tool %s failed", params.name)
            self._tell_failure(params.name, ClaudeCodeError.code)
            return refusal(
                ClaudeCodeError("Something went wrong inside the server; its log on stderr has the details.")
            )

    def _tell_failure(self, tool: str, code: str) -> None:
        self.service.audit(AuditEvent(AuditKind.FAILED, principal(), details={"tool": tool, "code": code}))

    async def _runner(self, name: str) -> "Run | None":
        """What runs a tool: one of ours, or one of the hub's servers."""
        tool = self._tools.get(name)
        if tool is not None:
            return tool.call
        if self._passage is not None and await self._passage.knows(name):
            return partial(self._passage.call, name)
        return None

    def _without_secrets(
        self, result: types.CallToolResult | types.InputRequiredResult
    ) -> types.CallToolResult | types.InputRequiredResult:
        """The last stop before the wire."""
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
        if is_modern(context.protocol_version):
            owner = principal()
            if owner not in self._shared:
                self._shared[owner] = self._new_dialogs(context, pushes=False)
            return self._shared[owner]
        return sdk.once_per_connection(
            context, lambda: self._new_dialogs(context, pushes=can_be_asked(context)), self._left
        )

    def _stream_opened(self, connection: str) -> None:
        """A client over HTTP now reads what is sent outside of its calls."""
        for dialogs in self._connections:
            if dialogs.connection == connection:
                dialogs.offer_again()

    def _new_dialogs(self, context: Context, *, pushes: bool) -> Dialogs:
        connection = sdk.connection_id(context)
        dialogs = Dialogs(
            self.service,
            context.session,
            pushes=pushes,
            connection=connection,
            is_heard=lambda: context.request is None or self.streams.is_open(connection),
        )
        self._connections.add(dialogs)
        return dialogs

    def _left(self, dialogs: Dialogs) -> None:
        """A connection ended. Sessions that another one uses too are that one's."""
        dialogs.close()
        self._connections.discard(dialogs)
        if self._on_disconnect != "keep":
            alone = dialogs.followed.difference(*(other.followed for other in self._connections))
            stop = self._on_disconnect == "stop"
            self.service.start_task(end_turns(self.service, alone, stop=stop))


def tools_of(settings: Settings) -> Mapping[str, Tool[Any]]:
    """The tools of the chosen toolsets, in a fixed order."""
    makers: dict[str, Callable[[], Mapping[str, Tool[Any]]]] = {
        "sessions": lambda: SESSION_TOOLS,
        "code": lambda: code_tools(settings),
        "query": lambda: query_tools(settings),
        "hub": _hub_tools,
    }
    chosen = [make for toolset, make in makers.items() if toolset in settings.toolsets]
    return {name: tool for make in chosen for name, tool in make().items()}


def _hub_tools() -> Mapping[str, Tool[Any]]:
    from .tools.hub_admin import hub_tools  # noqa: PLC0415 - a server without a hub does not pay for one

    return hub_tools()


def _passage(service: Service, hub: "Hub | None") -> "HubProxy | None":
    if hub is None or "hub-tools" not in service.settings.toolsets:
        return None
    from .tools.hub_proxy import HubProxy  # noqa: PLC0415 - the same

    return HubProxy(hub, service)


def principal() -> str:
    """Who is calling: the name behind the bearer token, or the one local user."""
    token = get_access_token()
    return token.client_id if token is not None else LOCAL


def success(outcome: ToolOutput) -> types.CallToolResult:
    """A result: structured content and its short rendering."""
    structured = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
    return types.CallToolResult(
        is_error=outcome.failed,
        content=[types.TextContent(type="text", text=outcome.text())],
        structured_content=structured,
    )


def refusal(error: ClaudeCodeError, clean: Callable[[str], str] = str) -> types.CallToolResult:
    """A failure: the code for programs, a sentence for people, and what there is of a turn that took too long.

    `clean` takes secrets out.
    """
    message = cut(clean(error.message), _LONGEST)
    problem = {"code": error.code, "message": message}
    return types.CallToolResult(
        is_error=True,
        content=[types.TextContent(type="text", text=f"Error [{error.code}]: {message}")],
        structured_content={**(error.report if isinstance(error, TurnTimeout) else {}), "error": problem},
    )
