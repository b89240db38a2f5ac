"""What a caller was told is on disk, and what was spent stays spent, whatever ends the process."""

import asyncio
import os
import signal

import pytest

from claude_code_mcp.core.errors import InvalidArgument, LimitReached
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.session_records import SessionRecords
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import ENDLESS, PATIENCE, SharedSessions, end_of, on_shared_loop, options, question, run, until


def records_in(sandbox: Sandbox) -> SessionRecords:
    return SessionRecords(database_in(sandbox.root / "state"), str(sandbox.home / ".claude"))


@on_shared_loop
@pytest.mark.parametrize("turns", [2, pytest.param(20, marks=pytest.mark.soak)])
async def test_outcome_is_recorded_before_it_is_reported(shared: SharedSessions, turns: int) -> None:
    session = await shared.session()
    for number in range(turns):
        turn = await shared.service.send(session.id, script("one", f"answer {number}"))
        outcome = await asyncio.wait_for(turn.outcome(), PATIENCE)
        record = records_in(shared.sandbox).read(session.id)
        assert record is not None
        assert record.outcome is not None
        assert (record.outcome.result, record.running_since) == (outcome.result, None)


async def test_a_turn_that_ends_its_own_process_is_not_free(service: Service, sandbox: Sandbox) -> None:
    prompt = script("work", tool("Bash", command=f"# {'x' * 30_000}\n{ENDLESS}"))
    turn = await service.create(prompt, options(sandbox, allowed_tools=("Bash",), max_budget_usd=0.5))
    session = turn.session
    await until(session, lambda: bool(session.readable_lines.tools))
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    outcome = await end_of(turn)
    assert outcome.code is OutcomeCode.CRASHED
    assert session.costs.spent_usd == pytest.approx(outcome.usage.cost_usd)
    assert session.costs.spent_usd >= 0.5
    with pytest.raises(LimitReached):
        await service.send(session.id, script("more", "more"))


@pytest.mark.soak
async def test_what_the_record_does_not_know_is_taken_from_the_transcript(
    start_service: StartService, sandbox: Sandbox
) -> None:
    first = await start_service()
    session, outcome = await run(first, script("one", "first"), options(sandbox, max_budget_usd=5.0))
    await first.__aexit__()
    records = records_in(sandbox)
    record = records.read(session.id)
    assert record is not None
    assert outcome.usage.cost_usd > 0
    records.write(record.model_copy(update={"usage": type(record.usage)(), "spent_usd": 0.0}))
    second = await start_service()
    found = await second.find(session.id)
    assert found.costs.spent_usd == pytest.approx(outcome.usage.cost_usd)
    assert found.usage.cost_usd == pytest.approx(outcome.usage.cost_usd)


@on_shared_loop
async def test_changed_call_is_reported_with_the_input_that_ran(shared: SharedSessions) -> None:
    service, session = shared.service, await shared.session()
    turn = await service.send(session.id, script("Touch", tool("Bash", command="touch asked"), "done"))
    asked = await question(session)
    with pytest.raises(InvalidArgument, match="updated_input"):
        service.respond(session.id, asked, Answer(allow=True, updated_input={}))
    service.respond(session.id, asked, Answer(allow=True, updated_input={"command": "touch changed"}))
    assert (await end_of(turn)).ok
    assert (shared.project / "changed").exists()
    assert not (shared.project / "asked").exists()
    *_, used = session.readable_lines.tools.values()
    assert used.description == "Run: touch changed (changed by the answer)"


@pytest.mark.parametrize(
    ("field", "value"), [("env", {"A": "y" * 200_000}), ("allowed_tools", ("x" * 200_000,))], ids=["env", "tools"]
)
async def test_options_that_no_command_line_takes_are_refused_by_name(
    service: Service, sandbox: Sandbox, field: str, value: object
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await service.create(script("one", "first"), options(sandbox, **{field: value}))
    assert refused.value.data["field"] == field
    assert service.sessions() == []
