"""The side of a session that its users drive: messages in, a look at everything, and the end."""

import asyncio
import contextlib
import json
import time
from dataclasses import replace
from functools import partial

from ..errors import Cancelled, ClaudeCodeError, LimitReached, SessionBusy, SessionNotFound
from ..model.events import ProcessChanged, Retrying
from ..model.options import SessionOptions
from ..model.outcome import Outcome, OutcomeCode
from ..model.question import Question
from ..model.states import BUSY, State
from ..model.usage import Usage
from ..processes.child import Exit
from ..store.event_log import EventReader
from ..store.session_records import LONGEST_RESULT, RecordUnreadable, SessionRecord
from ..store.transcripts import read_lines
from .dependencies import SessionDeps
from .dialogue import Dialogue
from .launcher import Origin, opening_of
from .live_process import LiveProcess
from .messages import Turn, UserMessage, WhenBusy
from .session_loader import OnDisk, narrated


class Session(Dialogue):
    """A conversation with Claude Code that survives the processes it runs in."""

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        cwd: str,
        owner: str,
        around: SessionDeps,
        *,
        origin: Origin | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(session_id, options, cwd, owner, around, usage or Usage())
        self.created_at = self.used_at
        self.first_prompt: str | None = None
        self.recorded_owner = owner
        """Whose the session stays on disk, whoever uses it now."""
        self._revision = 0
        self._origin = origin
        self._crash = Outcome(OutcomeCode.CRASHED)
        self._gate = asyncio.Lock()
        self._released = False

    # -- what callers see -------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.state in BUSY

    @property
    def live(self) -> bool:
        """Whether a process is running; otherwise the session is parked."""
        return self._process is not None

    @property
    def dormant(self) -> bool:
        """Whether nothing of a process is left, not even one that is being closed."""
        return self._incarnation is None and (self._last_incarnation is None or self._last_incarnation.is_gone)

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
    def background_seconds(self) -> float:
        """How long something has been running in the background without a break."""
        return self._journal.background_seconds

    @property
    def background_work(self) -> bool:
        """Whether tasks run in the background, or one of them is about to report."""
        return self._journal.background_work

    @property
    def turn_seconds(self) -> float | None:
        """How long the current turn has been running."""
        return time.monotonic() - self._turn.started if self._turn else None

    @property
    def events(self) -> EventReader:
        """What has happened in the session, to be read and followed."""
        return self.log

    @property
    def idle_seconds(self) -> float:
        return time.time() - self.used_at

    @property
    def budget_left(self) -> float | None:
        """What is left of the session's budget in dollars, None if it has none."""
        limit = self.options.max_budget_usd
        return None if limit is None else max(limit - self.spent_usd, 0.0)

    @property
    def process_budget(self) -> float | None:
        """What a process that starts now may spend: what is left to the session, or to its owner for today."""
        left = (self.budget_left, self._around.gate.left_today(self.owner))
        return min((amount for amount in left if amount is not None), default=None)

    async def wait(self, timeout: float | None, *, for_questions: bool = True) -> bool:
        """Waits for the end of all turns (or a question, unless told otherwise); tells whether that came.

        What came is on disk by then, as whoever waited will tell others of it.
        """
        came = await self._standing.at_rest(timeout, or_waiting=for_questions)
        await self._around.recorder.saved(self.id)
        return came

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another server is in the middle of a turn of it, as far as was known when it was looked up."""
        return self.busy and self._turn is None

    # -- messages ---------------------------------------------------------------------------------------------

    async def send(
        self,
        text: str,
        *,
        when_busy: WhenBusy = WhenBusy.JOIN,
        timeout: float | None = None,
        at_message: str | None = None,
    ) -> UserMessage:
        """Takes a message: into the running turn, or as a new turn, in a resumed process if need be.

        Whether the session is busy is decided in the same breath as the message is accepted: of two that want a turn
        of their own at the same time, one is refused.
        `at_message` first takes the conversation back to that message; what came after it is left behind.
        """
        async with self._gate:
            self._refuse_if_over(when_busy)
            if at_message is not None:
                self._leave_for_rewind()
            if self._incarnation is None:
                await self._around.launcher.check(self.options, self.cwd)
                await self._make_way()
                await self._catch_up()
            # Nothing may be awaited between here and the acceptance.
            self._refuse_if_over(when_busy)
            if self._incarnation is None:
                self.start_error = None
                self._incarnation = self._incarnate(at_message)
            delivery = UserMessage(text, when_busy is not WhenBusy.JOIN, timeout or self.options.turn_timeout)
            self._accept(delivery)
            return delivery

    def delivery(self, message_id: str) -> UserMessage | None:
        """A message of this session that has no outcome yet, or was one of the last to get one."""
        return self._mail.find(message_id)

    async def give_up_message(self, delivery: UserMessage) -> None:
        """Nobody waits for the answer any more: ends its turn, and only its turn."""
        if not delivery.outcome.done():
            await self.interrupt(drop_queued=False)

    async def start_settled(self) -> None:
        """Waits until the process that this session has is ready, or has failed to start: see `start_error`."""
        if self._incarnation is not None:
            await self._incarnation.start_settled()

    def refuse_if_busy(self) -> None:
        if self.busy:
            raise SessionBusy(f"Session {self.id} is still working on its last message.", session_id=self.id)

    def _refuse_if_over(self, when_busy: WhenBusy = WhenBusy.JOIN) -> None:
        if self.runs_elsewhere:
            raise SessionBusy(f"Session {self.id} is in use by another server on this machine.", session_id=self.id)
        if when_busy is WhenBusy.REFUSE:
            self.refuse_if_busy()
        if self.state is State.CANCELLED:
            raise Cancelled(f"Session {self.id} was cancelled; it takes no more messages.", session_id=self.id)
        if self._released:
            raise Cancelled(f"Session {self.id} takes no more messages: the server stops.", session_id=self.id)
        if self.budget_left == 0:
            raise LimitReached(
                f"The budget of ${self.options.max_budget_usd:g} of session {self.id} is spent.",
                session_id=self.id,
            )
        if not self.options.persist and self._spoke and self._incarnation is None:
            raise SessionNotFound(f"Session {self.id} was not persisted and its process is gone.", session_id=self.id)

    def _leave_for_rewind(self) -> None:
        if self.busy or self._journal.background_work:
            raise SessionBusy(f"Session {self.id} cannot go back while it is at work.", session_id=self.id)
        self.evict()

    def _incarnate(self, at_message: str | None) -> LiveProcess:
        opening = partial(opening_of, self.id, self._around.transcripts, self._origin, at_message)
        return LiveProcess(self, self._around, opening)

    def _accept(self, delivery: UserMessage) -> None:
        self.used_at = time.time()
        self.first_prompt = self.first_prompt or delivery.text
        self._mail.accept(delivery)
        if self._turn is None:
            self._begin_turn(delivery)
        if self._ready:
            self._hand_over()

    # -- messages that a process died before reading ----------------------------------------------------------

    def process_ended(self, exit_: Exit) -> None:
        """The process ended by itself. A message that it has not read is not lost: the next process gets it."""
        turn = self._turn
        if turn is None or not self._is_untouched(turn):
            super().process_ended(exit_)
            return
        self._crash = Outcome(OutcomeCode.CRASHED, detail=exit_.reason, exit_code=exit_.code)
        self._record(ProcessChanged("ended", self.pid, exit_.reason))
        self._let_go()
        self._mail.take_back()
        self._around.start_task(self._start_process_for(turn))

    def _is_untouched(self, turn: Turn) -> bool:
        """Whether the process has shown no sign of having read any message of this turn."""
        waiting = self._mail.open
        unread = all(not (one.mentioned or one.started or one.sent_again) for one in waiting)
        return bool(waiting) and unread and self.options.persist and turn.ending is None and not turn.heard

    async def _start_process_for(self, turn: Turn) -> None:
        async with self._gate:
            try:
                await self._make_way()
                if self._turn is turn and self._incarnation is None:
                    self._incarnation = self._incarnate(None)
            except ClaudeCodeError as error:
                self.start_failed(error)

    async def _make_way(self) -> None:
        """Until the process before is gone. A message that it has written down after all must not run twice."""
        await self.closed()
        await asyncio.to_thread(self._around.launcher.end_stray, self.id)
        doubtful = frozenset(one.id for one in self._mail.open if one.sent_again)
        taken = await asyncio.to_thread(self._in_transcript, self.id, doubtful) if doubtful else doubtful
        for delivery in [one for one in self._mail.open if one.id in taken]:
            self._mail.drop(delivery, self._crash)
        if self._turn is not None and self._turn.message_id in taken:
            self._give_up(self._crash)

    def _in_transcript(self, session_id: str, message_ids: frozenset[str]) -> frozenset[str]:
        path = self._around.transcripts.path_of(session_id, self.cwd)
        written = (line.get("uuid") for line in read_lines(path)) if path is not None else ()
        return frozenset(one for one in written if isinstance(one, str) and one in message_ids)

    # -- what is kept -----------------------------------------------------------------------------------------

    def record(self) -> SessionRecord | None:
        """What the session is like now, for its file; None if it is to leave no trace."""
        if not self.options.persist:
            return None
        self._revision += 1
        outcome, cut = _short_enough(self.outcome)
        origin = self._origin
        return SessionRecord(
            revision=self._revision,
            session_id=self.id,
            owner=self.recorded_owner,
            created_at=self.created_at,
            used_at=self.used_at,
            cwd=self.cwd,
            options=self.options.model_copy(update={"cwd": None}),
            first_prompt=_storable(self.first_prompt[:_LONGEST_PROMPT]) if self.first_prompt else None,
            origin=(origin.session_id, origin.at_message) if origin is not None else None,
            cancelled=self.state is State.CANCELLED,
            running_since=None if self.turn_seconds is None else time.time() - self.turn_seconds,
            spent_usd=self.spent_usd,
            usage=self.usage,
            model_turns=self.model_turns,
            outcome=outcome,
            result_cut=cut,
            grants=self.grants,
        )

    def restore(self, found: OnDisk) -> None:
        """Takes over what the disk knows of the session, before anything else happens to it."""
        self.log.restore(narrated(found.recent, self.narrator), found.recent.fingerprint)
        self._standing.state = found.state
        self.outcome = found.outcome
        if not self.busy:
            self.narrator.ended()
        record = found.record
        if record is not None:
            self._adopt(record)
            self.usage = found.usage
            self.created_at, self.used_at = record.created_at, record.used_at
            self.first_prompt = record.first_prompt
            self.recorded_owner = record.owner
            self._origin = Origin(*record.origin) if record.origin is not None else None

    def _adopt(self, record: SessionRecord) -> None:
        self._revision = record.revision
        self.spent_usd = record.spent_usd
        self.usage = record.usage
        self.model_turns = record.model_turns
        self.grants = record.grants

    async def _catch_up(self) -> None:
        """Another server may have gone on with the session while this one had it parked."""
        record = None
        await self._around.recorder.saved(self.id)
        with contextlib.suppress(RecordUnreadable):  # then what is in memory is the only truth left
            record = await asyncio.to_thread(self._around.recorder.records.read, self.id)
        if record is not None and record.revision > self._revision:
            self._adopt(record)
            if record.cancelled:
                self._standing.move(State.CANCELLED)

    # -- letting go -------------------------------------------------------------------------------------------

    @property
    def evictable(self) -> bool:
        return self._ready and not self.busy and self.options.persist and not self._journal.background_work

    def cancel(self) -> None:
        """Ends the session for good, at once; its process is closed behind it."""
        self._let_go()
        self._end_turn(Outcome(OutcomeCode.CANCELLED, detail="The session was cancelled."))
        self._standing.move(State.CANCELLED)

    def release(self) -> None:
        """Lets go of the process and takes no more messages, because the server stops."""
        self._released = True
        self._give_up(Outcome(OutcomeCode.INTERRUPTED, detail="The server stopped."))

    async def closed(self) -> None:
        """Waits until no process is left that this session has let go of."""
        if self._last_incarnation is not None:
            await self._last_incarnation.gone()


_LONGEST_PROMPT = 1000


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _short_enough(outcome: Outcome | None) -> tuple[Outcome | None, bool]:
    """An outcome as a record keeps it, and whether the transcript has more of its result."""
    if outcome is None:
        return None, False
    if outcome.structured_output is not None and _size(outcome.structured_output) > LONGEST_RESULT:
        outcome = replace(outcome, structured_output=None)
    if outcome.permission_denials and _size(outcome.permission_denials) > LONGEST_RESULT:
        outcome = replace(outcome, permission_denials=())
    cut = len(outcome.result) > LONGEST_RESULT
    result = _storable(outcome.result[:LONGEST_RESULT])
    return replace(outcome, result=result, detail=_storable(outcome.detail)), cut


def _size(value: object) -> int:
    return len(json.dumps(value, default=str))
