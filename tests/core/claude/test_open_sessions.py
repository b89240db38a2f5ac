"""Which process has a session open: only files of processes that live count."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.core.claude.user_config import process_with
from claude_code_mcp.core.errors import SessionBusy
from claude_code_mcp.core.isolation import Home
from claude_code_mcp.core.processes.leftovers import is_stale, started_at
from claude_code_mcp.core.sessions.live import launcher

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count is Linux's")


def note(directory: Path, **about: Any) -> None:
    """A file as the CLI writes it, by this very process unless told otherwise."""
    me = psutil.Process()
    record = {"pid": me.pid, "sessionId": "mine", "startedAt": int(me.create_time() * 1000) + 300, **about}
    (directory / "sessions").mkdir(exist_ok=True)
    (directory / "sessions" / f"{record['pid']}.json").write_text(json.dumps(record))


def test_a_living_process_has_its_session_open(tmp_path: Path) -> None:
    note(tmp_path)
    assert process_with("mine", str(tmp_path)) == os.getpid()
    assert process_with("another", str(tmp_path)) is None


def test_without_the_directory_nothing_is_open(tmp_path: Path) -> None:
    assert process_with("mine", str(tmp_path)) is None


def test_a_process_that_is_gone_has_nothing_open(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    note(tmp_path, pid=ended.pid)
    assert process_with("mine", str(tmp_path)) is None


def test_a_process_that_got_the_number_later_has_nothing_open(tmp_path: Path) -> None:
    note(tmp_path, startedAt=1_000_000_000_000)
    assert process_with("mine", str(tmp_path)) is None


@LINUX
def test_the_kernels_count_tells_two_processes_of_one_number_apart(tmp_path: Path) -> None:
    born = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    note(tmp_path, procStart=born)
    assert process_with("mine", str(tmp_path)) == os.getpid()
    note(tmp_path, procStart=str(int(born) + 1))
    assert process_with("mine", str(tmp_path)) is None


@LINUX
def test_process_of_another_container_is_not_recognized_and_locks_nothing(tmp_path: Path) -> None:
    note(tmp_path, pidDomain=f"linux:0:{os.readlink('/proc/self/ns/pid')}")
    assert process_with("mine", str(tmp_path)) == os.getpid()
    note(tmp_path, pidDomain="linux:0:pid:[1]")
    assert process_with("mine", str(tmp_path)) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sessionId": "mine"}', '{"sessionId": "mine", "pid": -5}', "\0"])
def test_empty_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "1.json").write_text(content)
    note(tmp_path)
    assert process_with("mine", str(tmp_path)) == os.getpid()


@contextlib.contextmanager
def another_process(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has begun to run; it is gone afterward, however that ends."""
    argv = [sys.executable, "-I", "-S", "-c", f"print(flush=True)\n{code}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="a process cannot be waited for without reaping it")
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "stays"])
def test_a_process_that_ends_while_it_is_looked_at_has_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    with another_process("input()") as other, contextlib.ExitStack() as expected:
        note(tmp_path, pid=other.pid, startedAt=int(psutil.Process(other.pid).create_time() * 1000) + 300)

        def look(pid: int) -> bool:
            if ends:  # at this very moment; not waited for, so it stays as a zombie
                other.kill()
                os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
            return is_stale(pid)

        monkeypatch.setattr(launcher, "is_stale", look)
        home = Home.of_user({"CLAUDE_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)})
        if not ends:
            expected.enter_context(pytest.raises(SessionBusy, match=str(other.pid)))
        launcher.Launcher(home, "", None, 1.0).check_alone("mine")


STARTS = 30
"""About every second process that is looked at right after its start shows no command line yet."""


@LINUX
def test_a_process_in_the_middle_of_exec_lives(tmp_path: Path) -> None:
    found = []
    for _ in range(STARTS):
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as other:  # ends with its input
            note(tmp_path, pid=other.pid, procStart=str(started_at(other.pid)))
            found.append(process_with("mine", str(tmp_path)) == other.pid)
    assert found == [True] * STARTS


@LINUX
def test_a_process_lives_as_long_as_any_of_its_threads(tmp_path: Path) -> None:
    """Its state is that of the first thread: a zombie without a command line, while another thread goes on writing."""
    code = """if True:
        import ctypes, os, threading
        threads, first = ctypes.CDLL(None), ctypes.c_ulong(threading.get_ident())
        def go_on():
            threads.pthread_join(first, None)
            os.write(1, b"the first one has ended\\n")
            os.read(0, 1)
        threading.Thread(target=go_on).start()
        threads.pthread_exit(None)
    """
    with another_process(code) as other:
        note(tmp_path, pid=other.pid, procStart=str(started_at(other.pid)))
        assert other.stdout is not None
        assert other.stdout.readline() == "the first one has ended\n"
        assert process_with("mine", str(tmp_path)) == other.pid
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert process_with("mine", str(tmp_path)) is None


@LINUX
def test_clock_change_does_not_change_process_identity(tmp_path: Path) -> None:
    """When a process was started is computed from today's clock, what it wrote is from the clock of that time."""
    note(tmp_path, startedAt=1_000_000_000_000, procStart=str(started_at(os.getpid())))
    assert process_with("mine", str(tmp_path)) == os.getpid()


@LINUX
def test_failed_lookup_is_not_treated_as_absent(tmp_path: Path) -> None:
    note(tmp_path)
    code = f"""if True:
        import os, resource
        from claude_code_mcp.core.claude.user_config import process_with
        from claude_code_mcp.core.errors import SessionBusy
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), 100))  # nothing more can be opened
        try:
            print("found", process_with("mine", {str(tmp_path)!r}))
        except SessionBusy as error:
            print("refused", error)
    """
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.startswith("refused ")
    assert "mine" in printed
