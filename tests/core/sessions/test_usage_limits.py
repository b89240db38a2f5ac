"""A usage limit ends a turn, and the session continues automatically after the reset: with the real CLI."""

import asyncio
import time

import pytest

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied, SessionBusy
from claude_code_mcp.core.model.events import AuditEvent, Event, TurnEnded, UsageReported, WaitChanged
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, Policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import fail, script, text, tool
from tests.conftest import StartService

from .support import ENDLESS, PATIENCE, end_of, event, events, options, run, say, until
from .usage_limit_support import SUBSCRIPTION, limit_headers, limited


@pytest.fixture
async def subscribed(start_service: StartService) -> Service:
    started = await start_service(SUBSCRIPTION)
    assert isinstance(started, Service)
    return started


async def test_a_usage_limit_ends_the_turn_with_the_time_of_its_reset(subscribed: Service, sandbox: Sandbox) -> None:
    reset = int(time.time()) + 3600
    session, outcome = await run(subscribed, script("work", limited(reset)), options(sandbox))
    assert (outcome.code, outcome.limit_type, outcome.resets_at) == (OutcomeCode.LIMIT_REACHED, "five_hour", reset)
    assert outcome.detail.startswith("The 5-hour limit is reached. It resets at 20")
    assert session.state is State.LIMITED
    assert session.continues_at is None
    [reported] = events(session, UsageReported)
    assert reported.plan.rejected
    assert reported.plan.line == "5-hour 100%, weekly 40%"


@pytest.mark.soak
async def test_a_rate_limit_of_an_api_key_has_no_known_reset(service: Service, sandbox: Sandbox) -> None:
    prompt = script("work", {**fail(429), "headers": {"x-should-retry": "false"}})
    session, outcome = await run(service, prompt, options(sandbox, on_limit="wait"))
    assert (outcome.code, outcome.resets_at) == (OutcomeCode.LIMIT_REACHED, None)
    assert session.continues_at is not None
    assert 25 < session.continues_at - time.time() < 61


