"""The misbehaving CLI does what it is told to, and behaves otherwise."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.misbehaving_cli import install_misbehaving_cli, parse_faults
from tests.support.waiting import HANG_SECONDS

Frame = dict[str, Any]

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and sessions of processes are POSIX")
PROMPT: Frame = {"type": "user", "message": {"role": "user", "content": "go"}}
INITIALIZE: Frame = {"type": "control_request", "request_id": "i", "request": {"subtype": "initialize"}}
INTERRUPT: Frame = {"type": "control_request", "request_id": "x", "request": {"subtype": "interrupt"}}


@pytest.fixture
def cli(tmp_path: Path) -> Path:
    return install_misbehaving_cli(tmp_path / "a b's bin")


@contextmanager
def started(cli: Path, ways: str | Frame, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    chosen = ways if isinstance(ways, str) else json.dumps(ways)
    pipe = subprocess.PIPE
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    environment = {**kept, "MISBEHAVE": chosen}
    with subprocess.Popen([cli, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def send(process: subprocess.Popen[bytes], *frames: Frame) -> None:
    assert process.stdin
    process.stdin.write(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))
    process.stdin.flush()


def receive(process: subprocess.Popen[bytes], kind: str) -> Frame:
    """The next frame of this type."""
    assert process.stdout
    return next(frame for frame in map(json.loads, process.stdout) if frame["type"] == kind)


def lines(cli: Path, ways: str | Frame, *frames: Frame, arguments: tuple[str, ...] = ()) -> tuple[list[bytes], int]:
    """Everything it writes when it gets these frames and then the end of stdin, and its exit code."""
    with started(cli, ways, *arguments) as process:
        written = b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
        output, _ = process.communicate(written, timeout=HANG_SECONDS)
        return output.splitlines(), process.returncode


def types(output: list[bytes]) -> list[str]:
    return [json.loads(line).get("type", "none") for line in output]


def test_misbehaving_cli_behaves_by_default(cli: Path) -> None:
    output, code = lines(cli, "", INITIALIZE, PROMPT, PROMPT, arguments=("--session-id", "s1"))
    turn = ["system", "stream_event", "assistant", "result"]
    assert (types(output), code) == (["control_response", *turn, *turn], 0)
    assert json.loads(output[-1])["session_id"] == "s1"


def test_version_and_help_are_printed(cli: Path) -> None:
    assert "Claude Code" in subprocess.check_output([cli, "--version"], text=True)
    assert "Usage: claude" in subprocess.check_output([cli, "--help"], text=True)


def test_any_arguments_are_taken_and_noted(cli: Path, tmp_path: Path) -> None:
    note = tmp_path / "the argv"
    _, code = lines(cli, {"argv_file": str(note)}, arguments=("-p", "--model", "x", "--nonsense"))
    assert code == 0
    assert json.loads(note.read_text()) == ["-p", "--model", "x", "--nonsense"]


def test_turn_modes_are_words_or_json() -> None:
    assert parse_faults("noise flood=10 crash=SIGSEGV") == {"noise": True, "flood": 10, "crash": "SIGSEGV"}
    assert parse_faults('{"stderr": "two words"}') == {"stderr": "two words"}
    assert parse_faults("") == {}


def test_a_prompt_can_choose_the_way_of_its_turn(cli: Path) -> None:
    message = {"role": "user", "content": 'go MISBEHAVE:{"duplicate_result": true} now'}
    output, _ = lines(cli, "", {"type": "user", "message": message}, PROMPT)
    assert types(output).count("result") == 3


def test_malformed_line_between_valid_lines(cli: Path) -> None:
    output, _ = lines(cli, "malformed_line", PROMPT)
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(output[2])
    assert json.loads(output[-1])["type"] == "result"


def test_frames_are_not_reported_as_noise(cli: Path) -> None:
    output, _ = lines(cli, "noise", PROMPT)
    assert b"plain words" in output
    assert b"" in output
    assert any(line.startswith(b"\xff") for line in output)


@pytest.mark.parametrize(("ways", "size"), [("giant_line=3000000", 3_000_000), ("over_limit_line", 1 << 26)])
def test_giant_lines_have_the_size_asked_for(cli: Path, ways: str, size: int) -> None:
    output, _ = lines(cli, ways, PROMPT)
    assert max(map(len, output)) > size


def test_unknown_frames_are_sent(cli: Path) -> None:
    output, _ = lines(cli, "unknown_frames", PROMPT)
    assert {"telepathy", "none"} <= set(types(output))


def test_question_is_read_after_a_flood_of_output(cli: Path) -> None:
    output, _ = lines(cli, "flood=2500 ask", PROMPT)
    assert types(output).count("stream_event") == 2501
    assert types(output)[-1] == "control_request"


def test_the_answer_to_a_question_ends_the_turn(cli: Path) -> None:
    with started(cli, "ask") as process:
        send(process, PROMPT)
        asked = receive(process, "control_request")
        reply = {"subtype": "success", "request_id": asked["request_id"], "response": {"behavior": "allow"}}
        send(process, {"type": "control_response", "response": reply})
        assert json.loads(receive(process, "result")["result"]) == {"behavior": "allow"}


def test_an_unknown_control_request_waits_for_an_answer(cli: Path) -> None:
    with started(cli, "unknown_control") as process:
        send(process, PROMPT)
        asked = receive(process, "control_request")
        assert asked["request"]["subtype"] == "read_minds"
        refusal = {"subtype": "error", "request_id": asked["request_id"], "error": "cannot"}
        send(process, {"type": "control_response", "response": refusal})
        assert json.loads(receive(process, "result")["result"]) == "cannot"


def test_a_question_can_be_withdrawn(cli: Path) -> None:
    output, _ = lines(cli, "cancel_question", PROMPT)
    asked, withdrawn = (json.loads(line) for line in output[2:4])
    assert (asked["type"], withdrawn["type"]) == ("control_request", "control_cancel_request")
    assert asked["request_id"] == withdrawn["request_id"]
    assert types(output)[-1] == "result"


def test_a_silent_turn_ends_when_interrupted(cli: Path) -> None:
    assert types(lines(cli, "silent", PROMPT)[0]) == ["system", "stream_event"]
    output, _ = lines(cli, "silent", PROMPT, INTERRUPT)
    assert types(output)[-2:] == ["control_response", "result"]
    assert json.loads(output[-1])["subtype"] == "error_during_execution"


def test_late_frames_follow_the_end_of_an_interrupted_turn(cli: Path) -> None:
    output, _ = lines(cli, "silent late_frames", PROMPT, INTERRUPT)
    assert types(output)[-4:] == ["result", "stream_event", "assistant", "result"]


def test_requests_can_stay_without_an_answer(cli: Path) -> None:
    assert lines(cli, "no_init", INITIALIZE) == ([], 0)
    assert "control_response" not in types(lines(cli, "silent ignore_interrupt", PROMPT, INTERRUPT)[0])
    assert types(lines(cli, "no_result", PROMPT)[0]) == ["system", "stream_event"]


def test_initialize_can_be_answered_late_or_with_an_error(cli: Path) -> None:
    output, _ = lines(cli, {"init_error": "not today", "init_delay": 0.01}, INITIALIZE)
    assert json.loads(output[0])["response"]["error"] == "not today"


@pytest.mark.parametrize(
    ("when", "seen"),
    [
        ("start", []),
        ("initialize", []),
        ("first_event", ["control_response", "system", "stream_event"]),
        ("eof", ["control_response", "system", "stream_event", "assistant", "result"]),
    ],
)
def test_misbehaving_cli_crashes_on_request(cli: Path, when: str, seen: list[str]) -> None:
    with started(cli, {"crash": 3, "crash_at": when, "stderr": "out of luck"}) as process:
        written = b"".join(json.dumps(frame).encode() + b"\n" for frame in (INITIALIZE, PROMPT))
        output, problems = process.communicate(written, timeout=HANG_SECONDS)
    assert (types(output.splitlines()), process.returncode) == (seen, 3)
    assert problems == b"out of luck\n"


def test_it_crashes_in_a_question_or_in_the_middle_of_a_line(cli: Path) -> None:
    output, code = lines(cli, "ask crash=4 crash_at=question", PROMPT)
    assert (types(output)[-1], code) == ("control_request", 4)
    output, code = lines(cli, "crash=5 crash_at=mid_line", PROMPT)
    assert (output[-1][:8], code) == (b'{"type":', 5)


@posix
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM"])
def test_it_dies_by_a_signal(cli: Path, name: str) -> None:
    assert lines(cli, f"crash={name}", PROMPT)[1] == -signal.Signals[name]


@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_ends_it_as_it_ends_the_real_one(cli: Path, number: signal.Signals, code: int) -> None:
    with started(cli, "") as process:
        send(process, INITIALIZE)
        receive(process, "control_response")
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == code


@posix
def test_it_lives_on_after_signals_and_the_end_of_stdin(cli: Path) -> None:
    with started(cli, "ignore_signals ignore_eof") as process:
        send(process, INITIALIZE)
        receive(process, "control_response")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.stdin
        process.stdin.close()
        assert process.stderr
        assert process.stderr.readline() == b"stdin has ended, and is ignored\n"
        assert process.poll() is None


@posix
def test_a_child_is_left_behind_in_a_session_of_its_own(cli: Path, tmp_path: Path) -> None:
    note = tmp_path / "child"
    assert lines(cli, {"leave_child": 30, "child_file": str(note)}, PROMPT)[1] == 0
    child = int(note.read_text())
    try:
        assert os.getsid(child) == child
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_slow_reader_takes_its_time_and_loses_nothing(cli: Path) -> None:
    long = {"type": "user", "message": {"role": "user", "content": "x" * 5000}}
    output, code = lines(cli, "slow_reader=0.01", INITIALIZE, long)
    assert (types(output)[-1], code) == ("result", 0)
