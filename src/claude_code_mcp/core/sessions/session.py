"""A session: a conversation with Claude Code that survives the processes it runs in.

Its parts do the work, and most of them know the session: `TurnRunner` (turn.py) runs the turns, `MessageQueue` holds
the accepted messages, `CurrentProcess` (live_process.py) the process, `SessionQuestions` the open questions and
`SessionCosts` the totals; `SessionVerdicts` judges tool calls; `StateTracker` and `StallTimer` (session_state.py) have
the state; `FrameRouter` passes them the frames of the process.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..claude.protocol import Raw
from ..errors import (
    Cancelled,
    ClaudeCodeError,
    InvalidArgument,
    LimitReached,
    ProcessFailed,
    SessionBusy,
    SessionNotFound,
)
from ..model.events import ProcessChanged, Spent, Stalled, WaitChanged
from ..model.image import Image
from ..model.options import SessionOptions
from ..model.outcome import Outcome, OutcomeCode
from ..model.question import Question
from ..model.states import BUSY, State
from ..model.usage import Usage
from ..model.usage_limits import LimitWait, OnLimit
from ..state.session_records import SessionRecord, recordable_outcome, recordable_prompt, recordable_wait
from ..transcripts.event_log import EventLog
from .live.event_writer import EventWriter
from .live.frame_router import FrameRouter
from .live.launcher import ForkPoint
from .live.live_process import CurrentProcess
from .live.spares import Spare
from .messages import BusyMode, MessageQueue, UserMessage
from .session_costs import SessionCosts
from .session_deps import SessionDeps
from .session_questions import SessionQuestions
from .session_state import StallTimer, StateTracker
from .stored.session_loader import OnDisk, restored_output
from .turn import TurnRunner
from .verdicts import SessionVerdicts

if TYPE_CHECKING:
    from .outside_sessions import OutsideSession

log = logging.getLogger(__name__)


class Session:
    """One conversation. It is live while it has a process and parked otherwise; the next message resumes it."""

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        cwd: str,
        owner: str,
        deps: SessionDeps,
        *,
        origin: ForkPoint | None = None,
        usage: Usage | None = None,
        new: bool = False,
    ) -> None:
        """`new` means that the id was created for this object: no process, server, record or transcript has it yet."""
        self.id = session_id
        """The id of the conversation that the process writes; it changes when the conversation is cleared."""
        self.options = options
        self.cwd = cwd
        self.owner = owner
        self.recorded_owner = owner
        """The owner in the record, which stays when another caller resumes the session."""
        self.created_at = self.used_at = time.time()
        self.first_prompt: str | None = None
        self.outcome: Outcome | None = None
        self.notices: tuple[str, ...] = ()
        """Notices for callers about the requested options."""
        self.limit_wait: LimitWait | None = None
        """The work that a usage limit stopped, until the model answers again."""
        self.start_error: ClaudeCodeError | None = None
        """Why the last process could not be started, until another one is tried."""
        self.grants: tuple[Mapping[str, Any], ...] = ()
        """Permission updates that were allowed for the whole session; every new process is given them."""
        self.revision = 0  # of the record that was read or written last
        self.beginning = False
        """Whether its first message is about to be accepted: its record says that it runs."""
        self.origin = origin
        """The starting point of a fork, until it has its own transcript."""
        self.is_new = new
        """Whether its id is unknown elsewhere: no process was ever started for it."""
        self.outside: OutsideSession | None = None
        """The external program that runs it, such as Claude Code in a terminal."""
        self.spare: Spare | None = None
        """The spare process for its first message, until that arrives. The session took its id before either was
        visible."""
        self._released = False
        self._cancelling = False
        self._unrecorded = Usage()
        """Usage in the transcript that the record lacks; counted toward the owner's day when the session continues."""
        self.deps = deps
        """The dependencies of the environment that its next process runs in. Only the parts that belong to a client's
        environment and directory change; its files stay."""
        self.recorder = deps.stores.recorder
        """Writes its record, always to the same place."""
        settings = deps.settings
        kept = settings.event_buffer_size, settings.event_buffer_bytes
        self.log = EventLog(*kept, partial(deps.bookkeeper.on_event, self))
        self.events = self.log
        """The session's events, for others to read and follow."""
        self.activity = EventWriter(self.log, cwd, deps.redact)
        """What its process reports about itself: API retries, background work, commands, context size."""
        self.readable_lines = self.activity.readable_lines
        self.state_tracker = StateTracker(self.log)
        self.stall_timer = StallTimer(
            settings.stall_ms / 1000,
            lambda: self.state is State.RUNNING,
            lambda seconds: self.log.append(Stalled(seconds)),
        )
        self.costs = SessionCosts(usage or Usage())
        self.messages = MessageQueue()
        """The accepted messages without an outcome."""
        self.process = CurrentProcess(self)
        self.verdicts = SessionVerdicts(self)
        self.open_questions = SessionQuestions(self)
        self.turn_runner = TurnRunner(self)
        self.frames = FrameRouter(self)
        """Handles every frame of the current process."""

    @property
    def state(self) -> State:
        return self.state_tracker.state

    @property
    def shown_directory(self) -> str:
        """Its working directory for display, which may be on another machine."""
        return self.cwd if self.outside is None else self.outside.directory

    @property
    def busy(self) -> bool:
        return self.state in BUSY

    @property
    def continues_at(self) -> float | None:
        """When it continues automatically after a usage limit; None if it does not."""
        wait = self.limit_wait
        return wait.continues_at if wait is not None and wait.on and not self.busy else None

    @property
    def live(self) -> bool:
        """Whether a process is running; otherwise the session is parked."""
        return self.process.process is not None

    @property
    def pid(self) -> int | None:
        process = self.process.process
        return process.pid if process is not None else None

    @property
    def memory_bytes(self) -> int | None:
        """The memory of its process tree as last measured; None if unknown."""
        return self.deps.slots.memory_of(self.pid)

    @property
    def queued(self) -> str | None:
        """The position of its process in the start queue, and what it waits for; None if it does not wait."""
        return self.deps.slots.wait_reason(self)

    @property
    def questions(self) -> list[Question]:
        return self.open_questions.pending

    @property
    def turns(self) -> int:
        """How many turns it has started in this server."""
        return self.turn_runner.count

    @property
    def turn_seconds(self) -> float | None:
        """How long the current turn has been running."""
        turn = self.turn_runner.current
        return time.monotonic() - turn.started if turn is not None else None

    @property
    def working_seconds(self) -> float:
        """How long the current turn has been running, without the time spent waiting for people."""
        turn = self.turn_runner.current
        if turn is None:
            return 0.0
        return (turn.waiting_since or time.monotonic()) - turn.started - turn.waited

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another server was running a turn of it when it was last looked up."""
        return self.busy and self.turn_runner.current is None and self.outside is None

    @property
    def stalled(self) -> bool:
        """Whether the running turn has had no output for too long."""
        return self.stall_timer.stalled

    @property
    def usage(self) -> Usage:
        """The session's usage, including the answers of the running turn so far."""
        return self.costs.usage_so_far

    @property
    def model_turns(self) -> int:
        """How often the model has answered, including the running turn so far."""
        return self.costs.turns_so_far

    @property
    def model(self) -> str | None:
        """The model that answered last."""
        return self.costs.model

    @property
    def budget_left(self) -> float | None:
        """The rest of the session's budget in dollars; None if it has none."""
        limit = self.options.max_budget_usd
        return None if limit is None else max(limit - self.costs.spent_usd, 0.0)

    @property
    def process_budget(self) -> float | None:
        """What a process started now may spend: the rest of the session's budget, or its reservation from its owner's
        day."""
        left = (self.budget_left, self.deps.enforcer.limits.spendable(self.owner, self.id))
        return min((amount for amount in left if amount is not None), default=None)

    async def wait(self, timeout: float | None, *, for_questions: bool = True) -> bool:
        """Wait until no turn is running (or a question is open); return whether that happened in time.

        The outcome is then on disk, because the caller may pass it on.
        """
        in_time = await self.state_tracker.wait_until_at_rest(timeout, or_waiting=for_questions)
        await self.saved()
        return in_time

    @property
    def not_recorded(self) -> str | None:
        return self.recorder.failure(self.id)

    async def saved(self) -> None:
        """Wait until its record is up to date, so that a caller may pass on the outcome."""
        await self.recorder.saved(self.id)

    @property
    def queued_messages(self) -> list[UserMessage]:
        """The messages that no turn has picked up yet, oldest first."""
        return self.turn_runner.queued

    # -- messages ---------------------------------------------------------------------------------------------

    async def send(
        self,
        text: str,
        *,
        busy_mode: BusyMode = BusyMode.JOIN,
        timeout: float | None = None,
        at_message: str | None = None,
        sender: SessionDeps | None = None,
        images: tuple[Image, ...] = (),
        message_id: str = "",
        continues: str = "",
        on_limit: OnLimit | None = None,
    ) -> UserMessage:
        """Accept a message: into the running turn, or as a new turn, resuming the process if needed.

        `at_message` first rewinds the conversation to that message and drops what follows. A turn that starts with this
        message runs in the environment of its `sender`, within the limits of `_adopt_environment`. Without a
        `message_id` it gets a new one. A message that `continues` a wait for a usage limit is refused (Cancelled) if
        the session no longer waits. `on_limit` changes the option on acceptance.
        """
        # One message at a time: each may start a process, and two processes would write to one transcript.
        async with self.process.starting:
            # Checked here too, so that a message that will be refused closes no process.
            self._check_accepting(busy_mode)
            # Only one message is sent at a time, so the room found here stays free.
            self.messages.check_room()
            if sender is not None:
                # Before checking the process: this closes one in another environment.
                self._adopt_environment(sender)
            if at_message is not None:
                if self.busy or self.activity.background_work:
                    raise SessionBusy(f"Session {self.id} cannot be rewound while it is busy.", session_id=self.id)
                self.park()
            if self.process.live is None:
                await self.deps.launcher.check(self.options, self.cwd)
            if self.process.live is None and not self.is_new:
                await self.turn_runner.wait_for_previous_process()
                await self._take_over()
                await self.turn_runner.check_saving()
            # Whether the session is busy is decided together with the acceptance, without an await in between: of two
            # simultaneous messages that each want their own turn, one is refused.
            self._check_accepting(busy_mode)
            if continues and (self.limit_wait is None or self.limit_wait.id != continues or not self.limit_wait.on):
                raise Cancelled(f"Session {self.id} no longer waits for a usage limit.", session_id=self.id)
            # Counted when the session is continued, not each time it is viewed.
            if self._unrecorded.models:
                unrecorded, self._unrecorded = self._unrecorded, Usage()
                self.log.append(Spent(unrecorded))
            if self.process.live is None:
                self.start_error = None
                # Before the message is accepted: if the lease or slot is refused, the queue must be unchanged.
                self.process.start(at_message)
            message = UserMessage(text, busy_mode is not BusyMode.JOIN, timeout or self.options.turn_timeout, images)
            message.id, message.continues = message_id or message.id, continues
            self.used_at = time.time()
            if on_limit is not None:
                self.options = self.options.model_copy(update={"on_limit": on_limit})
            if self.beginning or not self.first_prompt:
                self.first_prompt = text
            self.turn_runner.accept(message)
            # No await before this: the turn may end before its caller is answered, and the record must show it.
            self.beginning = False
            return message

    async def take_over(self) -> None:
        """Have another server release the session's process, and read what that server has recorded. SessionBusy if it
        is working on the session."""
        async with self.process.starting:
            if self.process.live is None and not self.is_new:
                await self._take_over()

    async def _take_over(self) -> None:
        # The outcome of the other server's last turn is read after that server has released the process.
        await self.deps.peers.request_release(self.id, self.deps.stores.leases)
        await self._catch_up()

    async def end_leftover_process(self) -> None:
        """Wait until no process of a killed server can read or write the transcript."""
        async with self.process.starting:
            if self.process.live is None:
                await self.turn_runner.wait_for_previous_process()

    def refuse_if_outside(self) -> None:
        if self.outside is not None:
            raise SessionBusy(
                f"Session {self.id} is open in a terminal. Its questions can be answered here; to send a message, "
                "close it there first, or fork it.",
                session_id=self.id,
            )

    def refuse_if_cancelled(self) -> None:
        if self._cancelling or self.state is State.CANCELLED:
            raise Cancelled(f"Session {self.id} was cancelled; it accepts no more messages.", session_id=self.id)

    def refuse_if_busy(self) -> None:
        if self.busy:
            raise SessionBusy(f"Session {self.id} is still working on the previous message.", session_id=self.id)

    def _check_accepting(self, busy_mode: BusyMode) -> None:
        """Raise the reason why the session accepts no message now."""
        self.refuse_if_outside()
        if self.runs_elsewhere:
            raise SessionBusy(f"Session {self.id} is in use by another server on this machine.", session_id=self.id)
        if busy_mode is BusyMode.REFUSE:
            self.refuse_if_busy()
        self.refuse_if_cancelled()
        if self._released:
            raise Cancelled(f"Session {self.id} accepts no more messages: the server is stopping.", session_id=self.id)
        if self.options.max_budget_usd is not None and self.budget_left == 0:
            limits = self.deps.enforcer.limits
            raise LimitReached(limits.session_budget_spent(self.owner, self.options.max_budget_usd), session_id=self.id)
        if self.deps.replica is not None and not self.options.stay_on_machine:
            self.deps.replica.check_held(self.id)
        if not self.options.persist and self.turn_runner.any_sent and self.process.live is None:
            raise SessionNotFound(f"Session {self.id} was not persisted and its process is gone.", session_id=self.id)

    async def interrupt(
        self, code: OutcomeCode = OutcomeCode.INTERRUPTED, *, drop_queued: bool = True
    ) -> Sequence[UserMessage]:
        """End the running turn and keep the session; return the dropped messages that were queued behind it."""
        return await self.turn_runner.interrupt(code, drop_queued=drop_queued)

    async def withdraw(self, message_id: str) -> UserMessage | None:
        """Withdraw a message that no turn has picked up yet; None if it is too late."""
        return await self.turn_runner.withdraw(message_id)

    def delivery(self, message_id: str) -> UserMessage | None:
        """A message of this session without an outcome, or among the last to get one."""
        return self.messages.find(message_id)

    async def give_up_message(self, message: UserMessage) -> None:
        """End the turn of a message whose answer is no longer needed; messages behind it run next."""
        if not message.outcome.done():
            await self.interrupt(drop_queued=False)

    async def start_settled(self) -> None:
        """Wait until this session's process is ready or has failed to start: see `start_error`."""
        if self.process.live is not None:
            await self.process.live.start_settled()

    def _adopt_environment(self, sender: SessionDeps) -> None:
        """Use the environment of a client that sends a message from the next process on; close an idle process in a
        different environment. A process that is busy, cannot be resumed or has background work stays; so does a session
        whose files are in another configuration directory than the client's."""
        if sender.stores is not self.deps.stores:
            return
        same = sender.launcher.environment_key == self.deps.launcher.environment_key
        if self.process.live is not None and not same:
            if not self.can_park:
                return
            self.park()
        self.deps = sender

    # -- at rest ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def at_rest(self, *, without_process: bool = False) -> AsyncIterator[None]:
        """Context in which no turn starts, on any server. SessionBusy if a turn or background work is running.
        `without_process` closes its process first."""
        # Held to the end: a message that arrives in the meantime waits and starts its turn afterward.
        async with self.process.starting:
            self._check_at_rest()
            if without_process:
                self.park()
            if self.process.live is not None:  # which has the lease
                yield
                return
            # The process that was left last has the lease until it has ended.
            await self.closed()
            lease = await asyncio.to_thread(self.deps.stores.leases.take, self.id)
            try:
                yield
            finally:
                lease.release()

    @contextlib.asynccontextmanager
    async def asking_claude(self) -> AsyncIterator[Callable[..., Awaitable[Raw]]]:
        """Context for requests to Claude Code itself, in a process without a turn; no turn starts in the meantime. A
        process started for this is closed again. SessionBusy like `at_rest`; raises the error if the process cannot
        start."""
        async with self.process.starting:
            self._check_at_rest()
            started = self.process.live is None
            if started:
                await self.deps.launcher.check(self.options, self.cwd)
                await self.turn_runner.wait_for_previous_process()
                await self._catch_up()
                # Again: the session may have been cancelled in the meantime, here or by the server that had it.
                self._check_at_rest()
                self.start_error = None
                self.process.start()
            try:
                await self.start_settled()
                # A failed start releases the process; `start_error` has the reason.
                process = self.process.process
                if process is None or not self.process.ready:
                    raise self.start_error or ProcessFailed("Claude Code could not be started.")
                yield partial(process.request, timeout=self.deps.settings.start_timeout)
            finally:
                if started:
                    self.park()
                    await asyncio.shield(self.closed())

    def _check_at_rest(self) -> None:
        self.refuse_if_outside()
        self.refuse_if_cancelled()
        if self.busy or self.activity.background_work:
            raise SessionBusy(f"Session {self.id} is busy.", session_id=self.id)
        if self._released:
            raise Cancelled("The server is stopping.", session_id=self.id)

    # -- usage limits ------------------------------------------------------------------------------------------

    def set_on_limit(self, on_limit: OnLimit) -> None:
        """Set whether the session ends at a usage limit or continues automatically after the reset; also applies to a
        current limit."""
        self.options = self.options.model_copy(update={"on_limit": on_limit})
        if self.limit_wait is not None:
            self._change_wait(self.limit_wait.switched(on_limit == "wait"))
        else:
            self.recorder.changed(self)

    def continue_now(self) -> None:
        """Send now the message that a usage limit stopped. InvalidArgument if there is none; SessionBusy during a
        turn."""
        self.refuse_if_busy()
        if self.limit_wait is None:
            raise InvalidArgument(f"No usage limit has stopped session {self.id}.", session_id=self.id)
        self._change_wait(self.limit_wait.continuing_now(time.time()))

    def wait_is_over(self) -> None:
        """Note that the waiting message was sent by another server, or will never be sent."""
        self.limit_wait = None
        self.log.append(WaitChanged(None))

    def give_up_wait(self) -> None:
        """Do not continue automatically after a usage limit."""
        if self.limit_wait is not None and self.limit_wait.on and not self.busy:
            self._change_wait(self.limit_wait.switched(False))

    def _change_wait(self, wait: LimitWait) -> None:
        self.limit_wait = wait
        self.log.append(WaitChanged(wait))
        self.recorder.changed(self)

    # -- permissions that outlive a process -------------------------------------------------------------------

    def grant(self, updates: list[Mapping[str, Any]]) -> None:
        """Remember permission updates that were allowed for the whole session, for all later processes."""
        news = [update for update in updates if update not in self.grants]
        if news:
            self.grants = (*self.grants, *news)
            self.recorder.changed(self)

    def revoke_mode(self) -> None:
        """Forget a granted mode because a newer one is set."""
        self.grants = tuple(update for update in self.grants if update.get("type") != "setMode")

    def plan_approved(self, mode: str | None) -> None:
        """Continue in this mode, also in later processes: a resumed one must not plan again."""
        if mode is not None or self.options.permission_mode == "plan":
            self.options = self.options.model_copy(update={"permission_mode": mode or "default"})
            self.revoke_mode()
            self.recorder.changed(self)

    async def reconfigure(self, change: Mapping[str, Any]) -> None:
        """Continue with another model or mode, which the policy must admit: at once in the running process, and in all
        later ones. ProcessFailed if Claude Code rejects it, with nothing changed, or if it cannot be recorded; then it
        holds until the server stops."""
        self._check_accepting(BusyMode.JOIN)
        async with self.process.starting:
            # A process that is still starting does not accept such requests.
            await self.start_settled()
            wanted = SessionOptions.model_validate({**self.options.model_dump(), **change})
            options = self.deps.enforcer.admit(wanted, self.cwd, self.owner)
            process, before, wait = self.process.process, self.options, self.deps.launcher.start_timeout
            if process is not None and options.permission_mode != before.permission_mode:
                mode = options.permission_mode or "default"
                await process.request("set_permission_mode", timeout=wait, mode=mode)
            if process is not None and options.model != before.model:
                await process.request("set_model", timeout=wait, model=options.model or "default")
            # Only after Claude Code accepted it: otherwise the record would not match any process.
            if options.permission_mode != before.permission_mode:
                self.revoke_mode()
            self.options = options
        # Outside the lock: the next message need not wait for the disk.
        await self.recorder.save(self)

    # -- the process and its conversation ---------------------------------------------------------------------

    def move_to(self, session_id: str) -> None:
        """Follow a cleared conversation: the process writes another one from now on.

        Everything else stays: owner, options, totals, log, the running turn. The old id becomes an alias before
        anything is reported under the new one. If another process holds the new id, this process is stopped.
        """
        # While the old id is still current: the broker indexes the open questions by it.
        self.open_questions.withdraw_all("the conversation was cleared")
        old, self.id = self.id, session_id
        self.origin = None
        self.costs.start_api_time(0)
        self.deps.bookkeeper.on_moved(self, old)
        if self.turn_runner.current is not None:
            self.turn_runner.current.cleared = True
        if self.process.live is not None:
            try:
                self.process.live.conversation_moved(session_id)
            except ClaudeCodeError as error:
                log.error("session %s: %s", session_id, error.message)
                self.turn_runner.give_up(Outcome(OutcomeCode.CRASHED, detail=error.message))

    @property
    def can_park(self) -> bool:
        return self.process.ready and not self.busy and self.options.persist and not self.activity.background_work

    def park(self) -> None:
        """Park the session: close its process, if any; the next message resumes it."""
        if self.process.live is not None:
            self.log.append(ProcessChanged("parked", self.pid))
            self.process.leave()

    async def closed(self) -> None:
        """Wait until every process that this session released has ended."""
        if self.process.previous is not None:
            await self.process.previous.gone()

    async def cancel(self) -> None:
        """End the session permanently and close its process in the background. It accepts no more messages.

        A running turn is interrupted first, so that its outcome has its cost.
        """
        self._cancelling = True
        await self.turn_runner.interrupt(OutcomeCode.CANCELLED)
        # For a turn that background work started in the meantime. Without a process no message is left for another one.
        self.turn_runner.give_up(Outcome(OutcomeCode.CANCELLED, detail="The session was cancelled."), may_report=True)
        self.state_tracker.move(State.CANCELLED)
        if self.limit_wait is not None:
            self.wait_is_over()

    def release(self, outcome: Outcome) -> None:
        """Release the process and accept no more messages, because the server is stopping or another machine has the
        session."""
        # First: a listener may send another message at once.
        self._released = True
        turn, wait = self.turn_runner.current, self.limit_wait
        self.turn_runner.give_up(outcome, may_report=True)
        if turn is not None and turn.continues and not turn.begun:
            self.limit_wait = wait  # its message was not read: the next server sends it

    # -- the record -------------------------------------------------------------------------------------------

    def record(self) -> SessionRecord | None:
        """The current state of the session for its record; None if it must leave no trace."""
        if not self.options.persist or self.outside is not None:
            return None
        self.revision += 1
        outcome, cut = recordable_outcome(self.outcome)
        origin, seconds = self.origin, 0.0 if self.beginning else None
        if self.turn_seconds is not None:
            seconds = self.turn_seconds
        return SessionRecord(
            revision=self.revision,
            session_id=self.id,
            owner=self.recorded_owner,
            created_at=self.created_at,
            used_at=self.used_at,
            cwd=self.cwd,
            options=self.options.model_copy(update={"cwd": None}),
            first_prompt=recordable_prompt(self.first_prompt),
            origin=(origin.session_id, origin.at_message) if origin is not None else None,
            cancelled=self.state is State.CANCELLED,
            running_since=None if seconds is None else time.time() - seconds,
            spent_usd=self.costs.spent_usd,
            usage=self.costs.usage,
            model_turns=self.costs.model_turns,
            outcome=outcome,
            result_cut=cut,
            grants=self.grants,
            limit_wait=recordable_wait(self.limit_wait),
        )

    def restore(self, found: OnDisk) -> None:
        """Apply the state read from disk; called once, before anything else happens to the session."""
        self.log.restore(restored_output(found.recent, self.readable_lines), found.recent.fingerprint)
        # Not a move: nothing happens now, and no event is due.
        self.state_tracker.state = found.state
        self.outcome = found.outcome
        self.costs.model_turns = found.model_turns
        # A turn running on another server may still bring their results.
        if not self.busy:
            self.readable_lines.fail_running()
        record, times = found.record, found.recent.times
        if times:
            self.created_at, self.used_at = min(times), max(times)
        if record is not None:
            self._adopt(record)
            # A killed server may not have recorded usage that the CLI recorded: it was spent anyway.
            self._unrecorded = found.usage - record.usage
            self.costs.spent_usd += self._unrecorded.cost_usd
            self.costs.usage, self.costs.model_turns = found.usage, found.model_turns
            # It may have been used in a terminal since.
            self.created_at, self.used_at = record.created_at, max([record.used_at, *times[-1:]])
            self.first_prompt = record.first_prompt
            self.recorded_owner = record.owner
            self.origin = ForkPoint(*record.origin) if record.origin is not None else None

    def _adopt(self, record: SessionRecord) -> None:
        self.revision = record.revision
        self.costs.usage = record.usage
        self.costs.spent_usd = record.spent_usd
        self.costs.model_turns = record.model_turns
        self.grants = record.grants
        self.limit_wait = record.limit_wait

    async def _catch_up(self) -> None:
        """Apply what another server has recorded in the meantime; RecordUnreadable if that cannot be read."""
        await self.saved()
        record = await asyncio.to_thread(self.recorder.records.read, self.id)
        if record is not None and record.revision > self.revision:
            self._adopt(record)
            if record.cancelled:
                self.state_tracker.move(State.CANCELLED)
