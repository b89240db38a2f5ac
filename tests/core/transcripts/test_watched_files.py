"""Who follows a file is woken when it changes, not more than twice a second, by the kernel or by a library."""

import asyncio
import os
import resource
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.transcripts.watched_files import (
    INTERVAL,
    FileFollower,
    KernelReports,
    LibraryReports,
    WatchedFile,
)
from tests.support.clock import stopped_clock
from tests.support.waiting import HANG_SECONDS

kernel = pytest.param(KernelReports, marks=pytest.mark.skipif(sys.platform != "linux", reason="inotify"))


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more\n")


@pytest.mark.parametrize("reports", [kernel, LibraryReports])
async def test_change_notifies_only_followers_of_the_file(tmp_path: Path, reports: Any) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    follower = FileFollower(reports)
    async with (
        follower.follow(str(mine)) as following,
        follower.follow(str(other)) as elsewhere,
        asyncio.timeout(HANG_SECONDS),
    ):
        if reports is LibraryReports:  # it looks once when it has begun to watch
            await following.changed()
            await elsewhere.changed()
        waiting = asyncio.create_task(elsewhere.changed())
        for _ in range(2):
            append(mine)
            await following.changed()
        assert not waiting.done()
        append(other)
        await waiting


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
async def test_many_changes_are_one_update_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "file"
    async with FileFollower().follow(str(path)) as following:
        with stopped_clock() as clock:
            append(path)
            await following.changed()
            for _ in range(3):
                for _ in range(1000):
                    append(path)
                update = asyncio.create_task(following.changed())
                await clock.advance(INTERVAL * 0.99)
                assert not update.done()
                await clock.advance(INTERVAL * 0.01)
                await update
            nothing_more = asyncio.create_task(following.changed())
            await clock.advance(10 * INTERVAL)
            assert not nothing_more.done()
            nothing_more.cancel()


async def test_where_a_directory_cannot_be_watched_the_follower_looks_for_itself(tmp_path: Path) -> None:
    async with FileFollower().follow(str(tmp_path / "gone" / "file")) as following, asyncio.timeout(HANG_SECONDS):
        assert following.blind
        await following.changed()


@pytest.mark.parametrize("reports", [kernel, LibraryReports])
async def test_a_directory_that_cannot_be_watched_is_watched_for_none_of_its_followers(
    tmp_path: Path, reports: Any
) -> None:
    path, follower = str(tmp_path / "gone" / "file"), FileFollower(reports)
    async with follower.follow(path) as first, follower.follow(path) as second:
        assert (first.blind, second.blind) == (True, True)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
async def test_a_directory_that_comes_later_is_watched_for_the_next_follower(tmp_path: Path) -> None:
    path, follower = tmp_path / "later" / "file", FileFollower()
    async with follower.follow(str(path)) as first:
        path.parent.mkdir()
        async with follower.follow(str(path)) as second, asyncio.timeout(HANG_SECONDS):
            assert (first.blind, second.blind) == (True, False)
            append(path)
            await second.changed()


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
async def test_no_descriptor_is_open_without_followers(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    follower = FileFollower()
    async with follower.follow(str(tmp_path / "a")), follower.follow(str(tmp_path / "b")):
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
async def test_follower_waits_for_the_settle_time_without_inotify(
    tmp_path: Path,
) -> None:
    # With no descriptor left for the kernel's reports, the file is looked at again and again.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with AsyncExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            watched = await stack.enter_async_context(WatchedFile(str(tmp_path / "file"), lambda: None))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        unchanged = asyncio.ensure_future(watched.wait(HANG_SECONDS))
        for _ in range(2):  # it has begun by the second
            await watched.wait()
        assert not unchanged.done()
        unchanged.cancel()
        await asyncio.wait([unchanged])
