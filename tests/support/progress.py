"""The current phase of each process of a test run, in one small file per process.

A process that runs tests writes its file (tests/support/limits.py). The xdist controller reads the file of a crashed
worker (tests/support/lost_workers.py). The program that started pytest reads all files to kill a process that is stuck
(tests/support/run.py).
"""

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

ALONE = "main"
"""The name of the only process of a run without xdist. xdist names its workers gw0, gw1, …"""
WORKER_INPUT = "progress_directory"
"""The key of the directory in the input of an xdist worker."""
_DIRECTORY = pytest.StashKey[Path]()
_CLOCK_STEP = 2.0  # psutil counts from the time of boot in whole seconds, which moves when the clock is set


@dataclass(frozen=True, slots=True)
class Record:
    """The current phase of a process. Times are from the monotonic clock, which all processes share."""

    worker: str
    pid: int
    started: float
    """When the process started, from psutil: the process id alone may belong to another process by now."""
    doing: str
    since: float
    deadline: float | None
    """When tests/support/run.py kills the process, which should have exited by then; None while it is idle."""

    def __str__(self) -> str:
        return f"{self.worker}: {self.doing}, for {time.monotonic() - self.since:.0f} s"


class ProgressFile:
    """The file of this process."""

    def __init__(self, directory: Path, worker: str) -> None:
        self._path = _record_path(directory, worker)
        self._worker = worker
        self._started = psutil.Process().create_time()
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def write(self, doing: str, deadline: float | None) -> None:
        record = Record(self._worker, os.getpid(), self._started, doing, time.monotonic(), deadline)
        line = json.dumps(asdict(record)).encode() + b"\n"
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, line)  # in one call: a reader sees the line whole, and ignores the rest of a longer one

    def remove(self) -> None:
        os.close(self._file)
        self._path.unlink(missing_ok=True)


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--progress", metavar="DIRECTORY", help="where each process writes its current phase")


def directory_of(config: pytest.Config) -> Path:
    """The directory of this run, from the command line or the controller; a new one without either."""
    if _DIRECTORY not in config.stash:
        given: str | None = getattr(config, "workerinput", {}).get(WORKER_INPUT) or config.getoption("--progress")
        if given is None:
            given = tempfile.mkdtemp(prefix="test-run-")
            config.add_cleanup(lambda: shutil.rmtree(directory_of(config), ignore_errors=True))
        config.stash[_DIRECTORY] = Path(given)
    return config.stash[_DIRECTORY]


def worker_of(config: pytest.Config) -> str:
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    name: str = worker.get("workerid", ALONE)
    return name


def read(directory: Path, worker: str) -> Record | None:
    return _parse(_record_path(directory, worker))


def read_all(directory: Path) -> list[Record]:
    """Every process that has not finished."""
    return [record for path in sorted(directory.glob("*.json")) if (record := _parse(path)) is not None]


def stacks_path(directory: Path, worker: str) -> Path:
    """Where a worker leaves its stacks when it ends itself."""
    return directory / f"{worker}.stacks"


def read_stacks(directory: Path, worker: str) -> str:
    with suppress(FileNotFoundError):
        return stacks_path(directory, worker).read_text(encoding="utf-8", errors="replace")
    return ""


def forget(directory: Path, worker: str) -> None:
    """Removes what a worker has left."""
    _record_path(directory, worker).unlink(missing_ok=True)
    stacks_path(directory, worker).unlink(missing_ok=True)


def kill(record: Record) -> None:
    """Kills the process of this record, if it has not ended."""
    with suppress(psutil.Error):
        process = psutil.Process(record.pid)
        if abs(process.create_time() - record.started) < _CLOCK_STEP:
            process.kill()


def _record_path(directory: Path, worker: str) -> Path:
    return directory / f"{worker}.json"


def _parse(path: Path) -> Record | None:
    try:
        return Record(**json.loads(path.read_bytes().partition(b"\n")[0]))
    except (FileNotFoundError, ValueError):  # it has finished, or has written nothing yet
        return None
