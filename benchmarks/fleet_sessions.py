"""`make soak`: many sessions at once over four machines of a fleet, begun at two gateways, which choose the machines.

Each session does a piece of work in a repository of its own and answers. All of them must finish with their own answer,
be listed once at each gateway, and be in the fleet's stores once, with one holder; nothing may be left running.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, tool

from .fleet_checks import Conversation, Said, check_fleet
from .fleet_places import LIMIT, FleetPlaces, MachinePlace, Problem, call, make_repository

_CAPACITY = 4
_AT_ONCE = 20
"""Sessions that clients ask for at the same time: more than fit, so that some wait in the queues."""


class Crowd:
    """The sessions of one run."""

    def __init__(self, fleet: FleetPlaces, root: Path, count: int) -> None:
        self.fleet, self.root, self.count = fleet, root, count
        self.sessions: list[Conversation] = []
        self.seconds: list[float] = []
        self.problems: list[str] = []
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        await asyncio.gather(*(self._session(number) for number in range(self.count)))
        self.problems += await check_fleet(self.fleet, self.sessions)

    async def _session(self, number: int) -> None:
        async with self._room:
            try:
                self.sessions.append(await self._work(number))
            except Problem as problem:
                self.problems.append(str(problem))

    async def _work(self, number: int) -> Conversation:
        directory, word = self.root / f"source-{number}", f"word-{number}"
        await asyncio.to_thread(make_repository, directory)
        gateway = self.fleet.gateways[number % len(self.fleet.gateways)]
        began = time.monotonic()
        prompt = script(word, tool("Bash", command=f"echo {word} > made.txt && cat made.txt"), "has ${tool_result}")
        report = await self._begun(gateway, prompt, str(directory), word)
        while report.get("status") in ("running", "waiting_for_input") and time.monotonic() - began < LIMIT:
            _, report = await call(gateway, "claude_get_status", sessionId=report["sessionId"], waitSeconds=50)
        self.seconds.append(time.monotonic() - began)
        if str(report.get("result")).strip() != f"has {word}":
            raise Problem(f"session {number} has answered {report}")
        if await asyncio.to_thread((directory / "made.txt").read_text) != f"{word}\n":
            raise Problem(f"session {number} has not done its work")
        return Conversation(str(report["sessionId"]), str(directory), str(report["machine"]), [Said(word, True)])

    async def _begun(self, gateway: MachinePlace, prompt: str, directory: str, word: str) -> dict[str, object]:
        """A call that is refused for want of room is repeated, with the same key: it begins one session."""
        deadline = time.monotonic() + LIMIT
        while True:
            done, report = await call(
                gateway,
                "claude_create_session",
                prompt=prompt,
                workingDirectory=directory,
                allowedTools=["Bash"],
                messageKey=word,
                waitSeconds=50,
            )
            if done:
                return report
            if time.monotonic() > deadline:
                raise Problem(f"{word} was refused for ever: {report}")
            await asyncio.sleep(0.5)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200, help="how many (default: 200)")
    options = parser.parse_args(arguments)
    print(
        f"{options.sessions} sessions over four machines, {_AT_ONCE} at a time; load {os.getloadavg()[0]:.0f}",
        flush=True,
    )
    with (
        tempfile.TemporaryDirectory(prefix="sessions-", ignore_cleanup_errors=True) as root,
        ScriptedModelThread(remember=1) as model,
    ):
        fleet = FleetPlaces(Path(root), model.url, 1, capacity=_CAPACITY)
        crowd = Crowd(fleet, Path(root), options.sessions)
        try:
            fleet.start()
            began = time.monotonic()
            asyncio.run(crowd.run())
            taken = time.monotonic() - began
            _print(crowd, taken)
        finally:
            try:
                fleet.stop()
            except Problem as problem:
                crowd.problems.append(str(problem))
    for text in crowd.problems:
        print(f"PROBLEM: {text}", flush=True)
    return 1 if crowd.problems else 0


def _print(crowd: Crowd, taken: float) -> None:
    machines = Counter(session.machine for session in crowd.sessions)
    shown = ", ".join(f"{name} {count}" for name, count in sorted(machines.items()))
    memory = [
        psutil.Process(machine.process.pid).memory_info().rss >> 20
        for machine in crowd.fleet.machines
        if machine.process is not None
    ]
    print(f"{len(crowd.sessions)} of {crowd.count} finished in {taken:.0f} s ({shown}); {len(crowd.problems)} problems")
    if len(crowd.seconds) > 1:
        p95 = statistics.quantiles(crowd.seconds, n=20)[-1]
        middle = statistics.median(crowd.seconds)
        print(
            f"from the call to the answer, with the wait for a machine: median {middle:.1f} s, 95 of 100 in {p95:.1f} s"
        )
    print(f"memory of the machines' own processes: {', '.join(f'{each} MB' for each in memory)}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
