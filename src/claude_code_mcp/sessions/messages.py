"""Messages on their way into a session, and the turn that they start or join."""

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum

from ..model.outcome import Outcome, OutcomeCode

_REMEMBERED = 32


class WhenBusy(StrEnum):
    """What becomes of a message to a session that is at work."""

    JOIN = "join"
    """It goes into the running turn and shares its outcome; if the turn ends before it is read, it is the next turn."""
    QUEUE = "queue"
    """It waits, and becomes a turn of its own."""
    REFUSE = "refuse"
    """It is not accepted (SessionBusy). One that is accepted is a turn of its own."""


@dataclass(slots=True, eq=False)
class UserMessage:
    """One user message. `outcome` is done when the turn that took it up has ended, or when it will never be run."""

    text: str
    later: bool = False
    """Whether it must not join a running turn."""
    timeout: float | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    outcome: "asyncio.Future[Outcome]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    accepted: float = field(default_factory=time.monotonic)
    turn: int = 0
    """The number of the turn whose outcome it has; 0 before, and for a message that never ran."""
    mentioned: bool = False
    """Whether the process has said anything of it: then it may have run."""
    started: bool = False
    """Whether the process has taken it up into a turn."""
    sent_again: bool = False
    """Whether it was taken back from a process that died before it had read it. That is done once."""

    def settle(self, outcome: Outcome, turn: int = 0) -> None:
        if not self.outcome.done():
            self.turn = turn
            self.outcome.set_result(outcome)


class MessageQueue:
    """The messages that a session has accepted and that have no outcome yet, oldest first.

    The last few that have one are remembered, for a call that comes back for the outcome of its own message.
    """

    def __init__(self) -> None:
        self._open: dict[str, UserMessage] = {}
        self._unsent: list[UserMessage] = []
        self._settled: OrderedDict[str, UserMessage] = OrderedDict()

    @property
    def open(self) -> list[UserMessage]:
        """Those without an outcome, oldest first."""
        return list(self._open.values())

    def find(self, message_id: str) -> UserMessage | None:
        """A message that has no outcome yet, or was one of the last to get one."""
        return self._open.get(message_id) or self._settled.get(message_id)

    def accept(self, delivery: UserMessage) -> None:
        self._open[delivery.id] = delivery
        self._unsent.append(delivery)

    @property
    def unsent(self) -> frozenset[str]:
        """The ids of those that no process has been given."""
        return frozenset(one.id for one in self._unsent)

    def take_unsent(self, turn: "Turn") -> list[UserMessage]:
        """Those that the process is to be given now, and is.

        Claude Code makes one turn of all messages that wait when a turn ends. So one that wants a turn of its own is
        held back until that turn is the current one, or until nothing runs at all but a question of the background.
        """
        ready = [one for one in self._unsent if not one.later or one.id == turn.message_id]
        if turn.only_asks and len(self._unsent) == len(self._open):
            ready = ready or self._unsent[:1]
        self._unsent = [one for one in self._unsent if one not in ready]
        return ready

    def take_back(self) -> None:
        """The process that was given them has died without a word of them: they are for the next one."""
        self._unsent = self.open
        for delivery in self._unsent:
            delivery.sent_again = True

    def settle(self, outcome: Outcome, turn: int, except_for: Set[str] = frozenset()) -> UserMessage | None:
        """Gives the outcome to all but those in `except_for`, of which it returns the one that runs next.

        Claude Code runs those that may join a turn before those that may not, else in the order they came.
        """
        for delivery in [one for one in self._open.values() if one.id not in except_for]:
            self._settle(delivery, outcome, turn)
        return min(self._open.values(), key=lambda one: one.later, default=None)

    def drop(self, delivery: UserMessage, outcome: Outcome) -> None:
        """It will never run."""
        self._settle(delivery, outcome, 0)

    def _settle(self, delivery: UserMessage, outcome: Outcome, turn: int) -> None:
        self._open.pop(delivery.id, None)
        self._unsent = [one for one in self._unsent if one is not delivery]
        self._settled[delivery.id] = delivery
        if len(self._settled) > _REMEMBERED:
            self._settled.popitem(last=False)
        delivery.settle(outcome, turn)


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
    moved: bool = False
    """Whether the conversation was replaced by another one in it."""
    heard: bool = False
    """Whether the process has begun it."""
    ending: OutcomeCode | None = None
    timer: asyncio.TimerHandle | None = None
    doomed: frozenset[str] = frozenset()
    """The messages that were there when an interruption asked for the queue to be dropped."""
    dropped: list[UserMessage] = field(default_factory=list)
    """The messages behind it that were dropped when it was interrupted."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
