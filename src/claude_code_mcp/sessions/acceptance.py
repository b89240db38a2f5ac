"""Accepting a message: what is checked before a session is given it, and what is undone if it then refuses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import InvalidArgument, UpstreamUnavailable
from ..redaction import Redactor
from ..store.session_records import SessionRecord
from .dependencies import SessionDeps
from .launcher import needs_confirmation
from .registry import Sessions
from .session import Session


class MessageAcceptance:
    """The steps around `Session.send`, in this order: `admitted`, `recorded` for a new session, then `confirm`."""

    def __init__(self, sessions: Sessions, deps: SessionDeps, redactor: Redactor) -> None:
        self._sessions = sessions
        self._deps = deps
        self._redactor = redactor

    @asynccontextmanager
    async def admitted(self, session: Session, owner: str) -> AsyncIterator[Session]:
        """Yields the session to send to, which is another object if the same one was loaded twice at once.

        LimitReached if the owner's daily budget is spent or too many of its sessions are at work; meanwhile this one
        counts as being at work.
        """
        enforcer = self._deps.gate
        if enforcer.counts(owner):
            await asyncio.to_thread(enforcer.spending.refresh)
        enforcer.check_budget(owner)
        self.learn_secrets(session)
        working = [other.id for other in self._sessions.all() if other.owner == owner and other.busy]
        with enforcer.room(session.id, owner, working), self._sessions.keeping(session) as kept:
            yield kept

    def learn_secrets(self, session: Session) -> None:
        """What a session's variables and servers hold is redacted as long as the session exists."""
        self._redactor.learn(session.options.env, owner=session)
        self._redactor.learn_from(session.options.mcp_servers, owner=session)

    @asynccontextmanager
    async def recorded(self, session: Session) -> AsyncIterator[None]:
        """Writes the record of a new session before anything of it runs; removes it again if nothing comes of it."""
        await self._deps.recorder.save(session)
        try:
            yield
        except BaseException:
            if not session.turns or self._sessions.known(session.id) is None:
                await asyncio.shield(self._deps.recorder.remove(session.id))
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
                await self._deps.recorder.put_back(session.id, before)
            raise refusal


async def _interrupt(session: Session) -> None:
    await session.interrupt()
