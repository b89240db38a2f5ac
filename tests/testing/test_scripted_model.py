"""The server: HTTP, streams, faults, records and shutdown, seen by a plain client."""

import asyncio
import contextlib
import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.testing import ScriptedModel, ScriptedModelThread
from claude_code_mcp.testing.http_api import pieces_of
from claude_code_mcp.testing.script import Step, answer_to, cut, fail, script, stall, text, thinking, tool
from tests.support.clock import settled, stopped_clock
from tests.support.waiting import HANG_SECONDS

Json = dict[str, Any]


def body(*steps: Step, **more: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": script("hi", *steps)}], **more}


def post(
    model: ScriptedModelThread, content: Any, key: str = "sk-scripted", path: str = "/v1/messages"
) -> tuple[int, Any]:
    """The status and the decoded answer: an object, or the list of events of a stream."""
    connection = http.client.HTTPConnection(model.url.removeprefix("http://"), timeout=HANG_SECONDS)
    try:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        connection.request("POST", path, raw, {"x-api-key": key})
        response = connection.getresponse()
        return response.status, decoded(response.read().decode())
    finally:
        connection.close()


def decoded(answer: str) -> Any:
    if not answer.startswith("event:"):
        return json.loads(answer)
    return [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line.startswith("data: ")]


async def read_until(reader: asyncio.StreamReader, words: bytes) -> bytes:
    seen = b""
    while words not in seen and (more := await reader.read(65536)):
        seen += more
    return seen


async def ask(model: ScriptedModel, content: Json) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(model.url.rpartition(":")[2]))
    raw = json.dumps(content).encode()
    writer.write(b"POST /v1/messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw))
    return reader, writer


def test_a_request_without_stream_gets_a_message() -> None:
    with ScriptedModelThread() as model:
        status, message = post(model, body(tool("Bash", command="ls")))
    assert status == 200
    assert message["stop_reason"] == "tool_use"
    assert message["content"][0]["input"] == {"command": "ls"}
    assert message["content"][0]["id"].startswith("toolu_")


def test_a_stream_has_the_events_of_the_api_in_order() -> None:
    with ScriptedModelThread() as model:
        _, events = post(model, body(thinking("hm", "so"), stream=True))
    block = ["content_block_start", "content_block_delta"]
    assert [event["type"] for event in events] == [
        "message_start", *block, "content_block_delta", "content_block_stop", *block, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
    ]


def test_the_deltas_of_a_tool_call_make_up_its_input() -> None:
    with ScriptedModelThread() as model:
        _, events = post(model, body({"tool": "T", "input": {"long": "x" * 99}, "chunks": 5}, stream=True))
    parts = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert len(parts) == 5
    assert json.loads("".join(parts)) == {"long": "x" * 99}


def test_ten_thousand_deltas_are_written_in_few_pieces() -> None:
    answer = answer_to(body(text("word ", repeat=10_000, chunks=10_000)))
    pieces = list(pieces_of(answer, "m"))
    assert b"".join(piece.data for piece in pieces).count(b"event: content_block_delta") == 10_000
    assert len(pieces) < 200
    assert {piece.pause for piece in pieces} == {0}


async def test_delay_and_interval_take_their_time() -> None:
    """Nothing comes before its time, and everything at its time, on a clock that moves only for this."""
    async with ScriptedModel() as model:
        with stopped_clock() as clock:
            reader, writer = await ask(model, body(text("abc", delay=1, chunks=3, interval=2), stream=True))
            await model.wait_for_requests(1)
            await settled()
            for words, seconds in ((b'"a"', 1), (b'"b"', 2), (b'"c"', 2), (b"message_stop", 2)):
                reading = asyncio.create_task(read_until(reader, words))
                await clock.advance(seconds - 0.01)
                assert not reading.done()
                await clock.advance(0.01)
                assert words in await reading
                await settled()  # the next pause begins
            writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_waits_for_its_file_before_the_last_delta(tmp_path: Path, stream: bool) -> None:
    gate = tmp_path / "go"
    async with ScriptedModel() as model:
        reader, writer = await ask(model, body(text("abc", chunks=3, until=str(gate)), stream=stream))
        if stream:
            before = await read_until(reader, b'"b"')
        else:
            await model.wait_for_requests(1)
            before = b""
        assert b'"c"' not in before
        assert not reader.at_eof()
        gate.touch()
        await read_until(reader, b"message_stop" if stream else b"abc")
        writer.close()


async def test_a_client_that_leaves_ends_the_wait_for_a_file(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        reader, writer = await ask(model, body(text("ab", chunks=2, until=str(tmp_path / "never")), stream=True))
        await read_until(reader, b"text_delta")
        writer.close()
        _, still_there = await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=HANG_SECONDS)
        assert not still_there


def test_an_error_has_its_status_type_and_headers_the_first_times_only() -> None:
    request = body(fail(429, times=1, then="fine", message="slow down", retry_after=2))
    with ScriptedModelThread() as model:
        status, problem = post(model, request)
        assert (status, problem["error"]) == (429, {"type": "rate_limit_error", "message": "slow down"})
        assert post(model, request)[0] == 200
        assert [record.status for record in model.requests] == [429, 200]


def test_a_cut_stream_ends_in_the_middle() -> None:
    with ScriptedModelThread() as model, pytest.raises(http.client.IncompleteRead) as broken:
        post(model, body(cut("half of this"), stream=True))
    assert b"text_delta" in broken.value.partial
    assert b"message_stop" not in broken.value.partial


def test_a_bad_key_and_a_bad_body_are_refused() -> None:
    with ScriptedModelThread() as model:
        assert post(model, body("x"), key="sk-bad")[0] == 401
        assert post(model, b"not json")[0] == 400


def test_tokens_are_counted_and_other_paths_not_found() -> None:
    with ScriptedModelThread() as model:
        assert post(model, body("x"), path="/v1/messages/count_tokens")[1]["input_tokens"] > 0
        assert post(model, body("x"), path="/v1/elsewhere")[0] == 404


def test_records_tell_what_was_asked() -> None:
    request = body("x", system=[{"type": "text", "text": "Be brief."}], tools=[{"name": "Bash"}])
    request["metadata"] = {"user_id": json.dumps({"session_id": "s1"})}
    request["messages"][0]["content"] = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "boom", "is_error": True},
        {"type": "text", "text": script("hi", "x")},
    ]
    with ScriptedModelThread() as model:
        post(model, request, path="/v1/messages?beta=true")
        (record,) = model.requests
    assert (record.path, record.model, record.messages, record.tools) == ("/v1/messages", "m", 1, ("Bash",))
    assert (record.system, record.session_id, record.step) == ("Be brief.", "s1", 0)
    assert [(result.text, result.is_error) for result in record.tool_results] == [("boom", True)]
    assert record.body is None


