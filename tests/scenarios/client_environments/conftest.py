"""Several clients of one server in one process, each from somewhere else: its own HOME, key, PATH and directory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.shared.memory import create_client_server_memory_streams

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.caller import ClientEnvironment
from claude_code_mcp.core.policy.policy import Policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.callers.expected_callers import ExpectedCallers
from claude_code_mcp.hub.client_hubs import Hubs
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.server.connection import Reply, check
from tests.support.parts import service_parts
from tests.support.waiting import HANG_SECONDS

LONG = HANG_SECONDS
LEGACY, MODERN = "legacy", "2026-07-28"


@dataclass
class Place:
    """Where clients come from: a HOME, a project directory and an environment."""

    sandbox: Sandbox
    environment: dict[str, str]

    def client(self, name: str = "client", **variables: str) -> ClientEnvironment:
        return ClientEnvironment(str(self.sandbox.project), {**self.environment, **variables}, name)


MakePlace = Callable[[str], Place]


@pytest.fixture
def make_place(tmp_path: Path, model: ScriptedModelThread, environment: dict[str, str]) -> MakePlace:
    """Another HOME and project, with a key of its own."""

    def make(name: str) -> Place:
        sandbox = Sandbox(tmp_path / name, model.url)
        own = sandbox.environment(ANTHROPIC_API_KEY=f"sk-key-of-{name}")
        return Place(sandbox, {**environment, **own})

    return make


@dataclass
class Dialog:
    """A form that a person has before them."""

    params: types.ElicitRequestFormParams
    outcome: "asyncio.Future[types.ElicitResult]"
    withdrawn: asyncio.Event = field(default_factory=asyncio.Event)

    def accept(self, **content: Any) -> None:
        self.outcome.set_result(types.ElicitResult(action="accept", content=content))

    def cancel(self) -> None:
        self.outcome.set_result(types.ElicitResult(action="cancel"))


@dataclass
class ConnectedClient:
    """One connection, and the person before it."""

    name: str
    environment: ClientEnvironment | None
    client: Client = field(init=False)
    leave: Callable[[], None] = field(init=False)
    """Ends the connection, as a client does that goes away; `gone` is done afterward."""
    gone: "asyncio.Future[None]" = field(init=False)
    dialogs: "asyncio.Queue[Dialog]" = field(default_factory=asyncio.Queue)
    progress: list[str] = field(default_factory=list)
    _tools: dict[str, types.Tool] = field(default_factory=dict)

    async def elicit(self, _: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        dialog = Dialog(params, asyncio.get_running_loop().create_future())
        self.dialogs.put_nowait(dialog)
        try:
            return await dialog.outcome
        except asyncio.CancelledError:
            dialog.withdrawn.set()
            raise

    async def dialog(self) -> Dialog:
        return await asyncio.wait_for(self.dialogs.get(), LONG)

    async def call(self, tool: str, /, **arguments: Any) -> Reply:
        if not self._tools:
            self._tools = {one.name: one for one in (await self.client.list_tools()).tools}
        reply = Reply(
            await asyncio.wait_for(self.client.call_tool(tool, arguments, progress_callback=self._note), LONG)
        )
        check(self._tools[tool], reply)
        return reply

    async def _note(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message or "")

    def start(self, tool: str, /, **arguments: Any) -> "asyncio.Task[Reply]":
        return asyncio.ensure_future(self.call(tool, **arguments))

    async def create(self, prompt: str, **arguments: Any) -> Reply:
        return await self.call("claude_create_session", prompt=prompt, **arguments)

    async def done(self, prompt: str, **arguments: Any) -> Reply:
        return await self.create(prompt, waitSeconds=40, **arguments)

    async def send(self, session_id: str, message: str, **arguments: Any) -> Reply:
        return await self.call("claude_send_message", sessionId=session_id, message=message, **arguments)

    async def look(self, session_id: str, **arguments: Any) -> Reply:
        return await self.call("claude_get_status", sessionId=session_id, **arguments)


@asynccontextmanager
async def connected(
    server: McpServer,
    environment: ClientEnvironment | None,
    *,
    mode: str = LEGACY,
    can_be_asked: bool = False,
    name: str = "a client",
) -> AsyncIterator[ConnectedClient]:
    """A client over streams in memory, until the block is left."""
    caller = ConnectedClient(name, environment)
    async with (
        create_client_server_memory_streams() as (client_streams, (inbox, outbox)),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(server.serve, inbox, outbox, environment)  # type: ignore[arg-type]

        @asynccontextmanager
        async def transport() -> AsyncIterator[Any]:
            yield client_streams

        info = types.Implementation(name=name, version="1")
        ask: Any = caller.elicit if can_be_asked else None
        async with Client(transport(), mode=mode, elicitation_callback=ask, client_info=info) as caller.client:
            yield caller
        for stream in client_streams:
            await stream.aclose()


@dataclass
class Server:
    """One server and what it takes to connect to it."""

    service: Service
    mcp: McpServer
    _stack: AsyncExitStack

    async def connect(self, environment: ClientEnvironment | None, **how: Any) -> ConnectedClient:
        """A connection in a task of its own, since it may end in another than the one that opened it."""
        ready: asyncio.Future[ConnectedClient] = asyncio.get_running_loop().create_future()
        leave = asyncio.Event()

        async def live() -> None:
            async with connected(self.mcp, environment, **how) as caller:
                caller.leave = leave.set
                ready.set_result(caller)
                await leave.wait()

        living = asyncio.ensure_future(live())

        async def end() -> None:
            leave.set()
            await asyncio.wait_for(living, LONG)

        either: set[asyncio.Future[Any]] = {ready, living}
        await asyncio.wait(either, timeout=LONG, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await living
        self._stack.push_async_callback(end)
        caller = ready.result()
        caller.gone = living
        return caller


StartServer = Callable[..., Any]


@pytest.fixture
async def start_server(sandbox: Sandbox, environment: dict[str, str]) -> AsyncIterator[StartServer]:
    """A server whose own environment has no key that works and no project: nothing of it may reach a session. With
    `linger` it has hubs, each kept for so many seconds after its last use."""
    own = {**environment, "ANTHROPIC_API_KEY": "sk-key-of-the-server", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    async with AsyncExitStack() as stack:

        async def start(
            on_disconnect: str = "keep", linger: float | None = None, policy: Policy | None = None, **settings: Any
        ) -> Server:
            given = load_settings({}, **{"state_dir": sandbox.root / "state", **settings})
            hubs = Hubs(given, linger=linger) if linger is not None else None
            if hubs is not None:
                stack.push_async_callback(hubs.close)
            callers = ExpectedCallers(hub_for=hubs.use if hubs is not None else None)
            service = Service(given, own, policy=policy, callers=callers, **service_parts())
            await stack.enter_async_context(service)
            return Server(service, McpServer(service, on_disconnect), stack)

        yield start


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    started = await start_server()
    assert isinstance(started, Server)
    return started
