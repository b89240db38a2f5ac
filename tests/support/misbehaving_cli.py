"""A stand-in for the Claude Code CLI that misbehaves in a chosen way.

Use it only for faults the real CLI will not produce; everything else is better tested with the real one and
a scripted model. It speaks just enough of the stream-json and control protocol to be started, greeted and
given a prompt, and it is one file with no imports but the standard library.

The environment variable MISBEHAVE chooses the faults: names such as `noise` or `flood=10000`, separated by
spaces, or a JSON object such as `{"stderr": "out of luck", "crash": "SIGSEGV"}`. A prompt can add faults for
its own turn: `MISBEHAVE:` followed by a JSON object. With no faults at all it behaves.

At the start
    argv_file=PATH      append the arguments to this file, one JSON array per start
    pid_file=PATH       append the process id to this file
    stderr=TEXT         write this to stderr
    ignore_signals      ignore SIGTERM and SIGINT
    leave_child=S       leave a child behind, in a session of its own, that sleeps S seconds (60)
    child_file=PATH     write the id of that child to this file
    slow_reader=S       wait S seconds (0.1) before each read of at most 1 KiB from stdin

When initialized
    no_init             never answer
    init_delay=S        answer after S seconds
    init_error=TEXT     answer with an error

In a turn, after a first event
    malformed_line      a line of broken JSON
    noise               lines that are not JSON, or not an object, or not UTF-8, or empty
    giant_line=N        an assistant frame with N bytes of text (2 MiB)
    over_limit_line     a line a little longer than 64 MiB
    unknown_frames      frames of types that do not exist
    unknown_control     a control request of a subtype that does not exist; the answer is awaited
    flood=N             N stream events (10000)
    ask                 a `can_use_tool` request; its answer becomes the text of the result
    deep_request=KIND   a request of this subtype with an input nested deeper than Python reads; its answer becomes the
                        text of the result
    cancel_question     a `can_use_tool` request that is withdrawn at once
    silent              nothing more: the turn never ends by itself
    late_frames         after an interrupt, frames of the dead turn and a second result
    duplicate_result    the result twice
    no_result           the turn ends without a result

At any point
    crash=HOW           die with exit code HOW (1), or by the signal HOW (SIGSEGV)
    crash_at=WHEN       start, initialize, first_event, mid_turn (the default), question, mid_line or eof
    ignore_interrupt    never answer an interrupt
    ignore_eof          live on after stdin has been closed
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

Json = dict[str, Any]

VARIABLE = "MISBEHAVE"
VERSION = "2.1.325 (Claude Code)"

_OVER_LIMIT = 64 * 1024 * 1024 + 1024
_NOISE = b'plain words\n\n[1, 2]\n"a string"\nnull\n\xff\xfe not UTF-8\n'
_FOREVER = 86_400.0
_EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 0}


def install_misbehaving_cli(directory: Path) -> Path:
    """Write a launcher into the directory and return its path, to be used as CLAUDE_CODE_PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    program = str(Path(__file__).resolve())
    if sys.platform == "win32":
        return _write_launcher(directory / "claude.cmd", f'@"{sys.executable}" -I "{program}" %*\r\n')
    return _write_launcher(
        directory / "claude", f'#!/bin/sh\nexec {_quoted(sys.executable)} -IS {_quoted(program)} "$@"\n'
    )


def parse_faults(source: str) -> Json:
    """The faults as an object, from `name` and `name=value` separated by spaces, or from JSON."""
    if source.lstrip().startswith("{"):
        return dict(json.loads(source))
    pairs = (setting.partition("=") for setting in source.split())
    return {name: _value(value) if equals else True for name, equals, value in pairs}


