"""The side of a session that its process drives: frames come in, turns begin and end, questions open.

Every change of state happens in plain synchronous code on the event loop. What must wait (starting, stopping,
interrupting a process) runs in tasks that belong to the service, never to a caller.
"""

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial

from ..claude.frames import ControlCancel, ControlRequest, Frame, Lifecycle, Raw, Result, StreamEvent, System
from ..claude.process import ClaudeProcess
from ..errors import ClaudeCodeError, ProcessFailed
from ..model.events import Event, Output, ProcessChanged, Spent, Stalled, TurnEnded, TurnStarted
from ..model.options import SessionOptions
from ..model.states import State
from ..model.turn import Outcome, OutcomeCode, read_outcome
from ..model.usage import Usage
from ..processes.child import Exit
from ..store.log import EventLog
from .delivery import Delivery, Mail, Turn
from .incarnation import Incarnation
from .inquiry import Inquiry
from .journal import Journal
from .silence import Silence
from .standing import Standing
from .surroundings import Surroundings


class Dialogue:
    """A conversation and the process that it runs in, while it runs in one."""

    def __init__(
        self, session_id: str, options: SessionOptions, cwd: str, owner: str, around: Surroundings, usage: Usage
    ) -> None:
        settings = around.settings
        self.id = session_id
        self.options = options
        self.cwd = cwd
        self.owner = owner
        self.log = EventLog(
            settings.event_buffer_size, settings.event_buffer_bytes, partial(around.notice, session_id, owner)
        )
        self.used_at = time.time()
        self.turns = 0
        self.model_turns = 0
        self.usage = usage
        self.spent_usd = 0.0
        self.outcome: Outcome | None = None
        self._around = around
        self._incarnation: Incarnation | None = None
        self._last_incarnation: Incarnation | None = None
        self._spoke = False
        self._turn: Turn | None = None
        self._mail = Mail()
        self._standing = Standing(self.log)
        self._journal = Journal(self.log, cwd)
        self.narrator = self._journal.narrator
        self._inquiry = Inquiry(self, around.broker, around.gate, self._reply, self._question_settled)
        self._silence = Silence(settings.stall, lambda: self.state is State.RUNNING, self._stall_seen)

    @property
    def state(self) -> State:
        return self._standing.state

    def _record(self, event: Event) -> None:
        self.log.append(event)

    def _stall_seen(self, seconds: float) -> None:
        self._record(Stalled(seconds))

    # -- the process ------------------------------------------------------------------------------------------

    @property
    def _process(self) -> ClaudeProcess | None:
        return self._incarnation.process if self._incarnation is not None else None

    @property
    def _ready(self) -> bool:
        return self._incarnation is not None and self._incarnation.ready

    def process_started(self, pid: int) -> None:
        self._record(ProcessChanged("started", pid))

    def process_ready(self) -> None:
        """It takes messages from now on."""
        if self.state is State.STARTING:
            self._standing.move(State.RUNNING)
        self._silence.watch()
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

    def start_failed(self, error: ClaudeCodeError) -> None:
        self._give_up(Outcome(OutcomeCode.START_FAILED, detail=error.message, error_code=error.code))

    def process_ended(self, exit_: Exit) -> None:
        """The process ended by itself."""
        pid = self._process.pid if self._process is not None else None
        self._record(ProcessChanged("ended", pid, exit_.reason))
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

    # -- turns ------------------------------------------------------------------------------------------------

    def _begin_turn(self, delivery: Delivery | None, *, only_asks: bool = False) -> None:
        self.turns += 1
        message_id, prompt = (delivery.id, delivery.text) if delivery else ("", "")
        self._turn = turn = Turn(self.turns, message_id, only_asks)
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
        if ended.ending is not None or not self._journal.background_tasks:
            self._inquiry.withdraw_all("the turn ended")
        queued = self._process.unfinished if self._process is not None else frozenset()
        following = self._mail.settle(outcome, except_for=queued)
        if following is not None or self._inquiry.pending:
            self._begin_turn(following, only_asks=following is None)
            self._wait_for_answers()
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

    async def interrupt(self, code: OutcomeCode = OutcomeCode.INTERRUPTED) -> None:
        """Ends the running turn and keeps the session. Nothing happens when no turn is running."""
        turn = self._turn
        if turn is None:
            return
        if turn.ending is None:
            turn.ending = code
            if turn.only_asks:
                self._end_turn(Outcome(code, detail="The background task that asked goes on without an answer."))
            elif self._ready:
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
            case System() if frame.subtype == "init":
                self._turn_runs()
            case ControlRequest():
                self._control_request(frame)
            case ControlCancel():
                self._inquiry.withdraw(frame.id)
            case Lifecycle() if frame.state == "cancelled":
                self._message_dropped(frame.message_id)

    def progress_told(self, line: str) -> None:
        """A hosted server tells how far a call is."""
        self._silence.broken()
        self._record(Output(line, "progress"))

    def _turn_runs(self) -> None:
        if self._turn is None:
            self._begin_turn(None)  # a background task has reported back
        else:
            self._turn.only_asks = False

    def _result(self, frame: Result) -> None:
        if self._turn is None:
            return  # an echo of a turn that has its outcome
        if frame.unasked and self._turn.message_id and self._turn.message_id not in frame.message_ids:
            self.late_result(frame)  # news of background work came in between; the message is still to be answered
            return
        outcome = self._outcome_in(frame, interrupted=self._turn.ending is not None)
        if outcome.code is OutcomeCode.INTERRUPTED and self._turn.ending is OutcomeCode.TIMEOUT:
            outcome = replace(outcome, code=OutcomeCode.TIMEOUT, detail="The turn took longer than it was given.")
        self._end_turn(outcome)

    def _message_dropped(self, message_id: str) -> None:
        """An interruption was faster than the message that started this turn: no result will come."""
        if self._turn is not None and self._turn.message_id == message_id:
            code = self._turn.ending or OutcomeCode.INTERRUPTED
            self._end_turn(Outcome(code, detail="Ended before it had started."))

    def late_result(self, frame: Result) -> None:
        """What a turn cost that was given up before it ended. Its outcome stands."""
        usage = self._outcome_in(frame, interrupted=True).usage
        self._spend(usage)
        if usage.models:
            self._record(Spent(usage))

    def _outcome_in(self, frame: Result, *, interrupted: bool) -> Outcome:
        wants_structure = self.options.output_schema is not None
        return read_outcome(frame.raw, wants_structure=wants_structure, interrupted=interrupted)

    # -- questions --------------------------------------------------------------------------------------------

    def _control_request(self, frame: ControlRequest) -> None:
        assert self._process is not None
        if frame.subtype == "hook_callback":
            self._process.answer(frame.id, self._around.gate.vet(self.owner, self.cwd, frame.request))
        elif frame.subtype == "mcp_message" and self._incarnation is not None and self._incarnation.hosting is not None:
            self._incarnation.hosting.take(self._process, frame)
        elif frame.subtype != "can_use_tool":
            self._process.refuse(frame.id, f"{frame.subtype} is not supported by this host")
        elif self._turn is not None and self._turn.ending is not None:
            self._process.refuse(frame.id, "the turn is being ended")
        else:
            if self._turn is None:
                self._begin_turn(None, only_asks=True)
            self._inquiry.open(frame)
            self._wait_for_answers()

    async def person_asked(self, server: str, form: Raw) -> Raw:
        """An MCP server of the hub wants a form filled in, for a call of this session."""
        if self._turn is None or self._turn.ending is not None:
            return {"action": "cancel"}
        filled = self._inquiry.elicit(server, form)
        self._wait_for_answers()
        return await filled

    def _wait_for_answers(self) -> None:
        if self._inquiry.pending:
            self._standing.move(State.WAITING)

    def _reply(self, request_id: str, body: Raw | None) -> None:
        """A question was settled; with no body there is no answer, which the CLI hears if it still waits for one."""
        if self._process is not None and body is not None:
            self._process.answer(request_id, body)
        elif self._process is not None:
            self._process.refuse(request_id, "the question was withdrawn")

    def _question_settled(self) -> None:
        if self._turn is not None and self.state is State.WAITING and not self._inquiry.pending:
            self._standing.move(State.RUNNING)
            self._silence.watch()
