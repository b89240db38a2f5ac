"""Without a login, or with a key that the API refuses, every tool says what to do on the machine of the server."""

from claude_code_mcp.testing.script import fail, script, text
from tests.core.sessions.support import until

from .conftest import StartCaller, ToolCaller

REMEDY = "claude-code-mcp claude auth login"


async def test_a_call_without_a_login_says_how_to_log_in(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(extra={"ANTHROPIC_API_KEY": ""})
    result = await caller.call("claude_code", prompt=script("Say hello", "hello"))
    report = result.structured_content
    assert result.is_error
    assert report is not None
    assert "/login" in report["result"], "the words of Claude Code"
    assert REMEDY in report["result"]
    query = (await caller.call("claude_code_query", prompt=script("Say hello", "hello"))).structured_content
    assert query is not None
    assert REMEDY in query["result"]["summary"]


async def test_a_key_that_is_refused_is_named_while_claude_code_tries_again(caller: ToolCaller) -> None:
    started = await caller.ok("claude_create_session", prompt=script("Say hello", fail(401)))
    session = caller.session(started)
    await until(session, lambda: session.activity.retrying is not None or not session.busy)
    report = await caller.ok("claude_get_status", sessionId=session.id)
    shown = report.get("retrying") or report["error"]["message"]
    assert "401" in shown
    assert REMEDY in shown
    await caller.service.interrupt(session.id)


async def test_progress_says_what_to_do_about_a_refused_key(caller: ToolCaller) -> None:
    refused = fail(401, times=1, then=text("hello"))
    await caller.ok("claude_code", prompt=script("Say hello", refused))
    assert any("401" in line and REMEDY in line for line in caller.progress)
