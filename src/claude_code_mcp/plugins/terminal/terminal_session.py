"""One Claude Code session in a terminal: its state, its turns and its questions.

Claude Code records in a small file which session a process has open, and whether it is busy, waits at a dialog or is
idle (`noted_session`). The file is followed and shows promptly that a question was answered at the keyboard.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.claude.user_config import noted_session
from ...core.errors import InvalidArgument, QuestionClosed, SessionBusy
from ...core.model.outcome import Outcome, OutcomeCode
from ...core.model.question import Answer, Closure, Question, QuestionKind, Resolution, kind_of
from ...core.model.states import State
from ...core.sessions.outside_sessions import OutsideSession
from ...core.transcripts.watched_files import FileFollower
from .hook_events import HookEvent, decision
from .hook_transcript import ShownPlan, plan_of

log = logging.getLogger(__name__)

_STATES = {"busy": State.RUNNING, "waiting": State.WAITING, "idle": State.IDLE}
_LOOK_AGAIN = 2.0
"""Seconds between reads of the file without a change: a killed process changes nothing."""
_OTHER_DIALOG = 3.0
"""Seconds after a hook's start in which its dialog appears. A later dialog is another one."""
_RECORD_DELAY = 1.5
"""Maximum seconds between an event and Claude Code's record of its status, in either order."""
_REPORT_PAUSE = 0.5
"""Minimum seconds between two reported prompts, and between two reported turn ends."""
_MAX_MODE = 40
_MAX_BLOCKED, _MAX_REASON = 3, 1000

Reply = Callable[[bytes | None], None]
"""Called once: with the line that the hook prints, or None if it should exit silently."""


@dataclass(slots=True)
class _Asked:
    """A question shown in the terminal, whose hook waits."""

    started: float
    tool: str
    tool_input: Mapping[str, Any]
    reply: Reply


