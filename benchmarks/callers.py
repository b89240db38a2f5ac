"""Callers who use one session at random moments, each with an answer of its own to get."""

import asyncio
import random
from dataclasses import dataclass, field

from claude_code_mcp.core.errors import SessionBusy
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing.script import script, text

from .common import Place

_TIMEOUT = 60.0


@dataclass
class Callers:
    """Send to one session, which is parked now and then, with a turn of their own in mind."""

    service: Service
    session: Session
    seed: int
    sent: list[tuple[str, PendingTurn]] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    async def go(self, messages: int) -> list[str]:
        """Sends so many messages at random moments; tells who did not get exactly their own answer."""
        async with asyncio.TaskGroup() as running:
            for number in range(messages):
                running.create_task(self._send(number))
                await asyncio.sleep(self._random.choice([0, 0, 0.02, 0.1, 0.3]))
                if self._random.random() < 0.2 and self.session.can_park:
                    self.session.park()
        return [mistake for sent in self.sent if (mistake := await self._mistake(*sent))]

    async def _send(self, number: int) -> None:
        answer = f"answer {number}"
        steps = [text(answer), text(answer, chunks=8, interval=0.01), text(answer, delay=0.1)]
        prompt = script(f"message {number}", self._random.choice(steps))
        when = self._random.choice([BusyMode.QUEUE, BusyMode.REFUSE, BusyMode.REFUSE])
        try:
            turn = await self.service.send(self.session.id, prompt, busy_mode=when)
        except SessionBusy:
            self.refused += 1
        else:
            self.sent.append((answer, turn))

    async def _mistake(self, answer: str, turn: PendingTurn) -> str:
        async with asyncio.timeout(_TIMEOUT):
            outcome = await turn.outcome()
        got = (outcome.result, outcome.num_turns)
        return "" if got == (answer, 1) else f"{answer!r} got {got} ({outcome.code}: {outcome.detail})"


async def run_callers(place: Place, seed: int, messages: int = 20) -> list[str]:
    """One round on a session of its own; what was wrong in it."""
    async with place.service() as service:
        turn = await service.create(script("one", "first"), SessionOptions(cwd=place.cwd))
        session = turn.session
        await turn.outcome()
        return await Callers(service, session, seed).go(messages)
