"""A message from its acceptance to its outcome, and what follows from events: records first, then observers.

`MessageAcceptance` is what is checked before a session is given a message, and what is undone if it then refuses.
`PendingTurn` and `InterruptResult` are what callers hold of an accepted message and of an interruption.

Written down are a session's record, an owner's spending and a change of a session's id. Observers must not block; one
that raises is logged and does not keep the others from being told.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from ..errors import (
    ClaudeCodeError,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SessionNotFound,
    UpstreamUnavailable,
)
from ..model.caller import LOCAL
from ..model.events import AuditEvent, AuditKind, Event, QuestionSettled, Spent, StateChanged, TurnEnded, TurnStarted
from ..model.options import Image
from ..model.outcome import BUSY, Outcome, State
from ..questions.broker import Broker
from ..redaction import Redactor
from ..state.session_records import SessionRecord
from .background import StartTask
from .dependencies import SessionDeps, Stores
from .launcher import needs_confirmation
from .mcp_bridge import expand_prompt, names_prompt, usable_servers
from .messages import UserMessage, WhenBusy, allowed_path, read_images
from .neighbours import Neighbours
from .policy_enforcer import PrincipalLimits
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
    """The steps around `Session.send`, in this order: `admitted`, `recorded` for a new session, then `deliver`."""

    def __init__(self, sessions: Sessions, deps: SessionDeps, redactor: Redactor) -> None:
        self._sessions = sessions
        self._deps = deps
        self._redactor = redactor

    @staticmethod
    def require_text(field: str, text: str, images: Sequence[str] = ()) -> None:
        """InvalidArgument for a message without text; a picture may go alone."""
        if not text.strip() and not images:
            raise InvalidArgument(f"{field} must not be empty.", field=field)

    @asynccontextmanager
    async def admitted(self, session: Session, principal: str, prompt: str) -> AsyncIterator[Session]:
        """Yields the session to send to, which is another object if the same one was loaded twice at once.

        PermissionDenied for a prompt that the policy refuses. LimitReached if the principal's daily budget is spent or
        too many of its sessions are at work; meanwhile this one counts as being at work.
        """
        limits = self._deps.enforcer.limits
        # Before anything is reserved or kept for it.
        session.deps.enforcer.admission(principal).check_prompt("prompt", prompt, session.cwd)
        # Before its first event: what is logged from here on is redacted.
        self.learn_secrets(session)
        # Nothing is awaited between the count and `room`, so that two messages at once count each other.
        working = [other.id for other in self._sessions.all() if other.owner == principal and other.at_work]
        with limits.room(session.id, principal, working), self._sessions.keeping(session) as kept:
            if kept.deps.replica is not None:
                # Before anything is reserved or sent: on a machine that does not hold the session nothing may run.
                await kept.deps.replica.admit(kept.id, kept.owner)
            async with self._budgeted(kept, principal, len(working)):
                yield kept

    @asynccontextmanager
    async def _budgeted(self, session: Session, principal: str, working: int) -> AsyncIterator[None]:
        """Reserves what the session may spend today, unless it is at work and has its reservation. A process that may
        spend more, or much less, is replaced. Given back if the message is refused."""
        limits = self._deps.enforcer.limits
        # With no budget left the session itself refuses.
        if not limits.counts(principal) or session.busy or session.budget_left == 0:
            yield
            return
        left = session.process_left
        wanted = (principal, session.id, session.budget_left, working, left)
        reserving = asyncio.ensure_future(asyncio.to_thread(limits.reserve, *wanted))
        try:
            amount = await asyncio.shield(reserving)
            if session.live and left != amount and session.can_park:
                session.park()
            yield
        except BaseException:
            # A thread goes on though its caller has gone: what it reserves for nobody is given back too.
            await asyncio.shield(asyncio.wait([reserving]))
            # If it is busy after all, its message was accepted, and the reservation is for that turn.
            reserved = reserving.exception() is None
            if reserved and not session.busy and limits.spending.release(session.id):
                await asyncio.shield(asyncio.to_thread(limits.spending.write, principal, 0.0, session.id))
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

    async def deliver(
        self,
        session: Session,
        text: str,
        images: Sequence[str],
        *,
        new: bool,
        before: SessionRecord | None = None,
        when_busy: WhenBusy = WhenBusy.JOIN,
        timeout: float | None = None,
        at_message: str | None = None,
        sender: SessionDeps | None = None,
        message_id: str = "",
    ) -> UserMessage:
        """Gives the session the message, with what it names read before; returns when it is accepted, and the options
        with it (`_confirm`). The rest is as in `Session.send`."""
        shown: tuple[Image, ...] = ()
        if images:
            shown = await asyncio.to_thread(read_images, images, lambda path: allowed_path(session, path))
        message = await session.send(
            await self._expanded(session, text),
            when_busy=when_busy,
            timeout=timeout,
            at_message=at_message,
            sender=sender,
            images=shown,
            message_id=message_id,
        )
        await self._confirm(session, new=new, before=before)
        return message

    async def _expanded(self, session: Session, text: str) -> str:
        """The message, or the prompt of a hub's server that it names: whose text the policy must allow too."""
        if not names_prompt(text):
            return text
        async with session.deps.hosted() as host:
            if host is None:
                return text
            caller = f"session:{session.id}"
            servers = usable_servers(host, session.options.hub_servers, session.deps.enforcer, session.owner)
            expanded = await expand_prompt(host, text, servers, caller, session.cwd)
        if expanded != text:
            session.deps.enforcer.admission(session.owner).check_prompt("prompt", expanded, session.cwd)
        return expanded

    async def _confirm(self, session: Session, *, new: bool, before: SessionRecord | None = None) -> None:
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
                # In this order: as long as the session is in memory, its events have records written.
                await self._sessions.drop(session)
                await session.deps.stores.recorder.put_back(session.id, before)
            raise refusal


