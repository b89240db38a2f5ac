"""One Claude Code process of a session with its resources: the lease on the session, a slot, a start task.

Creating a `LiveProcess` takes the lease and a slot; `leave` stops the process and then releases the lease, in this
order, so that no second writer can open the transcript in between. Frames that arrive after `leave` are discarded,
except for the costs in a result.

`CurrentProcess` holds a session's current process, and the previous one while it is still being closed.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from ...claude.command_line import ConversationStart, granted_rules, with_grants
from ...claude.process import ClaudeProcess
from ...claude.protocol import Frame, Result, System
from ...errors import ClaudeCodeError, ProcessFailed, TranscriptUnreadable
from ...model.caller import LOCAL
from ...model.options import SessionOptions
from ...model.usage import Usage, at_least
from ...processes.child import Exit
from ...state.session_leases import Lease
from ..session_deps import SessionDeps
from .frame_claims import FrameClaims
from .launcher import Launch, find_conversation_start
from .mcp_bridge import McpBridge, usable_servers
from .slots import StartPlace

if TYPE_CHECKING:
    from ..session import Session
    from ..turn import TurnRunner
    from .frame_router import FrameRouter
    from .spares import Spare

log = logging.getLogger(__name__)


def launch_of(owner: "Session | Spare", deps: SessionDeps, servers: Sequence[str]) -> Launch:
    """The launch parameters of a process of this owner under the current policy; `servers` are its hub servers."""
    options, rules = owner.options, {}
    if owner.grants:
        granted = deps.enforcer.admission(owner.owner).suggestions(owner.grants, owner.cwd)
        options, rules = with_grants(options, granted), granted_rules(granted)
    profile = deps.enforcer.profile(owner.owner)
    return Launch(
        options,
        owner.cwd,
        owner.owner,
        deps.launcher.environment_key,
        budget=owner.process_budget,
        bridged={name: {"type": "sdk", "name": name} for name in servers} or None,
        rules=rules,
        hooks=deps.enforcer.hooks(profile),
        variables=deps.enforcer.variables(profile, deps.launcher.environment),
        mirrored=deps.replica is not None and _is_copied(owner.options),
    )


def _is_copied(options: SessionOptions) -> bool:
    """Whether a session of a fleet is copied off its machine."""
    return options.persist and not options.stay_on_machine


class LiveProcess:
    """A process from start to end; `gone` returns when nothing of it is left."""

    claims: FrameClaims
    """Checks its frames; created just before the process is spawned."""

    def __init__(
        self,
        owner: "Session | Spare",
        lifecycle: "TurnRunner | Spare",
        frames: "FrameRouter | Spare",
        deps: SessionDeps,
        find_start: Callable[[], ConversationStart] | None,
        *,
        leased: bool = True,
    ) -> None:
        """Take the lease and the slot (SessionBusy, LimitReached), then start the process in a task.

        The process runs for `owner`: a session, or the spare that keeps it for one. `lifecycle` is notified of what
        happens to the process; `frames` gets its frames and those of its bridged MCP servers until it is left.

        SessionBusy too if a foreign Claude Code process has the session open. Such a process ignores leases, so this
        checks again right before the spawn, which may have had to wait. `find_start` blocks on the disk and is called
        in a thread. It is None for a conversation whose id was created here and never used: no process can have it
        open, and it is not on disk. A process that is not `leased` has no session yet, see `hand_to`.
        """
        self._owner = owner
        self._lifecycle = lifecycle
        self._frames = frames
        self._deps = deps
        self._find_start = find_start
        self._leases: list[Lease] = []
        self._tokens: list[str] = []
        """Tokens of `PeerServers.holding`: they announce to other servers which sessions this one has."""
        if leased:
            # The lease first: it keeps out another server that checks at the same time.
            self._take_lease(owner.id)
        try:
            if find_start is not None:
                deps.launcher.check_alone(owner.id)
            deps.slots.take(owner)
        except BaseException:
            # No one can call `leave` on an object whose constructor failed.
            self._release_leases()
            raise
        self.process: ClaudeProcess | None = None
        self.ready = False
        self.ran_hooks = False
        """Whether it ran hooks of the user or the project before it was ready."""
        self.conversation_reset = False
        """Whether the CLI has started another conversation (`/clear`) whose id is not known yet."""
        self.budget_outdated = False
        """After `/clear` the CLI counts its budget from zero: the process must be replaced when it is idle."""
        self.budget: float | None = None
        """What it may spend in dollars; None if that is not limited."""
        self.spent_before = 0.0
        """What its session had spent when it was started."""
        self._began_at = time.time()
        self._replicated: str | None = None
        """The session whose replica is notified of this process."""
        self._closing: asyncio.Task[None] | None = None
        self.bridge: McpBridge | None = None
        self._hub_access = AsyncExitStack()
        """Open for as long as the process may use the hub."""
        # Queued at once, so that answers from now on can report what the start waits for.
        self._place = deps.slots.enqueue(owner)
        # Last, when everything that the task and `leave` use exists.
        self._starting = deps.start_task(self._start(self._place))

    # -- start ------------------------------------------------------------------------------------------------

    async def _start(self, place: StartPlace) -> None:
        """Wait for the slot's turn, open the hub, spawn and initialize the process; then report to the owner that it is
        ready, or why not."""
        deps, owner = self._deps, self._owner
        failure: ClaudeCodeError | None = None
        try:
            async with deps.slots.spawning(place):
                hub = await self._hub_access.enter_async_context(deps.open_hub())
                if hub is not None and owner.options.hub_servers != ():
                    self.bridge = McpBridge(
                        hub,
                        partial(usable_servers, hub, owner.options.hub_servers, deps.enforcer, owner.owner),
                        f"session:{owner.id}",
                        owner.cwd,
                        deps.start_task,
                        deps.redact,
                        lambda line: self._frames.progress_reported(line),  # noqa: PLW0108 - the owner may change
                        lambda server, form: self._frames.form_requested(server, form),  # noqa: PLW0108
                    )
                conversation, used = ConversationStart(owner.id), Usage()
                if self._find_start is not None:
                    conversation, used = await deps.stores.threads.run(self._read_disk, self._find_start)
                # Created before the first frame, with the totals of the transcript.
                self.claims = FrameClaims(owner.id, used)
                launch = launch_of(owner, deps, self.bridge.servers if self.bridge else ())
                self.budget, self.spent_before = launch.budget, owner.costs.spent_usd
                spawning = asyncio.ensure_future(deps.launcher.spawn(self, launch, conversation))
                try:
                    process = self.process = await asyncio.shield(spawning)
                except asyncio.CancelledError:
                    # `leave` cancels the start. This waits for a process that is being spawned (milliseconds), so that
                    # `_close` finds it in `self.process` and stops it.
                    self.process = await spawning
                    raise
                if process.traffic is not None:
                    process.traffic.counted = lambda usage: self._lifecycle.traffic_counted(usage)  # noqa: PLW0108
                    process.traffic.why_refused = self._why_model_is_refused
                self._lifecycle.process_started(process.pid, conversation.api_ms, carried=process.traffic is not None)
                self._replicate()
                await deps.launcher.initialize(process, launch)
            # Outside the limit on starts: a server that hangs must not block other starts.
            await deps.launcher.check_servers(process, owner.options)
            # It may have exited after its last answer: `process_ended` ignores a process that is not ready.
            if process.exited.done():
                raise ProcessFailed(process.exited.result().reason)
        except ClaudeCodeError as error:
            failure = error
        except Exception:
            log.exception("session %s could not be started", owner.id)
            failure = ProcessFailed("Claude Code could not be started.")
        if self._closing is not None:
            return  # it was left while starting: nothing more is reported
        if failure is not None:
            self._lifecycle.start_failed(failure)
            return
        self.ready = True
        if self.bridge is not None:
            self.bridge.follow(process)
        self._lifecycle.process_ready()

    def _replicate(self) -> None:
        """Start replicating what the process writes. A spare has no session yet."""
        replica, owner = self._deps.replica, self._owner
        if replica is None or not _is_copied(owner.options) or not self._leases:
            return
        if self._replicated is not None and self._replicated != owner.id:
            replica.process_gone(self._replicated)  # after `/clear` the session has another id
        self._replicated = owner.id
        replica.process_started(owner.id, self._deps.stores.transcripts, owner.cwd)

    def _why_model_is_refused(self) -> str | None:
        """Why the process may not call the model now; None if it may. Claude Code enforces its own budget, but a
        command of the session that calls the model does not."""
        if self._closing is not None:
            return "The session is being closed."
        left, process = self._owner.process_budget, self.process
        if left is None or process is None or process.traffic is None:
            return None
        # Answers in flight count too: otherwise many at once would each find budget left.
        unfinished = sum(at_least(used, model).cost_usd for model, used in process.traffic.unfinished.models.items())
        spent = self._owner.costs.uncharged_usd + unfinished >= left
        return self.budget_spent if spent else None

    @property
    def budget_spent(self) -> str:
        """The error text for a spent budget: the session's own, or its reservation from a larger one."""
        limits, limit = self._deps.enforcer.limits, self._owner.options.max_budget_usd
        is_own = limit is not None and self.budget is not None and self.budget >= limit - self.spent_before
        if limit is not None and is_own:
            return limits.session_budget_spent(self._owner.owner, limit)
        return limits.reservation_spent(self._owner.id)

    def _read_disk(self, find_start: Callable[[], ConversationStart]) -> tuple[ConversationStart, Usage]:
        """The start of the conversation and its usage so far. Ensures that no other process has it open (SessionBusy)
        and that its transcript is writable. Blocks; a single call, because each costs a thread switch."""
        launcher, transcripts, session_id = self._deps.launcher, self._deps.stores.transcripts, self._owner.id
        # First end leftovers of a killed server and refuse if any other process has the session open: then nothing
        # writes to the transcript while it is read.
        launcher.end_leftover_process(session_id)
        launcher.check_alone(session_id)
        start = find_start()
        if start.resume == session_id:
            with contextlib.suppress(OSError):  # the turn reports if it cannot be saved
                transcripts.end_last_line(session_id)
        else:
            with contextlib.suppress(OSError):  # Claude Code reports that the id is in use
                transcripts.set_aside(session_id)
        return start, Usage() if start.resume is None else transcripts.usage_of(start.resume)

    def hand_to(self, session: "Session", earlier: Sequence[Frame], register: Callable[[], None]) -> None:
        """Give a ready process without a session to one, as if it had been started for it: take the lease (SessionBusy)
        and the previous owner's slot; then, in a task, call `register` in a thread, pass on the `earlier` frames, and
        report that it has started and is ready."""
        # The lease first, because it may be refused: the process then still belongs to the spare, which ends it.
        self._take_lease(session.id)
        self._deps.slots.take(session, instead_of=self._owner)
        self._owner, self._lifecycle, self._frames = session, session.turn_runner, session.frames
        self.budget, self.spent_before = session.process_budget, session.costs.spent_usd
        # As with any start: `_start_for_session` notices if the process ends before it is ready.
        self.ready = False
        self._starting = self._deps.start_task(self._start_for_session(earlier, register))

    async def _start_for_session(self, earlier: Sequence[Frame], register: Callable[[], None]) -> None:
        await asyncio.to_thread(register)
        process = self.process
        # The process may have been left, or may have exited, during the disk write.
        if self._closing is not None or process is None:
            return
        if process.exited.done():  # start another process for the same conversation
            if self.bridge is not None:
                self.bridge.close()
            self.process = None
            self._place = self._deps.slots.enqueue(self._owner)
            await self._start(self._place)
            return
        # In the order in which a process started for the session would have reported.
        self._lifecycle.process_started(process.pid, 0, carried=process.traffic is not None)
        self._replicate()
        for frame in earlier:
            self._frames.frame_received(frame)
        self.ready = True
        self._lifecycle.process_ready()

    async def start_settled(self) -> bool:
        """Wait until the process is ready or has failed; return whether it ran hooks by then. Cancelling the wait
        changes nothing."""
        await asyncio.wait([self._starting])
        return self.ran_hooks

    # -- reports of the process -------------------------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        """Pass a frame on to the process's owner. After `leave` only the costs in results count."""
        if not self.ready and isinstance(frame, System) and frame.subtype.startswith("hook_"):
            self.ran_hooks = True
        if self._closing is None:
            self._frames.frame_received(frame)
        elif isinstance(frame, Result):
            frame.usage = self.claims.late_usage(frame)
            self._lifecycle.late_result(frame)

    @property
    def left(self) -> float | None:
        """What it may still spend in dollars; None if that is not limited."""
        return (
            None if self.budget is None else max(0.0, self.budget - (self._owner.costs.spent_usd - self.spent_before))
        )

    def process_ended(self, exit_: Exit) -> None:
        """Handle the exit of the process. A process that was never ready fails its start instead, which is reported
        separately."""
        if self.ready and self._closing is None:
            self._lifecycle.process_ended(exit_)

    def conversation_moved(self, session_id: str) -> None:
        """Take the lease on the other conversation that the process now writes; SessionBusy if it is taken.

        The lease on the previous conversation is kept until the end, as its transcript may still be written to.
        """
        self.conversation_reset = False
        self.budget_outdated = self.budget is not None
        self._take_lease(session_id)
        self._replicate()

    def why_taken(self, session_id: str) -> str | None:
        """Why the session cannot continue under another id; None if the id was never used. Reads the disk: this is
        called once in the life of a conversation, and must still be true when the session moves."""
        deps, stores = self._deps, self._deps.stores
        known = deps.sessions.known(session_id) is not None
        if known or stores.leases.was_ever_leased(session_id) or stores.recorder.records.knows(session_id):
            return "it belongs to a session of this server"
        try:
            old = stores.transcripts.began_before(session_id, self._began_at)
        except TranscriptUnreadable as error:
            return f"cannot check whether the id is free: {error.message}"
        return "it already has a conversation" if old else None

    @property
    def runs_as_user(self) -> bool:
        """Whether its commands have all rights of this server's user, for whom it also works."""
        return self._owner.owner == LOCAL and self._deps.launcher.home.enclosure is None

    # -- end --------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """End the process in the background; its slot is free at once. A second call does nothing."""
        if self._closing is None:
            self.ready = False
            if self.bridge is not None:
                self.bridge.close()
            # The slots must know it at once: a start that waits for room must not overlap with a process that still
            # runs.
            self._closing = self._deps.start_task(self._close())
            self._deps.slots.leave(self._owner, self._closing)

    async def _close(self) -> None:
        try:
            # A running start is ended first: it may be about to spawn, and only then is `process` final.
            self._starting.cancel()
            await asyncio.wait([self._starting])
            # A task that was cancelled before its first step is still in the queue.
            self._deps.slots.dequeue(self._place)
            if self.bridge is not None:  # it may have been created after the check in `leave`
                self.bridge.close()
            if self.process is not None:
                await self.process.stop(self._deps.settings.stop_timeout)
        except ProcessFailed as error:
            log.error("session %s: %s", self._owner.id, error.message)
        finally:
            try:
                # After the process, which may use the MCP servers until it ends.
                await self._hub_access.aclose()
            finally:
                if self._deps.replica is not None and self._replicated is not None:
                    self._deps.replica.process_gone(self._replicated)
                self._release_leases()

    def _take_lease(self, session_id: str) -> None:
        """Take the lease; SessionBusy if another process has it."""
        self._leases.append(self._deps.stores.leases.take(session_id))
        self._tokens.append(self._deps.peers.holding(session_id))

    def _release_leases(self) -> None:
        for lease in self._leases:
            lease.release()
        # After the leases: a server that waits for the session finds it free when it notices this.
        for token in self._tokens:
            self._deps.peers.released(token)
        self._tokens.clear()

    @property
    def is_gone(self) -> bool:
        return self._closing is not None and self._closing.done()

    async def gone(self) -> None:
        """Wait until the process is stopped and its leases are released. Cancelling the wait changes nothing."""
        if self._closing is not None:
            await asyncio.wait([self._closing])


