"""Coordinates the servers of one user: which of them holds a session, and how it moves to another.  A server keeps the
process of a session for a while after a turn, to make the next message cheap. If another server gets a message for that
session, it requests the session through the database (`request_release`). The holder parks the process if it is idle,
or answers that it is busy. The operating system reports changes of files: a request changes the holder's file in
`servers`, and the requester watches the database's log file. So there is no polling while nothing happens, and a
server's own writes do not wake it.
"""

import asyncio
import logging
import os
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import SessionBusy, StateUnavailable
from ..model.events import AuditEvent, Event, QuestionOpened, QuestionSettled
from ..model.question import Question
from ..state.database import Database
from ..state.session_holders import Holder, SessionHolders
from ..state.session_leases import Leases
from ..state.session_records import SessionRecords
from ..transcripts.watched_files import FileFollower
from .background_tasks import StartTask

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 15.0
"""Seconds that another server has to close an idle process."""
_ANNOUNCE_AFTER = 0.2
"""Seconds for which a question must have been open before other servers see it."""
_LOOK_AGAIN = 2.0
"""Seconds between checks during a wait: the end of a killed process changes no file."""


class PeerServers:
    """Publishes this server's sessions and questions to the other servers, and requests sessions from them.

    An observer of the service. `start_task` starts background work of the service."""

    def __init__(
        self,
        database: Database,
        start_task: StartTask,
        redact: Callable[[Any], Any],
    ) -> None:
        self._database = database
        self._start_task = start_task
        self._redact = redact
        self._holders = SessionHolders(database, f"the claude-code-mcp server with process id {os.getpid()}")
        self._follower = FileFollower()
        self._publishing = asyncio.Lock()
        self._unannounced: dict[str, asyncio.TimerHandle] = {}
        """By the id of an open question that is about to be published."""

    # -- sessions of this server ---------------------------------------------------------------------------------

    def holding(self, session_id: str) -> str:
        """Publish that this server has started a process of the session. Returns the token for `released`."""
        token = uuid.uuid4().hex
        self._publish(self._holders.announce, session_id, token)
        return token

    def released(self, token: str) -> None:
        """Publish that the process and its lease are gone."""
        self._publish(self._holders.withdraw, token)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Publish which questions are open here, except those that are answered within `_ANNOUNCE_AFTER` seconds."""

        def announce(question: Question, asked_at: float) -> None:
            del self._unannounced[question.id]
            line = str(self._redact(question.description))
            self._publish(self._holders.question_opened, session_id, question.id, line, asked_at)

        match event:
            case QuestionOpened(question=question, at=at):
                announcing = asyncio.get_running_loop().call_later(_ANNOUNCE_AFTER, announce, question, at)
                self._unannounced[question.id] = announcing
            case QuestionSettled(question=question):
                timer = self._unannounced.pop(question.id, None)
                if timer is not None:
                    timer.cancel()
                else:
                    self._publish(self._holders.question_closed, question.id)

    def act(self, act: AuditEvent) -> None:
        """Audit events do not concern other servers."""

    def _publish(self, step: Callable[..., None], *arguments: object) -> None:
        """Run the step in a thread, after those before it, and only log a failure: other servers then wait longer and
        see less."""

        async def publish() -> None:
            # In order: otherwise what is over could be published after its end, and would stay.
            async with self._publishing:
                try:
                    await asyncio.to_thread(step, *arguments)
                except OSError as error:
                    log.warning("cannot publish this server's sessions to other servers: %s", error)

        self._start_task(publish())

    async def serve_requests(self, release: Callable[[str], bool]) -> None:
        """Serve requests of other servers for sessions, until cancelled. `release` parks a session, or returns False if
        it is busy."""
        try:
            file = await asyncio.to_thread(self._holders.requests_file)
        except (OSError, StateUnavailable) as error:
            log.warning("other servers cannot request sessions from this one: %s", error)
            return
        async with self._follower.follow(str(file)) as requests:
            while True:
                await requests.changed()
                # The requester has a timeout and can try again.
                with suppress(OSError):
                    for session_id in await asyncio.to_thread(self._holders.wanted):
                        if not release(session_id):
                            await asyncio.to_thread(self._holders.refuse, session_id)

    async def close(self) -> None:
        for timer in self._unannounced.values():
            timer.cancel()
        with suppress(OSError):
            await asyncio.to_thread(self._holders.close)

    # -- sessions of other servers ------------------------------------------------------------------------------------

    async def request_release(self, session_id: str, leases: Leases) -> None:
        """Request the session; returns when no other server has it. Nothing is reserved: another server may take the
        lease next. Raises SessionBusy, with the holder, if the holder is busy with it or does not release it in time,
        and ProcessFailed if it cannot be determined whether a server has it."""
        # Usually no server has it, and nothing needs to be written.
        if not await asyncio.to_thread(leases.held, session_id):
            return
        holder = await asyncio.to_thread(self._holders.want, session_id)
        with suppress(TimeoutError):
            # Watched before the first check: changes in between are not missed.
            async with (
                asyncio.timeout(_RELEASE_SECONDS),
                self._follower.follow(f"{self._database.path}-wal") as database,
            ):
                while await asyncio.to_thread(leases.held, session_id):
                    now = await asyncio.to_thread(self._holders.holder, session_id)
                    if now is not None and now.refuses:
                        raise _busy(session_id, now)
                    await self._change(database.changed())
                return
        raise _busy(session_id, holder)

    async def wait_for_rest(self, session_id: str, records: SessionRecords, leases: Leases, seconds: float) -> None:
        """Wait until no other server runs a turn of the session or has an open question of it, at most `seconds`."""

        def at_rest() -> bool:
            record = records.read(session_id)
            running = record is not None and record.running_since is not None and leases.may_be_held(session_id)
            return not running or bool(self._holders.questions_elsewhere(session_id))

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._follower.follow(f"{self._database.path}-wal") as database:
                while not await asyncio.to_thread(at_rest):
                    await self._change(database.changed())

    async def refuse_elsewhere(self, session: "Session") -> None:
        """Raise SessionBusy, with the holder, if the session is busy in another server or open in another program."""
        session.refuse_if_outside()
        if session.runs_elsewhere:
            raise await self.busy(session.id)

    async def busy(self, session_id: str) -> SessionBusy:
        """The error for a session that another server holds."""
        holder = None
        with suppress(OSError):
            holder = await asyncio.to_thread(self._holders.holder, session_id)
        return _busy(session_id, holder)

    async def report(self, session_id: str) -> str:
        """A sentence about the server that runs the session, and its open questions there."""
        holder, questions = None, []
        with suppress(OSError):
            holder = await asyncio.to_thread(self._holders.holder, session_id)
            questions = await asyncio.to_thread(self._holders.questions_elsewhere, session_id)
        asked = "".join(f" It has an open question there: {question.line}" for question in questions)
        return f"It is run by {_name(holder)}.{asked}"

    async def _change(self, changed: Awaitable[None]) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(changed, _LOOK_AGAIN)


def _name(holder: Holder | None) -> str:
    return holder.description if holder is not None else "another claude-code-mcp server on this machine"


def _busy(session_id: str, holder: Holder | None) -> SessionBusy:
    return SessionBusy(
        f"Session {session_id} is in use by {_name(holder)}. Wait until it is idle there, or stop it there; clients "
        "that share one server (--shared) reach all sessions.",
        session_id=session_id,
    )
