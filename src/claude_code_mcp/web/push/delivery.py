"""News on their way: an observer of the service puts them into a bounded queue for each receiver, and a task for each
queue sends them, again and again with longer pauses, until the receiver has them or nobody wants them any more.

Nothing here is ever waited for by a session. A receiver that is dead delays its own news and nothing else. What was not
delivered when the server stops is lost: the sessions and their questions are not.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ...errors import ClaudeCodeError
from ...model.events import AuditEvent, Event, QuestionOpened, Stalled, TurnEnded
from ...service import LOCAL, Service
from .news import Notice, notice_of, trial_notice
from .preferences import PreferenceFiles, Receiver, new_id
from .receivers import request_for
from .sending import PushReply, SendFailed, post
from .web_push import ServerKey

log = logging.getLogger(__name__)

_NEWS = (QuestionOpened, TurnEnded, Stalled)
_MOST_UNREAD = 1000
"""Events that wait to be looked at; the oldest are dropped."""
_MOST_WAITING = 50
"""Notices that wait for one receiver; the oldest are dropped."""
_PAUSES = (1.0, 4.0, 15.0, 60.0, 240.0)
_LONGEST_PAUSE = 900.0
_GONE = frozenset({404, 410})
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429})

Clock = Callable[[], float]


class Status(NamedTuple):
    """How it went with a receiver, as far as this server knows."""

    sent_at: float | None = None
    error: str | None = None


class _Unread(NamedTuple):
    session_id: str
    owner: str
    event: Event
    title: str


class Push:
    """All receivers of a service. `base` is the address of the page, once there is one."""

    def __init__(self, service: Service, directory: Path, pauses: tuple[float, ...] = _PAUSES) -> None:
        self._service = service
        self._directory = directory
        self._pauses = pauses
        self.files = PreferenceFiles(directory / "push")
        self.base = ""
        self._unread: deque[_Unread] = deque(maxlen=_MOST_UNREAD)
        self._reading: asyncio.Task[None] | None = None
        self._outboxes: dict[tuple[str, str], _Outbox] = {}
        self._status: dict[str, Status] = {}
        self._closed = False

    @cached_property
    def key(self) -> ServerKey:
        """Blocks on the disk the first time."""
        return ServerKey(self._directory / "vapid.pem")

    @property
    def public_key(self) -> str | None:
        """What browsers subscribe with; None if there can be no key. Blocks on the disk the first time."""
        try:
            return self.key.public
        except OSError as error:
            log.error("there is no Web Push: %s", error)
            return None

    def status(self, receiver_id: str) -> Status:
        return self._status.get(receiver_id, Status())

    def may_reach_private(self, principal: str) -> bool:
        """Whether a principal's receivers may be in the networks of this machine."""
        return principal == LOCAL or principal in self._service.settings.push_private

    # -- what happens ---------------------------------------------------------------------------------------------

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if not isinstance(event, _NEWS) or self._closed:
            return
        session = next((known for known in self._service.sessions(owner=owner) if known.id == session_id), None)
        title = session.first_prompt if session is not None else None
        self._unread.append(_Unread(session_id, owner, event, title or ""))
        if self._reading is None or self._reading.done():
            self._reading = self._service.start_task(self._read())

    def act(self, act: AuditEvent) -> None:
        """Acts of callers are no news."""

    async def _read(self) -> None:
        while self._unread:
            unread = self._unread.popleft()
            title = unread.title
            notice = notice_of(unread.session_id, unread.event, lambda title=title: title, self._service.redaction)  # type: ignore[misc]
            if notice is not None:
                chosen = await asyncio.to_thread(self.files.read, unread.owner)
                if chosen.receivers and chosen.wants(notice.kind, datetime.now(UTC)):
                    for receiver in chosen.receivers:
                        self._put(unread.owner, receiver, notice)

    def _put(self, principal: str, receiver: Receiver, notice: Notice) -> None:
        outbox = self._outboxes.get((principal, receiver.id))
        if outbox is None:
            outbox = self._outboxes[principal, receiver.id] = _Outbox(self, principal)
        outbox.put(receiver, notice)

    # -- sending --------------------------------------------------------------------------------------------------

    def start_task(self, outbox: "_Outbox") -> "asyncio.Task[None]":
        return self._service.start_task(outbox.run())

    def is_wanted(self, notice: Notice) -> bool:
        """Whether anybody still wants to know: an answered question is no news."""
        if time.time() >= notice.expires_at:
            return False
        if notice.question_id is None:
            return True
        return any(question.id == notice.question_id for question in self._service.pending_questions())

    async def send(self, principal: str, receiver: Receiver, notice: Notice, delivery_id: str) -> PushReply:
        """One try. SendFailed if there is no answer."""
        try:
            key = await asyncio.to_thread(lambda: self.key)
            request = request_for(receiver, notice, self.base, key, delivery_id)
            reply = await post(request.url, request.headers, request.body, private=self.may_reach_private(principal))
        except (ClaudeCodeError, OSError, ValueError) as error:
            self._status[receiver.id] = Status(self.status(receiver.id).sent_at, str(error))
            raise SendFailed(str(error)) from None
        except SendFailed as error:
            self._status[receiver.id] = Status(self.status(receiver.id).sent_at, str(error))
            raise
        failed = None if reply.ok else f"it answered {reply.status}"
        self._status[receiver.id] = Status(time.time() if reply.ok else self.status(receiver.id).sent_at, failed)
        return reply

    async def give_up(self, principal: str, receiver: Receiver, reply: PushReply) -> None:
        """A receiver has refused for good. A subscription that has ended is removed."""
        log.warning("a %s receiver of %s refuses: it answered %d", receiver.kind, principal, reply.status)
        if receiver.kind == "webpush" and reply.status in _GONE:
            self.forget(principal, receiver.id)
            try:
                await asyncio.to_thread(self.files.remove, principal, receiver.id)
            except (ClaudeCodeError, OSError) as error:
                log.info("a subscription that has ended was not removed: %s", error)

    async def try_out(self, principal: str, receiver: Receiver) -> str | None:
        """Sends a notice now; what went wrong, or None."""
        try:
            reply = await self.send(principal, receiver, trial_notice(time.time()), new_id())
        except SendFailed as error:
            return str(error)
        return None if reply.ok else f"it answered {reply.status}"

    def forget(self, principal: str, receiver_id: str) -> None:
        """A receiver is removed: what waits for it is dropped."""
        outbox = self._outboxes.pop((principal, receiver_id), None)
        self._status.pop(receiver_id, None)
        if outbox is not None:
            outbox.close()

    def close(self) -> None:
        """Drops what waits; nothing is sent any more."""
        self._closed = True
        self._unread.clear()
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes.clear()

    def pause_before(self, attempt: int) -> float | None:
        """How long to wait before another try; None if there is to be none."""
        if attempt >= len(self._pauses):
            return None
        return self._pauses[attempt] * random.uniform(0.8, 1.2)  # noqa: S311 - only spreads the load


