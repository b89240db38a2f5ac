"""News that were not delivered when the server stopped, or was killed: the next one tells them."""

import asyncio
import base64
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.events import Event, TurnEnded
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.database import Database, StateFault
from claude_code_mcp.core.state.documents import Documents
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.push.deliveries import Deliveries, PendingDelivery
from claude_code_mcp.plugins.push.delivery import Push, Waiting
from claude_code_mcp.plugins.push.preferences import Notice, Receiver
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, text
from tests.plugins.console.conftest import running_console
from tests.plugins.console.test_conversation import ended, start
from tests.support.waiting import until_true

from .receiver import receiving

NEVER = (3600.0,)
"""The pauses of a server that does not try again while the test runs."""
MakePush = Callable[..., Push]


@pytest.fixture
async def push(service: Service, tmp_path: Path) -> Any:
    """Makes servers one after another, as far as push can tell."""
    made: list[Push] = []

    def make(*, pauses: tuple[float, ...] = NEVER) -> Push:
        if made:
            made[-1].close()
        made.append(Push(service, tmp_path, pauses))
        made[-1].serve_at("http://console/")
        return made[-1]

    yield make
    made[-1].close()


def receiver(url: str) -> Receiver:
    secret = "whsec_" + base64.b64encode(b"x" * 32).decode()
    return Receiver(id="r0", kind="webhook", url=url, created_at=0.0, secret=secret)


def happened(push: Push, result: str = "r") -> None:
    event: Event = TurnEnded(1, Outcome(OutcomeCode.COMPLETED, result=result))
    event.at = time.time()
    push.event("s-1", "local", event)


def deliveries(service: Service) -> list[str]:
    """Those that wait, as they are kept."""
    query = "SELECT receiver_id || notice FROM deliveries"
    return [text for (text,) in service.state.read(lambda db: db.execute(query).fetchall())]


def principals(service: Service) -> list[str]:
    """Those for whom something waits."""
    query = "SELECT principal FROM deliveries"
    return [principal for (principal,) in service.state.read(lambda db: db.execute(query).fetchall())]


async def taken(got: Any) -> Any:
    return await asyncio.to_thread(got.next)


async def test_the_next_server_reports_what_was_not_delivered_with_the_same_id(
    push: MakePush, service: Service
) -> None:
    with receiving(503, 200) as got:
        before = push()
        before.preferences.add("local", receiver(got.url))
        happened(before)
        first = await taken(got)
        (kept,) = deliveries(service)
        assert (got.url in kept, "whsec_" in kept) == (False, False)
        push()
        second = await taken(got)
        assert second.headers["webhook-id"] == first.headers["webhook-id"]
        assert json.loads(second.body) == json.loads(first.body)
        await until_true(lambda: not deliveries(service))


async def test_what_was_delivered_or_given_up_is_not_told_again(push: MakePush, service: Service) -> None:
    with receiving(200, 400, 200) as got:
        before = push()
        before.preferences.add("local", receiver(got.url))
        for result in ("delivered", "refused"):
            happened(before, result)
            await taken(got)
        await until_true(lambda: not deliveries(service))
        happened(push(), "new")
        assert json.loads((await taken(got)).body)["body"] == "Finished: new"


async def test_no_more_than_the_newest_wait_for_a_dead_receiver(push: MakePush, service: Service) -> None:
    with receiving(503) as got:
        before = push()
        before.preferences.add("local", receiver(got.url))
        happened(before, "first")
        await taken(got)
        for number in range(60):
            happened(before, f"number {number}")
        await until_true(lambda: "number 59" in " ".join(deliveries(service)))
        await until_true(lambda: len(deliveries(service)) == 50)


def notice(at: float, question: str | None = None) -> Notice:
    return Notice("question" if question else "ended", "s-1", "Fix it", "b", at, at + 10**6, question)


async def test_unwanted_messages_are_dropped(push: MakePush, service: Service) -> None:
    with receiving() as got:
        left, now = Deliveries(service.state), time.time()
        first = push()
        first.preferences.add("local", receiver(got.url))
        unwanted = [
            Waiting("msg_00000001", "local", "r0", notice(now - 100_000)),  # too old
            Waiting("msg_00000002", "local", "gone", notice(now)),  # its receiver was removed
            Waiting("msg_00000003", "local", "r0", notice(now, "q-1")),  # the question is not open any more
            Waiting("msg_00000004", "somebody", "r0", notice(now)),  # a receiver of somebody else
        ]
        for one in [*unwanted, Waiting("msg_00000005", "local", "r0", notice(now))]:
            left.add(one.stored())
        left.close()
        push()
        assert (await taken(got)).headers["webhook-id"] == "msg_00000005"
        await until_true(lambda: not deliveries(service))
        assert got.received.empty()


