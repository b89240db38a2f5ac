"""Whatever a process says or does, its owner hears of it in order and nothing breaks."""

import asyncio
import json
import sys
from typing import Any

import pytest

from claude_code_mcp.core.claude.process import ClaudeProcess
from claude_code_mcp.core.claude.protocol import (
    ControlCancel,
    ControlRequest,
    Conversation,
    Frame,
    Garbage,
    Other,
    Result,
    StreamEvent,
    System,
)
from claude_code_mcp.core.errors import ProcessFailed
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.processes.child import Exit
from claude_code_mcp.core.processes.leftovers import new_mark
from claude_code_mcp.core.processes.line_splitter import MAX_LINE
from claude_code_mcp.testing import Sandbox
from tests.conftest import StartService
from tests.support.misbehaving_cli import install_misbehaving_cli

from .conftest import PATIENCE, Listener, Start

MIB = 1 << 20


async def turn(start: Start, **ways: Any) -> Listener:
    """One turn of a process that misbehaves in these ways."""
    started = await start(**ways)
    started.process.send("go", "m1")
    await started.listener.result()
    return started.listener


class Holder(Listener):
    """Has something to finish about each result before it hears more."""

    process: ClaudeProcess

    def frame_received(self, frame: Frame) -> None:
        super().frame_received(frame)
        if isinstance(frame, Result):
            self.process.hold()


async def test_what_follows_a_frame_waits_for_an_owner_that_holds_it(start: Start) -> None:
    listener = Holder()
    started = await start(listener, duplicate_result=True, crash=5, crash_at="eof")
    listener.process = started.process
    started.process.send("go", "m1")
    await listener.result()
    await started.process.stop(PATIENCE)
    assert (len(listener.of(Result)), listener.exit) == (1, None)
    started.process.release()
    assert (len(listener.of(Result)), listener.exit) == (2, None), "it is held again"
    started.process.release()
    assert listener.exit is not None
    assert listener.exit.code == 5


# -- what it says -----------------------------------------------------------------------------------------------


async def test_a_malformed_line_is_reported_and_the_turn_continues(start: Start) -> None:
    listener = await turn(start, malformed_line=True)
    assert [frame.text for frame in listener.of(Garbage)] == ['{"type": "assistant", "message": broken']


async def test_noise_is_reported_line_by_line_and_the_turn_continues(start: Start) -> None:
    listener = await turn(start, noise=True)
    garbage = [frame.text for frame in listener.of(Garbage)]
    assert garbage == ["plain words", "[1, 2]", '"a string"', "null", "\ufffd\ufffd not UTF-8"]


@pytest.mark.parametrize("size", [2 * MIB, pytest.param(63 * MIB, marks=pytest.mark.soak)])
async def test_a_giant_line_arrives_whole(start: Start, size: int) -> None:
    listener = await turn(start, giant_line=size)
    assert len(listener.of(Conversation)[0].content[0]["text"]) == size


async def test_line_over_the_limit_is_skipped_and_its_size_reported(start: Start) -> None:
    listener = await turn(start, over_limit_line=True)
    (skipped,) = listener.of(Garbage)
    assert skipped.size > MAX_LINE
    assert "assistant" in skipped.text
    assert (await listener.result())["result"] == "done"


async def test_unknown_frames_pass_through_unharmed(start: Start) -> None:
    listener = await turn(start, unknown_frames=True)
    assert [frame.raw.get("type") for frame in listener.of(Other)] == ["telepathy", None]
    assert listener.of(Other)[0].raw["thought"] == {"deep": [1, 2, 3]}
    assert listener.of(System)[1].raw["rain"] is True


async def test_an_unknown_request_can_be_refused(start: Start) -> None:
    started = await start(unknown_control=True)
    started.process.send("go", "m1")
    request = await started.listener.question()
    assert request.subtype == "read_minds"
    started.process.refuse(request.id, "not supported")
    assert (await started.listener.result())["result"] == '"not supported"'


