"""`make soak`: the server, the CLI or both are killed at random moments, and nothing that the CLI started may be left.

Each round makes a session on the real stdio server, with a stand-in for the CLI that leaves processes behind in every
way that has been seen to escape: in a session of their own, immune to hang-ups, without an environment, with their
title and environment overwritten, in another directory. Then one end is chosen, and five seconds later nothing may be
left, with no later start that would sweep.

The rounds run in PID namespaces of their own, in which there is nothing but these rounds: whatever is there beside the
round's own server was left behind, whatever it is called and wherever it works. Where namespaces are not allowed, only
processes in the directory of the round count, and the report says so.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path

import psutil

from tests.support import misbehaving_cli

from .wire import INITIALIZE, INITIALIZED, encode_message

_LIMIT = 5.0
"""Seconds after which nothing may be left."""
_START_TIMEOUT = 60.0
_LANES = 2
"""Rounds at the same time."""

LEAVE = {
    "in the background": "sleep 600 &",
    "setsid": "setsid sleep 600 &",
    "nohup": "nohup sleep 600 >/dev/null 2>&1 &",
    "env -i": "(env -i setsid /bin/sleep 600 &)",
    "orphaned twice": "((setsid sleep 600 &) &)",
    "stopped": "setsid sh -c 'kill -STOP $$; sleep 600' &",
    "deaf to SIGTERM": "setsid sh -c \"trap '' TERM HUP INT; while :; do sleep 1; done\" &",
    "title overwritten": f"setsid {sys.executable} -IS ../overwrite.py &",
    "in another directory": "(cd / && exec setsid sleep 600 <&- >&- 2>&- &)",
    "in a namespace": "unshare --pid --fork sleep 600 2>/dev/null &",
}
"""Shell commands that each leave a process behind."""

_OVERWRITE = """\
import ctypes, time
with open("/proc/self/stat", "rb") as file:
    start, end, environment, environment_end = map(int, file.read().rpartition(b")")[2].split()[45:49])
