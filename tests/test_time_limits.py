"""No test run can hang: whatever hangs fails with its stacks, or is ended and named."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.leftovers import RUN

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither SIGALRM nor SIGSTOP"),
]

ROOT = Path(__file__).parent.parent
CONFTEST = """
import pytest
from tests.support import left_threads, leftovers, limits, lost_workers, progress

NEVER = 3600

def pytest_addoption(parser):
    limits.add_options(parser)
    progress.add_option(parser)

def pytest_configure(config):
    limits.register(config)
    config.pluginmanager.register(left_threads.LeftThreads(grace=0.2, exit_seconds=0.5))
    config.pluginmanager.register(leftovers.Leftovers(grace=0.2))
    config.pluginmanager.register(lost_workers.LostWorkers(config))

    global CONFIG
    CONFIG = config

@pytest.fixture
def limit():
    return shorten

def shorten(*steps):
    # A test gets a short limit only when it is about to hang: until then it may be as slow as the machine is.
    seconds = dict.fromkeys(("fail", "repeat", "exit", "abort", "kill"), NEVER) | dict.fromkeys(steps, 0.1)
    CONFIG.pluginmanager.get_plugin("limits").restart(limits.Limit(**seconds))
"""
HANGING = """
import asyncio
import subprocess
import threading
import time
import pytest

def test_body(limit):
    limit("fail")
    waits_in_the_body = threading.Event()
    waits_in_the_body.wait()

async def test_task(limit):
    async def innermost():
        await asyncio.Event().wait()

    async def steps():
        yield await innermost()

    async def waits_in_a_task():
        async for _ in steps():
            pass

    task = asyncio.create_task(waits_in_a_task(), name="the other task")
    limit("fail")
    await task

async def test_busy_task(limit):
    limit("fail")
    while True:
        await asyncio.sleep(0)

async def test_blocked_loop(limit):
    limit("fail", "repeat")
    time.sleep(600)

@pytest.fixture
def hanging_setup(limit):
    limit("fail")
    time.sleep(600)

def test_setup(hanging_setup):
    pass

@pytest.fixture
def hanging_teardown(limit):
    yield
    limit("fail")
    time.sleep(600)

def test_teardown(hanging_teardown):
    pass

async def test_loop_shutdown(limit):
    async def swallows_its_cancellation():
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                limit("fail")

    asyncio.create_task(swallows_its_cancellation())
    await asyncio.sleep(0)

def test_thread(limit):
    def works_for_ever():
        threading.Event().wait()

    thread = threading.Thread(target=works_for_ever, daemon=True)
    thread.start()
    limit("fail")
    thread.join()

def test_subprocess(limit):
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            limit("fail")
            process.wait()
        finally:
            process.kill()

def test_that_passes():
    pass
"""


def environment() -> dict[str, str]:
    """The environment of a separate run: with its own mark, and without plugins that it does not need."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", RUN))}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def run_suite(
    directory: Path, suite: str, *arguments: str, program: str = "pytest"
) -> "subprocess.CompletedProcess[str]":
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_suite.py").write_text(suite)
    plugins = ["-p", "xdist", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    return subprocess.run(
        [sys.executable, "-m", program, "-q", "-ra", *plugins, *arguments],
        cwd=directory,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.soak)])
def test_hanging_phase_fails_with_all_stacks_and_other_tests_run(tmp_path: Path, workers: str) -> None:
    run = run_suite(tmp_path, HANGING, "-n", workers)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    failed = set(re.findall(r"^(\w+) test_suite.py::(\w+) - TimeLimitExceeded", run.stdout, re.MULTILINE))
    assert failed == {
        ("FAILED", "test_body"),
        ("FAILED", "test_task"),
        ("FAILED", "test_busy_task"),
        ("FAILED", "test_blocked_loop"),
        ("ERROR", "test_setup"),
        ("ERROR", "test_teardown"),
        ("ERROR", "test_loop_shutdown"),
        ("FAILED", "test_thread"),
        ("FAILED", "test_subprocess"),
    }
    assert "6 failed, 3 passed, 3 errors" in run.stdout
    reports = dict(
        re.findall(r"^_+ (?:ERROR at \w+ of )?(\w+) _+$(.*?)(?=^[_=]{8})", run.stdout, re.MULTILINE | re.DOTALL)
    )
    for test, expected in {
        "test_body": ("Thread 'MainThread'", "waits_in_the_body.wait()"),
        "test_task": ("Task 'the other task'", "in waits_in_a_task", "in steps", "in innermost", "in wait"),
        "test_setup": ("in hanging_setup",),
        "test_teardown": ("in hanging_teardown",),
        "test_loop_shutdown": ("_cancel_all_tasks", "(being cancelled)", "in swallows_its_cancellation"),
        "test_thread": ("Thread 'MainThread'", "thread.join()", "in works_for_ever"),
        "test_subprocess": ("process.wait()", "os.waitpid"),
    }.items():
        assert "Captured stacks" in reports[test]
        for words in expected:
            assert words in reports[test].partition("Captured stacks")[2], (test, words)


