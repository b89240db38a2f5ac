"""Delivery of notifications: queued for each receiver, retried, and kept across restarts.

Sessions never wait for it. A dead receiver delays only its own notifications. Pending notifications are on disk from
before the first attempt until they are delivered or given up (`Deliveries`): a server that stops does not wait, and the
next one continues with the same id for the same notification.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...core.errors import ClaudeCodeError
from ...core.model.caller import LOCAL, Caller
from ...core.model.events import (
    AuditEvent,
    AuditKind,
    BudgetWarned,
    Event,
    QuestionOpened,
    Stalled,
    TurnEnded,
    WaitChanged,
)
from ...core.service import Service
from ...core.sessions.background_tasks import StartTask
from ...core.sessions.outside_sessions import OutsideSession
from ...core.state.state_directory import database_in
from .deliveries import Deliveries, PendingDelivery
from .preferences import (
    Notice,
    Preferences,
    PreferenceStore,
    Receiver,
    new_id,
    notice_of,
    trial_notice,
    without_receiver,
)
from .receivers import request_for
from .sending import PushReply, SendFailed, post
from .settings import PushSettings
from .web_push import ServerKey, is_installed

log = logging.getLogger(__name__)

_NEWS = (QuestionOpened, TurnEnded, WaitChanged, Stalled)
_MAX_UNREAD = 1000
"""Events of one principal that wait to be processed; the oldest are dropped."""
_MAX_WAITING = 50
"""Notifications that wait for one receiver; the oldest are dropped."""
_MAX_KEPT = 86_400.0
"""Maximum age in seconds of another server's notification, whatever its own expiry."""
_LOOK_FOR_PERSON = 3.0
"""Seconds between two checks whether a person is still at a terminal that asks."""
_PAUSES = (1.0, 4.0, 15.0, 60.0, 240.0)
_MAX_PAUSE = 900.0
_GONE = frozenset({404, 410})
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429})

T = TypeVar("T")


class Status(NamedTuple):
    """A receiver's delivery status, as far as this server knows."""

    sent_at: float | None = None
    error: str | None = None


