"""Work beside the calls: tasks that belong to the service, threads for the disk, the writer of session records, and
what follows from every event: records first, then observers.

A transcript can be large, and a session's own commands can make it so. The threads of the event loop are few and do
everything: what reads transcripts has its own instead, one set for each configuration directory of the CLI. Of several
callers each has a directory of its own, so that whatever one has read, no other waits for it.

Records are kept up to date in the database without ever blocking the event loop. A session that has changed is marked;
one task per session takes its record as it is *now* and writes that. So writes of one session never overtake each
other, and many changes in a row cost one write. A caller that waits for `saved` is safe from a server that is killed.
The disk itself is waited for a moment after the session came to rest, or when the service closes: that may take longer
than a short turn, and Claude Code, which writes to the same disk, would wait as well.

Written down of events (`Bookkeeper`) are a session's record, an owner's spending and a change of a session's id.
Observers must not block; one that raises is logged and does not keep the others from being told.
"""

import asyncio
import contextvars
import itertools
import json
import logging
from collections.abc import Callable, Container, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from ..errors import ClaudeCodeError, LimitReached, PermissionDenied, ProcessFailed, SessionNotFound
from ..model.events import AuditEvent, AuditKind, BudgetWarned, Event, Spent, StateChanged, TurnEnded, TurnStarted
from ..model.options import LOCAL
from ..model.outcome import BUSY, Outcome, State, Usage
from ..model.usage_limits import LimitWait
from ..questions.broker import Broker
from ..state.session_records import LONGEST_RESULT, SessionRecord, SessionRecords
from ..state.spending import BudgetWarning, NotedAmount
from ..transcripts.event_log import EventLog
from .policy_enforcer import PrincipalLimits

log = logging.getLogger(__name__)

_GRACE = 1.0
"""Seconds that tasks have to end by themselves when the service closes."""
_WATCH_PAUSE = 30.0
"""Seconds after which a watch that has failed begins anew."""

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class StartTask(Protocol):
    """Starts a task that is kept until it is done. One that is `endless` is cancelled when the service closes."""

    def __call__(self, work: Coroutine[Any, Any, None], endless: bool = False) -> "asyncio.Task[None]": ...


class BackgroundTasks:
    """Keeps every task until it is done, so that none is garbage-collected half way, and logs its failure."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._endless: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], endless: bool = False) -> "asyncio.Task[None]":
        """`endless` is work that leaves nothing undone wherever it stops, such as a watch: nobody waits for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if endless:
            self._endless.add(task)
        task.add_done_callback(self._done)
        return task

    def watch(self, work: Callable[[], Coroutine[Any, Any, None]], pause: float = _WATCH_PAUSE) -> None:
        """Runs work that goes on until the service closes. If it fails, that is logged, and it begins anew after
        `pause` seconds: what parks processes or measures memory must not be missing for the days that a server runs."""

        async def run_again_and_again() -> None:
            while True:
                try:
                    return await work()
                except Exception:
                    log.exception("%s failed; it begins anew in %g s", _name_of(work), pause)
                await asyncio.sleep(pause)

        self.start(run_again_and_again(), endless=True)

    def cancel_endless(self) -> None:
        for task in self._endless:
            task.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._endless.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", _name_of(task.get_coro()), exc_info=task.exception())

    async def close(self, timeout: float) -> None:
        """Lets tasks that are about to end do so, such as a note about a cost; cancels those that wait for something
        outside, such as a person who was sent to sign in, and waits up to `timeout` seconds for them to be gone."""
        # First: they never end by themselves, and would use up the time of the others.
        self.cancel_endless()
        if not self._tasks:
            return
        _, waiting = await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)


def _name_of(work: object) -> str:
    """For the log: the function that a task runs."""
    work = work.func if isinstance(work, partial) else work
    return getattr(work, "__qualname__", type(work).__name__)


def _type(value: object) -> str:
    return type(value).__name__