def _write_launcher(launcher: Path, content: str) -> Path:
    launcher.write_text(content, encoding="utf-8")
    launcher.chmod(0o755)
    return launcher


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class MisbehavingCli:
    """One run of the program: frames come in on stdin, frames and faults go out on stdout."""

    def __init__(self, arguments: list[str], faults: Json) -> None:
        """`faults` holds for the whole run; a prompt may add to it for one turn."""
        self._arguments = arguments
        self._run_faults = faults
        self._faults = faults
        self._session_id = _option_value(arguments, "--session-id", "--resume", "-r") or str(uuid.uuid4())
        self._turn_open = False
        self._question: str | None = None

    def run(self) -> int:
        """Live until stdin ends or a fault ends it; returns the exit code."""
        self._start()
        for line in self._lines():
            self._handle_frame(json.loads(line))
        self._crash_if("eof")
        if self._has("ignore_eof"):
            sys.stderr.write("stdin has ended, and is ignored\n")
            sys.stderr.flush()
            _sleep(_FOREVER)
        return 0

    def _start(self) -> None:
        ignoring = self._has("ignore_signals")
        for number, code in _EXIT_CODES.items():
            signal.signal(number, signal.SIG_IGN if ignoring else _exit_with(code))
        self._append_to("argv_file", json.dumps(self._arguments))
        self._append_to("pid_file", str(os.getpid()))
        if self._has("leave_child"):
            self._leave_child(self._number("leave_child", 60))
        if self._has("stderr"):
            sys.stderr.write(f"{self._faults['stderr']}\n")
            sys.stderr.flush()
        self._crash_if("start")

    def _append_to(self, setting: str, line: str) -> None:
        """Appends to the file that a setting names, if it is set."""
        if self._has(setting):
            with Path(self._faults[setting]).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _leave_child(self, seconds: float) -> None:
        nothing = subprocess.DEVNULL
        sleep = [sys.executable, "-ISc", f"import time; time.sleep({seconds})"]
        child = subprocess.Popen(sleep, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
        child.returncode = 0  # it is meant to be left behind: no warning about it
        self._append_to("child_file", str(child.pid))

    def _lines(self) -> Iterator[bytes]:
        if not self._has("slow_reader"):
            yield from sys.stdin.buffer
            return
        rest = b""
        while data := self._read_slowly():
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    def _read_slowly(self) -> bytes:
        time.sleep(self._number("slow_reader", 0.1))
        return os.read(sys.stdin.fileno(), 1024)

    def _handle_frame(self, frame: Json) -> None:
        match frame.get("type"):
            case "control_request":
                self._handle_control(frame["request_id"], frame["request"])
            case "control_response":
                self._handle_answer(frame["response"])
            case "user":
                self._run_turn(frame["message"]["content"])

    def _handle_control(self, request_id: str, request: Json) -> None:
        match request.get("subtype"):
            case "initialize":
                self._initialize(request_id)
            case "interrupt":
                self._interrupt(request_id)
            case _:
                self._reply(request_id, {})

    def _initialize(self, request_id: str) -> None:
        self._crash_if("initialize")
        if self._has("no_init"):
            return
        time.sleep(self._number("init_delay", 0))
        if self._has("init_error"):
            error = {"subtype": "error", "request_id": request_id, "error": str(self._faults["init_error"])}
            self._write({"type": "control_response", "response": error})
        else:
            self._reply(request_id, {"commands": [], "models": [], "agents": [], "account": {}})

    def _interrupt(self, request_id: str) -> None:
        if self._has("ignore_interrupt"):
            return
        self._reply(request_id, {})
        if not self._turn_open:
            return
        self._end_turn("error_during_execution", "", terminal_reason="aborted_streaming")
        if self._has("late_frames"):
            self._write_event("late words of a dead turn")
            self._write_message("late words of a dead turn")
            self._write_result("success", "late result")

    def _run_turn(self, content: Any) -> None:
        prompt = content if isinstance(content, str) else json.dumps(content)
        _, marker, source = prompt.partition(f"{VARIABLE}:")
        added = json.JSONDecoder().raw_decode(source.lstrip())[0] if marker else {}
        self._faults = {**self._run_faults, **added}
        self._turn_open = True
        self._write({"type": "system", "subtype": "init", "cwd": str(Path.cwd()), "tools": [], "mcp_servers": []})
        self._write_event("first words")
        self._crash_if("first_event")
        self._misbehave()

    def _misbehave(self) -> None:
        for fault, act in self._turn_faults():
            if self._has(fault):
                act()
        self._crash_if("mid_turn")
        if not (self._question or self._has("silent") or self._has("no_result")):
            self._end_turn("success", "done")

    def _turn_faults(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "malformed_line", lambda: self._write_bytes(b'{"type": "assistant", "message": broken\n')
        yield "noise", lambda: self._write_bytes(_NOISE)
        yield "giant_line", lambda: self._write_message("x" * int(self._number("giant_line", 2 * 1024 * 1024)))
        yield "over_limit_line", lambda: self._write_message("x" * _OVER_LIMIT)
        yield "unknown_frames", self._unknown_frames
        yield "flood", lambda: self._flood(int(self._number("flood", 10_000)))
        yield "unknown_control", lambda: self._ask({"subtype": "read_minds", "depth": 3})
        yield "ask", self._ask_permission
        yield "deep_request", lambda: self._ask_deeply(str(self._faults["deep_request"]))
        yield "cancel_question", self._ask_and_withdraw

    def _unknown_frames(self) -> None:
        self._write({"type": "telepathy", "thought": {"deep": [1, 2, 3]}})
        self._write({"type": "system", "subtype": "weather", "rain": True})
        self._write_bytes(b'{"no_type_at_all": 1}\n')

    def _flood(self, count: int) -> None:
        line = self._line(self._event_frame("some words of text "))
        for start in range(0, count, 1000):
            self._write_bytes(line * min(1000, count - start))

    def _ask_permission(self) -> None:
        arguments = {"command": "echo hello"}
        tool = {"tool_name": "Bash", "input": arguments, "tool_use_id": f"toolu_{uuid.uuid4().hex[:24]}"}
        self._ask({"subtype": "can_use_tool", **tool, "permission_suggestions": []})

    def _ask_deeply(self, kind: str) -> None:
        self._question = str(uuid.uuid4())
        request = {"subtype": kind, "callback_id": "policy", "input": {"tool_name": "Bash", "tool_input": {"deep": 0}}}
        line = self._line({"type": "control_request", "request_id": self._question, "request": request})
        self._write_bytes(line.replace(b"0}", b"[" * 10_000 + b"]" * 10_000 + b"}"))

    def _ask_and_withdraw(self) -> None:
        self._ask_permission()
        self._write({"type": "control_cancel_request", "request_id": self._question})
        self._question = None

    def _ask(self, request: Json) -> None:
        self._question = str(uuid.uuid4())
        self._write({"type": "control_request", "request_id": self._question, "request": request})
        self._crash_if("question")

    def _handle_answer(self, response: Json) -> None:
        if response.get("request_id") == self._question and self._turn_open:
            self._end_turn("success", json.dumps(response.get("response", response.get("error"))))

    def _end_turn(self, subtype: str, text: str, **more: Any) -> None:
        self._turn_open, self._question = False, None
        if subtype == "success":
            self._write_message(text)
        self._write_result(subtype, text, **more)
        if self._has("duplicate_result"):
            self._write_result(subtype, text, **more)

    def _write_result(self, subtype: str, text: str, **more: Any) -> None:
        usage = {"input_tokens": 100, "output_tokens": 1}
        numbers = {
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": 1,
            "total_cost_usd": 0.0,
            "usage": usage,
        }
        head = {"type": "result", "subtype": subtype, "is_error": subtype != "success", "result": text}
        self._write({**head, **numbers, **more})

    def _write_event(self, text: str) -> None:
        self._write(self._event_frame(text))

    def _event_frame(self, text: str) -> Json:
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        return {"type": "stream_event", "event": delta, "parent_tool_use_id": None}

    def _write_message(self, text: str) -> None:
        message = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": "none",
        }
        content = {"content": [{"type": "text", "text": text}]}
        self._write({"type": "assistant", "message": {**message, **content}, "parent_tool_use_id": None})

    def _reply(self, request_id: str, response: Json) -> None:
        success = {"subtype": "success", "request_id": request_id, "response": response}
        self._write({"type": "control_response", "response": success})

    def _write(self, frame: Json) -> None:
        self._write_bytes(self._line(frame))

    def _line(self, frame: Json) -> bytes:
        is_control = frame["type"].startswith("control_")
        identity = {} if is_control else {"session_id": self._session_id, "uuid": str(uuid.uuid4())}
        return json.dumps({**frame, **identity}).encode() + b"\n"

    def _write_bytes(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def _has(self, name: str) -> bool:
        return bool(self._faults.get(name))

    def _number(self, name: str, default: float) -> float:
        value = self._faults.get(name, default)
        return default if value is True else float(value)

    def _crash_if(self, when: str) -> None:
        chosen = self._faults.get("crash_at", "mid_turn")
        if "crash" not in self._faults or when != ("mid_turn" if chosen == "mid_line" else chosen):
            return
        if chosen == "mid_line":
            self._write_bytes(b'{"type": "assistant", "message": {"role": "assi')
        _die(self._faults["crash"])


def _exit_with(code: int) -> Callable[[int, object], NoReturn]:
    return lambda _number, _frame: os._exit(code)


def _die(how: Any) -> NoReturn:
    if isinstance(how, str):
        _die_by(signal.Signals[how])
    os._exit(int(how))


def _die_by(number: signal.Signals) -> NoReturn:
    if number in _EXIT_CODES:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(_FOREVER)
    raise AssertionError(number)


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(end - time.monotonic())


def _option_value(arguments: list[str], *names: str) -> str | None:
    """The value of the first of these options, written as `--name value` or `--name=value`."""
    joined = (argument.partition("=") for argument in arguments)
    pairs = [*itertools.pairwise(arguments), *((name, value) for name, equals, value in joined if equals)]
    return next((value for wanted in names for name, value in pairs if name == wanted), None)


def main(arguments: list[str]) -> int:
    """Be the CLI."""
    if "--version" in arguments or "-v" in arguments:
        sys.stdout.write(f"{VERSION}\n")
        return 0
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write("Usage: claude [options] [command] [prompt]\n\nOptions:\n  -p, --print\n")
        return 0
    return MisbehavingCli(arguments, parse_faults(os.environ.get(VARIABLE, ""))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
