"""However a turn ends, its call reports its cost, and the calls of a session add up to the total."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing.script import script, stall, tool
from tests.core.sessions.support import until
from tests.core.sessions.usage_limit_support import SUBSCRIPTION, limited

from .conftest import StartCaller, ToolCaller, time_runs_out, while_it_speaks
from .test_timeouts import is_silent

USED = {"input_tokens": 5000, "output_tokens": 10}
SLOW = script("Work", {**tool("Bash", command="echo one"), "text": "Let me look.", "usage": USED}, stall("…"))


async def cancelled(caller: ToolCaller, session: Session) -> None:
    reply = await caller.ok("claude_code_session", action="cancel", sessionId=session.id)
    assert reply["sessions"][0]["status"] == "cancelled"


async def interrupted(caller: ToolCaller, session: Session) -> None:
    await caller.service.interrupt(session.id)


async def killed(caller: ToolCaller, session: Session) -> None:
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)


async def terminated(caller: ToolCaller, session: Session) -> None:
    assert session.pid is not None
    os.kill(session.pid, signal.SIGTERM)


async def signaled(caller: ToolCaller, session: Session) -> None:
    """By somebody else: the CLI reports the interruption, and ends."""
    assert session.pid is not None
    os.kill(session.pid, signal.SIGINT)


async def stopped(caller: ToolCaller, session: Session) -> None:
    """It reacts to nothing, not even to the interruption."""
    assert session.pid is not None
    os.kill(session.pid, signal.SIGSTOP)
    await caller.service.interrupt(session.id)


def assert_sum(session: Session, calls: list[dict[str, Any]]) -> None:
    assert sum(call["totalCostUsd"] for call in calls) == pytest.approx(session.usage.cost_usd)
    assert sum(call["numTurns"] for call in calls) == session.model_turns
    last = calls[-1]
    assert last["sessionTotalCostUsd"] == pytest.approx(session.usage.cost_usd)
    assert last["sessionTotalTurns"] == session.model_turns
    assert last["totalCostUsd"] > 0
    assert last["numTurns"] > 0
    assert last["durationMs"] > 0


SOAK = [pytest.param(end, marks=pytest.mark.soak) for end in (terminated, signaled, stopped)]


@pytest.mark.parametrize("end", [killed, *SOAK])
async def test_the_calls_add_up_to_the_total(
    start_caller: StartCaller, end: Callable[[ToolCaller, Session], Awaitable[None]]
) -> None:
    caller: ToolCaller = await start_caller(stop_timeout_ms=500)
    first = await caller.ok("claude_code", prompt=script("Say hello", "hello"), allowedTools=["Bash"])
    session = caller.session(first)
    calling = asyncio.ensure_future(caller.call("claude_code_reply", sessionId=session.id, prompt=SLOW))
    await until(session, lambda: is_silent(session))
    await end(caller, session)
    result = await calling
    await session.closed()
    assert result.is_error
    assert result.structured_content is not None
    assert_sum(session, [first, dict(result.structured_content)])
    assert session.costs.spent_usd == pytest.approx(session.usage.cost_usd)


@pytest.mark.soak
async def test_a_cancelled_call_says_so(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller()
    calling = asyncio.ensure_future(caller.refused("claude_code", prompt=SLOW, allowedTools=["Bash"]))
    session = await while_it_speaks(caller, calling)
    await until(session, lambda: is_silent(session))
    await cancelled(caller, session)
    code, message = await calling
    assert code == "CANCELLED"
    assert session.id in message


async def test_a_query_that_is_cancelled_says_so(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller()
    call = caller.call("claude_code_query", prompt=SLOW, options={"allowedTools": ["Bash"]})
    calling = asyncio.ensure_future(call)
    session = await while_it_speaks(caller, calling)
    await until(session, lambda: is_silent(session))
    await cancelled(caller, session)
    payload = (await calling).structured_content
    assert payload is not None
    assert payload["error"]["code"] == "CANCELLED"
    assert payload["totalCostUsd"] == pytest.approx(session.usage.cost_usd)
    assert payload["totalCostUsd"] > 0
    assert "Let me look." in payload["result"]["summary"]


async def test_a_call_that_runs_into_a_limit_or_out_of_time_reports_what_it_cost(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller()
    call = caller.call("claude_code", prompt=SLOW, allowedTools=["Bash"], timeout=4000)
    late = dict((await time_runs_out(caller, call, is_silent)).structured_content or {})
    assert late["error"]["code"] == "TIMEOUT"
    assert_sum(caller.session(late), [late])
    limited = await caller.call("claude_code", prompt=SLOW, allowedTools=["Bash"], maxTurns=1)
    report = dict(limited.structured_content or {})
    assert report["errorSubtype"] == "error_max_turns"
    assert_sum(caller.session(report), [report])


async def test_a_usage_limit_is_shown_with_the_session_that_it_stopped(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(extra=SUBSCRIPTION)
    stopped = await caller.call("claude_code", prompt=script("Work", limited(time.time() + 3600)))
    report = dict(stopped.structured_content or {})
    [session] = (await caller.ok("claude_code_session", action="get", sessionId=report["sessionId"]))["sessions"]
    assert session["limit"] == report["limit"]
    assert session["limit"]["type"] == "five_hour"
    assert session["planUsage"]["status"] == "rejected"
    [row] = (await caller.ok("claude_code_session", action="list"))["sessions"]
    assert row["limit"] == report["limit"]


async def test_a_server_that_stops_reports_what_its_calls_have_cost_so_far(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller()
    calling = asyncio.ensure_future(caller.call("claude_code", prompt=SLOW, allowedTools=["Bash"]))
    session = await while_it_speaks(caller, calling)
    await until(session, lambda: is_silent(session))
    await caller.service.__aexit__()
    report = dict((await calling).structured_content or {})
    assert report["numTurns"] == session.model_turns > 0
    assert 0 < report["totalCostUsd"] <= session.usage.cost_usd
    assert session.costs.spent_usd == pytest.approx(session.usage.cost_usd), (
        "what its process has reported since is counted"
    )
