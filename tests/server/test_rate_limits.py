"""How many requests a caller may send, and what the next one is answered."""

import pytest

from claude_code_mcp.errors import RateLimited
from claude_code_mcp.server.transports.running_calls import RequestLimit
from claude_code_mcp.testing import ScriptedModelThread
from tests.web.conftest import running_console


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


POLICY = """
default = "few"
[profiles.few]
base = "local"
limits = { requests_per_minute = 5 }
[principals]
bob = "local"
"""


def test_a_caller_has_so_many_a_minute_and_one_more_after_each_part_of_it() -> None:
    clock, most = Clock(), {"alice": 4, "carol": 1}
    limit = RequestLimit(most.get, clock)
    for _ in range(4):
        limit.take("alice")
    with pytest.raises(RateLimited) as refused:
        limit.take("alice")
    assert refused.value.retry_after == 15
    limit.take("carol")
    limit.take("dave")
    clock.now += 15
    limit.take("alice")
    with pytest.raises(RateLimited):
        limit.take("alice")
    clock.now += 3600
    for _ in range(4):
        limit.take("alice")
    with pytest.raises(RateLimited):
        limit.take("alice")


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
