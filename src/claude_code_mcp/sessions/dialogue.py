"""The side of a session that its process drives: frames come in, turns begin and end, questions open.

Every change of state happens in plain synchronous code on the event loop. What must wait (starting, stopping,
interrupting a process) runs in tasks that belong to the service, never to a caller.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from ..claude.frames import ControlCancel, ControlRequest, Frame, Lifecycle, Other, Raw, Result, StreamEvent, System
from ..claude.process import ClaudeProcess
from ..errors import ClaudeCodeError, ProcessFailed
from ..model.events import Event, Output, ProcessChanged, Spent, Stalled, TurnEnded, TurnStarted
from ..model.options import SessionOptions
from ..model.outcome import Outcome, OutcomeCode, read_outcome
from ..model.states import State
from ..model.usage import Usage
from ..processes.child import Exit
from ..store.event_log import EventLog
from ..store.transcripts import is_session_id
from .dependencies import SessionDeps
from .event_writer import EventWriter
from .launcher import Origin
from .live_process import LiveProcess
from .messages import MessageQueue, Turn, UserMessage
from .session_questions import SessionQuestions
from .state import StallTimer, StateTracker

log = logging.getLogger(__name__)


class Dialogue:
    """A conversation and the process that it runs in, while it runs in one."""

    def __init__(
        self, session_id: str, options: SessionOptions, cwd: str, owner: str, around: SessionDeps, usage: Usage
    ) -> None:
        settings = around.settings
        self.id = session_id
        """The conversation that the process writes; another one after it was cleared."""
        self.options = options
        self.cwd = cwd
        self.owner = owner
        self.log = EventLog(settings.event_buffer_size, settings.event_buffer_bytes, self._notice)
        self.used_at = time.time()
        self.turns = 0
        self.model_turns = 0
        self.usage = usage
        self.spent_usd = 0.0
        self.outcome: Outcome | None = None
        self.grants: tuple[Mapping[str, Any], ...] = ()
        self.start_error: ClaudeCodeError | None = None
        """Why the last process could not be started, until another one is tried."""
        self._around = around
        self._incarnation: LiveProcess | None = None
        self._last_incarnation: LiveProcess | None = None
        self._spoke = False
        self._origin: Origin | None = None
        self._reset = False
        """The CLI has begun another conversation and not yet said which."""
        self._outlived = False
        """The process counts its budget from the wrong point, and is to be replaced when it is at rest."""
        self._api_ms = 0
        """The CLI's time with the API at the last result: it counts on over turns and resumes."""
        self._turn: Turn | None = None
        self._mail = MessageQueue()
        self._standing = StateTracker(self.log)
        self._journal = EventWriter(self.log, cwd, around.redact)
        self.narrator = self._journal.narrator
        self._inquiry = SessionQuestions(self, around.broker, around.gate, self._reply, self._question_settled)
        self._silence = StallTimer(settings.stall, lambda: self.state is State.RUNNING, self._stall_seen)

    @property
    def state(self) -> State:
        return self._standing.state

    def _notice(self, event: Event) -> None:
        self._around.notice(self.id, self.owner, event)

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

    def process_started(self, pid: int, api_ms: int) -> None:
        self._api_ms = api_ms
        self._record(ProcessChanged("started", pid))

    def process_ready(self) -> None:
        """It takes messages from now on."""
        if self.state is State.STARTING:
            self._standing.move(State.RUNNING)
        self._silence.watch()
        self._hand_over()

    def _hand_over(self) -> None:
        """Gives the process the messages that it is to have now."""
        process = self._process
        assert process is not None
        if self._turn is None:
            return
        self._spoke = True
        for delivery in self._mail.take_unsent(self._turn):
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
        self.start_error = error
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
        self._outlived = False
        if self._reset:  # it ended before it could name the new conversation; the one before must not come back
            self._move_to(str(uuid.uuid4()))

    def _give_up(self, outcome: Outcome) -> None:
        """Lets go of the process and thereby of the turn, which ends as somebody wanted it to, or else like this."""
        self._let_go()
        turn = self._turn
        if turn is None or turn.ending is None:
            self._end_turn(outcome)
            return
        for waiting in [one for one in self._mail.open if not one.started and one.id != turn.message_id]:
            self._drop(waiting, turn)
        self._end_turn(replace(outcome, code=turn.ending))

    # -- turns ------------------------------------------------------------------------------------------------

    def _begin_turn(self, delivery: UserMessage | None, *, only_asks: bool = False) -> None:
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
            self._around.start_task(self._time_out())

    async def _time_out(self) -> None:
        """The messages behind a turn that took too long are not to blame for it."""
        await self.interrupt(OutcomeCode.TIMEOUT, drop_queued=False)

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
        following = self._mail.settle(outcome, ended.number, except_for=self._to_follow(outcome))
        if following is not None or self._inquiry.pending:
            self._begin_turn(following, only_asks=following is None)
            self._wait_for_answers()
            self._go_on()
        else:
            self._standing.move(outcome.state, outcome.detail)
            if self._outlived:
                self.evict()
        ended.ended.set()

    def _to_follow(self, outcome: Outcome) -> Set[str]:
        """The messages that the outcome of a turn is not for: those that wait behind it.

        Without its process all that it was given end with it. What was held back it has never seen; after a crash
        that is for the next one.
        """
        if self._process is not None:
            return self._process.unfinished | self._mail.unsent
        return self._mail.unsent if outcome.code is OutcomeCode.CRASHED and self.options.persist else frozenset()

    def _go_on(self) -> None:
        """The next turn has its message handed over, to a new process if the one before has crashed."""
        if self._ready:
            self._hand_over()
        elif self._incarnation is None and self._turn is not None:
            self._around.start_task(self._start_process_for(self._turn))

    async def _start_process_for(self, turn: Turn) -> None:
        """Starts a process for a turn that has none, unless it has one or is over by then."""
        raise NotImplementedError

    def evict(self) -> None:
        """Parks the session: closes its process, if it has one; the next message resumes it."""
        if self._incarnation is not None:
            self._record(ProcessChanged("parked", self._process.pid if self._process is not None else None))
            self._let_go()

    def _account(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._journal.retrying = None
        self.used_at = time.time()
        self._spend(outcome.usage)
        self.model_turns += outcome.num_turns

    def _spend(self, usage: Usage) -> None:
        self.usage += usage
        self.spent_usd += usage.cost_usd

    async def interrupt(
        self, code: OutcomeCode = OutcomeCode.INTERRUPTED, *, drop_queued: bool = True
    ) -> Sequence[UserMessage]:
        """Ends the running turn and keeps the session; gives the messages behind it that were dropped.

        Messages that the turn has not taken up are dropped with it, or else run next. Nothing happens when no turn
        is running.
        """
        turn = self._turn
        if turn is None:
            return ()
        if turn.ending is None:
            turn.ending = code
            turn.doomed = frozenset(one.id for one in self._mail.open) if drop_queued else frozenset()
            for held in [
                one for one in self._mail.open if one.id in self._mail.unsent & turn.doomed - {turn.message_id}
            ]:
                self._drop(held, turn)
            if turn.only_asks:
                self._end_turn(Outcome(code, detail="The background task that asked goes on without an answer."))
            elif self._ready:
                self._interrupt_process(turn, drop_queued)
            else:
                self._give_up(Outcome(code, detail="Ended before it had started."))
        await turn.ended.wait()
        return sorted(turn.dropped, key=lambda one: one.accepted)

    def _interrupt_process(self, turn: Turn, drop_queued: bool) -> None:
        assert self._process is not None
        try:
            answer = self._process.ask("interrupt", cancel_queued=drop_queued)
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
                self._follow(frame.raw.get("session_id"))
                self._turn_runs()
            case ControlRequest():
                self._control_request(frame)
            case ControlCancel():
                self._inquiry.withdraw(frame.id)
            case Lifecycle():
                self._message_followed(frame)
            case Other() if frame.raw.get("type") == "conversation_reset":
                self._reset = True

    def progress_told(self, line: str) -> None:
        """A hosted server tells how far a call is."""
        self._silence.broken()
        self._record(Output(line, "progress"))

    def _turn_runs(self) -> None:
        if self._turn is None:
            self._begin_turn(None)  # a background task has reported back
        else:
            self._turn.only_asks = False
        if self._turn is not None:
            self._turn.heard = True

    def _result(self, frame: Result) -> None:
        if self._turn is None:
            return  # an echo of a turn that has its outcome
        if frame.unasked and self._turn.message_id and self._turn.message_id not in frame.message_ids:
            self.late_result(frame)  # news of background work came in between; the message is still to be answered
            return
        outcome = self._outcome_in(frame, interrupted=self._turn.ending is not None)
        if outcome.code is OutcomeCode.INTERRUPTED and self._turn.ending is OutcomeCode.TIMEOUT:
            outcome = replace(outcome, code=OutcomeCode.TIMEOUT, detail="The turn took longer than it was given.")
        if self._turn.moved and outcome.ok and not outcome.result:
            outcome = replace(outcome, result=f"The conversation was cleared. It goes on as session {self.id}.")
        self._end_turn(outcome)

    def _message_followed(self, frame: Lifecycle) -> None:
        """The process tells what became of a message."""
        delivery, turn = self._mail.find(frame.message_id), self._turn
        if delivery is None or delivery.outcome.done():
            return
        delivery.mentioned = True
        if frame.state == "started":
            delivery.started = True
        elif frame.state == "cancelled" and turn is not None and turn.message_id == frame.message_id:
            self._turn_dropped(turn)
        elif frame.state == "cancelled" and not delivery.started:
            self._drop(delivery, turn)

    def _turn_dropped(self, turn: Turn) -> None:
        """An interruption was faster than the message that started this turn: no result will come."""
        for behind in [one for one in self._mail.open if one.id in turn.doomed and one.id != turn.message_id]:
            self._drop(behind, turn)
        self._end_turn(Outcome(turn.ending or OutcomeCode.INTERRUPTED, detail="Ended before it had started."))

    def _drop(self, delivery: UserMessage, turn: Turn | None) -> None:
        """A message that waited behind a turn will never run."""
        told = "The turn before it was interrupted, and this message was dropped before Claude Code had read it."
        self._mail.drop(delivery, Outcome(OutcomeCode.DROPPED, detail=told))
        if turn is not None:
            turn.dropped.append(delivery)

    # -- another conversation ---------------------------------------------------------------------------------

    def _follow(self, session_id: object) -> None:
        """The process says which conversation it writes: after `/clear` it is another one."""
        if isinstance(session_id, str) and session_id != self.id and is_session_id(session_id):
            self._move_to(session_id)

    def _move_to(self, session_id: str) -> None:
        """Everything but the conversation stays: owner, options, totals, log. The old id points here from now on.

        The CLI begins to count its budget anew, so a process that has one is replaced before the next message.
        """
        self._inquiry.withdraw_all("the conversation was cleared")
        old, self.id = self.id, session_id
        self._reset, self._origin, self._api_ms = False, None, 0
        self._around.moved(old, session_id)
        if self._turn is not None:
            self._turn.moved = True
        if self._incarnation is not None:
            self._outlived = self._incarnation.budget is not None
            try:
                self._incarnation.hold(session_id)
            except ClaudeCodeError as error:
                log.error("session %s: %s", session_id, error.message)
                self._give_up(Outcome(OutcomeCode.CRASHED, detail=error.message))

    def late_result(self, frame: Result) -> None:
        """What a turn cost that was given up before it ended. Its outcome stands."""
        usage = self._outcome_in(frame, interrupted=True).usage
        self._spend(usage)
        if usage.models:
            self._record(Spent(usage))

    def _outcome_in(self, frame: Result, *, interrupted: bool) -> Outcome:
        wants_structure = self.options.output_schema is not None
        outcome = read_outcome(frame.raw, wants_structure=wants_structure, interrupted=interrupted, usage=frame.usage)
        total, before = outcome.duration_api_ms, self._api_ms
        self._api_ms = total
        return replace(outcome, duration_api_ms=total - before if total >= before else total)

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

    def granted(self, updates: list[Mapping[str, Any]]) -> None:
        """Somebody allowed something for the whole session, which the next process must be told again."""
        self.grants = (*self.grants, *(one for one in updates if one not in self.grants))

    async def person_asked(self, server: str, form: Raw) -> Raw:
        """An MCP server of the hub wants a form filled in, for a call of this session."""
        if self._turn is None or self._turn.ending is not None:
            return {"action": "cancel"}
        filled = self._inquiry.elicit(server, form)
        self._wait_for_answers()
        return await filled

    def plan_approved(self, mode: str | None) -> None:
        """The session goes on in this mode, also in the processes to come: a resumed one must not plan again."""
        if mode is not None or self.options.permission_mode == "plan":
            self.options = self.options.model_copy(update={"permission_mode": mode or "default"})
            self.grants = tuple(one for one in self.grants if one.get("type") != "setMode")  # this is the newer word

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