class DiskThreads:
    """At most so many threads, which are started when they are first needed."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="disk")

    async def run(self, work: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        """What `work` returns, in a thread, behind what was to be done before. Work that has begun when its caller is
        cancelled is done to its end and keeps its thread until then, so that a caller who asks and leaves gets no more
        threads; work that has not begun is never done."""
        called = partial(contextvars.copy_context().run, partial(work, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._pool, called)


# -- session records --------------------------------------------------------------------------------------------------


_LONGEST_PROMPT = 1000
_UNTIL_DURABLE = 1.0
"""Seconds after a turn in which the next one may begin, and is not to be slowed down."""


class Recorded(Protocol):
    """A session, as far as its record goes."""

    id: str

    def record(self) -> SessionRecord | None:
        """What it is like now, under the next revision; None for one that leaves no trace."""


class RecordWriter:
    """Writes records in the background; `saved` waits for them."""

    def __init__(
        self,
        records: SessionRecords,
        start_task: StartTask,
        written: Callable[[SessionRecord], None] | None = None,
    ) -> None:
        """`written` is called with every record that is in the database, in their order."""
        self.records = records
        self._start_task = start_task
        self._written = written
        self._changed: dict[str, Recorded] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._unwritten: dict[str, asyncio.Event] = {}
        """Set when the changes of a session up to now are written, though not durable yet."""
        self._not_durable: dict[str, int] = {}
        """The number of the last write of each session that no sync has followed yet."""
        self._writes = itertools.count(1)
        self._durable_soon: set[str] = set()
        self._beside: dict[str, set[asyncio.Task[None]]] = {}
        """What else of a session is being written."""
        self._failures: dict[str, str] = {}
        """Why the last write of a session's record failed."""

    def changed(self, session: Recorded) -> None:
        """Has the record written soon."""
        self._changed[session.id] = session
        self._unwritten.setdefault(session.id, asyncio.Event())
        if session.id not in self._writing:
            self._writing[session.id] = self._start_task(self._write_changes(session.id))

    def saved_with(self, session_id: str, task: "asyncio.Task[None]") -> None:
        """From now on `saved` waits for this task too, however it ends."""
        tasks = self._beside.setdefault(session_id, set())
        tasks.add(task)

        def done(ended: "asyncio.Task[None]") -> None:
            tasks.discard(ended)
            if not tasks and self._beside.get(session_id) is tasks:
                del self._beside[session_id]

        task.add_done_callback(done)

    async def _write_changes(self, session_id: str) -> None:
        try:
            while session_id in self._changed:
                at_rest = False
                # Taken out before it is written: a change during the write marks the session again.
                while (session := self._changed.pop(session_id, None)) is not None:
                    at_rest = await self._write(session)
                # Nothing is awaited since the last look, so that this is the event of all changes up to now.
                self._unwritten.pop(session_id).set()
                if at_rest and session_id not in self._durable_soon:
                    self._durable_soon.add(session_id)
                    self._start_task(self._make_durable_soon(session_id), endless=True)
        finally:
            # Also if it was cancelled: those who wait must not wait for ever.
            del self._writing[session_id]
            if (unwritten := self._unwritten.pop(session_id, None)) is not None:
                unwritten.set()

    async def _write(self, session: Recorded) -> bool:
        """Returns whether there is a new record, which says that no turn is running."""
        try:
            record = session.record()
        except (ValueError, TypeError) as error:  # something that is not JSON
            self._failed(session.id, error)
            return False
        if record is None:
            return False
        if not await self._try(session.id, partial(self.records.write, record, durable=False)):
            return False
        self._not_durable[session.id] = next(self._writes)
        if self._written is not None:
            self._written(record)
        return record.running_since is None

    async def _make_durable_soon(self, session_id: str) -> None:
        try:
            await asyncio.sleep(_UNTIL_DURABLE)
        finally:  # also when the service closes
            # Before the sync: a record that is written while it runs needs another one.
            self._durable_soon.discard(session_id)
            await self._make_durable(session_id)

    async def _make_durable(self, session_id: str) -> None:
        written = self._not_durable.get(session_id)
        if written is None or not await self._try(session_id, self.records.make_durable):
            return
        # A record that was written while this was synced needs a sync of its own.
        if self._not_durable.get(session_id) == written:
            del self._not_durable[session_id]

    async def _try(self, session_id: str, step: Callable[[], None]) -> bool:
        try:
            await asyncio.to_thread(step)
        except (OSError, ValueError, TypeError) as error:  # a disk that refuses, or something that is not JSON
            self._failed(session_id, error)
            return False
        self._failures.pop(session_id, None)
        return True

    def _failed(self, session_id: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else None
        self._failures[session_id] = reason or type(error).__name__
        log.error("the record of session %s cannot be written: %s", session_id, self._failures[session_id])

    def failure(self, session_id: str) -> str | None:
        """What to tell people if the last write of a session's record failed; None if it did not."""
        reason = self._failures.get(session_id)
        return f"This cannot be recorded ({reason}): after a restart it will not be known." if reason else None

    async def saved(self, session_id: str) -> bool:
        """Waits until all changes up to now are written; returns whether the last write succeeded. Cancelling it
        changes nothing."""
        if (unwritten := self._unwritten.get(session_id)) is not None:
            await unwritten.wait()
        if (beside := self._beside.get(session_id)) is not None:
            await asyncio.wait([*beside])
        return session_id not in self._failures

    async def save(self, session: Recorded) -> None:
        """Writes the record of a session and waits until it is durable; ProcessFailed if that cannot be done."""
        self.changed(session)
        await self._settled(session.id)
        if session.id not in self._failures:
            await self._make_durable(session.id)
        if session.id in self._failures:
            reason = self._failures.pop(session.id)
            raise ProcessFailed(
                f"The record of session {session.id} cannot be written, so a restart would undo this: {reason}",
                session_id=session.id,
            )

    async def _settled(self, session_id: str) -> None:
        while (writing := self._writing.get(session_id)) is not None:
            await asyncio.wait([writing])

    async def put_back(self, session_id: str, record: SessionRecord | None) -> None:
        """Undoes what was written for a session that was refused: the record of before, or none."""
        # Removed, not overwritten: what was written for the attempt
        # has a later revision, behind which no older one counts.
        await self.remove(session_id)
        if record is not None:
            try:
                await asyncio.to_thread(self.records.write, record)
            except OSError as error:
                log.error("the record of session %s cannot be put back: %s", session_id, error)

    async def remove(self, session_id: str) -> None:
        """Removes the record of a session that came to nothing. A failure is only logged."""
        # A write that is under way would bring it back.
        await self._settled(session_id)
        self._failures.pop(session_id, None)
        self._not_durable.pop(session_id, None)
        try:
            await asyncio.to_thread(self.records.remove, session_id)
        except OSError as error:
            log.error("the record of session %s cannot be removed: %s", session_id, error)


def recordable_prompt(prompt: str | None) -> str | None:
    """The beginning of a session's first prompt, as a record keeps it."""
    return _encodable(prompt[:_LONGEST_PROMPT]) if prompt else None


def recordable_wait(wait: LimitWait | None) -> LimitWait | None:
    """A wait as a record keeps it."""
    return replace(wait, text=_encodable(wait.text)) if wait is not None else None


def recordable_outcome(outcome: Outcome | None) -> tuple[Outcome | None, bool]:
    """An outcome as a record keeps it, and whether its result was cut: then the transcript has the rest."""
    if outcome is None:
        return None, False
    if outcome.structured_output is not None and _size(outcome.structured_output) > LONGEST_RESULT:
        outcome = replace(outcome, structured_output=None)
    if outcome.permission_denials and _size(outcome.permission_denials) > LONGEST_RESULT:
        outcome = replace(outcome, permission_denials=())
    cut = len(outcome.result) > LONGEST_RESULT
    result = _encodable(outcome.result[:LONGEST_RESULT])
    return replace(outcome, result=result, detail=_encodable(outcome.detail)), cut


def _encodable(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _size(value: object) -> int:
    return len(json.dumps(value, default=str))


# -- observers ---------------------------------------------------------------------------------------------------------


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
                    log.exception("%s failed on %s of session %s", _type(observer), _type(event), session_id)

    def act(self, act: AuditEvent) -> None:
        for observer, _, acts in self._observers:
            if act.kind in acts:
                try:
                    observer.act(act)
                except Exception:
                    log.exception("%s failed on %s by %s", _type(observer), act.kind, act.who)

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


# -- what follows from events ------------------------------------------------------------------------------------------


_LEFT_OVER_DELAY = 5.0
"""Seconds after the start of a server in which everybody who observes it has come."""


class BookedSession(Recorded, Protocol):
    """A session, as far as what follows from its events goes."""

    log: EventLog
    recorder: RecordWriter
    beginning: bool
    """Whether its record says already that its first turn runs, which is just beginning."""


class BookedSessions(Protocol):
    """The sessions in memory."""

    def known(self, session_id: str) -> BookedSession | None: ...

    def moved(self, old: str, new: str) -> None: ...


class Bookkeeper:
    """What follows from every event: what is to be written down, then the observers. Starts the writing;
    `RecordWriter.saved` waits for it."""

    sessions: BookedSessions
    recorder: RecordWriter
    """That of sessions that are not in memory any more."""
    moved_elsewhere: Callable[[str, str], None]
    """Called when a session goes on under another id; it may block on the disk."""

    def __init__(
        self,
        limits: PrincipalLimits,
        broker: Broker,
        observers: ObserverList,
        start_task: StartTask,
    ) -> None:
        """`sessions`, `recorder` and `moved_elsewhere` are set before the first event: they come after this."""
        self._limits = limits
        self._broker = broker
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
                    self._start_task(asyncio.to_thread(self._limits.spending.write_reservation, owner, session_id))
            case TurnStarted():
                begun = self.sessions.known(session_id)
                changes_record = begun is None or not begun.beginning
            case TurnEnded():
                changes_record = True
                self._count(session_id, owner, event.outcome.usage)
            case Spent():
                changes_record = True
                self._count(session_id, owner, event.usage)
        session = self.sessions.known(session_id) if changes_record else None
        if session is not None:
            session.recorder.changed(session)
        self._observers.event(session_id, owner, event)

    def _count(self, session_id: str, owner: str, usage: Usage) -> None:
        """Counts a cost towards the owner's budgets: in memory at once, on disk in the background. That of people and
        programs with a name is written down in any case, for the operator's bill."""
        self._limits.use_tokens(owner, usage)
        usd = usage.cost_usd
        if usd > 0 and (owner != LOCAL or self._limits.counts(owner)):
            noted = self._limits.spending.note(owner, usd, session_id)
            writing = self._start_task(self._write_cost(noted))
            session = self.sessions.known(session_id)
            if session is not None:
                # Who reports the turn waits for this: the warning belongs into the report of the turn that made it due.
                session.recorder.saved_with(session_id, writing)

    async def _write_cost(self, noted: NotedAmount) -> None:
        """Writes a cost, and announces the warnings of budgets that are due with it. In the audit trail also if the
        session is gone."""
        for warning in await asyncio.to_thread(self._limits.write_cost, noted):
            session = self.sessions.known(noted.session_id)
            if session is not None:
                session.log.append(BudgetWarned(warning.line, size=len(warning.line)))
            await self._announce(warning, noted.session_id)

    async def announce_left_over(self) -> None:
        """Announces the warnings that servers which have ended did not, a moment after the start: whoever tells people
        is there by then."""
        await asyncio.sleep(_LEFT_OVER_DELAY)
        try:
            for warning in await asyncio.to_thread(self._limits.spending.take_unannounced):
                await self._announce(warning, None)
        except OSError as error:  # the next server announces them
            log.warning("the budget warnings of earlier servers cannot be read: %s", error)

    async def _announce(self, warning: BudgetWarning, session_id: str | None) -> None:
        # First: a server that is killed in between leaves it to the next one.
        self._observers.act(AuditEvent(AuditKind.BUDGET_WARNED, warning.principal, session_id, warning.fields))
        await asyncio.to_thread(self._limits.spending.note_announced, warning)

    def on_moved(self, old: str, new: str) -> None:
        """A session goes on under another id. This is on disk when it returns, before anybody learns the new id."""
        # First: what follows looks the session up by its new id.
        self.sessions.moved(old, new)
        self._broker.moved(old, new)
        spending = self._limits.spending
        if (owner := spending.moved(old, new)) is not None:
            for session_id in (old, new):
                self._start_task(asyncio.to_thread(spending.write_reservation, owner, session_id))
        session = self.sessions.known(new)
        records = (session or self).recorder.records
        try:
            records.move(old, session.record() if session is not None else None, new)
            self.moved_elsewhere(old, new)
        except (OSError, ClaudeCodeError) as error:
            log.error("that session %s goes on as %s could not be written down: %s", old, new, error)
