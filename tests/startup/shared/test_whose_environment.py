"""Clients of the shared server have their own environment, through the real front and the real socket."""

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script

from .support import call, opened, shared_place


@pytest.mark.soak
def test_two_clients_of_one_shared_server_use_their_own_keys(
    sandbox: Sandbox, environment: dict[str, str], model: ScriptedModelThread
) -> None:
    with shared_place(sandbox, environment) as shared:
        keys = {}
        for name in ("ann", "bob"):
            with shared.client(ANTHROPIC_API_KEY=f"sk-key-of-{name}") as client:
                made = call(opened(client), 2, "claude_create_session", prompt=script("go", "done"), waitSeconds=40)
                assert made["result"] == "done", made
                keys[name] = {
                    request.headers["x-api-key"]
                    for request in model.requests
                    if request.session_id == made["sessionId"]
                }
            assert len(shared.locked_pids()) == 1
        assert keys == {"ann": {"sk-key-of-ann"}, "bob": {"sk-key-of-bob"}}
