"""What the audit trail tells of acts and events."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.app import open_audit
from claude_code_mcp.core.audit.trail import Audit, RotatingJsonl, essential_path
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.events import (
    AuditEvent,
    AuditKind,
    Output,
    ProcessChanged,
    QuestionOpened,
    QuestionSettled,
    Spent,
    TurnEnded,
)
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.question import Answer, Closure, Question, QuestionKind, Resolution
from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.core.redaction import Redactor

QUESTION = Question("q-1", "s-1", QuestionKind.PERMISSION, "Bash", {"command": "ls"}, "Run: ls")
USAGE = Usage({"claude-x": ModelUsage(10, 5, 0, 0, 0.125)})


class Book:
    """An audit whose lines can be read."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.audit = Audit(RotatingJsonl(path, 1 << 20), Redactor(["opaque-secret-value"]), **options)

    def lines(self) -> list[dict[str, Any]]:
        self.audit.close()
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [{name: value for name, value in line.items() if name != "chain"} for line in lines]


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "audit")


@pytest.mark.parametrize("kind", [kind for kind in AuditKind if kind is not AuditKind.FAILED])
def test_every_act_is_reported_with_caller_and_address(book: Book, kind: AuditKind) -> None:
    book.audit.act(AuditEvent(kind, "alice", "s-1", {"field": "cwd", "nothing": None}))
    (line,) = book.lines()
    assert line.pop("at").endswith("Z")
    assert line == {"act": str(kind), "who": "alice", "session": "s-1", "field": "cwd"}


@pytest.mark.parametrize(
    ("kind", "who", "most", "later"),
    [(AuditKind.AUTH_FAILED, "unknown", 20, 20), (AuditKind.REFUSED, "mallory", 200, 20)],
)
def test_refusals_do_not_push_out_what_was_done(
    tmp_path: Path, kind: AuditKind, who: str, most: int, later: int
) -> None:
    now = [0.0]
    book = Book(tmp_path / "audit", clock=lambda: now[0])
    for _ in range(2):
        for number in range(1000):
            book.audit.act(AuditEvent(kind, who, f"s-{number}", {"client": f"c{number}"}))
        book.audit.act(AuditEvent(AuditKind.REFUSED, "bob", "s-1"))
        now[0] += 60.0
    book.audit.act(AuditEvent(AuditKind.MESSAGE_SENT, "alice", "s-1"))
    acts = [(line["act"], line["who"], line.get("count")) for line in book.lines()]
    line, of_bob = (str(kind), who, None), ("refused", "bob", None)
    first = [*[line] * most, of_bob, (str(kind), who, 1000 - most)]
    assert acts == [*first, *[line] * later, of_bob, (*line[:2], 1000 - later), ("message_sent", "alice", None)]


