"""How many requests a caller may send, and what the next one is answered."""

import pytest

from claude_code_mcp.core.errors import LimitReached, RateLimited
from claude_code_mcp.server.server import refusal
from claude_code_mcp.testing import ScriptedModelThread
from tests.plugins.console.conftest import running_console

POLICY = """
default = "few"
[profiles.few]
base = "local"
limits = { requests_per_minute = 5 }
[principals]
bob = "local"
"""


def test_whoever_asks_too_often_is_told_when_to_come_back(
    tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread
) -> None:
    root = tmp_path_factory.mktemp("few")
    policy = root / "policy.toml"
    policy.write_text(POLICY)
    with running_console(root, model.url, CLAUDE_CODE_MCP_POLICY=str(policy), CLAUDE_CODE_MCP_PROFILE="few") as console:
        alice, bob = (console.browser() for _ in range(2))
        asked = [alice.get("/api/me", Authorization=f"Bearer {console.tokens['alice']}") for _ in range(6)]
        assert [answer.status for answer in asked] == [200] * 5 + [429]
        assert asked[-1].code == "RATE_LIMITED"
        assert 0 < int(asked[-1].headers["retry-after"]) <= 12
        for _ in range(8):
            assert bob.get("/api/me", Authorization=f"Bearer {console.tokens['bob']}").status == 200


def test_a_tool_that_is_refused_for_a_while_says_for_how_long() -> None:
    (said, other) = (
        refusal(error).structured_content for error in (RateLimited("Too much.", 7), LimitReached("Too many."))
    )
    assert said == {"error": {"code": "RATE_LIMITED", "message": "Too much.", "retryAfter": 7}}
    assert other == {"error": {"code": "LIMIT_REACHED", "message": "Too many."}}
