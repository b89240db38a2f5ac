"""`make soak`: the shared server is killed at random moments, and nobody who uses it may lose anything by that.

Each round has three clients. One of them creates a session; then the server is killed with SIGKILL in the middle of
calls, in the middle of a turn, with a question open, or while it starts. Afterward every client must be answered, the
session must be resumed by its id and be there once, and when all is stopped no process of the round may be left.
"""

import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from claude_code_mcp.testing.script import script, text, tool

from .common import Place, temporary_place
from .startup import OURS
from .wire import INITIALIZE, INITIALIZED, Wire, encode_message

_LIMIT = 120.0
_CLIENTS = 3
_MOMENTS = ("mid-call", "mid-turn", "question", "starting")
_MARK = "SHARED_SOAK_ROUND"


class _Problem(Exception):
    """What must not have happened."""


class _Client:
    """A client through the front; requests are numbered, and everything else that comes is skipped."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._number = 10
        wire.ask(INITIALIZE)
        wire.send(INITIALIZED)

    def begin(self, name: str, **arguments: Any) -> int:
        self._number += 1
        self._wire.send(encode_message("tools/call", self._number, name=name, arguments=arguments))
        return self._number

    def answer(self, number: int) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self._wire.read())
            if message.get("id") == number and "method" not in message:
                return message

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer = self.answer(self.begin(name, **arguments))
        if "result" not in answer or answer["result"].get("isError"):
            raise _Problem(f"{name} was answered with {json.dumps(answer)[:500]}")
        structured: dict[str, Any] = answer["result"]["structuredContent"]
        return structured


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--seed", type=int, default=None, help="repeats the rounds of an earlier run")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    print(f"{options.rounds} rounds with seed {seed}", flush=True)
    dice, problems = random.Random(seed), 0
    with temporary_place() as place:
        for number in range(options.rounds):
            moment = dice.choice(_MOMENTS)
            try:
                _round(place, number, moment, dice)
            except (_Problem, AssertionError) as problem:
                problems += 1
                print(f"PROBLEM in round {number}, {moment}: {problem}", flush=True)
    print(f"{options.rounds} rounds: {problems} problems", flush=True)
    return 1 if problems else 0


def _round(place: Place, number: int, moment: str, dice: random.Random) -> None:
    runtime = place.sandbox.root / f"run-{number}"
    runtime.mkdir(mode=0o700)
    project = place.sandbox.root / f"project-{number}"
    project.mkdir()
    mark = secrets.token_hex(8)
    environment = {
        **place.environment,
        "LOG_LEVEL": "error",
        "CLAUDE_CODE_MCP_RUNTIME_DIR": str(runtime),
        _MARK: mark,
    }
    try:
        with ExitStack() as stack:
            wires = [stack.enter_context(Wire([*OURS, "--shared"], environment)) for _ in range(_CLIENTS)]
            _use([_Client(wire) for wire in wires], moment, runtime, project, dice)
    finally:
        subprocess.run([*OURS, "shared", "stop", "--all"], env=environment, check=False, stdout=subprocess.DEVNULL)
    _until(lambda: not _marked(mark), "processes are left: ", lambda: str(_marked(mark)))


def _use(clients: list[_Client], moment: str, runtime: Path, project: Path, dice: random.Random) -> None:
    one = clients[0]
    prompts = {
        "mid-call": script("Say.", "Said."),
        "mid-turn": script("Work.", text("word " * 200, chunks=200, interval=0.05)),
        "question": script("Write.", tool("Write", file_path=str(project / "note"), content="x"), "Written."),
        "starting": script("Say.", "Said."),
    }
    if moment == "starting":
        begun = [client.begin("claude_list_sessions") for client in clients]
        _kill(runtime)
        for client, request in zip(clients, begun, strict=True):
            client.answer(request)
    created = one.call("claude_create_session", prompt=prompts[moment], workingDirectory=str(project))
    session = created["sessionId"]
    wanted = {"mid-turn": "running", "question": "waiting_for_input"}.get(moment)
    if wanted:
        while one.call("claude_get_status", sessionId=session, waitSeconds=0 if wanted == "running" else 20)[
            "status"
        ] not in (wanted, "completed"):
            time.sleep(0.05)
    waiting = [client.begin("claude_get_status", sessionId=session, waitSeconds=20) for client in clients]
    time.sleep(dice.random() * 0.5)
    _kill(runtime)
    for client, request in zip(clients, waiting, strict=True):
        if "result" not in (answer := client.answer(request)):
            raise _Problem(f"a reading call was answered with {answer}")
    done = one.call("claude_send_message", sessionId=session, message=script("On.", "Back."), waitSeconds=50)
    if done.get("result") != "Back.":
        raise _Problem(f"the session was not resumed: {done}")
    for client in clients:
        listed = client.call("claude_list_sessions", projectDirectory=str(project))["sessions"]
        if [entry["sessionId"] for entry in listed] != [session]:
            raise _Problem(f"the sessions are {listed}")


def _kill(runtime: Path) -> None:
    """SIGKILL for the one server; returns when nothing of the process is left."""
    _until(lambda: len(_servers(runtime)) == 1, "there is not one server but ", lambda: str(_servers(runtime)))
    (server,) = _servers(runtime)
    os.kill(server.pid, signal.SIGKILL)
    _until(lambda: not _is_alive(server), "the server survives", str)


def _servers(runtime: Path) -> list[psutil.Process]:
    pids = [file.read_text().strip() for file in runtime.glob("*.lock")]
    processes = [psutil.Process(int(pid)) for pid in pids if pid and psutil.pid_exists(int(pid))]
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def _marked(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:200])
        except (psutil.Error, OSError):
            continue
    return found


def _until(reached: Callable[[], bool], problem: str, details: Callable[[], str]) -> None:
    deadline = time.monotonic() + _LIMIT
    while not reached():
        if time.monotonic() > deadline:
            raise _Problem(problem + details())
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
