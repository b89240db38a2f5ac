"""`make soak`: the parts of a fleet are killed, frozen and cut off at random moments, and no session may lose anything.

Four machines run as processes with separate homes, two of them with a gateway, on one NATS server or three. In each
round one session has just worked, one is at work and one waits for an answer; then a machine, a gateway or a NATS
server is killed, a machine or a gateway is frozen for longer than a lease, a machine loses all its data but its key,
its line to NATS is cut, its disk is full, or something is killed while a session is moved. The clients go on: they
repeat what was refused, with the same key, at whichever gateway answers. Afterward everything is started again, and
what the fleet has stored is checked (`fleet_checks.py`).
"""

import argparse
import asyncio
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, script, text, tool

from .fleet_checks import Conversation, Said, check_fleet, tree_of
from .fleet_places import LIMIT, FleetPlaces, MachinePlace, Problem, call, make_repository

_SESSIONS = 4
_FROZEN_SECONDS = 11.0
"""Longer than the lease of a machine and the time in which it has the first claim."""
_LOST_SECONDS = 30.0
"""After which a machine has found out what it has lost."""
_NOT_KEPT = ("not_saved",)
"""Codes of turns of which a client is told that they will not be remembered."""


class Round:
    """One round: what is done to three sessions, and what happens meanwhile."""

    def __init__(
        self, fleet: FleetPlaces, sessions: list[Conversation], root: Path, number: int, seed: int, fault: str | None
    ) -> None:
        self.fleet, self.root, self.number = fleet, root, number
        self.dice = random.Random(f"{seed}-{number}")
        self.fault = self.dice.choice([*FAULTS])  # also if another one is wanted: the rest stays as it was
        self.fault = fault or self.fault
        self.worked, self.at_work, self.asking = self.dice.sample(sessions, 3)
        self.end = root / f"end-{number}"
        self.words = self.older_trees = 0
        self.note = ""

    async def run(self) -> None:
        await self._prepare()
        await FAULTS[self.fault](self)
        await self._heal()
        await self._answer_what_is_open()
        for session in (self.worked, self.at_work, self.asking):
            # A machine that was back soon says itself that a turn was cut short. Asked until it answers: the message
            # that follows would begin another turn.
            report = await self._status(session)
            session.losses += report.get("status") in ("interrupted", "error")
            await self.say(session, "final")

    def word(self, kind: str) -> str:
        self.words += 1
        return f"{kind}-{self.number}-{self.words}"

    # -- what clients do ----------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        if self.worked.tree:
            # Its machine may have lost it since: then the tree is compared before it is changed again.
            await self.say(self.worked, "before")
        content = secrets.token_hex(8)
        command = f"echo {content} > made-{self.number}.txt && echo {content} >> a.txt && git add a.txt"
        await self.say(self.worked, "work", tool("Bash", command=command))
        self.worked.tree = tree_of(self.worked.cwd)
        self.asking.question = await self._ask(self.asking)
        await self._begin(self.at_work, text("word " * 20, chunks=20, until=str(self.end)))

    async def say(self, session: Conversation, kind: str, *steps: Any) -> None:
        """A message and its answer. It is repeated until it is done, with one key, so that it counts once."""
        word = self.word(kind)
        pwd = tool("Bash", command="pwd")
        said = Said(word)
        session.said.append(said)
        report = await self.until_accepted(
            "claude_send_message",
            sessionId=session.id,
            message=script(word, *steps, pwd, "at ${tool_result}"),
            messageKey=word,
            waitSeconds=50,
        )
        said.acknowledged = True
        session.losses += "lostTurn" in report
        told_older = "olderTree" in report
        while report.get("status") in ("running", "waiting_for_input"):
            report = await self.until_accepted("claude_get_status", sessionId=session.id, waitSeconds=50)
        if (report.get("error") or {}).get("code") in _NOT_KEPT:
            said.acknowledged = False  # it was told that it does not count
            return
        result = str(report.get("result"))
        if result.startswith("at Exit code 1\nDisk full") and self.fault == "fill a disk":
            return  # Claude Code's own answer for a command that has no room for its output: the message was read
        if not result.startswith("at /"):
            raise Problem(f"{word} of session {session.id} was answered with {report}")
        before, session.cwd = session.cwd, result.removeprefix("at ").strip()
        session.machine = str(report.get("machine"))
        if session.tree and before != session.cwd and session is self.worked and tree_of(session.cwd) != session.tree:
            if told_older:
                session.tree, self.older_trees = "", self.older_trees + 1
                return
            raise Problem(f"the tree of session {session.id} in {session.cwd} is not that of {before}")

    async def _begin(self, session: Conversation, *steps: Any) -> None:
        said = Said(self.word("begin"))
        session.said.append(said)
        await self.until_accepted(
            "claude_send_message", sessionId=session.id, message=script(said.word, *steps), messageKey=said.word
        )
        said.acknowledged = True

    async def _ask(self, session: Conversation) -> str:
        await self._begin(session, ask_user("Which color?", "red", "blue"), "thanks")
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            report = await self.until_accepted("claude_get_status", sessionId=session.id, waitSeconds=20)
            if report.get("pendingInputs"):
                return str(report["pendingInputs"][0]["inputId"])
        raise Problem(f"session {session.id} does not ask: {report}")

    async def answer(self) -> None:
        """Both gateways are sent an answer at once; at most one of them counts."""
        answers = await asyncio.gather(
            *(
                call(
                    gateway,
                    "claude_respond",
                    sessionId=self.asking.id,
                    inputId=self.asking.question,
                    decision="allow",
                    answers=["blue"],
                )
                for gateway in self.fleet.gateways
            )
        )
        accepted = [result for done, result in answers if done]
        if len(accepted) > 1:
            raise Problem(f"a question of session {self.asking.id} was answered twice: {accepted}")
        self.asking.answered += len(accepted)

    async def _answer_what_is_open(self) -> None:
        """Nobody was reached perhaps: then the question still waits, or its turn was lost."""
        while True:
            report = await self._status(self.asking)
            if not any(each["inputId"] == self.asking.question for each in report.get("pendingInputs") or ()):
                return
            await self.answer()

    async def until_accepted(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call that is repeated, at the gateways in turn, while it is refused."""
        deadline = time.monotonic() + LIMIT
        gateways = self.fleet.gateways
        self.dice.shuffle(gateways)
        attempt = 0
        while True:
            done, result = await call(gateways[attempt % len(gateways)], name, **arguments)
            if done:
                return result
            attempt += 1
            if time.monotonic() > deadline:
                raise Problem(f"{name} is refused for ever: {result}")
            await asyncio.sleep(0.3)

    async def _status(self, session: Conversation) -> dict[str, Any]:
        """The report of a session; an empty one if its machine has lost it: then its next message goes on with it."""
        if self.fault != "lose a machine's data":
            return await self.until_accepted("claude_get_status", sessionId=session.id)
        deadline = time.monotonic() + _LOST_SECONDS
        while time.monotonic() < deadline:
            done, report = await call(self.fleet.gateways[0], "claude_get_status", sessionId=session.id)
            if done:
                return report
            await asyncio.sleep(0.3)
        return {}

    # -- what happens meanwhile ---------------------------------------------------------------------------------

    async def _use(self) -> None:
        """What clients do while something is broken."""
        self.end.touch()
        await asyncio.gather(self.answer(), self.say(self.worked, "meanwhile"))

    async def _heal(self) -> None:
        self.end.touch()
        for machine in self.fleet.machines:
            if machine.process is None:
                machine.start()
        for machine in self.fleet.machines:
            await asyncio.to_thread(machine.wait_until_ready)

    async def _kill(self, victims: Sequence[MachinePlace]) -> None:
        victim = self.dice.choice([*victims])
        self.note = victim.name
        await asyncio.sleep(self.dice.random())
        victim.kill()
        if self.dice.random() < 0.5:
            await asyncio.sleep(self.dice.uniform(0, 4))
            victim.start()
        await self._use()

    async def kill_runner(self) -> None:
        await self._kill([machine for machine in self.fleet.machines if machine.port is None])

    async def kill_gateway(self) -> None:
        await self._kill(self.fleet.gateways)

    async def kill_server(self) -> None:
        server = self.dice.choice(self.fleet.servers)
        self.note = server.url
        await asyncio.sleep(self.dice.random())
        server.kill()
        using = asyncio.ensure_future(self._use())
        await asyncio.sleep(self.dice.uniform(0, 10))
        server.start()
        await using

    async def lose_data(self) -> None:
        victim = self._one_at_work()
        self.note = victim.name
        await asyncio.sleep(self.dice.random())
        victim.kill()
        await asyncio.to_thread(victim.remove_data)
        if self.dice.random() < 0.5:
            victim.start()
        await self._use()

    async def freeze(self) -> None:
        await self._freeze(self._one_at_work())

    async def freeze_gateway(self) -> None:
        await self._freeze(self.dice.choice(self.fleet.gateways))

    async def _freeze(self, victim: MachinePlace) -> None:
        self.note = victim.name
        victim.freeze(signal.SIGSTOP)
        try:
            using = asyncio.ensure_future(self._use())
            await asyncio.sleep(_FROZEN_SECONDS)
        finally:
            victim.freeze(signal.SIGCONT)
        await using

    async def cut(self) -> None:
        victim = self._one_at_work()
        self.note = victim.name
        # Sometimes back before its lease ends, mostly after others may have taken what it has.
        seconds, reset = self.dice.choice([2.0, 4.5, _FROZEN_SECONDS, _FROZEN_SECONDS]), self.dice.random() < 0.5
        self.note = f"{victim.name} for {seconds:g} s{', then reset' if reset else ''}"
        victim.line.cut()
        try:
            using = asyncio.ensure_future(self._use())
            await asyncio.sleep(seconds)
        finally:
            victim.line.heal(reset=reset)
        await using

    async def fill_disk(self) -> None:
        victim = self._one_at_work()
        self.note = victim.name
        if not victim.mounted:
            self.note += ", which has no disk of its own: nothing was done"
            return
        await asyncio.to_thread(victim.fill_disk)
        try:
            using = asyncio.ensure_future(self._use())
            await asyncio.sleep(self.dice.uniform(2, 10))
        finally:
            victim.free_disk()
        await using

    def _one_at_work(self) -> MachinePlace:
        return self.fleet.named(self.dice.choice([self.worked.machine, self.at_work.machine, self.asking.machine]))

    async def kill_in_move(self) -> None:
        source = self.fleet.named(self.worked.machine)
        target = self.dice.choice([machine for machine in self.fleet.machines if machine is not source])
        gateway = self.dice.choice(self.fleet.gateways)
        victim = self.dice.choice([source, target, gateway])
        self.note = f"{source.name} to {target.name} through {gateway.name}, killed: {victim.name}"
        moving = asyncio.ensure_future(
            call(gateway, "claude_manage_session", sessionId=self.worked.id, action="move", machine=target.name)
        )
        # Half a second on an idle machine, seconds on a busy one: mostly early, sometimes after its end.
        await asyncio.wait([moving], timeout=8 * self.dice.random() ** 3)
        victim.kill()
        if self.dice.random() < 0.5:
            victim.start()
        await moving
        self.note += f", {'moved' if moving.result()[0] else 'not moved'}"
        await self._use()

    async def move(self) -> None:
        source = self.fleet.named(self.worked.machine)
        target = self.dice.choice([machine for machine in self.fleet.machines if machine is not source])
        self.note = f"{source.name} to {target.name}"
        await self.until_accepted("claude_manage_session", sessionId=self.worked.id, action="move", machine=target.name)
        await self._use()
        if self.worked.machine != target.name:
            raise Problem(f"session {self.worked.id} was moved to {target.name} and is on {self.worked.machine}")


FAULTS: dict[str, Callable[[Round], Awaitable[None]]] = {
    "kill a runner": Round.kill_runner,
    "kill a gateway": Round.kill_gateway,
    "kill a NATS server": Round.kill_server,
    "freeze a machine": Round.freeze,
    "freeze a gateway": Round.freeze_gateway,
    "lose a machine's data": Round.lose_data,
    "cut a machine off": Round.cut,
    "fill a disk": Round.fill_disk,
    "kill during a move": Round.kill_in_move,
    "kill during a move again": Round.kill_in_move,
    "move": Round.move,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (default: 0)")
    parser.add_argument("--seed", type=int, default=None, help="repeats the rounds of an earlier run")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=1, help="NATS servers (default: 1)")
    parser.add_argument("--fault", choices=[*FAULTS], help="only this one")
    parser.add_argument("--keep", type=Path, help="a directory for everything, which is kept")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    numbers = range(options.first, options.rounds)
    print(f"{len(numbers)} rounds with seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rounds-", ignore_cleanup_errors=True) as temporary:
        root = options.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        with ScriptedModelThread(remember=1) as model:
            fleet = FleetPlaces(root, model.url, options.servers, cuttable=True)
            problems = 0
            try:
                fleet.start()
                problems = asyncio.run(_run(fleet, root, numbers, seed, options.fault))
            finally:
                try:
                    fleet.stop()
                except Problem as problem:
                    problems += 1
                    print(f"PROBLEM at the end: {problem}", flush=True)
    return 1 if problems else 0


async def _run(fleet: FleetPlaces, root: Path, numbers: range, seed: int, fault: str | None) -> int:
    sessions = [await _created(fleet, root, number) for number in range(_SESSIONS)]
    problems, counted, began = 0, Counter[str](), time.monotonic()
    for number in numbers:
        current = Round(fleet, sessions, root, number, seed, fault)
        counted[current.fault] += 1
        print(f"round {number}: {current.fault} …", flush=True)
        started, found = time.monotonic(), []
        try:
            await current.run()
        except Problem as problem:
            found.append(str(problem))
            await current._heal()
        ended = time.monotonic()
        found += await check_fleet(fleet, sessions)
        times = f"{ended - started:.0f} s and {time.monotonic() - ended:.0f} s for the checks"
        print(f"round {number}: {current.fault} ({current.note}), {times}", flush=True)
        for problem_text in found:
            problems += 1
            print(f"PROBLEM in round {number}: {problem_text}", flush=True)
        if found:  # what is broken stays broken: the next round has sessions of its own
            sessions[:] = [await _created(fleet, root, (number + 1) * _SESSIONS + each) for each in range(_SESSIONS)]
    counts = ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))
    print(f"{len(numbers)} rounds in {time.monotonic() - began:.0f} s: {problems} problems ({counts})", flush=True)
    return problems


async def _created(fleet: FleetPlaces, root: Path, number: int) -> Conversation:
    """A session in a repository of its own, on the machines in turn."""
    machine = fleet.machines[number % len(fleet.machines)]
    directory = root / f"source-{number}"
    await asyncio.to_thread(make_repository, directory)
    done, made = await call(
        fleet.gateways[0],
        "claude_create_session",
        prompt=script(f"first-{number}", "hello"),
        machine=machine.name,
        workingDirectory=str(directory),
        allowedTools=["Bash"],
        waitSeconds=50,
    )
    if not done:
        raise Problem(f"no session was begun: {made}")
    return Conversation(str(made["sessionId"]), str(directory), machine.name, [Said(f"first-{number}", True)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
