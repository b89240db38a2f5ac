"""Continues sessions automatically when the usage limit that stopped them has reset.

The decisions are in `core/model/usage_limits.py`; this sleeps until the time and sends the message. The time is in the
session's record, written with the outcome of the turn, so every server on the state directory knows it: the one that
has the session in memory tries first, and the others take over from servers that ended.

The message is sent once, even if servers are killed in between: `KeyedMessages` keeps its key pending in the database
until the turn has ended. A server that finds the pending key of a dead one first looks for the message in the
transcript.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from ..errors import Cancelled, ClaudeCodeError, LimitReached, SessionBusy, TranscriptUnreadable, UpstreamUnavailable
from ..model.events import AuditEvent, Event, WaitChanged
from .background_tasks import StartTask
from .stored.session_stores import Stores

log = logging.getLogger(__name__)

MAX_SLEEP = 600.0
"""Maximum seconds of one sleep, and so the maximum delay after a suspend or a clock change."""
_OTHERS_FIRST = 5.0
"""Seconds by which the server that has a session in memory precedes the others."""
_RETRY = 60.0
"""Seconds before another attempt for a session that could not continue, minus up to half as jitter."""
_TEMPORARY = (SessionBusy, LimitReached, UpstreamUnavailable, TranscriptUnreadable, OSError)
"""Temporary failures: another message runs, a budget is spent, a machine of the fleet is unreachable, or the disk
fails."""

Continue = Callable[[str, str], Awaitable[float | None]]
"""Continues the session with this id and owner. Returns the time of another attempt, or None when done."""


@dataclass(slots=True)
class _Planned:
    owner: str
    at: float


class LimitWaits:
    """The sessions known here to wait for a usage limit, and the one task that sleeps for them. An observer of the
    service."""

    def __init__(
        self,
        all_stores: Collection[Stores],
        start_task: StartTask,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float, asyncio.Event], Awaitable[None]] | None = None,
    ) -> None:
        """`all_stores` may grow. `clock` and `sleep` are for tests; `sleep` returns after N seconds or when the event
        is set."""
        self._all_stores = all_stores
        self._start_task = start_task
        self._clock = clock
        self._sleep = sleep or _sleep
        self._planned: dict[str, _Planned] = {}
        self._running: set[str] = set()
        self._changed = asyncio.Event()

    # -- the plan ----------------------------------------------------------------------------------------------

    @property
    def any_planned(self) -> bool:
        """Whether a session is to continue automatically."""
        return bool(self._planned or self._running)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Plan again when the wait of a session in memory has changed."""
        if isinstance(event, WaitChanged):
            wait = event.wait
            self.plan(session_id, owner, wait.continues_at if wait is not None and wait.on else None)

    def act(self, act: AuditEvent) -> None:
        """Ignores acts: their effects arrive as events."""

    def plan(self, session_id: str, owner: str, at: float | None) -> None:
        """Plan the time at which the session continues; None: not automatically."""
        if at is None:
            self._planned.pop(session_id, None)
        else:
            self._planned[session_id] = _Planned(owner, at)
        self._changed.set()

    async def find_left_over(self) -> None:
        """Find sessions that other servers left waiting. A failure to read them is logged."""
        for stores in [*self._all_stores]:
            try:
                waiting = await asyncio.to_thread(stores.recorder.records.waiting)
            except OSError as error:
                log.warning("cannot read which sessions wait for a usage limit: %s", error)
                continue
            for found in waiting:
                # Includes sessions in memory here: another server may have continued them since.
                if found.session_id not in self._planned and found.session_id not in self._running:
                    self.plan(found.session_id, found.owner, found.continues_at + _OTHERS_FIRST)

    # -- the sleep ---------------------------------------------------------------------------------------------

    async def run(self, continue_session: Continue) -> None:
        """Continue each session at its time. Never returns."""
        looked_at = float("-inf")
        while True:
            # Before reading the plan: a change from here on ends the sleep.
            self._changed.clear()
            now = self._clock()
            if abs(now - looked_at) >= MAX_SLEEP:
                looked_at = now
                await self.find_left_over()
            # A session that is being continued keeps its planned time until then.
            waiting = {each: planned for each, planned in self._planned.items() if each not in self._running}
            for session_id, planned in waiting.items():
                if planned.at <= now:
                    del self._planned[session_id]
                    self._running.add(session_id)
                    self._start_task(self._continue_one(session_id, planned.owner, continue_session))
            soonest = min((planned.at for planned in waiting.values() if planned.at > now), default=now + MAX_SLEEP)
            await self._sleep(min(soonest - now, MAX_SLEEP), self._changed)

    async def _continue_one(self, session_id: str, owner: str, continue_session: Continue) -> None:
        try:
            again_at = await continue_session(session_id, owner)
        except Cancelled:
            again_at = None  # the session no longer waits, or the server is stopping
        except _TEMPORARY as problem:
            log.info("session %s does not continue yet: %s", session_id, problem)
            again_at = self._clock() + _RETRY * random.uniform(0.5, 1)  # noqa: S311 - jitter
        except ClaudeCodeError as error:
            log.warning("session %s does not continue automatically: %s", session_id, error.message)
            again_at = None
        finally:
            self._running.discard(session_id)
            self._changed.set()
        if again_at is not None and session_id not in self._planned:
            self.plan(session_id, owner, again_at)


async def _sleep(seconds: float, changed: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(changed.wait(), max(0.0, seconds))
    except TimeoutError:
        return
