"""What the CLI hears when somebody answers."""

from dataclasses import replace
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.question import Answer, Question, QuestionKind, Scope, kind_of
from claude_code_mcp.core.questions.kinds import reply
from tests.support.tables import every_row

TWO = {
    "questions": [
        {"question": "Which color?", "header": "Color", "options": [{"label": "red"}, {"label": "blue"}]},
        {"question": "Which sizes?", "header": "Size", "options": [{"label": "S"}, "M"], "multiSelect": True},
    ]
}
ONE = {"questions": TWO["questions"][:1]}
RULE = {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "allow", "destination": "localSettings"}


def question(tool: str, tool_input: dict[str, Any], **more: Any) -> Question:
    return Question("q-1", "s-1", kind_of(tool), tool, tool_input, "…", **more)


def allowed(asked: Question, **answer: Any) -> dict[str, Any]:
    body = reply(asked, Answer(allow=True, **answer))
    assert body["behavior"] == "allow"
    updated: dict[str, Any] = body["updatedInput"]
    return updated


def refusal(asked: Question, answer: Answer) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        reply(asked, answer)
    return caught.value


def test_a_text_with_a_cut_mark_of_its_own_can_be_sent_back_unchanged() -> None:
    mark = "echo '[[claude-code-mcp cut 5 characters of q-1]]'"
    asked = question("Bash", {"command": mark, "description": "x"})
    assert allowed(asked, updated_input={"command": mark, "description": "y"}) == {"command": mark, "description": "y"}
    assert refusal(asked, Answer(allow=True, updated_input={"command": f"{mark} more"})).data["field"] == "updatedInput"


def test_an_allowance_gives_the_input_back() -> None:
    assert reply(question("Bash", {"command": "ls"}), Answer(allow=True)) == {
        "behavior": "allow",
        "updatedInput": {"command": "ls"},
    }


def test_an_updated_input_replaces_the_old_one() -> None:
    updated = allowed(question("Bash", {"command": "ls", "timeout": 5}), updated_input={"command": "pwd"})
    assert updated == {"command": "pwd"}


@every_row(
    ("updated", "message"),
    [
        ({"file_path": "/a"}, "content is missing"),
        ({"file_path": 3, "content": "x"}, "file_path of Write must be a string"),
        ({"file_path": "/a", "content": ["x"]}, "content of Write must be a string"),
    ],
)
def test_an_updated_input_that_the_tool_would_not_take_is_refused(updated: dict[str, Any], message: str) -> None:
    asked = question("Write", {"file_path": "/a", "content": "x"})
    assert message in refusal(asked, Answer(allow=True, updated_input=updated)).message


@every_row(
    ("tool", "message"),
    [
        ("Bash", "The user denied this."),
        ("ExitPlanMode", "The user did not approve the plan."),
        ("AskUserQuestion", "The user chose not to answer. Continue with your best judgment."),
    ],
)
def test_a_denial_always_has_a_message(tool: str, message: str) -> None:
    assert reply(question(tool, {}), Answer(allow=False)) == {"behavior": "deny", "message": message}


def test_a_denial_carries_the_reason_and_may_interrupt() -> None:
    body = reply(question("Bash", {}), Answer(allow=False, message="not today", interrupt=True))
    assert body == {"behavior": "deny", "message": "not today", "interrupt": True}


@every_row("extra", [{"updated_input": {"command": "ls"}}, {"answers": ["red"]}])
def test_a_denial_with_an_input_or_answers_is_refused(extra: dict[str, Any]) -> None:
    assert "denial" in refusal(question("AskUserQuestion", ONE), Answer(allow=False, **extra)).message


def test_an_allowance_for_the_session_passes_the_rules_on_but_never_into_a_settings_file() -> None:
    asked = question("Bash", {}, suggestions=(RULE, {"type": "setMode", "mode": "acceptEdits"}))
    body = reply(asked, Answer(allow=True, scope=Scope.SESSION))
    assert [rule["destination"] for rule in body["updatedPermissions"]] == ["session", "session"]
    assert body["updatedPermissions"][0] == {**RULE, "destination": "session"}


@every_row("suggestions", [(), ("nonsense", None)])
def test_an_allowance_for_the_session_needs_a_rule_to_pass_on(suggestions: Any) -> None:
    asked = question("Bash", {}, suggestions=suggestions)
    assert "allow it once" in refusal(asked, Answer(allow=True, scope=Scope.SESSION)).message


def test_an_edited_plan_keeps_what_else_belongs_to_it() -> None:
    asked = question("ExitPlanMode", {"plan": "old", "planFilePath": "/plans/p.md"})
    assert allowed(asked, updated_input={"plan": "new"}) == {"plan": "new", "planFilePath": "/plans/p.md"}


