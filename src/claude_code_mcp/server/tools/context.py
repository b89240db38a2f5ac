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
from ...model.origin import ClientOrigin
from ...service import Service
from ...sessions.pending_turn import PendingTurn
from ..elicitation.dialogs import Dialogs, is_modern
from ..elicitation.forms import CONFIRM, confirmation, confirmed
from ..sdk import Context
from .answering import ENABLE_BYPASS
from .query_buffer import HeldEvents

if TYPE_CHECKING:  # a server without a hub does not pay for one
    from ...hub.hub import Hub

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Switches:
    """The permission switches of a caller, for its own sessions, while the server runs and the client is there."""

    service: Service
    principal: str
    origin: ClientOrigin | None = None

    @property
    def bypass(self) -> bool:
        return self.service.bypass_on(self.principal, origin=self.origin)

    def set_bypass(self, on: bool, *, by: str) -> None:
        """`by` is the person or caller who agreed to it."""
        self.service.set_bypass(self.principal, on, by=by, origin=self.origin)
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


class FindsTools(Protocol):
    """The tools of the hub's servers, behind the policy: see hub_proxy.py."""

    async def find(self, principal: str, query: str) -> list[types.Tool]:
        """Those that the caller may use and that have a word of the query, the best first."""

    def tools_by_server(self, principal: str) -> dict[str, int]:
        """How many there are for the caller, as of the last time they were listed."""

    async def knows(self, name: str) -> bool: ...

    async def call(
        self, name: str, call: "Call", arguments: Mapping[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Calls one, once that is permitted; PermissionDenied if it is not."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool needs to run one call."""

    service: Service
    dialogs: Dialogs
    principal: str
    context: Context
    switches: Switches
    held_events: HeldEvents
    origin: ClientOrigin | None = None
    """Where the client is from; None: from here, as on stdio and over HTTP."""
    hub: "Hub | None" = None
    proxy: "FindsTools | None" = None
    """The tools of the hub for clients, where a toolset offers them."""
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
    def caller(self) -> str:
        """The principal at its client: what a person allows at one client is not allowed at another."""
        return f"{self.principal}:{self.origin.id}" if self.origin is not None else self.principal

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
    def can_send_questions(self) -> bool:
        """Whether a question of any kind can be sent to the client while the call waits."""
        any_kind = can_be_asked(self.context) or can_open_addresses(self.context)
        return any_kind and self.context.session.can_send_request

    @property
    def returns_questions(self) -> bool:
        """Whether questions go back as the result of the call, which the client then repeats with answers."""
        return is_modern(self.context.protocol_version) and can_be_asked(self.context)

    async def confirmed(self, question: str, title: str) -> bool | types.InputRequiredResult | None:
        """Asks the person at the client for a plain yes. The answer; or the question, as the result of this call, which
        the client repeats with the answer; or None if nobody can be asked."""
        message, schema = confirmation(question, title)
        if self.returns_questions:
            response = self.responses.get(CONFIRM)
            # An answer counts for the question that it was given to.
            if response is None or self.state.get("confirming") != message:
                request = types.ElicitRequest(
                    params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
                )
                state = json.dumps({"confirming": message})
                return types.InputRequiredResult(input_requests={CONFIRM: request}, request_state=state)
            return isinstance(response, types.ElicitResult) and confirmed(response.action, response.content)
        if not self.can_ask:
            return None
        result = await self.context.session.elicit_form(message, schema, related_request_id=self.context.request_id)
        return confirmed(result.action, result.content)

    @property
    def takes_rounds(self) -> bool:
        """Whether a question of any kind goes back as the result of the call."""
        any_kind = can_be_asked(self.context) or can_open_addresses(self.context)
        return is_modern(self.context.protocol_version) and any_kind


def can_be_asked(context: Context) -> bool:
    """Whether the client shows forms to a person."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return False
    return elicitation.form is not None or elicitation.url is None


def can_open_addresses(context: Context) -> bool:
    """Whether the client brings a person to an address."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and elicitation.url is not None


def read_state(params: types.CallToolRequestParams) -> Mapping[str, Any]:
    """The state that an earlier round of this call left with the client. The SDK has checked its seal."""
    return dict(json.loads(params.request_state)) if params.request_state else {}
