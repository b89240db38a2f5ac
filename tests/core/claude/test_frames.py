"""Lines become frames, whatever they hold; frames become lines that survive the way to the CLI."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.claude.protocol import (
    ControlCancel,
    ControlRequest,
    ControlResponse,
    Conversation,
    Garbage,
    Lifecycle,
    Other,
    Result,
    StreamEvent,
    System,
    control_request,
    encode,
    parse_frame,
    user_message,
)
from tests.support.tables import every_row

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CONTROL = ["control_request", "control_response", "control_cancel_request", "control_what"]
known_types = st.sampled_from(["assistant", "user", "result", "system", "stream_event", "command_lifecycle", *CONTROL])
frame_objects = st.dictionaries(
    st.sampled_from(["message", "request", "response", "request_id", "subtype", "event", "user_message_uuids"]),
    json_values,
).flatmap(lambda raw: known_types.map(lambda kind: {"type": kind, **raw}))


@given(st.binary())
def test_no_bytes_can_break_the_parser(line: bytes) -> None:
    parse_frame(line)


@given(frame_objects)
def test_no_object_can_break_a_frame_or_its_properties(raw: dict[str, Any]) -> None:
    match parse_frame(json.dumps(raw).encode()):
        case Conversation() as frame:
            assert all(isinstance(block, dict) for block in frame.content)
            assert isinstance(frame.from_subagent, bool)
        case Result() as frame:
            assert all(isinstance(one, str) for one in frame.message_ids)
        case System() as frame:
            assert isinstance(frame.subtype, str)
        case Lifecycle() as frame:
            assert isinstance(frame.state + frame.message_id, str)


@given(json_values.filter(lambda value: isinstance(value, dict)))
def test_the_raw_object_is_kept_as_it_was(raw: dict[str, Any]) -> None:
    frame = parse_frame(json.dumps({**raw, "type": "assistant"}).encode())
    assert isinstance(frame, Conversation)
    assert frame.raw == {**raw, "type": "assistant"}


@every_row(
    ("line", "kind"),
    [
        (b'{"type":"stream_event","event":{}}', StreamEvent),
        (b'{"type":"assistant"}', Conversation),
        (b'{"type":"user"}', Conversation),
        (b'{"type":"result"}', Result),
        (b'{"type":"system","subtype":"init"}', System),
        (b'{"type":"command_lifecycle","state":"started"}', Lifecycle),
        (b'{"type":"control_request","request_id":"1","request":{"subtype":"can_use_tool"}}', ControlRequest),
        (b'{"type":"control_request","request_id":7,"request":{}}', Other),
        (b'{"type":"control_cancel_request","request_id":"1"}', ControlCancel),
        (b'{"type":"control_response","response":{"request_id":"1"}}', ControlResponse),
        (b'{"type":"control_response","response":"what"}', Other),
        (b'{"type":"telepathy"}', Other),
        (b'{"type":["assistant"]}', Other),
        (b'{"no_type":1}', Other),
        (b"[1, 2]", Garbage),
        (b'"words"', Garbage),
        (b"null", Garbage),
        (b'{"type":"assistant"} trailing', Garbage),
        (b'{"type":"assistant", broken', Garbage),
        (b"\xff\xfe", Garbage),
        (b"[" * 100_000, Garbage),
    ],
)
def test_each_line_is_a_frame_of_its_kind(line: bytes, kind: type) -> None:
    assert type(parse_frame(line)) is kind


def test_white_space_around_an_object_does_no_harm() -> None:
    assert isinstance(parse_frame(b'  {"type":"result"} \r'), Result)


def test_garbage_is_cut_to_a_readable_length_and_reports_its_size() -> None:
    frame = parse_frame(b"?" * 1_000_000)
    assert frame == Garbage("?" * 2000, 1_000_000)


def test_refusal_is_distinguished_from_an_answer() -> None:
    refused = parse_frame(b'{"type":"control_response","response":{"request_id":"1","subtype":"error","error":"no"}}')
    answered = parse_frame(
        b'{"type":"control_response","response":{"request_id":"1","subtype":"success","response":{"a":1}}}'
    )
    assert (refused, answered) == (ControlResponse("1", {}, "no"), ControlResponse("1", {"a": 1}, None))


@given(st.text())
def test_every_text_arrives_as_one_line_and_unchanged(words: str) -> None:
    line = encode(user_message(words, "id"))
    assert line.count(b"\n") == 1
    assert json.loads(line)["message"]["content"] == words


def test_values_outside_json_are_replaced_before_the_cli_reads_them() -> None:
    """The CLI ends itself over a line that it cannot parse, and the API takes no half of a surrogate pair."""
    sent = encode({"half": "a\ud83db", "whole": "\U0001f600", "numbers": [float("nan"), float("inf"), -1e999, 1.5]})
    assert sent.isascii()
    assert json.loads(sent, parse_constant=pytest.fail) == {
        "half": "a\ufffdb",
        "whole": "\U0001f600",
        "numbers": [None, None, None, 1.5],
    }


def test_a_frame_that_is_nested_without_end_is_refused() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        encode({"deep": value})


def test_half_a_surrogate_pair_from_the_cli_can_be_passed_on() -> None:
    frame = parse_frame(
        b'{"type":"user","message":{"content":"a\\ud83d"},"list":["\\udc00b", 1, null],"whole":"\\ud83d\\ude00"}'
    )
    assert isinstance(frame, Conversation)
    assert frame.content == [{"type": "text", "text": "a\ufffd"}]
    assert frame.raw["list"] == ["\ufffdb", 1, None]
    assert frame.raw["whole"] == "\N{GRINNING FACE}"


def test_only_a_later_message_says_when_it_wants_to_be_read() -> None:
    assert "priority" not in user_message("now", "id")
    assert user_message("then", "id", later=True)["priority"] == "later"


def test_a_request_carries_its_subtype_and_its_fields() -> None:
    assert control_request("1", "interrupt", {"cancel_queued": True}) == {
        "type": "control_request",
        "request_id": "1",
        "request": {"subtype": "interrupt", "cancel_queued": True},
    }
