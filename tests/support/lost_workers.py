"""Fails a test run in which an xdist worker crashed: a pytest plugin for the controller.

xdist replaces a crashed worker, and fails only the test that the worker was running. It ignores a worker that crashed
between two tests, during collection or at the end of the session. The report shows the last phase of each crashed
worker and the stacks that the worker wrote.
"""

from typing import Any

import pytest

from . import progress


class LostWorkers:
    def __init__(self, config: pytest.Config) -> None:
        self._directory = progress.directory_of(config)
        self._lost: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[progress.WORKER_INPUT] = str(self._directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            worker = node.gateway.id
            doing = progress.read(self._directory, worker) or f"{worker}: before its first test"
            self._lost.append(f"{doing}\n{progress.read_stacks(self._directory, worker)}")
            progress.forget(self._directory, worker)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._lost and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lost:
            terminalreporter.section("CRASHED WORKERS", red=True)
        for worker in self._lost:
            terminalreporter.write_line(worker)