async def test_the_session_continues_automatically_once_with_the_same_message(
    subscribed: Service, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    prompt = script("work", limited(time.time() + 1, times=1, then=text("done", headers=limit_headers(0, "allowed"))))
    session, outcome = await run(subscribed, prompt, options(sandbox, on_limit="wait"))
    assert outcome.code is OutcomeCode.LIMIT_REACHED
    await until(session, lambda: session.state is State.IDLE)
    assert session.outcome is not None
    assert session.outcome.result == "done"
    assert session.limit_wait is None
    sent = [request for request in model.requests if request.session_id == session.id]
    assert [(request.status, request.prompt) for request in sent] == [(429, prompt), (200, prompt)]
    assert [change.wait is None for change in events(session, WaitChanged)] == [False, True]


async def test_what_was_done_before_the_limit_is_not_asked_for_again_without_a_word(
    subscribed: Service, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    steps = [tool("Bash", command="echo x >> done"), limited(time.time() + 1, times=1)]
    given = options(sandbox, on_limit="wait", allowed_tools=("Bash",))
    prompt = script("work", *steps)
    session, _ = await run(subscribed, prompt, given)
    again = await event(session, WaitChanged, 2)
    assert again.wait is not None
    assert (again.wait.attempt, again.wait.text.endswith(prompt)) == (2, True)
    last = [request for request in model.requests if request.session_id == session.id][-1]
    assert last.prompt == again.wait.text
    assert last.prompt.startswith("[A usage limit stopped the turn")


async def test_an_interruption_or_a_message_ends_the_wait(subscribed: Service, sandbox: Sandbox) -> None:
    reset = time.time() + 3600
    session, _ = await run(subscribed, script("work", limited(reset)), options(sandbox, on_limit="wait"))
    await subscribed.interrupt(session.id)
    assert not waits(session)
    assert (await say(subscribed, session, script("more", limited(reset)), on_limit="wait")).resets_at == int(reset)
    assert waits(session)
    assert (await say(subscribed, session, script("more", "fine"))).result == "fine"
    assert session.limit_wait is None


@pytest.mark.soak
async def test_a_refused_message_does_not_change_on_limit(subscribed: Service, sandbox: Sandbox) -> None:
    turn = await subscribed.create(script("work", tool("Bash", command=ENDLESS)), options(sandbox))
    session = turn.session
    with pytest.raises(SessionBusy):
        await subscribed.send(session.id, "more", busy_mode=BusyMode.REFUSE, on_limit="wait")
    await subscribed.interrupt(session.id)
    with pytest.raises(InvalidArgument):
        await subscribed.send(session.id, "more", images=["/missing.png"], on_limit="wait")
    assert session.options.on_limit is None
    await say(subscribed, session, script("more", "fine"), on_limit="wait")
    assert session.options.on_limit == "wait"


async def test_continue_now_and_later_wait(subscribed: Service, sandbox: Sandbox) -> None:
    prompt = script("work", limited(time.time() + 3600, times=1, then="done"))
    session, _ = await run(subscribed, prompt, options(sandbox))
    await subscribed.steer_limit(session.id, "wait")
    assert waits(session)
    await subscribed.steer_limit(session.id, "end")
    assert not waits(session)
    await subscribed.steer_limit(session.id, "now")
    await until(session, lambda: session.state is State.IDLE)
    assert session.outcome is not None
    assert session.outcome.result == "done"


async def test_a_wait_survives_the_server(start_service: StartService, sandbox: Sandbox) -> None:
    async with asyncio.timeout(PATIENCE):
        first = await start_service(SUBSCRIPTION)
        prompt = script("work", limited(time.time() + 3600, times=1, then="done"))
        turn = await first.create(prompt, options(sandbox, on_limit="wait"))
        await end_of(turn)
        await first.__aexit__(None, None, None)
        ends = TurnEnds()
        second = await start_service(SUBSCRIPTION, observers=[ends])
        session = await second.find(turn.session.id)
        assert waits(session)
        assert session.state is State.LIMITED
        await second.steer_limit(session.id, "now")
        assert (await ends.next()).result == "done"


def waits(session: Session) -> bool:
    return session.continues_at is not None


class TurnEnds:
    """Waits for the turns of a service, of sessions that are not in memory yet too."""

    def __init__(self) -> None:
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, TurnEnded):
            self._outcomes.put_nowait(event.outcome)

    def act(self, act: AuditEvent) -> None:
        """Of no interest."""

    async def next(self) -> Outcome:
        async with asyncio.timeout(PATIENCE):
            return await self._outcomes.get()


async def test_where_the_cli_waits_itself_the_turn_goes_through_and_nothing_else_waits(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service({**SUBSCRIPTION, "CLAUDE_CODE_RETRY_WATCHDOG": "1"})
    step = limited(time.time() + 2, times=1, then="done")
    retried = {**step, "headers": {**step["headers"], "x-should-retry": "true"}}
    session, outcome = await run(service, script("work", retried), options(sandbox, on_limit="wait"))
    assert (outcome.ok, outcome.result) == (True, "done")
    assert events(session, WaitChanged) == []
    assert session.turns == 1


async def test_a_profile_decides_what_callers_leave_open_and_can_forbid_to_wait(
    start_service: StartService, sandbox: Sandbox
) -> None:
    waiting = await start_service(SUBSCRIPTION, policy=Policy(OPEN_PROFILE.model_copy(update={"on_limit": "wait"})))
    session, _ = await run(waiting, script("work", limited(time.time() + 3600)), options(sandbox))
    assert waits(session)
    ending = await start_service(SUBSCRIPTION, policy=Policy(OPEN_PROFILE.model_copy(update={"on_limit": "end"})))
    with pytest.raises(PermissionDenied, match="does not let sessions wait"):
        await ending.create(script("work", "x"), options(sandbox, on_limit="wait"))
