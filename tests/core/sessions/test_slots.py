"""Who gets a slot, who makes room and who waits: decided without a process."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.processes.memory import MachineMemory
from claude_code_mcp.core.sessions.live.slots import EXPECTED_BYTES, Slots

MIB = 1 << 20


class Holder:
    """A session as the slots see it; its process is gone as soon as it is told to go."""

    def __init__(self, slots: Slots, number: int, *, idle: bool = True) -> None:
        self._slots = slots
        self.used_at = float(number)
        self.pid: int | None = number
        self.can_park = idle

    def park(self) -> None:
        self.pid = None
        self.can_park = False
        self._slots.leave(self)


def holders(slots: Slots, count: int, *, idle: bool = True) -> list[Holder]:
    """Holders of slots, the least recently used first."""
    made = [Holder(slots, number, idle=idle) for number in range(1, count + 1)]
    for holder in made:
        slots.take(holder)
    return made


async def test_the_least_recently_used_idle_holder_makes_room() -> None:
    slots = Slots(3, 4)
    busy, used_again, idle = holders(slots, 3)
    busy.can_park = False
    used_again.used_at = 9.0
    slots.take(Holder(slots, 4))
    assert [one.pid is not None for one in (busy, used_again, idle)] == [True, True, False]
    assert slots.live == 3


async def test_start_is_refused_while_all_sessions_are_busy() -> None:
    slots = Slots(2, 4)
    working = holders(slots, 2, idle=False)
    with pytest.raises(LimitReached, match="MAX_SESSIONS"):
        slots.take(Holder(slots, 3))
    assert (slots.live, [one.pid for one in working]) == (2, [1, 2])
    slots.leave(working[0])
    slots.take(Holder(slots, 3))


async def test_who_takes_over_a_process_takes_its_slot() -> None:
    slots = Slots(1, 4)
    [spare] = holders(slots, 1, idle=False)
    slots.take(Holder(slots, 2), instead_of=spare)
    assert slots.live == 1


async def test_above_the_memory_limit_idle_processes_are_parked_the_least_recently_used_first() -> None:
    slots = Slots(9, 4, memory_limit=1000 * MIB)
    first, second, third = holders(slots, 3)
    first.used_at = 9.0
    plenty = MachineMemory(total=64 << 30, available=32 << 30)
    slots.take_measurement({1: 300 * MIB, 2: 300 * MIB, 3: 300 * MIB}, plenty)
    assert [one.pid is not None for one in (first, second, third)] == [True, True, True]
    slots.take_measurement({1: 400 * MIB, 2: 400 * MIB, 3: 400 * MIB}, plenty)
    assert [one.pid is not None for one in (first, second, third)] == [True, False, True]
    slots.take_measurement({1: 400 * MIB, 3: 400 * MIB}, MachineMemory(total=64 << 30, available=1 << 30))
    assert [one.pid is not None for one in (first, third)] == [True, False], "the machine itself is short of it"


@asynccontextmanager
async def starting(slots: Slots, holder: Holder) -> AsyncIterator["asyncio.Task[None]"]:
    """A holder that wants to start; the task ends when it may."""
    slots.take(holder)

    async def start() -> None:
        async with slots.spawning(slots.enqueue(holder)):
            pass

    task = asyncio.create_task(start())
    await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.wait([task])


async def test_sessions_waiting_for_memory_get_their_position_and_start_in_order() -> None:
    slots = Slots(9, 4, memory_limit=EXPECTED_BYTES)
    [working] = holders(slots, 1, idle=False)
    second, third = Holder(slots, 2, idle=False), Holder(slots, 3, idle=False)
    async with starting(slots, second) as two, starting(slots, third) as three:
        for place, holder in enumerate((second, third), 1):
            assert re.search(rf"\b{place}\b.*\b2\b", slots.wait_reason(holder) or "")
            assert "CLAUDE_CODE_MCP_MEMORY_LIMIT" in (slots.wait_reason(holder) or "")
        slots.leave(working)
        await two
        assert not three.done()
        slots.leave(second)
        await three
    assert (slots.wait_reason(second), slots.wait_reason(third), slots.waiting) == (None, None, 0)


async def test_who_gives_up_waiting_is_not_waited_for() -> None:
    slots = Slots(9, 4, memory_limit=EXPECTED_BYTES)
    holders(slots, 1, idle=False)
    async with starting(slots, Holder(slots, 2)):
        assert slots.waiting == 1
    assert slots.waiting == 0


async def test_zero_wait_refuses_a_start_unless_an_idle_process_is_parked() -> None:
    slots = Slots(9, 4, memory_limit=EXPECTED_BYTES, memory_wait=0)
    [idle] = holders(slots, 1)
    working = Holder(slots, 2, idle=False)
    slots.take(working)
    assert idle.pid is None
    with pytest.raises(LimitReached, match="MEMORY_LIMIT"):
        slots.take(Holder(slots, 3))
    assert slots.live == 1


async def test_concurrent_starts_are_limited() -> None:
    slots = Slots(9, 1)
    first, second = Holder(slots, 1, idle=False), Holder(slots, 2, idle=False)
    async with slots.spawning(slots.enqueue(first)), starting(slots, second) as two:
        assert not two.done()
        assert "starting" in (slots.wait_reason(second) or "")
    async with starting(slots, second) as two:
        await two


async def test_cancelled_start_leaves_the_queue() -> None:
    slots = Slots(2, 1)
    first, second = Holder(slots, 1), Holder(slots, 2)
    for holder in (first, second):
        slots.take(holder)
    place = slots.enqueue(first)
    async with starting(slots, second) as waiting:
        assert slots.wait_reason(second) is not None, "one at a time, and the first has its place at once"
        slots.dequeue(place)
        slots.dequeue(place)
        await waiting
