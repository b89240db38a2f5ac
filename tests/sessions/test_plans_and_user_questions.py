"""Plan reviews and questions of the model to the person, on the real CLI."""

from typing import Any

import pytest

from claude_code_mcp.errors import InvalidArgument
from claude_code_mcp.model.question import Answer, GivenAnswers, QuestionKind
from claude_code_mcp.service import Service
from claude_code_mcp.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import ask_user, plan, script, tool
from claude_code_mcp.testing.script import question as asking

from .support import end_of, options, question

PLAN = script("plan", plan("# Tidy up\n1. sweep"), "saw: ${tool_result}")


async def ask(service: Service, sandbox: Sandbox, prompt: str, **given: Any) -> tuple[Session, Any, str]:
    turn = await service.create(prompt, options(sandbox, **given))
    session = turn.session
    return session, turn, await question(session)


async def test_an_approved_plan_goes_ahead(service: Service, sandbox: Sandbox) -> None:
    session, turn, asked = await ask(service, sandbox, PLAN, permission_mode="plan")
    [review] = session.questions
    assert review.kind is QuestionKind.PLAN_REVIEW
    assert review.description == "Plan ready for review: Tidy up"
    assert "1. sweep" in review.tool_input["plan"]
    service.respond(session.id, asked, Answer(allow=True))
    assert "approved" in (await end_of(turn)).result.lower()


async def test_feedback_on_a_plan_reaches_the_model(service: Service, sandbox: Sandbox) -> None:
    session, turn, asked = await ask(service, sandbox, PLAN, permission_mode="plan")
    service.respond(session.id, asked, Answer(allow=False, message="mop as well"))
    assert "mop as well" in (await end_of(turn)).result


async def test_an_edited_plan_replaces_the_old_one(service: Service, sandbox: Sandbox) -> None:
    session, turn, asked = await ask(service, sandbox, PLAN, permission_mode="plan")
    edited = {**session.questions[0].tool_input, "plan": "# Tidy up\n1. mop"}
    service.respond(session.id, asked, Answer(allow=True, updated_input=edited))
    assert "1. mop" in (await end_of(turn)).result
    written = [path.read_text() for path in sandbox.home.glob(".claude/plans/*")]
    assert written == ["# Tidy up\n1. mop"]


async def test_a_plan_that_stands_only_in_the_tool_call_is_shown(service: Service, sandbox: Sandbox) -> None:
    prompt = script("plan", tool("ExitPlanMode", plan="# Only here"), "saw: ${tool_result}")
    session, turn, asked = await ask(service, sandbox, prompt, permission_mode="plan")
    assert session.questions[0].tool_input["plan"] == "# Only here"
    assert session.questions[0].description == "Plan ready for review: Only here"
    service.respond(session.id, asked, Answer(allow=True))
    assert (await end_of(turn)).ok


TWO = script(
    "ask",
    ask_user(
        asking("Which colour?", "red", "blue", header="Colour"),
        asking("Which fruits?", "apple", "pear", "plum", header="Fruits", multiple=True),
    ),
    "saw: ${tool_result}",
)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"Which colour?": "blue", "Which fruits?": ["pear", "plum"]}, ("blue", "pear, plum")),
        ({"Colour": "red", "2": "apple"}, ("red", "apple")),
        (["blue", ["apple", "pear"]], ("blue", "apple, pear")),
        (["mauve, or thereabouts", "plum"], ("mauve, or thereabouts", "plum")),
    ],
    ids=["mapping", "headers and numbers", "list", "free text"],
)
async def test_answers_reach_the_model(
    service: Service, sandbox: Sandbox, answers: GivenAnswers, expected: tuple[str, str]
) -> None:
    session, turn, asked = await ask(service, sandbox, TWO)
    [user_question] = session.questions
    assert user_question.kind is QuestionKind.USER_QUESTION
    assert [choice.labels for choice in user_question.choices] == [("red", "blue"), ("apple", "pear", "plum")]
    service.respond(session.id, asked, Answer(allow=True, answers=answers))
    heard = (await end_of(turn)).result
    assert all(f'"{answer}"' in heard for answer in expected), heard


async def test_a_person_may_decline_to_answer(service: Service, sandbox: Sandbox) -> None:
    session, turn, asked = await ask(service, sandbox, TWO)
    service.respond(session.id, asked, Answer(allow=False, message="ask me tomorrow"))
    assert "ask me tomorrow" in (await end_of(turn)).result


async def test_answers_to_something_else_are_refused(service: Service, sandbox: Sandbox) -> None:
    session, _, asked = await ask(service, sandbox, TWO)
    for wrong in ({"Which shape?": "round"}, ["a", "b", "c"]):
        with pytest.raises(InvalidArgument):
            service.respond(session.id, asked, Answer(allow=True, answers=wrong))
    assert [one.id for one in session.questions] == [asked]
