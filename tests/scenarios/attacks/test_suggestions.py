"""Suggestions of a forged question: what a person allows for the session is what they are shown, and of that call."""

import json
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.question import Answer, Question, QuestionKind, Scope, rules_of
from claude_code_mcp.core.policy.admission import Admission
from claude_code_mcp.core.policy.policy import Profile
from claude_code_mcp.core.questions.kinds import reply

ROWS = json.loads(Path(__file__).with_name("suggestions.json").read_text().replace("{long}", "x" * 600))
LISTED = [{"toolName": "Bash", "ruleContent": f"ls {number}"} for number in range(21)]
MANY: dict[str, Any] = {
    "{many}": LISTED,
    "{many suggestions}": [{"type": "addRules", "behavior": "allow", "rules": [rule]} for rule in LISTED],
}


def filled(offered: Any) -> Any:
    if isinstance(offered, str):
        return MANY[offered]
    if isinstance(offered, list):
        return [{**part, "rules": MANY[part["rules"]]} if part.get("rules") in [*MANY] else part for part in offered]
    return offered


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["attack"])
def test_only_what_is_shown_of_this_call_is_offered(row: dict[str, Any]) -> None:
    admission = Admission(Profile(roots=("/p",), mode_ceiling="acceptEdits"), str, "/p")
    found = admission.offers(filled(row["offered"]), row["tool"], row["input"], "/p")
    shown = [*rules_of(found)]
    assert (len(shown) if isinstance(row["left"], int) else shown) == row["left"]
    if found:
        question = Question("q", "s", QuestionKind.PERMISSION, row["tool"], row["input"], "", suggestions=found)
        granted = reply(question, Answer(allow=True, scope=Scope.SESSION))["updatedPermissions"]
        assert {update["destination"] for update in granted} == {"session"}
        assert [*rules_of(granted)] == shown, "nothing is granted that was not shown"
