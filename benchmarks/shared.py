"""The shared server next to one per client: the first result of a new client, a call through the front, programs."""

import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from .common import Figure, Place, benchmark, pairs, spread
from .startup import BARE, OURS, ROOT
from .wire import INITIALIZE, INITIALIZED, Wire, encode_message

_ROUNDS = 21
_CALL_ROUNDS = 20
_CALLS = 100
_CLIENTS = 3
_SERVERS = 5
_MARK = "SHARED_SERVER_BENCHMARK"
_SHARED = [*OURS, "--shared"]
_FIRST_MS = 40.0
_FIRST_RATIO = 0.1
_CALL_MS = 0.15
_LIST_SESSIONS = encode_message("tools/call", 2, name="claude_list_sessions", arguments={})


@contextmanager
def _running(place: Place, name: str, **variables: str) -> Iterator[dict[str, str]]:
    """The environment of clients that share a server which runs until the end."""
    runtime = place.sandbox.root / f"run-{name}"
    runtime.mkdir(mode=0o700)
    environment = {
        **place.environment,
        "LOG_LEVEL": "error",
        "PYTHONPATH": ROOT,
        "CLAUDE_CODE_MCP_RUNTIME_DIR": str(runtime),
        **variables,
    }
    try:
        subprocess.run([*OURS, "shared", "start"], env=environment, check=True, stdout=subprocess.DEVNULL)
        yield environment
    finally:
        subprocess.run([*OURS, "shared", "stop", "--all"], env=environment, check=False, stdout=subprocess.DEVNULL)


@benchmark
async def shared_first_result(place: Place) -> Sequence[Figure]:
    """Start of a client until its first tool result, with the shared server and with a separate one."""
    shared: list[float] = []
    own: list[float] = []
    bare: list[float] = []
    with _running(place, "first") as environment:
        for _ in range(_ROUNDS):
            shared.append(_first_result(_SHARED, environment))
            own.append(_first_result(OURS, environment))
            bare.append(_first_result(BARE, environment))
    median, ratio = statistics.median(shared), statistics.median(shared) / statistics.median(own)
    others = f"in process {statistics.median(own):.0f} ms, bare SDK {statistics.median(bare):.0f} ms"
    title = "first tool result of a client"
    return [
        Figure(title, others, spread(shared), f"{median:.1f} ms", f"≤ {_FIRST_MS:g} ms", median <= _FIRST_MS),
        Figure(title, spread(own), spread(shared), f"{ratio:.2f}×", f"≤ {_FIRST_RATIO:g}×", ratio <= _FIRST_RATIO),
    ]


def _first_result(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    with Wire(command, environment) as wire:
        wire.ask(INITIALIZE)
        wire.ask(INITIALIZED + _LIST_SESSIONS)
        return (time.perf_counter() - began) * 1000


@benchmark
async def shared_call(place: Place) -> Sequence[Figure]:
    """Calls that do nothing, through the shared server and to a separate one."""
    request = encode_message("tools/call", 2, name="none", arguments={})
    times: dict[Wire, list[float]] = {}
    with _running(place, "call") as environment, Wire(_SHARED, environment) as shared, Wire(OURS, environment) as own:
        for wire in (shared, own):
            wire.ask(INITIALIZE)
            wire.ask(INITIALIZED + encode_message("ping", 1))
            times[wire] = []
            _p50(wire, request)
        for shared_first in pairs(_CALL_ROUNDS):
            for wire in (shared, own) if shared_first else (own, shared):
                times[wire].append(_p50(wire, request))
    added = statistics.median(ours - theirs for ours, theirs in zip(times[shared], times[own], strict=True)) / 1000
    return [
        Figure(
            "p50 of a call through the shared server",
            spread(times[own], "µs"),
            spread(times[shared], "µs"),
            f"{added:+.3f} ms",
            f"≤ +{_CALL_MS:g} ms",
            added <= _CALL_MS,
        )
    ]


def _p50(wire: Wire, request: bytes) -> float:
    taken = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        wire.ask(request)
        taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)


@benchmark
async def shared_programs(place: Place) -> Sequence[Figure]:
    """Three clients that use five servers of the hub."""
    counts = {}
    for name, command in (("own", OURS), ("shared", _SHARED)):
        mark = uuid.uuid4().hex
        with _running(place, name, **_hub(place, mark)) as environment:
            counts[name] = _programs(command, environment, mark)
    shared = counts["shared"]
    return [
        Figure(
            f"{_CLIENTS} clients × {_SERVERS} hub servers",
            f"{counts['own']} programs",
            f"{shared} programs",
            f"{shared} programs",
            f"{_SERVERS} programs",
            shared == _SERVERS,
        )
    ]


def _hub(place: Place, mark: str) -> dict[str, str]:
    program = str(Path(__file__).parent / "sample_server.py")
    entry = {"type": "stdio", "command": sys.executable, "args": ["-S", program, "small"], "env": {_MARK: mark}}
    file = place.sandbox.root / f"{mark}.json"
    file.write_text(json.dumps({"mcpServers": {f"s{number}": entry for number in range(_SERVERS)}}))
    return {"CLAUDE_CODE_MCP_HUB_FILE": str(file), "CLAUDE_CODE_MCP_TOOLSETS": "sessions,hub"}


def _programs(command: list[str], environment: dict[str, str], mark: str) -> int:
    connect = encode_message("tools/call", 1, name="claude_mcp_servers", arguments={"action": "status"})
    with ExitStack() as stack:
        for _ in range(_CLIENTS):
            wire = stack.enter_context(Wire(command, environment))
            wire.ask(INITIALIZE)
            assert wire.ask(INITIALIZED + connect).count(b'"connected"') == _SERVERS
        return sum(_has_mark(process, mark) for process in psutil.process_iter())


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark
    except (psutil.Error, OSError):
        return False
