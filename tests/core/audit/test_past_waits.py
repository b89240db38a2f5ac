"""The waits of a session for a person are found in the audit trail, also after a restart of the server."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.audit.audit_chain import BEGIN, linked
from claude_code_mcp.core.audit.past_waits import past_waits
from claude_code_mcp.core.audit.trail import Audit, RotatingJsonl, essential_path
from claude_code_mcp.core.model.events import QuestionSettled
from claude_code_mcp.core.model.question import POLICY_CHANNEL, Answer, Closure, Question, QuestionKind, Resolution
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.core.transcripts.timeline import WaitTime

NOON = "2026-11-10T12:00:00.000Z"
NOON_SECONDS = 1_794_312_000.0
LINE = {
    "at": NOON,
    "act": "question_answered",
    "session": "s-1",
    "question": "q-1",
    "by": "web",
    "tool": "Bash",
    "decision": "allow",
    "waited_ms": 2000,
}


def settled(call: str | None, by: str, answer: Answer | None, closure: Closure = Closure.ANSWERED) -> QuestionSettled:
    now = time.time()
    asked = Question("q-1", "s-1", QuestionKind.PERMISSION, "Bash", {}, "Run", tool_use_id=call, opened_at=now - 5)
    return QuestionSettled(asked, Resolution(closure, by, answer, client="bob, Chrome"), at=now)


def written(path: Path, *lines: str) -> Path:
    essential_path(path).write_text("".join(f"{line}\n" for line in lines))
    return path


def test_what_the_trail_says_of_a_session_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    assert past_waits(path, "s-1") == {}
    essential = RotatingJsonl(essential_path(path), 1 << 20)
    audit = Audit(RotatingJsonl(path, 1 << 20), Redactor(), essential=essential)
    audit.event("s-1", "alice", settled("call-1", "web", Answer(allow=True)))
    audit.event("s-1", "alice", settled(None, "web", Answer(allow=False)))
    audit.event("s-1", "alice", settled("call-2", POLICY_CHANNEL, Answer(allow=True)))
    audit.event("s-1", "alice", settled("call-3", "deadline", Answer(allow=False), Closure.EXPIRED))
    audit.event("s-2", "alice", settled("call-4", "web", Answer(allow=True)))
    audit.close()
    found = past_waits(path, "s-1")
    assert {call: (wait.tool, wait.decision, wait.by) for call, wait in found.items()} == {
        "call-1": ("Bash", "allow", "web (bob, Chrome)"),
        "q-1": ("Bash", "deny", "web (bob, Chrome)"),
        "call-3": ("Bash", "expired", "deadline (bob, Chrome)"),
    }
    for wait in found.values():
        assert wait.until is not None
        assert wait.until - wait.at == pytest.approx(5.0, abs=0.1)


def test_rotated_files_are_read_too_and_the_newest_line_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "audit.jsonl", linked(json.dumps(LINE), BEGIN)[0].rstrip())
    older = essential_path(path).with_name("audit.essential.jsonl.1")
    older.write_text(f"{json.dumps({**LINE, 'decision': 'deny'})}\n{json.dumps({**LINE, 'question': 'q-0'})}\n")
    wait = WaitTime(NOON_SECONDS - 2, NOON_SECONDS, "Bash", "allow", "web")
    assert past_waits(path, "s-1") == {"q-1": wait, "q-0": wait}


@pytest.mark.parametrize(
    "claim",
    [
        {"at": "soon"},
        {"waited_ms": -1},
        {"waited_ms": "2"},
        {"waited_ms": 1e300},
        {"waited_ms": None},
        {"by": None},
        {"act": "question_opened"},
        {"act": ["question_answered"]},
        {"session": "s-2", "description": '"s-1"'},
    ],
)
def test_invalid_waits_are_omitted(tmp_path: Path, claim: dict[str, Any]) -> None:
    line = {name: value for name, value in {**LINE, **claim}.items() if value is not None}
    cut_off = json.dumps(LINE)[:-20]
    assert past_waits(written(tmp_path / "audit.jsonl", json.dumps(line), cut_off, '["s-1"]'), "s-1") == {}


def test_a_trail_that_is_a_pipe_is_not_opened(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no named pipes here")
    path = tmp_path / "audit.jsonl"
    os.mkfifo(essential_path(path))
    assert past_waits(path, "s-1") == {}
