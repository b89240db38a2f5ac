"""The running turn of a session: how it starts, how it ends, and what follows.

Every change happens in plain synchronous code on the event loop. Anything that must wait (starting or interrupting a
process) runs in tasks owned by the service; such a task checks `current` again after each await, because its turn may
be over by then.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..claude.process import ClaudeProcess
from ..claude.protocol import Conversation, Lifecycle, Raw, Result
from ..errors import ClaudeCodeError, LimitReached, ProcessFailed
from ..model.events import (
    MessageDropped,
    MessageJoined,
    MessageQueued,
    ProcessChanged,
    Spent,
    TurnEnded,
    TurnStarted,
    WaitChanged,
)
from ..model.outcome import Outcome, OutcomeCode
from ..model.states import State
from ..model.usage import SYNTHETIC, Usage
from ..model.usage_limits import LimitWait, StoppedTurn, limit_sentence, wait_after
from ..processes.child import Exit
from .messages import UserMessage
from .stored.session_loader import messages_in_transcript

if TYPE_CHECKING:
    from .session import Session

_DROPPED = Outcome(
    OutcomeCode.DROPPED,
    detail="The previous turn was interrupted, and this message was dropped before Claude Code had read it.",
)
_NOT_SAVED = (
    "The answer was not saved: {}. The session continues without this turn and accepts messages again when its "
    "transcript can be written."
)
_NEVER_STARTED = "The turn was stopped before Claude Code started it."
_TOO_LONG = "The turn exceeded its time limit."
_CANCELLED = "The session was cancelled."
_COMPACTED = "The conversation was compacted: it continues from a summary."
_VIOLATION = (
    "Claude Code sent invalid output: {}. A command of the session may have written it. The process was stopped; the "
    "next message starts a new one."
)
_UNREAD = frozenset({OutcomeCode.START_FAILED, OutcomeCode.CRASHED})
_MAX_CHECK = 10.0
"""Seconds after which an answer that could not be checked on disk counts as not saved."""


@dataclass(slots=True, eq=False)
class Turn:
    """The turn that is running."""

    number: int
    message_id: str = ""
    """The message that started it; empty if it started without one."""
    question_only: bool = False
    """Whether the CLI itself runs no turn: a background task has a question and will report later."""
    started: float = field(default_factory=time.monotonic)
    waited: float = 0.0
    """Seconds spent waiting for people's answers, without the current wait."""
    waiting_since: float | None = None
    begun: bool = False
    """Whether the process has started it (its `init` frame was received)."""
    continues: str = ""
    """The wait for a usage limit that it ends, if it was started for that."""
    worked: bool = False
    """Whether the model has answered in it."""
    cleared: bool = False
    """Whether the conversation was replaced by another one in it."""
    compacted: bool = False
    """Whether the conversation was replaced by a summary in it."""
    last_answer: tuple[str, int] | None = None
    """The id of the last message of the model, and its size."""
    ending_as: OutcomeCode | None = None
    """The reason for which we are ending it, if we are; becomes the code of its outcome, unless the process reports
    that the turn was finished."""
    to_drop: frozenset[str] = frozenset()
    """The queued messages that an interruption drops."""
    dropped: list[UserMessage] = field(default_factory=list)
    """The messages behind it that were dropped when it was interrupted."""
    timer: asyncio.TimerHandle | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class TurnRunner:
    """Runs the turns of one session, one at a time. Its processes report their lifecycle here."""

    def __init__(self, session: "Session") -> None:
        self.current: Turn | None = None
        self.count = 0
        self.any_sent = False
        """Whether a message was sent to any process."""
        self.last_interrupted = False
        """Whether the server ended the last turn."""
        self._withdrawing: set[str] = set()
        """Messages that the process was asked to return."""
        self._session = session
        self._crash = Outcome(OutcomeCode.CRASHED)
        """The outcome of messages that turn out to have been read by a crashed process."""

    # -- begin ------------------------------------------------------------------------------------------------

    def accept(self, message: UserMessage) -> None:
        """Accept a message: it starts a turn, joins the running one or waits behind it."""
        session = self._session
        session.messages.accept(message)
        if self.current is None:
            self.begin(message)
        else:
            session.log.append(MessageQueued(message.id, message.text, len(message.images)))
        # Otherwise it is delivered when the process is ready.
        if session.process.ready:
            self._hand_over()

    def begin(self, message: UserMessage | None, *, question_only: bool = False) -> Turn:
        """Start a turn, for a message or (None) because the process has started one."""
        session = self._session
        self.count += 1
        message_id, prompt = (message.id, message.text) if message is not None else ("", "")
        continues = message.continues if message is not None else ""
        self.current = turn = Turn(self.count, message_id, question_only, continues=continues)
        session.activity.retrying = None
        session.activity.rate_limited = False
        # A turn started by background work has no separate time limit; the session's limit applies.
        timeout = message.timeout if message is not None else session.options.turn_timeout
        if timeout is not None:
            turn.timer = asyncio.get_running_loop().call_later(timeout, self.time_out, turn)
        session.log.append(TurnStarted(turn.number, message_id, prompt, bool(continues), size=len(prompt)))
        session.state_tracker.move(State.RUNNING if session.process.ready else State.STARTING)
        session.stall_timer.start()
        return turn

    def process_began_turn(self) -> None:
        """The CLI reports that it runs a turn; without one of ours, a background task is reporting."""
        turn = self.current or self.begin(None)
        turn.question_only = False
        turn.begun = True

    def _hand_over(self) -> None:
        """Deliver the messages that the process should get now."""
        session = self._session
        live, process = session.process.live, session.process.process
        assert live is not None
        assert process is not None
        if self.current is None:
            return
        self.any_sent = True
        ready = session.messages.take_unsent(self.current.message_id, question_only=self.current.question_only)
        for message in ready:
            # Noted before it is written: the frame that follows a `/clear` must find that it was sent.
            live.claims.message_sent(message.id, message.text)
            try:
                process.send(message.text, message.id, images=message.images, later=message.later)
            except ProcessFailed as error:
                # Later messages were not sent either: if this process has read nothing, all of them go to the next one.
                session.deps.start_task(self._await_end(process, error))
                return

    async def _await_end(self, process: ClaudeProcess, error: ProcessFailed) -> None:
        """Wait for the exit of a process that accepts no input, which `process_ended` handles with more detail. If it
        does not exit, stop it."""
        await asyncio.wait([process.exited], timeout=self._session.deps.settings.stop_timeout)
        # Otherwise `process_ended` was faster, or the session has another process by now.
        if self._session.process.process is process:
            self.give_up(Outcome(OutcomeCode.CRASHED, detail=error.message))

    # -- end --------------------------------------------------------------------------------------------------

    def result_received(self, frame: Result) -> None:
        """End the turn with the result of the process."""
        session, turn = self._session, self.current
        if turn is None:
            return  # a repeated result for a turn that already has its outcome
        if frame.unasked and turn.message_id and turn.message_id not in frame.message_ids:
            # A report of background work came in between; the message of this turn is not answered yet.
            self.late_result(frame)
            return
        outcome = self._read_result(frame, interrupted=turn.ending_as is not None)
        if outcome.code is OutcomeCode.INTERRUPTED and turn.ending_as is OutcomeCode.TIMEOUT:
            outcome = replace(outcome, code=OutcomeCode.TIMEOUT, detail=_TOO_LONG)
        elif outcome.code is OutcomeCode.INTERRUPTED and turn.ending_as is OutcomeCode.CANCELLED:
            outcome = replace(outcome, code=OutcomeCode.CANCELLED, detail=_CANCELLED)
        if turn.cleared and outcome.ok and not outcome.result:
            going_on = f"The conversation was cleared. It continues as session {session.id}."
            outcome = replace(outcome, result=going_on)
        if turn.compacted and outcome.ok and not outcome.result:
            outcome = replace(outcome, result=_COMPACTED)
        process, replica = session.process.process, session.deps.replica
        unsaved = outcome.ok and turn.last_answer is not None and not turn.cleared and session.options.persist
        if unsaved and turn.last_answer is not None:
            is_written = session.deps.stores.transcripts.is_written
            unsaved = not is_written(session.id, session.cwd, *turn.last_answer)
        behind = replica is not None and replica.behind(session.id)
        if process is not None and (unsaved or behind):
            process.hold()
            session.deps.start_task(self._end_checked(turn, outcome, process, unsaved=unsaved))
        else:
            self.end(outcome)

    def conversation_compacted(self) -> None:
        """The CLI reports that it has replaced the conversation by a summary."""
        if self.current is not None:
            self.current.compacted = True

    def answer_received(self, frame: Conversation) -> None:
        """Note the last message of the main model, which must be in the transcript when the turn has ended."""
        message_id = frame.raw.get("uuid")
        if self.current is not None and frame.role == "assistant" and not frame.from_subagent:
            self.current.last_answer = (message_id, frame.size) if isinstance(message_id, str) else None
            self.current.worked = self.current.worked or frame.model != SYNTHETIC
            self._session.costs.turn_answered(frame)

    async def _end_checked(self, turn: Turn, outcome: Outcome, process: ClaudeProcess, *, unsaved: bool) -> None:
        """End a turn whose answer was not found in its transcript at once, after checking whether it is lost; and a
        turn whose replica is behind, after that has caught up or is certain to.

        Disk and network may be slow. The process is paused until then, so that no frame of the next turn arrives
        earlier.
        """
        session = self._session
        try:
            flaw = None
            if unsaved and turn.last_answer is not None:
                stores = session.deps.stores
                found = stores.threads.run(stores.transcripts.flaw_after, session.id, session.cwd, *turn.last_answer)
                try:
                    flaw = await asyncio.wait_for(found, _MAX_CHECK)
                except TimeoutError:
                    flaw = "the disk does not respond"
            if session.deps.replica is not None:
                await session.deps.replica.caught_up(session.id)
            # The turn may have been abandoned during the disk check.
            if self.current is turn:
                if flaw is not None:
                    outcome = replace(outcome, code=OutcomeCode.NOT_SAVED, detail=_NOT_SAVED.format(flaw))
                    session.park()  # the next process continues from the disk
                self.end(outcome)
        finally:
            process.release()

    def end(self, outcome: Outcome) -> None:
        """Settle the messages of the turn and start the next one, or make the session idle.

        `current` is None until the next turn starts, so nothing called from here can end this one again. Costs, log and
        the outcomes of messages come before the state: a task that waits for the state finds all of them. `Turn.ended`
        comes last.
        """
        session = self._session
        turn, self.current = self.current, None
        if turn is None:
            return
        self.last_interrupted = turn.ending_as is not None
        if turn.timer is not None:
            turn.timer.cancel()
        session.stall_timer.stop()
        session.activity.retrying = None
        outcome = session.costs.turn_ended(outcome)
        if not outcome.duration_ms:  # no result reported the duration
            outcome = replace(outcome, duration_ms=round((time.monotonic() - turn.started) * 1000))
        session.outcome = outcome
        session.used_at = time.time()
        # Before the events: the record that they have written has the outcome and the wait, or neither.
        before, session.limit_wait = session.limit_wait, self._wait_after(turn, outcome)
        session.log.append(TurnEnded(turn.number, outcome))
        if before is not None or session.limit_wait is not None:
            session.log.append(WaitChanged(session.limit_wait, stopped=session.limit_wait is not None))
        if turn.ending_as is not None or not session.activity.background_tasks:
            # Otherwise the questions may belong to background tasks, which continue without a turn.
            session.open_questions.withdraw_all("the turn ended")
        following = session.messages.settle_turn(outcome, turn.number, except_for=self._waiting_behind(turn, outcome))
        if following is not None or session.open_questions.any_open:
            next_turn = self.begin(following, question_only=following is None)
            self.wait_for_answers()
            if session.process.ready:
                self._hand_over()
            elif session.process.live is None:  # the process has crashed
                session.deps.start_task(self._start_process_for(next_turn))
        else:
            session.state_tracker.move(outcome.state, outcome.detail)
            if session.process.live is not None and session.process.live.budget_outdated:
                session.park()
        turn.ended.set()

    def _wait_after(self, turn: Turn, outcome: Outcome) -> LimitWait | None:
        """The wait for the message that a usage limit stopped with this turn, and for those stopped before."""
        session, new_id, chance = self._session, str(uuid.uuid4()), random.random()  # noqa: S311 - jitter
        unread = outcome.code in _UNREAD and not turn.begun
        if session.limit_wait is not None and turn.continues and unread:
            return session.limit_wait.unread(time.time(), chance, new_id)
        if outcome.code is not OutcomeCode.LIMIT_REACHED:
            return None  # the model has answered since, or the turn ended for another reason
        message = session.messages.find(turn.message_id)
        return wait_after(
            StoppedTurn(message.text if message is not None else "", turn.worked, continued=bool(turn.continues)),
            session.limit_wait,
            outcome.limit_type,
            outcome.resets_at,
            time.time(),
            chance,
            wanted=session.options.on_limit == "wait" and session.options.persist,
            new_id=new_id,
        )

    def _waiting_behind(self, turn: Turn, outcome: Outcome) -> Set[str]:
        """The messages to which the outcome of the turn does not apply.

        While the process lives, these are the messages that it has not finished or not received. Without it, all
        delivered messages end with the turn; messages that were held back go to the next process after a crash or an
        interruption.
        """
        session = self._session
        process = session.process.process
        if process is not None:
            return process.unfinished | session.messages.unsent
        goes_on = outcome.code is OutcomeCode.CRASHED or turn.ending_as is not None
        return session.messages.unsent - {turn.message_id} if goes_on and session.options.persist else frozenset()

    def give_up(self, outcome: Outcome, *, may_report: bool = False) -> None:
        """Release the process and end the turn, with the code of a pending ending, if any.

        The outcome gets the turn's usage so far, unless it already has a usage. A process that `may_report` its costs
        while it exits is charged the lowest price until then, any other one the highest.
        """
        session = self._session
        turn = self.current
        # Before the process is left, which charges the unclaimed usage apart from the outcome.
        if turn is not None and not outcome.usage.models:
            usage = session.costs.usage_before_report() if may_report else session.costs.lost_usage()
            outcome = replace(outcome, usage=usage)
        # First: otherwise `end` would send the next message to this process.
        session.process.leave()
        if turn is None or turn.ending_as is None:
            self.end(outcome)
            return
        # Messages delivered but not started end with the process. Undelivered ones run next, unless they are to be
        # dropped with this turn.
        kept = session.messages.unsent - turn.to_drop
        behind = [message for message in session.messages.open if not message.started and message.id not in kept]
        self._drop([message for message in behind if message.id != turn.message_id], turn)
        self.end(replace(outcome, code=turn.ending_as))

    def end_for_violation(self, reason: str) -> None:
        """End the turn because the process sent an impossible frame: it is released, and all delivered messages end
        with that outcome."""
        outcome = Outcome(OutcomeCode.PROTOCOL_VIOLATION, detail=_VIOLATION.format(reason))
        self._session.log.append(ProcessChanged("protocol_violation", self._session.pid, reason))
        turn = self.current or self.begin(None)  # without one nothing would be reported or recorded
        turn.ending_as = None  # a pending interruption did not end it
        self.give_up(outcome)

    def late_result(self, frame: Result) -> None:
        """Count the cost of a turn that was abandoned before it ended, or that was not requested."""
        usage = self._read_result(frame, interrupted=True).usage
        self._session.costs.add(usage)
        if usage.models:
            self._session.log.append(Spent(usage))

    def _read_result(self, frame: Result, *, interrupted: bool) -> Outcome:
        session = self._session
        wants_structure = session.options.output_schema is not None
        outcome = session.costs.read_result(
            frame,
            wants_structure=wants_structure,
            interrupted=interrupted,
            rate_limited=session.activity.rate_limited,
        )
        if outcome.code is OutcomeCode.MAX_BUDGET and session.process.live is not None:
            return replace(outcome, detail=session.process.live.budget_spent)
        plan = session.activity.plan
        if outcome.code is not OutcomeCode.LIMIT_REACHED or plan is None or not plan.rejected:
            return outcome
        detail = limit_sentence(plan.kind, plan.resets_at)
        return replace(outcome, limit_type=plan.kind, resets_at=plan.resets_at, detail=detail)

    async def check_saving(self) -> None:
        """Raise LimitReached if the last turn could not be saved and the next one could not be either."""
        session = self._session
        if session.outcome is None or session.outcome.code is not OutcomeCode.NOT_SAVED:
            return
        flaw = await asyncio.to_thread(session.deps.stores.transcripts.flaw, session.cwd)
        if flaw is not None:
            raise LimitReached(
                f"Session {session.id} accepts no message, because its transcript cannot be written: {flaw}.",
                session_id=session.id,
            )

    # -- interruption -----------------------------------------------------------------------------------------

    async def interrupt(
        self, code: OutcomeCode = OutcomeCode.INTERRUPTED, *, drop_queued: bool = True
    ) -> Sequence[UserMessage]:
        """End the running turn with this code and keep the session; return the dropped messages that were queued behind
        it, oldest first.

        With `drop_queued` the messages that the turn has not picked up are dropped, otherwise they run next. Does
        nothing without a turn. A second interruption also waits for the end; the first code stands unless the session
        is cancelled now.
        """
        session = self._session
        turn = self.current
        if turn is None:
            return ()
        under_way = turn.ending_as is not None
        if not under_way or code is OutcomeCode.CANCELLED:
            turn.ending_as = code
            turn.to_drop = frozenset(message.id for message in session.messages.open) if drop_queued else frozenset()
            # Undelivered messages: the process cannot report on them.
            held_back = session.messages.unsent & turn.to_drop - {turn.message_id}
            self._drop([message for message in session.messages.open if message.id in held_back], turn)
        if not under_way:
            if turn.question_only:
                self.end(Outcome(code, detail="The background task that asked continues without an answer."))
            elif session.process.ready and (process := session.process.process) is not None:
                try:
                    reply = process.ask("interrupt", cancel_queued=drop_queued)
                except ProcessFailed as error:
                    self.give_up(Outcome(OutcomeCode.INTERRUPTED, detail=error.message))
                else:
                    session.deps.start_task(self._await_interruption(turn, reply))
            else:
                self.give_up(Outcome(code, detail=_NEVER_STARTED))
        await turn.ended.wait()
        return sorted(turn.dropped, key=lambda message: message.accepted)

    async def _await_interruption(self, turn: Turn, reply: "asyncio.Future[Raw]") -> None:
        """Wait until the process confirms the interruption and ends the turn; stop it if either takes too long."""
        timeout = self._session.deps.settings.stop_timeout
        # Errors are ignored here: the check of the turn below decides.
        with contextlib.suppress(ProcessFailed, TimeoutError):
            await asyncio.wait_for(reply, timeout)
            await asyncio.wait_for(turn.ended.wait(), timeout)
        if self.current is turn:
            self.give_up(Outcome(OutcomeCode.INTERRUPTED, detail="Claude Code did not respond and was stopped."))

    def time_out(self, turn: Turn) -> None:
        """End a turn that exceeded its time limit, unless it is over; queued messages have their own limits."""
        if self.current is turn:
            self._session.deps.start_task(self.interrupt(OutcomeCode.TIMEOUT, drop_queued=False))

    def message_reported(self, frame: Lifecycle) -> None:
        """Handle the process's report on a message."""
        session = self._session
        message, turn = session.messages.find(frame.message_id), self.current
        if message is None or message.outcome.done():
            return
        message.acknowledged = True
        if frame.state == "started":
            if not message.started and turn is not None and turn.message_id not in ("", message.id):
                session.log.append(MessageJoined(message.id, message.text))
            message.started = True
        elif frame.state == "cancelled" and turn is not None and turn.message_id == frame.message_id:
            # The interruption came before the message that started this turn was read: there will be no result.
            behind = turn.to_drop - {turn.message_id}
            self._drop([message for message in session.messages.open if message.id in behind], turn)
            self.end(Outcome(turn.ending_as or OutcomeCode.INTERRUPTED, detail=_NEVER_STARTED))
        elif frame.state == "cancelled" and not message.started:
            # A withdrawn message is not among those that an interruption drops.
            self._drop([message], None if message.id in self._withdrawing else turn)

    def _drop(self, messages: Iterable[UserMessage], turn: Turn | None) -> None:
        cancelled = turn is not None and turn.ending_as is OutcomeCode.CANCELLED
        outcome = Outcome(OutcomeCode.CANCELLED, detail=_CANCELLED) if cancelled else _DROPPED
        for message in messages:
            self._session.messages.settle(message, outcome)
            self._session.log.append(MessageDropped(message.id))
            if turn is not None:
                turn.dropped.append(message)

    @property
    def queued(self) -> list[UserMessage]:
        """The messages that no turn has picked up yet, oldest first."""
        begun = self.current.message_id if self.current is not None else ""
        return [message for message in self._session.messages.open if not message.started and message.id != begun]

    async def withdraw(self, message_id: str) -> UserMessage | None:
        """Withdraw a queued message, which then never runs; None if a turn has picked it up or is about to."""
        session = self._session
        message = next((queued for queued in self.queued if queued.id == message_id), None)
        if message is None or message.id in self._withdrawing:
            return None
        process = session.process.process
        if message.id not in session.messages.unsent and process is not None:
            # The process has it, and only the process knows whether it started to read it.
            self._withdrawing.add(message.id)
            try:
                timeout = session.deps.settings.stop_timeout
                reply = await process.request("cancel_async_message", timeout=timeout, message_uuid=message.id)
            finally:
                self._withdrawing.discard(message.id)
            if not reply.get("cancelled"):
                return None
        if not message.outcome.done():  # the process reports it too, usually before it answers
            self._drop([message], None)
        return message if message.outcome.result().code is OutcomeCode.DROPPED else None

    # -- questions --------------------------------------------------------------------------------------------

    def wait_for_answers(self) -> None:
        """Wait for answers. Called after a question was opened, which a rule may have answered at once."""
        if self._session.open_questions.any_open:
            self._session.state_tracker.move(State.WAITING)
            if self.current is not None and self.current.waiting_since is None:
                self.current.waiting_since = time.monotonic()

    def question_settled(self) -> None:
        """Continue the turn when no question is open any more."""
        session = self._session
        if (
            self.current is not None
            and session.state_tracker.state is State.WAITING
            and not session.open_questions.any_open
        ):
            session.state_tracker.move(State.RUNNING)
            session.stall_timer.start()
            if self.current.waiting_since is not None:
                self.current.waited += time.monotonic() - self.current.waiting_since
                self.current.waiting_since = None

    # -- the process ------------------------------------------------------------------------------------------

    def process_started(self, pid: int, api_ms: int, *, carried: bool) -> None:
        session = self._session
        session.costs.process_started(carried=carried)
        session.costs.start_api_time(api_ms)
        session.log.append(ProcessChanged("started", pid))

    def traffic_counted(self, usage: Usage) -> None:
        """Charge usage at once if there is no turn: a result may never arrive."""
        self._session.costs.count(usage)
        if self.current is None:
            self.charge_unclaimed(final=False)

    def charge_unclaimed(self, *, final: bool) -> None:
        """Charge the usage that no result has claimed. With `final`, because the process was left, all of it: a late
        claim is not charged again."""
        session = self._session
        usage = session.costs.unclaimed_usage(final=final)
        if usage.cost_usd > 0:
            session.costs.add(usage)
            session.log.append(Spent(usage))

    def process_ready(self) -> None:
        session = self._session
        if session.state_tracker.state is State.STARTING:
            session.state_tracker.move(State.RUNNING)
        session.stall_timer.start()
        self._hand_over()

    def start_failed(self, error: ClaudeCodeError) -> None:
        self._session.start_error = error
        self.give_up(Outcome(OutcomeCode.START_FAILED, detail=error.message, error_code=error.code))

    def process_ended(self, exit_: Exit) -> None:
        """End the turn because its process exited, unless the process had not read any of its messages.

        Such messages are sent again, once, to the next process; the turn continues and its callers notice nothing.
        """
        session = self._session
        turn, messages = self.current, session.messages.open
        # The process gave no sign of having read a message of the turn, so another process can get them.
        resumable = turn is not None and not turn.begun and turn.ending_as is None and session.options.persist
        untouched = resumable and bool(messages) and all(message.unread for message in messages)
        # Before the process is left, which charges unclaimed usage: here it is part of the outcome.
        usage = session.costs.lost_usage()
        crash = Outcome(OutcomeCode.CRASHED, detail=exit_.reason, exit_code=exit_.code, usage=usage)
        session.log.append(ProcessChanged("ended", session.pid, exit_.reason))
        if turn is None or not untouched:
            self.give_up(crash)
            return
        # For messages that turn out to have been read after all; see `wait_for_previous_process`.
        self._crash = crash
        session.process.leave()
        session.messages.take_back()
        session.deps.start_task(self._start_process_for(turn))

    async def _start_process_for(self, turn: Turn) -> None:
        """Start a process for a turn that lost its own, unless it has a new one or is over by then."""
        session = self._session
        async with session.process.starting:
            try:
                await self.wait_for_previous_process()
                # It may have been interrupted, or have got a process through a message, in the meantime.
                if self.current is turn and session.process.live is None:
                    session.process.start()
            except ClaudeCodeError as error:
                self.start_failed(error)

    async def wait_for_previous_process(self) -> None:
        """Wait until the previous process has ended, including one that a killed server left behind.

        Messages to be sent again are then looked up in the transcript, which is final by now: a message that the dead
        process wrote there must not run twice, and gets the outcome of the crash.
        """
        session, deps = self._session, self._session.deps
        await session.closed()
        await asyncio.to_thread(deps.launcher.end_leftover_process, session.id)
        doubtful = frozenset(message.id for message in session.messages.open if message.sent_again)
        if not doubtful:
            return
        written = await deps.stores.threads.run(
            messages_in_transcript, deps.stores.transcripts, session.id, doubtful, session.cwd
        )
        for message in session.messages.open:
            if message.id in written:
                session.messages.settle(message, self._crash)
        if self.current is not None and self.current.message_id in written:
            self.give_up(self._crash)
