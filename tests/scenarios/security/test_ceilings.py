"""What a session may do and spend at most, whatever it does itself and however many run at once."""

import asyncio
import json

import pytest

from claude_code_mcp.core.errors import InvalidArgument, LimitReached, PermissionDenied
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import REMOTE_PROFILE, Limits, Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import plan, script, tool
from tests.conftest import StartService
from tests.core.sessions.support import ENDLESS, end_of, options, parked, question, run, say, until
from tests.support.waiting import HANG_SECONDS

PLAN = script("plan", plan("# Tidy up"), tool("Write", file_path="swept", content="x"), "swept")
BACKGROUND = script(
    "build",
    tool("Bash", command="until [ -e go ]; do sleep 0.05; done", run_in_background=True),
    "started",
    tool("Bash", command=ENDLESS),
)


@pytest.mark.parametrize(
    ("ceiling", "by"),
    [
        ("dontAsk", "caller"),
        *(
            pytest.param(ceiling, by, marks=pytest.mark.soak)
            for ceiling in ("plan", "default", "dontAsk")
            for by in ("rule", "caller")
            if (ceiling, by) != ("dontAsk", "caller")
        ),
    ],
)
async def test_an_approved_plan_does_not_lift_the_mode_whatever_the_settings_say(
    start_service: StartService, sandbox: Sandbox, ceiling: str, by: str
) -> None:
    settings = sandbox.home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"permissions": {"defaultMode": "acceptEdits"}}))
    rules = (parse_rule("ExitPlanMode"),) if by == "rule" else ()
    service = await start_service(policy=Policy(Profile(mode_ceiling=ceiling, allow=rules)))
    turn = await service.create(PLAN, options(sandbox, permission_mode="plan"))
    session = turn.session
    if by == "caller":
        service.respond(session.id, await question(session), Answer(allow=True))
    if ceiling == "default":
        await until(session, lambda: [one.tool_name for one in session.questions] == ["Write"])
        service.respond(session.id, session.questions[0].id, Answer(allow=False))
    elif ceiling == "plan":
        await until(session, lambda: not session.busy or any(one.tool_name == "Write" for one in session.questions))
        for one in session.questions:
            service.respond(session.id, one.id, Answer(allow=False))
    await end_of(turn)
    assert not (sandbox.project / "swept").exists()


async def spent(service: Service, sandbox: Sandbox) -> Session:
    """A session that has used up its budget."""
    session, _ = await run(service, script("work", "done"), options(sandbox))
    assert session.budget_left == 0
    return session


SMALL = Policy(Profile(limits=Limits(session_usd=0.000001)))


@pytest.mark.soak  # tests/core/sessions/test_records.py
async def test_the_budget_of_a_session_outlives_the_server_and_its_time_in_memory(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=SMALL, session_ttl_ms=1, cleanup_interval_ms=20)
    session = await spent(service, sandbox)
    session_id = session.id
    await until(session, lambda: not session.live)
    again = await start_service(policy=SMALL)
    for one in (service, again):
        with pytest.raises(LimitReached, match="budget"):
            await one.send(session_id, "more")
        with pytest.raises(LimitReached, match="budget"):
            await one.fork(session_id, "more")


ALL_OF_THE_DAY = Policy(Profile(limits=Limits(daily_usd=5.0, sessions=1)))


async def test_sessions_busy_cannot_spend_the_same_dollars(start_service: StartService, sandbox: Sandbox) -> None:
    one, two = await start_service(policy=ALL_OF_THE_DAY), await start_service(policy=ALL_OF_THE_DAY)
    work = script("work", tool("Bash", command=ENDLESS))
    turn = await one.create(work, options(sandbox, allowed_tools=("Bash",)))
    assert turn.session.process_budget == 5.0
    with pytest.raises(LimitReached, match="reserved"):
        await two.create(script("more", "never said"), options(sandbox))
    await one.interrupt(turn.session.id)
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            try:
                session, outcome = await run(two, script("more", "said"), options(sandbox))
                break
            except LimitReached:  # other servers learn a moment later that it is free
                await asyncio.sleep(0.05)
    assert outcome.result == "said"
    assert session.process_budget is not None
    assert session.process_budget < 5.0


@pytest.mark.soak  # and none of it twice: the test above
async def test_sessions_of_a_caller_share_what_is_left_of_the_day(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=Policy(Profile(limits=Limits(daily_usd=6.0, sessions=3))))
    work = script("work", tool("Bash", command=ENDLESS))
    budgets = []
    for _ in range(3):
        turn = await service.create(work, options(sandbox, allowed_tools=("Bash",)))
        budgets.append(turn.session.process_budget)
    assert budgets == [2.0, 2.0, 2.0]


@pytest.mark.soak  # tests/core/sessions/test_background.py
async def test_a_turn_that_background_work_begins_has_no_more_time_than_others(
    service: Service, sandbox: Sandbox
) -> None:
    turn = await service.create(BACKGROUND, options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    assert (await end_of(turn)).result == "started"
    session.options = session.options.model_copy(update={"turn_timeout": 0.5})
    (sandbox.project / "go").touch()
    await until(session, lambda: session.turns == 2 and not session.busy)
    assert session.outcome is not None
    assert session.outcome.code is OutcomeCode.TIMEOUT


async def test_a_debug_log_is_never_added_to_a_file_that_exists_nor_made_behind_a_link(
    service: Service, sandbox: Sandbox
) -> None:
    existing, logs, elsewhere = sandbox.project / "kept", sandbox.project / "logs", sandbox.root / "elsewhere"
    existing.write_text("mine")
    for directory in (logs, elsewhere):
        directory.mkdir()
    (sandbox.project / "link").symlink_to(sandbox.project / "nowhere")
    for name in ("kept", "link", str(existing)):
        with pytest.raises(InvalidArgument, match="debug_file"):
            await service.create("go", options(sandbox, debug_file=name))
    session, _ = await run(service, script("one", "first"), options(sandbox, debug_file="logs/log"))
    first = (logs / "log").read_text()
    assert first
    await parked(session)
    await say(service, session, script("two", "second"))
    assert (logs / "log.2").read_text()
    assert (logs / "log").read_text().startswith(first)
    assert existing.read_text() == "mine"
    assert not (sandbox.project / "nowhere").exists()
    # Between the check and the start another session may put a link where the directory was.
    await parked(session)
    logs.rename(sandbox.project / "moved")
    logs.symlink_to(elsewhere)
    outcome = await say(service, session, script("three", "third"))
    assert outcome.code is OutcomeCode.START_FAILED
    assert "debug_file" in outcome.detail
    assert list(elsewhere.iterdir()) == []


async def test_a_debug_log_stays_within_the_roots(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(policy=Policy(REMOTE_PROFILE), default_cwd=str(sandbox.project))
    (sandbox.project / "out").symlink_to(sandbox.root)
    for path in ("../log", "out/log", str(sandbox.home / "log")):
        with pytest.raises(PermissionDenied, match="debug_file"):
            await service.create("go", options(sandbox, debug_file=path))