class _Unread(NamedTuple):
    session_id: str
    event: Event
    title: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A notification for one receiver."""

    delivery_id: str
    principal: str
    receiver_id: str
    notice: Notice

    def stored(self) -> PendingDelivery:
        """The delivery in the form stored on disk."""
        return PendingDelivery(self.delivery_id, self.principal, self.receiver_id, self.notice.at, asdict(self.notice))

    @classmethod
    def of(cls, delivery: PendingDelivery) -> "Waiting | None":
        """None if another version stored the notification."""
        try:
            notice = Notice(**delivery.notice)
        except TypeError:
            log.warning("a queued notification %s for %s cannot be parsed", delivery.delivery_id, delivery.principal)
            return None
        return cls(delivery.delivery_id, delivery.principal, delivery.receiver_id, notice)


class Push:
    """All receivers of a service. Create it within the service's event loop."""

    def __init__(self, service: Service, directory: Path, pauses: tuple[float, ...] = _PAUSES) -> None:
        self._service = service
        self._directory = directory
        self._pauses = pauses
        self.preferences = PreferenceStore(database_in(service.settings.state_dir))
        self._outboxes = Outboxes(self, service.start_task, Deliveries(database_in(service.settings.state_dir)), pauses)
        self._loop = asyncio.get_running_loop()
        self.base = ""
        """The address of the page, once there is one."""
        self.budget_title = "Budget"
        self.knows: Callable[[str], bool] = lambda _: True
        """Whether a principal may still sign in: removed principals get no notifications."""
        self._unread: dict[str, deque[_Unread]] = {}
        """By principal, the events that its reader has not processed."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._status: dict[str, Status] = {}
        self._stopped = asyncio.Event()

    def serve_at(self, base: str) -> None:
        """Sets the address of the page; only the first call counts. Then also delivers the notifications of earlier
        servers. Thread-safe."""
        if not self.base:
            self.base = base
            # The console is created in a thread, but tasks may only be started in the event loop.
            self._loop.call_soon_threadsafe(lambda: self._service.start_task(self._take_over()))

    def move(self, base: str) -> None:
        """Changes the address of the page for all later notifications."""
        self.base = base

    @cached_property
    def key(self) -> ServerKey:
        """Blocks on the disk the first time."""
        return ServerKey(self._directory / "vapid.pem")

    async def vapid_key(self) -> str | None:
        """The key for browser subscriptions; None if there can be no key, or without the extra `web`."""
        if not is_installed():
            return None
        try:
            return await asyncio.to_thread(lambda: self.key.public)
        except OSError as error:
            log.error("Web Push is not available: %s", error)
            return None

    @property
    def pending(self) -> bool:
        """Whether a notification is pending or about to be."""
        reading = any(not task.done() for task in self._reading.values())
        return reading or self._outboxes.pending

    async def read(self, principal: str) -> Preferences:
        """A principal's preferences. Raises OSError or UpstreamUnavailable."""
        return await asyncio.to_thread(self.preferences.read, principal)

    async def update(self, principal: str, change: Callable[[Preferences], Preferences]) -> Preferences:
        """Changes them. Raises the errors of `read` and of `change`."""
        return await asyncio.to_thread(self.preferences.update, principal, change)

    async def principals(self) -> Collection[str]:
        """Everyone who may want notifications about a shared budget. Raises OSError or ClaudeCodeError."""
        return await asyncio.to_thread(self.preferences.principals)

    async def chosen_for(self, principal: str, _session_id: str) -> Preferences:
        """A principal's preferences for a session. Raises the errors of `read`."""
        return await self.read(principal)

    def status(self, receiver_id: str) -> Status:
        return self._status.get(receiver_id, Status())

    def may_reach_private(self, principal: str) -> bool:
        """Whether a principal's receivers may be in this machine's networks."""
        return principal == LOCAL or principal in self._service.settings.section(PushSettings).push_private

    # -- events ---------------------------------------------------------------------------------------------------

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if not isinstance(event, _NEWS) or self._stopped.is_set():
            return
        session = next((known for known in self._service.sessions(principal=owner) if known.id == session_id), None)
        unread = _Unread(session_id, event, (session.first_prompt if session is not None else None) or "")
        if session is None or session.outside is None or not session.outside.attended():
            self._put(owner, unread)
        elif isinstance(event, QuestionOpened):
            # The person sees it in the terminal; a notification is due only when they leave it open.
            self._service.start_task(
                self._put_when_left(owner, unread, event.question.id, session.outside), endless=True
            )

    async def _put_when_left(self, owner: str, unread: _Unread, question_id: str, terminal: OutsideSession) -> None:
        while terminal.attended():
            await asyncio.sleep(_LOOK_FOR_PERSON)
            if not any(question.id == question_id for question in self._service.broker.pending(unread.session_id)):
                return
        self._put(owner, unread)

    def _put(self, owner: str, unread: _Unread) -> None:
        self._unread.setdefault(owner, deque(maxlen=_MAX_UNREAD)).append(unread)
        # One reader per principal: the events of one session stay in order, and one principal's unreadable preferences
        # do not delay the others.
        if owner not in self._reading or self._reading[owner].done():
            self._reading[owner] = self._service.start_task(self._read(owner))

    def act(self, act: AuditEvent) -> None:
        """Notifies about a budget that is nearly used up; other audit events are ignored."""
        if act.kind is AuditKind.BUDGET_WARNED and not self._stopped.is_set():
            warned = BudgetWarned(str(act.details["warning"]), at=time.time())
            self._service.start_task(self._announce_budget(act.who, act.details.get("group"), warned))

    async def _announce_budget(self, who: str, group: str | None, warned: BudgetWarned) -> None:
        """Notifies the budget's owner; for a group's budget, everyone known to be in the group."""
        principals = {who}
        if group is not None:
            known = await self._once_readable(self.principals, warned.at + _MAX_KEPT)
            principals.update(
                name for name in known or () if self._service.policy_for(Caller(name)).shares_budget(group)
            )
        for principal in sorted(principals) if not self._stopped.is_set() else ():
            self._put(principal, _Unread("", warned, self.budget_title))

    async def _read(self, principal: str) -> None:
        unread = self._unread[principal]
        while unread:
            session_id, event, title = unread.popleft()
            notice = notice_of(session_id, event, lambda title=title: title, self._service.redaction)  # type: ignore[misc]
            if notice is None:
                continue
            chosen = await self._once_readable(partial(self.chosen_for, principal, session_id), notice.expires_at)
            if chosen is not None and chosen.wants(notice.kind, datetime.now(UTC)):
                made = [Waiting(f"msg_{new_id()}", principal, known.id, notice) for known in chosen.receivers]
                # On disk before the first attempt: a server that is killed in between does not lose them.
                for waiting in made:
                    await self._outboxes.keep(waiting)
                self._outboxes.put(made, chosen)

    async def _once_readable(self, read: Callable[[], Awaitable[T]], until: float) -> T | None:
        """The result of `read`, retried until it succeeds; None if it still fails at a given time (Unix seconds) or if
        the server has stopped."""
        for attempt in count():
            if self._stopped.is_set():
                return None
            try:
                return await read()
            except (ClaudeCodeError, OSError) as error:
                log.warning("the push settings cannot be read now: %s", error)
            if time.time() >= until:
                return None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), self._pauses[min(attempt, len(self._pauses) - 1)])
        return None

    async def _take_over(self) -> None:
        """Continues the undelivered notifications of earlier servers."""
        read = partial(asyncio.to_thread, self._outboxes.take_over)
        stored = await self._once_readable(read, time.time() + _MAX_KEPT)
        left: dict[tuple[str, str], list[Waiting]] = {}
        for waiting in map(Waiting.of, stored or ()):
            if waiting is not None:
                left.setdefault((waiting.principal, waiting.notice.session_id), []).append(waiting)
        for (principal, session_id), own in left.items():
            # Separately, so that one principal's unreadable preferences do not delay the others.
            self._service.start_task(self._deliver_later(principal, session_id, own))

    async def _deliver_later(self, principal: str, session_id: str, left: list[Waiting]) -> None:
        until = max(waiting.notice.expires_at for waiting in left)
        chosen = await self._once_readable(partial(self.chosen_for, principal, session_id), until)
        # The principal's preferences are unknown: nothing is dropped, and the next server tries again.
        if chosen is None:
            return
        now = datetime.now(UTC)
        wanted = [
            waiting
            for waiting in left
            if now.timestamp() - waiting.notice.at < _MAX_KEPT
            and any(receiver.id == waiting.receiver_id for receiver in chosen.receivers)
            and chosen.wants(waiting.notice.kind, now)
        ]
        await self._outboxes.drop(waiting for waiting in left if waiting not in wanted)
        self._outboxes.put(wanted, chosen)

    # -- sending --------------------------------------------------------------------------------------------------

    def is_wanted(self, principal: str, notice: Notice) -> bool:
        """Whether a notification is still wanted: it has not expired, the principal may still sign in, and its question
        is still open."""
        if time.time() >= notice.expires_at or not self.knows(principal):
            return False
        # The rest applies to questions: only they can become outdated before they expire.
        if notice.question_id is None:
            return True
        return any(question.id == notice.question_id for question in self._service.broker.pending())

    async def send(self, principal: str, receiver: Receiver, notice: Notice, delivery_id: str) -> PushReply:
        """One attempt. Raises SendFailed without an answer."""
        try:
            reply = await self.post_notice(principal, receiver, notice, delivery_id)
        except (SendFailed, ClaudeCodeError, OSError, ValueError) as error:
            self._status[receiver.id] = Status(self.status(receiver.id).sent_at, str(error))
            raise SendFailed(str(error)) from None
        failed = None if reply.ok else f"it answered {reply.status}"
        self._status[receiver.id] = Status(time.time() if reply.ok else self.status(receiver.id).sent_at, failed)
        return reply

    async def post_notice(self, principal: str, receiver: Receiver, notice: Notice, delivery_id: str) -> PushReply:
        """Sends it to the receiver from here. Raises SendFailed, ClaudeCodeError, OSError or ValueError."""
        key = await asyncio.to_thread(lambda: self.key)
        # In a thread: the first message for a browser imports the modules for encryption and signing.
        request = await asyncio.to_thread(request_for, receiver, notice, self.base, key, delivery_id)
        return await post(request.url, request.headers, request.body, private=self.may_reach_private(principal))

    async def remove_ended(self, principal: str, receiver_id: str) -> None:
        """Removes a receiver that ended. Raises the errors of `update`, and InvalidArgument if it was removed
        already."""
        await self.update(principal, partial(without_receiver, receiver_id=receiver_id))

    async def try_out(self, principal: str, receiver: Receiver) -> str | None:
        """Sends a notification now; returns the problem, or None."""
        try:
            reply = await self.send(principal, receiver, trial_notice(time.time()), new_id())
        except SendFailed as error:
            return str(error)
        return None if reply.ok else f"it answered {reply.status}"

    def forget(self, principal: str, receiver_id: str) -> None:
        """A receiver was removed: drops its pending notifications."""
        self._status.pop(receiver_id, None)
        self._outboxes.forget(principal, receiver_id)

    def close(self) -> None:
        """Stops sending; pending notifications are left to the next server."""
        # First: a reader that is writing notices to the disk must not add them to an outbox afterward.
        self._stopped.set()
        for unread in self._unread.values():
            unread.clear()
        self._outboxes.close()


