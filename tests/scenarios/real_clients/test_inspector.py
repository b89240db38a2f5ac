"""The MCP Inspector's command line lists and calls the tools, over stdio and HTTP, in both eras. That it finds the
schemas portable only it can say; what it does with sessions is what other clients do too, so that is for the soak."""

import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool

from .inspector import Inspector
from .packages import Packages
from .serving import Served
from .test_typescript_sdk import NOBODY, SIX, write_a_note


@pytest.fixture(params=["legacy", "modern"])
def inspector(
    request: pytest.FixtureRequest, packages: Packages, served: Served, environment: dict[str, str]
) -> Inspector:
    return Inspector(packages, served, request.param, environment)


def test_it_lists_the_tools_and_finds_their_schemas_portable(inspector: Inspector) -> None:
    listed = inspector.ask("--method", "tools/list", "--strict")
    assert {tool["name"] for tool in listed.get("result", listed)["tools"]} >= SIX


@pytest.mark.soak
def test_it_runs_a_session_in_one_call(inspector: Inspector, sandbox: Sandbox) -> None:
    prompt = script("Say where.", tool("Bash", command="basename $PWD"), "In ${tool_result}.")
    done = inspector.call(
        "claude_create_session",
        prompt=prompt,
        workingDirectory=str(sandbox.project),
        allowedTools=["Bash"],
        waitSeconds=50,
    )
    assert (done["status"], done["result"]) == ("completed", "In project.")
    listed = inspector.call("claude_list_sessions", projectDirectory=str(sandbox.project))
    assert [session["sessionId"] for session in listed["sessions"]] == [done["sessionId"]]


@pytest.mark.soak
@pytest.mark.parametrize("served", ["http"], indirect=True)
def test_a_session_continues_from_one_connection_to_the_next(inspector: Inspector, sandbox: Sandbox) -> None:
    """Over HTTP a session outlives the connection of the client that started it."""
    created = inspector.call(
        "claude_create_session", prompt=write_a_note(sandbox), workingDirectory=str(sandbox.project)
    )
    session = created["sessionId"]
    waiting = inspector.call("claude_get_status", sessionId=session, waitSeconds=50)
    [pending] = waiting["pendingInputs"]
    answered = inspector.call(
        "claude_respond", sessionId=session, inputId=pending["inputId"], decision="allow", waitSeconds=50
    )
    assert (answered["status"], answered["result"]) == ("completed", "Written.")
    assert (sandbox.project / "note").read_text() == "hello"


@pytest.mark.soak
@pytest.mark.parametrize("served", ["http"], indirect=True)
def test_it_sees_a_refusal_as_an_error(inspector: Inspector) -> None:
    given = ("--method", "tools/call", "--tool-name", "claude_interrupt", "--tool-arg", f"sessionId={NOBODY}")
    done = inspector.run(*given)
    assert done.returncode != 0
    assert "SESSION_NOT_FOUND" in done.stdout + done.stderr
