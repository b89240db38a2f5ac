"""`make flaky`: runs tests again and again on a busy machine, and says how often each passed and failed.

They are those of the variable TESTS (as on a command line), else those that failed in the last run. Every round is one
pytest on all of them in an order of its own, which follows from SEED and the number of the round, as do Python's hashes
and Hypothesis' examples. The output of each round is kept. The exit code is 0 only if every test passed in every round.
"""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAST_FAILED = ROOT / "build" / "pytest" / "v" / "cache" / "lastfailed"
OUTPUT = Path(os.environ.get("FLAKY_OUTPUT") or ROOT / "build" / "flaky")
THE_RUN = "(a run whose tests all passed)"
"""The row of what fails no test but the run: something left running."""
_REPORTS = "FLAKY_REPORTS"  # the variable with the file that a round leaves its reports in
_STOP_SECONDS = 60.0
_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))"


@dataclass
class Table:
    """How often each test passed and failed, and in which round it first failed."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    first_failure: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, outcomes: Mapping[str, str], exit_code: int) -> None:
        if exit_code and "failed" not in outcomes.values():
            outcomes = {**outcomes, THE_RUN: "failed"}
        for test, outcome in outcomes.items():
            self.outcomes[test][outcome] += 1
            if outcome == "failed":
                self.first_failure.setdefault(test, number)

    def lines(self) -> Iterator[str]:
        """What failed most comes first."""
        yield "passed  failed  skipped  test"
        for test, counted in sorted(self.outcomes.items(), key=lambda row: (-row[1]["failed"], row[0])):
            first = f"   first in round {self.first_failure[test]}" if test in self.first_failure else ""
            yield f"{counted['passed']:6}  {counted['failed']:6}  {counted['skipped']:7}  {test}{first}"


def order(tests: Sequence[str], seed: int, number: int) -> list[str]:
    """The tests as this round runs them."""
    return random.Random(f"{seed}/{number}").sample(tests, len(tests))


def last_failed() -> list[str]:
    try:
        return sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []


@contextmanager
def busy_machine(loops: int) -> Iterator[None]:
    """Processes that only compute; they end with the block, or with this process."""
    running = [subprocess.Popen([sys.executable, "-I", "-S", "-c", _LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_round(tests: Sequence[str], seed: int, number: int, seconds: float) -> tuple[dict[str, str], int | None]:
    """What became of each test, and the exit code; None when the time was over, and the round was interrupted."""
    reports, log = OUTPUT / f"round-{number}.jsonl", OUTPUT / f"round-{number}.log"
    reports.write_bytes(b"")
    # A cache of its own, so that what failed last stays known for the next time.
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-m", "", "-o", f"cache_dir={OUTPUT}/cache"]
    command = [sys.executable, "-m", "pytest", *settings, "-p", "tests.support.flaky", f"--hypothesis-seed={seed}"]
    environment = {**os.environ, _REPORTS: str(reports), "PYTHONHASHSEED": str(seed % 2**32)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *order(tests, seed, number)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    code = _wait(process, seconds)  # before the reports are read
    return _outcomes(reports), code


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # fixtures are closed, so that nothing is left running
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def _outcomes(reports: Path) -> dict[str, str]:
    """One outcome for each test: a failure in any phase counts."""
    found: dict[str, str] = {}
    for line in reports.read_text(encoding="utf-8").splitlines():
        test, outcome = json.loads(line)
        if found.get(test) != "failed":
            found[test] = outcome
    return found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Inside a round: leaves every report that says how a test went."""
    if report.when == "call" or not report.passed:
        with open(os.environ[_REPORTS], "a", encoding="utf-8") as reports:
            reports.write(json.dumps([report.nodeid, report.outcome]) + "\n")


def run_rounds(tests: Sequence[str], seed: int, rounds: Sequence[int], seconds: float) -> tuple[Table, int]:
    """The table, and the exit code: 1 if a test failed or the time was over, 2 if pytest could not run them."""
    table, deadline = Table(), time.monotonic() + seconds
    for number in rounds:
        outcomes, code = run_round(tests, seed, number, deadline - time.monotonic())
        if code is None:
            print(f"\nThe time was over in round {number}; MINUTES= gives more.")
            return table, 1
        if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            print((OUTPUT / f"round-{number}.log").read_text(encoding="utf-8", errors="replace"))
            return table, 2
        table.add(number, outcomes, code)
        print("." if code == 0 else "F", end="", flush=True)
    return table, 1 if table.first_failure else 0


def main() -> int:
    tests = shlex.split(os.environ.get("TESTS", "")) or last_failed()
    if not tests:
        print("Nothing failed in the last run. Name tests: make flaky TESTS='tests/hub/test_streams.py'")
        return 2
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    only, count = os.environ.get("ROUND"), int(os.environ.get("ROUNDS") or 20)
    rounds = [int(only)] if only else range(1, count + 1)
    loops = int(os.environ.get("BUSY") or 2 * (os.cpu_count() or 1))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    print(f"SEED={seed}: {len(rounds)} rounds beside {loops} busy loops; their output is in {OUTPUT}", flush=True)
    with busy_machine(loops):
        table, code = run_rounds(tests, seed, rounds, 60 * float(os.environ.get("MINUTES") or 30))
    print("", *table.lines(), sep="\n")
    if table.first_failure:
        first = min(table.first_failure.values())
        print(f"The first of the rounds that failed again, with the same tests: make flaky SEED={seed} ROUND={first}")
    return code


if __name__ == "__main__":
    sys.exit(main())
