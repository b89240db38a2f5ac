"""Calls that do nothing, one after the other: what the server itself costs."""

import statistics
import time
from collections.abc import Sequence

from .common import Figure, Place, benchmark, pairs, ratio
from .startup import BARE, OURS, ROOT
from .wire import INITIALIZE, INITIALIZED, Wire, encode_message

_ROUNDS = 20
_CALLS = 100
_WARM_UP = 50


@benchmark
async def tool_call(place: Place) -> Sequence[Figure]:
    """Calls of the MCP server that do nothing."""
    environment = {**place.environment, "LOG_LEVEL": "error", "PYTHONPATH": ROOT}
    with Wire(BARE, environment) as bare, Wire(OURS, environment) as ours:
        for wire in (bare, ours):
            wire.ask(INITIALIZE)
            wire.ask(INITIALIZED + encode_message("ping", 1))
        return [
            _compare("p50 of a call of an unknown tool", "tools/call", bare, ours, name="none", arguments={}),
            _compare("p50 of a ping", "ping", bare, ours),
        ]


def _compare(title: str, method: str, bare: Wire, ours: Wire, **params: object) -> Figure:
    request = encode_message(method, 2, **params)
    for wire in (bare, ours):
        _p50(wire, request, _WARM_UP)
    times: dict[Wire, list[float]] = {bare: [], ours: []}
    for ours_first in pairs(_ROUNDS):
        for wire in (ours, bare) if ours_first else (bare, ours):
            times[wire].append(_p50(wire, request, _CALLS))
    return ratio(title, times[bare], times[ours], 1.0, "µs")


def _p50(wire: Wire, request: bytes, count: int) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        wire.ask(request)
        taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)
