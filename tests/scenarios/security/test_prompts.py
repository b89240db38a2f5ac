"""What Claude Code does by itself with a prompt obeys the policy, in every tool that takes one."""

import json
from typing import Any

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.policy.policy import REMOTE_PROFILE, Policy
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.core.sessions.support import options, run, say
from tests.server.connection import Connection

from .conftest import Target

DENIED = "PERMISSION_DENIED"
REMOTE = Policy(REMOTE_PROFILE)


@pytest.fixture(scope="module")
def idle(mallory: Connection) -> str:
    """A session of Mallory's that waits for its next message."""
    return mallory.create(script("hello", "hi"), waitSeconds=40).session


@pytest.mark.parametrize(
    "refused",
    # What is refused is decided once, see tests/core/policy; that every tool asks for that decision is seen here.
    [
        "\u200b /config theme=dark",
        *(pytest.param(it, marks=pytest.mark.soak) for it in ("/heapdump", "see @/etc/passwd")),
    ],
)
def test_no_tool_takes_a_prompt_that_claude_code_would_act_on_automatically(
    target: Target, mallory: Connection, idle: str, refused: str
) -> None:
    calls: dict[str, dict[str, Any]] = {
        "claude_create_session": {"prompt": refused},
        "claude_send_message": {"sessionId": idle, "message": refused},
        "claude_code": {"prompt": refused},
        "claude_code_reply": {"sessionId": idle, "prompt": refused},
        "claude_code_query": {"prompt": refused},
    }
    for name, arguments in calls.items():
        reply = mallory.call(name, **arguments)
        assert (name, reply.code) == (name, DENIED)
    assert mallory.call("claude_code_reply", sessionId=idle, prompt=refused, forkSession=True).code == DENIED
    evil = {"description": "x", "prompt": "x", "initialPrompt": refused}
    assert mallory.call("claude_code", prompt="go", agent="evil", agents={"evil": evil}).code == DENIED
    assert not list(target.place.home.glob("*.heapsnapshot"))
    assert not (target.place.home / ".claude" / "settings.json").exists()


@pytest.mark.soak  # which are: tests/core/policy/test_prompt_reader.py
async def test_a_command_of_the_list_is_run(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(policy=REMOTE, default_cwd=str(sandbox.project))
    session, _ = await run(service, script("hello", "hi"), options(sandbox))
    assert "Total cost" in (await say(service, session, "/cost")).result


async def test_a_mentioned_file_is_not_read_without_the_rules_of_read(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    secret, inside = sandbox.root / "secret.txt", sandbox.project / "inside.txt"
    secret.write_text("TEXT-OF-THE-SECRET")
    inside.write_text("TEXT-OF-THE-PROJECT")
    (sandbox.project / "link.txt").symlink_to(secret)
    service = await start_service(policy=REMOTE, default_cwd=str(sandbox.project))
    for mention in (f"@{secret}", f'@"{secret}"', f"@{secret}#L1-3", "@../secret.txt", "@link.txt", f"@{sandbox.home}"):
        with pytest.raises(PermissionDenied, match="may not read"):
            await service.create(script(f"look at {mention}", "hi"), options(sandbox))
    session, outcome = await run(service, script("look at @inside.txt", "hi"), options(sandbox))
    sent = json.dumps([one.body for one in model.requests if one.session_id == session.id])
    assert outcome.result == "hi"
    assert "TEXT-OF" not in sent  # the model is told that it is there, and reads it with its tools
    assert "inside.txt" in sent


@pytest.mark.soak  # that it is not read: below
async def test_a_mentioned_file_is_read_where_nothing_limits_reading(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    secret = sandbox.root / "secret.txt"
    secret.write_text("TEXT-OF-THE-SECRET")
    service = await start_service()
    session, _ = await run(service, script(f"look at @{secret}", "hi"), options(sandbox))
    assert "TEXT-OF-THE-SECRET" in json.dumps([one.body for one in model.requests if one.session_id == session.id])
