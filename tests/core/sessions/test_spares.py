"""Spare processes: taken by a session that is just like the last one, by no other, and seen by nobody before."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from claude_code_mcp.core.model.caller import LOCAL, Caller, ClientEnvironment
from claude_code_mcp.core.model.events import ProcessChanged, StateChanged, TurnEnded, TurnStarted
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Limits, Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.live.live_process import launch_of
from claude_code_mcp.core.sessions.live.spares import Spare
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.support.system_packages import require
from tests.support.waiting import until_true

from .support import PATIENCE, options, run, say

HELLO = script("hello", "done")


def spares(service: Service) -> list[Spare]:
    return service._sessions.spares._ready


async def with_spare(service: Service, given: SessionOptions) -> tuple[Session, Spare]:
    """A finished session, and the spare that was started for the next one like it."""
    session, outcome = await run(service, HELLO, given)
    assert outcome.ok
    return session, await spare_of(service)


async def spare_of(service: Service) -> Spare:
    filling = service._sessions.spares._filling
    assert filling is not None
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([filling])
    (spare,) = spares(service)
    assert spare.usable
    return spare


def transcripts(sandbox: Sandbox) -> set[str]:
    return {path.stem for path in (sandbox.home / ".claude" / "projects").rglob("*.jsonl")}


def registered(sandbox: Sandbox) -> set[int]:
    return {int(path.name.split(".")[0]) for path in (sandbox.home / ".claude" / "sessions").iterdir()}


async def gone(pid: int | None) -> None:
    assert pid is not None
    await until_true(lambda: not psutil.pid_exists(pid))


@pytest.fixture
async def service(start_service: StartService) -> Service:
    started = await start_service(spare_processes=1)
    assert isinstance(started, Service)
    return started


async def test_the_next_session_like_the_last_one_takes_the_spare_and_its_id(
    service: Service, sandbox: Sandbox
) -> None:
    given = options(sandbox, allowed_tools=("Bash",), max_budget_usd=5)
    cold, spare = await with_spare(service, given)
    pid = spare.pid
    warm, outcome = await run(service, HELLO, given)
    assert (warm.id, warm.pid, outcome.result) == (spare.id, pid, "done")
    assert transcripts(sandbox) == {cold.id, warm.id}
    assert registered(sandbox) >= {cold.pid, warm.pid}
    await assert_equal_to_cold_start(cold, warm)
    assert (
        await say(service, warm, script("where", tool("Bash", command="pwd > where"), "went on"))
    ).result == "went on"
    assert (sandbox.project / "where").read_text().strip() == str(sandbox.project)
    await an_unused_spare_is_no_session_and_leaves_no_trace(service, sandbox, {cold, warm})


async def assert_equal_to_cold_start(cold: Session, warm: Session) -> None:
    await warm.saved()
    kinds = (TurnStarted, StateChanged, ProcessChanged, TurnEnded)
    event_types = [[type(one) for one in session.log.after(0) if isinstance(one, kinds)] for session in (cold, warm)]
    assert event_types[0] == event_types[1]
    assert cold.usage == warm.usage
    assert (cold.costs.spent_usd, cold.model_turns) == (warm.costs.spent_usd, warm.model_turns)
    record = warm.deps.stores.recorder.records.read(warm.id)
    assert record is not None
    assert record.usage == cold.usage


async def an_unused_spare_is_no_session_and_leaves_no_trace(
    service: Service, sandbox: Sandbox, used: set[Session]
) -> None:
    spare = await spare_of(service)
    pid = spare.pid
    assert pid is not None
    assert {session.id for session in service.sessions()} == {session.id for session in used}
    assert {entry.session_id for entry in await service.stored.entries()} == {session.id for session in used}
    assert registered(sandbox) == {session.pid for session in used}
    await service.__aexit__()
    await gone(pid)
    assert transcripts(sandbox) == {session.id for session in used}
    assert spare.id not in "".join(str(path) for path in (sandbox.root / "state").rglob("*"))
    assert pid not in registered(sandbox)


DIFFERENT: dict[str, dict[str, Any]] = {
    "a model": {"model": "claude-sonnet-4-5"},
    "a tool": {"allowed_tools": ("Bash",)},
    "a prompt": {"append_system_prompt": "Be brief."},
    "a variable": {"env": {"COLOR": "red"}},
    "a budget": {"max_budget_usd": 3.0},
}


def remember(sandbox: Sandbox) -> None:
    (sandbox.project / "CLAUDE.md").write_text("Say please.")


def configure(sandbox: Sandbox) -> None:
    (sandbox.project / ".claude").mkdir()
    (sandbox.project / ".claude" / "settings.json").write_text('{"permissions": {"deny": ["Bash"]}}')


def register_server(sandbox: Sandbox) -> None:
    (sandbox.project / ".mcp.json").write_text('{"mcpServers": {}}')


def change_user_file(sandbox: Sandbox) -> None:
    file = sandbox.home / ".claude.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "mcpServers": {"x": {"command": "x"}}}))


CHANGES: list[Callable[[Sandbox], None]] = [remember, configure, register_server, change_user_file]


@pytest.mark.soak
async def test_a_session_that_asks_for_anything_else_or_would_read_it_starts_cold(
    service: Service, sandbox: Sandbox
) -> None:
    cold, spare = await with_spare(service, options(sandbox))
    pid = spare.pid
    (sandbox.root / "elsewhere").mkdir()
    others = [options(sandbox, **more) for more in DIFFERENT.values()]
    others.append(SessionOptions(cwd=str(sandbox.root / "elsewhere")))
    other_key = {**spare.deps.launcher.environment, "ANTHROPIC_API_KEY": "sk-other"}
    foreign = service._environments.of(Caller(LOCAL, ClientEnvironment(str(sandbox.root), other_key, "another client")))
    asked = [(other, LOCAL, spare.deps) for other in others]
    for other, who, deps in [*asked, (options(sandbox), "somebody", spare.deps), (options(sandbox), LOCAL, foreign)]:
        async with service._sessions.creating(other, who, deps, deps.enforcer.admission(who)) as made:
            assert made.id != spare.id
    assert spare.usable

    launcher, launch = cold.deps.launcher, launch_of(cold, cold.deps, ())
    keys = [launcher.key(launch)]
    assert keys == [spare.key]
    for change in CHANGES:
        change(sandbox)
        keys.append(launcher.key(launch))
    assert None not in keys
    assert len(set(keys)) == len(CHANGES) + 1

    session, outcome = await run(service, HELLO, options(sandbox, model="claude-sonnet-4-5"))
    assert (outcome.ok, session.id != spare.id) == (True, True)
    last = await spare_of(service)  # it is for the launch that was used last, and there is one only
    assert (last.options.model, spare.usable) == ("claude-sonnet-4-5", False)
    await gone(pid)


def make_repository(sandbox: Sandbox) -> None:
    require("git")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (sandbox.project / "a.txt").write_text("one")
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=sandbox.project, check=True)


@pytest.mark.soak
async def test_a_spare_in_a_repository_lasts_until_a_file_of_it_changes(service: Service, sandbox: Sandbox) -> None:
    make_repository(sandbox)
    _, spare = await with_spare(service, options(sandbox))
    session, _ = await run(service, HELLO, options(sandbox))
    assert session.id == spare.id
    spare = await spare_of(service)
    pid = spare.pid
    (sandbox.project / "a.txt").write_text("two")
    session, outcome = await run(service, HELLO, options(sandbox))
    assert (outcome.ok, session.id != spare.id) == (True, True)
    await gone(pid)


async def test_where_hooks_run_at_the_start_there_is_no_spare(service: Service, sandbox: Sandbox) -> None:
    log = sandbox.root / "starts"
    hooks = {"SessionStart": [{"hooks": [{"type": "command", "command": f"echo started >> {log}"}]}]}
    (sandbox.home / ".claude").mkdir(exist_ok=True)
    (sandbox.home / ".claude" / "settings.json").write_text(json.dumps({"hooks": hooks}))
    await run(service, HELLO, options(sandbox))
    filling = service._sessions.spares._filling
    assert filling is not None
    await asyncio.wait([filling])
    assert spares(service) == []
    assert log.read_text().splitlines() == ["started"]


@pytest.mark.soak
async def test_a_spare_that_gets_old_is_thrown_away(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(spare_processes=1, spare_max_age_ms=1)
    await run(service, HELLO, options(sandbox))
    filling = service._sessions.spares._filling
    await asyncio.wait([filling])
    await until_true(lambda: not spares(service))
    session, outcome = await run(service, HELLO, options(sandbox))
    assert outcome.ok
    assert transcripts(sandbox) >= {session.id}


@pytest.mark.soak
async def test_a_spare_makes_room_before_any_session_for_a_slot_and_for_memory(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(spare_processes=1, max_sessions=2)
    first, spare = await with_spare(service, options(sandbox))
    pid = spare.pid
    other, _ = await run(service, HELLO, options(sandbox, model="claude-sonnet-4-5"))
    assert (first.live, other.live) == (True, True)
    await gone(pid)
    await other.cancel()
    await first.cancel()
    await asyncio.gather(first.closed(), other.closed())
    last, spare = await with_spare(service, options(sandbox))
    pid = spare.pid
    slots = service._slots
    await slots.measure()
    slots.memory_limit = slots.memory_used - (last.memory_bytes or 0) // 2  # what an idle process uses varies
    await slots.measure()
    assert last.live
    await gone(pid)


@pytest.mark.soak
async def test_one_of_two_concurrent_sessions_gets_the_spare_process(service: Service, sandbox: Sandbox) -> None:
    _, spare = await with_spare(service, options(sandbox))
    both = await asyncio.gather(*(run(service, HELLO, options(sandbox)) for _ in range(2)))
    assert [outcome.result for _, outcome in both] == ["done", "done"]
    assert [session.id == spare.id for session, _ in both].count(True) == 1
    assert len({session.id for session, _ in both}) == 2
    pid = (await spare_of(service)).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    session, outcome = await run(service, HELLO, options(sandbox))
    assert (outcome.result, session.pid != pid) == ("done", True)


@pytest.mark.soak
async def test_remaining_daily_budget_is_part_of_the_launch(start_service: StartService, sandbox: Sandbox) -> None:
    policy = Policy(default=Profile(limits=Limits(daily_usd=10)))
    service = await start_service(spare_processes=1, policy=policy)
    await run(service, HELLO, options(sandbox))
    spare = await spare_of(service)
    session, outcome = await run(service, HELLO, options(sandbox))
    assert outcome.ok
    assert session.process_budget is not None
    assert session.process_budget < 10
    assert (session.id == spare.id) == (spare.process_budget == session.process_budget)
