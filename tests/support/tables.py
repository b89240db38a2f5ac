"""Tables of pure rows: one test for all of them, which names every row that fails.

`pytest.mark.parametrize` makes a test of each row, which takes a hundred times as long as a row that only computes.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def every_row(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Calls the test with each row as the values of these parameters. Fixtures that it takes too are shared by all
    rows. The test fails after the last row, with every row that has failed and why."""
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [row if len(parameters) > 1 else (row,) for row in rows]
    assert table, "a table without rows shows nothing"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed = []
            for row in table:
                try:
                    test(**dict(zip(parameters, row, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{row!r:.300}: {type(error).__name__}: {error}")
            assert not failed, f"{len(failed)} of {len(table)} rows failed:\n\n" + "\n\n".join(failed)

        signature = inspect.signature(test)
        kept = [value for name, value in signature.parameters.items() if name not in parameters]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