ctypes.memset(start, 120, end - start - 1)
ctypes.memset(environment, 0, environment_end - environment)
ctypes.CDLL(None).prctl(15, b"kworker/0:1", 0, 0, 0)
time.sleep(600)
"""

_STAND_IN = f"""\
#!/bin/sh
mkdir begun 2>/dev/null || exit 1  # a second process for the same message has nothing to leave
. ./leave.sh
echo $$ > pid.new && mv pid.new pid
exec '{sys.executable}' -IS '{misbehaving_cli.__file__}' "$@"
"""


class End(StrEnum):
    """How a round ends."""

    CLI = "CLI killed"
    STOPPED_CLI = "stopped CLI killed"
    KEEPER = "keeper killed"
    SERVER = "server killed"
    BOTH = "server and CLI killed"
    STOPPED = "server killed, CLI stopped"
    WITH_KEEPER = "server and keeper killed"
    STARTING = "server killed in a start"
    TERMINATED = "server terminated"
    CLIENT = "client gone"


_SERVER_LIVES = (End.CLI, End.STOPPED_CLI, End.KEEPER)


@dataclass(slots=True)
class Round:
    """One round and what came of it."""

    end: End
    left: Sequence[str]
    seconds: float = 0.0
    problem: str = ""


@dataclass(slots=True)
class Server:
    """The real server on pipes, in a directory of its own."""

    process: asyncio.subprocess.Process
    calls: int = 1
    containers: set[psutil.Process] = field(default_factory=set)
    """Its supervisor and keepers, as far as they were seen."""

    @classmethod
    async def start(cls, root: Path) -> "Server":
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "CLAUDE_CODE_PATH": str(root / "claude"),
            "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
            "MAX_SESSIONS": "1000",
            "LOG_LEVEL": "error",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "claude_code_mcp",
            cwd=root,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 24,
        )
        server = cls(process)
        server.write(INITIALIZE + INITIALIZED)
        assert process.stdout is not None
        await process.stdout.readline()
        return server

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    async def create_session(self, directory: Path) -> None:
        """Has a session begin a turn that does not end by itself."""
        self.calls += 1
        arguments = {"prompt": 'MISBEHAVE:{"silent": true}', "workingDirectory": str(directory)}
        self.write(encode_message("tools/call", self.calls, name="claude_create_session", arguments=arguments))
        assert self.process.stdout is not None
        while True:
            answer = json.loads(await self.process.stdout.readline())
            if answer.get("id") == self.calls:
                if answer.get("result", {}).get("isError", True):
                    raise RuntimeError(f"no session: {answer}")
                return

    async def ended(self) -> None:
        await asyncio.wait_for(self.process.communicate(), _START_TIMEOUT)


class Lane:
    """One round after the other; a server is used again until a round has ended it."""

    def __init__(self, root: Path, generator: random.Random, alone: bool) -> None:
        self._root = root
        self._random = generator
        self._alone = alone
        self._server: Server | None = None

    async def run(self, number: int) -> Round:
        end = self._random.choice(self._random.choice([_SERVER_LIVES, list(End)]))
        left = self._random.sample(sorted(LEAVE), self._random.randint(1, len(LEAVE)))
        directory = self._root / f"round{number}"
        directory.mkdir()
        (directory / "leave.sh").write_text("".join(f"{LEAVE[name]}\n" for name in left))
        outcome = Round(end, left)
        try:
            async with asyncio.timeout(2 * _START_TIMEOUT):
                await self._run(outcome, directory)
        except Exception as error:
            outcome.problem = f"{type(error).__name__}: {error}"
        finally:
            for process in self._left(self._server, directory):
                process.kill()
            shutil.rmtree(directory, ignore_errors=True)
        return outcome

    async def _run(self, outcome: Round, directory: Path) -> None:
        if self._server is None:
            self._server = await Server.start(self._root)
        server = self._server
        await server.create_session(directory)
        if outcome.end is End.STARTING:
            await asyncio.sleep(self._random.uniform(0, 0.3))
            server.process.kill()
        else:
            cli = psutil.Process(await _pid_in(str(directory / "pid")))
            keeper = psutil.Process(cli.ppid())
            server.containers |= {keeper, psutil.Process(keeper.ppid())}
            await asyncio.sleep(self._random.choice([0, self._random.uniform(0, 0.3)]))
            self._end(outcome.end, server, cli, keeper)
        if outcome.end not in _SERVER_LIVES:
            self._server = None
            await server.ended()
        await self._watch(outcome, server, directory)

    def _end(self, end: End, server: Server, cli: psutil.Process, keeper: psutil.Process) -> None:
        if end in (End.STOPPED, End.STOPPED_CLI):
            cli.suspend()
        if end is End.TERMINATED:
            server.process.send_signal(signal.SIGTERM)
        elif end is End.CLIENT:
            assert server.process.stdin is not None
            server.process.stdin.close()
        victims = []
        if end in (End.CLI, End.STOPPED_CLI, End.BOTH):
            victims.append(cli.kill)
        if end in (End.KEEPER, End.WITH_KEEPER):
            victims.append(keeper.kill)
        if end in (End.SERVER, End.BOTH, End.STOPPED, End.WITH_KEEPER):
            victims.append(server.process.kill)
        for kill in self._random.sample(victims, len(victims)):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with the other
                kill()

    async def _watch(self, outcome: Round, server: Server, directory: Path) -> None:
        """Waits until nothing is left, which is a problem if it takes too long."""
        began = time.perf_counter()
        while found := self._left(server, directory):
            if time.perf_counter() - began > _LIMIT:
                outcome.problem = f"left running: {[_described(process) for process in found]}"
                return
            await asyncio.sleep(0.01)
        outcome.seconds = time.perf_counter() - began

    def _left(self, server: Server | None, directory: Path) -> list[psutil.Process]:
        """What runs and should not: in a namespace of our own, everything but the server, if it should live."""
        lives = self._server is not None
        if self._alone:
            spared = {os.getpid()} | (self._living(server) if lives and server is not None else set())
            return [process for process in psutil.process_iter() if process.pid not in spared and _runs(process)]
        containers = server.containers if server is not None and not lives else ()
        return [*_inside(directory), *(process for process in containers if _runs(process))]

    def _living(self, server: Server) -> set[int]:
        """The server and its supervisor: the keepers end with what they keep."""
        supervisors = {process.pid for process in server.containers if process.is_running()}
        with contextlib.suppress(psutil.Error):
            children = {child.pid for child in psutil.Process(server.process.pid).children()}
            return {server.process.pid} | (supervisors & children)
        return set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.process.kill()
            await self._server.ended()


async def _pid_in(path: str) -> int:
    async with asyncio.timeout(_START_TIMEOUT):
        while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240 - written by a process that is not ours
            await asyncio.sleep(0.005)
    with open(path) as file:  # noqa: ASYNC230 - a few bytes
        return int(file.read())


def _inside(directory: Path) -> list[psutil.Process]:
    """The processes that work in this directory: whatever they did to their name and environment, they are there."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == str(directory):
                found.append(psutil.Process(int(name)))
        except (OSError, psutil.Error):
            continue
    return found


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:60]} ({process.status()})"
    except psutil.Error:
        return str(process.pid)


