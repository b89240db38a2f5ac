"""Limits on a child: which directives they become, what control groups there are, and that the kernel or the reaper
enforces them. What needs root or a control group is left out where there is none."""

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from claude_code_mcp.core.processes.child import ChildProcess, Exit
from claude_code_mcp.core.processes.control_groups import PREFIX, GroupParent, find_parent, own_group
from claude_code_mcp.core.processes.leftovers import new_mark
from claude_code_mcp.core.processes.limits import ChildOptions, EnforcedLimits, ResourceLimits, process_limit_command
from tests.core.claude.conftest import PATIENCE

from .test_containment import Listener

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")

MOUNTS = """\
30 20 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro
31 30 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 30 0:29 {root} /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""


@pytest.mark.parametrize(
    ("root", "group", "found"),
    [
        ("/", "/user/1", "/sys/fs/cgroup/unified/user/1"),
        ("/", "/", "/sys/fs/cgroup/unified"),
        ("/docker/abc", "/docker/abc/x", "/sys/fs/cgroup/unified/x"),
        ("/docker/abc", "/docker/abcd", None),
        ("/docker/abc", "/docker/other", None),
    ],
)
def test_the_group_of_a_process_is_found_where_it_is_mounted(root: str, group: str, found: str | None) -> None:
    assert own_group(MOUNTS.format(root=root), f"4:memory:/elsewhere\n0::{group}\n") == found


def test_groups_of_version_1_are_not_used() -> None:
    assert own_group(MOUNTS.format(root="/"), "4:memory:/user/1\n") is None


def test_control_group_limits_are_not_duplicated() -> None:
    limits = ResourceLimits(memory=2 << 30, processes=64, cpus=1.5, cpu_seconds=100, file_size=1 << 20)
    alone = EnforcedLimits(limits)
    assert alone.directives("m") == [
        *("oom 500", "rlimit RLIMIT_CORE 0", "rlimit RLIMIT_CPU 100", "rlimit RLIMIT_FSIZE 1048576"),
        *("rlimit RLIMIT_DATA 2147483648", "memory 2147483648"),
    ]
    assert alone.unenforced(sandboxed=True, root=False) == ["cpus"]
    assert alone.unenforced(sandboxed=False, root=False) == alone.unenforced(sandboxed=True, root=True)
    assert alone.unenforced(sandboxed=True, root=True) == ["processes", "cpus"]
    grouped = EnforcedLimits(limits, GroupParent("/g", frozenset({"memory", "pids", "cpu"})))
    assert grouped.directives("m")[4:] == [
        *(f"group /g/{PREFIX}m", f"set 2147483648 /g/{PREFIX}m/memory.max", f"try 0 /g/{PREFIX}m/memory.swap.max"),
        *(f"set 64 /g/{PREFIX}m/pids.max", f"set 150000 100000 /g/{PREFIX}m/cpu.max"),
    ]
    assert grouped.unenforced(sandboxed=False, root=True) == []
    assert EnforcedLimits(parent=grouped.parent).directives("m") == []


def test_the_least_that_claude_code_reserves_is_left_to_each_process() -> None:
    assert "rlimit RLIMIT_DATA 1073741824" in EnforcedLimits(ResourceLimits(memory=300 << 20)).directives("m")


# -- what is enforced ----------------------------------------------------------------------------------------------

Start = Callable[..., "asyncio.Future[tuple[ChildProcess, Listener]]"]


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., object]]:
    children: list[ChildProcess] = []

    async def run(code: str, limits: EnforcedLimits) -> tuple[ChildProcess, Listener]:
        listener = Listener()
        child = ChildProcess(listener, "the program")
        children.append(child)
        argv = [sys.executable, "-ISu", "-c", code]
        environment = {"PATH": os.environ["PATH"], "CLAUDE_CODE_MCP_MARK": new_mark()}
        await child.start(argv, cwd="/", environment=environment, options=ChildOptions(limits=limits))
        return child, listener

    yield run
    await asyncio.gather(*(child.stop(0.5) for child in children if child.started))


async def ended(start: Start, code: str, limits: EnforcedLimits) -> tuple[Exit, str]:
    child, listener = await start(code, limits)
    exit_ = await asyncio.wait_for(child.exited, PATIENCE)
    await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
    return exit_, listener.output.decode()


async def test_each_process_has_its_limits_and_is_the_first_to_go(start: Start) -> None:
    code = (
        "import resource as r; print(*(r.getrlimit(l)[1] for l in (r.RLIMIT_CORE, r.RLIMIT_CPU, r.RLIMIT_FSIZE)), "
        "r.getrlimit(r.RLIMIT_DATA)[1], open('/proc/self/oom_score_adj').read())"
    )
    limits = EnforcedLimits(ResourceLimits(memory=2 << 30, cpu_seconds=120, file_size=1 << 20))
    _, said = await ended(start, code, limits)
    assert said.split() == ["0", "120", str(1 << 20), str(2 << 30), "500"]
    _, unlimited = await ended(start, code, EnforcedLimits())
    mine = [resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_CORE, resource.RLIMIT_CPU)]
    assert unlimited.split()[:2] == [str(value) for value in mine]


async def test_a_file_grows_no_larger_than_it_may(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "large"
    code = (
        f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); open({str(file)!r}, 'wb').write(bytes(2 << 20))"
    )
    exit_, _ = await ended(start, code, EnforcedLimits(ResourceLimits(file_size=1 << 20)))
    assert "File too large" in exit_.stderr
    assert file.stat().st_size == 1 << 20


MANY = """
import os, signal, sys
pids = []
for _ in range({count}):
    pid = os.fork()
    if not pid:
        held = bytearray(os.urandom(1 << 20) * {megabytes})
        os.write(1, b".")
        signal.pause()
    pids.append(pid)
