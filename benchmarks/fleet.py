"""What a gateway costs: a call through it beside the same call at its machine, and live events to one watcher."""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence

from claude_code_mcp.fleet.connection import connect, create_stores
from claude_code_mcp.fleet.engine import Running, running
from claude_code_mcp.testing.script import script

from .call_cost import tool_call
from .common import Figure, Place, benchmark, difference, pairs
from .startup import ROOT
from .wire import INITIALIZE, INITIALIZED, Wire, encode_message

_ROUNDS = 20
_CALLS = 50
_WARM_UP = 50
_GOAL_MS = 2.0
_EVENTS = 20_000
_EVENT_ROUNDS = 5
_GOAL_EVENTS = 10_000
_PROGRAMS = [sys.executable, "-m", "tests.fleet.programs"]


@benchmark
async def fleet(place: Place) -> Sequence[Figure]:
    """Calls and live events through a gateway of a fleet."""
    directory = place.sandbox.root / "nats"
    directory.mkdir()
    async with running(directory) as engine:
        connection = await connect(engine.url)
        await create_stores(connection)
        await connection.close()
        # In threads: what the NATS server logs is read meanwhile.
        return [await asyncio.to_thread(_calls, place, engine), await asyncio.to_thread(_events, place, engine)]


def _environment(place: Place, name: str) -> dict[str, str]:
    state = {"CLAUDE_CODE_MCP_STATE_DIR": str(place.sandbox.root / name)}
    return {**place.environment, **state, "LOG_LEVEL": "error", "PYTHONPATH": ROOT}


def _calls(place: Place, engine: Running) -> Figure:
    """The status of one session, asked on the machine's stdio and on the gateway's, in turns."""
    machine = [*_PROGRAMS, "machine", engine.url, "m1", "--stdio"]
    gateway = [*_PROGRAMS, "gateway", engine.url, "m1"]
    with Wire(machine, _environment(place, "m1")) as direct, Wire(gateway, _environment(place, "g1")) as routed:
        for wire in (direct, routed):
            wire.ask(INITIALIZE)
            wire.ask(INITIALIZED + encode_message("ping", 1))
        arguments = {"prompt": script("go", "done"), "workingDirectory": place.cwd, "waitSeconds": 50}
        created = json.loads(direct.ask(tool_call("claude_create_session", arguments)))
        session = created["result"]["structuredContent"]["sessionId"]
        request = tool_call("claude_get_status", {"sessionId": session})
        for wire in (direct, routed):
            assert b'"status":"completed"' in wire.ask(request)
            _p50(wire, request, _WARM_UP)
        times: dict[Wire, list[float]] = {direct: [], routed: []}
        for routed_first in pairs(_ROUNDS):
            for wire in (routed, direct) if routed_first else (direct, routed):
                times[wire].append(_p50(wire, request, _CALLS))
    return difference("p50 of a call through a gateway", times[direct], times[routed], _GOAL_MS)


def _p50(wire: Wire, request: bytes, count: int) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        wire.ask(request)
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def _events(place: Place, engine: Running) -> Figure:
    """Notifications that a machine sends during a call as fast as it can, until the client of a gateway has them."""
    recorded = place.sandbox.root / "events.json"
    about = {"type": "claude_code_message", "sessionId": "0" * 36, "timestamp": "2026-01-01T00:00:00.000+00:00"}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "The quick brown "}}
    frame = {"type": "stream_event", "event": delta, "session_id": "0" * 36, "uuid": "0" * 36}
    events = [{**about, "message": frame, "sequence": number} for number in range(1, _EVENTS + 1)]
    recorded.write_text(json.dumps(events), encoding="utf-8")
    machine = [sys.executable, "-m", "benchmarks.fleet_events", engine.url, "m2", str(recorded)]
    gateway = [*_PROGRAMS, "gateway", engine.url, "m2"]
    with Wire(machine, _environment(place, "m2")) as sender, Wire(gateway, _environment(place, "g2")) as routed:
        assert sender.read() == b"ready\n"
        routed.ask(INITIALIZE)
        routed.ask(INITIALIZED + encode_message("ping", 1))
        rates = [_rate(routed) for _ in range(_EVENT_ROUNDS)]
    rate = statistics.median(rates)
    low, _, high = statistics.quantiles(rates, n=4)
    spread = f"{rate:,.0f}/s [{low:,.0f}…{high:,.0f}]"
    met = rate >= _GOAL_EVENTS
    return Figure("live events to one watcher", "", spread, f"{rate:,.0f}/s", f"≥ {_GOAL_EVENTS:,}/s", met)


def _rate(routed: Wire) -> float:
    routed.send(tool_call("send", {}))
    first = routed.read()
    began, count = time.perf_counter(), 1
    assert b'"sequence":1,' in first or b'"sequence":1}' in first, first
    while b'"id":2' not in routed.read()[:60]:
        count += 1
    assert count == _EVENTS, count
    return (count - 1) / (time.perf_counter() - began)
