"""Memory of the host for each session that has nothing to do."""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing.script import script, text, tool

from .common import Figure, Place, benchmark

_SESSIONS = 30
_LIVE = 6
_GOAL_MB = 1.0
_PROMPT = script(
    "Look around.",
    tool("Bash", command="seq 2000"),
    text("A line of an answer of a usual length.\n", repeat=100, chunks=300),
)


@benchmark
async def idle_sessions(place: Place) -> Sequence[Figure]:
    """Memory of a server for each finished session."""
    arguments = [sys.executable, "-m", "benchmarks.memory", str(place.sandbox.root), place.sandbox.model_url]
    child = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    before, after = json.loads(output)
    per_session = (after - before) / _SESSIONS / (1 << 20)
    return [
        Figure(
            "server memory per idle session",
            f"{before / (1 << 20):.1f} MB with 1 session",
            f"{after / (1 << 20):.1f} MB with {_SESSIONS + 1}",
            f"{per_session:.2f} MB",
            f"≤ {_GOAL_MB:g} MB",
            per_session <= _GOAL_MB,
        )
    ]


async def _measure(place: Place) -> None:
    async with place.service(max_sessions=_LIVE) as service:
        await _finish_some(service, place, 1)
        before = _resident()
        await _finish_some(service, place, _SESSIONS)
        after = _resident()
        assert len(service.sessions()) == _SESSIONS + 1
    print(json.dumps([before, after]))


async def _finish_some(service: Service, place: Place, count: int) -> None:
    for _ in range(count):
        options = SessionOptions(cwd=place.cwd, allowed_tools=("Bash",))
        turn = await service.create(_PROMPT, options)
        outcome = await turn.outcome()
        assert outcome.ok, outcome


def _resident() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


if __name__ == "__main__":
    asyncio.run(_measure(Place(Path(sys.argv[1]), sys.argv[2])))
