"""The MCP server: lists and calls the tools of a service, for any number of connections.

Every result and every failure of a call leaves through `_call_tool`: an expected error becomes a refusal with its code,
an unexpected one an INTERNAL refusal whose details are only in the log, and known secrets are removed from both.

`refusing_server` runs instead if the settings are invalid: many clients do not show a process's stderr, so every call
reports the problem in the protocol.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError

from .. import __version__
from ..core.config import Settings
from ..core.errors import ClaudeCodeError, InvalidArgument
from ..core.model.caller import LOCAL, Caller, ClientEnvironment
from ..core.model.events import AuditEvent, AuditKind
from ..core.model.text import cut, one_line, visible
from ..core.model.tool_names import PREFIX
from ..core.questions.presentation import form_without_secrets
from ..core.rate_limit import MinuteLimit
from ..core.service import Service
from ..core.sessions.live.session_traces import is_traced
from . import app_page, sdk
from .client_capabilities import can_be_asked, declares_person, declares_tasks
from .content_handlers import ContentHandlers, ContentRequester, refusing_handlers
from .dialogs import Dialogs
from .http_streams import OpenStreams
from .icon import ICONS
from .rounds import HeldEvents, RoundState
from .sdk import Context
from .subscriptions import Subscriptions
from .tasks import Tasks
from .tools.call import Call
from .tools.guidance import instructions, point_to_remedy
from .tools.output import ToolOutput, dump, json_of
from .tools.tool import Reply, Tool
from .tools.toolsets import offers_sessions, tools_for_person, tools_of, unknown_tool
from .tools.waiting import end_turns

if TYPE_CHECKING:
    from ..hub.hub import Hub
    from ..hub.provider import LazyHub
    from .tools.hub_contents import HubContents
    from .tools.hub_proxy import HubProxy
    from .transports.running_calls import RunningCalls
    from .transports.stdio import Inbox, Outbox

    HubOrPlaceholder = Hub | LazyHub
    """A hub, or one that is opened as soon as there are servers."""

log = logging.getLogger(__name__)


NAME = "claude-code-mcp"
_MAX_MESSAGE = 2000
"""Maximum characters of an error message."""
_MAX_CLIENT_NAME = 60


@dataclass(frozen=True, slots=True, eq=False)
class Connected:
    """A connected client: its user, its environment and its hub. Clients without an environment use this process's."""

    user: Caller
    hub_or_placeholder: "HubOrPlaceholder | None"
    proxy: "HubProxy | None" = None
    """The hub's tools, if offered to clients, listed or on demand."""
    contents: "HubContents | None" = None
    """The hub's resources, prompts and skills, if listed."""

    @property
    def hub(self) -> "Hub | None":
        # Checked for each call: servers may be configured while the client is connected.
        return self.hub_or_placeholder.opened if self.hub_or_placeholder is not None else None

    def caller(self) -> Caller:
        """The caller of the current request, at this client."""
        name = principal()
        return self.user if name == LOCAL else Caller(name, self.user.environment)


