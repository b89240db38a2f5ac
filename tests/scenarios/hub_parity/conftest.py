"""The same scenario in two sessions: one that connects to the servers itself, and one that has them through the hub."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.question import Answer, Question
from tests.hub.conftest import packages
from tests.scenarios.hub_and_sessions.conftest import LONG, Rig, StartRig, start_rig

__all__ = ["Both", "Seen", "full", "odd", "packages", "seen_in", "start_rig"]

FULL_SERVER = str(Path(__file__).parents[2] / "hub" / "full_server.py")
ODD_SERVER = str(Path(__file__).parent / "odd_server.py")
ALLOWED = (
    "mcp__x",
    "mcp__a_b",
    "mcp__files",
    "ListMcpResourcesTool",
    "ReadMcpResourceTool",
    "ToolSearch",
    "Read",
    "Bash",
)


def full(*faults: str) -> dict[str, Any]:
    """The configuration of a server with everything, and these faults."""
    return {"command": sys.executable, "args": ["-S", FULL_SERVER, *faults]}


def odd(*arguments: str) -> dict[str, Any]:
    """The configuration of a server with unusual answers."""
    return {"command": sys.executable, "args": ["-S", ODD_SERVER, *arguments]}


@dataclass
class Seen:
    """What one of the sessions showed."""

    cwd: str
    results: list[str] = field(default_factory=list)
    """What the tools of the steps told the model."""
    failed: list[bool] = field(default_factory=list)
    """Which of them were errors."""
    tools: set[str] = field(default_factory=set)
    """The tools of MCP servers in its last request."""
    bodies: str = ""
    """All that the model was sent, as JSON."""
    said: str = ""
    asked: list[str] = field(default_factory=list)
    """What a person was asked."""


Answers = Callable[[Question], list[Any]]
"""What a person answers to a question."""


def _nothing(_: Question) -> list[Any]:
    return []


Both = Callable[..., Awaitable[tuple[Seen, Seen]]]
"""Runs the steps, then sends the further messages, in both sessions; `answers` has the answers to a question. With
`running`, the hub is connected to its servers before; `extra` are variables, `sessions` how many there are one after
the other, of which the results are put together."""


@pytest.fixture
async def both(start_rig: StartRig) -> Both:
    async def run(
        servers: Mapping[str, Any],
        *steps: Any,
        messages: tuple[str, ...] = (),
        answers: Answers = _nothing,
        running: bool = False,
        extra: dict[str, str] | None = None,
        sessions: int = 1,
    ) -> tuple[Seen, Seen]:
        rig: Rig = await start_rig(dict(servers), extra=extra)
        given: list[dict[str, Any]] = [{"mcp_servers": servers, "hub_servers": ()}, {}]
        seen = []
        for options in given:
            if running and not options:
                await rig.hub.connect(timeout=LONG)
            one = await seen_in(rig, steps, messages, answers, **options)
            for _ in range(sessions - 1):
                one.results += (await seen_in(rig, steps, messages, answers, **options)).results
            seen.append(one)
        return seen[0], seen[1]

    return run


async def seen_in(
    rig: Rig, steps: tuple[Any, ...], messages: tuple[str, ...] = (), answers: Answers = _nothing, **options: Any
) -> Seen:
    """What a session shows that takes these steps."""
    session, outcome = await rig.create(*steps, "done", allowed_tools=ALLOWED, **options)
    seen = Seen(session.cwd)
    waiting = asyncio.ensure_future(outcome)
    async with asyncio.timeout(4 * LONG):
        while not waiting.done():
            await asyncio.wait([waiting], timeout=0.1)
            for question in session.questions:
                seen.asked.append(str(question.tool_input))
                rig.service.respond(session.id, question.id, Answer(allow=True, answers=answers(question)))
    seen.said = waiting.result().result or ""
    for message in messages:
        seen.said = (await asyncio.wait_for((await rig.service.send(session.id, message)).outcome(), LONG)).result or ""
    requests = [one for one in rig.model.requests if one.session_id == session.id and one.tools]
    seen.tools = {name for name in requests[-1].tools if name.startswith("mcp__")}
    seen.bodies = json.dumps([one.body for one in requests])
    seen.results = [result.text for one in requests for result in one.tool_results[-1:]]
    seen.failed = [result.is_error for one in requests for result in one.tool_results[-1:]]
    await rig.service.cancel(session.id)
    return seen
