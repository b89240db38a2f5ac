"""What holds when the supervisor cannot be started, is stopped or dies, and that no start leaves a descriptor open."""

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from claude_code_mcp.core.processes import child, supervisor_client
from claude_code_mcp.core.processes.child import ChildProcess, Exit
from claude_code_mcp.core.processes.environment import MARK
from claude_code_mcp.core.processes.leftovers import new_mark
from tests.core.claude.conftest import PATIENCE, gone, number_in, runs
from tests.support.waiting import until_true

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")

LEAVE = "setsid sleep 600 & echo $! > {file}"


class Listener:
    def __init__(self) -> None:
        self.output = b""

    def output_received(self, data: bytes) -> None:
        self.output += data

    def output_ended(self) -> None: ...

    def input_closed(self) -> None: ...

    def child_ended(self, exit_: Exit) -> None: ...


async def run(command: str, mark: str = "", scratch: Path | None = None) -> tuple[ChildProcess, Listener]:
    listener = Listener()
    child = ChildProcess(listener, "the shell", mark=mark, scratch=scratch)
    await child.start(["/bin/sh", "-c", command], cwd=None, environment={**os.environ, MARK: mark})
    return child, listener


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[supervisor_client._Supervisor]:
    """A supervisor of this test alone, which it may break."""
    own = supervisor_client._Supervisor()
    monkeypatch.setattr(supervisor_client, "_supervisor", own)
    monkeypatch.setattr(child, "_fallback_logged", False)
    yield own
    own.close()


def break_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-python"))


def break_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(supervisor_client, "_SCRIPT", str(broken))


@pytest.mark.usefixtures("supervisor")
@pytest.mark.parametrize("fault", [break_interpreter, break_script])
async def test_without_a_supervisor_children_run_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: object
) -> None:
    assert callable(fault)
    fault(monkeypatch, tmp_path)
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            child, listener = await run(f"echo {number}; read line")
            assert (await child.stop(PATIENCE)) == Exit(1, "", "the shell")
            assert listener.output == f"{number}\n".encode()
    assert [record.levelname for record in caplog.records if "supervisor" in record.message] == ["WARNING"]


@pytest.mark.usefixtures("supervisor")
async def test_without_a_supervisor_what_is_left_behind_is_found_by_its_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_script(monkeypatch, tmp_path)
    child, _ = await run(LEAVE.format(file=tmp_path / "left") + "; read line", new_mark())
    left = await number_in(tmp_path / "left")
    assert runs(left)
    await child.stop(0.3)
    await gone(left)


@pytest.mark.usefixtures("supervisor")
async def test_a_program_that_does_not_exist_is_no_fault_of_the_supervisor(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FileNotFoundError):
        await ChildProcess(Listener(), "it").start(["/nowhere/program"], cwd=None, environment={})
    assert caplog.records == []


async def test_a_killed_supervisor_is_reaped_and_replaced(supervisor: supervisor_client._Supervisor) -> None:
    supervisor.prepare()
    first = supervisor._pid
    os.kill(first, signal.SIGKILL)
    child, _ = await run("exit 0")
    await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
    supervisor.close()
    await asyncio.to_thread(supervisor.prepare)
    assert supervisor._pid != first
    assert not psutil.pid_exists(first)


async def test_a_supervisor_that_does_not_answer_fails_the_start_in_time(
    supervisor: supervisor_client._Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_client, "_START_TIMEOUT", 0.3)
    supervisor.prepare()
    os.kill(supervisor._pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):  # ours, since nothing else has one here
            await run("exit 0")
    finally:
        os.kill(supervisor._pid, signal.SIGCONT)


async def test_supervisor_and_reaper_killed_together_leave_the_rest_to_the_sweep(
    supervisor: supervisor_client._Supervisor, tmp_path: Path
) -> None:
    child, _ = await run(LEAVE.format(file=tmp_path / "left") + "; read line", new_mark())
    left, reaper = await number_in(tmp_path / "left"), psutil.Process(child.pid).ppid()
    os.kill(supervisor._pid, signal.SIGSTOP)  # so that it cannot end anything before it is killed itself
    os.kill(reaper, signal.SIGKILL)
    os.kill(supervisor._pid, signal.SIGKILL)
    exit_ = await asyncio.wait_for(child.exited, PATIENCE)
    assert exit_.code == -signal.SIGKILL
    await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
    await gone(left)


async def test_a_killed_reaper_leaves_nothing_even_without_its_mark(
    supervisor: supervisor_client._Supervisor, tmp_path: Path
) -> None:
    """The children of a child that dies during the search come to the supervisor only afterward."""
    leave = "\n".join(
        f"env -i setsid sh -c 'echo $$ > {tmp_path / str(number)}; exec sleep 600' &" for number in range(8)
    )
    for _ in range(5):
        child, _ = await run(f"{leave}\nread line")
        left = [await number_in(tmp_path / str(number)) for number in range(8)]
        os.kill(psutil.Process(child.pid).ppid(), signal.SIGKILL)
        await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
        await gone(child.pid, *left)
        for number in range(8):
            (tmp_path / str(number)).unlink()


# -- descriptors ----------------------------------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def again_open(number: int) -> None:
    """Transports close their files in a later turn of the loop."""
    await until_true(lambda: open_descriptors() == number, "there are more or fewer than before")


async def warmed_up() -> int:
    """How many descriptors are open when a first child has come and gone."""
    await child.prepare()
    before = open_descriptors()
    await (await run("exit 0"))[0].stop(PATIENCE)
    await again_open(before)
    return before


async def test_children_that_have_ended_leave_no_descriptor_open() -> None:
    before = await warmed_up()
    for command in ("exit 0", "cat", "kill -9 $$"):
        child, _ = await run(command)
        await child.stop(PATIENCE)
    await again_open(before)


async def test_a_start_that_fails_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = await warmed_up()
    for _ in range(3):
        with pytest.raises(OSError, match="No such file"):
            await ChildProcess(Listener(), "it").start(["/nowhere"], cwd=str(tmp_path), environment={})
    await again_open(before)


@pytest.mark.parametrize("turns", range(1, 13))
async def test_a_cancelled_start_leaves_no_descriptor_and_no_file(tmp_path: Path, turns: int) -> None:
    before = await warmed_up()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    starting = asyncio.create_task(run("sleep 600", scratch=scratch))
    for turn in range(turns):
        await asyncio.sleep(0 if turn < 4 else 0.0005)
    if starting.done():
        await (await starting)[0].stop(0.2)
    else:
        starting.cancel()
        await asyncio.wait([starting])
    await again_open(before)
    assert not scratch.exists()


@pytest.mark.parametrize("spare", range(7))
async def test_a_process_with_hardly_a_descriptor_left_fails_cleanly(spare: int) -> None:
    before = await warmed_up()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))  # counts the directory itself
    fillers = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest + 1 - before)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            await run("exit 0")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    await again_open(before)
