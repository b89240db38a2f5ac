"""Time limits that hold in every phase of a test and of its session: a pytest plugin, registered by tests/conftest.py.

Setup, body and teardown of a test each have the limit of the ini option `time_limit`, or of the mark `time_limit`. At
the limit an exception is raised in the main thread, which fails the phase; the report has the stacks of all threads and
tasks. This also ends the shutdown of an event loop, a wait for a process and a wait for a thread.

If code swallows the exception, or the main thread executes no Python code, the process writes its stacks and exits;
xdist then reports the test as failed. Collection and the end of the session have only this second limit.
tests/support/run.py kills a process that cannot exit.
"""

import asyncio
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from types import FrameType

import pytest
from _pytest.outcomes import Failed  # pytest.fail.Exception, which mypy does not accept as a base class

from . import leftovers, progress
from .stacks import every_stack

SESSION_SECONDS = 600.0
"""The limit for collection and for the end of the session."""
_POLL_SECONDS = 0.2
_HAS_ALARM = hasattr(signal, "SIGALRM")  # without it, only the second limit holds


def add_options(parser: pytest.Parser) -> None:
    parser.addini("time_limit", "seconds that setup, body and teardown of a test may take", default="300")


def register(config: pytest.Config) -> None:
    """Registers the limits in a process that runs tests, unless a debugger was asked for."""
    is_controller = config.getoption("dist", "no") != "no" and config.getoption("tx", None)
    if not is_controller and not config.getoption("usepdb") and not config.getoption("trace"):
        config.pluginmanager.register(Limits(config), "limits")


@dataclass(frozen=True, slots=True)
class Limit:
    """What happens after how many seconds to something that does not end."""

    fail: float
    """An exception is raised in the main thread, by its event loop if one is running."""
    repeat: float
    """The interval at which the exception is raised again, also if the event loop is blocked."""
    exit: float
    """A thread of the process writes the stacks of all threads and tasks, and exits."""
    abort: float
    """faulthandler writes the stacks of all threads and exits. Only this works while a C call holds the GIL."""
    kill: float
    """tests/support/run.py kills the process, for example if it is stopped (SIGSTOP)."""


def limit_of(seconds: float) -> Limit:
    return Limit(seconds, 60, seconds + 180, seconds + 240, seconds + 300)


class TimeLimitExceeded(Failed, SystemExit):
    """Fails the phase that it is raised in.

    As a failure of pytest it lets the remaining fixtures be closed. As a SystemExit it ends the event loop: asyncio
    would keep any other exception in the task that happened to run.
    """

    __module__ = "builtins"  # as in pytest's own outcomes: the short summary has no room for a module name


class Limits:
    """The limits of a process that runs tests: an xdist worker, or pytest itself without xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._limit = float(config.getini("time_limit"))
        self._watchdog = Watchdog(config)
        self._phase: tuple[pytest.Item, str] | None = None
        self._asked_loop: asyncio.AbstractEventLoop | None = None
        if _HAS_ALARM:
            signal.signal(signal.SIGALRM, self._on_alarm)

    def pytest_collection(self) -> None:
        self._watchdog.doing = "collecting tests"
        self._watchdog.expect_end(limit_of(SESSION_SECONDS))

    def pytest_collection_finish(self) -> None:
        self._watchdog.expect_nothing()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        yield from self._limited(item, "setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        yield from self._limited(item, "call")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        yield from self._limited(item, "teardown")

    def pytest_enter_pdb(self) -> None:
        self._stop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around everything: it is finished when this is
    def pytest_sessionfinish(self) -> Generator[None]:
        self._watchdog.doing = "ending the session"
        self._watchdog.expect_end(limit_of(SESSION_SECONDS))
        try:
            yield
        finally:
            self._watchdog.close()

    def _limited(self, item: pytest.Item, name: str) -> Generator[None]:
        mark = item.get_closest_marker("time_limit")
        self._phase = (item, name)
        self._watchdog.doing = f"{item.nodeid} ({name})"
        self.restart(limit_of(float(mark.args[0]) if mark else self._limit))
        try:
            yield
        finally:
            self._phase = None  # first: an alarm from here on is too late
            self._stop()

    def restart(self, limit: Limit) -> None:
        """Gives the phase of the test, or of the session, that is running this limit from now on."""
        self._asked_loop = None
        self._watchdog.expect_end(limit)
        if self._phase is not None and _HAS_ALARM:
            signal.setitimer(signal.ITIMER_REAL, limit.fail, limit.repeat)

    def _stop(self) -> None:
        if _HAS_ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._watchdog.expect_nothing()

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self._phase is None:
            return
        item, name = self._phase
        item.add_report_section(name, "stacks", every_stack())
        loop = asyncio._get_running_loop()
        if loop is not None and loop is not self._asked_loop:
            # An exception between two steps of a loop could lose a step that a task then waits for at the shutdown.
            self._asked_loop = loop
            loop.call_soon_threadsafe(self._fail, self._phase)
        else:  # no loop, or a loop that is blocked by a callback
            self._fail(self._phase)

    def _fail(self, phase: tuple[pytest.Item, str]) -> None:
        if phase is self._phase:  # the loop may be late
            raise TimeLimitExceeded(f"{phase[1]} takes too long")


class Watchdog:
    """Ends this process when its current phase takes too long, and writes the phase and its deadline to a file."""

    def __init__(self, config: pytest.Config) -> None:
        worker = progress.worker_of(config)
        self._file = progress.ProgressFile(progress.directory_of(config), worker)
        self._is_alone = worker == progress.ALONE
        if self._is_alone:
            self._output = os.dup(2)  # output is not captured yet
        else:  # the controller adds the file to its report
            path = progress.stacks_path(progress.directory_of(config), worker)
            self._output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.doing = "starting"
        self._deadline: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="test watchdog", daemon=True).start()

    def expect_end(self, limit: Limit) -> None:
        """The current phase must end within the limit."""
        now = time.monotonic()
        self._deadline = now + limit.exit
        faulthandler.dump_traceback_later(limit.abort, exit=True, file=self._output)
        self._file.write(self.doing, now + limit.kill)

    def expect_nothing(self) -> None:
        """The current phase has ended, and the next one has not begun."""
        self._deadline = None
        faulthandler.cancel_dump_traceback_later()
        self._file.write("idle", None)

    def close(self) -> None:
        self.expect_nothing()
        self._closed.set()
        self._file.remove()

    def _watch(self) -> None:
        while not self._closed.wait(self._pause()):
            deadline = self._deadline
            if deadline is not None and time.monotonic() >= deadline:
                self._exit()

    def _pause(self) -> float:
        deadline = self._deadline
        return _POLL_SECONDS if deadline is None else min(max(deadline - time.monotonic(), 0.0), _POLL_SECONDS)

    def _exit(self) -> None:
        try:
            text = f"\nThis process exits: {self.doing} takes too long.\n{every_stack()}\n"
            os.write(self._output, text.encode(errors="replace"))
            if self._is_alone:  # in other runs the controller does this
                leftovers.end_marked()
        finally:
            os._exit(1)
