"""Budgets against sessions that hide what they use: they ask the model themselves, or claim that their turns cost
nothing. Where the server carries the traffic it counts it; elsewhere a forged result makes nothing free."""

import json
import shlex

import pytest

from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.policy.policy import Limits, Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, parked
from tests.support.bubblewrap import missing

from .conftest import HOLD, Forgery, StartForgery

needs_bubblewrap = pytest.mark.skipif(missing() is not None, reason=str(missing()))
HIGHEST_INPUT = 15e-6

DIRECT = """
import http.client, json, os, socket
body = json.dumps({"model": "claude-opus-5-5", "max_tokens": 100, "messages": [{"role": "user", "content": PROMPT}]})
connection = http.client.HTTPConnection("model")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(os.environ["ANTHROPIC_UNIX_SOCKET"])
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "Content-Type": "application/json"}
connection.request("POST", "/v1/messages", body, headers)
answer = connection.getresponse()
print(answer.status, answer.reason, answer.read()[-300:].decode())
"""


def direct(tokens: int) -> str:
    """A command that asks the model itself, for an answer that uses so many tokens."""
    prompt = script("direct", text("x", usage={"input_tokens": tokens, "output_tokens": 0}))
    return "python3 -c " + shlex.quote(DIRECT.replace("PROMPT", json.dumps(prompt)))


def alone(sandbox: Sandbox, **limits: float) -> Policy:
    """A sandbox whose only way out is that to the model."""
    amounts = Limits.model_validate(limits)
    return Policy(Profile(isolation="sandbox", roots=(str(sandbox.project),), network="model", limits=amounts))


def session(sandbox: Sandbox) -> SessionOptions:
    return SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))


@pytest.mark.soak  # tests/core/sessions/test_traffic_ledger.py
@needs_bubblewrap
async def test_what_claude_code_claims_is_what_an_honest_turn_costs(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service: Service = await start_service(policy=alone(sandbox))
    used = text("x", usage={"input_tokens": 1_000_000, "output_tokens": 0})
    turn = await service.create(script("work", used), session(sandbox), caller=Caller("mallory"))
    outcome = await end_of(turn)
    assert outcome.usage.cost_usd == pytest.approx(4.0, rel=0.01)
    await parked(turn.session)
    assert turn.session.costs.spent_usd == pytest.approx(outcome.usage.cost_usd)


@pytest.mark.soak  # they are counted against a budget below
@needs_bubblewrap
async def test_five_calls_to_the_models_socket_cost_what_they_use(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service: Service = await start_service(policy=alone(sandbox))
    command = f"for n in 1 2 3 4 5; do {direct(100_000)}; done > seen 2>&1"
    turn = await service.create(
        script("go", tool("Bash", command=command), "done"), session(sandbox), caller=Caller("mallory")
    )
    outcome = await end_of(turn)
    assert (sandbox.project / "seen").read_text().count("200 OK") == 5
    assert outcome.usage.cost_usd >= 5 * 100_000 * HIGHEST_INPUT
    assert turn.session.costs.spent_usd == pytest.approx(outcome.usage.cost_usd)


@needs_bubblewrap
async def test_the_model_answers_no_command_once_the_budget_is_spent(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service: Service = await start_service(policy=alone(sandbox, session_usd=5.0))
    command = f"for n in 1 2 3 4 5 6; do {direct(500_000)}; done > seen 2>&1"
    turn = await service.create(
        script("go", tool("Bash", command=command), "done"), session(sandbox), caller=Caller("mallory")
    )
    await end_of(turn)
    seen = (sandbox.project / "seen").read_text()
    assert seen.count("200 OK") == 3, "each costs two dollars at least"
    assert "per session is spent" in seen
    with pytest.raises(LimitReached, match="budget"):
        await service.send(turn.session.id, "more", caller=Caller("mallory"))


HANGING_UP = DIRECT.replace("answer = ", "connection.close() #").replace("print(answer", "print(0) # (answer")


@pytest.mark.soak
@needs_bubblewrap
async def test_requests_that_a_command_hangs_up_on_use_up_the_budget(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service: Service = await start_service(policy=alone(sandbox, session_usd=5.0))
    answer = text("x", until=str(sandbox.project / "left"), usage={"input_tokens": 500_000, "output_tokens": 0})
    hanging_up = "python3 -c " + shlex.quote(HANGING_UP.replace("PROMPT", json.dumps(script("direct", answer))))
    refused = "until grep -q spent seen; do " + direct(1) + " > seen 2>&1; done"
    command = f"for n in 1 2 3; do {hanging_up}; done; touch left; {refused}"
    prompt = script("go", tool("Bash", command=command), "done")
    turn = await service.create(prompt, session(sandbox), caller=Caller("mallory"))
    await end_of(turn)
    assert "per session is spent" in (sandbox.project / "seen").read_text()
    assert turn.session.costs.spent_usd >= 3 * 500_000 * 4e-6


@pytest.mark.soak  # tests/plugins/sandbox/test_model_socket.py
@needs_bubblewrap
async def test_a_batch_cannot_be_ordered_past_the_count(start_service: StartService, sandbox: Sandbox) -> None:
    service: Service = await start_service(policy=alone(sandbox))
    command = direct(1).replace("/v1/messages", "/v1/messages/batches") + " > seen 2>&1"
    turn = await service.create(
        script("go", tool("Bash", command=command), "done"), session(sandbox), caller=Caller("mallory")
    )
    assert (await end_of(turn)).ok
    assert "400 Bad Request" in (sandbox.project / "seen").read_text()


FREE = {"type": "result", "subtype": "success", "is_error": False, "result": "done", "total_cost_usd": 0}


async def test_sessions_that_claim_to_cost_nothing_use_up_the_day_anyway(start_forgery: StartForgery) -> None:
    """Eight of them ran under a limit for two."""
    each = 100_000 * HIGHEST_INPUT
    forgery: Forgery = await start_forgery(policy=Policy(Profile(limits=Limits(daily_usd=2 * each, sessions=2))))
    project, begun = forgery.sandbox.project, 0
    for _ in range(8):
        (project / "go").unlink(missing_ok=True)
        forgery.trail.refuted.clear()
        work = {**forgery.writing(FREE, then=HOLD), "usage": {"input_tokens": 100_000, "output_tokens": 1}}
        try:
            turn = await forgery.begin(work, "worked on", "and on")
        except LimitReached:
            break
        begun += 1
        outcome = await end_of(turn)
        if outcome.code is OutcomeCode.MAX_BUDGET and begun > 1:
            break  # the one before was counted for more, and has left too little of the day
        assert outcome.ok, "the forged result is the first thing that is known of the turn"
        (project / "go").touch()
        await forgery.refuted()
        await turn.session.closed()
    assert begun == 2
