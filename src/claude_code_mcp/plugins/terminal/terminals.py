"""Claude Code sessions in terminals, with their states and questions.

A session is joined with its first hook event, and left when its process exits or reports its end. Claude Code records
in a small file which session it has open, and whether it is busy, waits at a dialog or is idle (`noted_session`).
Events of a process without a record of the session are refused. The file is followed and shows promptly that a question
was answered at the keyboard.
"""

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ...core.claude.user_config import noted_session, noted_sessions
from ...core.errors import ClaudeCodeError, InvalidArgument, LimitReached, QuestionClosed, SessionBusy
from ...core.model.caller import LOCAL
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.outcome import Outcome, OutcomeCode
from ...core.model.question import Answer, Closure, Question, QuestionKind, Resolution, kind_of
from ...core.model.session_id import is_session_id
from ...core.model.states import State
from ...core.private_files import read_regular
from ...core.service import Service
from ...core.sessions.outside_sessions import OutsideSession
from ...core.transcripts.recent_messages import read_recent
from ...core.transcripts.watched_files import FileFollower
from .hook_events import HookEvent, decision
from .keyboard import device_of, is_used

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
_MAX_TERMINALS = 200
_SLUG = re.compile(r"[A-Za-z0-9-]{1,200}")
_MAX_PLAN = 1 << 20
_MAX_MODE = 40
_MAX_BLOCKED, _MAX_REASON = 3, 1000
_READ_AGAIN, _READ_PLAN_AGAIN, _READ_PAUSE = 4, 60, 0.05

Reply = Callable[[bytes | None], None]
"""Called once: with the line that the hook prints, or None if it should exit silently."""


@dataclass(slots=True)
class _Asked:
    """A question shown in the terminal, whose hook waits."""

    started: float
    tool: str
    tool_input: Mapping[str, Any]
    reply: Reply


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan in a dialog, and the id of the call with it; empty for the session's plan file."""

    text: str
    call: str = ""


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

    def ask(self, event: HookEvent, plan: _Plan | None, reply: Reply) -> str:
        """Opens the question of a hook, with the plan to show; returns its id."""
        self._report_place(event)
        asked = _Asked(event.started, event.tool, event.tool_input, reply)
        tool_input = event.tool_input if plan is None else {**event.tool_input, "plan": plan.text}

        def check(question: Question, answer: Answer) -> None:
            self._refuse_late(question, asked)
            if answer.allow and plan is not None and _plan_of(event, self._config_dir) != plan:
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

    def leave(self, detail: str) -> None:
        """Withdraws open questions and leaves the session."""
        self.outside.leave(detail)