async def test_withdrawn_question_is_reported_and_takes_no_answer(start: Start) -> None:
    started = await start(cancel_question=True)
    started.process.send("go", "m1")
    question, withdrawn = await started.listener.question(), await started.listener.first(ControlCancel)
    assert question.id == withdrawn.id
    started.process.answer(question.id, {"behavior": "allow"})
    assert (await started.listener.result())["result"] == "done"


async def test_an_answer_gets_through_behind_a_flood(start: Start) -> None:
    started = await start(flood=50_000, ask=True)
    started.process.send("go", "m1")
    question = await started.listener.question()
    assert len(started.listener.of(StreamEvent)) == 50_001
    started.process.answer(question.id, {"behavior": "allow"})
    assert json.loads((await started.listener.result())["result"]) == {"behavior": "allow"}


async def test_answer_passes_an_unread_flood(start_service: StartService, sandbox: Sandbox) -> None:
    cli = install_misbehaving_cli(sandbox.root / "bin")
    service = await start_service({"MISBEHAVE": "flood=50000 ask"}, claude_path=str(cli))
    turn = await service.create("go", SessionOptions(cwd=str(sandbox.project)))
    session = turn.session
    with service.watch(session.id):
        await service.wait(session.id, PATIENCE)
        (question,) = service.questions(session.id)
        service.respond(session.id, question.id, Answer(allow=True))
        outcome = await turn.outcome()
    assert json.loads(outcome.result)["behavior"] == "allow"


# -- what it hears ----------------------------------------------------------------------------------------------


async def test_slow_reader_gets_everything_without_blocking_others(start: Start) -> None:
    started = await start(slow_reader=0.0005)
    started.process.send("x" * MIB, "m1")
    started.process.send("short", "m2")
    await started.listener.result(2)


async def test_a_process_that_reads_nothing_is_given_only_so_much(start: Start) -> None:
    started = await start(initialized=False, slow_reader=600)
    started.process.send("x" * (33 * MIB), "m1")
    started.process.send("x" * (33 * MIB), "m2")
    with pytest.raises(ProcessFailed, match="read"):
        started.process.send("one more", "m3")


async def test_a_refused_request_says_why(start: Start) -> None:
    started = await start(initialized=False, init_error="no seats left")
    with pytest.raises(ProcessFailed, match="no seats left"):
        await started.initialize()


async def test_a_request_that_is_not_answered_fails_in_time(start: Start) -> None:
    started = await start(initialized=False, no_init=True)
    with pytest.raises(ProcessFailed, match=r"'initialize'.*\b0\.2 s"):
        await started.process.request("initialize", timeout=0.2)


async def test_silence_is_not_the_end_of_a_turn(start: Start) -> None:
    started = await start(silent=True)
    started.process.send("go", "m1")
    await started.listener.first(StreamEvent)
    assert not await started.process.settled(0.1)
    assert started.process.unfinished == {"m1"}
    assert started.listener.of(Result) == []


async def test_the_end_of_a_turn_settles_the_process(start: Start) -> None:
    started = await start()
    assert await started.process.settled(PATIENCE)
    started.process.send("go", "m1")
    assert await started.process.settled(PATIENCE)
    assert len(started.listener.of(Result)) == 1


# -- how it dies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "code"), [(3, 3), ("SIGSEGV", -11), ("SIGKILL", -9)])
@pytest.mark.parametrize("when", ["start", "initialize"])
async def test_a_crash_before_it_is_ready_fails_the_request(start: Start, when: str, how: Any, code: int) -> None:
    started = await start(initialized=False, crash=how, crash_at=when, stderr="out of luck")
    with pytest.raises(ProcessFailed, match=r"(?s)Claude Code .*out of luck"):
        await started.initialize()
    assert (await started.listener.ended()).code == code


