"""Callers on real connections who use one session at the same time: each gets their own answer, or is refused."""

import random
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text

from .conftest import Connect, Wire
from .connection import LONG, Connection, Reply

CALLS = 10


@pytest.fixture(scope="module")
def server_settings() -> dict[str, str]:
    return {"CLAUDE_CODE_MCP_TOOLSETS": "sessions,code", "CLAUDE_CODE_MCP_ALLOW_DISK_RESUME": "1"}


@pytest.mark.soak  # two at once: tools/test_waiting.py, and the next test
def test_concurrent_calls_get_their_own_answers(wire: Wire, connect: Connect, place: Sandbox) -> None:
    """On HTTP the callers have a connection each, on stdio they share one."""
    choice = random.Random(f"seed {wire}")
    with ExitStack() as stack:
        callers = [stack.enter_context(connect()) for _ in range(3 if wire.transport == "http" else 1)]
        session = callers[0].call("claude_code", prompt=script("One", "first"), cwd=str(place.project)).session
        calls: list[tuple[str, str, Future[Reply]]] = []
        for number in range(CALLS):
            tool = choice.choice(["claude_code_reply", "claude_code_reply", "claude_code", "claude_code_reply"])
            answer = f"answer {number}"
            prompt = script(f"Say {number}", text(answer, delay=choice.choice([0, 0, 0.2])))
            where = {"cwd": str(place.project)} if tool == "claude_code" else {"sessionId": session}
            calls.append((tool, answer, choice.choice(callers).start(tool, prompt=prompt, **where)))
            if choice.random() < 0.5:
                calls[-1][2].result(LONG)
        replies = [(tool, answer, call.result(LONG)) for tool, answer, call in calls]
    answered = [(answer, reply.data["result"]) for _, answer, reply in replies if reply.code is None]
    assert all(answer == result for answer, result in answered)
    refused = [(tool, reply.code) for tool, _, reply in replies if reply.code is not None]
    assert set(refused) == {("claude_code_reply", "SESSION_BUSY")}
    assert "claude_code_reply" in [tool for tool, _, reply in replies if reply.code is None], "the first, at least"
    assert all(reply.data["numTurns"] == 1 for _, _, reply in replies if reply.code is None)


def test_one_of_two_concurrent_replies_to_a_stored_session_is_refused(
    wire: Wire, connect: Connect, place: Sandbox
) -> None:
    """The server that made the session is gone on stdio; on HTTP it is parked or live, by chance."""
    with connect() as before:
        session = before.call("claude_code", prompt=script("One", "first"), cwd=str(place.project)).session
    with connect() as caller:
        replies = at_once(caller, session)
    codes = [reply.code for reply in replies]
    assert sorted(codes, key=str) == [None, "SESSION_BUSY"]
    accepted = codes.index(None)
    assert replies[accepted].data["result"] == f"answer {accepted}"


def at_once(caller: Connection, session: str) -> list[Reply]:
    calls = [
        caller.start("claude_code_reply", sessionId=session, prompt=script(f"Reply {number}", f"answer {number}"))
        for number in range(2)
    ]
    return [call.result(LONG) for call in calls]
