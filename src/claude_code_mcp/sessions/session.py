"""One session: the state machine driven by frames of its process on one side and calls of its users on the other.

Every change of state happens in plain synchronous code on the event loop. What must wait (starting, stopping,
interrupting a process) runs in tasks that belong to the service, never to a caller.
"""

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial

from ..claude.frames import ControlCancel, ControlRequest, Frame, Lifecycle, Raw, Result, StreamEvent, System
from ..claude.process import ClaudeProcess, Exit
from ..errors import Cancelled, ClaudeCodeError, LimitReached, ProcessFailed, SessionBusy, SessionNotFound
from ..model.events import Event, ProcessChanged, Retrying, Stalled, TurnEnded, TurnStarted
from ..model.options import SessionOptions
from ..model.question import Question
from ..model.states import BUSY, State
from ..model.turn import Outcome, OutcomeCode, read_outcome
from ..model.usage import Usage
from ..store.log import EventLog
from .delivery import Delivery, Mail, Turn
from .incarnation import Incarnation
from .inquiry import Inquiry
from .journal import Journal
from .origin import Origin, opening_of
from .silence import Silence
from .standing import Standing
from .surroundings import Surroundings


class Session:
    """A conversation with Claude Code that survives the processes it runs in."""

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        cwd: str,
        owner: str,
        around: Surroundings,
        *,
        origin: Origin | None = None,
        usage: Usage | None = None,
    ) -> None:
        settings = around.settings
        self.id = session_id
        self.options = options
        self.cwd = cwd
        self.owner = owner
        self.log = EventLog(settings.event_buffer_size, settings.event_buffer_bytes)
        self.created_at = self.used_at = time.time()
        self.first_prompt: str | None = None
        self.turns = 0
        self.model_turns = 0
        self.usage = usage or Usage()
        self.spent_usd = 0.0
        self.outcome: Outcome | None = None
        self._around = around
        self._origin = origin
        self._gate = asyncio.Lock()
        self._incarnation: Incarnation | None = None
        self._last_incarnation: Incarnation | None = None
        self._released = False
        self._spoke = False
        self._turn: Turn | None = None
        self._mail = Mail()
        self._standing = Standing(self.log)
        self._journal = Journal(self.log, cwd)
        self.narrator = self._journal.narrator
        self._inquiry = Inquiry(session_id, cwd, around.broker, self.log, self.narrator, self._reply)
        self._silence = Silence(settings.stall, lambda: self.state is State.RUNNING, self._stall_seen)

    # -- what callers see -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._standing.state

    @property
    def busy(self) -> bool:
        return self.state in BUSY

    @property
    def live(self) -> bool:
        """Whether a process is running; otherwise the session is parked."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def questions(self) -> list[Question]:
        return self._inquiry.pending

    @property
    def retrying(self) -> Retrying | None:
        """The last refusal of the API, while the CLI waits to try again."""
        return self._journal.retrying

    @property
    def stalled(self) -> bool:
        """Whether nothing has been heard in the running turn for too long."""
        return self._silence.long

    @property
    def background_tasks(self) -> int:
        return self._journal.background_tasks

    @property
    def turn_seconds(self) -> float | None:
        """How long the current turn has been running."""
        return time.monotonic() - self._turn.started if self._turn else None

    @property
    def idle_seconds(self) -> float:
        return time.time() - self.used_at

    @property
    def budget_left(self) -> float | None:
        """What is left of the session's budget in dollars, None if it has none."""
        limit = self.options.max_budget_usd
        return None if limit is None else max(limit - self.spent_usd, 0.0)

    def refuse_if_busy(self) -> None:
        if self.busy:
            raise SessionBusy(f"Session {self.id} is still working on its last message.", session_id=self.id)

    async def wait(self, timeout: float | None, *, for_questions: bool = True) -> bool:
        """Waits for the end of all turns (or a question, unless told otherwise); tells whether that came."""
        return await self._standing.at_rest(timeout, or_waiting=for_questions)

    # -- messages ---------------------------------------------------------------------------------------------

    async def send(
        self, text: str, *, later: bool = False, timeout: float | None = None, at_message: str | None = None
    ) -> Delivery:
        """Takes a message: into the running turn, or as a new turn, in a resumed process if need be.

        `at_message` first takes the conversation back to that message; what came after it is left behind.
        """
        async with self._gate:
            self._refuse_if_over()
            if at_message is not None:
                self._leave_for_rewind()
            if self._incarnation is None:
                await self._around.launcher.check(self.options, self.cwd)
                await self.closed()
                self._refuse_if_over()
                self._incarnation = self._incarnate(at_message)
            delivery = Delivery(text, later, timeout or self.options.turn_timeout)
            self._accept(delivery)
            return delivery

    def _refuse_if_over(self) -> None:
        if self.state is State.CANCELLED:
            raise Cancelled(f"Session {self.id} was cancelled; it takes no more messages.", session_id=self.id)
        if self._released:
            raise Cancelled(f"Session {self.id} takes no more messages: it is being closed.", session_id=self.id)
        if self.budget_left == 0:
            raise LimitReached(
                f"The budget of ${self.options.max_budget_usd:g} of session {self.id} is spent.",
                session_id=self.id,
            )
        if not self.options.persist and self._spoke and self._incarnation is None:
            raise SessionNotFound(f"Session {self.id} was not persisted and its process is gone.", session_id=self.id)

    def _leave_for_rewind(self) -> None:
        if self.busy:
            raise SessionBusy(f"Session {self.id} cannot go back while a turn is running.", session_id=self.id)
        if self._incarnation is not None:
            self.evict()

    def _accept(self, delivery: Delivery) -> None:
        self.used_at = time.time()
        self.first_prompt = self.first_prompt or delivery.text
        self._mail.accept(delivery)
        if self._turn is None:
            self._begin_turn(delivery)
        if self._ready:
            self._hand_over()

    def _hand_over(self) -> None:
        """Gives the process all messages that it has not been given."""
        process = self._process
        assert process is not None
        self._spoke = True
        for delivery in self._mail.take_unsent():
            try:
                process.send(delivery.text, delivery.id, later=delivery.later)
            except ProcessFailed as error:
                self._around.start_task(self._last_words(process, error))
                return

    async def _last_words(self, process: ClaudeProcess, error: ProcessFailed) -> None:
        """A process that takes no more input is about to end, and its end will tell more; if it does not, this."""
        await asyncio.wait([process.exited], timeout=self._around.settings.stop_timeout)
        if self._process is process:
            self._give_up(Outcome(OutcomeCode.CRASHED, detail=error.message))

    # -- the process ------------------------------------------------------------------------------------------

    @property
    def _process(self) -> ClaudeProcess | None:
        return self._incarnation.process if self._incarnation is not None else None

    @property
    def _ready(self) -> bool:
        return self._incarnation is not None and self._incarnation.ready

    def _incarnate(self, at_message: str | None) -> Incarnation:
        opening = partial(opening_of, self.id, self._around.transcripts, self._origin, at_message)
        return Incarnation(self, self._around, opening)

    def process_started(self, pid: int) -> None:
        self._record(ProcessChanged("started", pid))

    def process_ready(self) -> None:
        if self.state is State.STARTING:
            self._standing.move(State.RUNNING)
        self._hand_over()

    def start_failed(self, error: ClaudeCodeError) -> None:
        self._give_up(Outcome(OutcomeCode.START_FAILED, detail=error.message, error_code=error.code))

    def process_ended(self, exit_: Exit) -> None:
        """The process ended by itself."""
        self._record(ProcessChanged("ended", self.pid, exit_.reason))
        self._give_up(Outcome(OutcomeCode.CRASHED, detail=exit_.reason, exit_code=exit_.code))

    def _let_go(self) -> None:
        """Has the process closed, if there is one. The session can be resumed afterwards."""
        if self._incarnation is not None:
            self._incarnation.leave()
            self._last_incarnation, self._incarnation = self._incarnation, None
        self._journal.process_left()

    def _give_up(self, outcome: Outcome) -> None:
        """Lets go of the process and thereby of the turn, which ends as somebody wanted it to, or else like this."""
        self._let_go()
        wanted = self._turn.ending if self._turn is not None else None
        self._end_turn(replace(outcome, code=wanted) if wanted is not None else outcome)

    @property
    def evictable(self) -> bool:
        return self._ready and not self.busy and self.options.persist and not self._journal.background_work

    def evict(self) -> None:
        """Parks the session: closes its process; the next message resumes it."""
        self._record(ProcessChanged("parked", self.pid))
        self._let_go()

    async def closed(self) -> None:
        """Waits until no process is left that this session has let go of."""
        if self._last_incarnation is not None:
            await self._last_incarnation.gone()

    # -- ending turns and sessions ----------------------------------------------------------------------------

    async def interrupt(self, code: OutcomeCode = OutcomeCode.INTERRUPTED) -> None:
        """Ends the running turn and keeps the session. Nothing happens when no turn is running."""
        turn = self._turn
        if turn is None:
            return
        if turn.ending is None:
            turn.ending = code
            if self._ready:
                self._interrupt_process(turn)
            else:
                self._give_up(Outcome(code, detail="Ended before it had started."))
        await turn.ended.wait()

    def _interrupt_process(self, turn: Turn) -> None:
        assert self._process is not None
        try:
            answer = self._process.ask("interrupt", cancel_queued=True)
        except ProcessFailed as error:
            self._give_up(Outcome(OutcomeCode.INTERRUPTED, detail=error.message))
        else:
            self._around.start_task(self._interruption(turn, answer))

    async def _interruption(self, turn: Turn, answer: "asyncio.Future[Raw]") -> None:
        timeout = self._around.settings.stop_timeout
        with contextlib.suppress(ProcessFailed, TimeoutError):
            await asyncio.wait_for(answer, timeout)
            await asyncio.wait_for(turn.ended.wait(), timeout)
        if self._turn is turn:
            self._give_up(Outcome(OutcomeCode.INTERRUPTED, detail="Claude Code did not react and was stopped."))

    def cancel(self) -> None:
        """Ends the session for good, at once; its process is closed behind it."""
        self._let_go()
        self._end_turn(Outcome(OutcomeCode.CANCELLED, detail="The session was cancelled."))
        self._standing.move(State.CANCELLED)

    def release(self) -> None:
        """Lets go of the process and takes no more messages, when the server stops or forgets the session."""
        self._released = True
        self._give_up(Outcome(OutcomeCode.INTERRUPTED, detail="The server stopped."))

    # -- turns ------------------------------------------------------------------------------------------------

    def _begin_turn(self, delivery: Delivery | None) -> None:
        self.turns += 1
        message_id, prompt = (delivery.id, delivery.text) if delivery else ("", "")
        self._turn = turn = Turn(self.turns, message_id)
        self._journal.retrying = None
        if delivery is not None and delivery.timeout is not None:
            turn.timer = asyncio.get_running_loop().call_later(delivery.timeout, self._out_of_time, turn)
        self._record(TurnStarted(turn.number, message_id, prompt))
        self._standing.move(State.RUNNING if self._ready else State.STARTING)
        self._silence.watch()

    def _out_of_time(self, turn: Turn) -> None:
        if self._turn is turn:
            self._around.start_task(self.interrupt(OutcomeCode.TIMEOUT))

    def _end_turn(self, outcome: Outcome) -> None:
        ended, self._turn = self._turn, None
        if ended is None:
            return
        if ended.timer is not None:
            ended.timer.cancel()
        self._silence.stop()
        self._account(outcome)
        self._record(TurnEnded(ended.number, outcome))
        self._inquiry.withdraw_all("the turn ended")
        queued = self._process.unfinished if self._process is not None else frozenset()
        following = self._mail.settle(outcome, except_for=queued)
        if following is not None:
            self._begin_turn(following)
        else:
            self._standing.move(outcome.state, outcome.detail)
        ended.ended.set()

    def _account(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._journal.retrying = None
        self.used_at = time.time()
        self._spend(outcome.usage)
        self.model_turns += outcome.num_turns

    def _spend(self, usage: Usage) -> None:
        self.usage += usage
        self.spent_usd += usage.cost_usd

    def _record(self, event: Event) -> None:
        self.log.append(event)

    def _stall_seen(self, seconds: float) -> None:
        self._record(Stalled(seconds))

    # -- frames -----------------------------------------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        """Called for every frame of the current process, in order."""
        self._silence.broken()
        self._journal.write(frame)
        if frame.__class__ is StreamEvent:
            return
        match frame:
            case Result():
                self._result(frame)
            case System() if frame.subtype == "init" and self._turn is None:
                self._begin_turn(None)  # a background task has reported back
            case ControlRequest():
                self._control_request(frame)
            case ControlCancel():
                self._inquiry.withdraw(frame.id)
            case Lifecycle() if frame.state == "cancelled":
                self._message_dropped(frame.message_id)

    def _result(self, frame: Result) -> None:
        if self._turn is None:
            return  # an echo of a turn that has its outcome
        outcome = self._outcome_in(frame, interrupted=self._turn.ending is not None)
        if outcome.code is OutcomeCode.INTERRUPTED and self._turn.ending is OutcomeCode.TIMEOUT:
            outcome = _timed_out(outcome)
        self._end_turn(outcome)

    def _message_dropped(self, message_id: str) -> None:
        """An interruption was faster than the message that started this turn: no result will come."""
        if self._turn is not None and self._turn.message_id == message_id:
            code = self._turn.ending or OutcomeCode.INTERRUPTED
            self._end_turn(Outcome(code, detail="Ended before it had started."))

    def _outcome_in(self, frame: Result, *, interrupted: bool) -> Outcome:
        wants_structure = self.options.output_schema is not None
        return read_outcome(frame.raw, wants_structure=wants_structure, interrupted=interrupted)

    def late_result(self, frame: Result) -> None:
        """What a turn cost that was given up before it ended. Its outcome stands."""
        self._spend(self._outcome_in(frame, interrupted=True).usage)

    # -- questions --------------------------------------------------------------------------------------------

    def _control_request(self, frame: ControlRequest) -> None:
        assert self._process is not None
        if frame.subtype != "can_use_tool":
            self._process.refuse(frame.id, f"{frame.subtype} is not supported by this host")
        elif self._turn is None or self._turn.ending is not None:
            self._process.refuse(frame.id, "the turn is being ended")
        else:
            self._inquiry.open(frame)
            if self.questions:
                self._standing.move(State.WAITING)

    def _reply(self, request_id: str, body: Raw | None) -> None:
        """A question was settled; with no body the CLI wants no answer."""
        if body is not None and self._process is not None:
            self._process.answer(request_id, body)
        if self._turn is not None and self.state is State.WAITING and not self.questions:
            self._standing.move(State.RUNNING)
            self._silence.watch()


def _timed_out(outcome: Outcome) -> Outcome:
    return replace(outcome, code=OutcomeCode.TIMEOUT, detail="The turn took longer than it was given.")
