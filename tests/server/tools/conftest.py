"""A client in the same process as the server: the tools as a caller sees them, the engine within reach."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import psutil
import pytest
from mcp import Client
from mcp.client import ClientExtension, NotificationBinding
from mcp.client._memory import InMemoryTransport
from pydantic import BaseModel, ConfigDict

from claude_code_mcp.core.model.events import AuditEvent, Event
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.testing import RequestRecord, Sandbox, ScriptedModelThread
from tests.conftest import StartService
from tests.core.sessions.support import streams, until
from tests.support.clock import stopped_clock
from tests.support.waiting import HANG_SECONDS


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


class Listener(ClientExtension):
    """Hears the notifications of `claude_code_query`."""

    identifier = "test/listener"

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return [NotificationBinding(method="claude-code/messages", params_type=Anything, handler=self._hear)]

    async def _hear(self, params: Anything) -> None:
        self.received.append(params.model_dump())
        self._news.set()

    async def until(self, kind: str) -> dict[str, Any]:
        """The first message of this kind, when it has come."""
        async with asyncio.timeout(HANG_SECONDS):
            while kind not in self.kinds:
                self._news.clear()
                await self._news.wait()
        return next(message for message in self.messages if message["type"] == kind)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [message["message"] for message in self.received]

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.messages]


class Changes:
    """Hears what a server says of its lists and resources on a connection with a handshake."""

    def __init__(self) -> None:
        self.updated: list[str] = []
        self._news = asyncio.Event()

    async def on_message(self, message: Any) -> None:
        match message:
            case types.ResourceListChangedNotification():
                self.updated.append("resources")
            case types.ResourceUpdatedNotification():
                self.updated.append(str(message.params.uri))
        self._news.set()

    async def until(self, what: str) -> None:
        """Returns when this has changed."""
        async with asyncio.timeout(HANG_SECONDS):
            while what not in self.updated:
                self._news.clear()
                await self._news.wait()


class Arrival:
    """Notices the first sign of life of a session."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        self.came.set()

    def act(self, act: AuditEvent) -> None:
        pass


async def while_it_speaks(caller: "ToolCaller", call: "asyncio.Future[Any]") -> Session:
    """The one session, as soon as the model has begun its last answer."""
    arrival = Arrival()
    caller.service.observe(arrival)
    async with asyncio.timeout(HANG_SECONDS):
        await arrival.came.wait()
    (session,) = caller.service.sessions()
    await until(session, lambda: streams(session))
    assert not call.done()
    return session


async def time_runs_out(
    caller: "ToolCaller",
    call: Coroutine[Any, Any, types.CallToolResult],
    when: Callable[[Session], bool],
    seconds: float = 4.0,
) -> types.CallToolResult:
    """The result of a call whose time is over at this point of its turn, however long it took to come there."""
    arrival = Arrival()
    caller.service.observe(arrival)
    with stopped_clock() as clock:
        calling = asyncio.ensure_future(call)
        await arrival.came.wait()
        (session,) = caller.service.sessions()
        await until(session, lambda: when(session))
        await clock.advance(seconds)
    return await calling


@dataclass
class ToolCaller:
    """Calls tools and looks at what came of it."""

    client: Client
    service: Service
    sandbox: Sandbox
    model: ScriptedModelThread
    listener: Listener
    changes: Changes = field(default_factory=Changes)
    progress: list[str] = field(default_factory=list)
    _told: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, name: str, **arguments: Any) -> types.CallToolResult:
        here = {"cwd": str(self.sandbox.project)}
        if name == "claude_code":
            arguments = {**here, **arguments}
        elif name == "claude_code_query":
            arguments = {**arguments, "options": {**here, **arguments.get("options", {})}}
        return await self.client.call_tool(name, arguments, progress_callback=self._note)

    async def ok(self, name: str, **arguments: Any) -> dict[str, Any]:
        """A call that must succeed; its structured content."""
        result = await self.call(name, **arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        return dict(result.structured_content)

    async def refused(self, name: str, **arguments: Any) -> tuple[str, str]:
        """A call that must be refused: code and message."""
        result = await self.call(name, **arguments)
        assert result.is_error
        assert result.structured_content is not None
        problem: dict[str, str] = result.structured_content["error"]
        assert isinstance(result.content[0], types.TextContent)
        assert result.content[0].text == f"Error [{problem['code']}]: {problem['message']}"
        return problem["code"], problem["message"]

    async def _note(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message or "")
        self._told.set()

    async def until_progress(self, text: str) -> None:
        """Returns when a report of progress has these words."""
        async with asyncio.timeout(HANG_SECONDS):
            while not any(text in report for report in self.progress):
                self._told.clear()
                await self._told.wait()

    def session(self, report: dict[str, Any]) -> Session:
        return self.service.session(report["sessionId"])

    def requests(self, report: dict[str, Any]) -> list[RequestRecord]:
        """What the model was asked in this session, with its tools on offer."""
        return [
            request for request in self.model.requests if request.session_id == report["sessionId"] and request.body
        ]


StartCaller = Callable[..., Any]


@pytest.fixture
async def start_caller(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> AsyncIterator[StartCaller]:
    """Starts a server with these settings and connects to it."""
    over = asyncio.Event()
    connected: list[asyncio.Task[None]] = []

    async def connect(client: Client, ready: "asyncio.Future[Client]") -> None:
        async with client:  # a client must be left by the task that entered it, and a fixture has two
            ready.set_result(client)
            await over.wait()

    async def start(mode: str = "legacy", elicit: Any = None, **settings: Any) -> ToolCaller:
        service = await start_service(**settings)
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        listener = Listener()
        server = InMemoryTransport(McpServer(service).server())  # JSON-RPC in both eras, as on a real wire
        changes = Changes()
        client = Client(
            server, mode=mode, elicitation_callback=elicit, extensions=[listener], message_handler=changes.on_message
        )
        connected.append(asyncio.ensure_future(connect(client, ready)))
        return ToolCaller(await ready, service, sandbox, model, listener, changes)

    yield start
    over.set()
    await asyncio.gather(*connected)


@pytest.fixture
async def caller(start_caller: StartCaller) -> ToolCaller:
    started = await start_caller()
    assert isinstance(started, ToolCaller)
    return started


def argv(caller: ToolCaller, report: dict[str, Any]) -> list[str]:
    pid = caller.session(report).pid
    assert pid is not None
    return psutil.Process(pid).cmdline()
