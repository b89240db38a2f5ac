"""A session: a conversation with Claude Code that survives the processes it runs in.

`Session` is what callers see and do. The work is done by its parts: `TurnRunner` (turn.py) runs the turns,
`MessageQueue` has the accepted messages, `CurrentProcess` (live_process.py) the process, `SessionQuestions` the open
questions, `StateTracker` and `StallTimer` (state.py) the state, `SessionCosts` the totals; `FrameRouter` hands them
what the process says.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..claude.frames import Raw
from ..errors import (
    Cancelled,
    ClaudeCodeError,
    LimitReached,
    ProcessFailed,
    SessionBusy,
    SessionNotFound,
)
from ..model.events import Event, Retrying, Spent, Stalled
from ..model.image import Image
from ..model.options import SessionOptions
from ..model.outcome import Outcome, OutcomeCode
from ..model.question import Question
from ..model.states import BUSY, State
from ..model.usage import Usage
from ..state.session_records import SessionRecord
from ..store.event_log import EventLog, EventReader
from .dependencies import SessionDeps
from .event_writer import EventWriter
from .frame_router import FrameRouter
from .launcher import Origin, find_conversation_start
from .live_process import CurrentProcess, LiveProcess
from .messages import MessageQueue, UserMessage, WhenBusy
from .record_writer import recordable_outcome, recordable_prompt
from .session_costs import SessionCosts
from .session_loader import OnDisk, restored_output
from .session_questions import SessionQuestions
from .spares import Spare
from .state import StallTimer, StateTracker
from .turn import SessionParts, TurnRunner

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
        origin: Origin | None = None,
        usage: Usage | None = None,
    ) -> None:
        settings = deps.settings
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
        self.grants: tuple[Mapping[str, Any], ...] = ()
        """Permission updates that were allowed for the whole session; every new process is given them."""
        self.notices: tuple[str, ...] = ()
        """What callers are to know of the options that the session was asked for."""
        self.start_error: ClaudeCodeError | None = None
        """Why the last process could not be started, until another one is tried."""
        self.log = EventLog(settings.event_buffer_size, settings.event_buffer_bytes, self._notify)
        self.deps = deps
        """What it uses in the environment that its next process runs in. Only what belongs to a client's environment
        and directory ever changes: its files stay where they are."""
        self._origin = origin
        self._spare: Spare | None = None
        """A process that is ready for its first message, until that comes."""
        self.revision = 0  # of the record that it was read from or has written last
        self._released = False
        self._state = StateTracker(self.log)
        self._stall_timer = StallTimer(
            settings.stall, lambda: self.state is State.RUNNING, lambda seconds: self.log.append(Stalled(seconds))
        )
        self._events = EventWriter(self.log, cwd, deps.redact)
        self.readable_lines = self._events.readable_lines
        self._costs = SessionCosts(usage or Usage())
        self._unrecorded = Usage()
        """What the transcript says was used and the record did not know; counted for the owner's day when the session
        goes on."""
        self._messages = MessageQueue()
        self._process = CurrentProcess(self.log, self._events, self._new_process, self._move_to)
        self._questions = SessionQuestions(
            self, deps.broker, deps.gate, self._process.reply, self._process.use_answered
        )
        parts = SessionParts(
            self._state, self._stall_timer, self._events, self._costs, self._messages, self._questions, self._process
        )
        self._turns = TurnRunner(self, deps, parts)
        self.frames = FrameRouter(self, self._turns, parts, deps.gate, self._move_to)
        """Takes every frame of the current process."""

    def _notify(self, event: Event) -> None:
        self.deps.notice(self.id, self.owner, event)

    # -- what callers see -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state.state

    @property
    def busy(self) -> bool:
        return self.state in BUSY

    @property
    def live(self) -> bool:
        """Whether a process is running; otherwise the session is parked."""
        return self._process.process is not None

    @property
    def dormant(self) -> bool:
        """Whether nothing of a process is left, not even one that is being closed."""
        return self._process.dormant

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def memory_bytes(self) -> int | None:
        """What its process uses with all that it started, as last measured; None if that is not known."""
        return self.deps.slots.memory_of(self)

    @property
    def queued(self) -> str | None:
        """The place of its process among those that wait to start, and what for; None if it does not wait."""
        return self.deps.slots.wait_reason(self)

    @property
    def questions(self) -> list[Question]:
        return self._questions.pending

    @property
    def turns(self) -> int:
        """How many turns it has begun in this server."""
        return self._turns.count

    @property
    def turn_seconds(self) -> float | None:
        """How long the current turn has been running."""
        turn = self._turns.current
        return time.monotonic() - turn.started if turn is not None else None

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another server is running a turn of it, as far as was known when it was looked up."""
        return self.busy and self._turns.current is None

    @property
    def retrying(self) -> Retrying | None:
        """The last refusal of the API, while the CLI waits to try again."""
        return self._events.retrying

    @property
    def stalled(self) -> bool:
        """Whether the running turn has had no output for too long."""
        return self._stall_timer.stalled

    @property
    def background_tasks(self) -> int:
        return self._events.background_tasks

    @property
    def background_seconds(self) -> float:
        """How long something has been running in the background without a break."""
        return self._events.background_seconds

    @property
    def background_work(self) -> bool:
        """Whether tasks run in the background, or one of them is about to report."""
        return self._events.background_work

    @property
    def events(self) -> EventReader:
        """What has happened in the session, to be read and followed."""
        return self.log

    @property
    def idle_seconds(self) -> float:
        return time.time() - self.used_at

    @property
    def usage(self) -> Usage:
        """With what the running turn has used so far, as far as its answers say."""
        return self._costs.usage_so_far

    @property
    def model_turns(self) -> int:
        """With the answers of the running turn so far."""
        return self._costs.turns_so_far

    @property
    def model(self) -> str | None:
        """The model that answered last."""
        return self._costs.model

    @property
    def spent_usd(self) -> float:
        """What counts against the budget."""
        return self._costs.spent_usd

    @spent_usd.setter
    def spent_usd(self, amount: float) -> None:
        self._costs.spent_usd = amount

    @property
    def uncharged_usd(self) -> float:
        """The least that was spent beside that."""
        return self._costs.uncharged_usd

    @property
    def at_work(self) -> bool:
        """Whether it counts among the sessions that work: a turn runs, or something of it uses the model without."""
        return self.busy or self._process.uses_model

    @property
    def budget_left(self) -> float | None:
        """What is left of the session's budget in dollars, None if it has none."""
        limit = self.options.max_budget_usd
        return None if limit is None else max(limit - self.spent_usd, 0.0)

    @property
    def process_budget(self) -> float | None:
        """What a process that starts now may spend: what is left to the session, or is reserved of its owner's day."""
        left = (self.budget_left, self.deps.gate.spendable(self.owner, self.id))
        return min((amount for amount in left if amount is not None), default=None)

    @property
    def process_left(self) -> float | None:
        """What its process may still spend, None if there is no process or no limit."""
        live = self._process.live
        if live is None or live.budget is None:
            return None
        return max(0.0, live.budget - (self.spent_usd - live.spent_before))

    async def wait(self, timeout: float | None, *, for_questions: bool = True) -> bool:
        """Waits until no turn is running (or a question is open); returns whether that came in time.

        The outcome is on disk by then, as the caller may tell others of it.
        """
        in_time = await self._state.wait_until_at_rest(timeout, or_waiting=for_questions)
        await self.saved()
        return in_time

    @property
    def not_recorded(self) -> str | None:
        return self.deps.stores.recorder.failure(self.id)

    async def saved(self) -> None:
        """Waits until its record is up to date; a caller may then tell others what the session came to."""
        await self.deps.stores.recorder.saved(self.id)

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
    ) -> UserMessage:
        """Accepts a message: into the running turn, or as a new turn, in a resumed process if need be.

        `at_message` first takes the conversation back to that message; what came after it is left behind. A turn that
        begins with this message runs in the environment of its `sender`, as far as `_go_on_in` says.
        """
        async with self._process.starting:
            self._check_accepting(when_busy)
            if sender is not None:
                self._go_on_in(sender)
            if at_message is not None:
                if self.busy or self.background_work:
                    raise SessionBusy(f"Session {self.id} cannot go back while it is at work.", session_id=self.id)
                self.evict()
            if self._process.live is None:
                await self.deps.launcher.check(self.options, self.cwd)
                await self._turns.clear_way()
                # What the last turn in another server came to is read after that server has let go of its process.
                await self.deps.neighbours.make_way(self.id, self.deps.stores.leases)
                await self._catch_up()
                await self._turns.check_saving()
            # Whether the session is busy is decided together with the acceptance, nothing is awaited in between: of
            # two messages that want a turn of their own at the same time, one is refused.
            self._check_accepting(when_busy)
            if self._unrecorded.models:
                unrecorded, self._unrecorded = self._unrecorded, Usage()
                self.log.append(Spent(unrecorded))
            if self._process.live is None:
                self.start_error = None
                self._process.start(at_message)
            message = UserMessage(text, when_busy is not WhenBusy.JOIN, timeout or self.options.turn_timeout, images)
            self.used_at = time.time()
            self.first_prompt = self.first_prompt or text
            self._turns.accept(message)
            return message

    def refuse_if_cancelled(self) -> None:
        if self.state is State.CANCELLED:
            raise Cancelled(f"Session {self.id} was cancelled; it takes no more messages.", session_id=self.id)

    def refuse_if_busy(self) -> None:
        if self.busy:
            raise SessionBusy(f"Session {self.id} is still working on its last message.", session_id=self.id)

    def _check_accepting(self, when_busy: WhenBusy) -> None:
        """Raises why the session takes no message now."""
        if self.runs_elsewhere:
            raise SessionBusy(f"Session {self.id} is in use by another server on this machine.", session_id=self.id)
        if when_busy is WhenBusy.REFUSE:
            self.refuse_if_busy()
        self.refuse_if_cancelled()
        if self._released:
            raise Cancelled(f"Session {self.id} takes no more messages: the server stops.", session_id=self.id)
        if self.budget_left == 0:
            raise LimitReached(
                f"The budget of ${self.options.max_budget_usd:g} of session {self.id} is spent.",
                session_id=self.id,
            )
        if not self.options.persist and self._turns.any_sent and self._process.live is None:
            raise SessionNotFound(f"Session {self.id} was not persisted and its process is gone.", session_id=self.id)

    def delivery(self, message_id: str) -> UserMessage | None:
        """A message of this session that has no outcome yet, or was one of the last to get one."""
        return self._messages.find(message_id)

    async def give_up_message(self, message: UserMessage) -> None:
        """Nobody waits for the answer any more: ends its turn; messages behind it run next."""
        if not message.outcome.done():
            await self.interrupt(drop_queued=False)

    async def start_settled(self) -> None:
        """Waits until the process that this session has is ready, or has failed to start: see `start_error`."""
        if self._process.live is not None:
            await self._process.live.start_settled()

    async def interrupt(
        self, code: OutcomeCode = OutcomeCode.INTERRUPTED, *, drop_queued: bool = True
    ) -> Sequence[UserMessage]:
        """Ends the running turn and keeps the session; returns the messages behind it that were dropped.

        Messages that the turn has not taken up are dropped with it, or else run next. Nothing happens when no turn
        is running.
        """
        return await self._turns.interrupt(code, drop_queued=drop_queued)

    def _go_on_in(self, sender: SessionDeps) -> None:
        """From the next process on, runs in the environment of a client that sends a message; a process at rest in a
        different one is closed for that. One at work, one that cannot be resumed and one that runs something in the
        background stays; so does a session whose files are below another configuration directory than the client's."""
        if sender.stores is not self.deps.stores:
            return
        same = sender.launcher.environment_key == self.deps.launcher.environment_key
        if self._process.live is not None and not same:
            if not self.evictable:
                return
            self.evict()
        self.deps = sender

    # -- at rest ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def at_rest(self, *, without_process: bool = False) -> AsyncIterator[None]:
        """Within this context no turn begins, in whichever server. SessionBusy if one runs or something works in the
        background. `without_process` has its process closed first."""
        async with self._process.starting:
            self._check_at_rest()
            if without_process:
                self.evict()
            if self._process.live is not None:  # which has the lease
                yield
                return
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
        async with self._process.starting:
            self._check_at_rest()
            started = self._process.live is None
            if started:
                await self.deps.launcher.check(self.options, self.cwd)
                await self._turns.clear_way()
                await self._catch_up()
                self._check_at_rest()
                self.start_error = None
                self._process.start()
            try:
                await self.start_settled()
                process = self._process.process
                if process is None or not self._process.ready:
                    raise self.start_error or ProcessFailed("Claude Code could not be started.")
                yield partial(process.request, timeout=self.deps.settings.start_timeout)
            finally:
                if started:
                    self.evict()
                    await asyncio.shield(self.closed())

    def _check_at_rest(self) -> None:
        self.refuse_if_cancelled()
        if self.busy or self.background_work:
            raise SessionBusy(f"Session {self.id} is at work.", session_id=self.id)
        if self._released:
            raise Cancelled("The server is stopping.", session_id=self.id)

    # -- permissions that outlive a process -------------------------------------------------------------------

    def grant(self, updates: list[Mapping[str, Any]]) -> None:
        """Permission updates that were allowed for the whole session, which the next process must be given too."""
        self.grants = (*self.grants, *(update for update in updates if update not in self.grants))

    def revoke_mode(self) -> None:
        """Forgets a mode that was granted, because a newer one is set."""
        self.grants = tuple(update for update in self.grants if update.get("type") != "setMode")

    def plan_approved(self, mode: str | None) -> None:
        """The session goes on in this mode, also in the processes to come: a resumed one must not plan again."""
        if mode is not None or self.options.permission_mode == "plan":
            self.options = self.options.model_copy(update={"permission_mode": mode or "default"})
            self.revoke_mode()

    async def reconfigure(self, change: Mapping[str, Any]) -> None:
        """Goes on with another model or mode, which the policy must admit: at once in the process that runs, and in all
        to come. ProcessFailed if Claude Code does not take it; then nothing is changed."""
        self._check_accepting(WhenBusy.JOIN)
        async with self._process.starting:
            await self.start_settled()
            wanted = SessionOptions.model_validate({**self.options.model_dump(), **change})
            options = self.deps.gate.admit(wanted, self.cwd, self.owner)
            process, before, wait = self._process.process, self.options, self.deps.launcher.start_timeout
            if process is not None and options.permission_mode != before.permission_mode:
                mode = options.permission_mode or "default"
                await process.request("set_permission_mode", timeout=wait, mode=mode)
            if process is not None and options.model != before.model:
                await process.request("set_model", timeout=wait, model=options.model or "default")
            if options.permission_mode != before.permission_mode:
                self.revoke_mode()
            self.options = options
        await self.deps.stores.recorder.save(self)

    # -- the process and its conversation ---------------------------------------------------------------------

    def begin_with(self, spare: Spare) -> None:
        """Takes the id of a spare process, to begin in it. Only before anybody knows of the session."""
        self.id = spare.id
        self._spare = spare

    async def process_ran_hooks(self) -> bool:
        """Waits until the process has started, or will not; returns whether it ran hooks by then."""
        live = self._process.live
        await self.start_settled()
        return live is None or live.ran_hooks

    def _new_process(self, at_message: str | None) -> LiveProcess:
        spare, self._spare = self._spare, None
        taken = spare.hand_over(self, self._turns, self.frames) if spare is not None else None
        if taken is not None:
            return taken
        find_start = partial(find_conversation_start, self.id, self.deps.stores.transcripts, self._origin, at_message)
        return LiveProcess(self, self._turns, self.frames, self.deps, find_start)

    def _move_to(self, session_id: str) -> None:
        """The conversation was cleared, and the process writes another one from now on.

        Everything else stays: owner, options, totals, log, the running turn. The old id becomes an alias before
        anything is reported under the new one. If another process holds the new id, this one is given up.
        """
        self._questions.withdraw_all("the conversation was cleared")
        old, self.id = self.id, session_id
        self._origin = None
        self._costs.start_api_time(0)
        self.deps.moved(old, session_id)
        if self._turns.current is not None:
            self._turns.current.cleared = True
        if self._process.live is not None:
            try:
                self._process.live.conversation_moved(session_id)
            except ClaudeCodeError as error:
                log.error("session %s: %s", session_id, error.message)
                self._turns.give_up(Outcome(OutcomeCode.CRASHED, detail=error.message))

    @property
    def evictable(self) -> bool:
        return self._process.ready and not self.busy and self.options.persist and not self.background_work

    def evict(self) -> None:
        """Parks the session: closes its process, if it has one; the next message resumes it."""
        self._process.park()

    def cancel(self) -> None:
        """Ends the session for good, at once; its process is closed in the background."""
        self._process.leave()
        self._turns.end(Outcome(OutcomeCode.CANCELLED, detail="The session was cancelled."))
        self._state.move(State.CANCELLED)

    def release(self) -> None:
        """Lets go of the process and takes no more messages, because the server stops."""
        self._released = True
        self._turns.give_up(Outcome(OutcomeCode.INTERRUPTED, detail="The server stopped."))

    async def closed(self) -> None:
        """Waits until no process is left that this session has let go of."""
        await self._process.closed()

    # -- the record -------------------------------------------------------------------------------------------

    def record(self) -> SessionRecord | None:
        """What the session is like now, for its file; None if it is to leave no trace."""
        if not self.options.persist:
            return None
        self.revision += 1
        outcome, cut = recordable_outcome(self.outcome)
        origin = self._origin
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
            running_since=None if self.turn_seconds is None else time.time() - self.turn_seconds,
            spent_usd=self.spent_usd,
            usage=self._costs.usage,
            model_turns=self._costs.model_turns,
            outcome=outcome,
            result_cut=cut,
            grants=self.grants,
        )

    def restore(self, found: OnDisk) -> None:
        """Takes over what was read from disk; called once, before anything else happens to the session."""
        self.log.restore(restored_output(found.recent, self.readable_lines), found.recent.fingerprint)
        self._state.state = found.state
        self.outcome = found.outcome
        self._costs.model_turns = found.model_turns
        if not self.busy:
            self.readable_lines.fail_running()
        record = found.record
        if record is not None:
            self._adopt(record)
            # A killed server may not have recorded what the CLI has: that is spent all the same.
            self._unrecorded = found.usage - record.usage
            self._costs.spent_usd += self._unrecorded.cost_usd
            self._costs.usage, self._costs.model_turns = found.usage, found.model_turns
            self.created_at, self.used_at = record.created_at, record.used_at
            self.first_prompt = record.first_prompt
            self.recorded_owner = record.owner
            self._origin = Origin(*record.origin) if record.origin is not None else None

    def _adopt(self, record: SessionRecord) -> None:
        self.revision = record.revision
        self._costs.usage = record.usage
        self._costs.spent_usd = record.spent_usd
        self._costs.model_turns = record.model_turns
        self.grants = record.grants

    async def _catch_up(self) -> None:
        """Takes over what another server has recorded of it meanwhile; RecordUnreadable if that cannot be known."""
        await self.saved()
        record = await asyncio.to_thread(self.deps.stores.recorder.records.read, self.id)
        if record is not None and record.revision > self.revision:
            self._adopt(record)
            if record.cancelled:
                self._state.move(State.CANCELLED)