class Terminal:
    """One session in one terminal."""

    def __init__(self, outside: OutsideSession, pid: int, config_dir: str) -> None:
        self.outside = outside
        self.pid = pid
        self._config_dir = config_dir
        self._asked: dict[str, _Asked] = {}
        """By question id."""
        self.reviewed: set[str] = set()
        """The calls whose plans were approved or sent back."""
        self._status: str | None = None
        self._status_since = 0.0
        self._answered_at = 0.0
        """When a question was last answered from elsewhere."""
        self._turn_has_ended = False
        """Whether the end of the last turn was reported."""
        self._reported: dict[str, float] = {}
        """When an event of each name was last reported."""
        self._blocked: list[str] = []
        """Why auto mode has blocked the last calls, until one runs or the person writes."""

    @property
    def session_id(self) -> str:
        return self.outside.session.id

    async def follow(self, follower: FileFollower) -> None:
        """Returns when the process exits or opens another session."""
        directory = await asyncio.to_thread(_sessions_directory, self._config_dir)
        async with follower.follow(os.path.join(directory, f"{self.pid}.json")) as file:
            while True:
                try:
                    noted = await asyncio.to_thread(noted_session, self.pid, self._config_dir)
                except SessionBusy as problem:
                    log.warning("%s", problem.message)
                    noted = {}
                if noted is None or noted.get("sessionId", self.session_id) != self.session_id:
                    return
                self._take(noted)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(file.changed(), _LOOK_AGAIN)

    async def was_answered(self, event: HookEvent) -> bool:
        """Whether a hook's dialog is gone, according to Claude Code's record."""
        noted = await asyncio.to_thread(noted_session, self.pid, self._config_dir)
        self._note(noted or {})
        return self._is_over(event.started)

    def _note(self, noted: Mapping[str, Any]) -> bool:
        """Stores the status in Claude Code's record; returns whether there is one."""
        status, since = noted.get("status"), noted.get("statusUpdatedAt")
        if status not in _STATES or not isinstance(since, int | float):
            return False
        self._status, self._status_since = str(status), since / 1000
        return True

    def _take(self, noted: Mapping[str, Any]) -> None:
        if not self._note(noted) or self._status is None:
            return
        for question_id in [known for known, asked in self._asked.items() if self._is_over(asked.started)]:
            self._answered_there(question_id)
        self._report_state()

    def _report_state(self) -> None:
        """Reports the state according to the last record, unless the record or the event of a change is still to come:
        a caller that waits would otherwise get a state without its question or result."""
        now, state = time.time(), _STATES[self._status or "busy"]
        if self._asked:
            state = State.WAITING
        elif (
            state is State.WAITING
            and self._status_since < self._answered_at
            and now < self._answered_at + _RECORD_DELAY
        ):
            state = State.RUNNING
        elif state is State.IDLE and not self._turn_has_ended and now < self._status_since + _RECORD_DELAY:
            return  # the hook of the turn's end is still to come; an interrupted turn has none
        self.outside.report_state(state)

    def _is_over(self, started: float) -> bool:
        """Whether the dialog of a hook that started then is gone, according to the last record. Claude Code records the
        dialog before it starts the hook."""
        if self._status == "waiting":
            return self._status_since > started + _OTHER_DIALOG
        return self._status is not None and self._status_since > started

    def _answered_there(self, question_id: str) -> None:
        self.outside.withdraw(question_id, "it was answered at the terminal")

    # -- events -------------------------------------------------------------------------------------------------------

    def happened(self, event: HookEvent) -> None:
        """Handles an event without an answer."""
        if event.name == "SessionStart":
            return  # any program may have sent it
        self._report_place(event)
        match event.name:
            case "PostToolUse" | "PostToolUseFailure":
                self._blocked.clear()
                self._tool_ended(event)
            case "PermissionDenied":
                self._blocked = [*self._blocked, event.text("reason")[:_MAX_REASON]][-_MAX_BLOCKED:]
            case "Stop" | "StopFailure":
                self._turn_ended(event)
            case "UserPromptSubmit" if not self._is_flood(event):
                self._turn_has_ended = False
                self._blocked.clear()
                self.outside.report_state(State.RUNNING)
                self.outside.report_prompt(event.text("prompt"))

    def _is_flood(self, event: HookEvent) -> bool:
        """Whether a prompt or turn end follows another too soon: any command of the session could send more of them."""
        now, before = time.monotonic(), self._reported.get(event.name, 0.0)
        if now - before < _REPORT_PAUSE:
            return True
        self._reported[event.name] = now
        return False

    def _report_place(self, event: HookEvent) -> None:
        self.outside.report_directory(event.cwd)
        self.outside.permission_mode = event.text("permission_mode")[:_MAX_MODE] or self.outside.permission_mode

    def _tool_ended(self, event: HookEvent) -> None:
        over = [
            question_id
            for question_id, asked in self._asked.items()
            if asked.tool == event.tool and asked.tool_input == event.tool_input and asked.started < event.started
        ]
        for question_id in over:
            self._answered_there(question_id)

    def _turn_ended(self, event: HookEvent) -> None:
        for question_id in [known for known, asked in self._asked.items() if asked.started < event.started]:
            self._answered_there(question_id)
        if event.has_background_work or self._is_flood(event):
            return
        self._turn_has_ended = True
        if event.name == "Stop":
            outcome = Outcome(OutcomeCode.COMPLETED, result=event.text("last_assistant_message"))
        else:
            detail = event.text("error_details") or event.text("error") or "The turn failed."
            outcome = Outcome(OutcomeCode.API_ERROR, detail=detail)
        self.outside.report_outcome(outcome)
        if self._status == "idle":
            self._report_state()

    # -- questions ----------------------------------------------------------------------------------------------------

    def ask(self, event: HookEvent, plan: ShownPlan | None, reply: Reply) -> str:
        """Opens the question of a hook, with the plan to show; returns its id."""
        self._report_place(event)
        asked = _Asked(event.started, event.tool, event.tool_input, reply)
        tool_input = event.tool_input if plan is None else {**event.tool_input, "plan": plan.text}

        def check(question: Question, answer: Answer) -> None:
            self._refuse_late(question, asked)
            if answer.allow and plan is not None and plan_of(event, self._config_dir) != plan:
                raise InvalidArgument("The plan has changed since it was shown; review it at the terminal.")
            changed = answer.updated_input
            if question.kind is QuestionKind.PLAN_REVIEW and changed is not None and dict(changed) != dict(tool_input):
                raise InvalidArgument(
                    "updated_input: a plan in a terminal cannot be changed; deny it and say what to change.",
                    field="updated_input",
                )

        def settled(resolution: Resolution, body: dict[str, Any] | None) -> None:
            self._asked.pop(question_id, None)
            if plan is not None and plan.call:
                self.reviewed.add(plan.call)
            if resolution.closure is Closure.ANSWERED and body is not None:
                reply(decision(_as_terminal_takes_it(event, body)))
                self._answered_at = time.time()
                self.outside.report_state(State.WAITING if self._asked else State.RUNNING)
            else:
                reply(None)

        question_id = ""
        question = self.outside.ask(
            event.tool,
            tool_input,
            settled,
            suggestions=event.suggestions,
            check=check,
            reason=self._reason_of_auto_mode(event),
        )
        # A rule of the policy may have answered it already.
        if self.outside.session.deps.broker.find(self.session_id, question.id) is not None:
            question_id = question.id
            self._asked[question_id] = asked
            self.outside.report_state(State.WAITING)
        return question.id

    def _reason_of_auto_mode(self, event: HookEvent) -> str | None:
        """Why auto mode asks: it does so after it has blocked several calls in a row. Claude Code reports the reason of
        each blocked call, but not the reason of the call in the dialog."""
        if event.text("permission_mode") != "auto" or kind_of(event.tool) is not QuestionKind.PERMISSION:
            return None
        lines = ["Auto mode needs your confirmation."]
        if self._blocked:
            lines += ["Before this call it blocked others, for these reasons:", *(f"- {why}" for why in self._blocked)]
        return "\n".join(lines)

    def _refuse_late(self, question: Question, asked: _Asked) -> None:
        """Raises QuestionClosed if the person at the keyboard was faster and this was not noticed yet."""
        with contextlib.suppress(SessionBusy):
            self._note(noted_session(self.pid, self._config_dir) or {})
        if self._is_over(asked.started):
            asyncio.get_running_loop().call_soon(self._answered_there, question.id)
            raise QuestionClosed(f"Question {question.id!r} was answered at the terminal.", closed="withdrawn")

    def hook_ended(self, question_id: str) -> None:
        """The hook no longer waits: Claude Code ended it or exited."""
        self.outside.withdraw(question_id, "the terminal no longer needs an answer")


def _as_terminal_takes_it(event: HookEvent, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reply without the additions to the input that were made for display."""
    if kind_of(event.tool) is not QuestionKind.PLAN_REVIEW or "updatedInput" not in body:
        return body
    return {**body, "updatedInput": dict(event.tool_input)}


def _sessions_directory(config_dir: str) -> str:
    """The directory of Claude Code's process records, created if missing."""
    directory = os.path.join(os.path.realpath(config_dir), "sessions")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return directory
