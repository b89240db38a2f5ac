"""Work on the disk for one caller holds up no other, however much of it there is."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from claude_code_mcp.core.model.caller import LOCAL, Caller, ClientEnvironment
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.stored.disk_threads import DiskThreads
from claude_code_mcp.core.transcripts.session_catalog import CatalogEntries
from claude_code_mcp.testing import Sandbox
from tests.support.waiting import HANG_SECONDS

MANY = 100
"""More than the event loop has threads."""


class Held:
    """A reader of a disk that does not answer until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.count = 0
        self._released = threading.Event()

    def read(self, **_: object) -> CatalogEntries:
        self.count += 1
        self.begun.release()
        assert self._released.wait(HANG_SECONDS)
        return []

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.release()


@pytest.mark.parametrize("text", [None, "a text"])
async def test_a_list_runs_while_all_that_another_caller_asks_for_is_held(
    service: Service, sandbox: Sandbox, held: Held, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def caller(name: str) -> Caller:
        directory = str(sandbox.root / name)
        variables = sandbox.environment(CLAUDE_CONFIG_DIR=directory)
        return Caller(LOCAL, ClientEnvironment(str(sandbox.project), variables, name))

    ann, bob = caller("ann"), caller("bob")
    # Kept, so that they are the same for every call.
    deps = service._environments.of(ann), service._environments.of(bob)
    monkeypatch.setattr(deps[0].stores.catalog, "list", held.read)
    calls = [asyncio.ensure_future(service.stored.entries(caller=ann, text=text)) for _ in range(MANY)]
    assert await asyncio.to_thread(held.begun.acquire, timeout=HANG_SECONDS)
    for looked_for in (None, "a text"):
        assert await asyncio.wait_for(service.stored.entries(caller=bob, text=looked_for), HANG_SECONDS) == []
    assert not any(call.done() for call in calls)
    held.release()
    assert await asyncio.gather(*calls) == [[]] * MANY


async def test_abandoned_requests_use_no_more_threads(held: Held) -> None:
    threads = DiskThreads(2)
    for _ in range(3):
        calls = [asyncio.ensure_future(threads.run(held.read)) for _ in range(10)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert await asyncio.to_thread(held.begun.acquire, timeout=HANG_SECONDS)
    last = asyncio.ensure_future(threads.run(lambda: held.count))
    held.release()
    assert await last <= 2
