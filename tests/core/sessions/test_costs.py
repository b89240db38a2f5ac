"""Costs and tokens: per turn, per session and per model, whatever happens to the process."""

import pytest

from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.model.usage import Usage
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService

from .support import ENDLESS, SharedSessions, end_of, kill, on_shared_loop, options, parked, run, say, until, uses_tool


def words(number: int) -> str:
    return script("spend", text("x", usage={"input_tokens": 1000 * number, "output_tokens": 100 * number}))


def tokens(usage: Usage) -> tuple[int, int]:
    return usage.total.input_tokens, usage.total.output_tokens


async def test_costs_are_those_of_the_turn_and_neither_lost_nor_doubled_when_the_process_is_replaced(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service()
    session, first = await run(service, words(1), options(sandbox))
    second = await say(service, session, words(2))
    assert second.usage.cost_usd == pytest.approx(2 * first.usage.cost_usd)
    assert tokens(session.usage) == (3000, 300)
    assert session.usage.cost_usd == session.costs.spent_usd == pytest.approx(3 * first.usage.cost_usd)
    await parked(session)
    third = await say(service, session, words(3))
    await kill(session)
    fourth = await say(service, session, words(4))
    assert [tokens(one.usage) for one in (first, second, third, fourth)] == [
        (1000, 100),
        (2000, 200),
        (3000, 300),
        (4000, 400),
    ]
    assert tokens(session.usage) == (10_000, 1000)
    assert session.usage.cost_usd == pytest.approx(10 * first.usage.cost_usd)
    await service.__aexit__()
    another = await start_service()
    fifth = await say(another, session.id, words(5))
    resumed = another.session(session.id)
    assert tokens(fifth.usage) == (5000, 500)
    assert tokens(resumed.usage) == (15_000, 1500)
    assert resumed.usage.cost_usd == pytest.approx(15 * first.usage.cost_usd)
    assert resumed.costs.spent_usd == pytest.approx(resumed.usage.cost_usd)


@pytest.mark.soak  # tests/core/model/test_usage.py
async def test_tokens_are_reported_per_model(service: Service, sandbox: Sandbox) -> None:
    session, _ = await run(service, words(1), options(sandbox, model="claude-haiku-4-5"))
    turn = await service.fork(session.id, words(2), options=options(sandbox, model="claude-sonnet-4-5"))
    fork = turn.session
    await end_of(turn)
    assert {name: one.input_tokens for name, one in session.usage.models.items()} == {"claude-haiku-4-5": 1000}
    [(name, used)] = fork.usage.models.items()
    assert (name.startswith("claude-sonnet-4-5"), used.output_tokens) == (True, 200)


@on_shared_loop
async def test_an_interrupted_turn_costs_what_it_used(shared: SharedSessions) -> None:
    session = await shared.session(allowed_tools=("Bash",))
    before = tokens(session.usage)
    used = {"input_tokens": 5000, "output_tokens": 10}
    turn = await shared.service.send(session.id, script("work", {**tool("Bash", command=ENDLESS), "usage": used}))
    await until(session, lambda: uses_tool(session))
    await shared.service.interrupt(session.id)
    assert tokens((await end_of(turn)).usage) == (5000, 10)
    assert tokens(session.usage) == (before[0] + 5000, before[1] + 10)


@on_shared_loop
async def test_usage_is_shown_during_a_turn_and_counted_once(shared: SharedSessions) -> None:
    used = {"input_tokens": 5000, "output_tokens": 10}
    go = shared.sandbox.project / "go"
    wait = {**tool("Bash", command=f"until [ -e {go} ]; do sleep 0.05; done"), "usage": used}
    turn = await shared.service.create(
        script("work", {**tool("Bash", command="echo"), "usage": used}, wait, text("done", usage=used)),
        options(shared.sandbox, allowed_tools=("Bash",)),
    )
    session = turn.session
    # The count of the output comes behind the call of the tool, and the tool may have begun by then.
    await until(session, lambda: tokens(session.usage) == (10_000, 20))
    running = session.usage.cost_usd
    assert (session.model_turns, session.state) == (2, State.RUNNING)
    assert running > 0
    assert session.costs.spent_usd == 0, "nothing is charged that no result has claimed"
    go.touch()
    outcome = await end_of(turn)
    assert tokens(session.usage) == tokens(outcome.usage) == (15_000, 30)
    assert session.model_turns == outcome.num_turns == 3
    assert session.usage.cost_usd == outcome.usage.cost_usd >= running


@pytest.mark.soak  # test_told_and_spent.py
async def test_what_was_seen_of_a_turn_is_not_taken_back_when_its_process_is_killed(
    service: Service, sandbox: Sandbox
) -> None:
    used = {"input_tokens": 5000, "output_tokens": 10}
    prompt = script("work", {**tool("Bash", command=ENDLESS), "usage": used})
    turn = await service.create(prompt, options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    await until(session, lambda: tokens(session.usage) == (5000, 10))
    running = session.usage.cost_usd
    await kill(session)
    assert (await end_of(turn)).code == "crashed"
    assert tokens(session.usage) >= (5000, 10)
    assert session.usage.cost_usd >= running > 0
    assert session.model_turns == 1


@pytest.mark.soak  # test_outcomes.py
async def test_at_a_stop_for_the_budget_the_usage_agrees_with_that_by_model(service: Service, sandbox: Sandbox) -> None:
    used = {"input_tokens": 500_000, "output_tokens": 1000}
    spend = {**tool("Bash", command="echo"), "usage": used}
    given = options(sandbox, max_budget_usd=0.5, allowed_tools=("Bash",), model="claude-sonnet-4-5")
    _, outcome = await run(service, script("spend", spend, spend, "never said"), given)
    assert outcome.code == "max_budget"
    assert tokens(outcome.usage) == (500_000, 1000)
    assert (outcome.raw_usage["input_tokens"], outcome.raw_usage["output_tokens"]) == (500_000, 1000)
