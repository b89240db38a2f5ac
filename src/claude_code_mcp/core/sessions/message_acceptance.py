"""Checks and records a message before it is sent to a session, and reverts everything if the session refuses it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..errors import InvalidArgument, UpstreamUnavailable
from ..model.events import AuditEvent, AuditKind
from ..model.image import Image
from ..model.tool_names import PREFIX
from ..model.usage_limits import OnLimit
from ..policy.admission import Admission
from ..redaction import Redactor
from ..state.session_records import SessionRecord
from .live.launcher import needs_confirmation
from .live.mcp_bridge import expand_prompt, usable_servers
from .message_images import allowed_path, read_images
from .messages import BusyMode, UserMessage
from .observers import ObserverList
from .registry import Sessions
from .session import Session
from .session_deps import SessionDeps

log = logging.getLogger(__name__)


class MessageAcceptance:
    """The steps around `Session.send`, in this order: `admitted`, `recorded` for a new session, `deliver`, and finally
    `conclude`."""

    def __init__(self, sessions: Sessions, deps: SessionDeps, redactor: Redactor, observers: ObserverList) -> None:
        self._sessions = sessions
        self._deps = deps
        self._redactor = redactor
        self._observers = observers

    @asynccontextmanager
    async def admitted(
        self, session: Session, principal: str, prompt: str, admissions: Sequence[Admission]
    ) -> AsyncIterator[Session]:
        """Context that yields the session to send to: another object if two calls loaded the same session at once.

        Within it the session counts as working, and has a reservation from today's budget, which is returned if the
        message is refused. Raises PermissionDenied if one of the `admissions` refuses the prompt,
        LimitReached if the principal's daily budget is spent or too many of its sessions are working, and RateLimited
        if its sessions have recently used too many tokens.
        """
        limits, own_limits = self._deps.enforcer.limits, admissions[0].limits
        # Before anything is reserved or stored for it.
        for admission in admissions:
            admission.check_prompt("prompt", prompt, session.cwd)
        # Before its first event: everything logged from here on is redacted.
        self.learn_secrets(session)
        # No await between the count and `room`, so that two simultaneous messages count each other.
        # A session works while a turn runs, or while background work uses the model.
        own = [other for other in self._sessions.all() if other.owner == principal]
        working = [other.id for other in own if other.busy or other.process.uses_model]
        with limits.room(session.id, principal, own_limits, working), self._sessions.keeping(session) as kept:
            if kept.deps.replica is not None:
                # Before anything is reserved or sent: only the machine that holds the session may run it.
                await kept.deps.replica.admit(kept.id, kept.owner, stays=kept.options.stay_on_machine)
            # A working session keeps the reservation that it has. Without any budget left, the session itself refuses.
            if not limits.counts(principal, own_limits) or kept.busy or kept.budget_left == 0:
                yield kept
                return
            left = kept.process.live.left if kept.process.live is not None else None
            wanted = (principal, kept.id, kept.budget_left, len(working), left)
            reserving = asyncio.ensure_future(asyncio.to_thread(limits.reserve, *wanted))
            try:
                amount = await asyncio.shield(reserving)
                # A process that may spend more than the reservation, or much less, is replaced.
                if kept.live and left != amount and kept.can_park:
                    kept.park()
                yield kept
            except BaseException:
                # A thread continues after its caller was cancelled: its reservation must be returned too.
                await asyncio.shield(asyncio.wait([reserving]))
                # If it is busy after all, its message was accepted, and the reservation belongs to that turn.
                reserved = reserving.exception() is None
                if reserved and not kept.busy and limits.spending.release(kept.id):
                    await asyncio.shield(asyncio.to_thread(limits.spending.write_reservation, principal, kept.id))
                raise

    def learn_secrets(self, session: Session) -> None:
        """Redact the secrets in a session's variables and servers for as long as the session exists."""
        self._redactor.learn(session.options.env, owner=session)
        self._redactor.learn_from(session.options.mcp_servers, owner=session)

    @asynccontextmanager
    async def recorded(self, session: Session, prompt: str) -> AsyncIterator[None]:
        """Context that writes the record of a new session before it runs; on failure the record is removed again."""
        # The record says that the first turn is running: the caller's answer need not wait for a second write, and if
        # the server is killed in between, the turn shows as interrupted.
        session.first_prompt, session.beginning = prompt, True
        try:
            await session.recorder.save(session)
            yield
        except BaseException:
            if not session.turns or self._sessions.known(session.id) is None:
                await asyncio.shield(session.recorder.remove(session.id))
            raise

    async def deliver(
        self,
        session: Session,
        text: str,
        images: Sequence[str],
        *,
        new: bool,
        before: SessionRecord | None = None,
        busy_mode: BusyMode = BusyMode.JOIN,
        timeout: float | None = None,
        at_message: str | None = None,
        sender: SessionDeps | None = None,
        message_id: str = "",
        continues: str = "",
        on_limit: OnLimit | None = None,
    ) -> UserMessage:
        """Read the images and prompts that the message names, then send it to the session. Otherwise like
        `Session.send`.

        Returns when the message is accepted, and the options that only Claude Code can check, which it does before it
        reads the message. If it refuses them, raises that, and a `new` session is removed, except for the record from
        `before`. Cancelling the caller meanwhile interrupts the turn.
        """
        shown: tuple[Image, ...] = ()
        if images:
            shown = await asyncio.to_thread(read_images, images, lambda path: allowed_path(session, path))
        if text.startswith(f"/{PREFIX}"):
            text = await self._expanded(session, text)
        message = await session.send(
            text,
            busy_mode=busy_mode,
            timeout=timeout,
            at_message=at_message,
            sender=sender,
            images=shown,
            message_id=message_id,
            continues=continues,
            on_limit=on_limit,
        )
        if not needs_confirmation(session.options):
            return message
        try:
            await session.start_settled()
        except asyncio.CancelledError:
            self._deps.start_task(session.interrupt())
            raise
        refusal = session.start_error
        if isinstance(refusal, InvalidArgument | UpstreamUnavailable):
            if new:
                # In this order: while the session is in memory, its events write records.
                await self._sessions.drop(session)
                await session.recorder.restore(session.id, before)
            raise refusal
        return message

    async def _expanded(self, session: Session, text: str) -> str:
        """The text of the hub server prompt that a message names, which the policy must allow too; else the message."""
        async with session.deps.open_hub() as hub:
            if hub is None:
                return text
            caller = f"session:{session.id}"
            servers = usable_servers(hub, session.options.hub_servers, session.deps.enforcer, session.owner)
            expanded = await expand_prompt(hub, text, servers, caller, session.cwd)
        if expanded != text:
            session.deps.enforcer.admission(session.owner).check_prompt("prompt", expanded, session.cwd)
        return expanded

    async def conclude(self, kind: AuditKind, session: Session, prompt: str, who: str, **more: Any) -> None:
        """Wait until an accepted message is recorded, and audit it. The caller is answered only afterward."""
        # After this the message survives a kill of the server. The first record of a new session already has it.
        if kind not in (AuditKind.SESSION_CREATED, AuditKind.SESSION_FORKED):
            await session.saved()
        if self._deps.replica is not None:  # it also survives the loss of the machine
            await self._deps.replica.caught_up(session.id)
        enclosure = session.deps.launcher.home.enclosure
        details = {
            "prompt": prompt,
            "cwd": session.cwd,
            "mode": session.options.permission_mode,
            "isolation": "none" if enclosure is None else enclosure.kind,
            **more,
        }
        if who != session.owner:
            details["owner"] = session.owner
        self._observers.act(AuditEvent(kind, who, session.id, details))
