"""`make bench`: runs every benchmark (or those named on the command line) and prints one table."""

import argparse
import asyncio
import importlib
import os
import sys
import time
from collections.abc import Sequence

from .common import BENCHMARKS, Figure, temporary_place

_MODULES = (
    "turns",
    "permission",
    "events",
    "memory",
    "catalogue",
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
_HEADINGS = ("", "against", "engine", "measured", "goal", "")


def main(argv: Sequence[str]) -> int:
    """Exits with 0 also when a goal is missed: that is a finding, not a failure of the run."""
    for module in _MODULES:
        importlib.import_module(f".{module}", __package__)
    known = [benchmark.__name__ for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these, of {', '.join(known)}")
    names = parser.parse_args(argv).names
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    began = time.perf_counter()
    figures = asyncio.run(_run(names))
    _print_table([_HEADINGS, *(_cells(figure) for figure in figures)])
    missed = [figure.name for figure in figures if not figure.met]
    print(f"\n{time.perf_counter() - began:.0f} s, {os.cpu_count()} cores; medians with their middle half.")
    print(f"Goals missed: {'; '.join(missed)}." if missed else "All goals met.")
    return 0


async def _run(names: Sequence[str]) -> list[Figure]:
    figures: list[Figure] = []
    with temporary_place() as place:
        for benchmark in BENCHMARKS:
            if not names or benchmark.__name__ in names:
                print(f"… {benchmark.__doc__}", file=sys.stderr, flush=True)
                figures += await benchmark(place)
    return figures


def _cells(figure: Figure) -> tuple[str, ...]:
    verdict = "met" if figure.met else "MISSED"
    return (figure.name, figure.base, figure.engine, figure.measured, figure.goal, verdict)


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
