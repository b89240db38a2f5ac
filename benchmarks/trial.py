"""One trial of the soak: a session meets its fate at a random moment; then nothing may be left running, and it must
be possible to go on with the session in another service."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

import psutil

from claude_code_mcp.core.errors import Cancelled, SessionNotFound
from claude_code_mcp.core.model.events import Event, Partial, PartialRun, ProcessChanged, TurnStarted
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.paths import config_directory
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.core.transcripts.transcripts import ProjectFolders, Transcripts
from claude_code_mcp.testing.script import script, text, tool

from .common import Place

MARK = "CLAUDE_CODE_MCP_SOAK"
"""Only what a trial starts carries this variable."""
_TIMEOUT = 40.0
_LINGER = 15.0
_ENDLESS = "until [ -e never ]; do sleep 0.1; done"


class Fate(StrEnum):
    """What happens to the session."""

    FINISH = "left to finish"
    INTERRUPT = "interrupted"
    CANCEL = "cancelled"
    CLOSE = "service closed"
    KILL_CLI = "CLI killed"
    KILL_HOST = "host killed"


PROMPTS = {
    "words": script("Speak.", text("Some words. ", repeat=100, chunks=100, interval=0.01)),
    "tool": script("Work.", tool("Bash", command="echo one; sleep 0.3; echo two"), "Done."),
    "child": script("Work.", tool("Bash", command=_ENDLESS), "Done."),
    "background child": script("Work.", tool("Bash", command=_ENDLESS, run_in_background=True), "Done."),
    "question": script("Work.", tool("Write", file_path="${cwd}/file", content="x"), "Done."),
}
_STAGES: dict[str, tuple[type[Event], ...]] = {
    "made": (TurnStarted,),
    "started": (ProcessChanged,),
    "spoke": (Partial, PartialRun),
}
"""By which event a stage in the life of a session is known."""
_ENDING = frozenset({"words", "tool"})
"""Prompts whose turn ends by itself."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to be tried: `delay` seconds after the session was made, its process started or Claude first spoke."""

    number: int
    fate: Fate
    prompt: str
    delay: float
    after: str

    def __str__(self) -> str:
        return f"trial {self.number} ({self.prompt}, {self.fate} {self.delay * 1000:.0f} ms after {self.after})"


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a trial; `problem` is empty when all was well."""

    trial: Trial
    resumed: bool = False
    problem: str = ""


def plan(seed: int, count: int) -> list[Trial]:
    """The trials of a seed, always the same."""
    random = Random(seed)
    return [_random_trial(random, number) for number in range(count)]


def _random_trial(random: Random, number: int) -> Trial:
    fate = random.choice(list(Fate))
    prompt = random.choice(sorted(_ENDING if fate is Fate.FINISH else PROMPTS))
    after = random.choice([*_STAGES, "spoke"])
    if fate is Fate.KILL_CLI and after == "made":
        after = "started"  # there is none to kill before
    return Trial(number, fate, prompt, random.uniform(0, random.choice([0.05, 0.5, 1.5])), after)


async def run_trial(place: Place, trial: Trial, run: str) -> Finding:
    """Tries it. `run` names the whole soak, so that its processes are found by it."""
    mark = {MARK: f"{run}.{trial.number}"}
    try:
        async with asyncio.timeout(3 * _TIMEOUT):
            if trial.fate is Fate.KILL_HOST:
                session_id = await _in_another_process(place, trial, mark)
            else:
                session_id = await _in_this_process(place, trial, mark)
            left = await _left_running(mark[MARK], 0 if trial.fate is not Fate.KILL_HOST else _LINGER)
            if left:
                return Finding(trial, problem=f"left running: {left}")
            return await _resume(place, trial, mark, session_id)
    except Exception as error:
        return Finding(trial, problem=f"{type(error).__name__}: {error}")
    finally:
        _kill_all(mark[MARK])


# -- the fate -----------------------------------------------------------------------------------------------------


async def _in_this_process(place: Place, trial: Trial, mark: Mapping[str, str]) -> str:
    async with place.service(mark) as service:
        turn = await service.create(PROMPTS[trial.prompt], _options(place))
        session = turn.session
        if trial.fate is not Fate.FINISH:
            await _reached(session, trial.after)
            await asyncio.sleep(trial.delay)
        match trial.fate:
            case Fate.INTERRUPT:
                await service.interrupt(session.id)
            case Fate.CANCEL:
                await service.cancel(session.id)
            case Fate.KILL_CLI if session.pid is not None:
                os.kill(session.pid, signal.SIGKILL)
        if trial.fate not in (Fate.CLOSE, Fate.KILL_CLI):
            await asyncio.wait_for(turn.outcome(), _TIMEOUT)
        elif trial.fate is Fate.KILL_CLI:
            await asyncio.wait_for(_no_longer_live(session), _TIMEOUT)
    return session.id


async def _reached(session: Session, stage: str) -> None:
    with session.events.subscribe(after=0) as events:
        async for event in events:
            if isinstance(event, _STAGES[stage]):
                return


async def _no_longer_live(session: Session) -> None:
    with session.events.subscribe() as events:
        while session.live:
            await anext(aiter(events))


async def _in_another_process(place: Place, trial: Trial, mark: Mapping[str, str]) -> str:
    described = {"root": str(place.sandbox.root), "model": place.sandbox.model_url}
    described |= {"prompt": trial.prompt, "after": trial.after}
    host = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.trial",
        json.dumps({**described, "extra": dict(mark)}),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **mark},
    )
    assert host.stdout is not None
    try:
        session_id = (await host.stdout.readline()).decode().strip()
        await asyncio.sleep(trial.delay)
    finally:
        host.kill()
        await host.communicate()
    return session_id


async def _host_session(described: Mapping[str, str], extra: Mapping[str, str]) -> None:
    place = Place(Path(described["root"]), described["model"])
    async with place.service(extra) as service:
        session = (await service.create(PROMPTS[described["prompt"]], _options(place))).session
        await _reached(session, described["after"])
        print(session.id, flush=True)
        await asyncio.Event().wait()


def _options(place: Place) -> SessionOptions:
    return SessionOptions(cwd=place.cwd, allowed_tools=("Bash",))


# -- what must hold afterward ------------------------------------------------------------------------------------


async def _resume(place: Place, trial: Trial, mark: Mapping[str, str], session_id: str) -> Finding:
    async with place.service(mark) as service:
        try:
            resumed = await _answers_again(service, session_id, place)
        except Cancelled:
            if trial.fate is not Fate.CANCEL:
                raise
            resumed = False  # for good, over a restart too
        except SessionNotFound:
            if Transcripts(ProjectFolders.below(config_directory(place.environment))).path_of(session_id) is not None:
                raise
            return Finding(trial)
    left = await _left_running(mark[MARK], 0)
    return Finding(trial, resumed=resumed, problem=f"left running after the resume: {left}" if left else "")


async def _answers_again(service: Service, session_id: str, place: Place) -> bool:
    turn = await service.send(session_id, script("Again.", "Again."), options=_options(place))
    outcome = await asyncio.wait_for(turn.outcome(), _TIMEOUT)
    if not outcome.ok or outcome.result != "Again.":
        raise AssertionError(f"the session did not go on: {outcome}")
    return True


async def _left_running(mark: str, linger: float) -> list[str]:
    """What carries the mark, once it has had `linger` seconds to end by itself."""
    until = time.monotonic() + linger
    while (found := _marked(mark)) and time.monotonic() < until:  # noqa: ASYNC110 - strangers send no events
        await asyncio.sleep(0.05)
    return [" ".join([str(process.pid), *_command(process)]) for process in found]


def _marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _carries(process, mark)]


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()[:3]
    except psutil.Error:
        return []


def _kill_all(mark: str) -> None:
    """A trial that went wrong must not spoil the next one."""
    for process in _marked(mark):
        with contextlib.suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    described = json.loads(sys.argv[1])
    asyncio.run(_host_session(described, described["extra"]))
