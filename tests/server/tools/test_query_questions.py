"""Questions inside a query: the stream goes on where it was, whoever answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import pytest

from claude_code_mcp.core.model.events import Partial
from claude_code_mcp.server.tools.notification_queue import NotificationQueue
from claude_code_mcp.testing.script import ask_user, script, text, tool
from tests.server.tools.conftest import time_runs_out
from tests.support.waiting import HANG_SECONDS

from .conftest import Arrival, StartCaller, ToolCaller

LEGACY, MODERN = "legacy", "2026-07-28"
OTHER_ERA = pytest.mark.parametrize("mode", [LEGACY, pytest.param(MODERN, marks=pytest.mark.soak)])
ONE_ERA = pytest.mark.parametrize("mode", [pytest.param(LEGACY, marks=pytest.mark.soak), MODERN])
"""That in which a question ends a request, which is the harder one."""
TWO = script(
    "Touch",
    text("First.\n") | tool("Bash", command="touch one"),
    text("Then.\n") | tool("Bash", command="touch two"),
    text("Done.\n"),
)
Elicit = Callable[[Any, types.ElicitRequestParams], Awaitable[types.ElicitResult]]


def person(*results: types.ElicitResult) -> tuple[Elicit, list[str]]:
    """Somebody who answers forms in this order, and the forms that were shown."""
    shown: list[str] = []

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        shown.append(params.message)
        return results[len(shown) - 1]

    return elicit, shown


def accept(**content: str | int | float | bool | list[str] | None) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=content)


def assert_nothing_twice(caller: ToolCaller) -> None:
    notifications = caller.listener.received
    assert [message["sequence"] for message in notifications] == list(range(1, len(notifications) + 1))
    ids = [message["uuid"] for message in caller.listener.messages if "uuid" in message]
    assert len(ids) == len(set(ids)) > 5


@ONE_ERA
async def test_the_stream_continues_after_each_answer(start_caller: StartCaller, mode: str) -> None:
    elicit, shown = person(accept(decision="Allow once"), accept(decision="Allow once"))
    caller: ToolCaller = await start_caller(mode, elicit)
    bundle = await caller.ok("claude_code_query", prompt=TWO, options={"includePartialMessages": True})
    await caller.listener.until("result")
    assert [message.splitlines()[0] for message in shown] == [
        "Claude Code wants to run: touch one",
        "Claude Code wants to run: touch two",
    ]
    assert all((caller.sandbox.project / name).exists() for name in ("one", "two"))
    assert_nothing_twice(caller)
    assert bundle["messages"] == [message for message in caller.listener.messages if message["type"] != "stream_event"]
    events = [message["event"] for message in caller.listener.messages if message["type"] == "stream_event"]
    deltas = [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]
    assert "".join(deltas) == "First.\nThen.\nDone.\n"
    assert bundle["result"]["summary"] == "Done.\n"
    assert "truncated" not in bundle


class Endings:
    """Counts the messages of the model that have ended, which the log tells of and does not keep."""

    def __init__(self, caller: ToolCaller) -> None:
        self.count = 0
        self._news = asyncio.Event()
        self._arrival = Arrival()
        caller.service.observe(self._arrival)
        self.counting = asyncio.create_task(self._count(caller))

    async def _count(self, caller: ToolCaller) -> None:
        await self._arrival.came.wait()
        (session,) = caller.service.sessions()
        with session.log.subscribe() as events:
            async for event in events:
                if isinstance(event, Partial) and event.raw and event.raw["event"]["type"] == "message_stop":
                    self.count += 1
                    self._news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while self.count < count:
                self._news.clear()
                await self._news.wait()


@pytest.mark.soak  # nor in the test above
async def test_fragments_that_come_while_a_person_thinks_are_not_lost(start_caller: StartCaller) -> None:
    """The end of a message comes after the question that its tool call opens."""

    shown: list[str] = []

    async def thinks(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        shown.append(params.message)
        await endings.until(len(shown))
        return accept(decision="Allow once")

    caller: ToolCaller = await start_caller("2026-07-28", thinks)
    endings = Endings(caller)
    bundle = await caller.ok("claude_code_query", prompt=TWO, options={"includePartialMessages": True})
    await caller.listener.until("result")
    assert_nothing_twice(caller)
    endings.counting.cancel()
    ends = [message for message in caller.listener.messages if message.get("event", {}).get("type") == "message_stop"]
    assert len(ends) == 3
    assert "truncated" not in bundle


async def test_events_during_a_question_handover_keep_their_numbers(
    start_caller: StartCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fragments come when everything is sent, before the call that waits for that goes on."""
    elicit, shown = person(accept(decision="Allow once"), accept(decision="Allow once"))
    caller: ToolCaller = await start_caller(MODERN, elicit)
    all_read = NotificationQueue.all_read

    async def add_after_read(queue: NotificationQueue) -> None:
        await all_read(queue)
        (session,) = caller.service.sessions()
        for _ in range(3):
            session.log.append(Partial("", raw={"type": "stream_event", "event": {"type": "late"}}))

    monkeypatch.setattr(NotificationQueue, "all_read", add_after_read)
    await caller.ok("claude_code_query", prompt=TWO, options={"includePartialMessages": True})
    await caller.listener.until("result")
    assert_nothing_twice(caller)
    late = [message for message in caller.listener.messages if message.get("event") == {"type": "late"}]
    assert len(late) == 3 * len(shown) == 6


