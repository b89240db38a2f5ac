"""Messages on their way into a session, and the turn that they start or join."""

import asyncio
import time
import uuid
from collections.abc import Set
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


class Mail:
    """The messages that a session has accepted and that have no outcome yet, oldest first."""

    def __init__(self) -> None:
        self._open: dict[str, Delivery] = {}
        self._unsent: list[Delivery] = []

    def accept(self, delivery: Delivery) -> None:
        self._open[delivery.id] = delivery
        self._unsent.append(delivery)

    def take_unsent(self) -> list[Delivery]:
        """Those that no process has been given; the caller gives them to one now."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def settle(self, outcome: Outcome, except_for: Set[str] = frozenset()) -> Delivery | None:
        """Gives the outcome to all but those in `except_for`, of which it returns the oldest."""
        for delivery in [one for one in self._open.values() if one.id not in except_for]:
            del self._open[delivery.id]
            delivery.settle(outcome)
        self._unsent = [one for one in self._unsent if one.id in self._open]
        return next(iter(self._open.values()), None)


@dataclass(slots=True, eq=False)
class Turn:
    """The turn that is running. `ending` is why we are ending it, once we are.

    `message_id` is that of the message which started it, empty if it started by itself. `only_asks` says that
    Claude Code itself runs no turn: something in the background has a question, and will report back in the end.
    """

    number: int
    message_id: str = ""
    only_asks: bool = False
    started: float = field(default_factory=time.monotonic)
    ending: OutcomeCode | None = None
    timer: asyncio.TimerHandle | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
