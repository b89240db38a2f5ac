"""Sessions that another program runs, such as Claude Code in a terminal, as that program reports them.

Such a session is in memory like any other: callers can list it, watch it, wait for it and answer its questions; the
first answer counts. But this server sends it no messages, starts no process for it and writes no record. When the
program has left, the session is only on disk again, and the next message to it starts a process of this server.

All reports are unverified claims, and affect only the display. An answer reaches only the program that asked, and the
policy of the local user judges it like every other answer.

A session may also run on another machine, whose server shows it here (`join_remote`). Then nothing of it is on this
disk, and the policy of that machine judges the answers: the calls run there.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..claude.protocol import Conversation
from ..errors import LimitReached, SessionBusy, SessionNotFound, TranscriptUnreadable
from ..model.caller import LOCAL, LOCAL_CALLER, Caller
from ..model.events import Event, Output, QuestionOpened, QuestionSettled, TurnEnded, TurnStarted
from ..model.options import SessionOptions
from ..model.outcome import Outcome
from ..model.question import POLICY_CHANNEL, Answer, Question, QuestionKind, Resolution, kind_of
from ..model.states import State
from .callers.client_environments import ClientEnvironments
from .registry import Sessions
from .session import Session
from .verdicts import Occasion, answer_of_rules

if TYPE_CHECKING:
    from ..policy.admission import Admission

log = logging.getLogger(__name__)

_LOOK_AGAIN = 2.0
"""Seconds between checks for a missing transcript: Claude Code writes it with the first message."""
_MAX_QUESTIONS = 50
"""Maximum open questions of one such session."""

Settled = Callable[[Resolution, dict[str, Any] | None], None]
"""Called once with the resolution of a question and the reply for Claude Code; None if it needs no reply."""
Check = Callable[[Question, Answer], None]
"""Raises an error if an answer must be refused."""


@dataclass(slots=True)
class RemotePlace:
    """The place of a session on another machine, for display only: none of it exists here."""

    machine: str
    directory: str


class OutsideSession:
    """One session that a program runs outside of this server."""

    def __init__(
        self,
        session: Session,
        sessions: Sessions,
        attended: Callable[[], bool],
        logged: int = 0,
        remote: RemotePlace | None = None,
    ) -> None:
        self.session = session
        self._sessions = sessions
        self.attended = attended
        """Whether the person is at the program right now, and needs no notifications."""
        self.permission_mode: str | None = None
        """The mode that the program reported; None before that."""
        self._turns = 0
        self._logged = logged
        """The number of transcript bytes that are in the session's log."""
        self.remote = remote
        """Where it runs, if on another machine."""

    @property
    def is_joined(self) -> bool:
        return self.session.outside is self

    @property
    def directory(self) -> str:
        """The directory that the program works in, for display."""
        return self.session.cwd if self.remote is None else self.remote.directory

    def report_directory(self, cwd: str) -> None:
        """Note the directory that the program works in now."""
        self.session.cwd = cwd

    def report_state(self, state: State) -> None:
        """Note that the program runs a turn (RUNNING), has an open question (WAITING) or is idle (IDLE)."""
        tracker = self.session.state_tracker
        if not self.is_joined or tracker.state is State.CANCELLED:
            return
        self.session.used_at = time.time()
        if state is State.WAITING:
            tracker.move(State.RUNNING)  # a question is open within a turn
        if state is State.IDLE and not self.session.busy:
            return
        tracker.move(state)

    def report_prompt(self, prompt: str) -> None:
        """Note that the person has sent a message."""
        self._turns += 1
        self.session.first_prompt = self.session.first_prompt or prompt
        self._report(TurnStarted(self._turns, "", prompt, at=time.time()))

    async def follow_transcript(self) -> None:
        """Log the additions to the transcript as output, until cancelled."""
        session = self.session
        while True:
            try:
                growth = session.deps.stores.library.follow_messages(session.id, self._logged)
                async for messages, self._logged in growth:
                    for message in messages:
                        for kind, line in session.readable_lines.conversation(Conversation(dict(message), 0)):
                            session.log.append(Output(line, kind, size=len(line)))
            except (SessionNotFound, TranscriptUnreadable, OSError) as error:
                log.debug("the transcript of session %s cannot be followed yet: %s", session.id, error)
            await asyncio.sleep(_LOOK_AGAIN)

    def report_outcome(self, outcome: Outcome) -> None:
        """Note that a turn has ended."""
        self.session.outcome = outcome
        self._report(TurnEnded(self._turns, outcome, at=time.time()))

    def _report(self, event: Event) -> None:
        # Not in the session's log: the terminal interface and the console read its prompts from the transcript.
        if self.is_joined:
            self.session.deps.bookkeeper.on_event(self.session, event)

    def ask(
        self,
        tool: str,
        tool_input: Mapping[str, Any],
        settled: Settled,
        *,
        suggestions: Sequence[Mapping[str, Any]] = (),
        check: Check | None = None,
        reason: str | None = None,
    ) -> Question:
        """Open a question that the program shows too, with the reason why it is asked. It has no deadline, because the
        program's dialog has none. A policy rule may answer it at once. LimitReached if too many are open."""
        session = self.session
        admission = session.deps.enforcer.admission(session.owner)
        is_plan = kind_of(tool) is QuestionKind.PLAN_REVIEW
        modes, mode_after = admission.modes_after_plan() if is_plan else ((), None)

        def check_answer(question: Question, answer: Answer, _: dict[str, Any]) -> None:
            session.verdicts.check_answer(question, answer)
            if check is not None:
                check(question, answer)

        offered = admission.offers([*suggestions], tool, tool_input, session.cwd)
        question = self._open(
            tool,
            tool_input,
            settled,
            cwd=session.cwd,
            suggestions=offered,
            modes=modes,
            mode_after=mode_after,
            reason=reason,
            check=check_answer,
        )
        answer = answer_of_rules(tool, session.verdicts.verdict(Occasion.QUESTION, tool, tool_input))
        if answer is not None:
            session.deps.broker.answer(session.id, question.id, answer, POLICY_CHANNEL)
        return question

    def ask_without_policy(
        self,
        tool: str,
        tool_input: Mapping[str, Any],
        settled: Settled,
        *,
        suggestions: Sequence[Mapping[str, Any]] = (),
        modes: Sequence[str] = (),
        mode_after: str | None = None,
        reason: str | None = None,
    ) -> Question:
        """Open a question of another machine, whose policy judges the answer. LimitReached if too many are open."""
        return self._open(
            tool,
            tool_input,
            settled,
            cwd=self.directory,
            suggestions=suggestions,
            modes=modes,
            mode_after=mode_after,
            reason=reason,
        )

    def _open(self, tool: str, tool_input: Mapping[str, Any], settled: Settled, **details: Any) -> Question:
        session = self.session
        if len(session.questions) >= _MAX_QUESTIONS:
            raise LimitReached(f"Session {session.id} has {_MAX_QUESTIONS} open questions.", session_id=session.id)

        def settle(question: Question, resolution: Resolution, body: dict[str, Any] | None) -> None:
            session.log.append(QuestionSettled(question, resolution))
            settled(resolution, body)

        question = session.deps.broker.open(session.id, tool, tool_input, settle, endless=True, **details)
        session.log.append(QuestionOpened(question))
        return question

    def withdraw(self, question_id: str, detail: str) -> None:
        """Close a question that needs no answer any more; a no-op if it is closed."""
        self.session.deps.broker.withdraw(question_id, detail)

    def leave(self, detail: str = "the terminal has left the session") -> None:
        """Note that the program has left: withdraw its questions, and keep the session on disk only."""
        if not self.is_joined:
            return
        self.session.open_questions.withdraw_all(detail)
        self.report_state(State.IDLE)
        self.session.outside = None
        self._sessions.leave_outside(self.session)


