"""What one session may use of the machine, and that another one works on beside it: a session that starts processes
without end, and one that fills the memory, on the real CLI."""

import os
import shutil
from typing import Any

import psutil
import pytest

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import REMOTE_PROFILE, Policy, Profile, Resources
from claude_code_mcp.core.processes.control_groups import find_parent
from claude_code_mcp.core.processes.limits import EnforcedLimits, ResourceLimits
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.claude.conftest import gone
from tests.core.sessions.support import end_of, written_to
from tests.support.bubblewrap import missing

PYTHON = shutil.which("python3", path="/usr/bin:/bin")
pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(PYTHON is None, reason="there is no Python that a sandbox sees"),
]

PROCESSES = 100
FORKS = """
import os, signal
made = refused = 0
while made < 2000 and refused < 200:
    try:
        pid = os.fork()
    except OSError:
        refused += 1
        continue
    if not pid:
        signal.pause()
    made += 1
with open("made", "w") as file:
    file.write(f"{made} {refused}")
open("started", "w").close()
signal.pause()
"""
FILLS = """
held = []
try:
    while len(held) < 300:
        held.append(os.urandom(10 << 20))
except MemoryError:
    sys.exit("there is no more memory")
print("took all of it")
"""


def unlimited_processes() -> bool:
    limits = EnforcedLimits(ResourceLimits(processes=PROCESSES), find_parent())
    return bool(limits.unenforced(sandboxed=True, root=os.geteuid() == 0))


def policy(sandbox: Sandbox, **resources: Any) -> Policy:
    return Policy(Profile(isolation="sandbox", roots=(str(sandbox.project),), resources=Resources(**resources)))


async def say(service: Service, sandbox: Sandbox, *steps: Any) -> Any:
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
    return await service.create(script("go", *steps), options)


@pytest.mark.skipif(unlimited_processes(), reason="root is not limited without a control group")
async def test_a_session_that_starts_processes_without_end_is_refused_more_and_others_work_on(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=policy(sandbox, processes=PROCESSES))
    (sandbox.project / "forks.py").write_text(FORKS)
    os.mkfifo(sandbox.project / "started")
    bomb = await say(service, sandbox, tool("Bash", command=f"{PYTHON} forks.py"), "never")
    await written_to(sandbox.project / "started", bomb)
    pid = bomb.session.pid
    inside = psutil.Process(pid).children(recursive=True) if pid else []
    made, refused = map(int, (sandbox.project / "made").read_text().split())
    assert refused == 200
    assert made < PROCESSES
    assert len(inside) <= PROCESSES
    other = await say(service, sandbox, tool("Bash", command="echo works > other"), "done")
    assert (await end_of(other)).result == "done"
    assert (sandbox.project / "other").read_text() == "works\n"
    # Claude Code itself may not have survived that it can start nothing any more.
    await service.cancel(bomb.session.id)
    await bomb.session.closed()
    for process in inside:
        await gone(process.pid)


@pytest.mark.soak  # tests/core/processes/test_limits.py
async def test_a_session_that_fills_the_memory_loses_that_process_and_works_on(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=policy(sandbox, memory=1 << 30))
    (sandbox.project / "fills.py").write_text(f"import os, sys\n{FILLS}")
    command = f"{PYTHON} fills.py > seen 2>&1; echo ended with $? >> seen"
    filling = await say(service, sandbox, tool("Bash", command=command), "done")
    other = await say(service, sandbox, tool("Bash", command="echo works > other"), "done")
    assert (await end_of(other)).result == "done"
    assert (await end_of(filling)).result == "done"
    seen = (sandbox.project / "seen").read_text()
    assert "took all of it" not in seen
    assert "ended with 0" not in seen


def test_callers_over_http_have_limits_and_the_local_user_has_none() -> None:
    assert all(REMOTE_PROFILE.resources.model_dump(exclude={"cpus"}).values())
    assert Profile().resources == Resources()
