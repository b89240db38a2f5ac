"""A message from its acceptance to its outcome.

`MessageAcceptance` is what is checked before a session is given a message, and what is undone if it then refuses.
`PendingTurn` and `InterruptResult` are what callers hold of an accepted message and of an interruption.

A message with a key that the sender made (`KeyedMessages`), which is sent again because its answer was lost, is taken
once. That holds within this server in any case, and over restarts and between servers as far as the database could be
written: a key is pending there before the message is given to its session, and accepted before the sender is answered.
A server that dies in between leaves a pending key; whoever sends the message again looks for it in the transcript first
(`Accepting` is told that it is `orphaned`).
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from ..errors import InvalidArgument, SessionBusy, UpstreamUnavailable
from ..model.events import AuditEvent, AuditKind
from ..model.options import Image
from ..model.outcome import Outcome, OutcomeCode
from ..model.tool_names import PREFIX
from ..policy.admission import Admission
from ..redaction import Redactor
from ..state.session_records import LONGEST_KEY, KeyName, KeyState, MessageKeys, SessionRecord, TakenKey
from .launcher import needs_confirmation
from .mcp_bridge import expand_prompt, usable_servers
from .messages import UserMessage, WhenBusy, allowed_path, read_images
from .observers import ObserverList
from .registry import Sessions
from .session import Session
from .session_loader import messages_in_transcript
from .session_wiring import SessionDeps

log = logging.getLogger(__name__)

_ACCEPTED_BEFORE = "The message was accepted before; what came of it is in the conversation."
_KEPT = 2000
"""Accepted keys that are known without the database."""


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
    """The steps around `Session.send`, in this order: `admitted`, `recorded` for a new session, then `deliver`; behind
    all of them `conclude`."""

    def __init__(self, sessions: Sessions, deps: SessionDeps, redactor: Redactor, observers: ObserverList) -> None:
        self._sessions = sessions
        self._deps = deps
        self._redactor = redactor
        self._observers = observers

    @asynccontextmanager
    async def admitted(
        self, session: Session, principal: str, prompt: str, admissions: Iterable[Admission]
    ) -> AsyncIterator[Session]:
        """Yields the session to send to, which is another object if the same one was loaded twice at once.

        PermissionDenied for a prompt that one of the `admissions` refuses. LimitReached if the principal's daily budget
        is spent or too many of its sessions are at work; meanwhile this one counts as being at work. RateLimited if its
        sessions have used too many tokens a moment ago.
        """
        limits = self._deps.enforcer.limits
        # Before anything is reserved or kept for it.
        for admission in admissions:
            admission.check_prompt("prompt", prompt, session.cwd)
        # Before its first event: what is logged from here on is redacted.
        self.learn_secrets(session)
        # Nothing is awaited between the count and `room`, so that two messages at once count each other.
        # A session works while a turn runs, or something of it uses the model without one.
        own = [other for other in self._sessions.all() if other.owner == principal]
        working = [other.id for other in own if other.busy or other.process.uses_model]
        with limits.room(session.id, principal, working), self._sessions.keeping(session) as kept:
            if kept.deps.replica is not None:
                # Before anything is reserved or sent: on a machine that does not hold the session nothing may run.
                await kept.deps.replica.admit(kept.id, kept.owner, stays=kept.options.stay_on_machine)
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
        left = session.process.live.left if session.process.live is not None else None
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
                await asyncio.shield(asyncio.to_thread(limits.spending.write_reservation, principal, session.id))
            raise

    def learn_secrets(self, session: Session) -> None:
        """What a session's variables and servers hold is redacted as long as the session exists."""
        self._redactor.learn(session.options.env, owner=session)
        self._redactor.learn_from(session.options.mcp_servers, owner=session)

    @asynccontextmanager
    async def recorded(self, session: Session, prompt: str) -> AsyncIterator[None]:
        """Writes the record of a new session before anything of it runs; removes it again if nothing comes of it."""
        # As of one whose first turn runs already: who is answered then need not wait for a second record, and a server
        # that is killed in between leaves a turn that was cut short.
        session.first_prompt, session.beginning = prompt, True
        try:
            await session.recorder.save(session)
            yield
        except BaseException:
            if not session.turns or self._sessions.known(session.id) is None:
                await asyncio.shield(session.recorder.remove(session.id))
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
        continues: str = "",
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
            continues=continues,
        )
        await self._confirm(session, new=new, before=before)
        return message

    async def conclude(self, kind: AuditKind, session: Session, prompt: str, who: str, **more: Any) -> None:
        """Waits until an accepted message is recorded, and has the act audited; only then its caller is answered."""
        # A server that is killed after this still knows of it. The record that a new session begins with has it.
        if kind not in (AuditKind.SESSION_CREATED, AuditKind.SESSION_FORKED):
            await session.saved()
        if self._deps.replica is not None:  # and if the whole machine is lost, the others of its fleet know
            await self._deps.replica.caught_up(session.id)
        enclosure = session.deps.launcher.home.enclosure
        details = {
            "prompt": prompt,
            "cwd": session.cwd,
            "mode": session.options.permission_mode,
            "isolation": "none" if enclosure is None else enclosure.kind,
            **more,
        }
        if who != session.owner:
            details["owner"] = session.owner
        self._observers.act(AuditEvent(kind, who, session.id, details))

    async def _expanded(self, session: Session, text: str) -> str:
        """The message, or the prompt of a hub's server that it names: whose text the policy must allow too."""
        if not text.startswith(f"/{PREFIX}"):
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
                await session.recorder.put_back(session.id, before)
            raise refusal


async def _interrupt(session: Session) -> None:
    await session.interrupt()


# -- messages with a key -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message that is to be given to a session under this id, or any if that is empty."""

    message_id: str = ""
    orphaned: bool = False
    """Whether a server that has died may have given it to the session already."""


