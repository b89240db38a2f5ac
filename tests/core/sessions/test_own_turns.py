"""A message that wants a turn of its own gets one, and its outcome; of two at once one is refused."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.callers import Callers
from claude_code_mcp.core.errors import SessionBusy
from claude_code_mcp.core.model.events import ProcessChanged
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, Limits, Policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService

from .support import (
    SharedSessions,
    api_times,
    end_of,
    events,
    on_shared_loop,
    options,
    parked,
    run,
    say,
    until,
    uses_tool,
)

DAILY = Policy(OPEN_PROFILE.model_copy(update={"limits": Limits(daily_usd=100)}))
Whereabouts = Callable[[Session, Service], Awaitable[None]]


async def live(session: Session, service: Service) -> None:
    assert session.live


async def in_memory(session: Session, service: Service) -> None:
    await parked(session)


async def on_disk(session: Session, service: Service) -> None:
    await service.__aexit__()


@pytest.mark.soak  # tests/server/test_concurrent_callers.py
@pytest.mark.parametrize(
    ("where", "policy"),
    [
        (in_memory, DAILY),
        *(
            pytest.param(where, policy, marks=pytest.mark.soak)
            for where, policy in [(live, DAILY), (live, None), (in_memory, None), (on_disk, DAILY), (on_disk, None)]
        ),
    ],
    ids=lambda given: given.__name__ if callable(given) else "daily budget" if given else "unlimited",
)
async def test_exactly_one_of_two_concurrent_replies_is_accepted(
    start_service: StartService, sandbox: Sandbox, where: Whereabouts, policy: Policy | None
) -> None:
    service = await start_service(policy=policy)
    session, _ = await run(service, script("one", "first"), options(sandbox))
    await where(session, service)
    if where is on_disk:
        service = await start_service(policy=policy)
    gate = sandbox.project / "go"  # so that the second one is decided on while the first one runs
    prompts = [script(f"reply {number}", text(f"answer {number}", until=str(gate))) for number in range(2)]
    sent = await asyncio.gather(
        *(service.send(session.id, prompt, busy_mode=BusyMode.REFUSE) for prompt in prompts), return_exceptions=True
    )
    accepted = [(number, one) for number, one in enumerate(sent) if not isinstance(one, BaseException)]
    assert [type(one) for one in sent if isinstance(one, BaseException)] == [SessionBusy]
    [(number, turn)] = accepted
    gate.touch()
    assert (await end_of(turn)).result == f"answer {number}"
    started = [one.change for one in events(turn.session, ProcessChanged)].count("started")
    assert started == (2 if where is in_memory else 1), "the refused one has left no process behind"


@pytest.mark.soak  # tests/server/tools/test_waiting.py
@on_shared_loop
async def test_a_turn_of_its_own_has_its_own_cost_turns_and_times(shared: SharedSessions) -> None:
    session = await shared.session(allowed_tools=("Bash",))
    await say(shared.service, session, script("before", "before"))
    before = session.usage.cost_usd
    work = script("work", tool("Bash", command="while [ ! -e go ]; do sleep 0.02; done"), "done")
    first = await shared.service.send(session.id, work)
    await until(session, lambda: uses_tool(session))
    second = await shared.service.send(session.id, script("quick", "quick"), busy_mode=BusyMode.QUEUE)
    (shared.project / "go").touch()
    long, short = await end_of(first), await end_of(second)
    assert (long.num_turns, short.num_turns) == (2, 1)
    assert long.usage.cost_usd > short.usage.cost_usd > 0
    *_, earlier, one, two = api_times(session)
    assert [long.duration_api_ms, short.duration_api_ms] == [one - earlier, two - one]
    assert session.usage.cost_usd == pytest.approx(before + long.usage.cost_usd + short.usage.cost_usd)


@pytest.mark.soak
async def test_the_time_with_the_api_is_of_the_turn_also_after_a_resume_and_a_fork(
    service: Service, sandbox: Sandbox
) -> None:
    """The CLI goes on counting from what it wrote at its last clean exit."""
    session, first = await run(service, script("slow", text("one", delay=0.2)), options(sandbox))
    outcomes = [first, await say(service, session, script("quick", "two"))]
    await parked(session)
    outcomes += [await say(service, session, script("quick", name)) for name in ("three", "four")]
    one, two, three, four = api_times(session)
    assert [outcome.duration_api_ms for outcome in outcomes] == [one, two - one, three - two, four - three]
    assert one >= 200
    turn = await service.fork(session.id, script("quick", "five"))
    [five] = api_times(turn.session) if (await end_of(turn)).ok else []
    assert (await turn.outcome()).duration_api_ms == five - two, "what it wrote when it was parked"


@on_shared_loop
async def test_a_turn_that_takes_too_long_does_not_take_the_messages_behind_it(shared: SharedSessions) -> None:
    session = await shared.session()
    slow = await shared.service.send(session.id, script("slow", text("never", delay=60)), timeout=0.5)
    behind = await shared.service.send(session.id, script("behind", "my answer"), busy_mode=BusyMode.QUEUE)
    assert (await end_of(slow)).code is OutcomeCode.TIMEOUT
    assert (await end_of(behind)).result == "my answer"


@pytest.mark.soak  # tests/server/test_concurrent_callers.py, on a wire
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_whatever_the_order_everyone_gets_their_own_answer(
    start_service: StartService, sandbox: Sandbox, seed: int
) -> None:
    service = await start_service(policy=DAILY)
    session, _ = await run(service, script("one", "first"), options(sandbox))
    callers = Callers(service, session, seed)
    assert await callers.go(20) == []
    assert callers.refused
    assert len(callers.sent) + callers.refused == 20
    assert session.turns == len(callers.sent) + 1


async def test_crash_ends_the_turn_and_keeps_queued_messages(service: Service, sandbox: Sandbox) -> None:
    first = await service.create(script("slow", text("never", delay=60)), options(sandbox))
    session = first.session
    await until(session, lambda: first.message.started)
    behind = [
        await service.send(session.id, script(f"{number}", f"answer {number}"), busy_mode=BusyMode.QUEUE)
        for number in range(2)
    ]
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    assert (await end_of(first)).code is OutcomeCode.CRASHED
    assert [(await end_of(one)).result for one in behind] == ["answer 0", "answer 1"]


@pytest.mark.soak
async def test_who_gives_up_while_the_process_starts_takes_nobody_elses_message_along(
    service: Service, sandbox: Sandbox
) -> None:
    first = await service.create(script("first", "one"), options(sandbox))
    second = await service.send(first.session.id, script("second", "two"), busy_mode=BusyMode.QUEUE)
    assert first.session.state is State.STARTING
    await first.session.give_up_message(first.message)
    assert (await end_of(first)).code is OutcomeCode.INTERRUPTED
    assert (await end_of(second)).result == "two"
