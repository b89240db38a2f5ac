"""Conversations in the stream: in order, nothing twice, one writer."""

import asyncio
import uuid
from typing import Any

import pytest
from nats.js.api import StreamConfig

from claude_code_mcp.plugins.fleet import names, transcripts
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.leases import Holding
from claude_code_mcp.plugins.fleet.transcripts import FleetUnavailable, LostSession, TranscriptStore
from tests.support.waiting import HANG_SECONDS

SESSION = "11111111-1111-4111-8111-111111111111"


def held(epoch: int) -> Holding:
    return Holding(SESSION, "m", epoch, "", 0)


def entry(text: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "user", "uuid": str(uuid.uuid4()), "text": text, **more}


def marker(text: str) -> dict[str, Any]:
    return {"type": "custom-title", "customTitle": text}


async def test_entries_of_any_size_come_back_in_order(fleet: FleetConnection) -> None:
    store = TranscriptStore(fleet)
    wanted = [entry("small"), entry("ä\ud800" + "x" * (3 << 20)), entry("last"), marker("a title")]
    await store.append(SESSION, wanted[:2], holding=held(1))
    await store.append(SESSION, wanted[2:], holding=held(1))
    assert await TranscriptStore(fleet).load(SESSION) == wanted


async def test_a_subagent_has_a_file_of_its_own(fleet: FleetConnection) -> None:
    store, main, sub = TranscriptStore(fleet), entry("main"), entry("sub")
    await store.append(SESSION, [main], holding=held(1))
    # The same uuid in another file is another entry.
    await store.append(SESSION, [sub, main], holding=held(1), path="subagents/agent-a")
    assert await store.load_all(SESSION) == {"": [main], "subagents/agent-a": [sub, main]}


async def test_an_entry_comes_once_however_often_and_whenever_it_is_appended(fleet: FleetConnection) -> None:
    # Without any memory of duplicates in NATS: only what is in the stream decides.
    info = await fleet.jetstream.stream_info(names.TRANSCRIPTS)
    await fleet.jetstream.update_stream(StreamConfig(**{**vars(info.config), "duplicate_window": 0.1}))
    first, second = entry("one"), entry("two")
    await TranscriptStore(fleet).append(SESSION, [first, first], holding=held(1))
    await TranscriptStore(fleet).append(SESSION, [first, second], holding=held(1))
    later = TranscriptStore(fleet)
    await later.append(SESSION, [second], holding=held(2))
    assert await later.load(SESSION) == [first, second]


async def test_a_writer_of_an_earlier_epoch_has_lost_the_session(fleet: FleetConnection) -> None:
    old, new = TranscriptStore(fleet), TranscriptStore(fleet)
    first = entry("of the first machine")
    await old.append(SESSION, [first], holding=held(1))
    await new.fence(SESSION, held(2))
    for _ in range(2):  # also when it looks again
        with pytest.raises(LostSession):
            await old.append(SESSION, [entry("stale")], holding=held(1))
    with pytest.raises(LostSession):
        await TranscriptStore(fleet).append(SESSION, [entry("stale")], holding=held(1))
    second = entry("of the second machine")
    await new.append(SESSION, [second], holding=held(2))
    assert await new.load(SESSION) == [first, second]


async def test_a_conversation_that_is_deleted_while_it_is_read_is_not_waited_for(
    fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "_FETCH_SECONDS", 0.5)
    store = TranscriptStore(fleet)
    await store.append(SESSION, [entry("one")], holding=held(1))
    subscribe = fleet.jetstream.pull_subscribe

    async def after_a_deletion(*args: Any, **kwargs: Any) -> Any:
        await fleet.jetstream.purge_stream(names.TRANSCRIPTS, subject=names.transcript(SESSION))
        return await subscribe(*args, **kwargs)

    monkeypatch.setattr(fleet.jetstream, "pull_subscribe", after_a_deletion)
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(FleetUnavailable):
            await store.load(SESSION)


async def test_second_writer_of_an_epoch_replaces_the_first(fleet: FleetConnection) -> None:
    one, two = TranscriptStore(fleet), TranscriptStore(fleet)
    await one.append(SESSION, [entry("a")], holding=held(1))
    await two.append(SESSION, [entry("b")], holding=held(1))
    with pytest.raises(LostSession):
        await one.append(SESSION, [entry("c")], holding=held(1))
    loaded = await two.load(SESSION)
    assert loaded is not None
    assert [each["text"] for each in loaded] == ["a", "b"]


