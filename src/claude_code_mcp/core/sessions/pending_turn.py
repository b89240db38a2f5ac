"""The handles that callers get for an accepted message and for an interruption, and the state of a message."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.outcome import Outcome, OutcomeCode
from .messages import UserMessage
from .session import Session
from .stored.session_loader import messages_in_transcript

_ACCEPTED_BEFORE = "The message was accepted earlier; its result is in the conversation."


@dataclass(frozen=True, slots=True, eq=False)
class PendingTurn:
    """An accepted message, and the turn that it starts or joins.

    The turn belongs to the service: it continues whether or not its outcome is awaited.
    """

    session: Session
    message: UserMessage
    """The message in the session's queue."""
    repeated: bool = False
    """Whether it was accepted before, with the same key."""

    @property
    def message_id(self) -> str:
        """The id under which the events of the session and its transcript name the message."""
        return self.message.id

    def done(self) -> bool:
        """Whether `outcome` returns at once."""
        return self.message.outcome.done()

    async def outcome(self) -> Outcome:
        """Wait for the outcome of the turn that picked up the message; also returns for a message that will never run.

        The outcome is already in the session's record, so that it survives a kill of the server. May be awaited any
        number of times. Cancelling the wait does not cancel the turn; `Service.interrupt` does.
        """
        outcome = await asyncio.shield(self.message.outcome)
        await self.session.saved()
        return outcome


@dataclass(frozen=True, slots=True, eq=False)
class InterruptResult:
    """The result of an interruption."""

    session: Session
    dropped: Sequence[UserMessage]
    """The messages queued behind the interrupted turn, which will never run; oldest first."""


def turn_of_accepted_message(session: Session, message_id: str, text: str) -> PendingTurn:
    """The turn of a message that was accepted earlier."""
    message = session.delivery(message_id)
    if message is None:  # accepted by an earlier server, or followed by too many other messages
        ended = session.outcome if not session.busy else None
        message = UserMessage(text, id=message_id)
        message.outcome.set_result(ended or Outcome(OutcomeCode.COMPLETED, detail=_ACCEPTED_BEFORE))
    return PendingTurn(session, message, repeated=True)


async def is_in_transcript(session: Session, message_id: str) -> bool:
    """Whether the transcript has the message: a process of a server that has died may have read it."""
    stores = session.deps.stores
    found = await stores.threads.run(messages_in_transcript, stores.transcripts, session.id, {message_id}, session.cwd)
    return bool(found)


async def message_state(session: Session, message_id: str) -> str:
    """The state of an accepted message: `queued` behind a turn, `taken` by one, `dropped` before that, or `unknown`: an
    earlier server may have had it, and no process has read it."""
    message = session.delivery(message_id)
    if message is None:
        return "taken" if await is_in_transcript(session, message_id) else "unknown"
    if any(queued is message for queued in session.queued_messages):
        return "queued"
    done = message.outcome
    return "dropped" if done.done() and done.result().code is OutcomeCode.DROPPED else "taken"
