"""`make bench` prints its whole table: no row depends on another, and a row that fails is a row."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from benchmarks.__main__ import BenchmarkFailed, measure, run
from benchmarks.row import reason

pytestmark = [pytest.mark.programs, pytest.mark.skipif(psutil.WINDOWS, reason="starts programs of POSIX")]

ROWS = """
import asyncio
import os
import subprocess
from pathlib import Path

from benchmarks.common import Figure

def homes(place):
    return [Path.home(), place.sandbox.home]

async def leaving(place):
    '''Leaves files and a program.'''
    for home in homes(place):
        (home / "left").touch()
    print(subprocess.Popen(["sleep", "600"]).pid)
    return [Figure("a row that leaves files", "", "1 ms", "1 ms", "≤ 2 ms", True)]

async def raising(_):
    '''Raises.'''
    raise AssertionError("no session was created\\n" + 30_000 * "x")

async def crashing(_):
    '''Crashes.'''
    os._exit(3)

async def finding(place):
    '''Looks for files.'''
    assert not any((home / "left").exists() for home in homes(place))
    return [Figure("a row that finds no files", "", "3 ms", "3 ms", "≤ 2 ms", False)]

async def hanging(_):
    await asyncio.sleep(3600)
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with benchmarks, which the process of a row can import too."""
    (tmp_path / "rows_of_this_test.py").write_text(ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return importlib.import_module("rows_of_this_test")


@pytest.mark.soak
def test_failing_benchmark_row_is_reported_and_rows_are_isolated(
    rows: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([rows.leaving, rows.raising, rows.crashing, rows.finding], tmp_path) == 1
    table = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert table[:-4] == [
        ["benchmark", "against", "engine", "measured", "goal", "result"],
        ["leaving: Leaves files and a program."],
        ["a row that leaves files", "1 ms", "1 ms", "≤ 2 ms", "met"],
        ["raising: Raises."],
        ["failed", "AssertionError: no session was created"],
        ["crashing: Crashes."],
        ["failed", "the process ended with exit code 3"],
        ["finding: Looks for files."],
        ["a row that finds no files", "3 ms", "3 ms", "≤ 2 ms", "MISSED"],
    ]
    assert table[-2:] == [
        ["Goals missed: a row that finds no files."],
        [f"Failed: raising, crashing. Their output is in {tmp_path}."],
    ]
    assert 30_000 * "x" in (tmp_path / "raising.log").read_text()
    left = int((tmp_path / "leaving.log").read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_missed_goal_does_not_fail_the_run(rows: ModuleType, tmp_path: Path) -> None:
    assert run([rows.finding], tmp_path) == 0


def test_a_row_that_hangs_is_ended(rows: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkFailed, match="no result after 1 s"):
        measure(rows.hanging, tmp_path / "log", limit=1)


def test_the_reason_of_a_failure_is_one_short_line() -> None:
    nested = ExceptionGroup("several", [ExceptionGroup("tasks", [ValueError("first\nsecond")])])
    assert reason(nested) == "ValueError: first"
    assert reason(ValueError()) == "ValueError"
    assert len(reason(ValueError("x" * 30_000))) < 250