class McpServer:
    """The tools of one service, for any number of connections."""

    def __init__(
        self,
        service: Service,
        on_disconnect: str = "keep",
        hub: "HubOrPlaceholder | None" = None,
        tools: Mapping[str, Tool[Any]] | None = None,
    ) -> None:
        """`on_disconnect` decides what happens to a connection's sessions when it ends; `tools` default to those of the
        chosen toolsets. `hub` is for clients without an environment; the service finds the hubs of the others."""
        self.streams = OpenStreams(self._stream_opened)
        self.running_tool: Callable[[], AbstractContextManager[object]] = nullcontext
        """Context around each tool call; a transport may end the call by leaving it."""
        self.service = service
        has_hub, toolsets = hub is not None or service.has_principal_hubs, service.settings.toolsets
        self._offers_hub_tools = has_hub and "hub-tools" in toolsets
        self._uses_proxy = has_hub and bool({"hub-tools", "hub-search"} & {*toolsets})
        self._clients: list[Connected] = []
        """The clients with an environment."""
        self.subscriptions = Subscriptions(principal)
        self._tasks = Tasks(service, principal, self.subscriptions.task_changed)
        self._on_disconnect = on_disconnect
        self._connections: set[Dialogs] = set()
        self._tools = tools_of(service.settings) if tools is None else tools
        self._shared: dict[Caller, Dialogs] = {}
        """The dialogs of clients of 2026-07-28: per connection if it has an environment, otherwise per principal."""
        # A person may answer a returned form as long as the question stays open.
        self._security = RequestStateSecurity.ephemeral(ttl=service.settings.permission_timeout + 600)
        self._held_events = HeldEvents()
        self._offers_sessions = offers_sessions(service.settings)
        self._contents = ContentHandlers(
            service,
            self.subscriptions,
            lambda: self._connections,
            self._asker,
            self._dialogs,
            own=self._offers_sessions,
        )
        self._here = self._connected_to(None, hub)
        self._here_as = {
            name: self._connected_to(None, cast("HubOrPlaceholder", hub))
            for name, hub in service.hubs_by_principal.items()
        }
        """The same for callers with a separate hub."""

    @cached_property
    def _listing(self) -> types.ListToolsResult:
        """Built on demand: on stdio the greeting has usually answered this already."""
        return types.ListToolsResult(tools=[tool.listing() for tool in self._tools.values()])

    async def serve(self, inbox: "Inbox", outbox: "Outbox", environment: ClientEnvironment | None = None) -> None:
        """Serve one connection until the client ends it. Its sessions run in its `environment`; afterward
        `on_disconnect` applies to them."""
        server = self.server(environment)
        await server.run(inbox, outbox, server.create_initialization_options())

    def server(self, environment: ClientEnvironment | None = None) -> Server[Any]:
        """A lowlevel server of the SDK with our handlers; with an `environment`, for the one connection that has it."""
        server = sdk.ChangingServer(
            NAME,
            version=__version__,
            title="Claude Code",
            icons=ICONS,
            instructions=instructions(self.service.settings),
            lifespan=partial(self._lifespan, environment),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            **self._content_handlers(),
        )
        server.prompts_change = self._offers_hub_tools
        if self._offers_hub_tools:
            server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_log_level)
            self._contents.register_skills(server)
        self._tasks.register(server)
        if self._offers_sessions:
            server.extensions[app_page.EXTENSION] = {}
        # The SDK's middleware creates a span for each request, which costs time even if no spans are exported.
        tracing = server.middleware if is_traced() else ()
        server.middleware[:] = [
            *tracing,
            sdk.with_line_outbox,
            sdk.checked_results,
            RequestStateBoundary(self._security, default_audience=NAME),
        ]
        return server

    def join_calls(self, running: "RunningCalls") -> None:
        """Connect the transport's running calls to the policy, and end calls when a share ends."""
        service, access = self.service, self.service.access
        running.requests = MinuteLimit(lambda name: service.policy_for(Caller(name)).requests_per_minute)
        running.noting_borrowed = access.noting_borrowed
        access.on_taken_back(lambda session: running.end_borrowed(session, partial(access.is_shared, session)))
        # Tasks no longer have a request that could be cancelled.
        access.on_taken_back(lambda _: self._tasks.end_unshared())
        access.on_moved(running.shared_session_moved)
        self.running_tool = running.running_tool
        self.subscriptions.stand = running.stand

    @asynccontextmanager
    async def _lifespan(self, environment: ClientEnvironment | None, _: Server[Any]) -> "AsyncIterator[Connected]":
        if environment is None:
            yield self._here
            return
        async with self.service.hub_for(environment) as hub:
            client = self._connected_to(environment, cast("HubOrPlaceholder | None", hub))
            self._clients.append(client)
            try:
                with self.service.connected(environment):
                    yield client
            finally:
                self._clients.remove(client)
                if client.proxy is not None:
                    client.proxy.client_left(Caller(principal(), environment))
                # Callers of 2026-07-28 have no protocol connection that could end: their dialogs end with this one.
                ended = [key for key in self._shared if key.environment is environment]
                for key in ended:
                    self._disconnected(self._shared.pop(key))

    def _connected_to(self, environment: ClientEnvironment | None, source: "HubOrPlaceholder | None") -> Connected:
        """A client of this hub. All clients of a hub share its proxy and contents."""
        hub, user = source.opened if source is not None else None, Caller(LOCAL, environment)
        if hub is None or not self._uses_proxy:
            return Connected(user, source)
        # Without an environment there is no other client to share with: `_here` is just being made.
        known = [self._here, *self._clients] if environment is not None else []
        sharing = next((other for other in known if other.hub is hub), None)
        if sharing is not None:
            return Connected(user, hub, sharing.proxy, sharing.contents)
        from .tools.hub_proxy import HubProxy  # noqa: PLC0415 - a server without a hub does not pay for one

        proxy = HubProxy(hub, self.service)
        if not self._offers_hub_tools:
            return Connected(user, hub, proxy)
        from .tools.hub_contents import HubContents  # noqa: PLC0415

        hub.watch_all(self._contents.hub_changed)
        return Connected(user, hub, proxy, HubContents(hub, self.service))

    async def _list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        client = self._client(context)
        proxy = client.proxy
        if proxy is None or not self._offers_hub_tools:
            return self._listing
        self._dialogs(context)  # from now on this connection is notified of changes
        return types.ListToolsResult(tools=[*self._listing.tools, *await proxy.listing(client.caller())])

    async def _set_log_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Set the minimum level of server logs that a client of the 2025 protocol gets during its calls."""
        self._dialogs(context).log_level = params.level
        hub = self._client(context).hub
        if hub is not None:
            await hub.set_log_level(params.level)
        return types.EmptyResult()

    def _content_handlers(self) -> dict[str, Any]:
        """The handlers for everything except tools. A server without resources and prompts only announces changes."""
        if self._offers_sessions or self._offers_hub_tools:
            return self._contents.handlers()
        return {"on_subscriptions_listen": self.subscriptions.listen}

    def _client(self, context: Context) -> Connected:
        """The client that sent this request."""
        client = _connected(context)
        hub = cast(
            "HubOrPlaceholder | None", self.service.hubs_by_principal.get(principal()) if client is self._here else None
        )
        if hub is None:
            return client
        own = self._here_as.get(principal())
        # Callers may be added later, and servers later than a caller.
        if own is None or own.hub_or_placeholder is not hub:
            own = self._here_as[principal()] = self._connected_to(None, hub)
        return own

    def _asker(self, context: Context) -> ContentRequester:
        client = self._client(context)
        return ContentRequester(client.caller(), client.contents)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        client = self._client(context)
        tool = self._tools.get(params.name)
        if tool is None and self._offers_sessions and context.request is None and declares_person(context):
            # Toolsets are chosen for models: a person at this machine may use the management tools in any case, since
            # the same can be done in a shell.
            tool = tools_for_person().get(params.name)
        if tool is None and not (
            client.proxy is not None and self._offers_hub_tools and params.name.startswith(PREFIX)
        ):
            raise MCPError(types.INVALID_PARAMS, unknown_tool(params.name, self.service.settings))
        call = Call(
            self.service,
            self._dialogs(context),
            client.caller(),
            context,
            self._held_events,
            client.hub,
            client.proxy,
            params.input_responses or {},
            RoundState.from_json(params.request_state),
            self._on_disconnect,
        )
        round_ = partial(self._run_round, params, tool)
        with self.running_tool():
            # The SDK passes on a result of an extension's own kind; its types do not say so.
            return await (self._tasks.start(call, params.name, round_) if declares_tasks(context) else round_(call))  # type: ignore[return-value]
        # Reached only if the transport ended the call, which leaves the context without an exception.
        raise MCPError(types.INVALID_REQUEST, "The caller no longer has access to this server or session.")

    async def _run_round(
        self, params: types.CallToolRequestParams, tool: Tool[Any] | None, call: Call
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run one round of a call and return its reply, which may be a refusal; MCPError if the protocol was violated.
        If `tool` is None, the call is for a hub tool."""
        arguments = params.arguments or {}
        try:
            if tool is not None:
                reply = await tool.call(call, arguments)
            else:
                assert call.proxy is not None
                reply = await call.proxy.call(params.name, call, arguments)
            return self._without_secrets(reply)
        except ClaudeCodeError as error:
            self._audit_failure(params.name, error.code)
            if tool is not None:
                tool.name_as_written(error, arguments, self.service.settings)
            point_to_remedy(error, self.service.settings)
            return self._without_secrets(refusal(error, self.service.redaction.text))
        except MCPError:
            raise
        except Exception:
            log.exception("tool %s failed for %s", params.name, principal())
            self._audit_failure(params.name, ClaudeCodeError.code)
            return refusal(ClaudeCodeError("Internal error; see the server's log on stderr for details."))

    def _audit_failure(self, tool: str, code: str) -> None:
        self.service.audit(AuditEvent(AuditKind.FAILED, principal(), details={"tool": tool, "code": code}))

    def _without_secrets(self, result: Reply) -> types.CallToolResult | types.InputRequiredResult:
        """The result as the client gets it, without secrets. Of our tools: structured content and its short rendering;
        results of the hub, questions and refusals keep their form."""
        redactor = self.service.redaction
        if isinstance(result, ToolOutput):
            structured = redactor.data(dump(result))
            rendering = result.text()
            text = json_of(structured) if rendering is None else redactor.text(rendering)
            return types.CallToolResult(
                is_error=result.failed,
                content=[types.TextContent(type="text", text=text)],
                structured_content=structured,
            )
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
        """The dialogs of this request's connection. Requests of 2026-07-28 belong to no connection of the protocol:
        all of one `Caller` share one, which never pushes. A call that becomes a task belongs to the principal, on any
        connection."""
        if sdk.is_modern(context.protocol_version):
            key = Caller(principal(), None if declares_tasks(context) else _connected(context).user.environment)
            if key not in self._shared:
                client = client_name(context) if key.environment is not None else ""
                self._shared[key] = self._new_dialogs(context, client, pushes=False)
            return self._shared[key]
        return sdk.once_per_connection(
            context,
            lambda: self._new_dialogs(context, client_name(context), pushes=can_be_asked(context)),
            self._disconnected,
        )

    def _stream_opened(self, connection: str) -> None:
        """An HTTP client has opened its stream for messages outside its calls."""
        for dialogs in self._connections:
            if dialogs.connection == connection:
                dialogs.offer_pending()

    def _new_dialogs(self, context: Context, client: str, *, pushes: bool) -> Dialogs:
        connection = sdk.connection_id(context)
        dialogs = Dialogs(
            self.service,
            context.session,
            pushes=pushes,
            connection=connection,
            client=client,
            principal=principal(),
            can_push=lambda: context.request is None or self.streams.is_open(connection),
        )
        self._connections.add(dialogs)
        return dialogs

    async def end_caller(self, name: str, calls_over: Callable[[], Awaitable[None]]) -> None:
        """End everything of a removed caller: its shares, tasks, calls that wait for an answer, and the turns of its
        sessions with their processes. `calls_over` returns when its running calls have been ended; anything that they
        started ends after them."""
        await self.service.access.end_shares_of(name)
        self._tasks.end_of(name)
        for client in (self._here, *self._here_as.values(), *self._clients):
            if client.proxy is not None:
                client.proxy.end_of(name)
        for key in [key for key in self._shared if key.principal == name]:
            self._disconnected(self._shared.pop(key))
        policy = self.service.policy_for(Caller(name))
        if policy.bypass_on:
            policy.set_bypass(False, by="removed")
        await self._end_sessions(name)
        await calls_over()
        await self._end_sessions(name)

    async def _end_sessions(self, principal: str) -> None:
        own = {session.id for session in self.service.sessions(principal=principal) if session.owner == principal}
        await end_turns(self.service, own, stop=True)

    def _disconnected(self, dialogs: Dialogs) -> None:
        """A connection has ended: its dialogs close, and its sessions are treated as `on_disconnect` says, except those
        that another connection uses too."""
        dialogs.close()
        self._connections.discard(dialogs)
        self._contents.disconnected(dialogs)
        if self._on_disconnect != "keep":
            # The remaining ones: sessions that no other connection uses. A client that only watches a session
            # interrupts nothing.
            left = dialogs.followed.difference(*(other.followed for other in self._connections))
            unshared = [session_id for session_id in left if dialogs.may_answer(session_id)]
            stop = self._on_disconnect == "stop"
            self.service.start_task(end_turns(self.service, unshared, stop=stop))


