"""Many sessions with the same servers: how many programs run, and what they weigh, with the hub and without."""

import asyncio
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.hub.auth.credentials import FileVault
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.hub_deps import HubDeps
from claude_code_mcp.testing.script import parallel, script, tool
from tests.support.hub_config import parse_servers

from .common import Figure, Place, benchmark

_SESSIONS = 20
_SERVERS = 5
_AT_ONCE = 4
_MARK = "HUB_SHARING_BENCHMARK"
_PROMPT = script(
    "Use them all.", parallel(*(tool(f"mcp__s{number}__echo") for number in range(_SERVERS))), "${tool_result}"
)


@dataclass(frozen=True, slots=True)
class _Weight:
    programs: int
    megabytes: float

    def __str__(self) -> str:
        return f"{self.programs} programs, {self.megabytes:.0f} MB"


@benchmark
async def hub_sharing(place: Place) -> Sequence[Figure]:
    """Twenty sessions with five MCP servers each, started by each session or shared."""
    alone = await _alone(place)
    shared = await _shared(place)
    return [
        Figure(
            f"{_SESSIONS} sessions × {_SERVERS} servers",
            str(alone),
            str(shared),
            f"{shared.megabytes / alone.megabytes:.2f}× memory of servers",
            f"{_SERVERS} programs",
            shared.programs == _SERVERS,
        )
    ]


def _servers(mark: str) -> dict[str, dict[str, Any]]:
    program = str(Path(__file__).parent / "sample_server.py")
    entry = {"type": "stdio", "command": sys.executable, "args": ["-S", program, "small"], "env": {_MARK: mark}}
    return {f"s{number}": entry for number in range(_SERVERS)}


async def _alone(place: Place) -> _Weight:
    mark = uuid.uuid4().hex
    async with place.service(max_sessions=_SESSIONS) as service:
        return await _used(service, place, mark, mcp_servers=_servers(mark))


async def _shared(place: Place) -> _Weight:
    mark, root = uuid.uuid4().hex, place.sandbox.root
    deps = HubDeps(place.environment, Database(root / "hub"), FileVault(root / "vault"), root / ".claude")
    settings = load_settings({}, state_dir=root / "state", claude_path=place.executable, max_sessions=_SESSIONS)
    async with (
        Hub(parse_servers(_servers(mark), place.environment), settings, deps) as hub,
        Service(settings, place.environment, hub=hub) as service,
    ):
        return await _used(service, place, mark)


async def _used(service: Service, place: Place, mark: str, **options: Any) -> _Weight:
    """What runs when every session has used every server and all are alive."""
    limit = asyncio.Semaphore(_AT_ONCE)
    allowed = tuple(f"mcp__s{number}" for number in range(_SERVERS))
    session_options = SessionOptions(cwd=place.cwd, allowed_tools=allowed, **options)

    async def use() -> None:
        async with limit:
            turn = await service.create(_PROMPT, session_options)
            outcome = await turn.outcome()
            assert (outcome.result or "").count("done") == _SERVERS, outcome

    await asyncio.gather(*(use() for _ in range(_SESSIONS)))
    assert sum(session.live for session in service.sessions()) == _SESSIONS
    return await asyncio.to_thread(_weigh, mark)


def _weigh(mark: str) -> _Weight:
    """Memory that is a program's own; what programs share with one another is in nobody's account."""
    found = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    return _Weight(len(found), sum(process.memory_full_info().uss for process in found) / (1 << 20))


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark
    except (psutil.Error, OSError):
        return False
