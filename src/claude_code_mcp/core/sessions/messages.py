"""User messages that a session has accepted, and how each of them came out."""

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum

from ..errors import LimitReached
from ..model.image import Image
from ..model.outcome import Outcome

_SETTLED_KEPT = 32
_MAX_WAITING, _MAX_CHARACTERS = 200, 96 << 20
"""Messages of a session without an outcome, and characters of these and their images: they are kept in memory, and a
turn that waits for an answer may last a day."""


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
    images: tuple[Image, ...] = ()
    """Those that go with the text, until it has an outcome."""
    continues: str = ""
    """The wait for a usage limit that it ends, if it was sent for that."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    outcome: "asyncio.Future[Outcome]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    accepted: float = field(default_factory=time.monotonic)
    turn: int = 0
    """The number of the turn whose outcome it has; 0 before, and for a message that never ran."""
    acknowledged: bool = False
    """Whether the process has reported anything about it: then it may have run."""
    started: bool = False
    """Whether the process has taken it up into a turn."""
    sent_again: bool = False
    """Whether it was taken back from a process that died before it had read it. That is done once."""

    @property
    def unread(self) -> bool:
        """Whether no process has shown a sign of having read it, and it was not sent a second time already."""
        return not (self.acknowledged or self.started or self.sent_again)


class MessageQueue:
    """The messages that a session has accepted and that have no outcome yet, oldest first.

    A message is unsent until it is handed to a process, then open until its outcome is known. The last few settled
    ones are kept, so that a call which was interrupted can come back for the outcome of its own message.
    """

    def __init__(self) -> None:
        self._open: dict[str, UserMessage] = {}
        self._unsent: list[UserMessage] = []
        self._settled: OrderedDict[str, UserMessage] = OrderedDict()

    @property
    def open(self) -> list[UserMessage]:
        """The messages without an outcome, oldest first."""
        return list(self._open.values())

    @property
    def unsent(self) -> frozenset[str]:
        """The ids of the messages that no process has been given."""
        return frozenset(message.id for message in self._unsent)

    def find(self, message_id: str) -> UserMessage | None:
        """A message that has no outcome yet, or was one of the last to get one."""
        return self._open.get(message_id) or self._settled.get(message_id)

    def check_room(self) -> None:
        """LimitReached while so many messages have no outcome, or such long ones, that no more are accepted."""
        waiting = self._open.values()
        size = sum(len(message.text) + sum(len(image.data) for image in message.images) for message in waiting)
        if len(waiting) >= _MAX_WAITING or size >= _MAX_CHARACTERS:
            raise LimitReached(
                f"{len(waiting)} messages are queued in this session; it accepts no more until some have run."
            )

    def accept(self, message: UserMessage) -> None:
        self._open[message.id] = message
        self._unsent.append(message)

    def take_unsent(self, turn_message_id: str, *, question_only: bool) -> list[UserMessage]:
        """Removes and returns the messages that the process is to be given now, while this turn is the current one.

        Claude Code makes one turn of all messages that wait when a turn ends. So a message that wants a turn of its own
        is held back until that turn is the current one, or until nothing runs at all but a question of the background.
        """
        ready = [message for message in self._unsent if not message.later or message.id == turn_message_id]
        if question_only and len(self._unsent) == len(self._open):
            ready = ready or self._unsent[:1]
        self._unsent = [message for message in self._unsent if message not in ready]
        return ready

    def take_back(self) -> None:
        """The process that was given them has died without reading them: all open ones are for the next process."""
        self._unsent = self.open
        for message in self._unsent:
            message.sent_again = True

    def settle_turn(self, outcome: Outcome, turn: int, except_for: Set[str] = frozenset()) -> UserMessage | None:
        """Gives the outcome to all open messages but those in `except_for`, of which it returns the one that runs next.

        Claude Code runs those that may join a turn before those that may not, else in the order they came.
        """
        for message in self.open:
            if message.id not in except_for:
                self.settle(message, outcome, turn)
        return min(self._open.values(), key=lambda message: message.later, default=None)

    def settle(self, message: UserMessage, outcome: Outcome, turn: int = 0) -> None:
        """Gives a message its outcome; `turn` stays 0 for one that never ran."""
        self._open.pop(message.id, None)
        self._unsent = [unsent for unsent in self._unsent if unsent is not message]
        # They may be megabytes, and the message is kept for a call that comes back for its outcome.
        message.images = ()
        self._settled[message.id] = message
        if len(self._settled) > _SETTLED_KEPT:
            self._settled.popitem(last=False)
        if not message.outcome.done():
            message.turn = turn
            message.outcome.set_result(outcome)
