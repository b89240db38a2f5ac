"""`--shuffle SEED`: tests in another order, to find those that need what another one has left: a pytest plugin.

Directories and files come in an order that follows from the seed, and so do the tests of a file, which stay together:
what a file shares is started once. Every worker of a run has the same order. `make soak` runs all tests so, and prints
the seed, which repeats the order.
"""

import random
from itertools import groupby

import pytest


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in an order that follows from this seed")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        items[:] = shuffled(items, seed)


def shuffled(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """The same items, those of a file behind each other."""
    order = random.Random(seed)
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    return [item for tests in files for item in tests]


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--shuffle")
    return f"shuffled: --shuffle {seed}" if seed is not None else None
