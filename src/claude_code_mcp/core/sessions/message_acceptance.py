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
from ..policy.policy import Limits
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

        Within it the session counts as working. Raises PermissionDenied if one of the `admissions` refuses the prompt,
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
            async with self._budgeted(kept, principal, own_limits, len(working)):
                yield kept

    @asynccontextmanager
    async def _budgeted(
        self, session: Session, principal: str, own_limits: Limits, working: int
    ) -> AsyncIterator[None]:
        """Context with the session's reservation from today's budget; a working session keeps the one it has. A process
        that may spend more, or much less, is replaced. The reservation is returned if the message is refused."""
        limits = self._deps.enforcer.limits
        # Without any budget left, the session itself refuses.
        if not limits.counts(principal, own_limits) or session.busy or session.budget_left == 0:
            yield
            return
        left = session.process.live.left if session.process.live is not None else None
        wanted = (principal, session.id, session.budget_left, working, left)
        reserving = asyncio.ensure_future(asyncio.to_thread(limits.reserve, *wanted))
        try:
            amount = await asyncio.shield(reserving)
            if session.live and left != amount and session.can_park:
                session.park()
            yield
        except BaseException:
            # A thread continues after its caller was cancelled: its reservation must be returned too.
            await asyncio.shield(asyncio.wait([reserving]))
            # If it is busy after all, its message was accepted, and the reservation belongs to that turn.
            reserved = reserving.exception() is None
            if reserved and not session.busy and limits.spending.release(session.id):
                await asyncio.shield(asyncio.to_thread(limits.spending.write_reservation, principal, session.id))
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
        """Read the images and prompts that the message names, then send it to the session. Returns when the message and
        the options are accepted (`_confirm`). Otherwise like `Session.send`."""
        shown: tuple[Image, ...] = ()
        if images:
            shown = await asyncio.to_thread(read_images, images, lambda path: allowed_path(session, path))
        message = await session.send(
            await self._expanded(session, text),
            busy_mode=busy_mode,
            timeout=timeout,
            at_message=at_message,
            sender=sender,
            images=shown,
            message_id=message_id,
            continues=continues,
            on_limit=on_limit,
        )
        await self._confirm(session, new=new, before=before)
        return message

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

    async def _expanded(self, session: Session, text: str) -> str:
        """The message, or the text of the hub server prompt that it names, which the policy must allow too."""
        if not text.startswith(f"/{PREFIX}"):
            return text
        async with session.deps.open_hub() as hub:
            if hub is None:
                return text
            caller = f"session:{session.id}"
            servers = usable_servers(hub, session.options.hub_servers, session.deps.enforcer, session.owner)
            expanded = await expand_prompt(hub, text, servers, caller, session.cwd)
        if expanded != text:
            session.deps.enforcer.admission(session.owner).check_prompt("prompt", expanded, session.cwd)
        return expanded

    async def _confirm(self, session: Session, *, new: bool, before: SessionRecord | None = None) -> None:
        """Wait until Claude Code has accepted the options that only it can check; it does so before it reads the
        message. Raises its refusal; then a `new` session is removed, except for the record from `before`. Cancelling
        the caller interrupts the turn."""
        if not needs_confirmation(session.options):
            return
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
