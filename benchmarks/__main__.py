"""`make bench`: runs every benchmark, or those named on the command line, and prints a table.

Each benchmark runs in its own process with its own home directory, scripted model and time limit. Its rows are printed
as soon as they are measured. A benchmark that fails is a row with the reason; its whole output is in build/bench. The
exit code is 1 if a benchmark failed, and 0 if a goal was missed: that is a result.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.support import leftovers

from .common import BENCHMARKS, Benchmark, Figure

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench"
LIMIT_SECONDS = 20 * 60.0
"""For one benchmark. The slowest takes two minutes on a quiet machine."""
_MODULES = (
    "turns",
    "permission",
    "events",
    "memory",
    "catalog",
    "state",
    "crowd",
    "hub",
    "hub_sharing",
    "startup",
    "shared",
    "tool_call",
    "streaming",
    "terminal",
    "watchers",
    "tracing",
    "fleet",
    "fleet_takeover",
)
_HEADINGS = ("benchmark", "against", "engine", "measured", "goal", "result")
_WIDTHS = (52, 48, 30, 18, 14, 0)  # rows are printed before the later ones are known


def main(argv: Sequence[str]) -> int:
    for module in _MODULES:
        importlib.import_module(f".{module}", __package__)
    known = [benchmark.__name__ for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these, of {', '.join(known)}")
    names = parser.parse_args(argv).names
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    return run([benchmark for benchmark in BENCHMARKS if not names or benchmark.__name__ in names])


def run(benchmarks: Sequence[Benchmark], output: Path = OUTPUT, limit: float = LIMIT_SECONDS) -> int:
    """Runs the benchmarks, one after the other, and prints the table. Returns the exit code."""
    output.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    figures = 0
    missed: list[str] = []
    failed: list[str] = []
    _print_row(_HEADINGS)
    for benchmark in benchmarks:
        log = output / f"{benchmark.__name__}.log"
        print(f"{benchmark.__name__}: {benchmark.__doc__}", flush=True)
        try:
            for figure in measure(benchmark, log, limit):
                _print_row(_cells(figure))
                figures += 1
                if not figure.met:
                    missed.append(figure.name)
        except BenchmarkFailed as problem:
            _print_row(("failed", str(problem)))
            failed.append(benchmark.__name__)
    print(f"\n{time.perf_counter() - began:.0f} s, {os.cpu_count()} cores; medians with their middle half.")
    print(f"Goals missed: {'; '.join(missed)}." if missed else f"All {figures} goals met.")
    if failed:
        print(f"Failed: {', '.join(failed)}. Their output is in {output}.")
    return 1 if failed else 0


class BenchmarkFailed(Exception):
    """A benchmark has no result. The text is one line."""


def measure(benchmark: Benchmark, log: Path, limit: float) -> list[Figure]:
    """Runs a benchmark in its own process, which writes to the log; raises BenchmarkFailed.

    Programs that the benchmark leaves running are killed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-home-", ignore_cleanup_errors=True) as home:
        result, mark = Path(home) / "result.json", uuid.uuid4().hex
        command = [sys.executable, "-m", "benchmarks.row", benchmark.__module__, benchmark.__name__, str(result)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**_environment(home), leftovers.RUN: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            raise BenchmarkFailed(f"no result after {limit:.0f} s") from None
        finally:
            process.kill()
            process.wait()
            leftovers.end_marked(mark)
        try:
            written = json.loads(result.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BenchmarkFailed(f"the process ended with exit code {process.returncode}") from None
    if "error" in written:
        raise BenchmarkFailed(written["error"])
    return [Figure(**figure) for figure in written["figures"]]


def _environment(home: str) -> dict[str, str]:
    """This process's environment with another home directory, and without settings of Claude Code or of the product."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "CLAUDE", "XDG_"))}
    return {**kept, "HOME": home}


def _cells(figure: Figure) -> tuple[str, ...]:
    verdict = "met" if figure.met else "MISSED"
    return (figure.name, figure.base, figure.engine, figure.measured, figure.goal, verdict)


def _print_row(cells: Sequence[str]) -> None:
    print("  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)).rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
