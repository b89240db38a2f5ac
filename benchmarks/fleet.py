"""What a gateway costs: a call through it beside the same call at its machine, live events to one watcher, and how soon
`fleet up` answers. And what a machine costs that has nothing to do."""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil

from claude_code_mcp.plugins.fleet.connection import connect, create_stores
from claude_code_mcp.plugins.fleet.nats_server import Running, running
from claude_code_mcp.plugins.fleet.tickets import credentials_seed, public_key
from claude_code_mcp.testing.script import script
from tests.support.ports import free_port

from .call_cost import tool_call
from .common import Figure, Place, benchmark, difference, pairs, spread
from .fleet_places import LIMIT, FleetPlaces, MachinePlace, Problem, until
from .startup import OURS, ROOT
from .wire import INITIALIZE, INITIALIZED, Wire, encode_message

_ROUNDS = 20
_CALLS = 50
_WARM_UP = 50
_GOAL_MS = 2.0
_EVENTS = 20_000
_EVENT_ROUNDS = 5
_GOAL_EVENTS = 10_000
_STARTS = 5
_GOAL_UP_SECONDS = 3.0
_REST_SECONDS = 60.0
_SETTLING_SECONDS = 10.0
_GOAL_REST_MB = 100.0
_GOAL_REST_MESSAGES = 100
_TOKEN = "bench-0123456789abcdefghij"
_HEADERS = {"authorization": f"Bearer {_TOKEN}", "accept": "application/json, text/event-stream"}
_PROGRAMS = [sys.executable, "-m", "tests.plugins.fleet.programs"]


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


# -- `fleet up` --------------------------------------------------------------------------------------------------------


@benchmark
async def fleet_up(place: Place) -> Sequence[Figure]:
    """Start of `fleet up` until the first tool result through its gateway."""
    first, later = [], []
    for number in range(_STARTS):
        home = place.sandbox.root / f"up-{number}"
        # The first time it makes its certificate, its keys and its stores; from then on it has them.
        first.append(await asyncio.to_thread(_ready_after, place, home))
        later.append(await asyncio.to_thread(_ready_after, place, home))
    slower = max(statistics.median(first), statistics.median(later))
    return [
        Figure(
            "`fleet up` answers a tool call",
            f"{spread(first, 's')} the first time",
            f"{spread(later, 's')} later",
            f"{slower:.2f} s",
            f"≤ {_GOAL_UP_SECONDS:g} s",
            slower <= _GOAL_UP_SECONDS,
        )
    ]


def _ready_after(place: Place, home: Path) -> float:
    """Seconds from the start of the command to the answer. Then it is ended in order."""
    variables = {
        **place.environment,
        "CLAUDE_CODE_MCP_STATE_DIR": str(home / "state"),
        "CLAUDE_CODE_MCP_RUNTIME_DIR": str(home / "run"),
        "CLAUDE_CODE_MCP_TOKEN": _TOKEN,
        "LOG_LEVEL": "error",
    }
    port = free_port()
    command = [*OURS, "fleet", "up", "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}"]
    with httpx2.Client(headers=_HEADERS, timeout=LIMIT) as http:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            _wait_for_port(port, process)
            _list_sessions(http, f"http://127.0.0.1:{port}/mcp")
            return time.perf_counter() - began
        finally:
            process.terminate()
            process.wait(LIMIT)


def _wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.005)
    raise Problem("`fleet up` does not serve")


def _list_sessions(http: httpx2.Client, url: str) -> None:
    hello = http.post(url, content=INITIALIZE, headers={"content-type": "application/json"})
    assert hello.status_code == 200, hello.text
    headers = {"content-type": "application/json", "mcp-session-id": hello.headers["mcp-session-id"]}
    http.post(url, content=INITIALIZED, headers=headers)
    answer = http.post(url, content=tool_call("claude_list_sessions", {}), headers=headers)
    assert '"sessions":[]' in answer.text, answer.text


# -- a machine at rest -------------------------------------------------------------------------------------------------


@benchmark
async def runner_at_rest(place: Place) -> Sequence[Figure]:
    """An idle machine of a fleet: its memory, and its messages as the NATS server counts them."""
    root = place.sandbox.root / "rest"
    root.mkdir()
    fleet = FleetPlaces(root, place.sandbox.model_url, 1, ("gateway", "runner"))
    try:
        await asyncio.to_thread(fleet.start)
        return await asyncio.to_thread(_rest, fleet)
    finally:
        await asyncio.to_thread(fleet.stop)


def _rest(fleet: FleetPlaces) -> list[Figure]:
    runner = fleet.named("runner")
    assert runner.process is not None
    time.sleep(_SETTLING_SECONDS)  # what it does once after its start is no cost of its rest
    before, began = _counted(fleet, runner), time.monotonic()
    time.sleep(_REST_SECONDS)
    after, minutes = _counted(fleet, runner), (time.monotonic() - began) / 60
    sent, received = ((after[name] - before[name]) / minutes for name in ("in_msgs", "out_msgs"))
    size = sum(after[name] - before[name] for name in ("in_bytes", "out_bytes")) / minutes / 1024
    memory = psutil.Process(runner.process.pid).memory_info().rss / (1 << 20)
    messages = sent + received
    return [
        Figure(
            "memory of an idle runner",
            "",
            f"{memory:.1f} MB",
            f"{memory:.1f} MB",
            f"≤ {_GOAL_REST_MB:g} MB",
            memory <= _GOAL_REST_MB,
        ),
        Figure(
            "NATS messages of an idle runner",
            "",
            f"{sent:.0f} sent, {received:.0f} received, {size:.0f} kB",
            f"{messages:.0f} a minute",
            f"≤ {_GOAL_REST_MESSAGES} a minute",
            messages <= _GOAL_REST_MESSAGES,
        ),
    ]


def _counted(fleet: FleetPlaces, machine: MachinePlace) -> dict[str, Any]:
    """What the server has counted of the connection of a machine."""
    user, found = public_key(credentials_seed(machine.credentials)), list[dict[str, Any]]()

    def asked() -> bool:
        listed = httpx2.get(f"{fleet.servers[0].monitor_url}/connz?auth=true", timeout=LIMIT).json()["connections"]
        found[:] = [each for each in listed if each.get("authorized_user") == user]
        return len(found) == 1

    until(asked, f"{machine.name} has no connection of its own")
    return found[0]
