"""A session: a conversation with Claude Code that survives the processes it runs in.

Its parts do the work, and most of them know the session: `TurnRunner` (turn.py) runs the turns, `MessageQueue` has the
accepted messages, `CurrentProcess` (live_process.py) the process, `SessionQuestions` the open questions and
`SessionCosts` the totals; `SessionVerdicts` judges tool calls; `StateTracker` and `StallTimer` (session_state.py)
have the state; `FrameRouter` hands them what the process says.
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
from ..model.events import Spent, Stalled, WaitChanged
from ..model.image import Image
from ..model.options import SessionOptions
from ..model.outcome import BUSY, Outcome, OutcomeCode, State, Usage
from ..model.question import Question
from ..model.usage_limits import LimitWait, OnLimit
from ..state.session_records import SessionRecord, recordable_outcome, recordable_prompt, recordable_wait
from ..transcripts.event_log import EventLog, EventReader
from .event_writer import EventWriter
from .frame_router import FrameRouter
from .launcher import ForkPoint
from .live_process import CurrentProcess
from .messages import MessageQueue, UserMessage, WhenBusy
from .session_costs import SessionCosts
from .session_loader import OnDisk, restored_output
from .session_questions import SessionQuestions
from .session_state import StallTimer, StateTracker
from .session_wiring import SessionDeps
from .spares import Spare
from .turn import TurnRunner
from .verdicts import SessionVerdicts

if TYPE_CHECKING:
    from .outside_sessions import OutsideSession

log = logging.getLogger(__name__)


class Session:
    """One conversation. It is live while it has a process and parked otherwise; the next message resumes it."""

    def __init__(  # noqa: PLR0915 - one statement for each attribute
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
        """`new` says that the id was made here for this object: no process, server, record or transcript has it yet."""
        self.id = session_id
        """The conversation that the process writes; another one after it was cleared."""
        self.options = options
        self.cwd = cwd
        self.owner = owner
        self.recorded_owner = owner
        """The owner in the record, which stays when somebody else resumes the session."""
        self.created_at = self.used_at = time.time()
        self.first_prompt: str | None = None
        self.outcome: Outcome | None = None
        self.notices: tuple[str, ...] = ()
        """What callers are to know of the options that the session was asked for."""
        self.limit_wait: LimitWait | None = None
        """What a usage limit has stopped, until the model has answered again."""
        self.start_error: ClaudeCodeError | None = None
        """Why the last process could not be started, until another one is tried."""
        self.grants: tuple[Mapping[str, Any], ...] = ()
        """Permission updates that were allowed for the whole session; every new process is given them."""
        self.revision = 0  # of the record that it was read from or has written last
        self.beginning = False
        """Whether its first message is about to be accepted: its record says that it runs."""
        self.origin = origin
        """What a fork begins with, until it has a transcript of its own."""
        self.is_new = new
        """Whether nobody else can know of its id: no process was ever started for it."""
        self.outside: OutsideSession | None = None
        """The program outside of this server that runs it, such as Claude Code in a terminal."""
        self.spare: Spare | None = None
        """A process that is ready for its first message, until that comes. The session has its id, from before anybody
        knows of either."""
        self._released = False
        self._cancelling = False
        self._unrecorded = Usage()
        """What the transcript says was used and the record did not know; counted for the owner's day when the session
        goes on."""
        self.deps = deps
        """What it uses in the environment that its next process runs in. Only what belongs to a client's environment
        and directory ever changes: its files stay where they are."""
        self.recorder = deps.stores.recorder
        """Writes its record, to the same place whatever environment it runs in."""
        settings = deps.settings
        kept = settings.event_buffer_size, settings.event_buffer_bytes
        self.log = EventLog(*kept, lambda event: self.deps.notice(self.id, self.owner, event))
        self.events: EventReader = self.log
        """What has happened in the session, to be read and followed."""
        self.activity = EventWriter(self.log, cwd, deps.redact)
        """What its process says of itself: a retry of the API, background work, commands, the size of its context."""
        self.readable_lines = self.activity.readable_lines
        self.state_tracker = StateTracker(self.log)
        self.stall_timer = StallTimer(
            settings.stall_ms / 1000,
            lambda: self.state is State.RUNNING,
            lambda seconds: self.log.append(Stalled(seconds)),
        )
        self.costs = SessionCosts(usage or Usage())
        self.messages = MessageQueue()
        """Those that were accepted and have no outcome yet."""
        self.process = CurrentProcess(self)
        self.verdicts = SessionVerdicts(self)
        self.open_questions = SessionQuestions(self)
        self.turn_runner = TurnRunner(self)
        self.frames = FrameRouter(self)
        """Takes every frame of the current process."""

    @property
    def state(self) -> State:
        return self.state_tracker.state

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
        return self.process.pid

    @property
    def memory_bytes(self) -> int | None:
        """What its process uses with all that it started, as last measured; None if that is not known."""
        return self.deps.slots.memory_of(self.pid)

    @property
    def queued(self) -> str | None:
        """The place of its process among those that wait to start, and what for; None if it does not wait."""
        return self.deps.slots.wait_reason(self)

    @property
    def questions(self) -> list[Question]:
        return self.open_questions.pending

    @property
    def turns(self) -> int:
        """How many turns it has begun in this server."""
        return self.turn_runner.count

    @property
    def turn_seconds(self) -> float | None:
        """How long the current turn has been running."""
        turn = self.turn_runner.current
        return time.monotonic() - turn.started if turn is not None else None

    @property
    def working_seconds(self) -> float:
        """How long the current turn has been running, without the time in which it waited for people."""
        turn = self.turn_runner.current
        if turn is None:
            return 0.0
        return (turn.waiting_since or time.monotonic()) - turn.started - turn.waited

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another server is running a turn of it, as far as was known when it was looked up."""
        return self.busy and self.turn_runner.current is None

    @property
    def stalled(self) -> bool:
        """Whether the running turn has had no output for too long."""
        return self.stall_timer.stalled

    @property
    def usage(self) -> Usage:
        """What the session has used, with what the answers of the running turn say so far."""
        return self.costs.usage_so_far

    @property
    def model_turns(self) -> int:
        """How often the model has answered, with the answers of the running turn so far."""
        return self.costs.turns_so_far

    @property
    def model(self) -> str | None:
        """The model that answered last."""
        return self.costs.model

    @property
    def budget_left(self) -> float | None:
        """What is left of the session's budget in dollars, None if it has none."""
        limit = self.options.max_budget_usd
        return None if limit is None else max(limit - self.costs.spent_usd, 0.0)

    @property
    def process_budget(self) -> float | None:
        """What a process that starts now may spend: what is left to the session, or is reserved of its owner's day."""
        left = (self.budget_left, self.deps.enforcer.limits.spendable(self.owner, self.id))
        return min((amount for amount in left if amount is not None), default=None)

    async def wait(self, timeout: float | None, *, for_questions: bool = True) -> bool:
        """Waits until no turn is running (or a question is open); returns whether that came in time.

        The outcome is on disk by then, as the caller may tell others of it.
        """
        in_time = await self.state_tracker.wait_until_at_rest(timeout, or_waiting=for_questions)
        await self.saved()
        return in_time

    @property
    def not_recorded(self) -> str | None:
        return self.recorder.failure(self.id)

    async def saved(self) -> None:
        """Waits until its record is up to date; a caller may then tell others what the session came to."""
        await self.recorder.saved(self.id)

    @property
    def queued_messages(self) -> list[UserMessage]:
        """The messages that no turn has taken up yet, oldest first."""
        return self.turn_runner.queued

    # -- messages ---------------------------------------------------------------------------------------------

    async def send(
        self,
        text: str,
        *,
        when_busy: WhenBusy = WhenBusy.JOIN,
        timeout: float | None = None,
        at_message: str | None = None,
        sender: SessionDeps | None = None,
        images: tuple[Image, ...] = (),
        message_id: str = "",
        continues: str = "",
        on_limit: OnLimit | None = None,
    ) -> UserMessage:
        """Accepts a message: into the running turn, or as a new turn, in a resumed process if need be.

        `at_message` first takes the conversation back to that message; what came after it is left behind. A turn that
        begins with this message runs in the environment of its `sender`, as far as `_adopt_environment` says. Without
        a `message_id` it gets a new one. One that `continues` a wait for a usage limit is refused (Cancelled) if the
        session does not wait for that any more. `on_limit` changes the option with the acceptance.
        """
        # One message at a time: each may start a process, and two processes would write to one transcript.
        async with self.process.starting:
            # Early too, so that a message which is refused for certain closes no process.
            self._check_accepting(when_busy)
            # One message is sent at a time, so nobody else takes the room that is found here.
            self.messages.check_room()
            if sender is not None:
                # Before the look at the process: one in another environment is closed by this.
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
            # Whether the session is busy is decided together with the acceptance, nothing is awaited in between: of
            # two messages that want a turn of their own at the same time, one is refused.
            self._check_accepting(when_busy)
            if continues and (self.limit_wait is None or self.limit_wait.id != continues or not self.limit_wait.on):
                raise Cancelled(f"Session {self.id} no longer waits for a usage limit.", session_id=self.id)
            # Counted when somebody goes on with the session, and not by each who only looks at it.
            if self._unrecorded.models:
                unrecorded, self._unrecorded = self._unrecorded, Usage()
                self.log.append(Spent(unrecorded))
            if self.process.live is None:
                self.start_error = None
                # Before the message is accepted: a refusal of the lease or the slot must leave nothing in the queue.
                self.process.start(at_message)
            message = UserMessage(text, when_busy is not WhenBusy.JOIN, timeout or self.options.turn_timeout, images)
            message.id, message.continues = message_id or message.id, continues
            self.used_at = time.time()
            if on_limit is not None:
                self.options = self.options.model_copy(update={"on_limit": on_limit})
            if self.beginning or not self.first_prompt:
                self.first_prompt = text
            self.turn_runner.accept(message)
            # With nothing awaited since: the turn may end before its caller is answered, and the record says so.
            self.beginning = False
            return message

    async def take_over(self) -> None:
        """Has another server let go of its process, and learns what that server has recorded. SessionBusy if it is at
        work on the session."""
        async with self.process.starting:
            if self.process.live is None and not self.is_new:
                await self._take_over()

    async def _take_over(self) -> None:
        # What the last turn in another server came to is read after that server has let go of its process.
        await self.deps.neighbours.make_way(self.id, self.deps.stores.leases)
        await self._catch_up()

    async def end_stray(self) -> None:
        """Waits until no process that a killed server has left can read or write the transcript."""
        async with self.process.starting:
            if self.process.live is None:
                await self.turn_runner.wait_for_previous_process()

    def refuse_if_outside(self) -> None:
        if self.outside is not None:
            raise SessionBusy(
                f"Session {self.id} is open in a terminal. Its questions can be answered here; to send a message, "
                "leave it there first, or fork it.",
                session_id=self.id,
            )

    def refuse_if_cancelled(self) -> None:
        if self._cancelling or self.state is State.CANCELLED:
            raise Cancelled(f"Session {self.id} was cancelled; it accepts no more messages.", session_id=self.id)

    def refuse_if_busy(self) -> None:
        if self.busy:
            raise SessionBusy(f"Session {self.id} is still working on the previous message.", session_id=self.id)

    def _check_accepting(self, when_busy: WhenBusy) -> None:
        """Raises why the session takes no message now."""
        self.refuse_if_outside()
        if self.runs_elsewhere:
            raise SessionBusy(f"Session {self.id} is in use by another server on this machine.", session_id=self.id)
        if when_busy is WhenBusy.REFUSE:
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
        """Ends the running turn and keeps the session; returns the messages behind it that were dropped."""
        return await self.turn_runner.interrupt(code, drop_queued=drop_queued)

    async def withdraw(self, message_id: str) -> UserMessage | None:
        """Takes a message back that no turn has taken up yet; None if it is too late."""
        return await self.turn_runner.withdraw(message_id)

    def delivery(self, message_id: str) -> UserMessage | None:
        """A message of this session that has no outcome yet, or was one of the last to get one."""
        return self.messages.find(message_id)

    async def give_up_message(self, message: UserMessage) -> None:
        """Nobody waits for the answer any more: ends its turn; messages behind it run next."""
        if not message.outcome.done():
            await self.interrupt(drop_queued=False)

    async def start_settled(self) -> None:
        """Waits until the process that this session has is ready, or has failed to start: see `start_error`."""
        if self.process.live is not None:
            await self.process.live.start_settled()

    def _adopt_environment(self, sender: SessionDeps) -> None:
        """From the next process on, runs in the environment of a client that sends a message; a process at rest in a
        different one is closed for that. One at work, one that cannot be resumed and one that runs something in the
        background stays; so does a session whose files are below another configuration directory than the client's."""
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
        """Within this context no turn begins, in whichever server. SessionBusy if one runs or something works in the
        background. `without_process` has its process closed first."""
        # Held to the end: a message that comes meanwhile waits, and begins its turn afterwards.
        async with self.process.starting:
            self._check_at_rest()
            if without_process:
                self.park()
            if self.process.live is not None:  # which has the lease
                yield
                return
            # The process that was left last has the lease until it is gone.
            await self.closed()
            lease = await asyncio.to_thread(self.deps.stores.leases.take, self.id)
            try:
                yield
            finally:
                lease.release()

    @contextlib.asynccontextmanager
    async def asking_claude(self) -> AsyncIterator[Callable[..., Awaitable[Raw]]]:
        """Requests to Claude Code itself, in a process without a turn; none begins meanwhile. A process that was
        started for this is closed again. SessionBusy as `at_rest`; raises what keeps the process from starting."""
        async with self.process.starting:
            self._check_at_rest()
            started = self.process.live is None
            if started:
                await self.deps.launcher.check(self.options, self.cwd)
                await self.turn_runner.wait_for_previous_process()
                await self._catch_up()
                # Again: the session may have been cancelled meanwhile, here or by the server that had it.
                self._check_at_rest()
                self.start_error = None
                self.process.start()
            try:
                await self.start_settled()
                # A start that fails lets go of the process; `start_error` says why.
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
        """Ends at a usage limit from now on, or continues automatically after the reset; also after the last limit."""
        self.options = self.options.model_copy(update={"on_limit": on_limit})
        if self.limit_wait is not None:
            self._change_wait(self.limit_wait.switched(on_limit == "wait"))
        else:
            self.recorder.changed(self)

    def continue_now(self) -> None:
        """Sends at once what a usage limit has stopped. InvalidArgument if there is nothing; SessionBusy in a turn."""
        self.refuse_if_busy()
        if self.limit_wait is None:
            raise InvalidArgument(f"No usage limit has stopped session {self.id}.", session_id=self.id)
        self._change_wait(self.limit_wait.hurried(time.time()))

    def wait_is_over(self) -> None:
        """The message that waited was sent by another server, or is never sent."""
        self.limit_wait = None
        self.log.append(WaitChanged(None))

    def give_up_wait(self) -> None:
        """What a usage limit has stopped does not continue automatically."""
        if self.limit_wait is not None and self.limit_wait.on and not self.busy:
            self._change_wait(self.limit_wait.switched(False))

    def _change_wait(self, wait: LimitWait) -> None:
        self.limit_wait = wait
        self.log.append(WaitChanged(wait))
        self.recorder.changed(self)

    # -- permissions that outlive a process -------------------------------------------------------------------

    def grant(self, updates: list[Mapping[str, Any]]) -> None:
        """Permission updates that were allowed for the whole session, which the next process must be given too."""
        news = [update for update in updates if update not in self.grants]
        if news:
            self.grants = (*self.grants, *news)
            self.recorder.changed(self)

    def revoke_mode(self) -> None:
        """Forgets a mode that was granted, because a newer one is set."""
        self.grants = tuple(update for update in self.grants if update.get("type") != "setMode")

    def plan_approved(self, mode: str | None) -> None:
        """The session goes on in this mode, also in the processes to come: a resumed one must not plan again."""
        if mode is not None or self.options.permission_mode == "plan":
            self.options = self.options.model_copy(update={"permission_mode": mode or "default"})
            self.revoke_mode()
            self.recorder.changed(self)

    async def reconfigure(self, change: Mapping[str, Any]) -> None:
        """Goes on with another model or mode, which the policy must admit: at once in the process that runs, and in all
        to come. ProcessFailed if Claude Code does not take it, and nothing is changed then; or if it cannot be
        recorded: then it holds until the server ends."""
        self._check_accepting(WhenBusy.JOIN)
        async with self.process.starting:
            # A process that is still starting takes no such request yet.
            await self.start_settled()
            wanted = SessionOptions.model_validate({**self.options.model_dump(), **change})
            options = self.deps.enforcer.admit(wanted, self.cwd, self.owner)
            process, before, wait = self.process.process, self.options, self.deps.launcher.start_timeout
            if process is not None and options.permission_mode != before.permission_mode:
                mode = options.permission_mode or "default"
                await process.request("set_permission_mode", timeout=wait, mode=mode)
            if process is not None and options.model != before.model:
                await process.request("set_model", timeout=wait, model=options.model or "default")
            # Only after Claude Code has taken it: otherwise the record would say what no process does.
            if options.permission_mode != before.permission_mode:
                self.revoke_mode()
            self.options = options
        # Outside of the lock: the next message need not wait for the disk.
        await self.recorder.save(self)

    # -- the process and its conversation ---------------------------------------------------------------------

    def move_to(self, session_id: str) -> None:
        """The conversation was cleared, and the process writes another one from now on.

        Everything else stays: owner, options, totals, log, the running turn. The old id becomes an alias before
        anything is reported under the new one. If another process holds the new id, this one is given up.
        """
        # While the old id is still ours: the broker knows the open questions by it.
        self.open_questions.withdraw_all("the conversation was cleared")
        old, self.id = self.id, session_id
        self.origin = None
        self.costs.start_api_time(0)
        self.deps.moved(old, session_id)
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
        """Parks the session: closes its process, if it has one; the next message resumes it."""
        self.process.park()

    async def closed(self) -> None:
        """Waits until no process is left that this session has let go of."""
        await self.process.closed()

    async def cancel(self) -> None:
        """Ends the session permanently; its process is closed in the background. No message is accepted from now on.

        A running turn is interrupted first, so that its outcome has its cost.
        """
        self._cancelling = True
        await self.turn_runner.interrupt(OutcomeCode.CANCELLED)
        # For a turn that background work has begun meanwhile. Without a process no message is left for another one.
        self.turn_runner.give_up(Outcome(OutcomeCode.CANCELLED, detail="The session was cancelled."), may_report=True)
        self.state_tracker.move(State.CANCELLED)
        if self.limit_wait is not None:
            self.wait_is_over()

    def release(self, outcome: Outcome) -> None:
        """Lets go of the process and takes no more messages, because the server stops, or another machine has the
        session."""
        # First: whoever hears of the end may send another message at once.
        self._released = True
        turn, wait = self.turn_runner.current, self.limit_wait
        self.turn_runner.give_up(outcome, may_report=True)
        if turn is not None and turn.continues and not turn.begun:
            self.limit_wait = wait  # its message was not read: the next server sends it

    # -- the record -------------------------------------------------------------------------------------------

    def record(self) -> SessionRecord | None:
        """What the session is like now, for its file; None if it is to leave no trace."""
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
        """Takes over what was read from disk; called once, before anything else happens to the session."""
        self.log.restore(restored_output(found.recent, self.readable_lines), found.recent.fingerprint)
        # Not a move: nothing happens now, and nobody is to be told of it.
        self.state_tracker.state = found.state
        self.outcome = found.outcome
        self.costs.model_turns = found.model_turns
        # A turn that another server runs may yet bring their results.
        if not self.busy:
            self.readable_lines.fail_running()
        record, times = found.record, found.recent.times
        if times:
            self.created_at, self.used_at = min(times), max(times)
        if record is not None:
            self._adopt(record)
            # A killed server may not have recorded what the CLI has: that is spent all the same.
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
        """Takes over what another server has recorded of it meanwhile; RecordUnreadable if that cannot be known."""
        await self.saved()
        record = await asyncio.to_thread(self.recorder.records.read, self.id)
        if record is not None and record.revision > self.revision:
            self._adopt(record)
            if record.cancelled:
                self.state_tracker.move(State.CANCELLED)
