"""What all benchmarks share: a place to run in, numbers with their spread, and the list of benchmarks."""

import gc
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.scripted_model import SHORT_RUN
from tests.support.leftovers import RUN


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    base: str
    """What it is measured against."""
    engine: str
    measured: str
    goal: str
    met: bool


class Place:
    """A private home and project for the CLI, and a scripted model in a process of its own."""

    def __init__(self, root: Path, model_url: str) -> None:
        self.sandbox = Sandbox(root, model_url)
        environment = self.sandbox.environment()
        # Claude Code as people have it, not as it is quickest in tests.
        self.environment = {name: value for name, value in environment.items() if name not in SHORT_RUN}
        self.environment[RUN] = os.environ[RUN]  # so that a program which is left running is found
        self.executable = find_executable()
        self.cwd = str(self.sandbox.project)

    def service(self, extra: Mapping[str, str] | None = None, /, **settings: Any) -> Service:
        """A service that runs in this place; `extra` adds to the environment of its processes."""
        values = {"state_dir": self.sandbox.root / "state", "claude_path": self.executable, **settings}
        return Service(load_settings({}, **values), {**self.environment, **(extra or {})})


Benchmark = Callable[[Place], Awaitable[Sequence[Figure]]]
BENCHMARKS: list[Benchmark] = []


def benchmark(function: Benchmark) -> Benchmark:
    """Adds a function to the run, under its name; its docstring is its title."""
    assert function.__name__ not in {known.__name__ for known in BENCHMARKS}, function.__name__
    BENCHMARKS.append(function)
    return function


@contextmanager
def temporary_place() -> Iterator[Place]:
    """A place in a new directory, with its scripted model; both are gone afterward."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as root, _model() as url:
        yield Place(Path(root), url)


@contextmanager
def _model() -> Iterator[str]:
    command = [sys.executable, "-m", "claude_code_mcp.testing"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[3]
        finally:
            process.terminate()


@contextmanager
def no_collection() -> Iterator[None]:
    """A measurement that the garbage collector does not interrupt at random."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pairs(count: int) -> Iterator[bool]:
    """For runs in pairs: whether the engine goes first this time, so that neither side gains by its place."""
    return (number % 2 == 1 for number in range(count))


def spread(values: Sequence[float], unit: str = "ms") -> str:
    """The median and the middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} {unit} [{low:.1f}…{high:.1f}]"


def ratio(name: str, base: Sequence[float], engine: Sequence[float], goal: float, unit: str = "ms") -> Figure:
    """The median ratio of pairs that were measured side by side."""
    measured = statistics.median(ours / theirs for theirs, ours in zip(base, engine, strict=True))
    return Figure(name, spread(base, unit), spread(engine, unit), f"{measured:.2f}×", f"≤ {goal:g}×", measured <= goal)


def difference(name: str, base: Sequence[float], engine: Sequence[float], goal: float, unit: str = "ms") -> Figure:
    """The median difference of pairs that were measured side by side."""
    measured = statistics.median(ours - theirs for theirs, ours in zip(base, engine, strict=True))
    return Figure(
        name,
        spread(base, unit),
        spread(engine, unit),
        f"{measured:+.1f} {unit}",
        f"≤ +{goal:g} {unit}",
        measured <= goal,
    )
