"""A hub wired to a service and to clients, as the composition root does it, on a private HOME."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client._memory import InMemoryTransport

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.events import AuditEvent, AuditKind, Event
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.outcome import Outcome
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import Policy, parse_policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.hub.auth.credentials import FileVault
from claude_code_mcp.hub.channel_relay import ChannelRelay
from claude_code_mcp.hub.config_files import HubConfig
from claude_code_mcp.hub.factory import marked_environment
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.hub_deps import HubDeps
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import RUN
from tests.support.hub_config import parse_servers
from tests.support.parts import service_parts
from tests.support.waiting import HANG_SECONDS, until_true

LONG = HANG_SECONDS
LEGACY, MODERN = "legacy", "2026-07-28"
A_SERVER = str(Path(__file__).parents[2] / "hub" / "a_server.py")
A_CHANNEL = str(Path(__file__).parent / "a_channel.py")


def program(path: str = A_SERVER, *arguments: str, **entry: Any) -> dict[str, Any]:
    """The configuration of a server that is a small Python program."""
    return {"command": sys.executable, "args": ["-S", path, *arguments], **entry}


def rules(text: str) -> Policy:
    """A policy with these lines in its profile."""
    return parse_policy(f'[profiles.mine]\nbase = "local"\n{text}', "policy.toml", "mine")


@dataclass
class Notes:
    """An observer that remembers what was refused, how the hub was steered, and which of its tools were called."""

    refused: list[AuditEvent] = field(default_factory=list)
    steered: list[AuditEvent] = field(default_factory=list)
    called: list[AuditEvent] = field(default_factory=list)

    def act(self, act: AuditEvent) -> None:
        if act.kind is AuditKind.HUB_CALLED:
            self.called.append(act)
        if act.kind is AuditKind.HUB_STEERED:
            self.steered.append(act)
        if act.kind is AuditKind.REFUSED:
            self.refused.append(act)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        pass


until = until_true


@dataclass
class Rig:
    """A service with a hub."""

    service: Service
    hub: Hub
    relay: ChannelRelay
    sandbox: Sandbox
    model: ScriptedModelThread
    notes: Notes
    _stack: AsyncExitStack

    async def create(self, *steps: Any, **options: Any) -> "tuple[Session, Awaitable[Outcome]]":
        """A session whose model takes these steps."""
        given = SessionOptions(**{"cwd": str(self.sandbox.project), "allowed_tools": ("mcp__x",), **options})
        turn = await self.service.create(script("Go", *steps), given)
        return turn.session, turn.outcome()

    async def begin(self, session: Session, *steps: Any) -> "Awaitable[Outcome]":
        """The next turn of a session, which has begun."""
        return (await self.service.send(session.id, script("Go on", *steps))).outcome()

    async def say(self, session: Session, *steps: Any) -> Outcome:
        """The next turn of a session, to its end."""
        return await asyncio.wait_for(await self.begin(session, *steps), LONG)

    async def first(self, *steps: Any, **options: Any) -> tuple[Session, str]:
        """The same, with what it said in the end."""
        session, ending = await self.create(*steps, **options)
        outcome = await asyncio.wait_for(ending, LONG)
        assert outcome.ok, outcome
        return session, outcome.result or ""

    def allow(self, session: Session, **answer: Any) -> None:
        (question,) = session.questions
        self.service.respond(session.id, question.id, Answer(**{"allow": True, **answer}))


StartRig = Callable[..., Any]


@asynccontextmanager
async def rigs(sandbox: Sandbox, environment: dict[str, str], model: ScriptedModelThread) -> AsyncIterator[StartRig]:
    """Starts rigs: `servers` is what a file has under `mcpServers`, or all that was read; the rest are settings."""
    async with AsyncExitStack() as stack:

        async def start(
            servers: dict[str, Any] | HubConfig,
            policy: Policy | None = None,
            extra: dict[str, str] | None = None,
            **settings: Any,
        ) -> Rig:
            # The model is to be shown the tools themselves, not a tool that searches for them.
            around = {**environment, "ENABLE_TOOL_SEARCH": "false", **(extra or {})}
            given = load_settings({}, **{"state_dir": sandbox.root / "state", **settings})
            relay = ChannelRelay(given.channels, given.permission_channels)
            means = HubDeps(
                around,
                Database(sandbox.root / "hub"),
                FileVault(sandbox.root / "vault"),
                sandbox.home / ".claude",
                child_environment=marked_environment,
                on_notification=relay.on_notification,
            )
            configured = servers if isinstance(servers, HubConfig) else parse_servers(servers, around)
            hub = await stack.enter_async_context(Hub(configured, given, means))
            service = Service(given, around, policy=policy, hub=hub, **service_parts())
            notes = Notes()
            service.observe(notes)
            await stack.enter_async_context(service)
            relay.connect(service, hub)
            return Rig(service, hub, relay, sandbox, model, notes, stack)

        yield start


@pytest.fixture
async def start_rig(
    sandbox: Sandbox, environment: dict[str, str], model: ScriptedModelThread
) -> AsyncIterator[StartRig]:
    """Starts rigs in the home of the test."""
    async with rigs(sandbox, environment, model) as start:
        yield start


ON_SHARED_LOOP = pytest.mark.asyncio(loop_scope="module")
"""For tests of a rig that all of their module use."""


@asynccontextmanager
async def shared_rig(
    place: Path, model: ScriptedModelThread, servers: dict[str, Any], **settings: Any
) -> AsyncIterator[Rig]:
    """A rig in a home of its own, for the fixture of a module."""
    sandbox = Sandbox(place, model.url)
    async with rigs(sandbox, sandbox.environment(**{RUN: os.environ[RUN]}), model) as start:
        rig = await start(servers, **settings)
        assert isinstance(rig, Rig)
        yield rig


@dataclass
class Person:
    """Somebody before a client: answers forms with `answers` in turn and remembers what was shown."""

    answers: list[types.ElicitResult]
    shown: list[types.ElicitRequestParams] = field(default_factory=list)

    async def __call__(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.shown.append(params)
        return self.answers.pop(0)


def decide(decision: str) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"decision": decision})


@dataclass
class Caller:
    """A client of the rig's server."""

    client: Client
    changes: list[str] = field(default_factory=list)
    progress: list[str | None] = field(default_factory=list)

    async def call(self, name: str, /, **arguments: Any) -> types.CallToolResult:
        return await asyncio.wait_for(self.client.call_tool(name, arguments, progress_callback=self._note), LONG)

    async def ok(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        result = await self.call(name, **arguments)
        assert not result.is_error, result.content
        return dict(result.structured_content or {})

    async def text(self, name: str, /, **arguments: Any) -> str:
        result = await self.call(name, **arguments)
        assert not result.is_error, result.content
        return text_of(result)

    async def refused(self, name: str, /, **arguments: Any) -> tuple[str, str]:
        result = await self.call(name, **arguments)
        assert result.is_error, result.content
        assert result.structured_content is not None, result.content
        problem = result.structured_content["error"]
        return problem["code"], problem["message"]

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def _note(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message)


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


StartCaller = Callable[..., Any]


@pytest.fixture
async def connect(start_rig: StartRig) -> AsyncIterator[StartCaller]:
    """Connects clients to the server of a rig."""
    over = asyncio.Event()
    connected: list[asyncio.Task[None]] = []
    surfaces: dict[int, McpServer] = {}

    async def keep(client: Client, ready: "asyncio.Future[Client]") -> None:
        async with client:  # a client must be left by the task that entered it, and a fixture has two
            ready.set_result(client)
            await over.wait()

    async def start(rig: Rig, mode: str = LEGACY, elicit: Any = None, sample: Any = None) -> Caller:
        surface = surfaces.setdefault(id(rig), McpServer(rig.service, hub=rig.hub))
        changes: list[str] = []

        async def on_message(message: Any) -> None:
            match message:
                case types.ToolListChangedNotification():
                    changes.append("tools")
                case types.PromptListChangedNotification():
                    changes.append("prompts")
                case types.ResourceListChangedNotification():
                    changes.append("resources")
                case types.ResourceUpdatedNotification():
                    changes.append(str(message.params.uri))
                case types.LoggingMessageNotification(params=logged):
                    changes.append(f"{logged.logger}: {logged.data}")

        client = Client(
            InMemoryTransport(surface.server()),
            mode=mode,
            elicitation_callback=elicit,
            sampling_callback=sample,
            message_handler=on_message,
        )
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        connected.append(asyncio.ensure_future(keep(client, ready)))
        return Caller(await asyncio.wait_for(ready, LONG), changes)

    yield start
    over.set()
    await asyncio.gather(*connected)


def pids(texts: Sequence[str]) -> set[str]:
    """The processes that answered: `pid` tells its own first."""
    return {text.split()[0] for text in texts}
