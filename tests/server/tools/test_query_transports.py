"""`claude_code_query` on real wires: long streams arrive whole, and a client that stops reading stops nobody."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.support.program import http_server
from tests.support.waiting import until

from . import wires
from .wires import LEGACY, MODERN, Json, query

DELTAS = 4_000
LINE = "0123456789\n"
LONG = script("Write", text(LINE, repeat=DELTAS, chunks=DELTAS))

Call = Callable[[Json], Awaitable[list[Json]]]


@asynccontextmanager
async def connected(transport: str, era: str, environment: dict[str, str], sandbox: Sandbox) -> AsyncIterator[Call]:
    if transport == "stdio":
        with wires.stdio_server(environment, sandbox, era) as stdio:
            yield stdio.call
    else:
        with http_server({**environment, "CLAUDE_CODE_MCP_PROFILE": "local"}, sandbox.project) as server:
            async with wires.http_client(server.url, era) as http:
                yield http.call


def params_of(said: list[Json]) -> list[Json]:
    return [message["params"] for message in said if message.get("method") == "claude-code/messages"]


def deltas_of(notifications: list[Json]) -> list[str]:
    events = [
        notification["message"]["event"]
        for notification in notifications
        if notification["message"]["type"] == "stream_event"
    ]
    return [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]


on_every_wire = pytest.mark.parametrize(
    ("transport", "era"),
    [
        ("http", MODERN),
        pytest.param("stdio", LEGACY, marks=pytest.mark.soak),
        pytest.param("stdio", MODERN, marks=pytest.mark.soak),
        pytest.param("http", LEGACY, marks=pytest.mark.soak),
    ],
)


@pytest.mark.soak
@on_every_wire
async def test_thousands_of_fragments_arrive_in_order_and_complete_after_half_an_emoji(
    transport: str, era: str, environment: dict[str, str], sandbox: Sandbox
) -> None:
    half_an_emoji = r'Smile SCRIPT:[{"text": "a\ud83d b", "chunks": 4}]'
    async with connected(transport, era, environment, sandbox) as call:
        smiled = await call(query(era, half_an_emoji, includePartialMessages=True))
        said = await call(query(era, LONG, includePartialMessages=True))
    assert "\ufffd" in "".join(deltas_of(params_of(smiled)))
    assert smiled[-1]["result"]["structuredContent"]["result"]["summary"].startswith("a")
    notifications = params_of(said)
    assert [notification["sequence"] for notification in notifications] == list(range(1, len(notifications) + 1))
    deltas = deltas_of(notifications)
    assert len(deltas) == DELTAS
    assert "".join(deltas) == LINE * DELTAS
    assert notifications[-1]["message"]["type"] == "result"
    bundle = said[-1]["result"]["structuredContent"]
    assert bundle["result"]["summary"] == LINE * DELTAS
    assert "truncated" not in bundle


FLOOD = 30_000
FLOODED = text(LINE, repeat=FLOOD, chunks=FLOOD)


def wait_for_text(sandbox: Sandbox, session_id: str, text: str) -> None:
    """Until the transcript on disk has these words of the model."""
    until(lambda: text in _texts(sandbox, session_id), "the session did not go on")


def _texts(sandbox: Sandbox, session_id: str) -> Iterator[str]:
    for path in (sandbox.home / ".claude" / "projects").glob(f"*/{session_id}.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.endswith("}") and (entry := json.loads(line))["type"] == "assistant":
                yield from (block["text"] for block in entry["message"]["content"] if block["type"] == "text")


@pytest.mark.soak  # tests/core/sessions/test_watching.py, tests/server/test_line_streams.py
@pytest.mark.parametrize("era", [LEGACY, pytest.param(MODERN, marks=pytest.mark.soak)])
def test_client_that_stops_reading_its_pipe_does_not_block_others(
    era: str, environment: dict[str, str], sandbox: Sandbox
) -> None:
    # The question that nobody answers in time is asked, and denied, only when the server has read all before it.
    prompt = script("Write", FLOODED | tool("Bash", command="touch never"), "the end")
    short_timeout = {**environment, "PERMISSION_TIMEOUT_MS": "500"}
    with wires.stdio_server(short_timeout, sandbox, era) as wire:
        message = query(era, prompt, includePartialMessages=True)
        wire.send(message)
        first = wire.read()
        server = psutil.Process(wire.pid)
        before = server.memory_info().rss
        wait_for_text(sandbox, first["params"]["sessionId"], "the end")
        grown = server.memory_info().rss - before
        said = [first, *wire.rest(message)]
    assert grown < 120 << 20
    bundle = said[-1]["result"]["structuredContent"]
    assert bundle["result"] == {"success": True, "summary": "the end"}
    assert bundle["messages"][-1]["type"] == "result"
    numbers = [params["sequence"] for params in params_of(said)]
    assert numbers == sorted(set(numbers))
    lost = numbers[-1] - len(numbers)
    assert lost > 0
    assert bundle["truncated"] == {
        "total": len(bundle["messages"]),
        "returned": len(bundle["messages"]),
        "droppedNotifications": lost,
    }


@pytest.mark.soak  # the other wire is tested always
async def test_client_that_stops_reading_its_stream_does_not_block_others(
    environment: dict[str, str], sandbox: Sandbox
) -> None:
    with http_server({**environment, "CLAUDE_CODE_MCP_PROFILE": "local"}, sandbox.project) as server:
        async with wires.http_client(server.url, LEGACY) as stuck:
            stream = stuck.stream(query(LEGACY, script("Write", FLOODED), includePartialMessages=True))
            first = await anext(stream)
            async with wires.http_client(server.url, LEGACY) as other:
                look = {"sessionId": first["params"]["sessionId"], "waitSeconds": 55, "outputLines": 1}
                said = await other.call(wires.request("tools/call", {"name": "claude_get_status", "arguments": look}))
            assert said[-1]["result"]["structuredContent"]["status"] == "completed"
            rest = [message async for message in stream]
    bundle = rest[-1]["result"]["structuredContent"]
    assert bundle["result"]["success"]
    numbers = [params["sequence"] for params in params_of([first, *rest])]
    lost = bundle.get("truncated", {}).get("droppedNotifications", 0)
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == len(numbers) + lost
