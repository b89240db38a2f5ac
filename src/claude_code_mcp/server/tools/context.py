"""One tool call as the tools see it: the caller, its connection, and what a repeated call brought back.

On 2026-07-28 a call that has a question for the client returns it, and the client repeats the call with the answer.
Each such repetition is another round of the same call: `state` is what the round before left with the client.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import mcp_types as types

from ...errors import InvalidArgument, PermissionDenied
from ...service import Service
from ...sessions.pending_turn import PendingTurn
from ..elicitation.dialogs import Dialogs, is_modern
from ..sdk import Context
from .answering import ENABLE_BYPASS
from .query_buffer import HeldEvents

if TYPE_CHECKING:  # a server without a hub does not pay for one
    from ...hub.hub import Hub

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Switches:
    """The permission switches of a caller, for its own sessions, while the server runs."""

    service: Service
    principal: str

    @property
    def bypass(self) -> bool:
        return self.service.bypass_on(self.principal)

    def set_bypass(self, on: bool, *, by: str) -> None:
        """`by` is the person or caller who agreed to it."""
        self.service.set_bypass(self.principal, on, by=by)
        log.warning("bypassPermissions was switched %s by %s", "on" if on else "off", by)

    def check(self, permission_mode: str | None) -> None:
        """Refuses a mode that is switched off."""
        if permission_mode == "bypassPermissions" and not self.bypass:
            raise PermissionDenied("bypassPermissions is switched off.", remedy=ENABLE_BYPASS)


class RunsOn(Protocol):
    """A call that can run on after its client has been answered: see server/tasks.py."""

    @property
    def is_begun(self) -> bool:
        """Whether the client has its answer already."""

    async def begin(self, session_id: str | None, message_id: str | None) -> None:
        """Makes the rest of the call a task, durably."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool needs to run one call."""

    service: Service
    dialogs: Dialogs
    principal: str
    context: Context
    switches: Switches
    held_events: HeldEvents
    hub: "Hub | None" = None
    responses: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    on_disconnect: str = "keep"
    """What becomes of a turn when the client that waits for it is gone."""
    offsets: dict[str, int] = field(default_factory=dict)
    """How far the person has read in questions that take several forms, by question; earlier rounds included."""
    task: RunsOn | None = None
    """What the call may become; None for a client that does not take tasks."""

    def __post_init__(self) -> None:
        self.offsets.update(self.state.get("offsets") or {})

    @property
    def resumed_session(self) -> str | None:
        """The session of an earlier round of this same call; what that round did must not be done again."""
        session_id = self.state.get("session")
        return session_id if isinstance(session_id, str) else None

    def resumed_turn(self) -> PendingTurn | None:
        """The session of an earlier round and the message which that round sent, whose outcome this call is for; None
        in the first round, which is to send it. InvalidArgument if the outcome is no longer kept."""
        if self.resumed_session is None:
            return None
        session = self.service.session(self.resumed_session, owner=self.principal)
        message = session.delivery(str(self.state.get("message")))
        if message is None:
            raise InvalidArgument(
                f"The answer that this call waited for is no longer kept; session {session.id} can be continued.",
                session_id=session.id,
            )
        return PendingTurn(session, message)

    def resumed_number(self, name: str) -> int | None:
        """A number that the earlier round left in the state."""
        value = self.state.get(name)
        return value if isinstance(value, int) else None

    async def detach(self, session_id: str | None = None, message_id: str | None = None) -> None:
        """The call begins to wait, for a message of a session if one is named. Where the client takes tasks it is
        answered now, and the call runs on without it."""
        if self.task is not None:
            await self.task.begin(session_id, message_id)

    @property
    def detached(self) -> bool:
        """Whether nobody waits for this call any more: it has no limit of time and sends no notifications."""
        return self.task is not None and self.task.is_begun

    @property
    def wants_progress(self) -> bool:
        """Whether the client asked for progress notifications of this call."""
        return not self.detached and bool(self.context.meta and self.context.meta.get("progress_token") is not None)

    @property
    def can_ask(self) -> bool:
        """Whether a form can be shown to a person while the call waits."""
        return can_be_asked(self.context) and self.context.session.can_send_request

    @property
    def returns_questions(self) -> bool:
        """Whether questions go back as the result of the call, which the client then repeats with answers."""
        return is_modern(self.context.protocol_version) and can_be_asked(self.context)


def can_be_asked(context: Context) -> bool:
    """Whether the client shows forms to a person."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return False
    return elicitation.form is not None or elicitation.url is None


def read_state(params: types.CallToolRequestParams) -> Mapping[str, Any]:
    """The state that an earlier round of this call left with the client. The SDK has checked its seal."""
    return dict(json.loads(params.request_state)) if params.request_state else {}
