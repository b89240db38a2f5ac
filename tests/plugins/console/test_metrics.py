"""What `/metrics` says of others to a caller who opens it with their own token."""

from claude_code_mcp.testing.script import script

from .conftest import Console
from .console_client import Browser
from .test_conversation import ended, start


def test_metrics_show_a_caller_only_their_own_name(console: Console, alice: Browser) -> None:
    session = start(alice, console, script("Say it.", "Said."))
    ended(alice, session)
    shown = {
        name: console.browser().get("/metrics", Authorization=f"Bearer {console.tokens[name]}").body.decode()
        for name in ("alice", "bob")
    }
    assert 'claude_code_mcp_turns_total{caller="alice"' in shown["alice"]
    assert 'caller="alice"' not in shown["bob"]
    assert 'claude_code_mcp_cost_usd_total{caller="other"' in shown["bob"]
