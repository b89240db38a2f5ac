"""One process of a session with everything it occupies: the lease on the session, a slot, a task that starts it.

An incarnation is made when all of that is certain, and left once. Behind its back the process is then stopped and
the lease given back, in this order, so that a second writer can never come in between. Whatever the process still
says after it was left reaches nobody, except for what it cost.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..claude.command_line import ConversationStart
from ..claude.frames import Frame, Result
from ..claude.permission_grants import granted_rules, with_grants
from ..claude.process import ClaudeProcess
from ..errors import ClaudeCodeError, ProcessFailed
from ..model.options import SessionOptions
from ..model.usage import Totals
from ..processes.child import Exit
from .dependencies import SessionDeps
from .mcp_bridge import McpBridge
from .slots import SlotHolder

log = logging.getLogger(__name__)


class ProcessOwner(SlotHolder, Protocol):
    """The session side. Calls come from the event loop, only until the incarnation is left."""

    id: str
    options: SessionOptions
    cwd: str
    owner: str
    grants: tuple[Mapping[str, Any], ...]

    @property
    def process_budget(self) -> float | None: ...

    def process_started(self, pid: int, api_ms: int) -> None:
        """A process runs; it is not ready yet. Its count of the time with the API begins at `api_ms`."""

    def process_ready(self) -> None:
        """It takes messages from now on."""

    def start_failed(self, error: ClaudeCodeError) -> None:
        """It will never be ready."""

    def frame_received(self, frame: Frame) -> None:
        """Every frame, in order."""

    def progress_told(self, line: str) -> None:
        """A hosted server tells how far a call of this session is."""

    def process_ended(self, exit_: Exit) -> None:
        """It was ready, and ended by itself."""

    async def person_asked(self, server: str, form: dict[str, Any]) -> dict[str, Any]:
        """A hosted MCP server wants a form filled in."""

    def late_result(self, frame: Result) -> None:
        """A turn that nobody waits for any more has ended; it may have cost something."""


class LiveProcess:
    """Made by a session that has no other one; `gone` when nothing of it is left."""

    def __init__(self, tenant: ProcessOwner, around: SessionDeps, opening: Callable[[], ConversationStart]) -> None:
        """Takes the lease and the slot; SessionBusy or LimitReached if they are not to be had.

        SessionBusy too if a Claude Code process that is not ours has the session open. That one knows nothing of
        leases, so it is looked for again right before the spawn, which may have had to wait.
        """
        self._tenant = tenant
        self._around = around
        self._opening = opening
        self._leases = [around.leases.take(tenant.id)]
        try:
            around.launcher.check_alone(tenant.id)
            around.slots.take(tenant)
        except BaseException:
            self._release()
            raise
        self.budget: float | None = None
        """What the process may spend."""
        self._leaving: asyncio.Task[None] | None = None
        self.process: ClaudeProcess | None = None
        self.ready = False
        self.hosting = _hosting(tenant, around)
        self._totals = Totals()
        self._starting = around.start_task(self._start())

    # -- coming up --------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            async with self._around.slots.spawning():
                process = await self._spawn()
                hosted = self.hosting.servers if self.hosting else ()
                hooks = self._around.gate.hooks(self._tenant.owner)
                await self._around.launcher.initialize(process, self._tenant.options, hooks, hosted)
            # Outside of the limit on starts: a server that hangs must not keep other sessions from starting.
            await self._around.launcher.check_servers(process, self._tenant.options)
        except ClaudeCodeError as error:
            self._failed(error)
        except Exception:
            log.exception("session %s could not be started", self._tenant.id)
            self._failed(ProcessFailed("Claude Code could not be started."))
        else:
            self._came_up(process)

    async def _spawn(self) -> ClaudeProcess:
        around, tenant = self._around, self._tenant
        opening = await asyncio.to_thread(self._opening)
        await asyncio.to_thread(around.launcher.check_alone, tenant.id)
        self.budget = tenant.process_budget
        if opening.resume is not None:
            self._totals = Totals(await asyncio.to_thread(around.transcripts.usage_of, opening.resume))
        hosted = self.hosting.configuration if self.hosting else None
        granted = around.gate.suggestions(tenant.owner, tenant.cwd, list(tenant.grants))  # as the policy is now
        starting = asyncio.ensure_future(
            around.launcher.start(
                self,
                with_grants(tenant.options, granted),
                opening,
                tenant.cwd,
                budget=self.budget,
                hosted=hosted,
                rules=granted_rules(granted),
            )
        )
        try:
            self.process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self.process = await starting  # it is a matter of milliseconds, and must not run unseen
            raise
        self._tenant.process_started(self.process.pid, opening.api_ms)
        return self.process

    def _failed(self, error: ClaudeCodeError) -> None:
        if self._leaving is None:
            self._tenant.start_failed(error)

    def _came_up(self, process: ClaudeProcess) -> None:
        if self._leaving is not None:
            return
        if process.exited.done():
            self._failed(ProcessFailed(process.exited.result().reason))
            return
        self.ready = True
        self._tenant.process_ready()

    async def start_settled(self) -> None:
        """Waits until the process is ready or will never be. Cancelling the wait changes nothing."""
        await asyncio.wait([self._starting])

    # -- what the process reports -----------------------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        """A frame for the session, while it listens."""
        if isinstance(frame, Result):
            frame.usage = self._totals.used_by(frame.raw)
        if self._leaving is None:
            self._tenant.frame_received(frame)
        elif isinstance(frame, Result):
            self._tenant.late_result(frame)

    def process_ended(self, exit_: Exit) -> None:
        """The end of a process that came up; that of one which did not fails its start."""
        if self.ready and self._leaving is None:
            self._tenant.process_ended(exit_)

    # -- going ------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Lets go of it; it is closed in the background. Once is enough."""
        if self._leaving is None:
            self.ready = False
            if self.hosting is not None:
                self.hosting.close()
            self._leaving = self._around.start_task(self._close())
            self._around.slots.leave(self._tenant, self._leaving)

    async def _close(self) -> None:
        try:
            self._starting.cancel()
            await asyncio.wait([self._starting])
            if self.process is not None:
                await self.process.stop(self._around.settings.stop_timeout)
        except ProcessFailed as error:
            log.error("session %s: %s", self._tenant.id, error.message)
        finally:
            self._release()

    def hold(self, session_id: str) -> None:
        """Takes the lease on another session that the process has gone on to; SessionBusy if somebody has it."""
        self._leases.append(self._around.leases.take(session_id))

    def _release(self) -> None:
        for lease in self._leases:
            lease.release()

    @property
    def is_gone(self) -> bool:
        return self._leaving is not None and self._leaving.done()

    async def gone(self) -> None:
        """Waits until nothing of it is left. Cancelling the wait changes nothing."""
        if self._leaving is not None:
            await asyncio.wait([self._leaving])


def _hosting(tenant: ProcessOwner, around: SessionDeps) -> McpBridge | None:
    servers = around.host.offered(tenant.options.hub_servers) if around.host is not None else ()
    if around.host is None or not servers:
        return None
    return McpBridge(
        around.host, servers, f"session:{tenant.id}", around.start_task, tenant.progress_told, tenant.person_asked
    )
