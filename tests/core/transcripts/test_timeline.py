"""The times of turns and waits, from transcripts that may claim anything and from the event log."""

import json
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.events import QuestionSettled
from claude_code_mcp.core.model.question import POLICY_CHANNEL, Answer, Closure, Question, QuestionKind, Resolution
from claude_code_mcp.core.transcripts import timeline
from claude_code_mcp.core.transcripts.event_log import EventLog
from claude_code_mcp.core.transcripts.outline import read_outline
from claude_code_mcp.core.transcripts.timeline import TurnTime, WaitTime, logged_waits, read_timeline, turn_time

NOON = 1_794_312_000  # 2026-11-10T12:00:00Z


def at(minute: int) -> str:
    return f"2026-11-10T12:{minute:02}:00.000Z"


def line(uuid: str, parent: str | None, role: str, content: Any, timestamp: Any) -> dict[str, Any]:
    message = {"role": role, "content": content}
    return {"uuid": uuid, "parentUuid": parent, "type": role, "message": message, "timestamp": timestamp}


def asks(uuid: str, parent: str, timestamp: Any, name: str = "AskUserQuestion", call: str = "call") -> dict[str, Any]:
    return line(uuid, parent, "assistant", [{"type": "tool_use", "id": call, "name": name, "input": {}}], timestamp)


def gets(uuid: str, parent: str, timestamp: Any, call: str = "call") -> dict[str, Any]:
    return line(uuid, parent, "user", [{"type": "tool_result", "tool_use_id": call, "content": "x"}], timestamp)


def says(uuid: str, parent: str, timestamp: Any) -> dict[str, Any]:
    return line(uuid, parent, "assistant", [{"type": "text", "text": "Done."}], timestamp)


def seconds(minute: int) -> float:
    return NOON + 60.0 * minute


def times(*lines: dict[str, Any]) -> tuple[TurnTime | None, dict[str, WaitTime]]:
    return turn_time(1, lines, lambda value: value)


def question(call: str | None, opened: float) -> Question:
    return Question("q-1", "s-1", QuestionKind.PERMISSION, "Bash", {}, "Run it", tool_use_id=call, opened_at=opened)


def test_a_turn_ends_with_its_last_answer_and_a_question_waits_until_its_result() -> None:
    prompt = line("1", None, "user", "Go on", at(0))
    command = line("5", "4", "user", "<local-command-stdout>later</local-command-stdout>", at(50))
    found = times(prompt, asks("2", "1", at(2)), gets("3", "2", at(12)), says("4", "3", at(13)), command)
    assert found == (
        TurnTime(1, seconds(0), seconds(13), "Go on"),
        {"call": WaitTime(seconds(2), seconds(12), "AskUserQuestion")},
    )


def test_only_calls_that_always_ask_are_waits_and_only_with_a_result() -> None:
    prompt = line("1", None, "user", "Go on", at(0))
    run = asks("2", "1", at(2), name="Bash", call="run")
    _, waits = times(prompt, run, gets("3", "2", at(12), "run"), asks("4", "3", at(13), call="open"))
    assert waits == {}


@pytest.mark.parametrize("claim", ["soon", "9" * 39, 5, None, ["x"], {}, "2026-99-99T00:00:00Z"])
def test_invalid_time_is_omitted(claim: Any) -> None:
    prompt = line("1", None, "user", "Go on", at(0))
    turn, waits = times(prompt, asks("2", "1", claim), gets("3", "2", at(3)), says("4", "3", claim))
    assert turn == TurnTime(1, seconds(0), seconds(3), "Go on")
    assert waits == {}
    assert times(line("1", None, "user", "Go on", claim)) == (None, {})


def test_intervals_with_an_early_end_are_omitted() -> None:
    prompt = line("1", None, "user", "Go on", at(30))
    turn, waits = times(prompt, asks("2", "1", at(20)), gets("3", "2", at(10)))
    assert turn == TurnTime(1, seconds(30), None, "Go on")
    assert waits == {}


def test_the_last_turns_are_read_and_times_of_the_event_log_are_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        line("1", None, "user", "first", at(0)),
        says("2", "1", at(1)),
        line("3", "2", "user", "second", at(2)),
        asks("4", "3", at(3), call="a"),
        gets("5", "4", at(9), "a"),
        line("6", "5", "user", "the secret " + "x" * 200, at(10)),
        says("7", "6", at(11)),
    ]
    path = tmp_path / "transcript.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    monkeypatch.setattr(timeline, "_MAX_TURNS", 2)
    exact = {"a": WaitTime(seconds(4), seconds(8)), "b": WaitTime(seconds(2), None)}

    def redact(value: Any) -> Any:
        return value.replace("secret", "[redacted]")

    read = read_timeline(str(path), read_outline(str(path)), exact, redact)
    assert [(turn.number, turn.at, turn.until) for turn in read.turns] == [
        (2, seconds(2), seconds(9)),
        (3, seconds(10), seconds(11)),
    ]
    assert read.turns[1].prompt.startswith("the [redacted] xxx")
    assert len(read.turns[1].prompt) <= 81
    assert read.waits == (WaitTime(seconds(2), None), WaitTime(seconds(4), seconds(8)))


def test_the_event_log_knows_settled_questions_and_the_session_the_open_ones() -> None:
    log = EventLog(100, 1 << 20)
    allowed = Resolution(Closure.ANSWERED, "web", Answer(allow=True), client="bob, Chrome")
    log.append(QuestionSettled(question("done", 5.0), allowed))
    log.append(QuestionSettled(question("late", 6.0), Resolution(Closure.EXPIRED, "deadline", Answer(allow=False))))
    log.append(QuestionSettled(question("unknown", 0.0), allowed))
    log.append(QuestionSettled(question("rule", 5.0), Resolution(Closure.ANSWERED, POLICY_CHANNEL, Answer(allow=True))))
    done, late, *_ = log.latest(QuestionSettled, 4)
    assert logged_waits(log, [question(None, 7.0)]) == {
        "done": WaitTime(5.0, done.at, "Bash", "allow", "web (bob, Chrome)"),
        "late": WaitTime(6.0, late.at, "Bash", "expired", "deadline"),
        "q-1": WaitTime(7.0, None, "Bash"),
    }
