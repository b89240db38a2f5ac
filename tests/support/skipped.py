"""The last lines of a test run say in one sentence what was skipped for what reason: a pytest plugin."""

from collections import Counter
from collections.abc import Generator, Iterable

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's own, whose list of failures and skipped tests is long
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    yield
    skipped: list[pytest.TestReport | pytest.CollectReport] = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(sentence(_reason(report) for report in skipped))


def sentence(reasons: Iterable[str]) -> str:
    """The reasons of all skipped tests, each once with its number, the most frequent first."""
    counted = Counter(reasons)
    groups = ", ".join(f"{number} ({reason})" for reason, number in counted.most_common())
    return f"{counted.total()} skipped: {groups}."


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What the test said; a report is a triple of file, line and "Skipped: reason"."""
    said = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr)
    return " ".join(said.removeprefix("Skipped: ").split()).rstrip(".")
