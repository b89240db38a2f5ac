"""Every way a turn can end has a code of its own, and the session goes on after it."""

import itertools
import os
import signal

import pytest

from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.events import Retrying, Stalled, StateChanged
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, GroupBudget, Limits, Policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import fail, script, structured, text, tool
from tests.conftest import StartService

from .support import (
    ENDLESS,
    PATIENCE,
    SharedSessions,
    end_of,
    event,
    events,
    events_of_turn,
    on_shared_loop,
    options,
    parked,
    run,
    say,
    until,
    uses_tool,
)

WORK = script("work", tool("Bash", command=ENDLESS))
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}


@pytest.mark.soak  # tests/server/tools/test_timeouts.py
async def test_a_turn_that_outlasts_the_timeout_of_the_session_or_its_own_is_ended(
    service: Service, sandbox: Sandbox
) -> None:
    given = options(sandbox, allowed_tools=("Bash",), turn_timeout=0.001)
    session, outcome = await run(service, WORK, given)
    assert outcome.code is OutcomeCode.TIMEOUT, "its time was up before it had started"
    assert (await say(service, session, script("one", "in time"), timeout=PATIENCE)).result == "in time"
    outcome = await say(service, session, WORK, timeout=2)
    assert (outcome.code, session.state) == (OutcomeCode.TIMEOUT, State.ERROR)
    assert "longer" in outcome.detail
    assert session.live
    assert (await say(service, session, WORK)).code is OutcomeCode.TIMEOUT, "every turn has that of the session"
    assert (await say(service, session, script("go on", "in time"), timeout=PATIENCE)).result == "in time"


@pytest.mark.soak
@on_shared_loop
async def test_a_time_limit_belongs_to_its_call(shared: SharedSessions) -> None:
    session = await shared.session()
    turn = await shared.service.send(session.id, script("one", "first"), timeout=PATIENCE)
    await end_of(turn)
    assert turn.message.timeout == PATIENCE
    later = await shared.service.send(session.id, script("two", "second"))
    await end_of(later)
    assert (later.message.timeout, session.options.turn_timeout) == (None, None)


@pytest.mark.soak  # test_state.py, tests/server/test_faults.py
async def test_silence_is_reported_and_ends_with_the_next_word_and_waiting_for_an_answer_is_none(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(stall_ms=300, permission_timeout_ms=1500)
    gate = sandbox.project / "go"
    turn = await service.create(script("slow", text("at last", until=str(gate))), options(sandbox))
    session = turn.session
    await until(session, lambda: session.stalled and session.state is State.RUNNING)
    assert events(session, Stalled)[-1].seconds >= 0.3
    gate.touch()
    assert (await end_of(turn)).result == "at last"
    assert not session.stalled
    logged = [isinstance(item, Stalled) for item in session.log.after(0)]
    assert (True, True) not in itertools.pairwise(logged), "once per silence, not once per look"
    turn = await service.send(session.id, script("ask", tool("Bash", command="touch a"), "ok"))
    assert (await end_of(turn)).ok
    changes = events_of_turn(session, StateChanged, Stalled)
    states = [item.state if isinstance(item, StateChanged) else None for item in changes]
    asked = states.index(State.WAITING)
    assert states[asked + 1] is not None, "a silence was reported while it waited"


@pytest.mark.soak
async def test_the_number_of_model_turns_is_limited(service: Service, sandbox: Sandbox) -> None:
    prompt = script("work", tool("Bash", command="true"), tool("Bash", command="true"), "never said")
    session, outcome = await run(service, prompt, options(sandbox, allowed_tools=("Bash",), max_turns=1))
    assert (outcome.code, session.state) == (OutcomeCode.MAX_TURNS, State.ERROR)
    assert (await say(service, session, script("go on", "short"))).result == "short"


DEAR = text("dear", usage={"input_tokens": 1_000, "output_tokens": 40_000})
"""About a dollar at the prices of the default model, and more than a cent at any."""


async def test_a_spent_budget_ends_the_turn_and_refuses_the_next(service: Service, sandbox: Sandbox) -> None:
    prompt = script("spend", {**DEAR, **tool("Bash", command="true")}, "never said")
    session, outcome = await run(service, prompt, options(sandbox, allowed_tools=("Bash",), max_budget_usd=0.01))
    assert (outcome.code, session.state) == (OutcomeCode.MAX_BUDGET, State.ERROR)
    assert outcome.usage.cost_usd > 0.01
    own = "The session's own budget of $0.01 (maxBudgetUsd) is spent."
    assert outcome.detail == own
    with pytest.raises(LimitReached) as refused:
        await service.send(session.id, "hello")
    assert refused.value.message == own


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            Policy(OPEN_PROFILE.model_copy(update={"limits": Limits(session_usd=0.01)})),
            "The operator's budget of $0.01 per session is spent.",
        ),
        (
            Policy(OPEN_PROFILE.model_copy(update={"limits": Limits(daily_usd=0.01)})),
            "its share of your budget of $0.01 for today",
        ),
        (
            Policy(
                OPEN_PROFILE.model_copy(update={"limits": Limits(daily_usd=9, monthly_usd=8)}),
                budgets={"leads": GroupBudget(daily_usd=7, monthly_usd=0.01)},
            ),
            "its share of the budget of the group leads of $0.01 for this month",
        ),
    ],
    ids=["session of the profile", "day", "month of a group"],
)
async def test_a_turn_that_a_budget_ends_says_whose_it_was(
    start_service: StartService, sandbox: Sandbox, policy: Policy, said: str
) -> None:
    policy.assign("alice", ["leads"])
    service = await start_service(policy=policy, principals=["alice"])
    prompt = script("spend", {**DEAR, **tool("Bash", command="true")}, "never said")
    given = options(sandbox, allowed_tools=("Bash",))
    _, outcome = await run(service, prompt, given, caller=Caller("alice"))
    assert outcome.code is OutcomeCode.MAX_BUDGET
    assert said in outcome.detail


