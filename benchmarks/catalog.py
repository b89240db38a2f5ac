"""The list of sessions against Claude Code's own Python SDK, on ten thousand transcripts of one gigabyte in all."""

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.state.session_records import SessionRecord, SessionRecords
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.core.transcripts.session_catalog import Catalog
from claude_code_mcp.core.transcripts.transcript_lines import folder_of

from .common import Figure, Place, benchmark

_SESSIONS = 10_000
_PROJECTS = 50
_BYTES = 100_000
_ROUNDS = 20
_WORDS = ("parser", "kettle", "build", "server", "test", "queue", "branch", "window", "letter", "river", "cache")


@benchmark
async def catalog(_: Place) -> Sequence[Figure]:
    """List and search 10,000 sessions, compared with `claude_agent_sdk.list_sessions`."""
    with tempfile.TemporaryDirectory(prefix="bench-catalog-") as root:
        await asyncio.to_thread(generate, Path(root))
        base = await _measured("sdk", root)
        first = await _measured("cold", root)
        second = await _measured("warm", root)
    share = first["newest"] / base["newest"]
    baseline = f"SDK {base['newest'] * 1000:.0f} ms"
    return [
        Figure(
            "newest 50 of 10,000 sessions, no index yet",
            baseline,
            _ms(first["newest"]),
            f"{share:.3f}×",
            "≤ 0.05×",
            share <= 0.05,
        ),
        _figure("the same again", baseline, first["again"], 0.005),
        _figure("the same, new process", baseline, second["newest"], 0.25),
        _figure("search in titles and prompts", baseline, second["search"], 0.3),
        _figure("newest 50 of a named caller", baseline, second["owner"], 0.02),
        _figure("after one transcript has grown", baseline, second["grown"], 0.02),
        Figure(
            "memory of the process",
            f"SDK {base['memory'] / (1 << 20):.0f} MB",
            f"{second['memory'] / (1 << 20):.0f} MB",
            f"{second['memory'] / (1 << 20):.0f} MB",
            "≤ 64 MB",
            second["memory"] <= 64 << 20,
        ),
    ]  # fmt: skip


def _figure(name: str, base: str, seconds: float, goal: float) -> Figure:
    return Figure(name, base, _ms(seconds), _ms(seconds), f"≤ {goal * 1000:g} ms", seconds <= goal)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


# -- what is generated --------------------------------------------------------------------------------------------


def generate(root: Path, sessions: int = _SESSIONS, size: int = _BYTES) -> None:
    """Transcripts as the CLI writes them, and a record for each, every tenth of which belongs to `alice`."""
    chance = random.Random(1)
    records = SessionRecords(database_in(root / "state"), str(root / "config"))
    filler = "".join(chance.choices("abcdefghij \\n", k=size))
    for number in range(sessions):
        session_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        cwd = f"/code/project-{number % _PROJECTS}"
        path = root / "config" / "projects" / folder_of(cwd) / f"{session_id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        when = 1_790_000_000 + number * 60
        path.write_text(_transcript(session_id, cwd, chance, filler, size, when))
        os.utime(path, (when, when))
        owner = "alice" if number % 10 == 0 else "bob"
        record = SessionRecord(
            session_id=session_id, owner=owner, created_at=when, used_at=when, cwd=cwd, options=SessionOptions()
        )
        records.write(record, durable=False)


def _transcript(session_id: str, cwd: str, chance: random.Random, filler: str, size: int, when: int) -> str:
    lines: list[str] = []
    written = 0
    while written < size:
        for kind in ("user", "assistant", "tool_result"):
            line = json.dumps(_message(kind, session_id, cwd, chance, filler, when), separators=(",", ":"))
            lines.append(line)
            written += len(line)
    model = {"claude-opus-5-5": {"inputTokens": 9000, "outputTokens": 900, "costUSD": chance.random()}}
    lines.append(json.dumps({"type": "cost-state", "modelUsage": model, "startTime": 1_790_000_000_000}))
    return "\n".join(lines) + "\n"


def _message(kind: str, session_id: str, cwd: str, chance: random.Random, filler: str, when: float) -> dict[str, Any]:
    start = chance.randrange(len(filler) // 2)
    text = f"{' '.join(chance.choices(_WORDS, k=12))} {filler[start : start + chance.randrange(200, 8000)]}"
    content: Any = text
    if kind == "assistant":
        content = [{"type": "text", "text": text}]
    if kind == "tool_result":
        content = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": text}]
    message: dict[str, Any] = {"role": "assistant" if kind == "assistant" else "user", "content": content}
    if kind == "assistant":
        usage = {"input_tokens": 100, "output_tokens": 20}
        message = {"model": "claude-opus-5-5", "id": f"msg_{chance.getrandbits(64):x}", **message, "usage": usage}
    return {
        "parentUuid": str(uuid.UUID(int=chance.getrandbits(128))),
        "isSidechain": False,
        "type": "assistant" if kind == "assistant" else "user",
        "message": message,
        "uuid": str(uuid.UUID(int=chance.getrandbits(128))),
        "timestamp": datetime.fromtimestamp(when, UTC).isoformat(),
        "cwd": cwd,
        "sessionId": session_id,
        "gitBranch": "main",
    }


# -- measured in a process of its own -----------------------------------------------------------------------------


async def _measured(what: str, root: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.catalog", what, root]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    return dict(json.loads(output))


def _seconds(work: Callable[[], object], rounds: int = 1) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _sdk(root: Path) -> dict[str, float]:
    os.environ["CLAUDE_CONFIG_DIR"] = str(root / "config")
    from claude_agent_sdk import list_sessions  # noqa: PLC0415 - importing it takes longer than anything here

    before = _resident()
    return {"newest": _seconds(lambda: list_sessions(limit=50)), "memory": _resident() - before}


def _ours(root: Path) -> dict[str, float]:
    before = _resident()
    sessions = Catalog(str(root / "config"), root / "state")
    newest = _seconds(lambda: sessions.list(limit=50))
    again = _seconds(lambda: sessions.list(limit=50), _ROUNDS)
    sessions.list(text="kettle", limit=50)  # the first search reads what no listing has read
    search = _seconds(lambda: sessions.list(text="kettle river", limit=50), _ROUNDS)
    records = SessionRecords(database_in(root / "state"), str(root / "config"))
    records.summaries()
    owner = _seconds(lambda: _of_alice(sessions, records), _ROUNDS)
    grown = _seconds(lambda: _grow(sessions), _ROUNDS)
    return {
        "newest": newest, "again": again, "search": search, "owner": owner, "grown": grown,
        "memory": _resident() - before,
    }  # fmt: skip


def _of_alice(sessions: Catalog, records: SessionRecords) -> None:
    own = frozenset(name for name, summary in records.summaries().items() if summary.owner == "alice")
    assert len(sessions.list(limit=50, only=own)) == 50


def _grow(sessions: Catalog) -> None:
    path = sessions.path_of(sessions.list(limit=50)[-1].session_id)
    assert path is not None
    message = _message("user", Path(path).stem, "/code/project-0", random.Random(1), "word " * 200, time.time())
    with open(path, "a") as file:
        for line in ({"type": "custom-title", "customTitle": "grown"}, message):
            file.write(json.dumps(line) + "\n")
    assert sessions.list(limit=1)[0].title == "grown"


def _resident() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)


if __name__ == "__main__":
    print(json.dumps((_sdk if sys.argv[1] == "sdk" else _ours)(Path(sys.argv[2]))))