@every_row(
    ("answers", "answers_sent"),
    [
        ({"Which color?": "red"}, {"Which color?": "red"}),
        ({"Color": "red", "Size": ["S", "M"]}, {"Which color?": "red", "Which sizes?": "S, M"}),
        ({"1": "red", "2": "S"}, {"Which color?": "red", "Which sizes?": "S"}),
        ({2: "S"}, {"Which sizes?": "S"}),
        (["red", ["S", "M"]], {"Which color?": "red", "Which sizes?": "S, M"}),
        (("red", ("S",)), {"Which color?": "red", "Which sizes?": "S"}),
        (["red"], {"Which color?": "red"}),
        (["something else entirely"], {"Which color?": "something else entirely"}),
        ({"Size": [], "Color": "red"}, {"Which sizes?": "", "Which color?": "red"}),
    ],
)
@every_row("way", ["answers", "updated_input"])
def test_answers_come_as_mapping_or_list_with_labels_or_free_text(answers: Any, answers_sent: Any, way: str) -> None:
    answer = {"answers": answers} if way == "answers" else {"updated_input": {"answers": answers}}
    assert allowed(question("AskUserQuestion", TWO), **answer) == {**TWO, "answers": answers_sent}


def test_a_text_alone_answers_the_only_question() -> None:
    assert allowed(question("AskUserQuestion", ONE), answers="red")["answers"] == {"Which color?": "red"}


@every_row(
    "answer", [{}, {"answers": {}}, {"answers": []}, {"answers": {"Size": []}}, {"updated_input": {"answers": {}}}]
)
def test_a_question_is_not_allowed_without_any_of_its_answers(answer: dict[str, Any]) -> None:
    error = refusal(question("AskUserQuestion", TWO), Answer(allow=True, **answer))
    assert error.data["field"] == "answers"
    assert error.message.startswith("answers: ")
    assert "Which color?; Which sizes?" in error.message


def test_a_form_is_allowed_without_answers_where_no_field_needs_one() -> None:
    def form(**facts: bool) -> Question:
        asked = question("AskUserQuestion", {"questions": [{"question": "Name?", "field": facts}]})
        return replace(asked, kind=QuestionKind.SERVER_FORM, form={"server": "crm", "message": "Who?"})

    assert allowed(form(required=False))["questions"]
    assert refusal(form(required=True), Answer(allow=True)).data["field"] == "answers"
    assert allowed(question("AskUserQuestion", {"questions": []})) == {"questions": []}


def test_text_takes_precedence_over_header_and_number() -> None:
    parts = [{"question": "A", "header": "B"}, {"question": "B", "header": "1"}, {"question": "C", "header": "B"}]
    asked = question("AskUserQuestion", {"questions": parts})
    assert allowed(asked, answers={"B": "x"})["answers"] == {"B": "x"}
    assert allowed(asked, answers={"1": "x"})["answers"] == {"B": "x"}
    assert allowed(asked, answers={"3": "x"})["answers"] == {"C": "x"}


@every_row(
    ("answers", "reason"),
    [
        (
            {"Which shape?": "round"},
            "There is no question 'Which shape?'; the questions are 'Which color?', 'Which sizes?'.",
        ),
        ({"": "round"}, "There is no question ''"),
        ({"3": "round"}, "There is no question '3'"),
        ({"1": "red", "Color": "blue"}, "'Which color?' is answered twice"),
        (["red", "S", "extra"], "3 answers for 2 question(s)"),
        ("red", "a list in the order of the questions"),
        (5, "a list in the order of the questions"),
        ({"Color": 5}, "a string or a list of labels, not 5"),
        ({"Color": None}, "a string or a list of labels, not None"),
        ({"Size": ["S", 5]}, "a string or a list of labels"),
        ([{"label": "red"}], "a string or a list of labels"),
    ],
)
@every_row("way", ["answers", "updated_input"])
def test_answers_that_do_not_fit_are_explained(answers: Any, reason: str, way: str) -> None:
    answer = {"answers": answers} if way == "answers" else {"updated_input": {"answers": answers}}
    error = refusal(question("AskUserQuestion", TWO), Answer(allow=True, **answer))
    assert reason in error.message
    assert error.data["field"] == "answers"


@every_row("tool", ["Bash", "ExitPlanMode"])
def test_only_a_user_question_takes_answers(tool: str) -> None:
    assert "user_question" in refusal(question(tool, {}), Answer(allow=True, answers=["yes"])).message


def test_an_input_that_happens_to_have_answers_is_left_alone() -> None:
    asked = question("mcp__quiz__submit", {"answers": 42})
    assert allowed(asked) == {"answers": 42}
    assert allowed(asked, updated_input={"answers": [7]}) == {"answers": [7]}


@pytest.mark.parametrize(
    ("tool", "given", "updated", "missing"),
    [
        ("Bash", {"command": "ls", "description": "list"}, {"description": "list"}, "command"),
        (
            "Edit",
            {"file_path": "/x", "old_string": "a", "new_string": "b"},
            {"new_string": "c"},
            "file_path, old_string",
        ),
        ("Write", {"file_path": "/x", "content": "a"}, {"content": "b"}, "file_path"),
    ],
)
def test_an_updated_input_that_lacks_a_field_is_refused_and_the_question_stays_open(
    tool: str, given: dict[str, Any], updated: dict[str, Any], missing: str
) -> None:
    problem = refusal(question(tool, given), Answer(allow=True, updated_input=updated))
    assert problem.data["field"] == "updated_input"
    assert missing in problem.message


def test_an_updated_input_may_leave_out_what_the_tool_does_not_need() -> None:
    asked = question("Bash", {"command": "ls", "timeout": 5})
    assert allowed(asked, updated_input={"command": "pwd"}) == {"command": "pwd"}
    assert allowed(question("mcp__x__y", {"a": 1, "b": 2}), updated_input={"a": 2}) == {"a": 2}
