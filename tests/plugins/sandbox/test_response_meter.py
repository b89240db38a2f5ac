"""The tokens in answers of the API, however they come over the line."""

import json
import random

import pytest

from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.plugins.sandbox.model_socket import ResponseMeter

START = {"input_tokens": 120, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3, "output_tokens": 1}
FINAL = {"output_tokens": 55, "server_tool_use": {"web_search_requests": 0}}
EXPECTED = Usage({"claude-opus-5-5": ModelUsage(120, 55, 7, 3)})


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def stream(text: str = "hello", *, whole: bool = True) -> bytes:
    parts = [event("message_start", message={"model": "claude-opus-5-5", "usage": START})]
    parts += [event("content_block_delta", delta={"type": "text_delta", "text": text})]
    if whole:
        parts += [event("message_delta", delta={"stop_reason": "end_turn"}, usage=FINAL), event("message_stop")]
    return b"".join(parts)


def metered(body: bytes, piece: int = 1 << 16, status: int = 200) -> Usage:
    meter = ResponseMeter(status)
    for at in range(0, len(body), piece):
        meter.feed(body[at : at + piece])
    return meter.usage


@pytest.mark.parametrize("piece", [1, 2, 7, 64, 1 << 16])
def test_a_stream_is_counted_in_pieces_of_any_size(piece: int) -> None:
    assert metered(stream(), piece) == EXPECTED


def test_an_answer_that_is_not_streamed_is_counted() -> None:
    body = {"model": "claude-opus-5-5", "content": [], "stop_reason": "end_turn", "usage": {**START, **FINAL}}
    assert metered(json.dumps(body, separators=(",", ":")).encode()) == EXPECTED
    assert metered(json.dumps(body, indent=2).encode()) == EXPECTED


@pytest.mark.parametrize(
    "text",
    ['"usage": {"input_tokens": 0, "output_tokens": 0}', '{"usage":{"output_tokens":-5}}', '"usage":{', "x" * 100_000],
)
def test_what_the_model_says_lowers_nothing(text: str) -> None:
    assert metered(stream(text)) == EXPECTED


@pytest.mark.parametrize("piece", [7, 64, 1 << 16])
def test_text_about_the_end_does_not_end_an_answer(piece: int) -> None:
    spoken = {"type": "message_stop", "line": "\nevent: message_stop\n"}
    block = {"type": "tool_use", "name": "Note", "input": spoken}
    body = {"model": "claude-opus-5-5", "content": [block], "usage": {**START, **FINAL}}
    for separators in ((",", ":"), (", ", ": ")):
        meter = ResponseMeter(200)
        whole = json.dumps(body, separators=separators).encode()
        for at in range(0, len(whole), piece):
            meter.feed(whole[at : at + piece])
            assert not meter.complete, "it would be counted before its usage has come"
    result = event("content_block_start", content_block={"type": "web_search_tool_result", "title": "message_stop"})
    meter = ResponseMeter(200)
    meter.feed(result)
    assert not meter.complete
    meter.feed(event("message_stop"))
    assert meter.complete


def test_a_stream_that_is_cut_off_costs_what_was_sent() -> None:
    cut = metered(stream("word " * 3000, whole=False)).total
    assert cut.input_tokens == 120
    assert cut.output_tokens > 300


@pytest.mark.parametrize(
    ("status", "body"),
    [(529, stream()), (200, b'{"input_tokens": 5}'), (200, b""), (200, b'"usage":{' + b"[" * 100_000)],
    ids=["an error", "a count of tokens", "empty", "no usage"],
)
def test_what_used_nothing_costs_nothing(status: int, body: bytes) -> None:
    assert metered(body, status=status) == Usage()


def test_only_part_of_a_long_answer_is_kept() -> None:
    meter = ResponseMeter(200)
    random.seed(4)
    for _ in range(200):
        meter.feed(b'"usage":{"input_tokens":' + random.randbytes(5000))
        assert len(meter._kept) <= 5000 + (16 << 10)


@pytest.mark.parametrize("messages", [1, 80])
def test_what_the_totals_of_an_answer_leave_out_is_counted(messages: int) -> None:
    """The totals do not hold what a summary of the conversation on the API's side has used."""
    message = {"type": "message", "input_tokens": 20, "output_tokens": 5, "cache_read_input_tokens": 0}
    summary = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3500}
    totals = {"input_tokens": 20 * messages, "output_tokens": 5 * messages}
    body = {"model": "claude-opus-5-5", "usage": {**totals, "iterations": [summary, *[message] * messages]}}
    used = metered(json.dumps(body).encode()).total
    assert (used.input_tokens, used.output_tokens) == (180_000 + 20 * messages, 3500 + 5 * messages)
