"""A message from its acceptance to its outcome.

`MessageAcceptance` is what is checked before a session is given a message, and what is undone if it then refuses.
`PendingTurn` and `InterruptResult` are what callers hold of an accepted message and of an interruption.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..errors import InvalidArgument, UpstreamUnavailable
from ..model.outcome import Outcome
from ..redaction import Redactor
from ..state.session_records import SessionRecord
from .dependencies import SessionDeps
from .launcher import needs_confirmation
from .messages import UserMessage
from .registry import Sessions
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


class MessageAcceptance:
    """The steps around `Session.send`, in this order: `admitted`, `recorded` for a new session, then `confirm`."""

    def __init__(self, sessions: Sessions, deps: SessionDeps, redactor: Redactor) -> None:
        self._sessions = sessions
        self._deps = deps
        self._redactor = redactor

    @asynccontextmanager
    async def admitted(self, session: Session, owner: str, prompt: str) -> AsyncIterator[Session]:
        """Yields the session to send to, which is another object if the same one was loaded twice at once.

        PermissionDenied for a prompt that the policy refuses. LimitReached if the owner's daily budget is spent or too
        many of its sessions are at work; meanwhile this one counts as being at work.
        """
        enforcer = self._deps.gate
        session.deps.gate.check_prompt(prompt, session.cwd, owner)
        self.learn_secrets(session)
        working = [other.id for other in self._sessions.all() if other.owner == owner and other.at_work]
        with enforcer.room(session.id, owner, working), self._sessions.keeping(session) as kept:
            async with self._budgeted(kept, owner, len(working)):
                yield kept

    @asynccontextmanager
    async def _budgeted(self, session: Session, owner: str, working: int) -> AsyncIterator[None]:
        """Reserves what the session may spend today, unless it is at work and has its reservation. A process that may
        spend more, or much less, is replaced. Given back if the message is refused."""
        enforcer = self._deps.gate
        if not enforcer.counts(owner) or session.busy or session.budget_left == 0:  # the session itself refuses then
            yield
            return
        left = session.process_left
        amount = await asyncio.to_thread(enforcer.reserve, owner, session.id, session.budget_left, working, left)
        if session.live and left != amount and session.evictable:
            session.evict()
        try:
            yield
        except BaseException:
            if not session.busy and enforcer.spending.release(session.id):
                await asyncio.shield(asyncio.to_thread(enforcer.spending.write, owner, 0.0, session.id))
            raise

    def learn_secrets(self, session: Session) -> None:
        """What a session's variables and servers hold is redacted as long as the session exists."""
        self._redactor.learn(session.options.env, owner=session)
        self._redactor.learn_from(session.options.mcp_servers, owner=session)

    @asynccontextmanager
    async def recorded(self, session: Session) -> AsyncIterator[None]:
        """Writes the record of a new session before anything of it runs; removes it again if nothing comes of it."""
        await session.deps.stores.recorder.save(session)
        try:
            yield
        except BaseException:
            if not session.turns or self._sessions.known(session.id) is None:
                await asyncio.shield(session.deps.stores.recorder.remove(session.id))
            raise

    async def confirm(self, session: Session, *, new: bool, before: SessionRecord | None = None) -> None:
        """Waits until Claude Code has accepted the options, where only it can tell. It does so before it is given the
        message. Raises its refusal, after which nothing is left of a `new` session but the record that was there
        `before`. A caller that stops waiting interrupts the turn."""
        if not needs_confirmation(session.options):
            return
        try:
            await session.start_settled()
        except asyncio.CancelledError:
            self._deps.start_task(_interrupt(session))
            raise
        refusal = session.start_error
        if isinstance(refusal, InvalidArgument | UpstreamUnavailable):
            if new:
                await self._sessions.drop(session)
                await session.deps.stores.recorder.put_back(session.id, before)
            raise refusal


async def _interrupt(session: Session) -> None:
    await session.interrupt()
