"""Providers of sign-ins: a foreign issuer, and the server's own."""

from collections.abc import Iterator

import pytest

from claude_code_mcp.testing import ScriptedModelThread

from .embedded import Embedded, embedded
from .issuer import Issuer, issuing


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Embedded]:
    with embedded(tmp_path_factory.mktemp("embedded"), model.url).running() as started:
        yield started
