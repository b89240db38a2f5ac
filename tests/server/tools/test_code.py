"""`claude_code` and `claude_code_reply`: one call, one turn, exact turns and costs."""

import asyncio
import subprocess
import uuid
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.model.states import State
from claude_code_mcp.testing.script import fail, script, text, tool
from tests.core.sessions.support import ENDLESS
from tests.support.waiting import HANG_SECONDS

from .conftest import StartCaller, ToolCaller

HELLO = script("Say hello", "hello")


@pytest.mark.soak  # tests/core/sessions/test_costs.py
async def test_turns_and_costs_are_of_the_call_and_totals_of_the_session(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(allow_disk_resume=True)
    two = script("Two requests", tool("Bash", command="true"), "done")
    first = await caller.ok("claude_code", prompt=two, allowedTools=["Bash"])
    assert first["numTurns"] == first["sessionTotalTurns"] == 2
    assert first["totalCostUsd"] == pytest.approx(first["sessionTotalCostUsd"])
    given = {"sessionId": first["sessionId"], "prompt": HELLO, "maxTurns": 3, "model": "sonnet"}
    second = await caller.ok("claude_code_reply", **given)
    assert second["sessionId"] == first["sessionId"]
    assert second["notice"].endswith("ignored: maxTurns, model."), "a session in memory does not take them"
    assert second["numTurns"] == 1
    assert second["sessionTotalTurns"] == 3
    assert second["sessionTotalCostUsd"] == pytest.approx(first["totalCostUsd"] + second["totalCostUsd"])
    assert second["modelUsage"]

    fork = await caller.ok("claude_code_reply", **given, forkSession=True)
    assert "notice" not in fork
    assert caller.session(fork).options.max_turns == 3
    assert fork["sessionId"] != first["sessionId"]
    assert fork["sessionTotalCostUsd"] == pytest.approx(fork["totalCostUsd"])
    assert caller.session(first).usage.cost_usd == pytest.approx(second["sessionTotalCostUsd"])
    assert caller.session(first).model_turns == 3

    caller.session(first).park()
    third = await caller.ok("claude_code_reply", sessionId=first["sessionId"], prompt=HELLO)
    assert "notice" not in third
    assert third["sessionTotalCostUsd"] == pytest.approx(second["sessionTotalCostUsd"] + third["totalCostUsd"])
    assert third["sessionTotalTurns"] == 4


async def test_a_long_turn_hands_over_to_the_session_tools_and_takes_no_reply(
    start_caller: StartCaller, tmp_path: Path
) -> None:
    caller: ToolCaller = await start_caller(call_limit_ms=400)
    prompt = script("Slowly", text("one\ntwo\n", chunks=2, until=str(tmp_path / "go")))
    report = await caller.ok("claude_code", prompt=prompt)
    assert report["status"] == "running"
    assert "claude_get_status" in report["result"]
    for fork in (False, True):
        code, _ = await caller.refused(
            "claude_code_reply", sessionId=report["sessionId"], prompt=HELLO, forkSession=fork
        )
        assert code == "SESSION_BUSY"
    (tmp_path / "go").touch()
    status = report
    while status["status"] == "running":  # longer than one wait on a busy machine
        status = await caller.ok("claude_get_status", sessionId=report["sessionId"], waitSeconds=30)
    assert (status["status"], status["recentOutput"]) == ("completed", ["one", "two"])


@pytest.mark.soak  # tests/core/sessions/test_outcomes.py
async def test_an_execution_error_is_an_error_with_a_subtype(start_caller: StartCaller, caller: ToolCaller) -> None:
    prompt = script("Fail", fail(500))
    result = await caller.call("claude_code", prompt=prompt, env={"CLAUDE_CODE_MAX_RETRIES": "0"})
    assert result.is_error
    assert result.structured_content is not None
    assert result.structured_content["isError"] is True
    assert result.structured_content["errorSubtype"] == "error_api_error"


@pytest.mark.soak  # as the other family does: tests/server/test_list_sessions.py
async def test_a_session_that_is_only_on_disk_is_resumed_where_the_operator_allows_it(
    caller: ToolCaller, start_caller: StartCaller, environment: dict[str, str]
) -> None:
    session_id = await _a_session_of_someone_else(caller, environment)
    code, _ = await caller.refused("claude_code_reply", sessionId=session_id, prompt=HELLO)
    assert code == "SESSION_NOT_FOUND"
    allowed: ToolCaller = await start_caller(allow_disk_resume=True)
    report = await allowed.ok("claude_code_reply", sessionId=session_id, prompt=HELLO, model="claude-sonnet-4-5")
    assert report["sessionId"] == session_id
    assert allowed.requests(report)[-1].model == "claude-sonnet-4-5"
    assert report["sessionTotalCostUsd"] > report["totalCostUsd"]


async def _a_session_of_someone_else(caller: ToolCaller, environment: dict[str, str]) -> str:
    session_id = str(uuid.uuid4())
    command = [find_executable(), "-p", "--session-id", session_id, HELLO]
    ran = await asyncio.to_thread(
        subprocess.run, command, env=environment, cwd=caller.sandbox.project, capture_output=True, check=True
    )
    assert b"hello" in ran.stdout
    return session_id


async def test_disk_parameters_are_in_the_schema_only_when_allowed(
    caller: ToolCaller, start_caller: StartCaller
) -> None:
    allowed: ToolCaller = await start_caller(allow_disk_resume=True)
    for one, expected in ((caller, False), (allowed, True)):
        tools = {tool.name: tool for tool in (await one.client.list_tools()).tools}
        assert ("resumeSessionAt" in tools["claude_code_reply"].input_schema["properties"]) is expected
    code, message = await caller.refused("claude_code_reply", sessionId=str(uuid.uuid4()), prompt=HELLO, model="opus")
    assert (code, message) == ("INVALID_ARGUMENT", "model: unknown field")


@pytest.mark.soak  # what happens: the next test; trouble: tests/server/test_faults.py
async def test_progress_tells_what_happens_and_of_api_trouble(caller: ToolCaller) -> None:
    retried = fail(529, times=1, then=tool("Bash", command="sleep 0.5"))
    await caller.ok("claude_code", prompt=script("Work", retried, text("finished\n")), allowedTools=["Bash"])
    assert "[tool] Run: sleep 0.5" in caller.progress
    assert any("529" in line for line in caller.progress)


async def test_a_cancelled_call_interrupts_its_turn(caller: ToolCaller) -> None:
    prompt = script("Wait", tool("Bash", command=ENDLESS))
    call = asyncio.ensure_future(caller.call("claude_code", prompt=prompt, allowedTools=["Bash"]))
    await caller.until_progress("never")
    call.cancel()
    (session,) = caller.service.sessions()
    assert await session.wait(HANG_SECONDS)
    assert session.state is State.INTERRUPTED


@pytest.mark.soak  # a session of both: test_waiting.py
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_session_of_one_family_is_usable_in_the_others(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode)
    created = await caller.ok(
        "claude_create_session", prompt=HELLO, workingDirectory=str(caller.sandbox.project), waitSeconds=30
    )
    reply = await caller.ok("claude_code_reply", sessionId=created["sessionId"], prompt=HELLO)
    assert reply["sessionTotalTurns"] == 2
    listed = await caller.ok("claude_code_session", action="list")
    assert [session["sessionId"] for session in listed["sessions"]] == [created["sessionId"]]
    sent = await caller.ok("claude_send_message", sessionId=created["sessionId"], message=HELLO, waitSeconds=30)
    assert sent["turnCount"] == 3
