"""Fixtures of the shared server: every test has one of its own, in a directory of its own."""

from collections.abc import Iterator

import pytest

from claude_code_mcp.testing import Sandbox
from tests.scenarios.real_clients.packages import Packages, install
from tests.support.npm import Unavailable

from .support import SharedPlace, shared_place


@pytest.fixture(scope="session")
def packages() -> Packages:
    try:
        return install()
    except Unavailable as error:
        pytest.skip(f"foreign clients cannot run here: {error}")


@pytest.fixture
def shared(sandbox: Sandbox, environment: dict[str, str]) -> Iterator[SharedPlace]:
    with shared_place(sandbox, environment) as place:
        yield place
