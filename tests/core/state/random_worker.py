"""`python -m tests.core.state.random_worker DIRECTORY SEED NAME`: change the state at random.

Prints each change when it is done.
"""

import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.state.session_marks import Mark, Marks
from claude_code_mcp.core.state.session_records import MovedIds, SessionRecord, SessionRecords
from claude_code_mcp.core.state.spending import Spending
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.core.state.task_records import TaskRecord, TaskRecords

KINDS = ("write", "remove", "move", "mark", "unmark", "task", "spend")
SHARED = "everybody"
Step = tuple[str, int, int]
"""What is done, to which of the worker's own keys, with which number."""


def steps(seed: str) -> Iterator[Step]:
    """Without an end: a worker is killed, or waits until what it tells is read."""
    chance = random.Random(seed)
    for number in itertools.count(1):
        yield chance.choice(KINDS), chance.randrange(4), number


def session_id(name: str, key: int) -> str:
    return f"{int(name):08x}-0000-4000-8000-{key:012x}"


class Worker:
    """Does the steps of one seed on the database."""

    def __init__(self, directory: Path, name: str) -> None:
        database = database_in(directory)
        self.name = name
        self.records = SessionRecords(database, "/config")
        self.moved_ids = MovedIds(database, "/config")
        self.marks = Marks(database)
        self.tasks = TaskRecords(database)
        self.spending = Spending(database)

    def do(self, step: Step) -> None:
        kind, key, number = step
        own = session_id(self.name, key)
        match kind:
            case "write":
                self.records.write(record(own, number), durable=number % 2 == 0)
            case "remove":
                self.records.remove(own)
            case "move":
                new = session_id(self.name, key + 100)
                self.records.move(own, record(new, number), new)
            case "mark" | "unmark":
                self.marks.set(own, Mark.PINNED, kind == "mark")
            case "task":
                self.tasks.write(task(self.name, key, number))
            case "spend":
                self.spending.write(self.spending.note(SHARED, 1.0, own))


def record(own: str, number: int) -> SessionRecord:
    values = {"owner": "local", "created_at": 1.0, "used_at": 2.0, "cwd": "/src", "options": SessionOptions()}
    return SessionRecord(session_id=own, revision=number, spent_usd=float(number), **values)


def task(name: str, key: int, number: int) -> TaskRecord:
    return TaskRecord(
        task_id=f"task-{int(name):010d}-{key:010d}", owner="local", tool="t", created_at=1.0, updated_at=4e9 + number,
        ttl_ms=10**9,
    )  # fmt: skip


def main() -> None:
    directory, seed, name = sys.argv[1:]
    worker = Worker(Path(directory), name)
    for number, step in enumerate(steps(seed)):
        worker.do(step)
        print(number, flush=True)


if __name__ == "__main__":
    main()
