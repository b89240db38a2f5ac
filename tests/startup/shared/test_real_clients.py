"""Real clients through `--shared`: Claude Code itself, and for `make soak` both SDKs and the Inspector. That a
conversation goes on with the next server is shown to the last line in test_shared_server.py, for any client."""

from dataclasses import dataclass

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.scenarios.real_clients.claude_code import conversation, options
from tests.scenarios.real_clients.inspector import Inspector
from tests.scenarios.real_clients.packages import Packages
from tests.scenarios.real_clients.sdk_client import Kind, sdk_client
from tests.scenarios.real_clients.serving import Served
from tests.scenarios.real_clients.test_typescript_sdk import ALLOW, SIX, write_a_note
from tests.support.program import COMMAND

from .support import SharedPlace

SHARED = Served(command=(COMMAND, "--shared"))


@dataclass(frozen=True)
class Work:
    """A session that every client can create."""

    sandbox: Sandbox

    def arguments(self, answer: str) -> dict[str, object]:
        prompt = script("Say it.", answer)
        return {"prompt": prompt, "workingDirectory": str(self.sandbox.project), "waitSeconds": 50}


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_python_sdk_continues_after_the_server_is_killed(
    shared: SharedPlace, sandbox: Sandbox, mode: str
) -> None:
    command = StdioServerParameters(command=COMMAND, args=["--shared"], env=shared.environment)
    async with Client(stdio_client(command), mode=mode) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} >= SIX
        made = await client.call_tool("claude_create_session", Work(sandbox).arguments("One."))
        assert made.structured_content is not None
        assert made.structured_content["result"] == "One."
        shared.kill_server()
        more = {"sessionId": made.structured_content["sessionId"], "message": script("Again.", "Two.")}
        again = await client.call_tool("claude_send_message", {**more, "waitSeconds": 50})
        assert again.structured_content is not None
        assert again.structured_content["result"] == "Two."


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Kind("v1", "legacy"), Kind("v2", "modern")], ids=str)
def test_the_typescript_sdk_continues_after_the_server_is_killed(
    packages: Packages, shared: SharedPlace, sandbox: Sandbox, kind: Kind
) -> None:
    with sdk_client(packages, kind, SHARED, shared.environment, [ALLOW]) as client:
        client.connect()
        assert {tool["name"] for tool in client.tools()} >= SIX
        made = client.call("claude_create_session", **Work(sandbox).arguments("One."))
        assert made["result"] == "One."
        shared.kill_server()
        note = {"sessionId": made["sessionId"], "message": write_a_note(sandbox), "waitSeconds": 50}
        again = client.call("claude_send_message", **note)
        assert (again["status"], again["result"]) == ("completed", "Written.")
        assert len(client.asked) == 1


@pytest.mark.soak
def test_the_inspector_finds_its_session_again_with_the_next_connection(
    packages: Packages, shared: SharedPlace, sandbox: Sandbox
) -> None:
    inspector = Inspector(packages, SHARED, "modern", shared.environment)
    made = inspector.call("claude_create_session", **Work(sandbox).arguments("One."))
    listed = inspector.call("claude_list_sessions", projectDirectory=str(sandbox.project))
    assert [session["sessionId"] for session in listed["sessions"]] == [made["sessionId"]]
    assert [server["sessions"] for server in shared.status()] == [1]


@pytest.mark.soak
def test_claude_code_continues_after_the_server_is_killed(shared: SharedPlace, sandbox: Sandbox) -> None:
    claude = [
        find_executable(None, shared.environment),
        *options(SHARED, shared.environment, sandbox.root),
    ]
    with conversation(claude, sandbox.project, shared.environment, {"action": "cancel"}) as outer:
        made = outer.use("claude_create_session", **Work(sandbox).arguments("One."))
        assert made["result"] == "One."
        shared.kill_server()
        again = outer.use(
            "claude_send_message", sessionId=made["sessionId"], message=script("Again.", "Two."), waitSeconds=50
        )
        assert again["result"] == "Two."
