"""Costs and tokens: per turn, per session and per model, whatever happens to the process."""

import os
import signal

import pytest

from claude_code_mcp.model.usage import Usage
from claude_code_mcp.service import Service
from claude_code_mcp.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService

from .support import ENDLESS, end_of, options, parked, run, say, until


def words(number: int) -> str:
    return script("spend", text("x", usage={"input_tokens": 1000 * number, "output_tokens": 100 * number}))


def tokens(usage: Usage) -> tuple[int, int]:
    return usage.total.input_tokens, usage.total.output_tokens


async def kill(session: Session) -> None:
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    await until(session, lambda: not session.live)


async def test_each_turn_has_its_own_costs_and_the_session_their_sum(service: Service, sandbox: Sandbox) -> None:
    session, first = await run(service, words(1), options(sandbox))
    second = await say(service, session, words(2))
    assert [tokens(one.usage) for one in (first, second)] == [(1000, 100), (2000, 200)]
    assert second.usage.cost_usd == pytest.approx(2 * first.usage.cost_usd)
    assert tokens(session.usage) == (3000, 300)
    assert session.usage.cost_usd == session.spent_usd == pytest.approx(3 * first.usage.cost_usd)


@pytest.mark.parametrize("end", [parked, kill])
async def test_costs_are_neither_lost_nor_doubled_when_the_process_is_replaced(
    service: Service, sandbox: Sandbox, end: object
) -> None:
    session, first = await run(service, words(1), options(sandbox))
    assert callable(end)
    await end(session)
    second = await say(service, session, words(2))
    await end(session)
    third = await say(service, session, words(3))
    assert [tokens(one.usage) for one in (first, second, third)] == [(1000, 100), (2000, 200), (3000, 300)]
    assert tokens(session.usage) == (6000, 600)
    assert session.usage.cost_usd == pytest.approx(6 * first.usage.cost_usd)


async def test_another_server_knows_what_a_session_has_cost(start_service: StartService, sandbox: Sandbox) -> None:
    first = await start_service()
    session, one = await run(first, words(1), options(sandbox))
    await first.__aexit__()
    second = await start_service()
    two = await say(second, session.id, words(2))
    resumed = second.session(session.id)
    assert tokens(two.usage) == (2000, 200)
    assert tokens(resumed.usage) == (3000, 300)
    assert resumed.usage.cost_usd == pytest.approx(3 * one.usage.cost_usd)
    assert resumed.spent_usd == pytest.approx(resumed.usage.cost_usd)


async def test_tokens_are_told_per_model(service: Service, sandbox: Sandbox) -> None:
    session, _ = await run(service, words(1), options(sandbox, model="claude-haiku-4-5"))
    turn = await service.fork(session.id, words(2), options=options(sandbox, model="claude-sonnet-4-5"))
    fork = turn.session
    await end_of(turn)
    assert {name: one.input_tokens for name, one in session.usage.models.items()} == {"claude-haiku-4-5": 1000}
    [(name, used)] = fork.usage.models.items()
    assert (name.startswith("claude-sonnet-4-5"), used.output_tokens) == (True, 200)


async def test_an_interrupted_turn_costs_what_it_used(service: Service, sandbox: Sandbox) -> None:
    used = {"input_tokens": 5000, "output_tokens": 10}
    prompt = script("work", {**tool("Bash", command=ENDLESS), "usage": used})
    turn = await service.create(prompt, options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    await until(session, lambda: bool(session.readable_lines.tools))
    await service.interrupt(session.id)
    assert tokens((await end_of(turn)).usage) == (5000, 10)
    assert tokens(session.usage) == (5000, 10)
