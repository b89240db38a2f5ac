"""All sessions of a server: creates, finds (in memory and on disk), forks, parks and forgets them."""

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

from ..claude.option_checks import check_definitions
from ..config import Settings
from ..errors import (
    Cancelled,
    InvalidArgument,
    RecordUnreadable,
    SessionBusy,
    SessionNotFound,
)
from ..model.options import SessionOptions
from ..model.outcome import Outcome, OutcomeCode
from ..model.session_id import is_session_id
from ..policy.admission import Admission
from ..state.session_records import Summary
from ..working_directory import default_directory, own_directory
from .background_tasks import StartTask
from .live.launcher import ForkPoint, check_debug_file
from .live.spares import Spares
from .option_notices import PROMPTS, option_notices
from .session import Session
from .session_deps import SessionDeps
from .stored.session_loader import OnDisk, messages_in_transcript, read_session, resumed_options

log = logging.getLogger(__name__)


class Sessions:
    """The sessions in memory, by id. A session without an accepted message is kept only while a message is being sent
    to it."""

    def __init__(self, settings: Settings, start_task: StartTask, spares: int = 0) -> None:
        """`spares` is the number of processes kept ready for new sessions."""
        self._settings = settings
        self.spares = Spares(spares, settings.spare_max_age_ms / 1000, start_task)
        """The processes that are kept ready for new sessions."""
        self._known: dict[str, Session] = {}
        self._moved: dict[str, str] = {}
        """By a former id of a session, its current one."""
        self._senders: Counter[str] = Counter()
        """By session id, how many calls are sending it a message; meanwhile the session must not be forgotten."""
        self._closed = False

    def all(self) -> list[Session]:
        """The sessions in memory that have accepted a message, most recently used first."""
        begun = (session for session in self._known.values() if session.turns or session.outside is not None)
        return sorted(begun, key=lambda session: session.used_at, reverse=True)

    def known(self, session_id: str) -> Session | None:
        """The session with this id, or the one that it was cleared to."""
        return self._known.get(self._moved.get(session_id, session_id))

    def moved(self, old: str, new: str) -> None:
        """Note that a session continues under another id; all its earlier ids still lead to it."""
        if old in self._known:
            self._known[new] = self._known.pop(old)
        # Earlier ids lead directly to the new one: `known` takes a single step.
        self._moved = {former: new if current == old else current for former, current in self._moved.items()}
        self._moved[old] = new

    @contextlib.asynccontextmanager
    async def creating(
        self, options: SessionOptions, principal: str, deps: SessionDeps, admission: Admission
    ) -> AsyncIterator[Session]:
        """A new session in the environment of `deps`, with the options that the policy admits. It takes the id of a
        matching spare process, if any. A worktree created for it is removed if the session does not start within the
        context."""
        if options.hub_servers:
            async with deps.open_hub() as hub:
                available = hub.servers if hub is not None else ()
            for name in options.hub_servers:
                if name not in available:
                    raise InvalidArgument(f"hub_servers: the hub has no server {name!r}.", field="hub_servers")
        check_definitions(options)
        session_id, cwd = str(uuid.uuid4()), options.cwd or default_directory(deps.settings, deps.directory)
        if not os.path.isabs(cwd):
            cwd = os.path.abspath(os.path.join(deps.directory or own_directory(), cwd))  # noqa: ASYNC240 - looks at nothing
        admitted = admission.admit(options, cwd)
        worktree, session = None, None
        if options.worktree:
            cwd = admitted.cwd or cwd
            # Before the worktree is created: a refusal must not leave one behind.
            await deps.launcher.check(admitted, cwd)
            worktree, cwd = await deps.workplaces.make(deps.launcher.home, deps.enforcer, principal, cwd, session_id)
        try:
            if worktree is not None:
                # Checked again, because the directory has changed.
                admitted = admission.admit(admitted.model_copy(update={"worktree": worktree}), cwd)
            session = Session(session_id, admitted, admitted.cwd or cwd, principal, deps, new=True)
            session.notices = option_notices(options)
            check_debug_file(session.options, session.cwd)
            if self.spares.limit and worktree is None and (spare := await self.spares.reserve(session)) is not None:
                session.id, session.spare = spare.id, spare
            yield session
        except BaseException:
            # A session that accepted its message keeps the worktree, unless Claude Code refused the options and the
            # session was dropped.
            begun = session is not None and session.turns > 0 and self.known(session.id) is not None
            if worktree is not None and not begun:
                # Shielded: no one else would remove it.
                await asyncio.shield(deps.workplaces.take_back(deps.launcher.home, worktree))
            raise

    @contextmanager
    def keeping(self, session: Session) -> Iterator[Session]:
        """Context that keeps a session in memory while a message is sent to it, and afterward if it accepted one.

        If two calls have read the same session from disk at the same time, the first object is kept and both get it.
        """
        if self._closed:
            raise Cancelled("The server is stopping.", session_id=session.id)
        kept = self._known.setdefault(session.id, session)
        if kept.owner != session.owner:
            # Another caller's object came first; to this caller it does not exist.
            raise SessionNotFound(f"There is no session {session.id}.", session_id=session.id)
        key = kept.id  # the id may change if the session is cleared in the meantime
        self._senders[key] += 1
        try:
            yield kept
        finally:
            self._senders[key] -= 1
            if not self._senders[key]:
                del self._senders[key]
                if not kept.turns and kept.outside is None:
                    del self._known[key]

    async def find(
        self, session_id: str, principal: str, deps: SessionDeps, options: SessionOptions | None = None
    ) -> Session:
        """The session in memory, or one read from the stores of `deps`; for the latter, `options` override the recorded
        ones.

        A session from disk can be inspected; it must pass `admit` before it is sent a message. RecordUnreadable if its
        record is damaged, because its limits are then unknown.
        """
        known = self.known(session_id)
        # It may have been forgotten during the disk access: a message to it would then be lost.
        if known is not None and not await self._is_outdated(known) and self.known(session_id) is known:
            return known
        if not is_session_id(session_id):
            raise InvalidArgument(f"{session_id!r} is not a session id.", field="session_id")
        session_id = await asyncio.to_thread(deps.stores.moved_ids.resolve, session_id)
        # Otherwise the state read from disk would lack this server's unwritten changes.
        await deps.stores.recorder.saved(session_id)
        found = await deps.stores.threads.run(read_session, session_id, deps.stores, deps.directory)
        if found is None:
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        # Another call may have loaded it during the disk access.
        return self.known(session_id) or self._from_disk(found, principal, deps, options)

    async def _is_outdated(self, session: Session) -> bool:
        """Whether another server has continued a session that is parked here; then it is forgotten here and read again.
        An unreadable record never causes forgetting."""
        if not self._is_unused(session):
            return False
        # Our own writes first: until they are on disk, the record is older than what is in memory.
        await session.saved()
        try:
            record = await asyncio.to_thread(session.recorder.records.read, session.id)
        except RecordUnreadable:
            # An unreadable record does not show whether another server continued the session.
            return False
        if record is None or record.revision <= session.revision:
            return False
        # Another call may have started to use it during the database access.
        if self._known.get(session.id) is not session or not self._is_unused(session):
            return False
        self._forget(session)
        return True

    def _is_unused(self, session: Session) -> bool:
        at_rest = session.process.dormant and not session.busy and session.outside is None
        return at_rest and not self._senders[session.id]

    def join_outside(self, session: Session) -> None:
        """Register that another program runs the session: it stays in memory until the program leaves it."""
        self._known[session.id] = session

    def leave_outside(self, session: Session) -> None:
        """The program has left the session, which is read from disk when next used."""
        if self._known.get(session.id) is session and self._is_unused(session):
            self._forget(session)

    def forget_outdated(self, summaries: Mapping[str, Summary]) -> None:
        """Forget the sessions that other servers have continued, so that their current state is listed."""
        for session in [*self._known.values()]:
            summary = summaries.get(session.id)
            if summary is not None and summary.revision > session.revision and self._is_unused(session):
                self._forget(session)

    def release_if_idle(self, session_id: str) -> bool:
        """Park an idle session because another server requests it. Returns whether it is free, or will be."""
        session = self.known(session_id)
        if session is None or not session.live:
            return True
        # A call that is sending a message would find the process closed under it.
        if not session.can_park or self._senders[session.id]:
            return False
        session.park()
        return True

    def _from_disk(self, found: OnDisk, principal: str, deps: SessionDeps, requested: SessionOptions | None) -> Session:
        record = found.record
        if record is None:
            options = (requested or SessionOptions()).model_copy(update=dict.fromkeys(PROMPTS))
            check_definitions(options)
            options = deps.enforcer.admit(options, options.cwd or found.cwd, principal)
            session = Session(found.session_id, options, options.cwd or found.cwd, principal, deps, usage=found.usage)
        else:
            foreign = record.owner if record.owner != principal else None
            options = resumed_options(record.options, requested, foreign_owner=foreign)
            cwd = options.cwd or found.cwd
            options = options.model_copy(update={"cwd": cwd})
            session = Session(found.session_id, options, cwd, principal, deps, usage=found.usage)
        session.restore(found)
        session.notices = option_notices(requested, record.options if record is not None else SessionOptions())
        if requested is not None and "permission_mode" in requested.model_fields_set:
            session.revoke_mode()
        return session

    def admit(self, session: Session, admission: Admission) -> None:
        """Apply the policy again before a message: it may have changed since the session started, or differ for the
        client that sends the message.

        A session just read from disk takes the tightened options; one in memory already has them.
        """
        admitted = admission.admit(session.options, session.cwd)
        if session.id not in self._known:
            session.options, session.cwd = admitted, admitted.cwd or session.cwd

    async def check_message(self, session: Session, message_id: str | None) -> None:
        """InvalidArgument if the session's transcript has no such message; None is always fine."""
        if message_id is None:
            return
        stores = session.deps.stores
        if not await stores.threads.run(messages_in_transcript, stores.transcripts, session.id, {message_id}):
            raise InvalidArgument(f"Session {session.id} has no message {message_id!r}.", field="at_message")

    async def fork(
        self,
        source: Session,
        principal: str,
        deps: SessionDeps,
        *,
        at_message: str | None = None,
        options: SessionOptions | None = None,
    ) -> Session:
        """A new session that starts from the transcript of another, which stays unchanged. It runs in the environment
        of `deps`, or in the other session's if its transcript is elsewhere."""
        if deps.stores is not source.deps.stores:
            deps = source.deps
        resumable = await deps.stores.threads.run(deps.stores.transcripts.resumable, source.id, source.cwd)
        if not resumable:
            raise SessionNotFound(f"Session {source.id} has no transcript to fork from yet.", session_id=source.id)
        origin = ForkPoint(source.id, at_message)
        foreign = source.recorded_owner if source.recorded_owner != principal else None
        resumed = resumed_options(source.options, options, foreign_owner=foreign)
        cwd = (options.cwd if options is not None else None) or source.cwd
        check_definitions(resumed)
        admitted = deps.enforcer.admit(resumed, cwd, principal)
        fork = Session(str(uuid.uuid4()), admitted, admitted.cwd or cwd, principal, deps, origin=origin)
        fork.notices = option_notices(options, source.options)
        if options is None or options.max_budget_usd is None:
            fork.costs.spent_usd = source.costs.spent_usd  # otherwise forking would renew a budget
        return fork

    async def clean_up_regularly(self) -> None:
        """Park idle processes, end turns that run too long and forget unused sessions. Never returns."""
        while True:
            await asyncio.sleep(min(self._settings.cleanup_interval, self._settings.idle_park))
            # A copy: `_forget` takes sessions out of the dictionary.
            for session in list(self._known.values()):
                self._clean_up(session)

    def _clean_up(self, session: Session) -> None:
        settings, idle_seconds = self._settings, time.time() - session.used_at
        if session.busy:
            turn = session.turn_runner.current
            if turn is not None and session.working_seconds > settings.running_session_max:
                log.warning("session %s has run for too long: stopping its turn", session.id)
                session.turn_runner.time_out(turn)
        elif session.activity.background_work and session.activity.background_seconds <= settings.running_session_max:
            return  # background work is not idle
        elif session.outside is not None:
            return  # the program that joined it reports when it leaves
        elif idle_seconds > settings.session_ttl and not self._senders[session.id]:
            # Only if no call is sending it a message: such a call holds the object.
            self._forget(session)
        elif session.can_park and idle_seconds > settings.idle_park:
            session.park()
        elif session.activity.background_work:
            log.warning("session %s has run in the background for too long: parking it", session.id)
            session.park()

    def _forget(self, session: Session) -> None:
        """Drop a session from memory, unless its process is still being closed: a resume must wait for that."""
        session.park()
        if session.process.dormant:
            del self._known[session.id]
            self._moved = {old: new for old, new in self._moved.items() if new != session.id}
            session.log.close()

    async def vacate(self, directory: str, session: Session) -> None:
        """Close the processes of all other sessions that work in a directory; SessionBusy if one is busy."""
        for other in [*self._known.values()]:
            if other is session or not (other.cwd == directory or other.cwd.startswith(directory + os.sep)):
                continue
            # A session that restarts during the wait is found by its process before anything is removed.
            if other.busy or other.activity.background_work or self._senders[other.id]:
                raise SessionBusy(f"Session {other.id} is busy in {directory}.", session_id=other.id)
            other.park()
            await other.closed()

    async def release(self, session_id: str) -> None:
        """Close the process of a session that will be removed, and forget the session; SessionBusy while it is
        working."""
        session = self.known(session_id)
        if session is None:
            return
        session.refuse_if_outside()
        if session.busy or session.activity.background_work or self._senders[session.id]:
            raise SessionBusy(f"Session {session.id} is busy.", session_id=session.id)
        session.park()
        await session.closed()
        # It may have got a message while its process was closing.
        if self._known.get(session.id) is session and session.process.dormant and not self._senders[session.id]:
            self._forget(session)

    async def drop(self, session: Session) -> None:
        """Forget a session whose options Claude Code has refused, after its process has ended."""
        # Wait first: until the process has ended, a resume must find this object and wait too.
        await session.closed()
        if self._known.get(session.id) is session and session.process.dormant:
            del self._known[session.id]
            session.log.close()

    async def close(self) -> None:
        """End every process and wait for it; from now on no session accepts a message."""
        # First: no other session may be loaded while these are being closed.
        self._closed = True
        sessions = list(self._known.values())
        for session in sessions:
            session.release(Outcome(OutcomeCode.INTERRUPTED, detail="The server stopped."))
        # Concurrently: each process has its own time limit.
        await asyncio.gather(self.spares.close(), *(session.closed() for session in sessions))
        # After the processes: followers still get their last events.
        for session in sessions:
            session.log.close()
