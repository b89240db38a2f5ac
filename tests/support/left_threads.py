"""Fails a test run that leaves a thread running which keeps the interpreter from exiting: a pytest plugin.

Each process that runs tests checks its threads when its last fixture is closed. An xdist worker sends its list to the
controller. The report shows the stack of each thread and the test after which the thread was first seen.
"""

import faulthandler
import os
import sys
import threading
import time
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from .leftovers import GRACE
from .stacks import thread_stack

EXIT_SECONDS = 60.0
"""How long the interpreter may take to exit when pytest has finished. Then it is ended, with exit code 1."""
_FOUND = "left_threads"  # the key of a worker's list in its output


class LeftThreads:
    def __init__(self, grace: float = GRACE, exit_seconds: float = EXIT_SECONDS) -> None:
        self._grace = grace
        self._exit_seconds = exit_seconds
        self._stderr = os.dup(2)  # output is not captured yet
        self._first_seen: WeakKeyDictionary[threading.Thread, str] = WeakKeyDictionary()
        self._found: list[str] = []

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        for thread in threading.enumerate():
            self._first_seen.setdefault(thread, nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._found += getattr(node, "workeroutput", {}).get(_FOUND, ())

    @pytest.hookimpl(trylast=True)  # after xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deadline = time.monotonic() + self._grace
        while (left := _blocking_threads()) and time.monotonic() < deadline:
            left[0].join(0.1)
        for thread in left:
            test = self._first_seen.get(thread, "the last test")
            self._found.append(f"{thread.name!r}, first seen after {test}:\n{thread_stack(thread)}")
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_FOUND] = self._found
        elif self._found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._found:
            terminalreporter.section("THREADS LEFT RUNNING AFTER THE TESTS", red=True)
        for thread in self._found:
            terminalreporter.write_line(thread)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if not hasattr(config, "workerinput"):  # a worker waits until the controller ends it
            faulthandler.dump_traceback_later(self._exit_seconds, exit=True, file=self._stderr)


def _blocking_threads() -> list[threading.Thread]:
    """Threads that the interpreter waits for at its exit, without idle threads of a pool, which it ends itself."""
    frames = sys._current_frames()
    return [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
        and not thread.daemon
        and not _is_idle_in_pool(frames.get(thread.ident or 0))
    ]


def _is_idle_in_pool(frame: FrameType | None) -> bool:
    if frame is None:
        return False
    return frame.f_globals.get("__name__") == "concurrent.futures.thread" and frame.f_code.co_name == "_worker"