@pytest.mark.soak
async def test_remaining_budget_survives_parking(service: Service, sandbox: Sandbox) -> None:
    _, price = await run(service, script("spend", DEAR), options(sandbox))
    budget = 1.5 * price.usage.cost_usd
    session, first = await run(service, script("spend", DEAR), options(sandbox, max_budget_usd=budget))
    assert first.ok
    await parked(session)
    assert session.budget_left == pytest.approx(budget / 3)
    spend_more = script("more", {**DEAR, **tool("Bash", command="true")}, "never said")
    assert (await say(service, session, spend_more)).code is OutcomeCode.MAX_BUDGET
    with pytest.raises(LimitReached, match="budget"):
        await service.send(session.id, "hello")


async def test_structured_output_is_handed_over_and_without_it_a_turn_has_not_succeeded(
    service: Service, sandbox: Sandbox
) -> None:
    handed_over, wrong = script("count", structured({"count": 3})), structured({"count": "three"})
    session, outcome = await run(service, handed_over, options(sandbox, output_schema=SCHEMA))
    assert (outcome.ok, outcome.structured_output) == (True, {"count": 3})
    for steps in (["three", "still three", "three!"], [wrong] * 12):
        outcome = await say(service, session, script("count", *steps))
        assert (outcome.code, session.state) == (OutcomeCode.STRUCTURED_OUTPUT_MISSING, State.ERROR)
        assert outcome.structured_output is None
    assert (await say(service, session, handed_over)).structured_output == {"count": 3}


@pytest.mark.soak  # tests/server/test_faults.py
async def test_an_api_that_keeps_failing_is_an_outcome_with_its_status_and_one_that_recovers_ends_the_retrying(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    service = await start_service({"CLAUDE_CODE_MAX_RETRIES": "1"})
    turn = await service.create(script("fail", fail(529)), options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    retry = await event(session, Retrying)
    assert (retry.attempt, retry.of, retry.status) == (1, 1, 529)
    shown = session.activity.retrying
    assert shown is retry
    outcome = await end_of(turn)
    assert (outcome.code, outcome.api_status) == (OutcomeCode.API_ERROR, 529)
    assert (session.state, session.activity.retrying) == (State.ERROR, None)
    await service.send(session.id, script("fail once", fail(529, times=1, then=tool("Bash", command=ENDLESS))))
    await until(session, lambda: session.activity.retrying is not None)
    await until(session, lambda: uses_tool(session))
    assert (session.activity.retrying, session.state) == (None, State.RUNNING)


@pytest.mark.soak  # other refusals of the API: tests/server/test_faults.py
async def test_a_refused_key_is_an_api_error(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service({"ANTHROPIC_API_KEY": "sk-bad", "CLAUDE_CODE_MAX_RETRIES": "0"})
    _, outcome = await run(service, script("say", "never"), options(sandbox))
    assert (outcome.code, outcome.api_status) == (OutcomeCode.API_ERROR, 401)


@pytest.mark.soak  # test_own_turns.py; how: test_faults.py
async def test_a_crash_in_mid_turn_reports_how_the_process_died_here_and_after_a_restart_and_the_session_continues(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service()
    turn = await service.create(WORK, options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    await until(session, lambda: uses_tool(session))
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    outcome = await end_of(turn)
    assert (outcome.code, outcome.exit_code) == (OutcomeCode.CRASHED, -signal.SIGKILL)
    assert "SIGKILL" in outcome.detail
    assert (session.state, session.live) == (State.ERROR, False)
    await service.__aexit__()
    another = await start_service()
    found = await another.find(session.id)
    assert (found.state, found.outcome) == (State.ERROR, outcome)
    assert (await say(another, session.id, script("again", "recovered"))).result == "recovered"
