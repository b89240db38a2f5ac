"""The user messages that a session has accepted, and the outcome of each."""

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
"""Maximum number of messages without an outcome, and of characters in them and their images. They are kept in memory,
possibly for a day if a turn waits for an answer."""


class BusyMode(StrEnum):
    """How a message to a working session is handled."""

    JOIN = "join"
    """It joins the running turn and shares its outcome; if the turn ends before it is read, it becomes the next
    turn."""
    QUEUE = "queue"
    """It waits, and becomes a separate turn."""
    REFUSE = "refuse"
    """It is refused (SessionBusy). An accepted message is always a separate turn."""


@dataclass(slots=True, eq=False)
class UserMessage:
    """One user message. `outcome` is done when the turn that picked it up has ended, or when it will never run."""

    text: str
    later: bool = False
    """Whether it must not join a running turn."""
    timeout: float | None = None
    images: tuple[Image, ...] = ()
    """The images sent with the text; dropped when it has an outcome."""
    continues: str = ""
    """The wait for a usage limit that it ends, if it was sent for that."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    outcome: "asyncio.Future[Outcome]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    accepted: float = field(default_factory=time.monotonic)
    turn: int = 0
    """The number of the turn whose outcome it has; 0 before that, and for a message that never ran."""
    acknowledged: bool = False
    """Whether the process has reported anything about it; then it may have run."""
    started: bool = False
    """Whether the process has picked it up in a turn."""
    sent_again: bool = False
    """Whether it was taken back from a process that died before reading it. This is done only once."""

    @property
    def unread(self) -> bool:
        """Whether no process has reported reading it, and it was not sent a second time already."""
        return not (self.acknowledged or self.started or self.sent_again)


class MessageQueue:
    """The accepted messages of a session without an outcome, oldest first.

    A message is unsent until it is given to a process, then open until its outcome is known. The last few settled ones
    are kept, so that an interrupted call can be repeated to get the outcome of its message.
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
        """The ids of the messages that were given to no process."""
        return frozenset(message.id for message in self._unsent)

    def find(self, message_id: str) -> UserMessage | None:
        """A message without an outcome, or among the last to get one; None if there is none with this id."""
        return self._open.get(message_id) or self._settled.get(message_id)

    def check_room(self) -> None:
        """Raise LimitReached if too many or too long messages have no outcome yet."""
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
        """Remove and return the messages to give to the process now, in the turn that started with `turn_message_id`.

        Claude Code combines all messages that wait when a turn ends into one turn. So a message that needs a separate
        turn is held back until that turn is the current one, or until only a question of a background task is open.
        """
        ready = [message for message in self._unsent if not message.later or message.id == turn_message_id]
        if question_only and len(self._unsent) == len(self._open):
            ready = ready or self._unsent[:1]
        self._unsent = [message for message in self._unsent if message not in ready]
        return ready

    def take_back(self) -> None:
        """Return all open messages to the queue for the next process, because theirs died without reading them."""
        self._unsent = self.open
        for message in self._unsent:
            message.sent_again = True

    def settle_turn(self, outcome: Outcome, turn: int, except_for: Set[str] = frozenset()) -> UserMessage | None:
        """Give the outcome to all open messages except those in `except_for`; return the one of these that runs next.

        Claude Code runs messages that may join a turn before those that may not, otherwise in order of arrival.
        """
        for message in self.open:
            if message.id not in except_for:
                self.settle(message, outcome, turn)
        return min(self._open.values(), key=lambda message: message.later, default=None)

    def settle(self, message: UserMessage, outcome: Outcome, turn: int = 0) -> None:
        """Set the outcome of a message; `turn` stays 0 for one that never ran."""
        self._open.pop(message.id, None)
        self._unsent = [unsent for unsent in self._unsent if unsent is not message]
        # Images may have megabytes, and the message is kept for calls that are repeated to get its outcome.
        message.images = ()
        self._settled[message.id] = message
        if len(self._settled) > _SETTLED_KEPT:
            self._settled.popitem(last=False)
        if not message.outcome.done():
            message.turn = turn
            message.outcome.set_result(outcome)
