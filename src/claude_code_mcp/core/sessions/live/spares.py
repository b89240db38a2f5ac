"""Spare processes: started in advance, so that the next session need not wait.

A spare is a `LiveProcess` whose owner is not a session. It is started like the most recent launch, with a new session
id, and is taken by the next new session with exactly the same launch: equal arguments, files, environment, directory,
hooks, budget and caller, and no change in what Claude Code reads when it starts. That session takes the id too. Until
then it is invisible: it has no record, no lease and no transcript, its entry in the CLI's list of open sessions is
moved aside, and it is the first to be evicted when a slot or memory is needed. It also ends when it is too old or out
of date, or when the service closes.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...claude.protocol import ControlRequest, Frame, Raw, Result, System
from ...claude.user_config import Registration, take_registration
from ...errors import ClaudeCodeError, PermissionDenied, ProcessFailed, SessionBusy
from ...model.paths import config_directory
from ...model.usage import Usage
from ...processes.child import Exit
from ..background_tasks import StartTask
from ..session_costs import SessionCosts
from .launcher import Launch
from .live_process import LiveProcess, launch_of
from .mcp_bridge import usable_servers

if TYPE_CHECKING:
    from ..session import Session

log = logging.getLogger(__name__)

_START_DELAY = 0.5
"""Seconds after the start of a session before a spare is started, so as not to slow the session down."""
_RESERVATION_SECONDS = 10.0
"""Seconds within which a session must start with its reserved spare."""
_WARM_UP_REQUESTS = 3
"""How many times a spare prepares a model request without sending it, to warm up."""
_MAX_FRAMES = 1000
_MAX_UNSUITABLE = 100
_HANDSHAKE = ("", "initialize", "notifications/initialized", "ping", "logging/setLevel")


async def launch_like(session: "Session | Spare") -> Launch:
    """The launch that a process of the session would use now."""
    async with session.deps.open_hub() as hub:
        wanted = session.options.hub_servers
        servers = usable_servers(hub, wanted, session.deps.enforcer, session.owner) if hub is not None else {}
    return launch_of(session, session.deps, tuple(servers))


class Spare:
    """The owner of a process without a session; listens to it until it is taken."""

    used_at = 0.0
    """It is evicted before any session."""

    def __init__(self, like: "Session") -> None:
        self.id = str(uuid.uuid4())
        self.options, self.cwd, self.owner = like.options, like.cwd, like.owner
        self.grants: tuple[Mapping[str, Any], ...] = ()
        self.process_budget = like.process_budget
        self.deps = like.deps
        self.costs = SessionCosts(Usage())
        self.launch: Launch | None = None
        """What it was started with."""
        self.key: str | None = None
        """The key of the launch and of what the process has read; see `Launcher.key`."""
        self.reserved = False
        self.ran_hooks = False
        self._frames: list[Frame] = []
        self._registration = Registration()
        self._warm: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._live: LiveProcess | None = None
        self._left: LiveProcess | None = None

    async def start(self, launch: Launch, key: str) -> bool:
        """Start the process and wait until it can be taken; return whether it can."""
        self.launch, self.key = launch, key
        try:
            self._live = LiveProcess(self, self, self, self.deps, None, leased=False)
        except ClaudeCodeError as error:
            self.start_failed(error)
        # Shielded: a future that was cancelled is done too, and the spare would look usable.
        return await asyncio.shield(self._warm)

    @property
    def usable(self) -> bool:
        return self._live is not None and self._live.ready and self._warm.done() and not self.ran_hooks

    def hand_over(self, session: "Session") -> LiveProcess | None:
        """Give the process with its frames so far to a session; None if it has ended or the launch has changed. Raises
        SessionBusy if the session's lease is taken."""
        live = self._live
        # Compared again: the policy or the hub's servers may have changed since it was reserved.
        launch = None if live is None else launch_of(session, self.deps, live.bridge.servers if live.bridge else ())
        if not self.usable or live is None or launch != self.launch:
            self.drop()
            return None
        live.hand_to(session, self._frames, self._registration.restore)
        # Only now: if the lease had been refused, `drop` would have to end the process.
        self._live = None
        return live

    def drop(self) -> None:
        """End the process, unless a session has taken it."""
        live, self._live = self._live, None
        if live is not None:
            live.leave()
            self._left = live
        if not self._warm.done():
            self._warm.set_result(False)

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended or a session has it."""
        return self._live is None and (self._left is None or self._left.is_gone)

    async def gone(self) -> None:
        """Wait until a dropped process has ended."""
        if self._left is not None:
            await self._left.gone()

    # -- a holder of a slot -----------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        process = self._live.process if self._live is not None else None
        return process.pid if process is not None else None

    @property
    def can_park(self) -> bool:
        return not self.reserved and self._live is not None

    def park(self) -> None:
        self.drop()

    # -- the listener of its process --------------------------------------------------------------------------

    def process_started(self, pid: int, api_ms: int, *, carried: bool) -> None: ...

    def traffic_counted(self, usage: Usage) -> None: ...

    def process_ready(self) -> None:
        self.deps.start_task(self._warm_up())

    async def _warm_up(self) -> None:
        """Let the CLI prepare what a first message would wait for, and move its entry in the list of open sessions
        aside."""
        live = self._live
        if live is None or live.process is None:
            return
        with contextlib.suppress(ProcessFailed):  # earlier versions do not know the request
            for _ in range(_WARM_UP_REQUESTS):
                await live.process.request("get_context_usage", timeout=self.deps.settings.start_timeout)
        directory = config_directory({**self.deps.launcher.environment, **self.options.env})
        try:
            self._registration = await asyncio.to_thread(take_registration, self.id, directory)
        except SessionBusy as error:  # its entry could not be moved aside, so it stays listed under an unused id
            self.start_failed(error)
            return
        if self.ran_hooks:
            self.drop()
        elif not self._warm.done():
            self._warm.set_result(True)

    def start_failed(self, error: ClaudeCodeError) -> None:
        log.debug("a spare process could not be started: %s", error.message)
        self.drop()

    def process_ended(self, exit_: Exit) -> None:
        self.drop()

    def late_result(self, frame: Result) -> None: ...

    def frame_received(self, frame: Frame) -> None:
        """Keep the frame for the session; answer requests of the CLI, which waits for that."""
        process = self._live.process if self._live is not None else None
        if isinstance(frame, System) and frame.subtype.startswith("hook_"):
            self.ran_hooks = True
        if not isinstance(frame, ControlRequest):
            # Bounded: they are not read before a session takes the process.
            if len(self._frames) < _MAX_FRAMES:
                self._frames.append(frame)
        elif process is not None and self._live is not None:
            if frame.subtype == "mcp_message" and self._live.bridge is not None:
                self.deps.start_task(self._live.bridge.answer(process, frame, partial(_permit_handshake, frame)))
            else:
                process.refuse(frame.id, f"{frame.subtype} is not supported by this host")

    def progress_reported(self, line: str) -> None: ...

    async def form_requested(self, server: str, form: Raw) -> Raw:
        return {"action": "cancel"}


async def _permit_handshake(frame: ControlRequest) -> None:
    """Raise PermissionDenied for everything except the requests that Claude Code sends to a server before its first
    message: a process without a session makes no calls."""
    message = frame.request.get("message")
    method = str(message.get("method") or "") if isinstance(message, dict) else ""
    if not method.endswith("/list") and method not in _HANDSHAKE:
        raise PermissionDenied("No session has been started here yet.")


class Spares:
    """At most `limit` spares, none older than `max_age` seconds."""

    def __init__(self, limit: int, max_age: float, start_task: StartTask) -> None:
        self.limit = limit
        """How many are kept ready; 0 disables spares."""
        self._max_age = max_age
        self._start_task = start_task
        self._started: list[Spare] = []
        """All spares that may still have a process, including those being closed."""
        self._ready: list[Spare] = []
        self._reserved: list[Spare] = []
        self._unsuitable: list[str] = []
        """Launches that run hooks when they start."""
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def ready(self) -> int:
        """How many can be taken now."""
        return sum(spare.usable for spare in self._ready)

    async def reserve(self, session: "Session") -> Spare | None:
        """Reserve a matching spare for the session; None if there is none. Ends spares that are out of date."""
        if not self._ready:
            return None
        launch = await launch_like(session)
        alike = [spare for spare in self._ready if spare.launch == launch]
        if not alike:
            return None
        key = await asyncio.to_thread(session.deps.launcher.key, launch)
        for spare in alike:
            if spare not in self._ready:
                continue  # another session was faster
            if spare.key != key:
                self._end(spare)
            elif spare.usable:  # else it is still starting
                # From here on it is not evicted for others.
                spare.reserved = True
                self._ready.remove(spare)
                self._reserved.append(spare)
                # A session that is refused, or never sent its message, must not keep it.
                asyncio.get_running_loop().call_later(_RESERVATION_SECONDS, self._end, spare)
                return spare
        return None

    def _end(self, spare: Spare) -> None:
        """End a spare unless a session has it."""
        for kept in (self._ready, self._reserved):
            if spare in kept:
                kept.remove(spare)
        spare.drop()

    # -- filling ----------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until no spare is being started."""
        if self._filling is not None:
            await asyncio.wait([self._filling])

    def prepare_for(self, session: "Session", started: Callable[[], Awaitable[bool]]) -> None:
        """Start a spare for the next session like this one after this one has started; `started` waits for that and
        returns whether its process ran hooks when it started."""
        if not self._closed and (self._filling is None or self._filling.done()):
            self._filling = self._start_task(self._fill(Spare(session), started))

    async def _fill(self, spare: Spare, started: Callable[[], Awaitable[bool]]) -> None:
        ran_hooks = await started()
        await asyncio.sleep(_START_DELAY)
        launch = await launch_like(spare)
        key = None if ran_hooks else await asyncio.to_thread(spare.deps.launcher.key, launch)
        if key is None or key in self._unsuitable:
            return
        # No other spare is being started, so unusable ones have ended.
        for other in [other for other in self._ready if other.key == key and not other.usable]:
            self._end(other)
        if sum(other.key == key for other in self._ready) >= self.limit:
            return
        while len(self._ready) >= self.limit:
            self._end(self._ready[0])
        # No await from here until the spare is in the list: one that `close` does not see would survive.
        if not spare.deps.slots.has_room or self._closed:
            return
        self._started = [*(other for other in self._started if not other.is_gone), spare]
        # Before it has started, so that `close` finds it.
        self._ready.append(spare)
        if await spare.start(launch, key):
            asyncio.get_running_loop().call_later(self._max_age, self._end, spare)
            return
        self._end(spare)
        if spare.ran_hooks:
            self._unsuitable = [*self._unsuitable, key][-_MAX_UNSUITABLE:]

    async def close(self) -> None:
        """End all spares and wait for it."""
        self._closed = True
        if self._filling is not None:
            # First: otherwise it could start another spare in the meantime.
            self._filling.cancel()
        for spare in [*self._ready, *self._reserved]:
            self._end(spare)
        await asyncio.gather(*(spare.gone() for spare in self._started))
