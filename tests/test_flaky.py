"""`make flaky` tells a test that fails now and then from one that never does, and can repeat what it did."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.flaky import THE_RUN, Table, order

ROOT = Path(__file__).parent.parent
SUITE = """
import pathlib

def test_that_fails_every_other_time():
    marker = pathlib.Path(__file__).with_suffix(".failed")
    if not marker.exists():
        marker.touch()
        raise AssertionError
    marker.unlink()

def test_that_never_fails():
    pass
"""


def test_the_order_of_a_round_follows_from_the_seed() -> None:
    tests = [f"test_{number}" for number in range(20)]
    assert order(tests, 7, 1) == order(tests, 7, 1)
    assert sorted(order(tests, 7, 1)) == sorted(tests)
    assert len({tuple(order(tests, seed, number)) for seed in (7, 8) for number in (1, 2)}) == 4


def test_a_round_that_fails_without_a_failed_test_is_counted() -> None:
    table = Table()
    table.add(1, {"test_a": "passed"}, 0)
    table.add(2, {"test_a": "passed"}, 1)
    assert table.outcomes[THE_RUN]["failed"] == 1
    assert table.first_failure == {THE_RUN: 2}


@pytest.mark.soak  # runs of pytest; of those who look for a flake
def test_rounds_are_counted_by_test_and_one_failure_fails_the_whole(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    settings = {"TESTS": str(tmp_path), "ROUNDS": "2", "BUSY": "1", "SEED": "5", "FLAKY_OUTPUT": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.flaky"],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+)  \S+::(\w+)", run.stdout, re.MULTILINE)
    assert rows == [("1", "1", "0", "test_that_fails_every_other_time"), ("2", "0", "0", "test_that_never_fails")]
    assert "SEED=5 ROUND=1" in run.stdout
