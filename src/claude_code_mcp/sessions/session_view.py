"""What callers see of a session: its state, its questions, what it costs and what it does. Nothing here changes it."""

import time

from ..errors import ClaudeCodeError
from ..model.options import SessionOptions
from ..model.outcome import BUSY, Outcome, State
from ..model.question import Question
from ..model.usage import Usage
from ..store.event_log import EventLog, EventReader
from .dependencies import SessionDeps
from .event_writer import EventWriter, ReadableLines, StallTimer, StateTracker
from .live_process import CurrentProcess
from .messages import MessageQueue, UserMessage
from .session_costs import SessionCosts
from .session_questions import SessionQuestions
from .turn import TurnRunner


class SessionView:
    """One conversation as frontends have it. `Session` makes the parts that are read here."""

    id: str
    options: SessionOptions
    cwd: str
    owner: str
    created_at: float
    used_at: float
    first_prompt: str | None
    outcome: Outcome | None
    notices: tuple[str, ...]
    """What callers are to know of the options that the session was asked for."""
    start_error: ClaudeCodeError | None
    """Why the last process could not be started, until another one is tried."""
    readable_lines: ReadableLines
    deps: SessionDeps
    log: EventLog
    _state: StateTracker
    _stall_timer: StallTimer
    events: EventReader
    """What has happened in the session, to be read and followed."""
    activity: EventWriter
    """What its process says of itself: a retry of the API, background work, commands, the size of its context."""
    costs: SessionCosts
    process: CurrentProcess
    _messages: MessageQueue
    _questions: SessionQuestions
    _turns: TurnRunner

    @property
    def state(self) -> State:
        return self._state.state

    @property
    def busy(self) -> bool:
        return self.state in BUSY

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
    def working_seconds(self) -> float:
        """How long the current turn has been running, without the time in which it waited for people."""
        turn = self._turns.current
        if turn is None:
            return 0.0
        return (turn.waiting_since or time.monotonic()) - turn.started - turn.waited

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another server is running a turn of it, as far as was known when it was looked up."""
        return self.busy and self._turns.current is None

    @property
    def stalled(self) -> bool:
        """Whether the running turn has had no output for too long."""
        return self._stall_timer.stalled

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
    def spent_usd(self) -> float:
        """The dollars that count against the session's budget."""
        return self.costs.spent_usd

    @property
    def uncharged_usd(self) -> float:
        """The least that was spent beside `spent_usd` and is not charged yet."""
        return self.costs.uncharged_usd

    @property
    def budget_left(self) -> float | None:
        """What is left of the session's budget in dollars, None if it has none."""
        limit = self.options.max_budget_usd
        return None if limit is None else max(limit - self.spent_usd, 0.0)

    @property
    def process_budget(self) -> float | None:
        """What a process that starts now may spend: what is left to the session, or is reserved of its owner's day."""
        left = (self.budget_left, self.deps.enforcer.limits.spendable(self.owner, self.id))
        return min((amount for amount in left if amount is not None), default=None)

    @property
    def process_left(self) -> float | None:
        """What its process may still spend, None if there is no process or no limit."""
        live = self.process.live
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

    @property
    def queued_messages(self) -> list[UserMessage]:
        """The messages that no turn has taken up yet, oldest first."""
        return self._turns.queued

    def delivery(self, message_id: str) -> UserMessage | None:
        """A message of this session that has no outcome yet, or was one of the last to get one."""
        return self._messages.find(message_id)
