"""What the server remembers, with fifty thousand sessions: lists, searches, costs, start, writes, and bytes on disk."""

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.core.sessions.stored.record_writer import RecordWriter
from claude_code_mcp.core.sessions.stored.session_library import SessionLibrary
from claude_code_mcp.core.state.session_records import SessionRecord, SessionRecords
from claude_code_mcp.core.state.state_directory import database_in

from .catalog import generate
from .common import Figure, Place, benchmark
from .startup import OURS, ROOT
from .wire import INITIALIZE, INITIALIZED, Wire, encode_message

_SESSIONS = 50_000
_BYTES = 2_000
_ROUNDS = 11
_WRITES = 500


@benchmark
async def state(place: Place) -> Sequence[Figure]:
    """Fifty thousand sessions on disk, each with a record."""
    with tempfile.TemporaryDirectory(prefix="bench-state-") as root:
        await asyncio.to_thread(generate, Path(root), _SESSIONS, _BYTES)
        first = await _measured(root)
        found = await _measured(root)
        started = await asyncio.to_thread(_start, place, Path(root))
        per_session = _size(Path(root) / "state") / _SESSIONS
        index = _size(Path(root) / "state" / "index") / _SESSIONS
    return [
        _figure("newest 50 of 50,000 sessions, new process", found["list, first"], 0.6),
        _figure("the same again", found["list"], 0.02),
        _figure("search in titles and prompts", found["search"], 0.5),
        _figure("costs by day, new process", found["costs, first"], 1.5),
        _figure("the same again", found["costs"], 0.1),
        _figure("costs after one session has changed", found["costs, changed"], 0.3),
        _figure("costs by session", found["costs by session"], 0.25),
        _figure("CPU of one report of costs", found["costs cpu"], 0.1),
        _figure("longest wait of the event loop in a first report", found["costs hold"], 0.1),
        _figure("costs, where nothing is counted yet", first["costs, first"], 60.0),
        _figure("start to the first list", started, 2.0),
        _figure("a record written, off the event loop", found["write"], 0.005),
        _figure("longest wait of the event loop meanwhile", found["write hold"], 0.05),
        Figure(
            "bytes in the state directory per session", "", f"{per_session:.0f} B, of which the index {index:.0f} B",
            f"{per_session:.0f} B", "≤ 8000 B", per_session <= 8000,
        ),
    ]  # fmt: skip


def _figure(name: str, seconds: float, goal: float) -> Figure:
    shown = f"{seconds * 1000:.1f} ms"
    return Figure(name, "", shown, shown, f"≤ {goal * 1000:g} ms", seconds <= goal)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _start(place: Place, root: Path) -> float:
    """From starting the command to the list of sessions."""
    environment = {
        **place.environment, "LOG_LEVEL": "error", "PYTHONPATH": ROOT, "CLAUDE_CONFIG_DIR": str(root / "config"),
        "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
    }  # fmt: skip
    times = []
    for _ in range(3):
        began = time.perf_counter()
        with Wire(OURS, environment) as wire:
            wire.ask(INITIALIZE)
            call = encode_message("tools/call", 2, name="claude_list_sessions", arguments={})
            answer = wire.ask(INITIALIZED + call)
            times.append(time.perf_counter() - began)
        assert b"sessionId" in answer, answer
    return statistics.median(times)


# -- measured in a process of its own -----------------------------------------------------------------------------


async def _measured(root: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.state", root]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    return dict(json.loads(output))


async def _all(root: Path) -> dict[str, float]:
    library = SessionLibrary(str(root / "config"), root / "state", lambda data: data)
    catalog = library.catalog
    found: dict[str, float] = {}
    found["list, first"] = await _seconds(lambda: asyncio.to_thread(catalog.list, limit=50))
    found["list"] = await _seconds(lambda: asyncio.to_thread(catalog.list, limit=50), _ROUNDS)
    found["costs, first"], found["costs hold"] = await _held(lambda: library.costs("day", principal=LOCAL, most=500))
    cpu = _cpu()
    found["costs"] = await _seconds(lambda: library.costs("day", principal=LOCAL, most=500), _ROUNDS)
    found["costs cpu"] = (_cpu() - cpu) / _ROUNDS
    found["costs by session"] = await _seconds(lambda: library.costs("session", principal=LOCAL, most=500), _ROUNDS)
    changed = catalog.path_of(catalog.list(limit=1)[0].session_id)
    assert changed is not None

    async def grow() -> None:
        await asyncio.to_thread(_append, changed)
        await library.costs("day", principal=LOCAL, most=500)

    found["costs, changed"] = await _seconds(grow, _ROUNDS)
    await asyncio.to_thread(catalog.list, text="kettle")
    found["search"] = await _seconds(lambda: asyncio.to_thread(catalog.list, text="kettle river", limit=50), _ROUNDS)
    records = SessionRecords(database_in(root / "state"), str(root / "config"))
    took, found["write hold"] = await _held(lambda: _write_records(records))
    found["write"] = took / _WRITES
    return found


def _append(path: str) -> None:
    with open(path, "a") as file:
        file.write(json.dumps({"type": "custom-title", "customTitle": str(time.time())}) + "\n")


class _Recorded:
    """A session that has changed."""

    def __init__(self) -> None:
        self.id = str(uuid.uuid4())
        self._revision = 0

    def record(self) -> SessionRecord:
        self._revision += 1
        now = time.time()
        return SessionRecord(
            session_id=self.id, owner="local", created_at=now, used_at=now, cwd="/x", options=SessionOptions(),
            revision=self._revision, running_since=now,
        )  # fmt: skip


async def _write_records(records: SessionRecords) -> None:
    tasks: set[asyncio.Task[Any]] = set()

    def start_task(work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        tasks.add(task)
        return task

    writer, session = RecordWriter(records, start_task), cast("Session", _Recorded())
    for _ in range(_WRITES):
        writer.changed(session)
        await writer.saved(session.id)
    await asyncio.to_thread(records.remove, session.id)


async def _seconds(work: Callable[[], Awaitable[object]], rounds: int = 1) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def _held(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """How long it takes, and how long the event loop was kept from anything else at most."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            due = time.perf_counter() + 0.002
            await asyncio.sleep(0.002)
            longest = max(longest, time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    try:
        return await _seconds(work), longest
    finally:
        ticking.cancel()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_all(Path(sys.argv[1])))))