def test_bodies_are_kept_on_demand_and_old_records_forgotten() -> None:
    with ScriptedModelThread(keep_bodies=True, remember=2) as model:
        for name in "abc":
            post(model, body(name))
        assert [record.body and record.body["model"] for record in model.requests] == ["m", "m"]


async def test_closing_ends_stalled_streams_at_once() -> None:
    async with ScriptedModel() as model:
        reader, writer = await ask(model, body(stall("Wait"), stream=True))
        assert b"text_delta" in await read_until(reader, b"text_delta")
        assert len(await model.wait_for_requests(1)) == 1
    # It has not waited for the stream to end, which it never does.
    with contextlib.suppress(ConnectionError):
        assert b"message_stop" not in await reader.read()
    writer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_client_that_leaves_ends_its_stalled_stream() -> None:
    async with ScriptedModel() as model:
        reader, writer = await ask(model, body(stall("Wait"), stream=True))
        await read_until(reader, b"text_delta")
        writer.close()
        _, still_there = await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=HANG_SECONDS)
        assert not still_there


async def test_noise_on_the_port_is_ignored() -> None:
    async with ScriptedModel() as model:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(model.url.rpartition(":")[2]))
        writer.write(b"noise\r\n\r\n")
        assert await reader.read() == b""
        writer.close()


def test_a_taken_port_is_reported_by_the_thread() -> None:
    with ScriptedModelThread() as model:
        port = int(model.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"), ScriptedModelThread(port):
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process")
def test_the_command_prints_what_to_export_and_ends_quietly_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "claude_code_mcp.testing"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, problems = process.communicate(timeout=HANG_SECONDS)
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:" in lines[2]
    assert (process.returncode, problems) == (0, "")


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_invalid_port_is_reported_by_the_command(port: str) -> None:
    command = [sys.executable, "-m", "claude_code_mcp.testing", "--port", port]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"cannot listen on port {port}: ")
    assert len(answer.stderr.splitlines()) == 1
