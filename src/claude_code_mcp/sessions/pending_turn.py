"""What a caller holds of a message that a session has accepted, and of an interruption that it asked for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.outcome import Outcome
from .messages import UserMessage
from .session import Session


@dataclass(frozen=True, slots=True, eq=False)
class PendingTurn:
    """A message on its way through a session, and the turn that starts with it or that it joins.

    The turn belongs to the service: it runs on whether or not its outcome is awaited.
    """

    session: Session
    message: UserMessage
    """The message as the session keeps it."""

    @property
    def message_id(self) -> str:
        """The id under which the events of the session and its transcript name the message."""
        return self.message.id

    def done(self) -> bool:
        """Whether `outcome` returns at once."""
        return self.message.outcome.done()

    async def outcome(self) -> Outcome:
        """Waits for the outcome of the turn that took the message up, or that of a message which will never run.

        The outcome is in the session's record by then, so that a server which is killed right after still knows it.
        May be awaited any number of times. Cancelling the wait does not cancel the turn; `Service.interrupt` does.
        """
        outcome = await asyncio.shield(self.message.outcome)
        await self.session.saved()
        return outcome


@dataclass(frozen=True, slots=True, eq=False)
class InterruptResult:
    """What an interruption came to."""

    session: Session
    dropped: Sequence[UserMessage]
    """The messages that waited behind the interrupted turn and will never run, oldest first."""
