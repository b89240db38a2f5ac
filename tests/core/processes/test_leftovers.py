"""What is left behind is found by its mark and by nothing else."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from claude_code_mcp.core.processes import leftovers
from claude_code_mcp.core.processes.environment import MARK
from claude_code_mcp.core.processes.leftovers import end_stale, is_stale, new_mark, started_at, sweep, sweep_stale
from tests.core.claude.conftest import PATIENCE, gone, mark_of_a_dead_server, runs
from tests.support.waiting import until

Leave = Callable[[str | None], int]


@pytest.fixture
def leave() -> Iterator[Leave]:
    """Leaves a process behind that carries a mark, in a session of its own."""
    left: list[subprocess.Popen[bytes]] = []

    def leave(mark: str | None) -> int:
        environment = {**os.environ, **({} if mark is None else {MARK: mark})}
        sleep = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
        process = subprocess.Popen(sleep, env=environment, start_new_session=True, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        left.append(process)
        return process.pid

    yield leave
    for process in left:
        process.kill()
        process.communicate()


async def test_a_sweep_ends_what_carries_its_mark_and_nothing_else(leave: Leave) -> None:
    mine, others = new_mark(), new_mark()
    first, second, spared, unmarked = leave(mine), leave(mine), leave(others), leave(None)
    assert await sweep(mine) == 2
    await gone(first, second)
    assert runs(spared)
    assert runs(unmarked)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_a_child_that_has_no_environment_to_show_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the middle of `exec`, only longer: until it has been looked at."""
    mark = new_mark()
    becoming = f"import os; os.read(0, 1); os.execve('/bin/sleep', ['sleep', '600'], {{{MARK!r}: {mark!r}}})"
    argv = [sys.executable, "-I", "-S", "-c", becoming]
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(*argv, env={}, stdin=reading, start_new_session=True)
    look = leftovers._unreadable_mark

    def continue_after_look(seen: psutil.Process) -> str | None:
        if seen.pid != process.pid:
            return None  # others without an environment would be waited for as long as the limits below say
        found = look(seen)
        os.write(writing, b"!")
        return found

    monkeypatch.setattr(leftovers, "_unreadable_mark", continue_after_look)
    for limit in ("_YOUNG", "_SWEEP_TIMEOUT"):  # in which a busy machine may not have come that far
        monkeypatch.setattr(leftovers, limit, PATIENCE)
    try:
        assert await sweep(mark) == 1
        assert await process.wait() == -signal.SIGKILL
    finally:
        os.close(reading)
        os.close(writing)


async def test_empty_sweep() -> None:
    assert await sweep(new_mark()) == 0


async def test_sweep_does_not_end_its_own_process() -> None:
    mark = new_mark()
    imports = "import asyncio; from claude_code_mcp.core.processes.leftovers import sweep"
    code = f"{imports}; print(asyncio.run(sweep({mark!r})))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env={**os.environ, MARK: mark}, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert (process.returncode, output.strip()) == (0, b"0")


async def test_children_of_a_dead_owner_are_ended_by_the_next_server(leave: Leave) -> None:
    stale = leave(mark_of_a_dead_server())
    await sweep_stale()
    await gone(stale)


async def test_children_of_a_living_owner_are_spared(leave: Leave) -> None:
    living = leave(new_mark())
    await sweep_stale()
    assert runs(living)


async def test_one_process_is_ended_only_if_its_owner_is_dead(leave: Leave) -> None:
    stale, living, unmarked = leave(mark_of_a_dead_server()), leave(new_mark()), leave(None)
    for pid in (stale, living, unmarked):
        end_stale(pid)
    await gone(stale)
    assert runs(living)
    assert runs(unmarked)


async def test_owner_with_a_reused_process_id_is_dead(leave: Leave) -> None:
    pid, born, space, unique = new_mark().split(".")
    reused = leave(".".join([pid, str(int(born) - 1000), space, unique]))
    await sweep_stale()
    await gone(reused)


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="a process cannot be waited for without reaping it")
def test_zombie_owner_is_dead(leave: Leave) -> None:
    """As a killed server is until the init process of a container gets to it, if it ever does."""
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _, _, space, unique = new_mark().split(".")
    left = leave(f"{owner.pid}.{started_at(owner.pid)}.{space}.{unique}")
    assert not is_stale(left)
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    assert is_stale(left) or not runs(left)  # another server on this machine may have found it before
    owner.communicate()


async def test_owners_in_another_space_of_process_ids_are_left_to_themselves(leave: Leave) -> None:
    pid, born, space, unique = mark_of_a_dead_server().split(".")
    elsewhere = leave(".".join([pid, born, str(int(space) + 1), unique]))
    await sweep_stale()
    assert runs(elsewhere)


@pytest.mark.parametrize("strange", ["", "x", "1.2", "a.b.c.d", "....", "-1.0.0.x"])
async def test_a_mark_that_is_not_ours_to_read_is_left_alone(leave: Leave, strange: str) -> None:
    stranger = leave(strange)
    await sweep_stale()
    assert runs(stranger)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_whose_first_thread_has_ended_is_found_by_the_others() -> None:
    """As one that is being killed on a busy machine, where its threads end one after the other."""
    ends_first = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)  # exit, of this thread alone
"""
    environment = {**os.environ, MARK: mark_of_a_dead_server()}
    command = [sys.executable, "-c", ends_first]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
            # Another server on this machine may have found it before, and ended it.
            assert is_stale(process.pid) or process.wait(PATIENCE) == -signal.SIGKILL
            end_stale(process.pid)
            assert process.wait(PATIENCE) == -signal.SIGKILL
        finally:
            process.kill()
