"""Watching a session: replay, live events, and watchers that are too slow."""

import asyncio
from pathlib import Path

import pytest

from claude_code_mcp.core.model.events import Event, Gap, Message, Output, TurnEnded, TurnStarted
from claude_code_mcp.core.transcripts.event_log import Subscription
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService
from tests.support.misbehaving_cli import install_misbehaving_cli

from .support import (
    PATIENCE,
    SharedSessions,
    end_of,
    events,
    events_of_turn,
    on_shared_loop,
    options,
    run,
    say,
)


async def up_to_the_end(watching: Subscription) -> list[Event]:
    seen = []
    async with asyncio.timeout(PATIENCE):
        async for event in watching:
            seen.append(event)
            if isinstance(event, TurnEnded):
                break
    return seen


@on_shared_loop
async def test_a_watcher_sees_a_turn_as_it_happens_and_can_continue_from_a_number(shared: SharedSessions) -> None:
    service, session = shared.service, await shared.session()
    before = session.log.last_seq
    turn = await service.send(session.id, script("say", text("one\ntwo\nthree", chunks=4)))
    with service.watch(session.id, after=before) as watching:
        seen = await up_to_the_end(watching)
    await end_of(turn)
    numbers = [event.seq for event in seen]
    assert numbers == list(range(before + 1, before + len(seen) + 1))
    assert isinstance(seen[0], TurnStarted)
    assert [event.line for event in seen if isinstance(event, Output)] == ["one", "two", "three"]
    await say(service, session, script("more", "four"))
    with service.watch(session.id, after=numbers[-1]) as watching:
        rest = await up_to_the_end(watching)
    assert rest[0].seq == numbers[-1] + 1
    assert [event.line for event in rest if isinstance(event, Output)] == ["four"]


@on_shared_loop
async def test_tool_calls_read_as_lines_with_their_outcome(shared: SharedSessions) -> None:
    session = await shared.session(allowed_tools=("Bash",))
    prompt = script("work", tool("Bash", command="echo hi"), tool("Bash", command="false"), "done")
    await say(shared.service, session, prompt)
    lines = [one.line for one in events_of_turn(session, Output)]
    assert lines[:2] == ["[tool] Run: echo hi", "[ok] Run: echo hi -> hi"]
    assert lines[2] == "[tool] Run: false"
    assert lines[3].startswith("[failed] Run: false")
    assert lines[4] == "done"


@pytest.mark.soak  # tests/core/transcripts/test_event_log.py
async def test_what_the_log_no_longer_has_is_a_gap_and_partial_text_flushes_nothing_out_of_it(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(event_buffer_size=60)
    session, _ = await run(service, script("say", text("word " * 2000, chunks=2000)), options(sandbox))
    assert session.log.first_seq == 1
    assert [one.type for one in events(session, Message)].count("result") == 1
    await say(service, session, script("say", text("line\n", repeat=100)))
    assert session.log.first_seq > 1
    with service.watch(session.id, after=0) as watching:
        seen = await up_to_the_end(watching)
    assert isinstance(seen[0], Gap)
    assert (seen[0].first, seen[0].seq + 1) == (1, seen[1].seq)
    assert len(seen) <= 61


async def test_only_a_watcher_that_never_reads_loses_events(start_service: StartService, sandbox: Sandbox) -> None:
    cli: Path = install_misbehaving_cli(sandbox.root / "bin")
    service = await start_service({"MISBEHAVE": "flood=30000"}, claude_path=str(cli))
    turn = await service.create("go", options(sandbox))
    session = turn.session
    with service.watch(session.id) as slow:
        assert (await end_of(turn)).ok
        lost = slow.take()
        assert isinstance(lost, Gap)
        kept = await up_to_the_end(slow)
    assert kept[0].seq == lost.seq + 1
    assert isinstance(kept[-1], TurnEnded)
    assert (await say(service, session, "again")).ok
