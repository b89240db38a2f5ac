"""`make soak`: the server, the CLI or both are killed at random moments, and nothing that the CLI started may be left.

Each round makes a session on the real stdio server, with a stand-in for the CLI that leaves processes behind in every
way that has been seen to escape: in a session of their own, immune to hang-ups, without an environment, with their
title and environment overwritten. Then one end is chosen, and five seconds later no process may be left whose
directory is that of the round, nor a supervisor or keeper of a server that is gone.
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
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil

from claude_code_mcp.testing import misbehaving_cli

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

    def __init__(self, root: Path, generator: random.Random) -> None:
        self._root = root
        self._random = generator
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
            for process in _inside(directory):
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
        while found := self._left(server if self._server is None else None, directory):
            if time.perf_counter() - began > _LIMIT:
                outcome.problem = f"left running: {[_described(process) for process in found]}"
                return
            await asyncio.sleep(0.01)
        outcome.seconds = time.perf_counter() - began

    def _left(self, ended: Server | None, directory: Path) -> list[psutil.Process]:
        containers = ended.containers if ended is not None else ()
        return [*_inside(directory), *(process for process in containers if _runs(process))]

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


async def run_rounds(count: int, seconds: float, seed: int) -> list[Round]:
    """So many rounds, or as many as fit into so many seconds."""
    until = time.monotonic() + seconds
    numbers = iter(range(count))
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="containment-", ignore_cleanup_errors=True) as name:
        root = Path(os.path.realpath(name))  # noqa: ASYNC240 - nothing else runs yet
        (root / "overwrite.py").write_text(_OVERWRITE)
        (root / "claude").write_text(_STAND_IN)
        (root / "claude").chmod(0o755)

        async def work(lane: Lane) -> None:
            for number in numbers:
                if time.monotonic() > until:
                    break
                rounds.append(await lane.run(number))
                if rounds[-1].problem:
                    print(f"PROBLEM: {rounds[-1].end}, {', '.join(rounds[-1].left)}: {rounds[-1].problem}", flush=True)
            await lane.close()

        await asyncio.gather(*(work(Lane(root, random.Random(f"{seed}/{lane}"))) for lane in range(_LANES)))
    return rounds


def _report(rounds: Sequence[Round], seconds: float) -> None:
    print(f"{'':28}{'rounds':>8}{'left behind':>13}{'gone after (median, most)':>28}{'problems':>10}")
    for end in (*End, None):
        chosen = [round_ for round_ in rounds if end is None or round_.end is end]
        times = sorted(round_.seconds for round_ in chosen if not round_.problem) or [0.0]
        gone = f"{times[len(times) // 2] * 1000:.0f} ms, {times[-1] * 1000:.0f} ms"
        left = sum(len(round_.left) for round_ in chosen)
        print(
            f"{end or 'all':28}{len(chosen):>8}{left:>13}{gone:>28}{sum(bool(round_.problem) for round_ in chosen):>10}"
        )
    print(f"{seconds:.0f} s")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.containment", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no round after this time (default: 600)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats an earlier choice")
    options = parser.parse_args(arguments)
    if sys.platform != "linux":
        print("only Linux has the containment that is tried here")
        return 0
    print(f"{options.rounds} rounds of containment with seed {options.seed}", flush=True)
    began = time.perf_counter()
    rounds = asyncio.run(run_rounds(options.rounds, options.seconds, options.seed))
    _report(rounds, time.perf_counter() - began)
    return 1 if any(round_.problem for round_ in rounds) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