class _Outbox:
    """What waits for one receiver."""

    def __init__(self, push: Push, principal: str) -> None:
        self._push = push
        self._principal = principal
        self._waiting: deque[tuple[Receiver, Notice]] = deque(maxlen=_MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    def put(self, receiver: Receiver, notice: Notice) -> None:
        self._waiting.append((receiver, notice))
        if self._task is None or self._task.done():
            self._task = self._push.start_task(self)

    def close(self) -> None:
        self._waiting.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def run(self) -> None:
        while self._waiting:
            await self._deliver(*self._waiting.popleft())

    async def _deliver(self, receiver: Receiver, notice: Notice) -> None:
        delivery_id, attempt = f"msg_{new_id()}", 0
        while self._push.is_wanted(notice):
            wait = None
            try:
                reply = await self._push.send(self._principal, receiver, notice, delivery_id)
                if reply.ok:
                    return
                if reply.status < 500 and reply.status not in _WORTH_ANOTHER_TRY:
                    await self._push.give_up(self._principal, receiver, reply)
                    return
                wait = reply.retry_after
            except SendFailed as error:
                log.info("a %s receiver of %s was not reached: %s", receiver.kind, self._principal, error)
            pause = self._push.pause_before(attempt)
            if pause is None:
                return
            await asyncio.sleep(min(_LONGEST_PAUSE, max(pause, wait or 0.0)))
            attempt += 1
