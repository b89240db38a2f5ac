"""What a child in a sandbox sees and can do, seen with a shell in its place, and that it ends like any other child."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from claude_code_mcp.core.isolation import IsolatedCommand
from claude_code_mcp.core.processes.child import ChildProcess, Exit
from claude_code_mcp.core.processes.limits import ChildOptions
from claude_code_mcp.plugins.sandbox.bubblewrap import Mount, SandboxView, isolate, unavailable
from tests.core.claude.conftest import PATIENCE, gone
from tests.core.processes.test_containment import Listener
from tests.support.bubblewrap import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PYTHON = os.path.realpath(sys.executable)


class Ready(Listener):
    """Knows when the child has said that it is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()

    def output_received(self, data: bytes) -> None:
        super().output_received(data)
        if b"ready" in self.output:
            self.ready.set()


class Place:
    """A directory that is given to sandboxes, and what was seen in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.given = root / "given"
        self.given.mkdir()
        self.children: list[ChildProcess] = []

    def command(self, script: str, *mounts: Mount, **view: object) -> IsolatedCommand:
        scratch = self.root / f"scratch{len(self.children)}"
        scratch.mkdir()
        environment = {"PATH": os.environ["PATH"], "MINE": "1"}
        given = SandboxView(
            (Mount.at(str(self.given), writable=True), *mounts),
            **{"cwd": str(self.given), "environment": environment, **view},  # type: ignore[arg-type]
        )
        return isolate(given, ["/bin/sh", "-c", script], scratch, os.environ)

    async def run(self, script: str, *mounts: Mount, **view: object) -> tuple[Exit, str]:
        child, listener = await self.start(script, *mounts, **view)
        exit_ = await asyncio.wait_for(child.exited, PATIENCE)
        await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
        return exit_, listener.output.decode()

    async def start(self, script: str, *mounts: Mount, **view: object) -> tuple[ChildProcess, Ready]:
        listener = Ready()
        child = ChildProcess(listener, "the shell")
        self.children.append(child)
        command = self.command(script, *mounts, **view)
        options = ChildOptions(command.descriptors)
        await child.start(command.argv, cwd="/", environment=command.environment, options=options)
        command.close()
        return child, listener


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await asyncio.gather(*(child.stop(0.5) for child in place.children))


async def test_command_runs_in_its_directory_and_reports_code_and_output(place: Place) -> None:
    exit_, said = await place.run("pwd; echo made > file; echo $MINE; echo err >&2; exit 3")
    assert (exit_.code, exit_.stderr, said) == (3, "err\n", f"{place.given}\n1\n")
    assert (place.given / "file").read_text() == "made\n"


async def test_it_sees_no_file_that_it_was_not_given_and_writes_to_none(place: Place) -> None:
    beside = place.root / "beside"
    beside.write_text("secret")
    tools = place.root / "tools"
    tools.mkdir()
    (tools / "tool").write_text("a tool")
    script = (
        f"cat {beside}; ls {place.root} /root /home /etc/shadow /sys; cat {tools}/tool; echo x > {tools}/tool; "
        f"echo x > /usr/x; touch {place.root}/x /x /dev/x /run/x {tools}/x; mv {tools} {tools}2; echo x > /etc/passwd; "
        "echo $?"
    )
    _, said = await place.run(script, Mount.at(str(tools)))
    listed = said.splitlines()
    assert "secret" not in said
    assert {"given", "tools"} <= set(listed)
    assert not {"beside", "scratch1"} & set(listed)
    assert "a tool" in said
    assert listed[-1] != "0"
    assert (tools / "tool").read_text() == "a tool"
    assert sorted(path.name for path in place.root.iterdir()) == ["beside", "given", "scratch1", "tools"]


async def test_what_is_put_together_in_memory_stays_so_whatever_is_renamed_outside(place: Place) -> None:
    """The configuration of a session: read-only files beside writable ones, while their sources are replaced."""
    settings, kept = place.root / "settings", place.root / "kept"
    settings.write_text("of the operator")
    kept.mkdir()
    made = str(place.given / "made")
    script = (
        f"echo ready; read line; cat {made}/settings; echo mine > {made}/settings; rm -f {made}/settings; "
        f"mv {made}/settings {made}/aside; echo mine > {made}/new; echo mine > {made}/kept/file; cat {made}/settings"
    )
    mounts = (Mount(made, None), Mount(f"{made}/settings", str(settings)), Mount(f"{made}/kept", str(kept), True))
    child, listener = await place.start(script, *mounts)
    await asyncio.wait_for(listener.ready.wait(), PATIENCE)
    (place.root / "newer").write_text("of the operator, newer")
    (place.root / "newer").replace(settings)
    child.write(b"go\n")
    await asyncio.wait_for(child.exited, PATIENCE)
    assert listener.output.decode() == "ready\n" + "of the operator" * 2
    assert settings.read_text() == "of the operator, newer"
    assert (kept / "file").read_text() == "mine\n"
    assert not list((place.given / "made").iterdir())


async def test_a_directory_that_is_given_by_descriptor_is_that_one_whatever_takes_its_place(place: Place) -> None:
    checked, other = place.root / "checked", place.root / "other"
    for directory in (checked, other):
        directory.mkdir()
        (directory / directory.name).touch()
    descriptor = os.open(checked, os.O_PATH)
    checked.rename(place.root / "moved")
    checked.symlink_to(other)
    _, said = await place.run(f"ls {checked}", Mount(str(checked), descriptor))
    assert said == "checked\n"


async def test_no_descriptor_leads_out_of_it(place: Place) -> None:
    """One of a directory would lead to everything that lies around that directory outside."""
    descriptor = os.open(place.root, os.O_PATH)
    _, said = await place.run("readlink /proc/1/fd/* /proc/2/fd/*", Mount(str(place.root), descriptor))
    kinds = {line.partition(":")[0] for line in said.splitlines()}
    assert "pipe" in kinds
    assert kinds <= {"pipe", "socket", "anon_inode"}


async def test_what_its_caller_sets_does_not_reach_the_program_that_makes_the_sandbox(place: Place) -> None:
    library = place.given / "not-a-library.so"
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library)}
    exit_, said = await place.run("echo $LD_PRELOAD", environment=environment)
    assert said == f"{library}\n"
    assert exit_.stderr.count("LD_PRELOAD") == 1  # the loader of the shell inside; those of two programs came before


async def test_it_sees_no_process_but_its_own_and_cannot_signal_others(place: Place) -> None:
    script = f"ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()} || echo unknown; cat /proc/*/environ | tr '\\0' '\\n'"
    _, said = await place.run(script)
    assert int(said.splitlines()[0]) < 10
    assert "unknown" in said
    assert "PYTEST" not in said


async def test_it_has_no_capability_and_cannot_write_to_the_kernels_settings(place: Place) -> None:
    settings = "/proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sysrq-trigger"
    script = f"grep CapEff /proc/self/status; for file in {settings}; do test -w $file && echo writable; done"
    for nested in (False, True):
        _, said = await place.run(script, nested=nested)
        assert said.split() == ["CapEff:", "0000000000000000"]


async def test_it_cannot_write_into_the_memory_of_its_own_processes(place: Place) -> None:
    """Otherwise any command could put words into the mouth of the program that starts it."""
    script = "cat & (exec 7<>/proc/$!/mem) && echo opened; (exec 7>/proc/self/mem) && echo opened; echo done"
    assert (await place.run(script))[1] == "done\n"


async def test_its_temporary_directory_is_its_own_and_private_ones_are_empty_each_time(place: Place) -> None:
    (place.given / "private").mkdir()
    script = "touch /tmp/mine /var/tmp/too private/once; ls /tmp private; touch /tmp/more private/more"
    for _ in range(2):
        _, said = await place.run(script, Mount(str(place.given / "private"), None))
        assert {"mine", "too", "once"} <= set(said.split())
        assert "more" not in said
    assert not list((place.given / "private").iterdir())


async def test_without_network_nothing_answers(place: Place) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connect = f"bash -c 'exec 5<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo reached || echo nothing"
    try:
        assert (await place.run(connect))[1] == "reached\n"
        assert (await place.run(connect, network=False))[1] == "nothing\n"
    finally:
        server.close()


async def test_neither_its_view_nor_a_value_of_it_is_in_the_process_list(place: Place) -> None:
    command = place.command(":", Mount.at(str(place.given / "tokens")), environment={"MINE": "value of mine"})
    assert not any(word in argument for argument in command.argv for word in ("bind", "tokens", "MINE", "value of"))
    command.close()


async def test_sigterm_reaches_the_child_alone_which_may_take_its_leave(place: Place) -> None:
    code = (
        "import signal, sys; signal.signal(15, lambda *_: sys.exit('bye')); print('ready', flush=True); signal.pause()"
    )
    child, listener = await place.start(f'exec {PYTHON} -IS -c "{code}"', Mount.at(sys.base_prefix))
    await asyncio.wait_for(listener.ready.wait(), PATIENCE)
    child.terminate()
    exit_ = await asyncio.wait_for(child.exited, PATIENCE)
    assert (exit_.code, exit_.stderr) == (1, "bye\n")


@pytest.mark.parametrize("how", ["ends", "is killed", "is stopped"])
async def test_everything_that_it_started_ends_with_it(place: Place, how: str) -> None:
    left = "env -i setsid sh -c 'exec sleep 601' & (nohup setsid sleep 601 >/dev/null 2>&1 &); sleep 0.1; echo ready; "
    child, listener = await place.start(left + ("exit 0" if how == "ends" else "cat"))
    await asyncio.wait_for(listener.ready.wait(), PATIENCE)
    inside = []
    if how != "ends":
        inside = psutil.Process(child.pid).children(recursive=True)
        assert len(inside) >= 4
    if how == "is killed":
        child.kill()
    elif how == "is stopped":
        await child.stop(1.0)
    await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
    for process in inside:
        await gone(process.pid)


async def test_where_bubblewrap_is_not_installed_the_reason_is_named_and_nothing_is_run(place: Place) -> None:
    nowhere = {"PATH": str(place.root)}
    assert "bwrap" in str(unavailable(nowhere))
    with pytest.raises(FileNotFoundError):
        isolate(SandboxView((), "/"), ["/bin/true"], place.root, nowhere)


def test_where_bubblewrap_fails_what_it_said_is_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    assert str(unavailable({"PATH": str(tmp_path)})).endswith(": bwrap: No permissions to create new namespace")
