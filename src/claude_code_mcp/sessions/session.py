"""One session: the state machine driven by frames of its process on one side and calls of its users on the other.

Every change of state happens in plain synchronous code on the event loop. What must wait (starting, stopping,
interrupting a process) runs in tasks that belong to the service, never to a caller.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from ..claude.argv import Opening
from ..claude.frames import (
    ControlCancel,
    ControlRequest,
    Conversation,
    Frame,
    Garbage,
    Lifecycle,
    Other,
    Raw,
    Result,
    StreamEvent,
    System,
)
from ..claude.process import ClaudeProcess, Exit
from ..config import Settings
from ..errors import Cancelled, ClaudeCodeError, LimitReached, ProcessFailed, SessionNotFound
from ..model.events import (
    Event,
    Message,
    Noise,
    Output,
    Partial,
    ProcessChanged,
    QuestionOpened,
    QuestionSettled,
    Retrying,
    Stalled,
    StateChanged,
    TurnEnded,
    TurnStarted,
)
from ..model.options import SessionOptions
from ..model.question import Question, QuestionKind, Resolution
from ..model.states import BUSY, State, move
from ..model.turn import Outcome, OutcomeCode, read_outcome
from ..model.usage import Usage
from ..questions.broker import Broker
from ..store.lease import Lease, Leases
from ..store.log import EventLog
from ..store.transcripts import Transcripts
from .delivery import Delivery, Turn
from .launch import Launcher
from .narrator import Narrator
from .slots import Slots

log = logging.getLogger(__name__)

_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all sessions of a service share."""

    settings: Settings
    launcher: Launcher
    broker: Broker
    leases: Leases
    transcripts: Transcripts
    slots: Slots
    start_task: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a session's conversation comes from, until it has a transcript of its own."""

    session_id: str
    at_message: str | None = None


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
        self.narrator = Narrator()
        self.state = State.IDLE
        self.created_at = self.used_at = time.time()
        self.first_prompt: str | None = None
        self.turns = 0
        self.model_turns = 0
        self.usage = usage or Usage()
        self.spent_usd = 0.0
        self.outcome: Outcome | None = None
        self.retrying: Retrying | None = None
        self.stalled = False
        self.background_tasks = 0
        self._around = around
        self._origin = origin
        self._gate = asyncio.Lock()
        self._process: ClaudeProcess | None = None
        self._ready = False
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._lease: Lease | None = None
        self._turn: Turn | None = None
        self._outbox: list[Delivery] = []
        self._deliveries: dict[str, Delivery] = {}
        self._asked: dict[str, str] = {}
        self._heard = time.monotonic()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._pulse = asyncio.Event()

    # -- what callers see -------------------------------------------------------------------------------------

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
        return self._around.broker.pending(self.id)

    @property
    def turn_seconds(self) -> float | None:
        """How long the current turn has been running."""
        return time.monotonic() - self._turn.started if self._turn else None

    @property
    def idle_seconds(self) -> float:
        return time.time() - self.used_at

    async def wait(self, timeout: float | None, *, for_questions: bool = True) -> bool:
        """Waits for the end of all turns (or a question, unless told otherwise); tells whether that came."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.busy and not (for_questions and self.state is State.WAITING):
                    await self._pulse.wait()
        return not self.busy or (for_questions and self.state is State.WAITING)

    # -- messages ---------------------------------------------------------------------------------------------

    async def send(self, text: str, *, later: bool = False, timeout: float | None = None) -> Delivery:
        """Takes a message: into the running turn, or as a new turn, in a resumed process if need be."""
        async with self._gate:
            self._refuse_if_over()
            if self._process is None and self._starting is None:
                await self._prepare()
            delivery = Delivery(text, later, timeout or self.options.turn_timeout)
            self._accept(delivery)
            return delivery

    def _refuse_if_over(self) -> None:
        if self.state is State.CANCELLED:
            raise Cancelled(f"Session {self.id} was cancelled; it takes no more messages.", session_id=self.id)
        if self.options.max_budget_usd is not None and self._budget_left() <= 0:
            raise LimitReached(
                f"The budget of ${self.options.max_budget_usd:g} of session {self.id} is spent.",
                session_id=self.id,
            )
        if not self.options.persist and self.turns and self._process is None:
            raise SessionNotFound(
                f"Session {self.id} was not persisted and its process is gone.", session_id=self.id
            )

    def _budget_left(self) -> float:
        return (self.options.max_budget_usd or 0.0) - self.spent_usd

    async def _prepare(self) -> None:
        """Everything a start needs that may be refused, before the message is accepted."""
        await self._around.launcher.check(self.options, self.cwd)
        if self._closing is not None:
            await asyncio.wait([self._closing])
        self._around.slots.take(self)
        try:
            if self._lease is None:
                self._lease = await asyncio.to_thread(self._around.leases.take, self.id)
        except BaseException:
            self._around.slots.leave(self)
            raise
        self._starting = self._around.start_task(self._bring_up())

    def _accept(self, delivery: Delivery) -> None:
        self.used_at = time.time()
        self.first_prompt = self.first_prompt or delivery.text
        self._deliveries[delivery.id] = delivery
        self._outbox.append(delivery)
        if self._turn is None:
            self._begin_turn(delivery)
        if self._ready:
            self._flush()

    def _flush(self) -> None:
        assert self._process is not None
        for delivery in self._outbox:
            try:
                self._process.send(delivery.text, delivery.id, later=delivery.later)
            except ProcessFailed as error:
                self._end_turn(Outcome(OutcomeCode.CRASHED, detail=error.message))
                self._detach()
                break
        self._outbox.clear()

    # -- the process ------------------------------------------------------------------------------------------

    async def _bring_up(self) -> None:
        try:
            async with self._around.slots.spawning():
                await self._open()
        except asyncio.CancelledError:
            self._give_up(Outcome(self._ending(OutcomeCode.INTERRUPTED), detail="Ended before it had started."))
        except ClaudeCodeError as error:
            self._give_up(
                Outcome(self._ending(OutcomeCode.START_FAILED), detail=error.message, error_code=error.code)
            )
        except Exception:
            log.exception("session %s could not be started", self.id)
            self._give_up(Outcome(OutcomeCode.START_FAILED, detail="Claude Code could not be started."))
        else:
            self._starting = None
            self._ready = True
            self._set_state(State.RUNNING if self.state is State.STARTING else self.state)
            self._flush()

    async def _open(self) -> None:
        around = self._around
        opening = await asyncio.to_thread(self._opening)
        budget = None if self.options.max_budget_usd is None else max(self._budget_left(), 1e-6)
        starting = asyncio.ensure_future(around.launcher.start(self, self.options, opening, self.cwd, budget))
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._process = await starting  # it is a matter of milliseconds, and must not run unseen
            raise
        self._record(ProcessChanged("started", self._process.pid))
        await around.launcher.initialize(self._process)

    def _opening(self) -> Opening:
        if self._around.transcripts.resumable(self.id):
            at_message, self._origin = (self._origin.at_message if self._origin else None), None
            return Opening(self.id, self.id, at_message)
        if self._origin is not None:
            return Opening(self.id, self._origin.session_id, self._origin.at_message)
        return Opening(self.id)

    def _give_up(self, outcome: Outcome) -> None:
        self._starting = None
        self._end_turn(outcome)
        self._detach()

    def _detach(self) -> None:
        """Lets go of the process, if there is one, and has it closed. The session can be resumed afterwards."""
        process, self._process = self._process, None
        self._ready = False
        self.background_tasks = 0
        if process is not None:
            process.disown()
        self._closing = self._around.start_task(self._close(process))
        self._around.slots.leave(self, self._closing)

    async def _close(self, process: ClaudeProcess | None) -> None:
        lease, self._lease = self._lease, None
        try:
            if process is not None:
                await process.stop(self._around.settings.stop_timeout)
        except ProcessFailed as error:
            log.error("session %s: %s", self.id, error.message)
        finally:
            if lease is not None:
                lease.release()

    @property
    def evictable(self) -> bool:
        return self._ready and not self.busy and self.options.persist and not self.background_tasks

    def evict(self) -> None:
        """Parks the session: closes its process; the next message resumes it."""
        self._record(ProcessChanged("parked", self.pid))
        self._detach()

    def process_ended(self, exit_: Exit) -> None:
        """The process ended by itself."""
        self._record(ProcessChanged("ended", self.pid, exit_.reason))
        if self._ready:
            code = self._ending(OutcomeCode.CRASHED)
            self._end_turn(Outcome(code, detail=exit_.reason, exit_code=exit_.code))
            self._detach()

    async def closed(self) -> None:
        """Waits until no process of this session is left."""
        while waiting := [
            task for task in (self._starting, self._closing) if task is not None and not task.done()
        ]:
            await asyncio.wait(waiting)

    # -- ending turns and sessions ----------------------------------------------------------------------------

    async def interrupt(self, code: OutcomeCode = OutcomeCode.INTERRUPTED) -> None:
        """Ends the running turn and keeps the session. Nothing happens when no turn is running."""
        turn = self._turn
        if turn is None:
            return
        turn.ending = turn.ending or code
        if not self._ready:
            self._abandon_start()
        elif not await self._interrupted(turn):
            self._end_turn(Outcome(turn.ending, detail="Claude Code did not react and was stopped."), turn)
            self._detach()
        await turn.ended.wait()

    def _abandon_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()

    async def _interrupted(self, turn: Turn) -> bool:
        assert self._process is not None
        timeout = self._around.settings.stop_timeout
        try:
            await self._process.request("interrupt", timeout=timeout, cancel_queued=True)
            await asyncio.wait_for(turn.ended.wait(), timeout)
        except (ProcessFailed, TimeoutError):
            return turn.ended.is_set()
        return True

    def cancel(self) -> None:
        """Ends the session for good, at once; its process is closed behind it."""
        if self.state is State.CANCELLED:
            return
        self._end_turn(Outcome(OutcomeCode.CANCELLED, detail="The session was cancelled."))
        self._set_state(State.CANCELLED)
        self._around.broker.withdraw_all(self.id, "the session was cancelled")
        if self._starting is not None:
            self._starting.cancel()
        elif self._process is not None:
            self._detach()

    def release(self) -> None:
        """Lets go of the process without a change of state, when the server stops."""
        if self._starting is not None:
            self._abandon_start()
        elif self._process is not None:
            self._end_turn(Outcome(OutcomeCode.INTERRUPTED, detail="The server stopped."))
            self._detach()

    def _ending(self, otherwise: OutcomeCode) -> OutcomeCode:
        return (self._turn.ending if self._turn else None) or otherwise

    # -- turns ------------------------------------------------------------------------------------------------

    def _begin_turn(self, delivery: Delivery | None) -> None:
        self.turns += 1
        self._turn = turn = Turn(self.turns)
        self.retrying, self.stalled = None, False
        if delivery is not None and delivery.timeout is not None:
            turn.timer = asyncio.get_running_loop().call_later(delivery.timeout, self._out_of_time, turn)
        message_id, prompt = (delivery.id, delivery.text) if delivery else ("", "")
        self._record(TurnStarted(turn.number, message_id, prompt))
        self._set_state(State.RUNNING if self._ready else State.STARTING)
        self._watch_for_stall()

    def _out_of_time(self, turn: Turn) -> None:
        if self._turn is turn:
            self._around.start_task(self.interrupt(OutcomeCode.TIMEOUT))

    def _end_turn(self, outcome: Outcome, turn: Turn | None = None) -> None:
        ended = self._turn
        if ended is None or turn not in (None, ended):
            return
        self._turn = None
        if ended.timer is not None:
            ended.timer.cancel()
        self._account(outcome)
        self._record(TurnEnded(ended.number, outcome))
        self._around.broker.withdraw_all(self.id, "the turn ended")
        remaining = self._settle_deliveries(outcome)
        if remaining and self.state is not State.CANCELLED:
            self._begin_turn(remaining[0])
        else:
            self._set_state(outcome.state, outcome.detail)
        ended.ended.set()

    def _account(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.retrying, self.stalled = None, False
        self.used_at = time.time()
        self.usage += outcome.usage
        self.spent_usd += outcome.usage.cost_usd
        self.model_turns += outcome.num_turns

    def _settle_deliveries(self, outcome: Outcome) -> list[Delivery]:
        """Settles what this turn answered; gives back what the process has still queued."""
        ours = outcome.subtype is None or self._process is None
        queued = set() if ours else self._process.unfinished  # type: ignore[union-attr]
        for delivery in [one for one in self._deliveries.values() if one.id not in queued]:
            delivery.settle(outcome)
            del self._deliveries[delivery.id]
        if ours:
            self._outbox.clear()
        return list(self._deliveries.values())

    def _set_state(self, state: State, detail: str = "") -> None:
        if state is self.state:
            return
        self.state = move(self.state, state)
        self._record(StateChanged(state, detail))
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    def _record(self, event: Event) -> None:
        self.log.append(event)

    # -- silence ----------------------------------------------------------------------------------------------

    def _watch_for_stall(self) -> None:
        self._heard = time.monotonic()
        if self._stall_timer is None:
            self._look_later(self._around.settings.stall)

    def _look_later(self, seconds: float) -> None:
        self._stall_timer = asyncio.get_running_loop().call_later(seconds, self._look_for_stall)

    def _look_for_stall(self) -> None:
        self._stall_timer = None
        if self._turn is None:
            return
        limit, silent = self._around.settings.stall, time.monotonic() - self._heard
        if silent >= limit and self.state is State.RUNNING and not self.stalled:
            self.stalled = True
            self._record(Stalled(silent))
        self._look_later(max(limit - silent, limit / 10))

    # -- frames -----------------------------------------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        """Called by the process for every frame, in order."""
        self._heard = time.monotonic()
        self.stalled = False
        if frame.__class__ is StreamEvent:
            self._stream_event(frame)
            return
        match frame:
            case Conversation():
                self._conversation(frame)
            case Result():
                self._result(frame)
            case System():
                self._system(frame)
            case ControlRequest():
                self._control_request(frame)
            case ControlCancel():
                self._around.broker.withdraw(
                    self._asked.pop(frame.id, ""), "Claude Code no longer needs an answer"
                )
            case Lifecycle() | Other():
                self._record(Message(frame.raw, size=frame.size))
            case Garbage():
                self._record(Noise(frame.text, size=min(frame.size, 2000)))

    def _stream_event(self, frame: StreamEvent) -> None:
        event = frame.raw.get("event") or {}
        delta = event.get("delta") or {}
        field = _DELTAS.get(delta.get("type", ""))
        if field is None:
            self._record(Partial("", raw=frame.raw))
            if event.get("type") == "content_block_start":
                self.narrator.block_started()
            return
        text = delta.get(field, "")
        self.log.append(Partial(text, field, frame.raw))
        if field == "text" and frame.raw.get("parent_tool_use_id") is None:
            for line in self.narrator.fragment(text):
                self._record(Output(line, size=len(line)))

    def _conversation(self, frame: Conversation) -> None:
        self.retrying = None
        self._record(Message(frame.raw, size=frame.size))
        for kind, line in self.narrator.conversation(frame):
            self._record(Output(line, kind, size=len(line)))

    def _result(self, frame: Result) -> None:
        self._record(Message(frame.raw, size=frame.size))
        if self._turn is None:
            self._begin_turn(None)
        asked_for = self._turn.ending if self._turn else None
        outcome = read_outcome(
            frame.raw,
            wants_structure=self.options.output_schema is not None,
            interrupted=asked_for is not None,
        )
        if outcome.code is OutcomeCode.INTERRUPTED and asked_for is OutcomeCode.TIMEOUT:
            outcome = _timed_out(outcome)
        self._end_turn(outcome)

    def _system(self, frame: System) -> None:
        self._record(Message(frame.raw, size=frame.size))
        if frame.subtype == "init" and self._turn is None:
            self._begin_turn(None)  # a background task has reported back
        elif frame.subtype == "api_retry":
            self.retrying = _retry(frame.raw)
            self._record(self.retrying)
        elif frame.subtype == "background_tasks_changed":
            tasks = frame.raw.get("tasks")
            self.background_tasks = len(tasks) if isinstance(tasks, list) else 0

    # -- questions --------------------------------------------------------------------------------------------

    def _control_request(self, frame: ControlRequest) -> None:
        if frame.subtype != "can_use_tool":
            self._refuse(frame.id, f"{frame.subtype} is not supported by this host")
        elif self.state is State.CANCELLED or self._turn is None or self._turn.ending is not None:
            self._refuse(frame.id, "the turn is being ended")
        else:
            self._ask(frame)

    def _refuse(self, request_id: str, why: str) -> None:
        if self._process is not None:
            self._process.refuse(request_id, why)

    def _ask(self, frame: ControlRequest) -> None:
        request = frame.request
        tool_use_id = request.get("tool_use_id")
        question = self._around.broker.open(
            self.id,
            str(request.get("tool_name")),
            self._question_input(request, tool_use_id),
            lambda question, resolution, body: self._settled(frame.id, question, resolution, body),
            tool_use_id=tool_use_id,
            suggestions=request.get("permission_suggestions") or (),
            reason=request.get("decision_reason"),
            blocked_path=request.get("blocked_path"),
        )
        self._asked[frame.id] = question.id
        self._record(QuestionOpened(question))
        self._set_state(State.WAITING)

    def _question_input(self, request: Raw, tool_use_id: str | None) -> Raw:
        """The input of the call; a plan that the CLI left out is taken from the model's own words."""
        given = request.get("input")
        given = given if isinstance(given, dict) else {}
        if request.get("tool_name") == "ExitPlanMode" and not given.get("plan"):
            plan = self.narrator.tool_input(tool_use_id).get("plan")
            return {**given, "plan": plan} if plan else given
        return given

    def _settled(self, request_id: str, question: Question, resolution: Resolution, body: Raw | None) -> None:
        self._asked.pop(request_id, None)
        self._record(QuestionSettled(question, resolution))
        if body is not None and self._process is not None:
            if body.get("behavior") == "deny" and question.kind is QuestionKind.PERMISSION:
                self.narrator.denied(question.tool_use_id)
            self._process.answer(request_id, body)
        if self.state is State.WAITING and not self.questions:
            self._set_state(State.RUNNING)
        self._watch_for_stall()


def _retry(raw: Raw) -> Retrying:
    return Retrying(
        attempt=int(raw.get("attempt") or 0),
        of=raw.get("max_retries"),
        delay_ms=float(raw.get("retry_delay_ms") or 0),
        status=raw.get("error_status"),
        detail=str(raw.get("error") or ""),
    )


def _timed_out(outcome: Outcome) -> Outcome:
    return replace(outcome, code=OutcomeCode.TIMEOUT, detail="The turn took longer than it was given.")
