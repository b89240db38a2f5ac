"""From starting the command to its first answers, next to an interpreter that does nothing and other ways to start."""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .common import Figure, Place, benchmark, pairs, ratio, spread
from .wire import INITIALIZE, INITIALIZED, LIST_TOOLS, Wire, encode_message

_ROUNDS = 21
_GOAL_MS = 40.0
_RESULT_GOAL = 1.0
ROOT = str(Path(__file__).parent.parent)
BARE = [sys.executable, "-m", "benchmarks.bare_server"]
OURS = [str(Path(sys.executable).parent / "claude-code-mcp")]


@dataclass
class Times:
    """Milliseconds from the start of the process to the two answers."""

    handshake: list[float] = field(default_factory=list)
    listing: list[float] = field(default_factory=list)


@benchmark
async def startup(place: Place) -> Sequence[Figure]:
    """Start of the MCP server to `initialize` and `tools/list` answered."""
    environment = {**place.environment, "LOG_LEVEL": "error"}
    plain = {**environment, "CLAUDE_CODE_MCP_GREETING": "off"}
    nothing: list[float] = []
    ours, loading, bare = Times(), Times(), Times()
    for _ in range(_ROUNDS):
        nothing.append(_nothing(environment))
        _first_answers(OURS, environment, ours)
        _first_answers(OURS, plain, loading)
        _first_answers(BARE, environment, bare)
    scale = f"python -c pass {statistics.median(nothing):.1f} ms"
    return [
        _figure(f"initialize answered ({scale})", bare.handshake, loading.handshake, ours.handshake),
        _figure("tools/list answered", bare.listing, loading.listing, ours.listing),
    ]


@benchmark
async def first_result(place: Place) -> Sequence[Figure]:
    """Start of the MCP server to the result of its first tool call."""
    environment = {**place.environment, "LOG_LEVEL": "error", "PYTHONPATH": ROOT}
    calls = ((BARE, "nothing"), (OURS, "claude_list_sessions"))
    times: tuple[list[float], list[float]] = ([], [])
    for command, tool in calls:
        _result_time(command, environment, tool)  # the first start of all writes caches
    for ours_first in pairs(_ROUNDS):
        for number in (1, 0) if ours_first else (0, 1):
            command, tool = calls[number]
            times[number].append(_result_time(command, environment, tool))
    return [ratio("first tool result, against a bare SDK server", *times, _RESULT_GOAL)]


def _result_time(command: list[str], environment: dict[str, str], tool: str) -> float:
    began = time.perf_counter()
    with Wire(command, environment) as wire:
        wire.ask(INITIALIZE)
        answer = wire.ask(INITIALIZED + encode_message("tools/call", 2, name=tool, arguments={}))
        took = (time.perf_counter() - began) * 1000
    assert b'"result"' in answer, answer
    assert b'"isError":true' not in answer.replace(b" ", b""), answer
    return took


def _figure(name: str, bare: list[float], loading: list[float], ours: list[float]) -> Figure:
    median = statistics.median(ours)
    others = f"bare SDK {statistics.median(bare):.0f} ms, ours without greeting {statistics.median(loading):.0f} ms"
    return Figure(name, others, spread(ours), f"{median:.1f} ms", f"≤ {_GOAL_MS:g} ms", median <= _GOAL_MS)


def _nothing(environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
    return (time.perf_counter() - began) * 1000


def _first_answers(command: list[str], environment: dict[str, str], times: Times) -> None:
    began = time.perf_counter()
    with Wire(command, {**environment, "PYTHONPATH": ROOT}) as wire:
        wire.ask(INITIALIZE)
        times.handshake.append((time.perf_counter() - began) * 1000)
        wire.ask(INITIALIZED + LIST_TOOLS)
        times.listing.append((time.perf_counter() - began) * 1000)
