"""What a child in a sandbox sees and can do, seen with a shell in its place, and that it ends like any other child."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from claude_code_mcp.processes.bubblewrap import SandboxSpec, enclose, unavailable
from claude_code_mcp.processes.child import ChildProcess, Exit
from tests.claude.conftest import PATIENCE, gone
from tests.support.bubblewrap import missing

from .test_containment import Listener

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

    def command(self, script: str, **spec: object) -> list[str]:
        scratch = self.root / f"scratch{len(self.children)}"
        scratch.mkdir()
        given = SandboxSpec(**{"writable": (str(self.given),), **spec})  # type: ignore[arg-type]
        return enclose(given, ["/bin/sh", "-c", script], str(self.given), scratch, os.environ)

    async def run(self, script: str, **spec: object) -> tuple[Exit, str]:
        child, listener = await self.start(script, **spec)
        exit_ = await asyncio.wait_for(child.exited, PATIENCE)
        await asyncio.wait_for(child.cleaned.wait(), PATIENCE)
        return exit_, listener.output.decode()

    async def start(self, script: str, **spec: object) -> tuple[ChildProcess, Ready]:
        listener = Ready()
        child = ChildProcess(listener, "the shell")
        self.children.append(child)
        await child.start(self.command(script, **spec), cwd="/", environment={"PATH": os.environ["PATH"], "MINE": "1"})
        return child, listener


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await asyncio.gather(*(child.stop(0.5) for child in place.children))


async def test_it_works_in_its_directory_and_its_code_and_output_are_told(place: Place) -> None:
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
        "echo x > /usr/x; echo x > /etc/passwd; echo $?"
    )
    _, said = await place.run(script, readable=(str(tools),))
    listed = said.splitlines()
    assert "secret" not in said
    assert {"given", "tools"} <= set(listed)
    assert not {"beside", "scratch1"} & set(listed)
    assert "a tool" in said
    assert listed[-1] != "0"
    assert (tools / "tool").read_text() == "a tool"


async def test_what_is_hidden_stays_hidden_inside_a_given_directory_and_cannot_be_moved_away(place: Place) -> None:
    state = place.given / "var" / "state"
    (state / "own").mkdir(parents=True)
    (state / "record").write_text("secret")
    (state / "own" / "file").write_text("mine")
    tokens = place.given / "tokens"
    tokens.write_text("secret")
    script = (
        f"cat tokens var/state/record; cat var/state/own/file; rm -f tokens; rm -rf {state}/record; "
        "mv var var2 || mv var/state var/state2 || mv tokens tokens2 || echo none moved; ls"
    )
    hidden, own = (str(state), str(tokens)), (str(state / "own"),) * 2
    _, said = await place.run(script, hidden=hidden, own=(own,))
    assert said.splitlines() == ["mine" + "none moved", "tokens", "var"]
    assert tokens.read_text() == (state / "record").read_text() == "secret"


async def test_it_sees_no_process_but_its_own_and_cannot_signal_others(place: Place) -> None:
    script = f"ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()} || echo unknown; cat /proc/*/environ | tr '\\0' '\\n'"
    _, said = await place.run(script)
    assert int(said.splitlines()[0]) < 10
    assert "unknown" in said
    assert "PYTEST" not in said


async def test_it_has_no_capability_and_cannot_write_to_the_kernels_settings(place: Place) -> None:
    settings = "/proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sysrq-trigger"
    script = f"grep CapEff /proc/self/status; for file in {settings}; do test -w $file && echo writable; done"
    _, said = await place.run(script)
    assert said.split() == ["CapEff:", "0000000000000000"]


async def test_its_temporary_directory_is_its_own_and_private_ones_are_empty_each_time(place: Place) -> None:
    (place.given / "private").mkdir()
    script = "touch /tmp/mine /var/tmp/too private/once; ls /tmp private; touch /tmp/more private/more"
    for _ in range(2):
        _, said = await place.run(script, private=(str(place.given / "private"),))
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
    command = place.command(":", hidden=(str(place.given / "tokens"),))
    assert not any("bind" in argument or "tokens" in argument for argument in command)


async def test_sigterm_reaches_the_child_alone_which_may_take_its_leave(place: Place) -> None:
    code = (
        "import signal, sys; signal.signal(15, lambda *_: sys.exit('bye')); print('ready', flush=True); signal.pause()"
    )
    child, listener = await place.start(f'exec {PYTHON} -IS -c "{code}"', readable=(sys.base_prefix,))
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
    assert unavailable(nowhere) == "bubblewrap (bwrap) is not installed"
    with pytest.raises(FileNotFoundError):
        enclose(SandboxSpec(), ["/bin/true"], "/", place.root, nowhere)


def test_where_bubblewrap_fails_what_it_said_is_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    assert unavailable({"PATH": str(tmp_path)}) == (
        "bubblewrap does not work: bwrap: No permissions to create new namespace"
    )
