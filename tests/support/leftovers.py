"""Fails a test run that leaves a process running: a pytest plugin, registered by tests/conftest.py.

Whatever the tests start inherits the variable RUN, or is below the process that started it. Each worker of xdist looks
below itself when its last fixture is closed, and hands what it finds to the controller; the controller looks over the
whole machine for the variable when its workers are gone. What either has found is reported with the tests that ran when
it was started, is ended, and makes the exit code of the run that of a failure. Processes are never found by name.
"""

import math
import os
import time
import uuid
from collections.abc import Iterable
from multiprocessing import resource_tracker
from typing import Any

import psutil
import pytest

from claude_code_mcp.core.processes import supervisor

RUN = "TEST_RUN_OF_THIS_SUITE"
"""The variable that marks what this run has started; no name of the product's, which children do not get."""
os.environ.setdefault(RUN, uuid.uuid4().hex)

GRACE = 20.0
"""Seconds that a process which is ending anyway has for it."""
_TICK = 0.01  # the kernel rounds the time of a start down to this
_FOUND = "left_running"  # the key under which a worker hands over what it has found


class Leftovers:
    """What this run left running, and which tests ran when."""

    def __init__(self, grace: float = GRACE) -> None:
        self._grace = grace
        self._found: list[dict[str, Any]] = []
        self._ran: dict[str, tuple[float, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test whose worker is lost has no teardown, and ran until the end for all that is known.
        if report.when == "setup":
            self._ran[report.nodeid] = (report.start, math.inf)
        elif report.when == "teardown" and report.nodeid in self._ran:
            self._ran[report.nodeid] = (self._ran[report.nodeid][0], report.stop)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A worker that has crashed has no output: what it started is orphaned, and the controller finds it by the mark.
        self._found += getattr(node, "workeroutput", {}).get(_FOUND, ())

    @pytest.hookimpl(trylast=True)  # after xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._found += _end(_below_this_process(), self._grace)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_FOUND] = self._found
            return
        self._found += _end(_marked(), self._grace)
        if self._found and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._found:
            terminalreporter.section("LEFT RUNNING AFTER THE TESTS", red=True)
        for process in self._found:
            tests = ", ".join(self._running_at(process["started"]))
            terminalreporter.write_line(f"{process['pid']} {process['command']}, started during: {tests}")

    def _running_at(self, moment: float) -> list[str]:
        """The tests that ran then, one of each worker at most, but for those that ended within a tick of it."""
        return [test for test, (start, stop) in self._ran.items() if start - _TICK <= moment <= stop]


def end_marked(mark: str | None = None) -> None:
    """Kills everything that this run, or the one with the given mark, has started, at once."""
    _end(_marked(mark), grace=0)


def _below_this_process() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if not _ends_with_us(process)]


def _marked(mark: str | None = None) -> list[psutil.Process]:
    """All processes with the mark of a run, by default of this run, except this process and its ancestors."""
    mark = mark or os.environ[RUN]
    family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = [process for process in psutil.process_iter() if process.pid not in family and _has_mark(process, mark)]
    return [process for process in found if not _ends_with_us(process)]


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(RUN) == mark
    except (psutil.Error, OSError):  # it has ended, or belongs to somebody else
        return False


def _ends_with_us(process: psutil.Process) -> bool:
    """Whether it belongs to this process, and ends with it and not before: the supervisor, which starts its children,
    and Python's own process for what `multiprocessing` shares."""
    try:
        is_supervisor = process.ppid() == os.getpid() and supervisor.__file__ in process.cmdline()
    except psutil.Error:
        return False
    return is_supervisor or process.pid == getattr(resource_tracker._resource_tracker, "_pid", None)


def _end(processes: Iterable[psutil.Process], grace: float) -> list[dict[str, Any]]:
    """Those that do not end by themselves, as they were before they were killed."""
    _, left = psutil.wait_procs(list(processes), timeout=grace)
    found = []
    for process in left:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                command = " ".join(process.cmdline()[:6])
                found.append({"pid": process.pid, "command": command, "started": _start_time(process)})
                process.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(left, timeout=GRACE)
    return found


def _start_time(process: psutil.Process) -> float:
    """When it was started, on the clock of the test reports: psutil adds whole seconds of the time of boot."""
    started: float = process.create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return started
    return started - psutil.boot_time() + time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