class CurrentProcess:
    """A session's current process, if any, and the previous one while it is being closed."""

    def __init__(self, session: "Session") -> None:
        self.live: LiveProcess | None = None
        self.starting = asyncio.Lock()
        """Held while a message, or a turn that lost its process, starts one."""
        self.previous: LiveProcess | None = None
        """The process that was left last, which may still be ending."""
        self._session = session

    @property
    def process(self) -> ClaudeProcess | None:
        return self.live.process if self.live is not None else None

    @property
    def uses_model(self) -> bool:
        """Whether the model is answering it, as far as the traffic passes through this server."""
        process = self.process
        return process is not None and process.traffic is not None and process.traffic.open_requests > 0

    @property
    def ready(self) -> bool:
        """Whether there is a process that accepts messages."""
        return self.live is not None and self.live.ready

    @property
    def dormant(self) -> bool:
        """Whether there is no process, not even one that is being closed."""
        return self.live is None and (self.previous is None or self.previous.is_gone)

    def start(self, at_message: str | None = None) -> None:
        """Take lease and slot and start a process at a message of the conversation or at its end; SessionBusy or
        LimitReached if they are not available. A spare process reserved for the session is used first."""
        session = self._session
        # From here on others may know the session: the next process must check.
        new, session.is_new = session.is_new, False
        spare, session.spare = session.spare, None
        taken = spare.hand_over(session) if spare is not None else None
        if taken is None:
            transcripts, origin = session.deps.stores.transcripts, session.origin
            anew = new and origin is None
            find_start = None if anew else partial(find_conversation_start, session.id, transcripts, origin, at_message)
            taken = LiveProcess(session, session.turn_runner, session.frames, session.deps, find_start)
        self.live = taken

    def leave(self) -> None:
        """Close the process, if any. The session can be resumed afterward."""
        # Removed first: everything called below sees a session without a process.
        live, self.live = self.live, None
        if live is None:
            return
        live.leave()
        self.previous = live
        self._session.activity.process_left()
        self._session.turn_runner.charge_unclaimed(final=True)
        if live.conversation_reset:
            # It ended between `/clear` and the frame that names the new conversation. The old one must not return with
            # the next message, so the session continues under a new id of ours.
            self._session.move_to(str(uuid.uuid4()))
