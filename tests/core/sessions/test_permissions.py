"""Permission questions: what an answer makes the real CLI do."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from claude_code_mcp.core.errors import InvalidArgument, QuestionClosed
from claude_code_mcp.core.model.events import QuestionOpened, QuestionSettled
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.question import Answer, Closure, Question, QuestionKind, Resolution, Scope
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import SharedSessions, end_of, events, events_of_turn, on_shared_loop, options, question

ASK = script("ask", tool("Bash", command="touch made"), "saw: ${tool_result}")


def made(sandbox: Sandbox) -> bool:
    return (sandbox.project / "made").exists()


async def asked_in(shared: SharedSessions, prompt: str = ASK) -> tuple[Session, PendingTurn, str]:
    """A shared session that asks, its turn, and the id of its question."""
    session = await shared.session()
    turn = await shared.service.send(session.id, prompt)
    return session, turn, await question(session)


@on_shared_loop
async def test_allowed_calls_run(shared: SharedSessions) -> None:
    service, sandbox, session = shared.service, shared.sandbox, await shared.session()
    turn = await service.send(session.id, ASK)
    await service.wait(session.id, 30)
    [asked] = service.questions(session.id)
    assert (session.state, asked.kind) == (State.WAITING, QuestionKind.PERMISSION)
    assert (asked.tool_name, asked.description) == ("Bash", "Run: touch made")
    assert asked.deadline is not None
    assert not made(sandbox)
    service.respond(session.id, asked.id, Answer(allow=True), by="me")
    assert session.state is State.RUNNING
    assert (await end_of(turn)).ok
    assert made(sandbox)
    [settled] = events_of_turn(session, QuestionSettled)
    assert (settled.resolution.closure, settled.resolution.by) == (Closure.ANSWERED, "me")


@on_shared_loop
async def test_denied_call_does_not_run_and_the_model_gets_the_reason(shared: SharedSessions) -> None:
    session, turn, asked = await asked_in(shared)
    shared.service.respond(session.id, asked, Answer(allow=False, message="not on a Friday"))
    outcome = await end_of(turn)
    assert "not on a Friday" in outcome.result
    assert not made(shared.sandbox)
    assert len(outcome.permission_denials) == 1
    *_, used = session.readable_lines.tools.values()
    assert used.status == "denied"


@on_shared_loop
async def test_a_denial_may_end_the_turn(shared: SharedSessions) -> None:
    session, turn, asked = await asked_in(shared)
    shared.service.respond(session.id, asked, Answer(allow=False, interrupt=True))
    outcome = await end_of(turn)
    assert (outcome.code, session.state) == (OutcomeCode.INTERRUPTED, State.INTERRUPTED)
    assert not made(shared.sandbox)


@pytest.mark.soak  # in another server, too: test_records.py
async def test_allowing_for_the_session_asks_no_more_and_outlives_nothing(service: Service, sandbox: Sandbox) -> None:
    command = tool("Bash", command="touch made")
    turn = await service.create(script("twice", command, command, "done"), options(sandbox))
    session = turn.session
    service.respond(session.id, await question(session), Answer(allow=True, scope=Scope.SESSION))
    assert (await end_of(turn)).result == "done"
    assert len(events(session, QuestionOpened)) == 1
    assert list((sandbox.project / ".claude").glob("*")) == []


@on_shared_loop
async def test_an_edited_input_is_what_runs(shared: SharedSessions) -> None:
    session, turn, asked = await asked_in(shared)
    edited = Answer(allow=True, updated_input={"command": "echo something else"})
    shared.service.respond(session.id, asked, edited)
    assert "something else" in (await end_of(turn)).result
    assert not made(shared.sandbox)


@on_shared_loop
async def test_an_answer_that_does_not_fit_leaves_the_question_open(shared: SharedSessions) -> None:
    service = shared.service
    session, turn, asked = await asked_in(shared)
    with pytest.raises(InvalidArgument):
        service.respond(session.id, asked, Answer(allow=True, answers=["blue"]))
    with pytest.raises(QuestionClosed):
        service.respond(session.id, "q-unknown", Answer(allow=True))
    assert session.state is State.WAITING
    service.respond(session.id, asked, Answer(allow=True))
    assert (await end_of(turn)).ok


@on_shared_loop
async def test_the_first_answer_wins(shared: SharedSessions) -> None:
    session, turn, asked = await asked_in(shared)
    shared.service.respond(session.id, asked, Answer(allow=True), by="the terminal")
    with pytest.raises(QuestionClosed, match="the terminal"):
        shared.service.respond(session.id, asked, Answer(allow=False))
    assert (await end_of(turn)).ok


@pytest.mark.soak  # tests/server/test_faults.py
async def test_timeout_is_a_denial_that_the_model_gets(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(permission_timeout_ms=300)
    turn = await service.create(ASK, options(sandbox))
    session = turn.session
    outcome = await end_of(turn)
    assert "No answer within 0.3 seconds" in outcome.result
    assert not made(sandbox)
    assert [one.resolution.closure for one in events(session, QuestionSettled)] == [Closure.EXPIRED]


class Bystander:
    """A channel that only looks on."""

    name = "bystander"

    def __init__(self) -> None:
        self.shown: dict[str, Question] = {}

    def offer(self, question: Question) -> None:
        self.shown[question.id] = question

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        del self.shown[question.id]


@contextmanager
def added(service: Service, channel: Bystander) -> Iterator[None]:
    service.broker.add_channel(channel)
    try:
        yield
    finally:
        service.broker.remove_channel(channel)


@on_shared_loop
@pytest.mark.parametrize("end", ["interrupt", "kill", pytest.param("cancel", marks=pytest.mark.soak)])
async def test_obsolete_question_disappears_everywhere(shared: SharedSessions, end: str) -> None:
    service, bystander = shared.service, Bystander()
    with added(service, bystander):
        session, turn, asked = await asked_in(shared)
        await asyncio.sleep(0)  # channels are told right after the code that opened the question
        assert list(bystander.shown) == [asked]
        if end == "kill":
            assert session.pid is not None
            os.kill(session.pid, signal.SIGKILL)
        else:
            await getattr(service, end)(session.id)
        await end_of(turn)
        assert (bystander.shown, service.broker.pending(), session.questions) == ({}, [], [])
    with pytest.raises(QuestionClosed, match="withdrawn"):
        service.respond(session.id, asked, Answer(allow=True))
    assert not made(shared.sandbox)


@on_shared_loop
async def test_channel_can_answer_immediately(shared: SharedSessions) -> None:
    class ImmediateChannel(Bystander):
        def offer(self, question: Question) -> None:
            super().offer(question)
            shared.service.broker.answer(question.session_id, question.id, Answer(allow=True), "eager")

    session = await shared.session()
    with added(shared.service, ImmediateChannel()):
        turn = await shared.service.send(session.id, ASK)
        assert (await end_of(turn)).ok
    assert made(shared.sandbox)
    kinds = [type(one) for one in events_of_turn(session, QuestionOpened, QuestionSettled)]
    assert kinds == [QuestionOpened, QuestionSettled]


@pytest.mark.soak  # tests/server/test_concurrent_callers.py
async def test_questions_of_several_sessions_do_not_mix(service: Service, sandbox: Sandbox) -> None:
    names = ("a", "b")
    prompts = [script("ask", tool("Bash", command=f"touch {name}"), "saw: ${tool_result}") for name in names]
    made = [await service.create(prompt, options(sandbox)) for prompt in prompts]
    asked = [await question(turn.session) for turn in made]
    assert {one.id for one in service.broker.pending()} == set(asked)
    with pytest.raises(QuestionClosed):
        service.respond(made[0].session.id, asked[1], Answer(allow=True))
    for turn, one, name in reversed(list(zip(made, asked, names, strict=True))):
        service.respond(turn.session.id, one, Answer(allow=name != "b", message="no b" if name == "b" else None))
    results = [(await end_of(turn)).result for turn in made]
    assert ["no b" in result for result in results] == [False, True]
    assert [path.name for path in sandbox.project.iterdir()] == ["a"]


@on_shared_loop
async def test_an_input_that_goes_back_as_it_was_shown_keeps_its_secret(shared: SharedSessions) -> None:
    """Callers see inputs without secrets, and what they send back must not write the mark into a file."""
    service, project, secret = shared.service, shared.project, "correct-horse-battery-staple"
    service.add_secrets([secret])
    asking = tool("Write", file_path=str(project / "asked"), content=f"key={secret}\n")
    session, turn, asked = await asked_in(shared, script("ask", asking, "done"))
    shown = service.redaction.data(session.questions[0].tool_input)
    assert secret not in str(shown)
    changed = {**shown, "content": shown["content"] + "more\n"}
    with pytest.raises(InvalidArgument, match="stands for a hidden secret"):
        service.respond(session.id, asked, Answer(allow=True, updated_input=changed))
    assert session.questions, "it is still open"
    moved = {**shown, "file_path": str(project / "moved")}
    service.respond(session.id, asked, Answer(allow=True, updated_input=moved))
    assert (await end_of(turn)).ok
    assert (project / "moved").read_text() == f"key={secret}\n"
