"""News on their way: an observer of the service puts them into a bounded queue for each receiver, and a task for each
queue sends them, again and again with longer pauses, until the receiver has them or nobody wants them any more.

Nothing here is ever waited for by a session. A receiver that is dead delays its own news and nothing else. What waits
is on disk before the first try and until it was delivered or given up (`Deliveries`): a server that stops waits for
nothing, and the next one goes on, with the same id for the same notice.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ClaudeCodeError
from ...model.events import AuditEvent, Event, QuestionOpened, Stalled, TurnEnded
from ...service import LOCAL, Service
from ...state.deliveries import Deliveries, PendingDelivery
from ...state.state_directory import database_in
from .news import Notice, notice_of, trial_notice
from .preferences import Preferences, PreferenceStore, Receiver, new_id
from .receivers import request_for
from .sending import PushReply, SendFailed, post
from .web_push import ServerKey

log = logging.getLogger(__name__)

_NEWS = (QuestionOpened, TurnEnded, Stalled)
_MOST_UNREAD = 1000
"""Events that wait to be looked at; the oldest are dropped."""
_MOST_WAITING = 50
"""Notices that wait for one receiver; the oldest are dropped."""
_LONGEST_KEPT = 86_400.0
"""Seconds after which a notice that another server has left is not told any more, whatever it says itself."""
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """A notice on its way to one receiver."""

    delivery_id: str
    principal: str
    receiver_id: str
    notice: Notice

    def stored(self) -> PendingDelivery:
        """As it is kept."""
        return PendingDelivery(self.delivery_id, self.principal, self.receiver_id, self.notice.at, asdict(self.notice))

    @classmethod
    def of(cls, delivery: PendingDelivery) -> "Waiting | None":
        """None for one whose notice is of another version."""
        try:
            notice = Notice(**delivery.notice)
        except TypeError:
            log.warning("a notice that waited is not understood")
            return None
        return cls(delivery.delivery_id, delivery.principal, delivery.receiver_id, notice)


class Push:
    """All receivers of a service. Made within its event loop."""

    def __init__(self, service: Service, directory: Path, pauses: tuple[float, ...] = _PAUSES) -> None:
        self._service = service
        self._directory = directory
        self._pauses = pauses
        self.preferences = PreferenceStore(database_in(service.settings.state_dir))
        self._deliveries = Deliveries(database_in(service.settings.state_dir))
        self._loop = asyncio.get_running_loop()
        self.base = ""
        """The address of the page, once there is one."""
        self.knows: Callable[[str], bool] = lambda _: True
        """Whether a principal may still sign in: one who was removed is told nothing."""
        self._unread: deque[_Unread] = deque(maxlen=_MOST_UNREAD)
        self._reading: asyncio.Task[None] | None = None
        self._outboxes: dict[tuple[str, str], _Outbox] = {}
        self._status: dict[str, Status] = {}
        self._closed = False

    def serve_at(self, base: str) -> None:
        """The page is served there: the first address that is told counts. From now on news are told that a server
        before this one has left. May be called from any thread."""
        if not self.base:
            self.base = base
            self._loop.call_soon_threadsafe(lambda: self._service.start_task(self._take_over()))

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
                chosen = await asyncio.to_thread(self.preferences.read, unread.owner)
                if chosen.wants(notice.kind, datetime.now(UTC)):
                    made = [Waiting(f"msg_{new_id()}", unread.owner, known.id, notice) for known in chosen.receivers]
                    await asyncio.to_thread(self._keep, made)
                    self._put_all(made, chosen)

    def _keep(self, made: list[Waiting]) -> None:
        for waiting in made:
            try:
                self._deliveries.add(waiting.stored())
            except OSError as error:
                log.warning("a notice will be lost if the server stops: %s", error)

    async def _take_over(self) -> None:
        """Goes on with what servers before this one have not delivered."""
        try:
            stored = await asyncio.to_thread(self._deliveries.take_over)
            left = [waiting for delivery in stored if (waiting := Waiting.of(delivery)) is not None]
        except OSError as error:
            log.warning("notices of before cannot be read: %s", error)
            return
        now = datetime.now(UTC)
        for principal in {waiting.principal for waiting in left}:
            chosen = await asyncio.to_thread(self.preferences.read, principal)
            own = [waiting for waiting in left if waiting.principal == principal]
            wanted = [
                waiting
                for waiting in own
                if now.timestamp() - waiting.notice.at < _LONGEST_KEPT
                and any(receiver.id == waiting.receiver_id for receiver in chosen.receivers)
                and chosen.wants(waiting.notice.kind, now)
            ]
            await self.drop(waiting for waiting in own if waiting not in wanted)
            self._put_all(wanted, chosen)

    def _put_all(self, made: list[Waiting], chosen: Preferences) -> None:
        """Each to its receiver, unless the server has stopped meanwhile: then they are on disk."""
        receivers = {receiver.id: receiver for receiver in chosen.receivers}
        for waiting in made if not self._closed else ():
            key = (waiting.principal, waiting.receiver_id)
            outbox = self._outboxes.get(key)
            if outbox is None:
                outbox = self._outboxes[key] = _Outbox(self)
            outbox.put(receivers[waiting.receiver_id], waiting)

    async def drop(self, finished: Iterable[Waiting]) -> None:
        """They are delivered, or nobody wants them any more."""
        for waiting in finished:
            await asyncio.to_thread(self._forget_delivery, waiting.delivery_id)

    def _forget_delivery(self, delivery_id: str) -> None:
        try:
            self._deliveries.remove(delivery_id)
        except OSError as error:
            log.warning("a notice may be delivered twice: %s", error)

    # -- sending --------------------------------------------------------------------------------------------------

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self._service.start_task(work)

    def is_wanted(self, principal: str, notice: Notice) -> bool:
        """Whether the principal still is to know: an answered question is no news."""
        if time.time() >= notice.expires_at or not self.knows(principal):
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
                await asyncio.to_thread(self.preferences.remove, principal, receiver.id)
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
            self.start_task(self.drop(outbox.close()))

    def close(self) -> None:
        """Nothing is sent any more; what waits is left to the next server."""
        self._closed = True
        self._unread.clear()
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes.clear()
        self._deliveries.close()

    def pause_before(self, attempt: int) -> float | None:
        """How long to wait before another try; None if there is to be none."""
        if attempt >= len(self._pauses):
            return None
        return self._pauses[attempt] * random.uniform(0.8, 1.2)  # noqa: S311 - only spreads the load


class _Outbox:
    """What waits for one receiver."""

    def __init__(self, push: Push) -> None:
        self._push = push
        self._waiting: deque[tuple[Receiver, Waiting]] = deque()
        """The one that is being sent is the first."""
        self._task: asyncio.Task[None] | None = None

    def put(self, receiver: Receiver, waiting: Waiting) -> None:
        self._waiting.append((receiver, waiting))
        if len(self._waiting) > _MOST_WAITING:
            _, oldest = self._waiting[1]
            del self._waiting[1]
            self._push.start_task(self._push.drop([oldest]))
        if self._task is None or self._task.done():
            self._task = self._push.start_task(self._run())

    def close(self) -> list[Waiting]:
        """Sends no more; returns what was not sent."""
        left = [waiting for _, waiting in self._waiting]
        self._waiting.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        return left

    async def _run(self) -> None:
        while self._waiting:
            receiver, waiting = self._waiting[0]
            await self._deliver(receiver, waiting)
            await self._push.drop([waiting])
            if self._waiting:  # it may have been closed meanwhile
                self._waiting.popleft()

    async def _deliver(self, receiver: Receiver, waiting: Waiting) -> None:
        principal, attempt = waiting.principal, 0
        while self._push.is_wanted(principal, waiting.notice):
            wait = None
            try:
                reply = await self._push.send(principal, receiver, waiting.notice, waiting.delivery_id)
                if reply.ok:
                    return
                if reply.status < 500 and reply.status not in _WORTH_ANOTHER_TRY:
                    await self._push.give_up(principal, receiver, reply)
                    return
                wait = reply.retry_after
            except SendFailed as error:
                log.info("a %s receiver of %s was not reached: %s", receiver.kind, principal, error)
            pause = self._push.pause_before(attempt)
            if pause is None:
                return
            await asyncio.sleep(min(_LONGEST_PAUSE, max(pause, wait or 0.0)))
            attempt += 1
