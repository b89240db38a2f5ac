"""CPU per stream event, from the bytes of the pipe to the log and a subscriber, against parsing alone."""

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence

from claude_code_mcp.core.claude.process import ClaudeProcess
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.processes.child import Exit
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.core.transcripts.event_log import Subscription
from claude_code_mcp.testing.script import script, text

from .common import Figure, Place, benchmark, no_collection, ratio
from .raw import RawSession

_CHUNK = 64 << 10  # what a pipe holds on Linux
_ROUNDS = 15


@benchmark
async def stream_events(place: Place) -> Sequence[Figure]:
    """CPU per 1,000 stream events."""
    lines = _recorded(place)
    data = b"".join(lines)
    parsing: list[float] = []
    alone: list[float] = []
    watched: list[float] = []
    async with place.service() as service:
        session = await _session(service, place)
        with no_collection():
            for _ in range(_ROUNDS):
                parsing.append(_parse(lines))
                alone.append(await _receive(session, data, len(lines)))
                with session.events.subscribe() as events:
                    watched.append(await _receive(session, data, len(lines), events))
    return [
        ratio("1,000 stream events, nobody watching", parsing, alone, 2),
        ratio("1,000 stream events, one subscriber", parsing, watched, 2),
    ]


def _recorded(place: Place) -> list[bytes]:
    prompt = script("Write.", text("The quick brown fox jumps over the lazy dog.\n", repeat=200, chunks=2000))
    with RawSession(place) as raw:
        return [line for _, line, frame in raw.turn(prompt) if frame["type"] == "stream_event"]


async def _session(service: Service, place: Place) -> Session:
    turn = await service.create(script("Hello.", "Hello."), SessionOptions(cwd=place.cwd))
    session = turn.session
    await turn.outcome()
    return session


def _parse(lines: list[bytes]) -> float:
    began = time.thread_time()
    for line in lines:
        json.loads(line)
    return (time.thread_time() - began) * 1e6 / len(lines)


class _Listener:
    """Hands frames to a session as its live process does."""

    def __init__(self, session: Session) -> None:
        self.frame_received = session.frames.frame_received

    def process_ended(self, exit_: Exit) -> None:
        """Never called: nothing is spawned."""


async def _receive(session: Session, data: bytes, events: int, subscription: Subscription | None = None) -> float:
    """Feeds the bytes as a pipe would, with the loop free to run between two reads."""
    process = ClaudeProcess(_Listener(session), "", None)
    reader = asyncio.create_task(_drain(subscription)) if subscription is not None else None
    await asyncio.sleep(0)
    began = time.thread_time()
    for start in range(0, len(data), _CHUNK):
        process.output_received(data[start : start + _CHUNK])
        await asyncio.sleep(0)
    took = time.thread_time() - began
    if subscription is not None and reader is not None:
        subscription.close()
        assert await reader >= events
    return took * 1e6 / events


async def _drain(subscription: Subscription) -> int:
    """Waits for an event, then takes all that are there, as a reader does that writes them out in one go."""
    taken = 0
    async for _ in subscription:
        taken += 1
        with contextlib.suppress(IndexError):
            while True:
                subscription.take()
                taken += 1
    return taken
