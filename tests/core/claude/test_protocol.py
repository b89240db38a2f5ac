"""The protocol remembers what is owed in both directions, with no process in sight."""

import json
from typing import Any

from claude_code_mcp.core.claude.protocol import ControlProtocol, ControlRequest, Garbage, Result, StreamEvent
from claude_code_mcp.core.processes.line_splitter import MAX_LINE

QUESTION = {"type": "control_request", "request_id": "q1", "request": {"subtype": "can_use_tool"}}


def line(raw: dict[str, Any]) -> bytes:
    return json.dumps(raw).encode() + b"\n"


def tell(protocol: ControlProtocol, *frames: dict[str, Any]) -> None:
    for _ in protocol.receive(b"".join(map(line, frames))):
        pass


def test_question_stays_open_until_answered() -> None:
    protocol = ControlProtocol()
    tell(protocol, QUESTION)
    assert protocol.owed == {"q1"}
    sent = protocol.answer("q1", {"behavior": "allow"})
    assert sent is not None
    assert json.loads(sent)["response"] == {
        "subtype": "success",
        "request_id": "q1",
        "response": {"behavior": "allow"},
    }
    assert protocol.owed == set()


def test_a_question_is_answered_only_once() -> None:
    protocol = ControlProtocol()
    tell(protocol, QUESTION)
    assert protocol.answer("q1", {}) is not None
    assert protocol.answer("q1", {}) is None
    assert protocol.refuse("q1", "too late") is None


def test_a_withdrawn_question_takes_no_answer() -> None:
    protocol = ControlProtocol()
    tell(protocol, QUESTION, {"type": "control_cancel_request", "request_id": "q1"})
    assert protocol.owed == set()
    assert protocol.answer("q1", {}) is None


def test_a_refusal_settles_a_question() -> None:
    protocol = ControlProtocol()
    tell(protocol, QUESTION)
    sent = protocol.refuse("q1", "no")
    assert sent is not None
    assert json.loads(sent)["response"] == {"subtype": "error", "request_id": "q1", "error": "no"}
    assert protocol.owed == set()


def test_a_message_is_unfinished_until_its_result() -> None:
    protocol = ControlProtocol()
    protocol.message("one", "m1")
    protocol.message("two", "m2")
    tell(protocol, {"type": "result", "user_message_uuids": ["m1"], "queued_turn_count": 1})
    assert protocol.unfinished == {"m2"}
    tell(protocol, {"type": "result", "user_message_uuids": ["m2"]})
    assert protocol.unfinished == set()


def test_a_cancelled_message_is_finished() -> None:
    protocol = ControlProtocol()
    protocol.message("one", "m1")
    tell(protocol, {"type": "command_lifecycle", "command_uuid": "m1", "state": "started"})
    assert protocol.unfinished == {"m1"}
    tell(protocol, {"type": "command_lifecycle", "command_uuid": "m1", "state": "cancelled"})
    assert protocol.unfinished == set()


def test_a_result_that_names_no_message_answers_all_unless_some_are_queued() -> None:
    protocol = ControlProtocol()
    protocol.message("one", "m1")
    tell(protocol, {"type": "result", "queued_turn_count": 1})
    assert protocol.unfinished == {"m1"}
    tell(protocol, {"type": "result"})
    assert protocol.unfinished == set()


def test_spontaneous_turn_answers_no_message() -> None:
    """As the CLI reports, when it is resumed, on a background task that an earlier process has lost."""
    protocol = ControlProtocol()
    protocol.message("one", "m1")
    tell(protocol, {"type": "result", "num_turns": 0, "origin": {"kind": "task-notification"}})
    assert protocol.unfinished == {"m1"}
    tell(protocol, {"type": "result", "origin": {"kind": "human"}})
    assert protocol.unfinished == set()


def test_requests_have_ids_of_their_own() -> None:
    protocol = ControlProtocol()
    (first, sent), (second, _) = (protocol.request("interrupt", {"cancel_queued": True}) for _ in range(2))
    assert first != second
    assert json.loads(sent) == {
        "type": "control_request",
        "request_id": first,
        "request": {"subtype": "interrupt", "cancel_queued": True},
    }


def test_frames_come_in_order_with_the_unreadable_among_them() -> None:
    data = line({"type": "stream_event"}) + b"noise\n" + line(QUESTION) + line({"type": "result"})
    kinds = [type(frame) for frame in ControlProtocol().receive(data)]
    assert kinds == [StreamEvent, Garbage, ControlRequest, Result]


def test_a_question_is_noted_even_if_the_reader_stops_at_it() -> None:
    protocol = ControlProtocol()
    assert isinstance(next(iter(protocol.receive(line(QUESTION)))), ControlRequest)
    assert protocol.owed == {"q1"}


def test_a_line_over_the_limit_is_garbage_with_its_size() -> None:
    protocol = ControlProtocol()
    assert list(protocol.receive(b"x" * (MAX_LINE + 1))) == []
    assert list(protocol.receive(b"\n")) == [Garbage("x" * 200, MAX_LINE + 1)]


def test_half_a_line_counts_when_the_stream_ends() -> None:
    protocol = ControlProtocol()
    assert list(protocol.receive(b'{"type":"result"}')) == []
    assert [type(frame) for frame in protocol.end()] == [Result]
    assert list(protocol.end()) == []