def has_ended(receiver: Receiver, reply: PushReply) -> bool:
    """Whether a receiver answered that it no longer exists."""
    return receiver.kind == "webpush" and reply.status in _GONE


class Outboxes:
    """The pending notifications of all receivers, in order for each: on disk until delivered or no longer wanted."""

    def __init__(
        self, push: Push, start_task: StartTask, deliveries: Deliveries, pauses: tuple[float, ...] = _PAUSES
    ) -> None:
        self.push = push
        self.start_task = start_task
        self._deliveries = deliveries
        self._pauses = pauses
        self._boxes: dict[tuple[str, str], _Outbox] = {}
        self._closed = False

    @property
    def pending(self) -> bool:
        """Whether a receiver has pending notifications."""
        return any(outbox.waiting for outbox in self._boxes.values())

    async def keep(self, waiting: Waiting) -> None:
        """Writes a delivery to disk. If that fails, this is logged and the delivery is sent anyway."""
        try:
            await asyncio.to_thread(self._deliveries.add, waiting.stored())
        except OSError as error:
            log.warning("a notification for %s will be lost if the server stops: %s", waiting.principal, error)

    def take_over(self) -> list[PendingDelivery]:
        """The deliveries that earlier servers left on disk. Blocks on it; raises OSError."""
        return self._deliveries.take_over()

    def put(self, made: list[Waiting], chosen: Preferences) -> None:
        """Queues each for its receiver, unless the server has stopped: then they are on disk."""
        receivers = {receiver.id: receiver for receiver in chosen.receivers}
        for waiting in made if not self._closed else ():
            key = (waiting.principal, waiting.receiver_id)
            outbox = self._boxes.get(key)
            if outbox is None:
                outbox = self._boxes[key] = _Outbox(self)
            outbox.put(receivers[waiting.receiver_id], waiting)

    async def drop(self, finished: Iterable[Waiting]) -> None:
        """Removes deliveries from disk that were delivered or are no longer wanted."""
        for waiting in finished:
            try:
                await asyncio.to_thread(self._deliveries.remove, waiting.delivery_id)
            except OSError as error:
                log.warning("a notification for %s may be delivered twice: %s", waiting.principal, error)

    def forget(self, principal: str, receiver_id: str) -> None:
        """A receiver was removed: drops its pending notifications."""
        outbox = self._boxes.pop((principal, receiver_id), None)
        if outbox is not None:
            self.start_task(self.drop(outbox.close()))

    def pause_before(self, attempt: int) -> float | None:
        """Seconds before the next attempt; None to give up."""
        if attempt >= len(self._pauses):
            return None
        return self._pauses[attempt] * random.uniform(0.8, 1.2)  # noqa: S311 - only spreads the load

    def close(self) -> None:
        """Stops sending; pending notifications are left to the next server."""
        self._closed = True
        for outbox in self._boxes.values():
            outbox.close()
        self._boxes.clear()
        self._deliveries.close()


