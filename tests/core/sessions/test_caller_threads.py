"""Reads of directories that do not answer delay only the caller who asked for them."""

import asyncio
import threading

import pytest

from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.core.sessions.callers.caller_threads import CallerThreads
from tests.support.waiting import HANG_SECONDS


async def test_hanging_read_times_out_without_blocking_others() -> None:
    threads, released, begun = CallerThreads(max_seconds=0.2), threading.Event(), threading.Semaphore(0)

    def hang() -> str:
        begun.release()
        assert released.wait(HANG_SECONDS)
        return "late"

    try:
        for _ in range(5):
            with pytest.raises(UpstreamUnavailable, match="does not respond"):
                await threads.run("eve", hang)
        assert begun.acquire(timeout=HANG_SECONDS)
        assert begun.acquire(timeout=HANG_SECONDS)
        assert not begun.acquire(blocking=False), "a caller has two threads at most"
        assert await CallerThreads().run("eve", lambda: 1) == 1
        patient = CallerThreads()
        waiting = [asyncio.ensure_future(patient.run("eve", hang)) for _ in range(3)]
        assert await patient.run("alice", lambda: "here") == "here"
    finally:
        released.set()
    assert await asyncio.gather(*waiting) == ["late"] * 3
    # What hung has ended: its place is free.
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            try:
                assert await threads.run("eve", lambda: 2) == 2
                break
            except UpstreamUnavailable:
                pass


async def test_what_fails_fails_for_the_caller_and_one_who_left_gives_the_place_back() -> None:
    threads, released = CallerThreads(), threading.Event()

    def fail() -> None:
        raise PermissionError("no")

    for _ in range(3):
        with pytest.raises(PermissionError, match="no"):
            await threads.run("eve", fail)
    left = [asyncio.ensure_future(threads.run("eve", lambda: released.wait(HANG_SECONDS))) for _ in range(3)]
    await asyncio.sleep(0)
    for each in left:
        each.cancel()
    await asyncio.wait(left)
    released.set()
    assert await threads.run("eve", lambda: 3) == 3