def test_a_repeated_act_pushes_nothing_out_of_the_trail(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "audit"
    audit = Audit(RotatingJsonl(path, 20_000), Redactor([]), clock=lambda: now[0])
    audit.act(AuditEvent(AuditKind.SESSION_CREATED, "mallory", "s-1", {"cwd": "/srv"}))
    for number in range(4000):
        audit.act(AuditEvent(AuditKind.BYPASS_SWITCHED, "mallory", None, {"on": bool(number % 2), "by": ""}))
        audit.act(AuditEvent(AuditKind.INTERRUPTED, "mallory", "s-1"))
        now[0] += 0.01
    audit.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert not (tmp_path / "audit.1").exists()
    assert lines[0]["act"] == "session_created"
    of_switch = [line for line in lines if line["act"] == "bypass_switched"]
    assert sum(line.get("count", 1) for line in of_switch) == 4000, "every act is counted"
    interrupted = [(line["session"], line.get("count", 1)) for line in lines if line["act"] == "interrupted"]
    assert interrupted == [("s-1", 1), ("s-1", 3999)]


# One act of each sort that must be found after a flood.
ESSENTIAL: dict[AuditKind, dict[str, Any]] = {
    AuditKind.CALL_DENIED: {"tool": "Bash", "rule": "Bash(git push *)"},
    AuditKind.SIGNED_IN: {"device": "phone"},
    AuditKind.CLIENT_ALLOWED: {"client": "editor"},
    AuditKind.SESSION_SHARED: {"with": "bob", "access": "watch"},
    AuditKind.HUB_STEERED: {"action": "disable", "server": "tickets"},
    AuditKind.CALLERS_CHANGED: {"added": ["carol"]},
}


def test_a_refusal_names_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    essential_path(path).symlink_to(tmp_path / "other")
    with pytest.raises(InvalidArgument, match=r"audit\.essential\.jsonl cannot be written"):
        open_audit(load_settings({}), path, ())
    assert not (tmp_path / "other").exists()


def test_no_flood_pushes_out_verdicts_denials_grants_signins_and_administration(tmp_path: Path) -> None:
    """Mallory repeats every kind of act, verdicts too, until the files have been rotated many times."""
    settings = load_settings({"CLAUDE_CODE_MCP_AUDIT_MAX_BYTES": "400000"})
    audit = open_audit(settings, tmp_path / "audit.jsonl", ())
    assert audit is not None
    for kind, details in ESSENTIAL.items():
        audit.act(AuditEvent(kind, "alice", "s-1", details))
    audit.event("s-1", "alice", QuestionSettled(QUESTION, Resolution(Closure.ANSWERED, "console", Answer(allow=True))))
    for number in range(12_000):
        for kind in (AuditKind.MESSAGE_SENT, AuditKind.REFUSED, AuditKind.HUB_CALLED, *ESSENTIAL):
            if kind is not AuditKind.CALLERS_CHANGED:  # the operator's
                audit.act(AuditEvent(kind, "mallory", "s-2", {"reason": f"{number} " + "r" * 300}))
    for number in range(3000):
        asked = replace(QUESTION, description=f"Run: {number} " + "r" * 1000)
        audit.event("s-2", "mallory", QuestionSettled(asked, Resolution(Closure.ANSWERED, "x", Answer(allow=False))))
    audit.close()
    assert (tmp_path / "audit.jsonl.5").exists(), "a flood"
    files = tmp_path.glob("audit*.jsonl*[!k]")  # all but the locks
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    kept = {line["act"] for line in lines if line["who"] == "alice"}
    assert kept == {*map(str, ESSENTIAL), "question_answered"}


def test_a_refusal_cannot_be_hidden_behind_others_of_another_sort(book: Book) -> None:
    for number in range(1000):
        unknown = {"what": "use", "code": "SESSION_NOT_FOUND", "reason": "another caller's session"}
        book.audit.act(AuditEvent(AuditKind.REFUSED, "mallory", f"s-{number}", unknown))
    directory = {"what": "create", "code": "PERMISSION_DENIED", "field": "cwd", "reason": "/etc/ssh is outside"}
    book.audit.act(AuditEvent(AuditKind.REFUSED, "mallory", None, directory))
    refused = [line for line in book.lines() if line.get("field") == "cwd"]
    assert [line["reason"] for line in refused] == ["/etc/ssh is outside"]


def test_groups_that_a_caller_makes_up_are_bounded(book: Book) -> None:
    for number in range(1000):
        book.audit.act(AuditEvent(AuditKind.REFUSED, "mallory", None, {"field": f"field{number}", "what": "use"}))
    lines = book.lines()
    assert len(lines) < 300
    assert sum(line.get("count", 1) for line in lines) == 1000


def test_audit_lines_of_one_caller_are_limited(tmp_path: Path) -> None:
    now, minutes = 0.0, 20
    audit = Audit(RotatingJsonl(tmp_path / "audit", 1 << 30), Redactor(), clock=lambda: now)
    for second in range(60 * minutes):
        now = float(second)
        for number in range(10):
            reason = "r" * 2000 + str(number)
            acts: dict[AuditKind, dict[str, object]] = {
                AuditKind.REFUSED: {"what": f"tool{number}", "field": f"f{second % 40}", "reason": reason},
                AuditKind.HUB_CALLED: {"server": "s", "tool": "t", "duration_ms": second, "size": number},
                AuditKind.NETWORK_REFUSED: {"host": f"{number}-{second}.example:443", "why": "not on the list"},
            }
            for kind, details in acts.items():
                audit.act(AuditEvent(kind, "mallory", None, details))
    audit.close()
    assert (tmp_path / "audit").stat().st_size < 2.5 * (1 << 20)


def test_important_acts_always_have_a_line(book: Book) -> None:
    for _ in range(500):
        book.audit.act(AuditEvent(AuditKind.SESSION_CREATED, "alice", "s-1"))
        book.audit.event("s-1", "alice", QuestionOpened(QUESTION))
    assert len(book.lines()) == 1000


def test_on_a_machine_of_a_fleet_every_line_names_it(tmp_path: Path) -> None:
    book = Book(tmp_path / "audit", machine="desk")
    book.audit.act(AuditEvent(AuditKind.SERVER_STARTED, "server"))
    book.audit.event("s-1", "alice", QuestionOpened(QUESTION))
    assert [line["machine"] for line in book.lines()] == ["desk", "desk"]


def test_unimportant_errors_are_omitted(book: Book) -> None:
    book.audit.act(AuditEvent(AuditKind.FAILED, "alice", None, {"code": "INVALID_ARGUMENT"}))
    book.audit.event("s-1", "alice", Output("text"))
    assert book.lines() == []


def test_audit_trail_has_the_hash_of_the_prompt(book: Book) -> None:
    book.audit.act(AuditEvent(AuditKind.SESSION_CREATED, "alice", "s-1", {"prompt": "the plan for tomorrow"}))
    (line,) = book.lines()
    assert line["prompt_sha256"] == hashlib.sha256(b"the plan for tomorrow").hexdigest()[:16]
    assert "tomorrow" not in json.dumps(line)


def test_audit_trail_has_the_whole_redacted_prompt_if_enabled(tmp_path: Path) -> None:
    book = Book(tmp_path / "audit", prompts=True)
    book.audit.act(AuditEvent(AuditKind.SESSION_CREATED, "alice", "s-1", {"prompt": "use opaque-secret-value " * 200}))
    (line,) = book.lines()
    assert line["prompt"] == "use [redacted] " * 200


@pytest.mark.parametrize("wanted", [False, True])
def test_the_arguments_of_a_hub_call_are_written_only_where_that_is_wanted(tmp_path: Path, wanted: bool) -> None:
    book = Book(tmp_path / "audit", arguments=wanted)
    arguments = {"query": "of opaque-secret-value", "rows": ["x" * 5000]}
    book.audit.act(AuditEvent(AuditKind.HUB_CALLED, "alice", None, {"tool": "find", "arguments": arguments}))
    (line,) = book.lines()
    assert line["tool"] == "find"
    assert ("arguments" in line) is wanted
    if wanted:
        assert line["arguments"].startswith('{"query": "of [redacted]"')
        assert len(line["arguments"]) < 2100


def test_question_spans_server_and_client(book: Book) -> None:
    book.audit.event("s-1", "alice", QuestionOpened(QUESTION))
    for closure, by, answer in (
        (Closure.ANSWERED, "elicitation", Answer(allow=True)),
        (Closure.EXPIRED, "deadline", Answer(allow=False)),
        (Closure.WITHDRAWN, "claude", None),
    ):
        book.audit.event("s-1", "alice", QuestionSettled(QUESTION, Resolution(closure, by, answer)))
    recorded = [(line["act"], line.get("by"), line.get("decision"), line["question"]) for line in book.lines()]
    assert recorded == [
        ("question_opened", None, None, "q-1"),
        ("question_answered", "elicitation", "allow", "q-1"),
        ("question_expired", "deadline", "deny", "q-1"),
        ("question_withdrawn", "claude", None, "q-1"),
    ]


def test_reported_input_of_a_changed_call(book: Book) -> None:
    for command in ("ls", "rm -r x"):
        answer = Answer(allow=True, updated_input={"command": command})
        book.audit.event("s-1", "alice", QuestionSettled(QUESTION, Resolution(Closure.ANSWERED, "respond", answer)))
    assert [line.get("changed_to") for line in book.lines()] == [None, "Run: rm -r x"]


def test_a_process_that_was_ended_for_what_it_claimed(book: Book) -> None:
    book.audit.event(
        "s-1", "mallory", ProcessChanged("protocol_violation", detail="another session's id (system/init)")
    )
    book.audit.event("s-1", "mallory", ProcessChanged("ended"))
    (line,) = book.lines()
    expected = {"act": "protocol_violation", "who": "mallory", "session": "s-1"}
    assert line | {"at": ""} == {**expected, "at": "", "reason": "another session's id (system/init)"}


def test_turn_costs(book: Book) -> None:
    book.audit.event("s-1", "alice", TurnEnded(3, Outcome(OutcomeCode.COMPLETED, usage=USAGE)))
    book.audit.event("s-1", "alice", Spent(USAGE))
    ended, late = book.lines()
    assert (ended["turn"], ended["outcome"], ended["cost_usd"]) == (3, "completed", 0.125)
    assert (late["act"], late["cost_usd"]) == ("turn_cost", 0.125)


def test_secrets_and_long_texts_are_excluded(book: Book) -> None:
    book.audit.act(
        AuditEvent(AuditKind.REFUSED, "alice", "s-1", {"reason": "opaque-secret-value", "field": "x" * 10_000})
    )
    (line,) = book.lines()
    assert line["reason"] == "[redacted]"
    assert len(line["field"]) < 3000
