"""A service that tests share, with sessions that wait for their next message: the start of a Claude Code process
costs ten times what a turn does.

A test that uses it runs on the loop of the service, which `on_shared_loop` from `.support` says. A test that ends a
session's process, changes its permissions, or counts what there is in HOME starts a `service` of its own.
"""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN

from .support import SharedSessions

PARKED_AFTER_MS = 60_000
"""A shared session that no test has asked for in this time need not keep its process."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sessions_of_the_run(
    tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread
) -> AsyncIterator[SharedSessions]:
    place = Sandbox(tmp_path_factory.mktemp("shared"), model.url)
    settings = load_settings({}, state_dir=place.root / "state", idle_park_ms=PARKED_AFTER_MS)
    async with Service(settings, place.environment(**{RUN: os.environ[RUN]})) as service:
        yield SharedSessions(service, place)


@pytest_asyncio.fixture(loop_scope="session")
async def shared(sessions_of_the_run: SharedSessions) -> AsyncIterator[SharedSessions]:
    """The shared service. What the test has left running is ended, and the project is empty again."""
    yield sessions_of_the_run
    for session in sessions_of_the_run.service.sessions():
        if session.busy:
            await sessions_of_the_run.service.interrupt(session.id)
    for path in sessions_of_the_run.sandbox.project.iterdir():
        with contextlib.suppress(NotADirectoryError):
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
