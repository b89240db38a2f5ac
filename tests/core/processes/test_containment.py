"""Everything that a child starts ends with it: on a clean stop, a crash, and when the server or the child is killed."""

import asyncio
import errno
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from claude_code_mcp.core.processes import supervisor_client
from claude_code_mcp.core.processes.child import ChildProcess, Exit, containment, prepare
from claude_code_mcp.core.processes.limits import ChildOptions
from tests.core.claude.conftest import PATIENCE, gone, number_in, runs
from tests.support.clock import settled
from tests.support.waiting import until_true

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")

LEAVE = {
    "in a session of its own": "setsid sleep 600 & echo $! > {file}",
    "immune to hang-ups": "nohup sleep 600 >/dev/null 2>&1 & echo $! > {file}",
    "with an empty environment": "(env -i setsid sh -c 'echo $$ > {file}; exec sleep 600' &)",
    "behind two parents that ended": "((setsid sh -c 'echo $$ > {file}; exec sleep 600' &) &)",
    "stopped": "setsid sh -c 'echo $$ > {file}; kill -STOP $$' &",
    "deaf to SIGTERM": "setsid sh -c \"trap '' TERM; echo \\$\\$ > {file}; while :; do sleep 1; done\" &",
    "under another title": 'setsid python3 -c \'import os, time; open("{file}", "w").write(str(os.getpid())); '
    'import ctypes; ctypes.CDLL(None).prctl(15, b"kworker"); time.sleep(600)\' &',
}
"""Ways in which a child leaves a process behind, each of which writes its number to a file."""


class Listener:
    def __init__(self) -> None:
        self.output = b""
        self.exit: Exit | None = None

    def output_received(self, data: bytes) -> None:
        self.output += data

    def output_ended(self) -> None: ...

    def input_closed(self) -> None: ...

    def child_ended(self, exit_: Exit) -> None:
        self.exit = exit_


Start = Callable[[str], Awaitable[tuple[ChildProcess, Listener]]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    children: list[ChildProcess] = []

    async def start(command: str) -> tuple[ChildProcess, Listener]:
        listener = Listener()
        child = ChildProcess(listener, "the shell")
        await child.start(["/bin/sh", "-c", command], cwd=str(tmp_path), environment=dict(os.environ))
        children.append(child)
        return child, listener

    yield start
    await asyncio.gather(*(child.stop(0.2) for child in children))


async def test_output_arrives_whole_before_the_end_and_the_code_is_the_childs(start: Start) -> None:
    child, listener = await start("echo out; echo err >&2; exit 3")
    exit_ = await asyncio.wait_for(child.exited, PATIENCE)
    assert (exit_.code, exit_.stderr, listener.output) == (3, "err\n", b"out\n")
    assert listener.exit is exit_
    assert re.fullmatch(r"the shell\b.*\b3: err", exit_.reason)


async def test_a_child_and_what_it_starts_run_at_a_lower_priority(start: Start) -> None:
    child, listener = await start("nice; sh -c nice")
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    await asyncio.wait_for(child.exited, PATIENCE)
    assert [int(each) for each in listener.output.split()] == [min(ours + supervisor_client.NICENESS, 19)] * 2


@pytest.mark.skipif(not os.path.exists("/proc/self/autogroup"), reason="this kernel has no automatic task groups")
async def test_the_priority_counts_between_sessions_too(start: Start) -> None:
    child, _listener = await start("sleep 600")
    group = Path(f"/proc/{child.pid}/autogroup")
    await until_true(
        lambda: group.read_text().endswith(f"nice {supervisor_client.NICENESS}\n")
    )  # it allows ten a second


async def test_input_reaches_the_child_and_its_end_too(start: Start) -> None:
    child, listener = await start("cat")
    child.write(b"x" * 300_000)
    assert (await child.stop(PATIENCE)) == Exit(0, "", "the shell")
    assert len(listener.output) == 300_000


def leave_everything(directory: Path) -> str:
    """Shell commands that leave one process behind in each way."""
    return "\n".join(command.format(file=directory / f"left{number}") for number, command in enumerate(LEAVE.values()))


async def left_in(directory: Path) -> list[int]:
    return [await number_in(directory / f"left{number}") for number in range(len(LEAVE))]


def running(pids: list[int]) -> list[str]:
    return [way for way, pid in zip(LEAVE, pids, strict=True) if runs(pid)]


@pytest.mark.parametrize("end", ["exits", "is stopped", "is killed"])
async def test_leftover_processes_end_with_their_child(start: Start, tmp_path: Path, end: str) -> None:
    child, _ = await start(f"{leave_everything(tmp_path)}\nread line")
    left = await left_in(tmp_path)
    assert running(left) == list(LEAVE)
    if end == "exits":
        child.write(b"\n")
    elif end == "is stopped":
        await child.stop(0.3)
    else:
        os.kill(child.pid, signal.SIGKILL)
    await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
    assert running(left) == []


@pytest.mark.parametrize(
    "also",
    ["nobody", *(pytest.param(it, marks=pytest.mark.soak) for it in ("the child", "a stopped child")), "the reaper"],
)
async def test_a_killed_server_leaves_nothing(tmp_path: Path, also: str) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.core.processes.a_server",
        f"{leave_everything(tmp_path)}\necho $$ > {tmp_path / 'child'}\ntrap '' TERM HUP\nwhile :; do sleep 1; done",
        cwd=Path(__file__).parents[3],
    )
    left, child = await left_in(tmp_path), await number_in(tmp_path / "child")
    reaper = psutil.Process(child).ppid()
    if also == "a stopped child":
        os.kill(child, signal.SIGSTOP)
    if also == "the reaper":
        os.kill(reaper, signal.SIGKILL)
    server.kill()
    if also == "the child":
        os.kill(child, signal.SIGKILL)
    await server.wait()
    await gone(child, reaper, *left)


