"""Random changes from several processes that are killed in the middle, compared with a model."""

import itertools
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

from .random_worker import SHARED, Step, Worker, session_id, steps, task

pytestmark = pytest.mark.programs

WORKERS = 3


@dataclass
class Expected:
    """What the state must be after some steps of one worker."""

    revisions: dict[int, int] = field(default_factory=dict)
    pinned: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    tasks: dict[int, int] = field(default_factory=dict)
    spent: int = 0

    def take(self, step: Step) -> None:
        kind, key, number = step
        match kind:
            case "write":
                self.revisions[key] = number
            case "remove":
                self.revisions.pop(key, None)
            case "move":
                self.revisions[key + 100] = number
                self.moved.add(key)
            case "mark":
                self.pinned.add(key)
            case "unmark":
                self.pinned.discard(key)
            case "task":
                self.tasks[key] = number
            case "spend":
                self.spent += 1


def found_in(worker: Worker) -> Expected:
    """What the state is, of one worker; without the amounts, which all share."""
    found = Expected()
    for key in (*range(4), *range(100, 104)):
        own = session_id(worker.name, key)
        if (kept := worker.records.read(own)) is not None:
            found.revisions[key] = kept.revision
            assert kept.spent_usd == kept.revision, "a record is whole"
        if own in worker.marks.read().pinned:
            found.pinned.add(key)
        if worker.moved_ids.resolve(own) != own:
            found.moved.add(key)
        if key < 4 and (kept_task := worker.tasks.read(task(worker.name, key, 0).task_id, "local")) is not None:
            found.tasks[key] = round(kept_task.updated_at - 4e9)
    return found


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.time_limit(3600)])])
def test_what_was_done_before_a_kill_is_there_and_nothing_is_half_done(tmp_path: Path, rounds: int) -> None:
    seed = int(os.environ.get("SEED", "20261116"))
    print(f"SEED={seed}")
    chance, least, most = random.Random(seed), 0, 0
    for number in range(rounds):
        names = [str(number * WORKERS + index + 1) for index in range(WORKERS)]
        workers = {name: start(tmp_path, f"{seed}/{name}", name) for name in names}
        done = {name: killed_after(process, chance.randrange(1, 60)) for name, process in workers.items()}
        for name in names:
            before, after = compare(tmp_path, f"{seed}/{name}", name, done[name])
            least, most = least + before, most + after
    worker = Worker(tmp_path, "0")
    worker.spending.refresh()
    assert least <= round(worker.spending.today(SHARED)) <= most


def start(directory: Path, seed: str, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.core.state.random_worker", str(directory), seed, name]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def killed_after(process: "subprocess.Popen[str]", steps_done: int) -> int:
    """How many steps the worker has told as done before it was killed, soon after so many."""
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(steps_done)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    whole = [line for line in lines if line.endswith("\n")]
    return int(whole[-1]) + 1


def compare(directory: Path, seed: str, name: str, done: int) -> tuple[int, int]:
    """The state is that after the steps that were told as done, or after the one behind them. Returns how many amounts
    were spent at least and at most."""
    found, expected, everything = found_in(Worker(directory, name)), Expected(), steps(seed)
    for step in itertools.islice(everything, done):
        expected.take(step)
    least, unfinished = expected.spent, next(everything)
    if not same(found, expected):
        expected.take(unfinished)
        assert same(found, expected), f"worker {name} of {seed} after {done}: {found}"
    return least, least + (unfinished[0] == "spend")


def same(found: Expected, expected: Expected) -> bool:
    return (found.revisions, found.pinned, found.moved, found.tasks) == (
        expected.revisions, expected.pinned, expected.moved, expected.tasks,
    )  # fmt: skip
