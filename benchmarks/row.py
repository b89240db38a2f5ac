"""Runs one benchmark in this process: `python -m benchmarks.row MODULE FUNCTION RESULT`.

RESULT is a file that gets the figures, or the error in one line. The traceback goes to stderr.
"""

import asyncio
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .common import Benchmark, Figure, Place, temporary_place

_MAX_REASON = 200  # characters of an error in the table; the traceback has all of it


def main(module: str, function: str, result: Path) -> int:
    benchmark: Benchmark = getattr(importlib.import_module(module), function)
    try:
        with temporary_place() as place:
            figures = asyncio.run(_measure(benchmark, place))
    except Exception as problem:
        traceback.print_exc()
        _write(result, {"error": reason(problem)})
        return 1
    _write(result, {"figures": [asdict(figure) for figure in figures]})
    return 0


async def _measure(benchmark: Benchmark, place: Place) -> Sequence[Figure]:
    return await benchmark(place)


def reason(problem: BaseException) -> str:
    """An error as one line: its type and the first line of its text; of a group, its first error."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    name, text = type(problem).__name__, str(problem).strip()
    text = f"{name}: {text.splitlines()[0]}" if text else name
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"


def _write(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
