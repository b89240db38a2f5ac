"""Many sessions at once: do all finish, and does the event loop stay free for everybody else?"""

import asyncio
import time
from collections.abc import Sequence

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.transcripts.event_log import Subscription
from claude_code_mcp.testing.script import script, text, tool

from .common import Figure, Place, benchmark

_SESSIONS = 20
_TICK = 0.005
_GOAL_MS = 50.0
_PROMPT = script(
    "Work.",
    text("Thinking about it, line after line.\n", repeat=100, chunks=400, interval=0.002)
    | tool("Bash", command="echo one; sleep 0.2; echo two"),
    text("And the answer, line after line.\n", repeat=100, chunks=400, interval=0.002),
)


@benchmark
async def crowd(place: Place) -> Sequence[Figure]:
    """Twenty sessions at once, each with streaming text and a tool."""
    lags: list[float] = []
    async with place.service(max_sessions=_SESSIONS) as service:
        ticking = asyncio.create_task(_tick(lags))
        began = time.perf_counter()
        finished = await asyncio.gather(*(_turn(service, place) for _ in range(_SESSIONS)))
        took = time.perf_counter() - began
        ticking.cancel()
    p99 = sorted(lags)[int(len(lags) * 0.99)]
    return [
        Figure(
            f"{_SESSIONS} sessions at once",
            "",
            f"{took:.1f} s",
            f"{sum(finished)} finished",
            f"all {_SESSIONS}",
            all(finished),
        ),
        Figure(
            "event-loop lag meanwhile, p99",
            "",
            f"max {max(lags):.1f} ms",
            f"{p99:.1f} ms",
            f"< {_GOAL_MS:g} ms",
            p99 < _GOAL_MS,
        ),
    ]


async def _turn(service: Service, place: Place) -> bool:
    turn = await service.create(_PROMPT, SessionOptions(cwd=place.cwd, allowed_tools=("Bash",)))
    session = turn.session
    with service.watch(session.id) as events:
        reader = asyncio.create_task(_read(events))
        outcome = await turn.outcome()
    return outcome.ok and await reader > 0


async def _read(events: Subscription) -> int:
    return len([None async for _ in events])


async def _tick(lags: list[float]) -> None:
    while True:
        expected = time.perf_counter() + _TICK
        await asyncio.sleep(_TICK)
        lags.append((time.perf_counter() - expected) * 1000)
