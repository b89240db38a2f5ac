"""A message on its way into a session, and the turn that it starts or joins."""

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from ..model.turn import Outcome, OutcomeCode


@dataclass(slots=True, eq=False)
class Delivery:
    """One user message. `outcome` is done when the turn that took it up has ended."""

    text: str
    later: bool = False
    timeout: float | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    outcome: "asyncio.Future[Outcome]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


@dataclass(slots=True, eq=False)
class Turn:
    """The turn that is running. `ending` is why we are ending it, once we are."""

    number: int
    started: float = field(default_factory=time.monotonic)
    ending: OutcomeCode | None = None
    timer: asyncio.TimerHandle | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