class LossyConnection:
    """JetStream whose acknowledgments are lost while `losing`: what was published has arrived all the same."""

    def __init__(self, connection: FleetConnection) -> None:
        self._jetstream = connection.jetstream
        self.jetstream = self
        self.losing = 0
        self.delayed: list[Any] = []
        self.delaying = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jetstream, name)

    async def publish(self, *arguments: Any, **how: Any) -> Any:
        if self.delaying:  # as the client's own buffer does while it connects again
            self.delayed.append((arguments, how))
            raise TimeoutError
        reply = await self._jetstream.publish(*arguments, **how)
        if self.losing:
            self.losing -= 1
            raise TimeoutError
        return reply

    async def deliver(self) -> list[BaseException | Any]:
        waiting, self.delayed, self.delaying = self.delayed, [], False
        sent = [self._jetstream.publish(*arguments, **how) for arguments, how in waiting]
        return await asyncio.gather(*sent, return_exceptions=True)


@pytest.mark.parametrize("size", [1, 2 << 20])
async def test_message_with_a_lost_acknowledgment_is_delivered_once(fleet: FleetConnection, size: int) -> None:
    lossy = LossyConnection(fleet)
    store = TranscriptStore(lossy)  # type: ignore[arg-type]
    await store.append(SESSION, [entry("before")], holding=held(1))
    # A title has no uuid: only the batch itself tells that it is there.
    batch = [marker("a title"), entry("x" * size)]
    lossy.losing = 1
    with pytest.raises(FleetUnavailable):
        await store.append(SESSION, batch, holding=held(1))
    await store.append(SESSION, batch, holding=held(1))
    await store.append(SESSION, [marker("a title")], holding=held(1))
    loaded = await store.load(SESSION)
    assert loaded is not None
    assert loaded[1:] == [*batch, marker("a title")]


async def test_late_messages_are_accepted_or_refused_but_never_duplicated(fleet: FleetConnection) -> None:
    lossy = LossyConnection(fleet)
    store = TranscriptStore(lossy)  # type: ignore[arg-type]
    await store.append(SESSION, [entry("before")], holding=held(1))
    taken, refused = [marker("taken")], [marker("refused")]
    lossy.delaying = True
    with pytest.raises(FleetUnavailable):
        await store.append(SESSION, taken, holding=held(1))
    await lossy.deliver()
    await store.append(SESSION, taken, holding=held(1))
    lossy.delaying = True
    with pytest.raises(FleetUnavailable):
        await store.append(SESSION, refused, holding=held(1))
    lossy.delaying = False
    await store.append(SESSION, refused, holding=held(1))
    [late] = await lossy.deliver()
    assert isinstance(late, Exception)
    loaded = await store.load(SESSION)
    assert loaded is not None
    assert loaded[1:] == [*taken, *refused]


async def test_incomplete_batch_of_a_killed_writer_is_ignored(
    fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "PART_BYTES", 100)
    lossy = LossyConnection(fleet)
    dying = TranscriptStore(lossy)  # type: ignore[arg-type]
    first, long = entry("first"), entry("x" * 1000)
    await dying.append(SESSION, [first], holding=held(1))
    lossy.losing = 1
    with pytest.raises(FleetUnavailable):
        await dying.append(SESSION, [long], holding=held(1))
    later = TranscriptStore(fleet)
    assert await later.load(SESSION) == [first]
    await later.append(SESSION, [long], holding=held(2))
    assert await later.load(SESSION) == [first, long]


async def test_entries_missing_in_the_store_are_found_in_the_file(fleet: FleetConnection) -> None:
    store, kept, new = TranscriptStore(fleet), entry("kept"), entry("new")
    await store.append(SESSION, [kept, marker("a")], holding=held(1))
    file = [marker("a"), kept, marker("b"), new, marker("a")]
    missing = await store.missing(SESSION, {"": file, "subagents/agent-a": [kept]}, holding=held(1))
    assert missing == {"": [marker("b"), new, marker("a")], "subagents/agent-a": [kept]}


async def test_a_deleted_conversation_leaves_nothing(fleet: FleetConnection) -> None:
    store = TranscriptStore(fleet)
    await store.append(SESSION, [entry("gone")], holding=held(1))
    await store.delete(SESSION)
    assert await store.load(SESSION) is None
    again = entry("again")
    await store.append(SESSION, [again], holding=held(1))
    assert await store.load(SESSION) == [again]
