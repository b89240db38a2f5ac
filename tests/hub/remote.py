"""Remote servers on loopback, written with the SDK: streamable HTTP, server-sent events, WebSocket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from websockets.asyncio.server import ServerConnection, serve

from claude_code_mcp.hub.streams import CallbackInbox, CallbackOutbox, TransportFailure
from claude_code_mcp.hub.transports.websocket import MessageSocket
from tests.support.local_http import serving

Context = ServerRequestContext[Any, Any]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


class RemoteServer:
    """Tools that echo, ask, take their time and change; `seen` counts calls."""

    def __init__(self, name: str = "remote") -> None:
        self.seen = 0
        self.tools = ["echo", "ask", "slow", "change"]
        self.release = asyncio.Event()
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.bus = InMemorySubscriptionBus()
        self.listening = ListenHandler(self.bus)
        self.streams = 0
        """How many streams of changes it was asked for."""
        self.gone = False
        """Whether there is nothing at its address, over HTTP."""
        self.may_listen = asyncio.Event()
        self.may_listen.set()
        self.server: Server[Any] = Server(
            name,
            version="1",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=self._listen,
        )

    async def run(self, inbox: Any, outbox: Any) -> None:
        options = self.server.create_initialization_options(NotificationOptions(tools_changed=True))
        await self.server.run(inbox, outbox, options)

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        self.streams += 1
        await self.may_listen.wait()
        return await self.listening(context, params)

    async def _list(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in self.tools]
        )

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        self.seen += 1
        match params.name:
            case "ask":
                return await self._ask(context, params)
            case "slow":
                await self._slow()
            case "change":
                self.tools.append("extra")
                await self.bus.publish(ToolsListChanged())
                await context.session.send_tool_list_changed()
        return _text(f"{params.name} {params.arguments}")

    async def _slow(self) -> None:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _ask(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.request_state:
            answer = (params.input_responses or {})["who"]
            assert isinstance(answer, types.ElicitResult)
            return _text(f"{params.request_state}: {answer.action} {answer.content}")
        if context.session.can_send_request:
            asked = await context.session.elicit_form("Who?", SCHEMA, related_request_id=context.request_id)
            return _text(f"mid-call: {asked.action} {asked.content}")
        form = types.ElicitRequestFormParams(message="Who?", requested_schema=SCHEMA)
        request = types.ElicitRequest(params=form)
        return types.InputRequiredResult(input_requests={"who": request}, request_state="again")


def _text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=value)])


@asynccontextmanager
async def http_server(remote: RemoteServer, port: int | None = None, **options: Any) -> AsyncIterator[str]:
    app = remote.server.streamable_http_app(**options)

    async def serve_unless_gone(scope: Any, receive: Any, send: Any) -> None:
        if remote.gone and scope["type"] == "http":
            await Response("Nothing here", 404)(scope, receive, send)
        else:
            await app(scope, receive, send)

    async with serving(serve_unless_gone, port) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def sse_server(
    remote: RemoteServer, port: int | None = None, headers: list[Mapping[str, str]] | None = None
) -> AsyncIterator[str]:
    transport = SseServerTransport("/messages/")

    async def stream(request: Request) -> Response:
        if headers is not None:
            headers.append(request.headers)
        async with transport.connect_sse(request.scope, request.receive, request._send) as (inbox, outbox):
            await remote.run(inbox, outbox)
        return Response()

    routes = [Route("/sse", stream), Mount("/messages/", transport.handle_post_message)]
    async with serving(Starlette(routes=routes), port) as url:
        yield f"{url}/sse"


@asynccontextmanager
async def websocket_server(
    remote: RemoteServer, port: int = 0, check: Callable[[ServerConnection], Awaitable[None]] | None = None
) -> AsyncIterator[str]:
    async def handle(socket: ServerConnection) -> None:
        if check is not None:
            await check(socket)
        messages = MessageSocket(socket, TransportFailure())
        await remote.run(CallbackInbox(messages.receive), CallbackOutbox(messages.send))

    async with serve(handle, "127.0.0.1", port, subprotocols=["mcp"]) as server:  # type: ignore[list-item]
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