class _Outbox:
    """The pending notifications of one receiver."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._push = outboxes.push
        self._waiting: deque[tuple[Receiver, Waiting]] = deque()
        """The first one is being sent."""
        self._task: asyncio.Task[None] | None = None

    def put(self, receiver: Receiver, waiting: Waiting) -> None:
        self._waiting.append((receiver, waiting))
        if len(self._waiting) > _MAX_WAITING:
            _, oldest = self._waiting[1]
            # Not the first one: it is being sent, and `_run` removes it afterward.
            del self._waiting[1]
            self._outboxes.start_task(self._outboxes.drop([oldest]))
        if self._task is None or self._task.done():
            self._task = self._outboxes.start_task(self._run())

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def close(self) -> list[Waiting]:
        """Stops sending; returns the unsent notifications."""
        left = [waiting for _, waiting in self._waiting]
        self._waiting.clear()
        # A receiver that refused permanently is removed by the task that sends to it, which then ends by itself.
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        return left

    async def _run(self) -> None:
        while self._waiting:
            receiver, waiting = self._waiting[0]
            await self._deliver(receiver, waiting)
            await self._outboxes.drop([waiting])
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
                # The same request would be refused again; only an overloaded or broken server may answer differently.
                if reply.status < 500 and reply.status not in _WORTH_ANOTHER_TRY:
                    await self._give_up(principal, receiver, reply)
                    return
                wait = reply.retry_after
            except SendFailed as error:
                log.info("a %s receiver of %s could not be reached: %s", receiver.kind, principal, error)
            pause = self._outboxes.pause_before(attempt)
            if pause is None:
                return
            await asyncio.sleep(min(_MAX_PAUSE, max(pause, wait or 0.0)))
            attempt += 1

    async def _give_up(self, principal: str, receiver: Receiver, reply: PushReply) -> None:
        """The receiver refused permanently. An ended subscription is removed."""
        log.warning(
            "a %s receiver of %s rejected a notification: it answered %d", receiver.kind, principal, reply.status
        )
        if has_ended(receiver, reply):
            self._push.forget(principal, receiver.id)
            try:
                await self._push.remove_ended(principal, receiver.id)
            except (ClaudeCodeError, OSError) as error:
                log.info("an expired subscription could not be removed: %s", error)
