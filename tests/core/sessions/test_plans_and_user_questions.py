"""Plan reviews and questions of the model to the person, on the real CLI."""

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.question import Answer, GivenAnswers, QuestionKind
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import ask_user, plan, script, tool
from claude_code_mcp.testing.script import question as asking

from .support import SharedSessions, end_of, on_shared_loop, options, question

PLAN = script("plan", plan("# Tidy up\n1. sweep"), "saw: ${tool_result}")


async def ask(service: Service, session: Session, prompt: str) -> tuple[PendingTurn, str]:
    """A turn that asks, and the id of its question."""
    turn = await service.send(session.id, prompt)
    return turn, await question(session)


@pytest.mark.soak  # tests/server/test_answering.py
async def test_a_plan_is_sent_back_with_feedback_and_then_approved(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(PLAN, options(sandbox, permission_mode="plan"))
    session = turn.session
    asked = await question(session)
    [review] = session.questions
    assert review.kind is QuestionKind.PLAN_REVIEW
    assert review.description == "Plan ready for review: Tidy up"
    assert "1. sweep" in review.tool_input["plan"]
    service.respond(session.id, asked, Answer(allow=False, message="mop as well"))
    assert "mop as well" in (await end_of(turn)).result
    [*_, sent_back] = session.readable_lines.tools.values()
    assert (sent_back.name, sent_back.status) == ("ExitPlanMode", "denied"), "it was not the call that failed"
    turn, asked = await ask(service, session, PLAN)
    service.respond(session.id, asked, Answer(allow=True))
    assert "approved" in (await end_of(turn)).result.lower()


async def test_an_edited_plan_replaces_the_old_one(service: Service, sandbox: Sandbox) -> None:
    only_in_the_call = script("plan", tool("ExitPlanMode", plan="# Only here"), "saw: ${tool_result}")
    turn = await service.create(only_in_the_call, options(sandbox, permission_mode="plan"))
    session = turn.session
    asked = await question(session)
    assert session.questions[0].tool_input["plan"] == "# Only here", "one that is in no file yet is shown too"
    assert session.questions[0].description == "Plan ready for review: Only here"
    service.respond(session.id, asked, Answer(allow=False))
    assert (await end_of(turn)).ok
    turn, asked = await ask(service, session, PLAN)
    edited = {**session.questions[0].tool_input, "plan": "# Tidy up\n1. mop"}
    service.respond(session.id, asked, Answer(allow=True, updated_input=edited))
    assert "1. mop" in (await end_of(turn)).result
    written = [path.read_text() for path in sandbox.home.glob(".claude/plans/*")]
    assert written == ["# Tidy up\n1. mop"]


TWO = script(
    "ask",
    ask_user(
        asking("Which color?", "red", "blue", header="Color"),
        asking("Which fruits?", "apple", "pear", "plum", header="Fruits", multiple=True),
    ),
    "saw: ${tool_result}",
)


@on_shared_loop
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"Which color?": "blue", "Which fruits?": ["pear", "plum"]}, ("blue", "pear, plum")),
        ({"Color": "red", "2": "apple"}, ("red", "apple")),
        (["blue", ["apple", "pear"]], ("blue", "apple, pear")),
        (["mauve, or thereabouts", "plum"], ("mauve, or thereabouts", "plum")),
    ],
    ids=["mapping", "headers and numbers", "list", "free text"],
)
async def test_answers_reach_the_model(
    shared: SharedSessions, answers: GivenAnswers, expected: tuple[str, str]
) -> None:
    session = await shared.session()
    turn, asked = await ask(shared.service, session, TWO)
    [user_question] = session.questions
    assert user_question.kind is QuestionKind.USER_QUESTION
    assert [choice.labels for choice in user_question.choices] == [("red", "blue"), ("apple", "pear", "plum")]
    shared.service.respond(session.id, asked, Answer(allow=True, answers=answers))
    seen_answer = (await end_of(turn)).result
    assert all(f'"{answer}"' in seen_answer for answer in expected), seen_answer


@on_shared_loop
async def test_a_person_may_decline_to_answer_and_answers_to_something_else_are_refused(shared: SharedSessions) -> None:
    session = await shared.session()
    turn, asked = await ask(shared.service, session, TWO)
    for wrong in ({"Which shape?": "round"}, ["a", "b", "c"]):
        with pytest.raises(InvalidArgument):
            shared.service.respond(session.id, asked, Answer(allow=True, answers=wrong))
    assert [one.id for one in session.questions] == [asked]
    shared.service.respond(session.id, asked, Answer(allow=False, message="ask me tomorrow"))
    assert "ask me tomorrow" in (await end_of(turn)).result