async def _interrupt(session: Session) -> None:
    await session.interrupt()


# -- observation ------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


class Observer(Protocol):
    """Watches a service. The methods must not block; if one raises, that is logged and nobody else is affected."""

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Something happened in a session. Fragments of text are left out."""

    def act(self, act: AuditEvent) -> None:
        """Somebody did something that belongs in an audit trail."""


class ObserverList:
    """Calls the observers in the order in which they were added, each with what it wants to hear of."""

    def __init__(self) -> None:
        self._observers: tuple[tuple[Observer, tuple[type[Event], ...], Container[AuditKind]], ...] = ()

    def add(
        self,
        observer: Observer,
        events: tuple[type[Event], ...] = (Event,),
        acts: Container[AuditKind] = frozenset(AuditKind),
    ) -> None:
        """From now on the observer hears of every event and every audited act, or of these kinds."""
        self._observers = (*self._observers, (observer, events, acts))

    def event(self, session_id: str, owner: str, event: Event) -> None:
        for observer, events, _ in self._observers:
            if isinstance(event, events):
                try:
                    observer.event(session_id, owner, event)
                except Exception:
                    log.exception("an observer failed")

    def act(self, act: AuditEvent) -> None:
        for observer, _, acts in self._observers:
            if act.kind in acts:
                try:
                    observer.act(act)
                except Exception:
                    log.exception("an observer failed")

    @contextmanager
    def auditing_refusals(self, principal: str, what: str, session_id: str | None = None) -> Iterator[None]:
        """Reports a refusal of the policy or of a limit that is raised within, and lets it pass."""
        try:
            yield
        except (PermissionDenied, LimitReached) as error:
            details = {"what": what, "code": error.code, "reason": error.message, "field": error.data.get("field")}
            self.act(AuditEvent(AuditKind.REFUSED, principal, session_id, details))
            raise

    def foreign_session(self, session_id: str, principal: str) -> SessionNotFound:
        """Reports that a caller named somebody else's session. The error does not differ from that for a session
        which does not exist: a caller cannot find out which ids are in use."""
        details = {"what": "use", "code": SessionNotFound.code, "reason": "somebody else's session"}
        self.act(AuditEvent(AuditKind.REFUSED, principal, session_id, details))
        return SessionNotFound(f"There is no session {session_id}.", session_id=session_id)


class Bookkeeper:
    """What follows from every event, in this order: what is to be written down, what other servers are told, then the
    observers. Starts the writing; `RecordWriter.saved` waits for it."""

    sessions: Sessions
    stores: Stores
    """Those of sessions that are not in memory any more."""
    moved_elsewhere: Callable[[str, str], None]
    """Called when a session goes on under another id; it may block on the disk."""

    def __init__(
        self,
        limits: PrincipalLimits,
        broker: Broker,
        neighbours: Neighbours,
        observers: ObserverList,
        start_task: StartTask,
    ) -> None:
        """`sessions`, `stores` and `moved_elsewhere` are set before the first event: they come after this."""
        self._limits = limits
        self._broker = broker
        self._neighbours = neighbours
        self._observers = observers
        self._start_task = start_task

    def on_event(self, session_id: str, owner: str, event: Event) -> None:
        """Called for every event, fragments of text excepted."""
        changes_record = False
        match event:
            case StateChanged():
                changes_record = event.state is State.CANCELLED
                # In memory at once, so that the next message can have it; other servers learn of it a moment later.
                if event.state not in BUSY and self._limits.spending.release(session_id):
                    self._start_task(asyncio.to_thread(self._limits.spending.write, owner, 0.0, session_id))
            case TurnStarted():
                changes_record = True
            case TurnEnded():
                changes_record = True
                self._count(session_id, owner, event.outcome.usage.cost_usd)
            case Spent():
                changes_record = True
                self._count(session_id, owner, event.usage.cost_usd)
            case QuestionSettled():
                changes_record = event.resolution.answer is not None and event.resolution.answer.allow
        session = self.sessions.known(session_id) if changes_record else None
        if session is not None:
            session.deps.stores.recorder.changed(session)
        self._neighbours.on_event(session_id, event)
        self._observers.event(session_id, owner, event)

    def _count(self, session_id: str, owner: str, usd: float) -> None:
        """Counts a cost towards the owner's budgets: in memory at once, on disk in the background. That of people and
        programs with a name is written down in any case, for the operator's bill."""
        if usd > 0 and (owner != LOCAL or self._limits.counts(owner)):
            self._limits.spending.note(owner, usd, session_id)
            self._start_task(asyncio.to_thread(self._limits.spending.write, owner, usd, session_id))

    def on_moved(self, old: str, new: str) -> None:
        """A session goes on under another id. This is on disk when it returns, before anybody learns the new id."""
        # First: what follows looks the session up by its new id.
        self.sessions.moved(old, new)
        self._broker.moved(old, new)
        spending = self._limits.spending
        if (owner := spending.moved(old, new)) is not None:
            for session_id in (old, new):
                self._start_task(asyncio.to_thread(spending.write, owner, 0.0, session_id))
        session = self.sessions.known(new)
        records = (session.deps.stores if session is not None else self.stores).recorder.records
        try:
            records.move(old, session.record() if session is not None else None, new)
            self.moved_elsewhere(old, new)
        except (OSError, ClaudeCodeError) as error:
            log.error("that session %s goes on as %s could not be written down: %s", old, new, error)
