"""`python -m tests.support.run …`: runs pytest with these arguments, and ends it if it hangs. `make test` uses it.

A process of the run that is stuck and could not exit (tests/support/limits.py) is killed; xdist reports the test that
it was running. The whole run has a limit, TEST_RUN_MINUTES. At the limit this prints the current test of each process,
interrupts pytest so that it reports the failures so far, and kills the remaining processes. It exits with pytest's exit
code, or with 1 if that is 0 although a process was killed. Programs that the tests have started are killed too.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import leftovers, progress

RUN_MINUTES = 70.0
"""The default limit. A loaded machine takes 40 minutes, and CI ends everything after 90."""
OPTIONS = ("--dist", "worksteal", "--max-worker-restart", "4")
"""A lost worker is replaced: a test that hangs does not hide the results of the others. The run fails all the same."""
STOP_SECONDS = 120.0
"""How long pytest may take to report and to end after it was interrupted."""
_POLL_SECONDS = 0.2


def main(arguments: Sequence[str]) -> int:
    minutes = float(os.environ.get("TEST_RUN_MINUTES") or RUN_MINUTES)
    deadline = time.monotonic() + 60 * minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that pytest is stopped too
    limit = f"the limit of {minutes:g} minutes (TEST_RUN_MINUTES)"
    try:
        return run(arguments, lambda: time.monotonic() > deadline, limit)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def run(arguments: Sequence[str], is_over: Callable[[], bool], limit: str, stop_seconds: float = STOP_SECONDS) -> int:
    """Runs pytest until it ends or `is_over`; `limit` names that reason. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="test-run-") as name:
        directory = Path(name)
        process = subprocess.Popen([sys.executable, "-m", "pytest", f"--progress={name}", *OPTIONS, *arguments])
        try:
            code = _watch(process, directory, is_over, limit)
            if process.returncode is not None and progress.read_all(directory):
                _print("pytest exited unexpectedly. It was running:", directory)
                code = code or 1
        except KeyboardInterrupt:  # pytest has been interrupted as well
            _wait(process, stop_seconds)
            raise
        finally:
            _stop(process, directory, stop_seconds)
            if process.returncode != 0:
                leftovers.end_marked()
    return code


def _watch(process: "subprocess.Popen[bytes]", directory: Path, is_over: Callable[[], bool], limit: str) -> int:
    """Waits for pytest, and kills processes that are stuck. Returns the exit code, or 1 if `is_over`."""
    killed: set[progress.Record] = set()
    while (code := _wait(process, _POLL_SECONDS)) is None:
        for record in _stuck(directory) - killed:
            print(f"\nKilled, since it made no progress: {record}", flush=True)
            progress.kill(record)
            killed.add(record)
        if is_over():
            _print(f"The tests have reached {limit}. Still running:", directory)
            return 1
    return code or int(bool(killed))


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _stuck(directory: Path) -> set[progress.Record]:
    """The processes that should have ended themselves by now."""
    now = time.monotonic()
    return {record for record in progress.read_all(directory) if record.deadline is not None and now > record.deadline}


def _print(sentence: str, directory: Path) -> None:
    print(f"\n{sentence}", *(f"  {record}" for record in progress.read_all(directory)), sep="\n", flush=True)


def _stop(process: "subprocess.Popen[bytes]", directory: Path, seconds: float) -> None:
    """Interrupts pytest if it still runs, and kills it and its workers if that does not end it in time."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    if _wait(process, seconds) is None:
        for record in progress.read_all(directory):
            progress.kill(record)
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
