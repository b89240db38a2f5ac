"""The test run itself: what it leaves running fails it, its last lines say what was skipped, and it can be quick."""

import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.support.leftovers import RUN
from tests.support.shuffled import shuffled

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests.support import leftovers, skipped

def pytest_configure(config):
    config.pluginmanager.register(leftovers.Leftovers(grace=1))
    config.pluginmanager.register(skipped)
"""
SUITE = """
import os
import subprocess
import pytest

def test_that_leaks_an_orphan():
    # Only the mark tells it from the rest of the machine.
    subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"], check=True)

def test_that_leaks_a_child():
    # It has no mark, and ends by itself when its parent has gone: the worker must look before it ends.
    subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"PATH": os.environ["PATH"]})

@pytest.mark.parametrize("case", [1, 2])
def test_by_moonlight(case):
    pytest.skip("there is no moon")

@pytest.mark.skipif(True, reason="only on Mars")
def test_with_two_moons():
    pass
"""


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of its own, with a mark of its own, on the tests of a directory; without plugins that it does not need."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", RUN))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "xdist", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the leaking programs are those of POSIX")
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.soak)])
def test_what_tests_leave_running_fails_the_run_though_all_of_them_pass(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    run = run_pytest(tmp_path, "-n", workers)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    assert "2 passed" in run.stdout
    assert run.stdout.splitlines()[-2] == "3 skipped: 2 (there is no moon), 1 (only on Mars)."
    found = re.findall(r"^(\d+) (.+), started during: (.*)$", run.stdout, re.MULTILINE)
    by_command = {command: (int(process), tests) for process, command, tests in found}
    assert by_command.keys() == {"sleep 600", "cat"}
    assert "test_suite.py::test_that_leaks_an_orphan" in by_command["sleep 600"][1]
    assert "test_suite.py::test_that_leaks_a_child" in by_command["cat"][1]
    for process, _ in by_command.values():
        with pytest.raises(ProcessLookupError):  # it has been ended
            os.kill(process, 0)


def test_a_run_that_leaves_nothing_running_passes(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    # Python starts a process for this, which ends when its process does.
    shared = (
        "from multiprocessing import resource_tracker\n\ndef test_memory():\n    resource_tracker.ensure_running()\n"
    )
    (tmp_path / "test_nothing.py").write_text(shared)
    run = run_pytest(tmp_path, "-n", "0")
    assert run.returncode == 0, run.stdout
    assert "LEFT RUNNING" not in run.stdout
    assert "skipped" not in run.stdout


QUICK_CONFTEST = """
from tests.support import quick

def pytest_addoption(parser):
    quick.add_option(parser)

def pytest_configure(config):
    config.pluginmanager.register(quick)
"""
QUICK_SUITE = """
import pytest

@pytest.fixture
def model():
    pass

def test_pure():
    pass

@pytest.mark.parametrize("case", [1, 2])
def test_of_pure_cases(case):
    pass

@pytest.mark.parametrize("case", [1, 2])
def test_that_starts_programs(model, case):
    pass
"""


@pytest.mark.parametrize(("quick", "number"), [("pure", 3), ("layer", 4)])
def test_a_quick_run_leaves_out_what_starts_programs_or_all_cases_but_the_first(
    tmp_path: Path, quick: str, number: int
) -> None:
    (tmp_path / "conftest.py").write_text(QUICK_CONFTEST)
    (tmp_path / "test_suite.py").write_text(QUICK_SUITE)
    run = run_pytest(tmp_path, "--quick", quick)
    assert f"{number} passed, {5 - number} deselected" in run.stdout


def test_another_order_keeps_the_tests_of_a_file_together_and_follows_from_its_seed() -> None:
    class Item:
        def __init__(self, path: str, number: int) -> None:
            self.path, self.number = path, number

    items: list[Any] = [Item(f"file {number // 10}", number) for number in range(100)]
    orders: list[list[Any]] = [shuffled(items, seed) for seed in ("1", "1", "2")]
    first, again, other = orders
    assert first == again
    assert items != first != other
    assert sorted(first, key=lambda item: item.number) == items
    assert len([path for path, _ in groupby(first, key=lambda item: item.path)]) == 10