def _connected(context: Context) -> Connected:
    """The client on whose connection the request came."""
    found = context.lifespan_context
    assert isinstance(found, Connected)
    return found


def client_name(context: Context) -> str:
    """The client's name, safe to display."""
    params = context.session.client_params
    return one_line(visible(params.client_info.name), _MAX_CLIENT_NAME) if params is not None else ""


def principal() -> str:
    """The principal of the current request: the name of the bearer token's caller, or the local user."""
    token = get_access_token()
    return token.client_id if token is not None else LOCAL


def refusal(error: ClaudeCodeError, clean: Callable[[str], str] = str) -> types.CallToolResult:
    """A failure: the code for programs, a sentence for people and, if a turn ended with it, its report.

    `clean` removes secrets from the message.
    """
    message = cut(clean(error.message), _MAX_MESSAGE)
    problem: dict[str, Any] = {"code": error.code, "message": message}
    if "retry_after" in error.data:  # seconds, like the header Retry-After of a refused request
        problem["retryAfter"] = error.data["retry_after"]
    return types.CallToolResult(
        is_error=True,
        content=[types.TextContent(type="text", text=f"Error [{error.code}]: {message}")],
        structured_content={**error.report, "error": problem},
    )


def refusing_server(problem: ClaudeCodeError, settings: Settings) -> Server[Any]:
    """Answers the handshake and lists the tools of these settings as usual; refuses every call with the problem."""
    error = InvalidArgument(
        f"Invalid configuration: {problem.message} Correct it and start the server again.",
        **problem.data,
    )
    listing = types.ListToolsResult(tools=[tool.listing() for tool in tools_of(settings).values()])

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listing

    async def call_tool(_: Context, __: types.CallToolRequestParams) -> types.CallToolResult:
        return refusal(error)

    handlers = refusing_handlers(error) if offers_sessions(settings) else {}
    server = sdk.ChangingServer(
        NAME,
        version=__version__,
        title="Claude Code",
        icons=ICONS,
        instructions=instructions(settings),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        **handlers,
    )
    server.middleware[:] = [sdk.checked_results]
    return server