@pytest.mark.soak
async def test_totals_are_of_the_whole_call(start_caller: StartCaller) -> None:
    """Which in this era is several requests, one for each answer."""
    elicit, _ = person(accept(decision="Deny", reason="not today"), types.ElicitResult(action="decline"))
    caller: ToolCaller = await start_caller(MODERN, elicit)
    bundle = await caller.ok("claude_code_query", prompt=TWO, options={"maxMessages": 2})
    result = await caller.listener.until("result")
    assert bundle["truncated"] == {"total": len(caller.listener.received), "returned": 2}
    assert bundle["executionTime"] >= result["duration_ms"]
    assert not any((caller.sandbox.project / name).exists() for name in ("one", "two")), "a person can say no"
    assert "not today" in str(caller.listener.messages)
    assert len(result["permission_denials"]) == 2


@pytest.mark.soak  # permissions are: above
@OTHER_ERA
async def test_a_question_of_claude_is_answered_and_a_tool_call_denied(start_caller: StartCaller, mode: str) -> None:
    elicit, _ = person(accept(decision="Deny", reason="not today"), accept(answer1="blue"))
    caller: ToolCaller = await start_caller(mode, elicit)
    prompt = script("Ask", tool("Bash", command="touch one"), ask_user("Which?", "red", "blue"), "${tool_result}")
    bundle = await caller.ok("claude_code_query", prompt=prompt)
    assert "blue" in bundle["result"]["summary"]
    assert not (caller.sandbox.project / "one").exists()
    assert "not today" in str(bundle["messages"])
    assert len(bundle["messages"][-1]["permission_denials"]) == 1


# The dialogs of both eras are tested on real wires too, with claude_create_session.
@pytest.mark.soak
@ONE_ERA
async def test_the_queue_answers_what_a_person_has_put_away(start_caller: StartCaller, mode: str) -> None:
    elicit, shown = person(types.ElicitResult(action="cancel"), accept(decision="Allow once"))
    caller: ToolCaller = await start_caller(mode, elicit)
    call = asyncio.ensure_future(caller.ok("claude_code_query", prompt=TWO))
    await caller.until_progress("Waiting for an answer")
    await _answer(caller)
    bundle = await call
    await caller.listener.until("result")
    assert bundle["result"]["success"]
    assert len(shown) == 2
    assert all((caller.sandbox.project / name).exists() for name in ("one", "two"))
    assert_nothing_twice(caller)


@pytest.mark.soak  # tests/server/test_dialogs.py
@ONE_ERA
async def test_client_without_forms_gets_the_question_in_the_result(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode)
    prompt = script("Touch", tool("Bash", command="touch one"), "done")
    call = asyncio.ensure_future(caller.ok("claude_code_query", prompt=prompt))
    await caller.until_progress("Waiting for an answer [")
    assert any("Run: touch one" in line for line in caller.progress)
    await _answer(caller)
    assert (await call)["result"]["summary"] == "done"
    assert (caller.sandbox.project / "one").exists()


async def _answer(caller: ToolCaller) -> None:
    (session,) = caller.service.sessions()
    status = await caller.ok("claude_get_status", sessionId=session.id)
    (pending,) = status["pendingInputs"]
    await caller.ok("claude_respond", sessionId=session.id, inputId=pending["inputId"], decision="allow")


@pytest.mark.soak  # a turn: test_timeouts.py
@ONE_ERA
async def test_a_time_limit_also_ends_a_question(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode, max_execution_time_ms=4000)
    call = caller.call("claude_code_query", prompt=script("Touch", tool("Bash", command="touch one"), "done"))
    result = await time_runs_out(caller, call, lambda session: bool(session.questions))
    assert result.structured_content is not None
    assert result.structured_content["result"]["timedOut"] is True
    assert not (caller.sandbox.project / "one").exists()
    assert caller.service.sessions()[0].questions == []
