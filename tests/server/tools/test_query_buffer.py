"""What waits for a client: all of it for one that reads, a bounded part for one that does not."""

import asyncio

from claude_code_mcp.server.tools.notification_queue import NotificationQueue, Numbered
from tests.support.clock import settled


def item(number: int, size: int = 1) -> Numbered:
    return Numbered(number, {"n": number}, 0.0, size)


async def rest(backlog: NotificationQueue) -> list[int]:
    backlog.close()
    return [item.sequence async for piece in backlog for item in piece]


async def test_events_arrive_in_order() -> None:
    backlog = NotificationQueue(capacity=100)
    for number in range(100):
        backlog.put(item(number))
    assert await rest(backlog) == list(range(100))
    assert backlog.lost == 0


async def test_the_oldest_are_lost_by_number() -> None:
    backlog = NotificationQueue(capacity=3)
    for number in range(10):
        backlog.put(item(number))
    assert await rest(backlog) == [7, 8, 9]
    assert backlog.lost == 7


async def test_the_oldest_are_lost_by_size() -> None:
    backlog = NotificationQueue(max_bytes=100)
    for number in range(10):
        backlog.put(item(number, size=40))
    assert await rest(backlog) == [8, 9]
    assert backlog.lost == 8


async def test_one_that_is_too_large_alone_still_comes() -> None:
    backlog = NotificationQueue(max_bytes=100)
    backlog.put(item(1, size=1000))
    assert await rest(backlog) == [1]


async def test_pieces_are_bounded_by_number_and_by_size() -> None:
    backlog = NotificationQueue()
    for number in range(150):
        backlog.put(item(number))
    backlog.put(item(150, size=200 << 10))
    backlog.put(item(151, size=200 << 10))
    backlog.put(item(152, size=1 << 20))
    backlog.close()
    assert [len(piece) async for piece in backlog] == [100, 51, 1, 1]


async def test_all_is_read_only_when_the_reader_comes_back() -> None:
    backlog, busy = NotificationQueue(), asyncio.Event()

    async def read() -> None:
        async for _ in backlog:
            await busy.wait()

    backlog.put(item(1))
    reading, waiting = asyncio.ensure_future(read()), asyncio.ensure_future(backlog.all_read())
    await settled()
    assert not waiting.done()
    busy.set()
    await waiting
    backlog.close()
    await reading


async def test_what_comes_while_the_reader_reports_back_is_waited_for() -> None:
    backlog = NotificationQueue()
    read: list[int] = []

    async def reader() -> None:
        async for piece in backlog:
            read.extend(item.sequence for item in piece)

    async def waiter() -> list[int]:
        await backlog.all_read()
        return list(read)

    waiting = asyncio.ensure_future(waiter())
    reading = asyncio.ensure_future(reader())
    await asyncio.sleep(0)  # the reader starts, finds nothing and says so; whoever waits is about to be woken
    backlog.put(Numbered(1, {}, 0.0, 1))
    assert await waiting == [1]
    backlog.close()
    await reading
