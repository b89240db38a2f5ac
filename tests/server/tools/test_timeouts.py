"""A turn that took too long: every family tells whose it was, what it had said until then and what it cost."""

import pytest

from claude_code_mcp.core.model.events import Partial, PartialRun
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing.script import script, stall, tool

from .conftest import StartCaller, ToolCaller, time_runs_out

WAITING = "…"
USED = {"input_tokens": 5000, "output_tokens": 10}
SLOW = script("Work", {**tool("Bash", command="echo one"), "text": "Let me look.", "usage": USED}, stall(WAITING))


def is_silent(session: Session) -> bool:
    return any(WAITING in item.text for item in session.log.after(0) if isinstance(item, Partial | PartialRun))


async def test_code_tools_report_sessions(caller: ToolCaller) -> None:
    call = caller.call("claude_code", prompt=SLOW, timeout=4000, allowedTools=["Bash"])
    result = await time_runs_out(caller, call, is_silent)
    payload = result.structured_content
    assert result.is_error
    assert payload is not None
    assert payload["error"]["code"] == "TIMEOUT"
    assert payload["sessionId"] in payload["error"]["message"]
    assert "Let me look." in payload["result"]
    assert payload["totalCostUsd"] > 0
    assert payload["sessionTotalCostUsd"] == pytest.approx(payload["totalCostUsd"])
    report = await caller.ok("claude_code_reply", sessionId=payload["sessionId"], prompt=script("Go on", "gladly"))
    assert report["result"] == "gladly"


@pytest.mark.soak  # as the other family does
async def test_query_reports_sessions(start_caller: StartCaller) -> None:
    caller = await start_caller(max_execution_time_ms=4000)
    call = caller.call("claude_code_query", prompt=SLOW, options={"allowedTools": ["Bash"]})
    result = await time_runs_out(caller, call, is_silent)
    payload = result.structured_content
    assert result.is_error
    assert payload is not None
    assert (payload["error"]["code"], payload["result"]["timedOut"]) == ("TIMEOUT", True)
    assert payload["sessionId"] in payload["error"]["message"]
    assert "Let me look." in payload["result"]["summary"]
    assert f"[{payload['error']['message']}]" in str(result.content[0]), "who reads only the text knows it too"
    assert payload["totalCostUsd"] > 0
    assert payload["result"]["error"].startswith("timeout: ")
    assert "assistant" in [message["type"] for message in payload["messages"]]
    assert "one" in str([message for message in payload["messages"] if message["type"] == "user"])
    again = await caller.ok("claude_code_reply", sessionId=payload["sessionId"], prompt=script("Go on", "gladly"))
    assert again["result"] == "gladly"