async def run_rounds(lane: int, options: argparse.Namespace, report: Callable[[Round], None]) -> None:
    """The rounds of one lane, or as many of them as fit into the time."""
    until = time.monotonic() + options.seconds
    alone = len(psutil.pids()) == 1
    with tempfile.TemporaryDirectory(prefix="containment-", ignore_cleanup_errors=True) as name:
        root = Path(os.path.realpath(name))  # noqa: ASYNC240 - nothing else runs yet
        (root / "overwrite.py").write_text(_OVERWRITE)
        (root / "claude").write_text(_STAND_IN)
        (root / "claude").chmod(0o755)
        rounds = Lane(root, random.Random(f"{options.seed}/{lane}"), alone)
        for number in range(lane, options.rounds, _LANES):
            if time.monotonic() > until:
                break
            report(await rounds.run(number))
        await rounds.close()


def _lane(lane: int, arguments: Sequence[str]) -> Iterator[Round]:
    """Runs one lane in a PID namespace of its own, if there can be one."""
    own = [sys.executable, "-m", "benchmarks.containment", *arguments, "--lane", str(lane)]
    with subprocess.Popen([*_namespace(), *own], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            fields = json.loads(line)
            yield Round(End(fields.pop("end")), **fields)


@cache
def _namespace() -> tuple[str, ...]:
    """The command that starts another in a PID namespace of its own; empty where that is not allowed."""
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    for found in (command, (command[0], "--user", "--map-root-user", *command[1:])):
        with contextlib.suppress(OSError):
            if subprocess.run([*found, "true"], capture_output=True, check=False).returncode == 0:
                return found
    return ()


def _row(name: str, rounds: Sequence[Round]) -> str:
    times = sorted(round_.seconds for round_ in rounds if not round_.problem) or [0.0]
    gone = f"{times[len(times) // 2] * 1000:.0f} ms, {times[-1] * 1000:.0f} ms"
    return f"| {name} | {len(rounds)} | {gone} | {sum(bool(round_.problem) for round_ in rounds)} |"


def _report(rounds: Sequence[Round]) -> None:
    print("| how it ended | rounds | all gone after (median, most) | rounds with anything left after 5 s |")
    print("| --- | --- | --- | --- |")
    for end in End:
        print(_row(end, [round_ for round_ in rounds if round_.end is end]))
    for name in LEAVE:
        print(_row(f"with a process left: {name}", [round_ for round_ in rounds if name in round_.left]))
    print(_row("all", rounds))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.containment", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no round after this time (default: 600)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats an earlier choice")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.lane is not None:
        asyncio.run(run_rounds(options.lane, options, lambda round_: print(json.dumps(asdict(round_)), flush=True)))
        return 0
    if sys.platform != "linux":
        print("only Linux has the containment that is tried here")
        return 0
    where = "PID namespaces of their own" if _namespace() else "this PID namespace, as others are not allowed"
    print(f"{options.rounds} rounds of containment with seed {options.seed}, in {where}", flush=True)
    began = time.perf_counter()
    given = ["--rounds", str(options.rounds), "--seconds", str(options.seconds), "--seed", str(options.seed)]
    rounds: list[Round] = []

    def work(lane: int) -> None:
        for round_ in _lane(lane, given):
            rounds.append(round_)
            if round_.problem:
                print(f"PROBLEM: {round_.end}, {', '.join(round_.left)}: {round_.problem}", flush=True)

    with ThreadPoolExecutor(_LANES) as lanes:
        list(lanes.map(work, range(_LANES)))
    _report(rounds)
    print(f"{len(rounds)} of {options.rounds} rounds in {time.perf_counter() - began:.0f} s")
    return 1 if not rounds or any(round_.problem for round_ in rounds) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