STUCK = """
import asyncio
import ctypes
import os
import signal
import subprocess
import time
import pytest

def lock_twice(library):
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def test_that_swallows_the_failure(limit):
    subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $! > left"], check=True)
    try:
        limit("fail")
        time.sleep(600)
    except BaseException:
        limit("exit")
        time.sleep(600)

async def test_that_blocks_in_c(limit):
    async def waits():
        await asyncio.sleep(600)

    task = asyncio.create_task(waits(), name="the other task")
    await asyncio.sleep(0)
    limit("exit")
    lock_twice(ctypes.CDLL(None))

def test_that_holds_the_gil(limit):
    limit("abort")
    lock_twice(ctypes.PyDLL(None))

def test_that_is_frozen(limit):
    limit("kill")
    os.kill(os.getpid(), signal.SIGSTOP)

@pytest.mark.parametrize("number", range(20))
def test_that_passes(number):
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="locks a mutex of Linux twice")
def test_a_worker_that_cannot_fail_its_test_is_ended_and_named_and_all_other_tests_run(tmp_path: Path) -> None:
    run = run_suite(tmp_path, STUCK, "-n", "2", program="tests.support.run")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    names = ["swallows_the_failure", "blocks_in_c", "holds_the_gil", "is_frozen"]
    for name in names:
        assert re.search(rf"worker 'gw\d' crashed while running 'test_suite.py::test_that_{name}'", run.stdout)
    assert "4 failed, 20 passed" in run.stdout
    lost = re.findall(r"^gw\d: test_suite.py::test_that_(\w+) \(call\), for \d+ s$", run.stdout, re.MULTILINE)
    assert sorted(lost) == sorted(names)
    for words in ("in waits", "lock_twice(ctypes.CDLL(None))", "in test_that_holds_the_gil"):
        assert words in run.stdout
    assert re.search(r"Killed, since it made no progress: gw\d: test_suite.py::test_that_is_frozen", run.stdout)
    left = int((tmp_path / "left").read_text())
    assert re.search(rf"^{left} sleep 600, started during: .*test_that_swallows", run.stdout, re.MULTILINE)
    assert not is_running(left)  # the worker could not end it, and the controller has


PASSING = """
def test_that_passes():
    pass
"""
CRASH = """
import os

def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        os._exit(1)
"""


def test_a_worker_that_is_lost_after_its_last_test_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(CRASH)
    run = run_suite(tmp_path, PASSING, "-n", "1", "-p", "crash", "--max-worker-restart", "0")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "1 passed" in run.stdout
    assert "gw0: ending the session, for" in run.stdout


THREAD = """
import threading
from concurrent.futures import ThreadPoolExecutor

POOL = ThreadPoolExecutor()

def test_that_leaves_a_thread():
    def works_for_ever():
        threading.Event().wait()

    POOL.submit(int).result()  # the idle thread of a pool ends with the interpreter
    threading.Thread(target=works_for_ever, name="stays").start()
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.soak)])  # xdist waits for ten seconds
def test_a_thread_that_keeps_the_interpreter_from_exiting_fails_the_run_and_is_named(
    tmp_path: Path, workers: str
) -> None:
    run = run_suite(tmp_path, THREAD, "-n", workers)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "1 passed" in run.stdout
    assert "'stays', first seen after test_suite.py::test_that_leaves_a_thread:" in run.stdout
    assert "in works_for_ever" in run.stdout


def test_a_process_that_must_end_itself_without_xdist_says_why_and_ends_its_programs(tmp_path: Path) -> None:
    suite = STUCK.replace("def test_that_is_frozen", "def frozen")
    run = run_suite(tmp_path, suite, "-n", "0", program="tests.support.run")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "This process exits: test_suite.py::test_that_swallows_the_failure (call) takes too long." in run.stderr
    assert "pytest exited unexpectedly. It was running:" in run.stdout
    assert "main: test_suite.py::test_that_swallows_the_failure (call)" in run.stdout
    assert not is_running(int((tmp_path / "left").read_text()))


COLLECTING = """
import time
import conftest

conftest.shorten("exit")
time.sleep(600)
"""
ENDING = """
import sys
import time

def pytest_sessionfinish():
    sys.modules["conftest"].shorten("exit")
    time.sleep(600)
"""


def test_collection_that_hangs_ends_the_run(tmp_path: Path) -> None:
    run = run_suite(tmp_path, COLLECTING, "-n", "0")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "This process exits: collecting tests takes too long." in run.stderr
    assert "time.sleep(600)" in run.stderr


def test_a_session_that_does_not_end_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(ENDING)
    run = run_suite(tmp_path, PASSING, "-n", "0", "-p", "ending")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "This process exits: ending the session takes too long." in run.stderr
    assert "in pytest_sessionfinish" in run.stderr


ENDLESS = """
import pathlib
import threading

def test_that_passes():
    pass

def test_that_goes_on():
    pathlib.Path("running").touch()
    threading.Event().wait()
"""
LIMITED = """
import sys
from pathlib import Path
from tests.support.run import run

sys.exit(run(sys.argv[1:], Path("running").exists, "their limit"))
"""


def test_the_whole_run_has_a_limit_and_names_what_was_running(tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text(LIMITED)  # the limit is reached when the second test runs
    run = run_suite(tmp_path, ENDLESS, "-n", "1", program="limited")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "The tests have reached their limit. Still running:" in run.stdout
    assert "gw0: test_suite.py::test_that_goes_on (call), for" in run.stdout
    assert "1 passed" in run.stdout  # pytest was interrupted, and has reported its results so far


def test_the_limit_of_the_whole_run_is_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_RUN_MINUTES", "0")
    run = run_suite(tmp_path, PASSING, "-n", "0", program="tests.support.run")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "The tests have reached the limit of 0 minutes (TEST_RUN_MINUTES)." in run.stdout
