"""The table of promises and the tests that keep them, compared both ways."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .promises import PROMISES

HERE = Path(__file__).parent


def _named(path: Path) -> Iterator[tuple[str, bool]]:
    """The ids in `@pytest.mark.promise(...)` on the tests of a file, and whether `make test` runs the test."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        marks = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
        runs = "pytest.mark.soak" not in map(ast.unparse, marks)
        for mark in marks:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                yield from ((ast.literal_eval(argument), runs) for argument in mark.args)


@cache
def named() -> set[tuple[str, bool]]:
    """Every id on a test of this directory."""
    return {name for path in HERE.glob("test_*.py") for name in _named(path)}


def test_every_promise_has_a_test() -> None:
    assert sorted(PROMISES.keys() - {name for name, runs in named() if runs}) == []


def test_every_test_keeps_a_known_promise() -> None:
    assert sorted({name for name, _ in named()} - PROMISES.keys()) == []