async def test_a_child_that_forks_without_end_is_ended_too(start: Start, tmp_path: Path) -> None:
    child, _ = await start("while :; do setsid sh -c 'sleep 0.01; exec sleep 600' & sleep 0.005; done")
    reaper = psutil.Process(psutil.Process(child.pid).ppid())
    await until_true(lambda: len(reaper.children(recursive=True)) > 5)
    mine = {process.pid for process in reaper.children(recursive=True)}
    await child.stop(0.2)
    await gone(*mine)


async def test_the_children_of_another_child_are_left_alone(start: Start, tmp_path: Path) -> None:
    first, _ = await start(LEAVE["in a session of its own"].format(file=tmp_path / "one") + "\nread line")
    await start(LEAVE["in a session of its own"].format(file=tmp_path / "two") + "\nread line")
    other = await number_in(tmp_path / "two")
    await first.stop(0.3)
    await gone(await number_in(tmp_path / "one"))
    assert runs(other)


async def test_a_supervisor_that_was_killed_is_replaced(start: Start) -> None:
    child, _ = await start("read line")
    supervisor = psutil.Process(psutil.Process(child.pid).ppid()).ppid()
    os.kill(supervisor, signal.SIGKILL)
    await gone(supervisor)
    second, listener = await start("echo here")
    await asyncio.wait_for(second.exited, PATIENCE)
    assert listener.output == b"here\n"
    assert runs(child.pid)


async def test_a_program_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    for argv, cwd, code in (
        (["/nowhere/program"], tmp_path, errno.ENOENT),
        ([str(tmp_path)], tmp_path, errno.EACCES),
        (["/bin/true"], tmp_path / "nowhere", errno.ENOENT),
    ):
        child = ChildProcess(Listener(), "it")
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the code is what is asserted
            await child.start(argv, cwd=str(cwd), environment={})
        assert caught.value.errno == code
    with pytest.raises(ValueError, match="null"):
        await ChildProcess(Listener(), "it").start(["/bin/true", "a\0b"], cwd=str(tmp_path), environment={})


async def test_the_supervisor_and_the_reaper_know_no_variable_of_ours(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, _ = await start("read line")
    reaper = psutil.Process(psutil.Process(child.pid).ppid())
    assert "PATH" not in reaper.environ()
    assert reaper.environ(), "one without any looks like a process in mid-exec, for which a sweep waits"
    assert "PATH" not in psutil.Process(reaper.ppid()).environ()


async def test_a_child_has_no_descriptor_next_to_its_three(start: Start) -> None:
    child, listener = await start("ls /proc/self/fd | wc -l")
    await asyncio.wait_for(child.exited, PATIENCE)
    assert int(listener.output) == 4  # and the one with which `ls` reads the directory


async def test_signals_are_as_a_program_expects_them(start: Start) -> None:
    child, listener = await start("grep -E 'Sig(Ign|Blk)' /proc/self/status")
    await asyncio.wait_for(child.exited, PATIENCE)
    masks = {int(line.split()[1], 16) for line in listener.output.decode().splitlines()}
    assert {mask & 0x7FFFFFFF for mask in masks} == {0}  # the C library keeps two others for itself


async def test_child_that_does_not_read_blocks_only_its_writer(start: Start) -> None:
    child, _ = await start("sleep 600")
    child.write(b"x" * (1 << 20))
    draining = asyncio.ensure_future(child.drained())
    await settled()
    assert not draining.done()
    assert child.unsent > 0
    await child.stop(0.2)
    await asyncio.wait_for(draining, PATIENCE)


async def test_preparing_twice_starts_one_supervisor() -> None:
    assert containment() == "supervisor"
    await prepare()
    first = supervisor_client._supervisor._pid  # the number is nobody else's business
    await prepare()
    assert supervisor_client._supervisor._pid == first


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
async def test_a_cancelled_start_leaves_nothing(tmp_path: Path, steps: int) -> None:
    """Cancelled after some turns of the event loop, so that every await of the start is hit."""
    await prepare()
    child = ChildProcess(Listener(), "it")
    environment = {**os.environ, "OF_THIS_TEST": str(tmp_path)}
    starting = asyncio.create_task(child.start(["/bin/sleep", "600"], cwd=None, environment=environment))
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    await until_true(lambda: not any(_marked(process, tmp_path) for process in psutil.process_iter()))


def _marked(process: psutil.Process, path: Path) -> bool:
    try:
        return process.environ().get("OF_THIS_TEST") == str(path) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


async def test_the_log_says_of_which_child_something_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = ChildProcess(Listener(), "the shell", owner="session s-1")
    options = ChildOptions(removal=("/nowhere/program",))
    await child.start(["/bin/true"], cwd=str(tmp_path), environment={}, options=options)
    await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
    assert "the shell of session s-1 " in caplog.text
