"""Tasks of a service: what fails is logged by its name, and a watch that fails begins anew."""

import asyncio
from functools import partial

import pytest

from claude_code_mcp.core.sessions.background_tasks import BackgroundTasks
from tests.support.waiting import HANG_SECONDS


async def test_a_watch_that_fails_begins_again_and_ends_with_the_service(caplog: pytest.LogCaptureFixture) -> None:
    rounds = 0
    goes_on = asyncio.Event()

    async def watch_something() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 3:
            raise OSError("the disk is away")
        goes_on.set()
        await asyncio.Event().wait()

    tasks = BackgroundTasks()
    tasks.watch(partial(watch_something), pause=0)
    await asyncio.wait_for(goes_on.wait(), HANG_SECONDS)
    await tasks.close(HANG_SECONDS)
    assert rounds == 3
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert all("watch_something" in message for message in messages)


async def test_a_task_that_fails_is_logged_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def break_down() -> None:
        raise OSError("no such thing")

    tasks = BackgroundTasks()
    task = tasks.start(break_down())
    await asyncio.wait([task])
    await asyncio.sleep(0)  # for the callback of its end
    (record,) = caplog.records
    assert record.message.endswith("break_down failed")