def reads_fail(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The first so many reads of preferences fail, as where no descriptor is free."""
    failures, read = iter(range(times)), Documents.read

    def failing(documents: Documents, key: str) -> Any:
        if next(failures, None) is not None:
            raise StateFault(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(documents, key)

    monkeypatch.setattr(Documents, "read", failing)


async def test_what_waits_outlives_preferences_that_cannot_be_read(
    push: MakePush, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as got:
        left = Deliveries(service.state)
        push().preferences.add("local", receiver(got.url))
        left.add(Waiting("msg_00000001", "local", "r0", notice(time.time())).stored())
        left.close()
        reads_fail(monkeypatch, 3)
        push(pauses=(0.01, 0.01))
        assert (await taken(got)).headers["webhook-id"] == "msg_00000001"
        await until_true(lambda: not deliveries(service))


async def test_queued_notifications_survive_unreadable_preferences_in_order(
    push: MakePush, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as got:
        server = push(pauses=(0.01, 0.01))
        server.preferences.add("local", receiver(got.url))
        reads_fail(monkeypatch, 3)
        for result in ("first", "second"):
            happened(server, result)
        assert [json.loads((await taken(got)).body)["body"] for _ in range(2)] == [
            "Finished: first",
            "Finished: second",
        ]


async def test_damaged_preferences_lose_nothing_and_do_not_block_others(push: MakePush, service: Service) -> None:
    with receiving() as got:
        left, now = Deliveries(service.state), time.time()
        push().preferences.add("local", receiver(got.url))
        Documents(service.state, "push").write("alice", {"principal": "alice", "from": "a later version"})
        for number, principal in enumerate(("alice", "local")):
            left.add(Waiting(f"msg_0000000{number}", principal, "r0", notice(now + number)).stored())
        left.close()
        next_server = push()
        assert (await taken(got)).headers["webhook-id"] == "msg_00000001"
        event: Event = TurnEnded(1, Outcome(OutcomeCode.COMPLETED, result="r"))
        event.at = now
        next_server.event("s-1", "alice", event)
        happened(next_server)
        assert json.loads((await taken(got)).body)["body"] == "Finished: r"
        await until_true(lambda: principals(service) == ["alice"])


def test_a_notice_of_a_later_version_keeps_no_other_waiting() -> None:
    later = PendingDelivery("msg_00000006", "local", "r0", 1.0, {"kind": "ended", "color": "red"})
    assert Waiting.of(later) is None


def test_a_server_that_has_stopped_takes_nothing_from_the_next(tmp_path: Path) -> None:
    left, stopped, following = (Deliveries(database_in(tmp_path)) for _ in range(3))
    waiting = Waiting("msg_00000001", "local", "r0", notice(1.0)).stored()
    left.add(waiting)
    left.close()
    stopped.close()
    for act in (stopped.take_over, lambda: stopped.add(waiting)):
        with pytest.raises(OSError, match="stopped"):
            act()
    assert following.take_over() == [waiting]
    following.close()


def test_pending_deliveries_of_a_running_server_are_not_taken(tmp_path: Path) -> None:
    alive, other = Deliveries(Database(tmp_path)), Deliveries(Database(tmp_path))
    mine = Waiting("msg_00000001", "local", "r0", notice(1.0)).stored()
    alive.add(mine)
    assert other.take_over() == []
    alive.close()
    assert other.take_over() == [mine]
    assert other.take_over() == []
    other.remove(mine.delivery_id)
    other.close()
    assert list((tmp_path / "servers").iterdir()) == []


@pytest.fixture
def hook() -> Iterator[Any]:
    with receiving(503) as got:
        yield got


def test_a_server_that_was_killed_has_lost_no_news(tmp_path: Path, model: ScriptedModelThread, hook: Any) -> None:
    with running_console(tmp_path, model.url) as first:
        alice = first.browser("alice")
        assert alice.post("/api/push/receivers", {"kind": "webhook", "url": hook.url}).status == 201
        ended(alice, start(alice, first, script("Go.", text("All is well."))))
        before = hook.next()
        os.kill(first.server.process.pid, signal.SIGKILL)
    while not hook.received.empty():
        hook.next()
    hook.statuses[:] = [200]
    with running_console(tmp_path, model.url, first.tokens) as second:
        after = hook.next()
        assert after.headers["webhook-id"] == before.headers["webhook-id"]
        pushed = json.loads(after.body)
        assert (pushed["body"], pushed["url"].startswith(second.base)) == ("Finished: All is well.", True)