pid, status = os.wait()
pids.remove(pid)
# One write: the others say their dots in between when it is several.
os.write(1, b"ended %d\\n" % os.waitstatus_to_exitcode(status))
for pid in pids:
    os.kill(pid, signal.SIGKILL)
"""


async def test_without_a_group_the_largest_process_ends_when_all_together_are_too_large(start: Start) -> None:
    """None of them is larger than it may be for itself."""
    code = MANY.format(count=6, megabytes=50)
    exit_, said = await ended(start, code, EnforcedLimits(ResourceLimits(memory=200 << 20)))
    assert "ended -9" in said
    assert "used more memory than" in exit_.stderr
    assert exit_.code == 0


# -- control groups -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parent() -> GroupParent:
    found = find_parent()
    if found is None or not {"pids", "memory"} <= found.controllers:
        pytest.skip("there are no control groups for us")
    return found


FORKS = """
import os, signal
made = []
try:
    while len(made) < 500:
        pid = os.fork()
        if not pid:
            signal.pause()
        made.append(pid)
except OSError as error:
    print(len(made), error.strerror, flush=True)
for pid in made:
    os.kill(pid, signal.SIGKILL)
"""


async def test_a_group_has_no_more_processes_than_it_may_and_is_removed(start: Start, parent: GroupParent) -> None:
    _, said = await ended(start, FORKS, EnforcedLimits(ResourceLimits(processes=40), parent))
    assert said == "39 Resource temporarily unavailable\n"
    mine = f"{PREFIX}{os.getpid()}."
    assert not [name for name in os.listdir(parent.path) if name.startswith(mine)]


async def test_a_group_uses_no_more_memory_than_it_may(start: Start, parent: GroupParent) -> None:
    code = MANY.format(count=6, megabytes=50)
    exit_, said = await ended(start, code, EnforcedLimits(ResourceLimits(memory=200 << 20), parent))
    assert "ended -9" in said
    assert "used more memory than" in exit_.stderr


async def test_a_group_that_cannot_be_limited_starts_nothing(start: Start, tmp_path: Path) -> None:
    parent = GroupParent(str(tmp_path), frozenset({"pids"}))  # no directory of control groups: it has no such file
    with pytest.raises(OSError):  # noqa: PT011 - which one, the kernel says
        await start("print('never')", EnforcedLimits(ResourceLimits(processes=40), parent))
    assert not os.listdir(tmp_path)


@pytest.fixture
def unified() -> Iterator[Path]:
    """A group of version 2 that is delegated to the test."""
    mount = next((path for path in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")) if _is_unified(path)), None)
    if mount is None or os.geteuid() != 0:
        pytest.skip("there is no second version of control groups for us")
    before = {*(mount / "cgroup.subtree_control").read_text().split()}
    group = mount / f"{PREFIX}test-{os.getpid()}"
    group.mkdir()
    yield group
    for below in (*group.glob("*/"), group):
        with contextlib.suppress(OSError):
            below.rmdir()
    for name in {*(mount / "cgroup.subtree_control").read_text().split()} - before:
        (mount / "cgroup.subtree_control").write_text(f"-{name}")


def _is_unified(path: Path) -> bool:
    return (path / "cgroup.controllers").exists() and bool((path / "cgroup.controllers").read_text().split())


def test_a_group_of_version_2_is_prepared_unless_others_are_in_it(unified: Path) -> None:
    names = (unified.parent / "cgroup.controllers").read_text().split()
    (unified.parent / "cgroup.subtree_control").write_text(f"+{names[0]}")
    code = (
        "import os, sys; from pathlib import Path; "
        "from claude_code_mcp.core.processes.control_groups import delegated; "
        "group, name = sys.argv[1:]; Path(group, 'cgroup.procs').write_text(str(os.getpid())); "
        "print(sorted(delegated(group, [name])), Path(group, 'server', 'cgroup.procs').read_text().split())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, unified, names[0]], capture_output=True, text=True, check=True, timeout=60
    )
    prepared, moved = done.stdout.strip().split("] [")
    assert prepared == f"['{names[0]}'"
    assert len(moved.split()) == 1
    (unified / "cgroup.subtree_control").write_text(f"-{names[0]}")
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (unified / "cgroup.procs").write_text(str(stranger.pid))
        done = subprocess.run(
            [sys.executable, "-c", code, unified, names[0]], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout == "[] []\n"
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() == 0, reason="the kernel counts no processes of root")
def test_processes_are_counted_for_each_user_namespace() -> None:
    argv = process_limit_command(40, [sys.executable, "-ISc", FORKS])
    done = subprocess.run(["unshare", "-U", *argv], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(done.stderr)
    made, _, reason = done.stdout.partition(" ")
    assert int(made) < 40
    assert "unavailable" in reason
