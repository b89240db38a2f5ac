"""`--quick`: what a change needs first, in a minute and a half: a pytest plugin, used by `make test-quick`.

`pure` leaves out every test that starts programs: Claude Code, a browser, NATS or programs from npm, which is known by
the fixtures that it uses, and others by the mark `programs` of its file. `layer` is for the tests of one directory: it
keeps the pure ones and, of the others, the first case of each test.
"""

from typing import Any

import pytest

STARTS_PROGRAMS = frozenset({"model", "browser", "packages", "engine"})
"""The scripted model is there for Claude Code, and so every test that starts that has it."""


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--quick", choices=("pure", "layer"), help="leave out tests that start programs, or most of them")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choice = config.getoption("--quick")
    if choice is None:
        return
    seen: set[tuple[Any, str]] = set()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        key = item.parent, getattr(item, "originalname", item.name)
        is_first = key not in seen
        if not is_pure(item):
            seen.add(key)
        (kept if is_pure(item) or (choice == "layer" and is_first) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def is_pure(item: pytest.Item) -> bool:
    if item.get_closest_marker("programs") is not None:
        return False
    return STARTS_PROGRAMS.isdisjoint(getattr(item, "fixturenames", ()))