Accepting = Callable[[KeyedMessage], Awaitable[PendingTurn]]
Finding = Callable[[str], Awaitable[Session]]
"""The session with an id, in memory or on disk."""


class KeyedMessages:
    """The messages with keys of one server."""

    def __init__(self, keys: MessageKeys, *, replicated: bool = False) -> None:
        """`replicated` says that other machines must know of accepted keys, as of all that a record holds."""
        self._keys = keys
        self._replicated = replicated
        self._known: OrderedDict[KeyName, TakenKey] = OrderedDict()
        self._locks: WeakValueDictionary[KeyName, asyncio.Lock] = WeakValueDictionary()
        self._work: set[asyncio.Task[PendingTurn]] = set()

    async def once(
        self, key: str, owner: str, session_id: str, parts: Sequence[str], accept: Accepting, find: Finding
    ) -> PendingTurn:
        """Has the message accepted, or finds the one that was accepted with this key. `parts` are what it consists of,
        the text first: InvalidArgument if the key was used for something else. SessionBusy while another server
        accepts it.

        A caller that goes away changes nothing: the message is accepted or refused all the same, and the key with it.
        """
        if not 0 < len(key) <= LONGEST_KEY:
            raise InvalidArgument(f"messageKey: must have 1 to {LONGEST_KEY} characters.", field="message_key")
        name = KeyName(owner, session_id, key)
        work = asyncio.ensure_future(self._once(name, parts, accept, find))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return await asyncio.shield(work)

    async def _once(self, name: KeyName, parts: Sequence[str], accept: Accepting, find: Finding) -> PendingTurn:
        digest = digest_of(parts)
        # The lock lives as long as somebody has it or waits for it.
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            taken = self._known.get(name) or await self._take(name, digest)
            if taken.digest != digest:
                if taken.state is KeyState.ORPHANED:
                    # For whoever has the message itself, at whatever server.
                    await self._quietly(self._keys.leave, name)
                raise InvalidArgument("messageKey: was used for another message.", field="message_key")
            if taken.state is KeyState.ACCEPTED:
                return turn_before(await find(taken.session_id), taken.message_id, parts[0])
            if taken.state is KeyState.PENDING:
                raise SessionBusy("This message is being accepted by another server; try again in a moment.")
            return await self._accept(name, taken, accept)

    async def _accept(self, name: KeyName, taken: TakenKey, accept: Accepting) -> PendingTurn:
        try:
            turn = await accept(KeyedMessage(taken.message_id, taken.state is KeyState.ORPHANED))
        except Exception:
            # Refused now is not refused then: the server that died may have handed it over, and the next who comes with
            # this key must look for it in the transcript as well.
            leave = self._keys.leave if taken.state is KeyState.ORPHANED else self._keys.give_back
            await self._quietly(leave, name)
            raise
        session_id = turn.session.id
        # Before the disk is waited for: from here on the message runs, whatever becomes of the database.
        self._known[name] = TakenKey(KeyState.ACCEPTED, turn.message_id, taken.digest, session_id)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        await self._quietly(self._keys.accept, name, session_id)
        if self._replicated:
            turn.session.recorder.changed(turn.session)
        return turn

    async def _take(self, name: KeyName, digest: str) -> TakenKey:
        try:
            return await asyncio.to_thread(self._keys.take, name, digest)
        except OSError as error:
            # A full disk must not keep anybody from going on: the key then counts in this server alone.
            _log_unrecorded(name, error)
            return TakenKey(KeyState.NEW, "", digest)

    async def _quietly(self, step: Callable[..., None], name: KeyName, *arguments: object) -> None:
        try:
            await asyncio.to_thread(step, name, *arguments)
        except OSError as error:
            _log_unrecorded(name, error)

    async def close(self, timeout: float) -> None:
        """Waits so many seconds for what is being accepted; keys that are pending after that are free for others."""
        if self._work:
            _, left = await asyncio.wait(self._work, timeout=timeout)
            for work in left:
                work.cancel()
        await asyncio.to_thread(self._keys.close)


def _log_unrecorded(name: KeyName, error: OSError) -> None:
    where = f"session {name.session_id}" if name.session_id else "a new session"
    log.warning("the key of a message of %s to %s is not recorded: %s", name.principal, where, error)


def turn_before(session: Session, message_id: str, text: str) -> PendingTurn:
    """The turn of a message that was accepted before."""
    message = session.delivery(message_id)
    if message is None:  # of a server before this one, or one of many since then
        ended = session.outcome if not session.busy else None
        message = UserMessage(text, id=message_id)
        message.outcome.set_result(ended or Outcome(OutcomeCode.COMPLETED, detail=_ACCEPTED_BEFORE))
    return PendingTurn(session, message, repeated=True)


async def was_read(session: Session, message_id: str) -> bool:
    """Whether the transcript has the message: a process of a server that has died may have read it."""
    stores = session.deps.stores
    found = await stores.threads.run(messages_in_transcript, stores.transcripts, session.id, {message_id}, session.cwd)
    return bool(found)


async def message_state(session: Session, message_id: str) -> str:
    """What became of a message that was accepted: `queued` behind a turn, `taken` up by one, `dropped` before that, or
    `unknown`: a server that ended may have had it, and no process has read it."""
    message = session.delivery(message_id)
    if message is None:
        return "taken" if await was_read(session, message_id) else "unknown"
    if any(queued is message for queued in session.queued_messages):
        return "queued"
    done = message.outcome
    return "dropped" if done.done() and done.result().code is OutcomeCode.DROPPED else "taken"


def digest_of(parts: Sequence[str]) -> str:
    """What stands for a message in the database."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        whole.update(len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()