@pytest.mark.parametrize("when", ["first_event", "mid_turn", "question", "mid_line"])
async def test_crash_in_a_turn_is_reported_with_its_last_output(start: Start, when: str) -> None:
    started = await start(crash=5, crash_at=when, stderr="out of luck", ask=when == "question")
    started.process.send("go", "m1")
    end = await started.listener.ended()
    assert end == Exit(5, "out of luck\n")
    assert end.reason.endswith(" 5: out of luck")
    assert not started.process.alive


async def test_last_output_arrives_before_the_exit(start: Start) -> None:
    started = await start(flood=5000, crash="SIGKILL", crash_at="mid_line")
    started.process.send("go", "m1")
    end = await started.listener.ended()
    assert len(started.listener.of(StreamEvent)) == 5001
    assert isinstance(started.listener.frames[-1], Garbage)
    assert "SIGKILL" in end.reason


async def test_only_the_end_of_long_last_words_is_kept(start: Start) -> None:
    started = await start(initialized=False, stderr="x" * 100_000 + "the end", crash=1, crash_at="start")
    end = await started.listener.ended()
    assert len(end.stderr) == 32 << 10
    assert end.stderr.endswith("the end\n")


async def test_after_the_end_messages_are_refused_with_the_reason_and_answers_fall_silent(start: Start) -> None:
    started = await start(ask=True, crash=9, crash_at="question", stderr="gone")
    started.process.send("go", "m1")
    await started.listener.ended()
    with pytest.raises(ProcessFailed, match="9: gone"):
        started.process.send("more", "m2")
    started.process.answer(started.listener.of(ControlRequest)[0].id, {"behavior": "allow"})
    assert await started.process.settled(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing stands between us and the program")
async def test_missing_program_is_reported_by_name(sandbox: Sandbox, environment: dict[str, str]) -> None:
    with pytest.raises(ProcessFailed, match="no-such-program"):
        await ClaudeProcess.start(
            Listener(), ["/no-such-program"], cwd=str(sandbox.project), environment=environment, mark=new_mark()
        )


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
async def test_a_child_that_holds_the_pipes_open_does_not_hide_the_end(
    sandbox: Sandbox, environment: dict[str, str]
) -> None:
    listener, mark = Listener(), new_mark()
    process = await ClaudeProcess.start(
        listener,
        ["/bin/sh", "-c", "echo last words >&2; sleep 600 & exit 4"],
        cwd=str(sandbox.project),
        environment={**environment, "CLAUDE_CODE_MCP_MARK": mark},
        mark=mark,
    )
    assert await listener.ended() == Exit(4, "last words\n")
    await asyncio.wait_for(process.cleaned.wait(), PATIENCE)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
async def test_a_process_that_closes_its_input_and_lives_on_is_ended(
    sandbox: Sandbox, environment: dict[str, str]
) -> None:
    listener, mark = Listener(), new_mark()
    process = await ClaudeProcess.start(
        listener,
        ["/bin/sh", "-c", "trap '' TERM; exec <&-; while :; do sleep 0.1; done"],
        cwd=str(sandbox.project),
        environment={**environment, "CLAUDE_CODE_MCP_MARK": mark},
        mark=mark,
    )
    with pytest.raises(ProcessFailed, match="SIGKILL"):
        await process.request("initialize", timeout=PATIENCE)
    await process.stop(PATIENCE)


# -- owners that fail -------------------------------------------------------------------------------------------


class FailingListener(Listener):
    """An owner that breaks at everything it is told."""

    def frame_received(self, frame: Frame) -> None:
        super().frame_received(frame)
        raise RuntimeError("clumsy")

    def process_ended(self, exit_: Exit) -> None:
        super().process_ended(exit_)
        raise RuntimeError("clumsy")


async def test_an_owner_that_fails_breaks_neither_the_stream_nor_the_end(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    listener = FailingListener()
    started = await start(listener)
    started.process.send("go", "m1")
    await listener.result()
    assert [type(frame) for frame in listener.frames] == [System, StreamEvent, Conversation, Result]
    assert (await started.process.stop(5.0)).code == 0
    assert started.process.cleaned.is_set()
    assert caplog.text.count("RuntimeError: clumsy") == 5
