"""What this package relies on, on several versions of the real Claude Code: the same conversations on each."""

import json
import subprocess
import time

import pytest

from claude_code_mcp.core.claude.executable import MINIMUM_VERSION, TESTED_VERSION, read_version
from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.events import Message, UsageReported
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.question import Answer, QuestionKind
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import Step, ask_user, fail, plan, script, text, tool
from claude_code_mcp.testing.script import question as asking
from tests.conftest import StartService
from tests.core.sessions.support import ENDLESS, end_of, events, options, parked, question, run, say, until
from tests.core.sessions.usage_limit_support import SUBSCRIPTION, limited
from tests.support.npm import Unavailable

from .versions import BUNDLED, TOTALS_ONLY, chosen_versions, executable_of

UNIT = 10_000
"""Tokens that are told apart from the few that some versions use beside the conversation, for instance for a title."""


OLDEST = ".".join(map(str, MINIMUM_VERSION))


def on(*quick: str) -> pytest.MarkDecorator:
    """Every version, of which `make test` has these: what the newest does, the other tests show too. On the oldest it
    has one conversation; `make soak` has the rest."""
    cases = [pytest.param(version, marks=() if version in quick else pytest.mark.soak) for version in chosen_versions()]
    return pytest.mark.parametrize("executable", cases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def executable(request: pytest.FixtureRequest) -> str:
    try:
        return executable_of(str(request.param))
    except Unavailable as why:
        pytest.skip(f"Claude Code {request.param} cannot be had here: {why}")


@pytest.fixture
async def service(start_service: StartService, executable: str) -> Service:
    started = await start_service(claude_path=executable)
    assert isinstance(started, Service)
    return started


def spend(number: int) -> str:
    return script("spend", text("x", usage={"input_tokens": UNIT * number, "output_tokens": 100 * number}))


def units(outcome: Outcome) -> int:
    return outcome.usage.total.input_tokens // UNIT


def init_of(session: Session) -> dict[str, object]:
    frames = [dict(one.raw) for one in events(session, Message) if one.raw.get("subtype") == "init"]
    return frames[0]


@pytest.mark.soak  # with each of the versions
@on(OLDEST)
async def test_a_turn_is_run_asked_about_and_resumed(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(script("ask", tool("Bash", command="touch allowed"), "done"), options(sandbox))
    session = turn.session
    service.respond(session.id, await question(session), Answer(allow=True))
    assert (await end_of(turn)).result == "done"
    assert (sandbox.project / "allowed").exists()
    await parked(session)
    assert units(await say(service, session, spend(2))) == 2


@pytest.mark.soak
@on(TOTALS_ONLY)
async def test_turns_and_their_costs_over_several_processes(service: Service, sandbox: Sandbox) -> None:
    session, first = await run(service, spend(1), options(sandbox))
    assert (first.ok, first.result) == (True, "x")
    assert init_of(session)["permissionMode"] == "default", "nobody chose a mode, so a person is asked"
    outcomes = [first, await say(service, session, spend(2))]
    await parked(session)
    outcomes += [await say(service, session, spend(4)), await say(service, session, spend(8))]
    turn = await service.fork(session.id, spend(3))
    fork = turn.session
    forked = await end_of(turn)
    assert [units(one) for one in outcomes] == [1, 2, 4, 8]
    assert units(forked) == 3, "what the original used is not the fork's"
    assert fork.id != session.id
    assert all(one.usage.cost_usd > 0 for one in (*outcomes, forked))
    assert session.usage.cost_usd == pytest.approx(sum(one.usage.cost_usd for one in outcomes))


@on()
async def test_questions_are_asked_and_answered(service: Service, sandbox: Sandbox) -> None:
    choice = ask_user(asking("Which color?", "red", "blue"))
    steps: list[Step] = [
        tool("Bash", command="touch allowed"),
        tool("Bash", command="touch denied"),
        choice,
        "saw: ${tool_result}",
    ]
    turn = await service.create(script("ask", *steps), options(sandbox))
    session = turn.session
    service.respond(session.id, await question(session), Answer(allow=True))
    await until(session, lambda: bool(session.questions) and "denied" in session.questions[0].description)
    service.respond(session.id, session.questions[0].id, Answer(allow=False, message="not that one"))
    await until(session, lambda: bool(session.questions) and session.questions[0].kind is QuestionKind.USER_QUESTION)
    service.respond(session.id, session.questions[0].id, Answer(allow=True, answers=["blue"]))
    outcome = await end_of(turn)
    assert outcome.ok
    assert "blue" in outcome.result
    assert (sandbox.project / "allowed").exists()
    assert not (sandbox.project / "denied").exists()


@on()
async def test_a_plan_is_reviewed_and_carried_out(service: Service, sandbox: Sandbox) -> None:
    target = str(sandbox.project / "swept")
    steps: list[Step] = [plan("# Tidy up\n1. sweep"), tool("Write", file_path=target, content="clean"), "swept"]
    turn = await service.create(script("plan", *steps), options(sandbox, permission_mode="plan"))
    session = turn.session
    asked = await question(session)
    assert session.questions[0].kind is QuestionKind.PLAN_REVIEW
    assert "1. sweep" in session.questions[0].tool_input["plan"]
    service.respond(session.id, asked, Answer(allow=True, mode="acceptEdits"))
    assert (await end_of(turn)).result == "swept"
    assert (sandbox.project / "swept").read_text() == "clean"


@on()
async def test_an_interrupted_turn_ends_as_such_and_the_session_continues(service: Service, sandbox: Sandbox) -> None:
    prompt = script("work", {**tool("Bash", command=ENDLESS), "usage": {"input_tokens": UNIT, "output_tokens": 10}})
    turn = await service.create(prompt, options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    await until(session, lambda: any(one.status == "running" for one in session.readable_lines.tools.values()))
    await service.interrupt(session.id)
    outcome = await end_of(turn)
    assert (outcome.code, session.state) == (OutcomeCode.INTERRUPTED, State.INTERRUPTED)
    assert units(outcome) == 1
    assert (await say(service, session, script("go", "on"))).result == "on"


@on()
async def test_a_budget_counts_what_was_spent(service: Service, sandbox: Sandbox) -> None:
    given = options(sandbox, model="claude-haiku-4-5", max_budget_usd=0.016)
    limited, first = await run(service, spend(1), given)
    assert 0.0105 <= first.usage.cost_usd < 0.014, "some versions use a little beside the conversation"
    assert limited.budget_left == pytest.approx(0.016 - first.usage.cost_usd)
    await parked(limited)
    assert (await say(service, limited, spend(1))).code is OutcomeCode.MAX_BUDGET
    with pytest.raises(LimitReached):
        await service.send(limited.id, spend(1))


@on(OLDEST)
async def test_a_usage_limit_of_a_subscription(start_service: StartService, executable: str, sandbox: Sandbox) -> None:
    service = await start_service(SUBSCRIPTION, claude_path=executable)
    reset = int(time.time()) + 3600
    session, outcome = await run(service, script("work", limited(reset)), options(sandbox, on_limit="wait"))
    assert outcome.code is OutcomeCode.LIMIT_REACHED
    assert session.continues_at is not None
    # The oldest says only that there is a limit, and the time in a sentence for people.
    reports = OLDEST not in executable
    assert (outcome.limit_type, outcome.resets_at) == (("five_hour", reset) if reports else (None, None))
    assert bool(events(session, UsageReported)) is reports


@on(TOTALS_ONLY)
async def test_a_rate_limit_of_an_api_key(service: Service, sandbox: Sandbox) -> None:
    prompt = script("work", {**fail(429), "headers": {"x-should-retry": "false"}})
    _, outcome = await run(service, prompt, options(sandbox))
    assert (outcome.code, outcome.resets_at) == (OutcomeCode.LIMIT_REACHED, None)


@on(BUNDLED)
def test_the_range_is_what_is_tested(executable: str, environment: dict[str, str]) -> None:
    completed = subprocess.run([executable, "--version"], capture_output=True, text=True, env=environment, check=True)
    version = read_version(completed.stdout)
    assert version is not None
    assert MINIMUM_VERSION <= version <= TESTED_VERSION


def test_the_oldest_and_the_newest_are_among_the_tested() -> None:
    assert {OLDEST, BUNDLED} <= set(chosen_versions())
    assert json.dumps(read_version("no version")) == "null"
