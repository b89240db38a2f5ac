"""One tool call as the tools see it: the caller, its connection, and how questions are answered.

On 2026-07-28 a call that has a question for the client returns it, and the client repeats the call with the answer.
Each repetition is another round of the same call; `state` is what the previous round left with the client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mcp_types as types

from ...core.errors import ENABLE_BYPASS, InvalidArgument, PermissionDenied
from ...core.model.caller import Caller
from ...core.model.events import QuestionSettled
from ...core.model.options import BYPASS
from ...core.model.question import Answer
from ...core.questions.question_forms import CONFIRM, confirmation, confirmed
from ...core.service import Service
from ...core.sessions.callers.session_access import SessionSharing
from ...core.sessions.pending_turn import PendingTurn
from ...core.sessions.session import Session
from ...startup.shared.handshake import PERSON
from ..client_capabilities import can_be_asked, can_open_addresses, can_sample
from ..dialogs import Dialogs
from ..rounds import HeldEvents, RoundState
from ..sdk import Context, is_modern

if TYPE_CHECKING:
    from ...hub.hub import Hub
    from ..tasks import Task
    from .hub_proxy import HubProxy


@dataclass(frozen=True, slots=True)
class Call:
    """Everything that a tool needs to run one call."""

    service: Service
    dialogs: Dialogs
    caller: Caller
    context: Context
    held_events: HeldEvents
    hub: "Hub | None" = None
    proxy: "HubProxy | None" = None
    """The hub's tools for clients, if a toolset offers them."""
    responses: Mapping[str, Any] = field(default_factory=dict)
    state: RoundState = field(default_factory=RoundState)
    on_disconnect: str = "keep"
    """What happens to a turn when its waiting client disconnects."""
    offsets: dict[str, int] = field(default_factory=dict)
    """By question, how far the person has read if it takes several forms; includes earlier rounds."""
    task: "Task | None" = None
    """The task that the call may become; None if the client does not accept tasks."""

    def __post_init__(self) -> None:
        self.offsets.update(self.state.offsets)

    @property
    def principal(self) -> str:
        return self.caller.principal

    def sharing(self, session: Session) -> SessionSharing:
        """The owner and the grantees of a session, as far as the caller may know them."""
        return self.service.access.sharing(session.id, self.principal)

    def check_mode(self, permission_mode: str | None) -> None:
        """Raise PermissionDenied for a mode that is switched off for the caller, with this client's remedy."""
        if permission_mode == BYPASS and not self.service.policy_for(self.caller).bypass_on:
            raise PermissionDenied(f"{BYPASS} is switched off.", remedy=ENABLE_BYPASS)

    def follow(self, session_id: str) -> str:
        """Show the session's questions to this client from now on, and accept the answers that the call brought.
        Returns who answered first if an answer came too late, otherwise an empty string."""
        self.dialogs.follow(session_id)
        return self.accept_forms(session_id)

    def accept_forms(self, session_id: str) -> str:
        """Accept the forms that the call brought, for questions that its earlier round has shown; others are ignored.
        Returns who answered first if an answer came too late, otherwise an empty string."""
        forms = {question_id: form for question_id, form in self.responses.items() if question_id in self.state.shown}
        return self.dialogs.accept_forms(session_id, forms, self.offsets)

    @property
    def has_person_at_terminal(self) -> bool:
        """Whether the client declares, where no model can write, that a person is at its terminal, as our own
        interfaces do. Not believed over HTTP; the socket drops it if the client runs inside a session."""
        capabilities = self.context.session.client_capabilities
        declared = (capabilities.experimental or {}).get(PERSON) if capabilities is not None else None
        return self.context.request is None and isinstance(declared, Mapping) and declared.get("answers") is True

    async def respond(self, session_id: str, input_id: str, answer: Answer, by: str) -> tuple[Session, str]:
        """Answer a question of the session on behalf of this client, through the tool of that name. Returns the session
        and the cursor before the event of this answer."""
        session = self.service.respond(
            session_id,
            input_id,
            answer,
            principal=self.principal,
            by=by,
            client=self.dialogs.client,
            person=self.has_person_at_terminal,
        )
        # The answer was given within the call above, without an await: the latest one is ours.
        settled = session.events.latest(QuestionSettled, 1)
        since = session.events.cursor(settled[0].seq - 1 if settled else session.events.last_seq)
        await session.saved()  # permissions granted for the session outlive this process
        return session, since

    @property
    def resumed_session(self) -> str | None:
        """The session of an earlier round of this call; its work must not be repeated."""
        return self.state.session

    def resumed_turn(self) -> PendingTurn | None:
        """The session of the earlier round and the message that it sent; None in the first round, which sends it.
        Raises InvalidArgument if the outcome of the message is no longer kept."""
        if self.resumed_session is None:
            return None
        session = self.service.session(self.resumed_session, principal=self.principal)
        message = session.delivery(self.state.message or "")
        if message is None:
            raise InvalidArgument(
                f"The answer for this call is no longer available. Continue session {session.id} instead.",
                session_id=session.id,
            )
        return PendingTurn(session, message)

    async def detach(self, session_id: str | None = None, message_id: str | None = None) -> None:
        """Call this before waiting, with the message to wait for, if any. A client that accepts tasks is answered now,
        and the call continues without it."""
        if self.task is not None:
            await self.task.begin(session_id, message_id)

    @property
    def detached(self) -> bool:
        """Whether the client has been answered already: the call has no time limit and sends no notifications."""
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

    async def confirmed(self, question: str, title: str) -> bool | types.InputRequiredResult | None:
        """Ask the person at the client to confirm. Returns the answer; or the question, as the result of this call,
        which the client repeats with the answer; or None if the client cannot ask a person."""
        message, schema = confirmation(question, title)
        if self.returns_questions:
            response = self.responses.get(CONFIRM)
            # An answer counts only for its own question.
            if response is None or self.state.confirming != message:
                request = types.ElicitRequest(
                    params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
                )
                state = RoundState(confirming=message).to_json()
                return types.InputRequiredResult(input_requests={CONFIRM: request}, request_state=state)
            return isinstance(response, types.ElicitResult) and confirmed(response.action, response.content)
        if not self.can_ask:
            return None
        result = await self.context.session.elicit_form(message, schema, related_request_id=self.context.request_id)
        return confirmed(result.action, result.content)

    @property
    def takes_rounds(self) -> bool:
        """Whether a question of any kind goes back as the result of the call."""
        any_kind = can_be_asked(self.context) or can_open_addresses(self.context) or can_sample(self.context)
        return is_modern(self.context.protocol_version) and any_kind
