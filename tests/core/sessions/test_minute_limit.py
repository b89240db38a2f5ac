"""How much a caller may use within a minute, and what becomes of one who has used more."""

import pytest

from claude_code_mcp.core.errors import RateLimited
from claude_code_mcp.core.model.events import AuditKind
from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, Limits, Policy
from claude_code_mcp.core.rate_limit import MinuteLimit
from claude_code_mcp.core.sessions.callers.principal_limits import PrincipalLimits
from claude_code_mcp.core.state.spending import Spending
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService

from .support import end_of, options
from .test_policy_enforcer import Acts


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_rate_limit_refills_gradually() -> None:
    clock, most = Clock(), {"alice": 4, "carol": 1}
    limit = MinuteLimit(most.get, clock)
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


def test_what_was_used_beyond_it_is_made_up_for_by_waiting() -> None:
    clock = Clock()
    limit = MinuteLimit({"alice": 1000}.get, clock, "Your sessions may use {most} tokens per minute")
    limit.check("alice")
    limit.use("alice", 999)
    limit.check("alice")
    limit.use("alice", 3000)
    with pytest.raises(RateLimited) as refused:
        limit.check("alice")
    assert refused.value.message == "Your sessions may use 1000 tokens per minute; wait 180 s."
    clock.now += 179
    with pytest.raises(RateLimited):
        limit.check("alice")
    clock.now += 1
    limit.check("alice")


def test_waits_are_limited_to_an_hour() -> None:
    clock = Clock()
    limit = MinuteLimit({"alice": 10}.get, clock)
    limit.use("alice", 10**9)
    with pytest.raises(RateLimited) as refused:
        limit.check("alice")
    assert 3600 <= refused.value.retry_after <= 3606


@pytest.mark.parametrize("amount", [0, -5, float("nan")])
def test_invalid_amount_does_not_reduce_spending(amount: float) -> None:
    limit = MinuteLimit({"alice": 1}.get, Clock())
    limit.take("alice")
    limit.use("alice", amount)
    with pytest.raises(RateLimited):
        limit.check("alice")


def test_tokens_of_the_cache_count_when_it_is_written_and_not_when_it_is_read() -> None:
    policy = Policy(OPEN_PROFILE.model_copy(update={"limits": Limits(tokens_per_minute=100)}))
    limits = PrincipalLimits(policy, Spending.__new__(Spending))
    limits.use_tokens("alice", Usage({"m": ModelUsage(cache_read_tokens=10**6)}))
    with limits.room("s", "alice", policy.profile("alice").limits, ()):
        pass
    each = ModelUsage(input_tokens=40, output_tokens=40, cache_creation_tokens=40)
    limits.use_tokens("alice", Usage({"m": each}))
    with pytest.raises(RateLimited), limits.room("s", "alice", policy.profile("alice").limits, ()):
        pass
    with limits.room("s", "bob", policy.profile("bob").limits, ()):
        pass


async def test_who_has_used_too_many_tokens_sends_no_message_and_begins_no_session_meanwhile(
    start_service: StartService, sandbox: Sandbox
) -> None:
    acts = Acts()
    limited = OPEN_PROFILE.model_copy(update={"limits": Limits(tokens_per_minute=1, sessions_per_minute=100)})
    service = await start_service(policy=Policy(limited), observers=[acts])
    turn = await service.create(script("a", "x"), options(sandbox))
    assert (await end_of(turn)).result == "x"
    with pytest.raises(RateLimited, match="1 tokens per minute") as refused:
        await service.send(turn.session.id, script("b", "y"))
    assert refused.value.retry_after > 1
    with pytest.raises(RateLimited):
        await service.create(script("c", "z"), options(sandbox))
    assert (await service.find(turn.session.id)).outcome is not None, "what uses no tokens goes on"
    assert acts.kinds().count(AuditKind.REFUSED) == 2


async def test_who_begins_too_many_sessions_goes_on_with_those_that_there_are(
    start_service: StartService, sandbox: Sandbox
) -> None:
    limited = OPEN_PROFILE.model_copy(update={"limits": Limits(sessions_per_minute=1)})
    service = await start_service(policy=Policy(limited))
    service._enforcer.limits.new_sessions._clock = Clock()
    turn = await service.create(script("a", "x"), options(sandbox))
    await end_of(turn)
    for begin in (
        service.create(script("b", "y"), options(sandbox)),
        service.fork(turn.session.id, script("c", "z")),
        service.stored.copy(turn.session.id),
    ):
        with pytest.raises(RateLimited, match="1 sessions per minute"):
            await begin
    assert (await end_of(await service.send(turn.session.id, script("d", "w")))).result == "w"