def _as_terminal_takes_it(event: HookEvent, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reply without the additions to the input that were made for display."""
    if kind_of(event.tool) is not QuestionKind.PLAN_REVIEW or "updatedInput" not in body:
        return body
    return {**body, "updatedInput": dict(event.tool_input)}


class Terminals:
    """All terminals of a server. Use it within the server's event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.config_dir = service.outside.config_directory
        self._terminals: dict[str, Terminal] = {}
        self._joining: dict[str, asyncio.Lock] = {}
        self._follower = FileFollower()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.closed = False

    def joined(self) -> list[OutsideSession]:
        """The sessions that are open in terminals."""
        return [terminal.outside for terminal in self._terminals.values()]

    async def find_open(self) -> None:
        """Joins the terminals that were open before this server started."""
        try:
            entries = await asyncio.to_thread(noted_sessions, self.config_dir)
        except SessionBusy as problem:
            log.warning("%s", problem.message)
            return
        for entry in entries:
            await self._join_noted(entry)

    async def _join_noted(self, entry: Mapping[str, Any]) -> None:
        """Joins the terminal of a process's record, if it is one."""
        session_id, cwd, pid = entry.get("sessionId"), entry.get("cwd"), entry.get("pid")
        if isinstance(session_id, str) and is_session_id(session_id) and isinstance(cwd, str) and isinstance(pid, int):
            with contextlib.suppress(ClaudeCodeError):
                await self._join(session_id, cwd, pid)

    async def happened(self, event: HookEvent) -> None:
        """Handles an event without an answer. Raises ClaudeCodeError if its session cannot be joined."""
        terminal = await self._join(event.session_id, event.cwd, event.pid)
        if event.name == "PermissionDenied":
            details = {"tool": event.tool, "description": None, "rule": "auto mode", "occasion": "terminal"}
            details["reason"] = str(self._service.redaction.text(event.text("reason")))[:2000]
            self._service.audit(AuditEvent(AuditKind.CALL_DENIED, LOCAL, event.session_id, details))
        terminal.happened(event)

    def ended(self, event: HookEvent) -> None:
        """The terminal has left the session or continues with another one."""
        terminal = self._terminals.get(event.session_id)
        if terminal is not None and terminal.pid == event.pid:
            self._leave(event.session_id, "the terminal has left the session")

    async def ask(self, event: HookEvent, reply: Reply) -> Callable[[], None]:
        """Opens the question of a hook; call the result when the hook has ended. Raises ClaudeCodeError if it cannot be
        asked here."""
        terminal = await self._join(event.session_id, event.cwd, event.pid)
        plan = await self._plan(terminal, event) if kind_of(event.tool) is QuestionKind.PLAN_REVIEW else None
        # The transcript may not have a new call yet, and an earlier equal call in it has a result.
        if await terminal.was_answered(event) or (event.is_again and await asyncio.to_thread(_has_result, event)):
            raise QuestionClosed("It was answered at the terminal.", closed="withdrawn")
        # No await from here on.
        if not terminal.outside.is_joined:
            raise SessionBusy("The terminal has left the session.", session_id=event.session_id)
        question_id = terminal.ask(event, plan, reply)
        return partial(terminal.hook_ended, question_id)

    async def _plan(self, terminal: Terminal, event: HookEvent) -> _Plan:
        """The plan in the dialog. Raises InvalidArgument if it cannot be found."""
        for _ in range(_READ_PLAN_AGAIN):
            plan = await asyncio.to_thread(_plan_of, event, self.config_dir)
            if plan is not None and plan.call not in terminal.reviewed:
                return plan
            await asyncio.sleep(_READ_PAUSE)  # Claude Code writes the call to the transcript after it starts the hook
        raise InvalidArgument("The plan's file cannot be found; review the plan at the terminal.")

    async def _join(self, session_id: str, cwd: str, pid: int) -> Terminal:
        # One at a time for each session: events arrive in quick succession, and joining reads the disk.
        lock = self._joining.setdefault(session_id, asyncio.Lock())
        try:
            async with lock:
                terminal = self._terminals.get(session_id)
                if terminal is not None and terminal.pid == pid:
                    return terminal
                noted = await self._noted(pid)
                is_terminal = noted.get("kind") == "interactive" and noted.get("entrypoint") == "cli"
                if not is_terminal or noted.get("sessionId") != session_id:
                    raise InvalidArgument(f"Process {pid} has no session {session_id} in a terminal.")
                if self.closed or len(self._terminals) >= _MAX_TERMINALS:
                    raise LimitReached(f"{len(self._terminals)} terminals are already connected.")
                self._leave(session_id, "the session is open in another terminal")
                keyboard = await asyncio.to_thread(device_of, pid)
                outside = await self._service.outside.join(session_id, cwd, partial(is_used, keyboard))
                terminal = self._terminals[session_id] = Terminal(outside, pid, self.config_dir)
                self._tasks[session_id] = self._service.start_task(self._follow(terminal), endless=True)
                return terminal
        finally:
            if not lock.locked():
                self._joining.pop(session_id, None)

    async def _follow(self, terminal: Terminal) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(terminal.outside.follow_transcript)
                await terminal.follow(self._follower)
                tasks.cancel_scope.cancel()
        finally:
            if self._terminals.get(terminal.session_id) is terminal:
                self._leave(terminal.session_id, "the terminal has left the session")
        # It may continue with another session, after `/clear` or `/resume`.
        with contextlib.suppress(SessionBusy):
            await self._join_noted(await self._noted(terminal.pid))

    async def _noted(self, pid: int) -> Mapping[str, Any]:
        """A process's record; empty without one. Raises SessionBusy if it cannot be read."""
        for _ in range(_READ_AGAIN):
            noted = await asyncio.to_thread(noted_session, pid, self.config_dir)
            if noted is None or noted:
                break
            await asyncio.sleep(_READ_PAUSE)  # a write may be in progress
        return noted or {}

    def _leave(self, session_id: str, detail: str) -> None:
        terminal, task = self._terminals.pop(session_id, None), self._tasks.pop(session_id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if terminal is not None:
            terminal.leave(detail)

    def close(self) -> None:
        """Leaves all sessions."""
        self.closed = True
        for session_id in [*self._terminals]:
            self._leave(session_id, "the server is stopping")


def _sessions_directory(config_dir: str) -> str:
    """The directory of Claude Code's process records, created if missing."""
    directory = os.path.join(os.path.realpath(config_dir), "sessions")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return directory


def _plan_of(event: HookEvent, config_dir: str) -> _Plan | None:
    """The plan that Claude Code shows in its dialog: the session's plan file, or the plan of the last call with one;
    None if that call has a result and is therefore an earlier one. Blocks on the disk."""
    messages = read_recent(Path(event.text("transcript_path"))).messages
    slug = next((found for message in reversed(messages) if isinstance(found := message.get("slug"), str)), "")
    if _SLUG.fullmatch(slug):
        with contextlib.suppress(OSError, UnicodeError):
            file = os.path.join(config_dir, "plans", f"{slug}.md")
            written = read_regular(file, _MAX_PLAN, follow_link=False).decode()
            return _Plan(written) if written else None
    blocks = [block for message in messages for block in _blocks(message)]
    results = _results(blocks)
    for block in reversed(blocks):
        if block.get("type") == "tool_use" and block.get("name") == "ExitPlanMode":
            tool_input, call = block.get("input"), block.get("id")
            text = tool_input.get("plan") if isinstance(tool_input, dict) else None
            is_open = isinstance(call, str) and call not in results
            return _Plan(text, call) if is_open and isinstance(text, str) and text else None
    return None


def _has_result(event: HookEvent) -> bool:
    """Whether the transcript has a result of the newest call that matches an event. Blocks on the disk."""
    messages = read_recent(Path(event.text("transcript_path"))).messages
    blocks = [block for message in messages for block in _blocks(message)]
    results = _results(blocks)
    for block in reversed(blocks):
        # Claude Code gives a hook less of a plan than the model has written.
        is_same = event.tool == "ExitPlanMode" or block.get("input") == event.tool_input
        if block.get("type") == "tool_use" and block.get("name") == event.tool and is_same:
            return block.get("id") in results
    return False


def _results(blocks: Iterable[Mapping[str, Any]]) -> set[Any]:
    """The ids of the calls with a result."""
    return {block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"}


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["message"].get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
