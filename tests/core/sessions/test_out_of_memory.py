"""A line that there is no memory for ends the session that wrote it, with a reason, and no other."""

import json
import subprocess
import sys
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox
from tests.support.misbehaving_cli import install_misbehaving_cli
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all memory on Linux alone")
_MIB = 1 << 20
_GIANT = 30 * _MIB
_SERVER = """
import asyncio, concurrent.futures, gc, json, logging, resource, sys, threading
from pathlib import Path
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service

state, cli, cwd, environment, room, giant = sys.argv[1:]
environment, room, giant = json.loads(environment), int(room), int(giant)
records = []

class Count(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage()[:200])

logging.getLogger().addHandler(Count(logging.ERROR))

def in_use():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))

async def outcome(service, prompt, session=None):
    if session is None:
        turn = await service.create(prompt, SessionOptions(cwd=cwd))
    else:
        turn = await service.send(session.id, prompt)
    return turn.session, await turn.outcome()

async def main():
    loop = asyncio.get_running_loop()
    threads = concurrent.futures.ThreadPoolExecutor(4)
    loop.set_default_executor(threads)
    barrier = threading.Barrier(4)
    await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(4)))  # no thread has to be made later
    settings = load_settings({}, state_dir=Path(state), claude_path=cli, stop_timeout_ms=300)
    async with Service(settings, environment) as service:
        other, before = await outcome(service, "hello")
        gc.collect()
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (in_use() + room, hard))
        prompt = "MISBEHAVE:" + json.dumps({"giant_line": giant})
        (session, failed), (_, meanwhile) = await asyncio.gather(
            outcome(service, prompt), outcome(service, "meanwhile", other)
        )
        _, after = await outcome(service, "hello again", other)
        _, new = await outcome(service, "and a new one")
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        _, again = await outcome(service, "go on", session)
    print(json.dumps({
        "failed": [failed.code, failed.detail], "state": session.state, "logged": records,
        "others": [each.code for each in (before, meanwhile, after, new)], "again": again.code,
    }))

asyncio.run(main())
"""


def run_server(sandbox: Sandbox, environment: dict[str, str], room: int) -> dict[str, Any]:
    """Two sessions, one of which writes a line of 30 MiB, in a server that can have only so much more memory."""
    cli = install_misbehaving_cli(sandbox.root / "bin")
    arguments = (sandbox.root / "state", cli, sandbox.project, json.dumps(environment), room, _GIANT)
    command = [sys.executable, "-c", _SERVER, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "room", [24, *(pytest.param(room, marks=pytest.mark.soak) for room in (16, 40))], ids="{} MiB".format
)
def test_a_line_without_memory_for_it_ends_its_session_alone(
    sandbox: Sandbox, environment: dict[str, str], room: int
) -> None:
    """16 and 24 MiB are too little to read the line, 40 too little to join its pieces."""
    seen = run_server(sandbox, environment, room * _MIB)
    code, detail = seen["failed"]
    assert code == "crashed"
    assert "no memory left for its output" in detail
    assert seen["others"] == ["completed"] * 4
    assert seen["again"] == "completed"
    assert len(seen["logged"]) < 10  # nothing was tried again and again


@pytest.mark.soak
def test_with_enough_memory_the_same_line_is_read(sandbox: Sandbox, environment: dict[str, str]) -> None:
    seen = run_server(sandbox, environment, 2048 * _MIB)
    assert seen["failed"][0] == "completed"
    assert seen["others"] == ["completed"] * 4
