"""All Claude Code sessions in terminals, and how they are joined and left.

A session is joined with its first hook event, and left when its process exits or reports its end. Events of a process
without a record of the session (`noted_session`) are refused.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio

from ...core.claude.user_config import noted_session, noted_sessions
from ...core.errors import ClaudeCodeError, InvalidArgument, LimitReached, QuestionClosed, SessionBusy
from ...core.model.caller import LOCAL
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.question import QuestionKind, kind_of
from ...core.model.session_id import is_session_id
from ...core.service import Service
from ...core.sessions.outside_sessions import OutsideSession
from ...core.transcripts.watched_files import FileFollower
from .hook_events import HookEvent
from .hook_transcript import ShownPlan, has_result, plan_of
from .keyboard import device_of, is_used
from .terminal_session import Reply, Terminal

log = logging.getLogger(__name__)

_MAX_TERMINALS = 200
_READ_AGAIN, _READ_PLAN_AGAIN, _READ_PAUSE = 4, 60, 0.05


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
        if await terminal.was_answered(event) or (event.is_again and await asyncio.to_thread(has_result, event)):
            raise QuestionClosed("It was answered at the terminal.", closed="withdrawn")
        # No await from here on.
        if not terminal.outside.is_joined:
            raise SessionBusy("The terminal has left the session.", session_id=event.session_id)
        question_id = terminal.ask(event, plan, reply)
        return partial(terminal.hook_ended, question_id)

    async def _plan(self, terminal: Terminal, event: HookEvent) -> ShownPlan:
        """The plan in the dialog. Raises InvalidArgument if it cannot be found."""
        for _ in range(_READ_PLAN_AGAIN):
            plan = await asyncio.to_thread(plan_of, event, self.config_dir)
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
                self._check_room()
                self._leave(session_id, "the session is open in another terminal")
                keyboard = await asyncio.to_thread(device_of, pid)
                outside = await self._service.outside.join(session_id, cwd, partial(is_used, keyboard))
                try:
                    # Again: the server may have begun to stop, or others may have joined, in the meantime.
                    self._check_room()
                except LimitReached as full:
                    outside.leave(full.message)
                    raise
                terminal = self._terminals[session_id] = Terminal(outside, pid, self.config_dir)
                self._tasks[session_id] = self._service.start_task(self._follow(terminal), endless=True)
                return terminal
        finally:
            if not lock.locked():
                self._joining.pop(session_id, None)

    def _check_room(self) -> None:
        if self.closed:
            raise LimitReached("The server is stopping.")
        if len(self._terminals) >= _MAX_TERMINALS:
            raise LimitReached(f"{len(self._terminals)} terminals are already connected.")

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
            terminal.outside.leave(detail)

    def close(self) -> None:
        """Leaves all sessions."""
        self.closed = True
        for session_id in [*self._terminals]:
            self._leave(session_id, "the server is stopping")
