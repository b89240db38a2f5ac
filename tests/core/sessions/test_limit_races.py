"""Sessions that wait for a usage limit at several servers: each learns of what another is told, and the message is sent
once."""

import asyncio
import time

import pytest

from claude_code_mcp.core.model.events import AuditEvent, Event, ProcessChanged, TurnStarted, WaitChanged
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text
from tests.conftest import StartService

from .support import PATIENCE, options, parked, run, say
from .usage_limit_support import SUBSCRIPTION, limited


class First:
    """Waits for the first event of a kind, of sessions that are not in memory yet too."""

    def __init__(self, kind: type[Event]) -> None:
        self._kind = kind
        self._happened = asyncio.Event()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, self._kind) and not (isinstance(event, WaitChanged) and event.wait is not None):
            self._happened.set()

    def act(self, act: AuditEvent) -> None:
        """Of no interest."""

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._happened.wait()


async def test_a_wait_that_is_abandoned_at_another_server_is_over_where_the_process_is(
    start_service: StartService, sandbox: Sandbox
) -> None:
    here, there = await start_service(SUBSCRIPTION), await start_service(SUBSCRIPTION)
    session, _ = await run(here, script("work", limited(time.time() + 3600)), options(sandbox, on_limit="wait"))
    assert session.live
    await there.interrupt(session.id)
    assert (await here.find(session.id)).continues_at is None
    await here.steer_limit(session.id, "wait")
    assert (await there.find(session.id)).continues_at is not None


async def test_continue_now_at_two_servers_sends_the_message_once(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    ends = First(WaitChanged)
    here = await start_service(SUBSCRIPTION, observers=[ends])
    there = await start_service(SUBSCRIPTION, observers=[ends])
    prompt = script("work", limited(time.time() + 3600, times=1, then="done"))
    session, _ = await run(here, prompt, options(sandbox, on_limit="wait"))
    steps = (server.steer_limit(session.id, "now") for server in (here, there, here, there))
    await asyncio.gather(*steps, return_exceptions=True)
    await ends.wait()
    await asyncio.gather(here._limit_waits.find_left_over(), there._limit_waits.find_left_over())
    assert sent(model, prompt) == [429, 200]


@pytest.mark.soak
async def test_a_server_that_had_the_session_before_continues_it_when_the_other_has_ended(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    ends = First(WaitChanged)
    here, there = await start_service(SUBSCRIPTION, observers=[ends]), await start_service(SUBSCRIPTION)
    session, _ = await run(here, script("one", "first"), options(sandbox, on_limit="wait"))
    prompt = script("two", limited(time.time() + 1, times=1, then="done"))
    await say(there, session.id, prompt)
    await there.__aexit__(None, None, None)
    await here._limit_waits.find_left_over()
    await ends.wait()
    assert sent(model, prompt) == [429, 200]


async def test_a_cancelled_session_does_not_wait(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(SUBSCRIPTION)
    session, _ = await run(service, script("work", limited(time.time() + 3600)), options(sandbox, on_limit="wait"))
    await service.cancel(session.id)
    assert (session.state, session.limit_wait, session.continues_at) == (State.CANCELLED, None, None)


@pytest.mark.soak
@pytest.mark.parametrize("moment", [pytest.param(TurnStarted, marks=pytest.mark.soak), ProcessChanged])
async def test_a_server_that_stops_while_the_session_continues_leaves_the_message_to_the_next(
    moment: type[Event], start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    """If Claude Code has read it, the turn was cut short like any other; if not, the next server sends it."""
    begins, ends = First(moment), First(WaitChanged)
    first = await start_service(SUBSCRIPTION)
    prompt = script("work", limited(time.time() + 3600, times=1, then=text("done", delay=1)))
    session, _ = await run(first, prompt, options(sandbox, on_limit="wait"))
    await parked(session)
    first.observe(begins)
    await first.steer_limit(session.id, "now")
    await begins.wait()
    await first.__aexit__(None, None, None)
    second: Service = await start_service(SUBSCRIPTION, observers=[ends])
    if (await second.find(session.id)).limit_wait is not None:
        await ends.wait()
    assert (await second.find(session.id)).limit_wait is None
    [transcript] = sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")
    assert transcript.read_text(encoding="utf-8").count('"role":"user","content":"work SCRIPT') == 2


def sent(model: ScriptedModelThread, prompt: str) -> list[int]:
    return [request.status for request in model.requests if request.prompt == prompt]
