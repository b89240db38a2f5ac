"""`make soak`: many sessions, most of them idle, some at work all the time; none may fail, no call may be kept waiting.

Status calls of a client go on meanwhile, and their times are what the limit is on. Processes are kept within a limit of
memory, so that idle sessions are parked and resumed as they are needed.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence

import psutil

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.server.tools.session_report import report
from claude_code_mcp.testing.script import script, text, tool

from .common import Place, temporary_place

_GOAL_MS = 50.0
_PAUSE = 0.02
_WORK = script(
    "Work.",
    text("Line after line of an answer. ", repeat=20, chunks=40, interval=0.05)
    | tool("Bash", command="echo one; python3 -c 'import time; time.sleep(1)'; echo two"),
    text("And more. ", repeat=20, chunks=40, interval=0.05),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=150, help="how many (default: 150)")
    parser.add_argument("--busy", type=int, default=40, help="how many of them work at any time (default: 40)")
    parser.add_argument("--seconds", type=float, default=120, help="for how long (default: 120)")
    parser.add_argument("--memory", default="75%", help="the limit of memory, as in the settings (default: 75%%)")
    options = parser.parse_args(arguments)
    with temporary_place() as place:
        return asyncio.run(_run(place, options))


async def _run(place: Place, wanted: argparse.Namespace) -> int:
    settings = {"max_sessions": wanted.sessions, "memory_limit": wanted.memory, "memory_wait_ms": 600_000}
    failures: list[str] = []
    async with place.service(**settings) as service:
        began = time.perf_counter()
        sessions = list(await asyncio.gather(*(_create(service, place, failures) for _ in range(wanted.sessions))))
        print(f"{len(sessions)} sessions after {time.perf_counter() - began:.0f} s", flush=True)
        times: list[float] = []
        lowest = [psutil.virtual_memory().available]
        watching = asyncio.create_task(_ask_for_status(service, sessions, times, lowest))
        until, idle = time.monotonic() + wanted.seconds, list(sessions)
        turns = await asyncio.gather(*(_work(service, idle, until, failures) for _ in range(wanted.busy)))
        watching.cancel()
        live = sum(session.live for session in sessions)
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    print(f"{sum(turns)} turns, {len(failures)} failed; {live} processes live at the end")
    print(
        f"{len(times)} status calls: p50 {times[len(times) // 2]:.1f} ms, p99 {p99:.1f} ms, longest {times[-1]:.1f} ms"
    )
    print(f"least memory available meanwhile: {lowest[0] / (1 << 30):.1f} GiB")
    for failure in failures[:20]:
        print(f"FAILED: {failure}")
    if p99 >= _GOAL_MS:
        print(f"MISSED: p99 of a status call is to be below {_GOAL_MS:g} ms")
    return 1 if failures or p99 >= _GOAL_MS else 0


async def _create(service: Service, place: Place, failures: list[str]) -> Session:
    turn = await service.create(script("Begin.", "Begun."), SessionOptions(cwd=place.cwd, allowed_tools=("Bash",)))
    outcome = await turn.outcome()
    if not outcome.ok:
        failures.append(f"{turn.session.id} began with {outcome.code}: {outcome.detail}")
    return turn.session


async def _work(service: Service, idle: list[Session], until: float, failures: list[str]) -> int:
    """One turn after the other, each in a session that nobody else uses just now; tells how many."""
    turns = 0
    while time.monotonic() < until:
        session = idle.pop(random.randrange(len(idle)))
        outcome = await (await service.send(session.id, _WORK)).outcome()
        turns += 1
        if not outcome.ok:
            failures.append(f"{session.id} ended with {outcome.code}: {outcome.detail}")
        idle.append(session)
    return turns


async def _ask_for_status(service: Service, sessions: list[Session], times: list[float], lowest: list[int]) -> None:
    redactor = Redactor()
    while True:
        due = time.perf_counter() + _PAUSE  # from here, so that a loop that is held up counts too
        await asyncio.sleep(_PAUSE)
        report(await service.find(random.choice(sessions).id), redactor)
        times.append((time.perf_counter() - due) * 1000)
        lowest[0] = min(lowest[0], psutil.virtual_memory().available)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