class OutsideSessions:
    """Brings sessions of other programs into memory. They belong to the local user."""

    def __init__(self, sessions: Sessions, environments: ClientEnvironments) -> None:
        self._sessions = sessions
        self._environments = environments

    @property
    def config_directory(self) -> str:
        """The configuration directory of Claude Code whose sessions can be joined."""
        return self._environments.of(LOCAL_CALLER).launcher.config_dir

    @property
    def are_replicated(self) -> bool:
        """Whether other machines of a fleet also see them."""
        return self._environments.of(LOCAL_CALLER).replica is not None

    async def join(self, session_id: str, cwd: str, attended: Callable[[], bool] = lambda: False) -> OutsideSession:
        """The session with this id, which another program runs in this directory. Its transcript need not exist yet.

        Raises:
            SessionBusy: this server runs it.
            PermissionDenied: the policy does not let the local user run sessions there.
            ClaudeCodeError: its files cannot be read.
        """
        deps = self._environments.of(LOCAL_CALLER)
        # Before the log is filled from disk: additions in between must not be lost.
        logged = await deps.stores.library.transcript_size(session_id)
        try:
            session = await self._sessions.find(session_id, LOCAL, deps)
        except SessionNotFound:
            options = deps.enforcer.admit(SessionOptions(), cwd, LOCAL)
            session = Session(session_id, options, cwd, LOCAL, deps)
        admission: Admission = deps.enforcer.admission(LOCAL)
        admission.admit(session.options.model_copy(update={"cwd": None}), cwd)
        # No await from here on: the session cannot start a turn in between.
        session = self._sessions.known(session.id) or session
        if session.outside is not None:
            return session.outside
        if session.owner != LOCAL or session.busy or not self._sessions.release_if_idle(session.id):
            raise SessionBusy(f"Session {session_id} is run by this server.", session_id=session_id)
        session.cwd = cwd
        session.outside = OutsideSession(session, self._sessions, attended, logged)
        self._sessions.join_outside(session)
        return session.outside

    def join_remote(
        self, session_id: str, owner: str, place: RemotePlace, attended: Callable[[], bool]
    ) -> OutsideSession:
        """A session that a program of this principal runs on another machine. The id must be one that no session here
        can have. SessionBusy if it is in memory already."""
        if self._sessions.known(session_id) is not None:
            raise SessionBusy(f"Session {session_id} is already here.", session_id=session_id)
        deps = self._environments.of(Caller(owner))
        # No directory of this machine: what reads files of a session must find none.
        session = Session(session_id, SessionOptions(), os.path.join(os.devnull, "elsewhere"), owner, deps)
        session.outside = OutsideSession(session, self._sessions, attended, remote=place)
        self._sessions.join_outside(session)
        return session.outside
