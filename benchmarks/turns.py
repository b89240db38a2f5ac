"""Turns: the first one with everything it takes to start a process, and the next one in the same session."""

import asyncio
import time
from collections.abc import Sequence

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing.script import script

from .common import Figure, Place, benchmark, no_collection, pairs, ratio
from .raw import RawSession

_PROMPT = script("Say something.", "Something, in a few words.")
_STARTS = 24
_SPARES = 12
_TURNS = 60


@benchmark
async def first_turn(place: Place) -> Sequence[Figure]:
    """A first turn, including the start of the process."""
    bare: list[float] = []
    engine: list[float] = []
    _bare_start(place)
    async with place.service() as service:
        await _engine_start(service, place)
        with no_collection():
            for engine_first in pairs(_STARTS):
                if engine_first:
                    engine.append(await _engine_start(service, place))
                bare.append(_bare_start(place))
                if not engine_first:
                    engine.append(await _engine_start(service, place))
    return [ratio("a first turn, with the start", bare, engine, 1.05)]


def _bare_start(place: Place) -> float:
    began = time.perf_counter()
    with RawSession(place) as session:
        session.turn(_PROMPT)
        return (time.perf_counter() - began) * 1000


async def _engine_start(service: Service, place: Place) -> float:
    began = time.perf_counter()
    turn = await service.create(_PROMPT, SessionOptions(cwd=place.cwd))
    session = turn.session
    outcome = await turn.outcome()
    took = (time.perf_counter() - began) * 1000
    assert outcome.ok, outcome
    await session.cancel()
    await session.closed()
    return took


@benchmark
async def spare_process(place: Place) -> Sequence[Figure]:
    """A new session in a spare process, compared with `claude -p` and the same prompt."""
    bare: list[float] = []
    engine: list[float] = []
    async with place.service(spare_processes=1) as service:
        await _engine_start(service, place)
        with no_collection():
            for engine_first in pairs(_SPARES):
                for ours in (engine_first, not engine_first):
                    await service.spares.settled()
                    if ours:
                        assert service.spares.ready == 1
                        engine.append(await _engine_start(service, place))
                    else:
                        bare.append(await _print_start(place))
    return [ratio("a new session's result with a spare, against claude -p", bare, engine, 0.25)]


async def _print_start(place: Place) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(place.executable, "-p", _PROMPT),
        cwd=place.cwd,
        env=place.environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    return (time.perf_counter() - began) * 1000


@benchmark
async def next_turn(place: Place) -> Sequence[Figure]:
    """A turn in a session whose process is running."""
    bare: list[float] = []
    engine: list[float] = []
    with RawSession(place) as raw:
        async with place.service() as service:
            turn = await service.create(_PROMPT, SessionOptions(cwd=place.cwd))
            session = turn.session
            await turn.outcome()
            raw.turn(_PROMPT)
            with no_collection():
                for engine_first in pairs(_TURNS):
                    if engine_first:
                        engine.append(await _engine_turn(service, session.id))
                    bare.append(_bare_turn(raw))
                    if not engine_first:
                        engine.append(await _engine_turn(service, session.id))
    return [ratio("a next turn, same process", bare, engine, 1.1)]


def _bare_turn(raw: RawSession) -> float:
    began = time.perf_counter()
    raw.turn(_PROMPT)
    return (time.perf_counter() - began) * 1000


async def _engine_turn(service: Service, session_id: str) -> float:
    began = time.perf_counter()
    turn = await service.send(session_id, _PROMPT)
    outcome = await turn.outcome()
    assert outcome.ok, outcome
    return (time.perf_counter() - began) * 1000
