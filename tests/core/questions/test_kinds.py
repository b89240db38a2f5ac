"""Each kind of question has one class with everything that depends on the kind."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from claude_code_mcp.core.model import question as question_module
from claude_code_mcp.core.model.question import Question, QuestionKind, kind_of
from claude_code_mcp.core.questions import kinds
from claude_code_mcp.core.questions.form_model import TOOL, heading_of, questions_of
from claude_code_mcp.core.questions.kinds import Kind, Permission, full_text, kind_class

ROOT = Path(kinds.__file__).parents[4]
FORM = {"message": "Which account?", "requestedSchema": {"type": "object", "properties": {"account": {}}}}


def test_every_kind_has_a_class_of_its_own() -> None:
    classes = [type(kind_class(kind)) for kind in QuestionKind]
    assert len({*classes}) == len(QuestionKind)


@pytest.mark.parametrize("member", sorted(Kind.__abstractmethods__))
def test_a_kind_without_one_of_the_members_cannot_be_made(member: str) -> None:
    members = {name: inspect.getattr_static(Permission, name) for name in Kind.__abstractmethods__ if name != member}
    incomplete = type("Incomplete", (Kind,), members)
    with pytest.raises(TypeError, match=f"abstract method.*{member}"):
        incomplete()


@pytest.mark.soak
def test_a_new_kind_does_not_type_check_before_it_has_a_class(tmp_path: Path) -> None:
    source = Path(question_module.__file__)
    changed = tmp_path / "question.py"
    old = '    SERVER_FORM = "server_form"\n'
    assert old in source.read_text()
    changed.write_text(source.read_text().replace(old, f'{old}    NEW = "new"\n'))
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    checked = subprocess.run(
        [*command, "--shadow-file", str(source), str(changed), kinds.__file__],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "kinds.py" in checked.stdout
    assert "QuestionKind.NEW" in checked.stdout


def test_a_form_says_that_a_server_asks() -> None:
    asked = Question(
        "q-1",
        "s-1",
        QuestionKind.SERVER_FORM,
        TOOL,
        questions_of("bank", FORM),
        "…",
        form=heading_of("bank", FORM),
    )
    assert full_text(asked).startswith("An MCP server asks:\nbank asks: Which account? [account]")
    assert kind_of(TOOL) is QuestionKind.USER_QUESTION
    assert kind_class(asked.kind).wire_type == "user_question"
