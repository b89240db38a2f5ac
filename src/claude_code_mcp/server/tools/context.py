"""One tool call as the tools see it: the caller, its connection, and how questions are answered.

The texts depend on the chosen toolsets: none may name a tool that the caller was not offered.

On 2026-07-28 a call that has a question for the client returns it, and the client repeats the call with the answer.
Each such repetition is another round of the same call: `state` is what the round before left with the client.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import mcp_types as types
from pydantic import WithJsonSchema

from ...config import Settings
from ...errors import ClaudeCodeError, InvalidArgument, PermissionDenied
from ...model.caller import Caller
from ...model.question import Answer, Scope
from ...service import Service
from ...sessions.acceptance import PendingTurn
from ...sessions.session import Session, SessionView
from ...sessions.session_access import SessionSharing
from ...shared.hello import PERSON
from ...store.event_log import Subscription
from ..dialogs import CONFIRM, SHOWN, Dialogs, confirmation, confirmed
from ..sdk import Context, is_modern

if TYPE_CHECKING:
    from ...hub.hub import Hub


AnswerTexts = Annotated[
    dict[str, str | list[str]] | list[str | list[str]],
    # The whole shape would cost every caller 170 bytes of context per tool; what does not fit it is refused by name.
    WithJsonSchema({"oneOf": [{"type": "object"}, {"items": {}, "type": "array"}]}),
]
"""Labels or free text for a user question, by question or in order."""

ModeAfterPlan = Literal["default", "acceptEdits", "dontAsk"]

ENABLE_BYPASS = "enable_bypass"
"""The `data["remedy"]` of errors which switching bypassPermissions on would avoid."""

_INSTRUCTIONS = {
    "sessions": "claude_create_session starts one and returns its id; claude_get_status with waitSeconds waits for its "
    "end or a question; claude_respond answers questions; claude_send_message goes on with any session.",
    "code": "claude_code runs a task and returns its result; claude_code_reply continues it; claude_code_session looks "
    "after what still runs and answers its questions.",
    "query": "claude_code_query runs a prompt and streams its messages.",
    "hub": "claude_mcp_servers shows and steers the MCP servers that all sessions share.",
    "hub-search": "claude_mcp_search finds tools of the MCP servers that sessions share; claude_mcp_call calls one.",
}


class AnswerArguments(Protocol):
    """The arguments that every answering tool has beside the decision."""

    @property
    def reason(self) -> str | None: ...
    @property
    def scope(self) -> str | None: ...
    @property
    def answers(self) -> AnswerTexts | None: ...
    @property
    def updated_input(self) -> Mapping[str, Any] | None: ...
    @property
    def permission_mode(self) -> str | None: ...


def answer_from(decision: str, arguments: AnswerArguments) -> Answer:
    """The answer in a tool's arguments; InvalidArgument where they contradict each other."""
    allow = decision == "allow"
    if not allow and arguments.scope == "session":
        raise InvalidArgument("scope: only an allowance can be for the session.", field="scope")
    if not allow and arguments.permission_mode is not None:
        raise InvalidArgument("permission_mode: only the approval of a plan has one.", field="permission_mode")
    return Answer(
        allow=allow,
        message=arguments.reason,
        scope=Scope(arguments.scope or "once"),
        updated_input=arguments.updated_input,
        answers=arguments.answers,
        mode=arguments.permission_mode,
    )


def instructions(settings: Settings) -> str:
    """The server's instructions in the handshake: how its main toolset is used. The others explain themselves."""
    main = next((toolset for toolset in _INSTRUCTIONS if toolset in settings.toolsets), None)
    return "Runs Claude Code sessions." + (f" {_INSTRUCTIONS[main]}" if main is not None else "")


def how_to_answer(settings: Settings) -> str:
    """What to call for a session that waits for answers."""
    if "sessions" in settings.toolsets:
        return "Answer each entry of pendingInputs with claude_respond; then wait with claude_get_status."
    return (
        "Answer each entry of pendingInputs with claude_code_session, action respond; then wait with its action get "
        "and waitSeconds."
    )


def how_to_wait(settings: Settings) -> str:
    """What to call for a session whose turn goes on in the background."""
    how = "claude_get_status" if "sessions" in settings.toolsets else "claude_code_session, action get with waitSeconds"
    return f"It goes on in the background: wait for it with {how}, then continue with claude_code_reply."


def point_to_remedy(error: ClaudeCodeError, settings: Settings) -> None:
    """Adds to an error's message what the caller can do about it, if a tool for that is offered."""
    if error.data.get("remedy") == ENABLE_BYPASS and "code" in settings.toolsets:
        error.message += " claude_code_configure with action enable_bypass asks to switch it on."


# -- context ----------------------------------------------------------------------------------------------------------


TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
_MAX_HELD = 100
"""Subscriptions that are kept between two rounds."""


class DetachableCall(Protocol):
    """A call that can run on after its client has been answered: see server/tasks.py."""

    @property
    def is_begun(self) -> bool:
        """Whether the client has its answer already."""

    async def begin(self, session_id: str | None, message_id: str | None) -> None:
        """Makes the rest of the call a task, durably."""


class ToolFinder(Protocol):
    """The tools of the hub's servers, behind the policy: see hub_proxy.py."""

    async def find(self, caller: Caller, query: str) -> list[types.Tool]:
        """Those that the caller may use and that have a word of the query, the best first."""

    def tools_by_server(self, caller: Caller) -> dict[str, int]:
        """How many there are for the caller, as of the last time they were listed."""

    async def knows(self, caller: Caller, name: str) -> bool: ...

    async def call(
        self, name: str, call: "Call", arguments: Mapping[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Calls one, once that is permitted; PermissionDenied if it is not."""


@dataclass(slots=True)
class RoundEvents:
    """The events of a session for one round of a call."""

    events: Subscription
    continues: bool = False
    """Whether another round will go on from here."""


class HeldEvents:
    """The subscriptions of calls between two rounds, by session. The oldest are closed when there are too many, for
    clients that never come back."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Subscription] = OrderedDict()

    @contextmanager
    def subscribe(self, session: SessionView, after: int) -> Iterator[RoundEvents]:
        """The events from where an earlier round of the call left off, or else those behind `after`. At the end the
        subscription is held for the next round if the call continues, and closed if not."""
        # Taken out: two calls for one session must not read from the same subscription.
        held = self._held.pop(session.id) if session.id in self._held else session.events.subscribe(after)
        round_ = RoundEvents(held)
        try:
            yield round_
        finally:
            if round_.continues:
                self._held[session.id] = round_.events
                while len(self._held) > _MAX_HELD:
                    self._held.popitem(last=False)[1].close()
            else:
                round_.events.close()


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool needs to run one call."""

    service: Service
    dialogs: Dialogs
    caller: Caller
    context: Context
    held_events: HeldEvents
    hub: "Hub | None" = None
    proxy: "ToolFinder | None" = None
    """The tools of the hub for clients, where a toolset offers them."""
    responses: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    on_disconnect: str = "keep"
    """What becomes of a turn when the client that waits for it is gone."""
    offsets: dict[str, int] = field(default_factory=dict)
    """How far the person has read in questions that take several forms, by question; earlier rounds included."""
    task: DetachableCall | None = None
    """What the call may become; None for a client that does not take tasks."""

    def __post_init__(self) -> None:
        self.offsets.update(self.state.get("offsets") or {})

    @property
    def principal(self) -> str:
        return self.caller.principal

    def sharing(self, session: SessionView) -> SessionSharing:
        """What the caller is told of whose a session is, and with whom it is shared."""
        return self.service.access.sharing(session.id, self.principal)

    def check_mode(self, permission_mode: str | None) -> None:
        """Refuses a mode that is switched off for the caller, at this client."""
        if permission_mode == "bypassPermissions" and not self.service.policy_for(self.caller).bypass_on:
            raise PermissionDenied("bypassPermissions is switched off.", remedy=ENABLE_BYPASS)

    def follow(self, session_id: str) -> str:
        """Shows the session's questions to this client from now on, and accepts the answers that the call brought;
        returns who was faster if one came too late, or an empty text."""
        self.dialogs.follow(session_id)
        return self.accept_forms(session_id)

    def accept_forms(self, session_id: str) -> str:
        """Accepts the forms that the call brought, of questions that an earlier round of it has shown: nobody can fill
        in another one. Returns who was faster if an answer came too late, or an empty text."""
        shown = self.state.get(SHOWN) or ()
        forms = {question_id: form for question_id, form in self.responses.items() if question_id in shown}
        return self.dialogs.accept_forms(session_id, forms, self.offsets)

    @property
    def has_person_at_terminal(self) -> bool:
        """Whether the client says, outside of what a model can write, that a person is at its terminal, as our own
        interfaces do. Over HTTP it is not believed; the socket drops it if a command of a session says so."""
        capabilities = self.context.session.client_capabilities
        declared = (capabilities.experimental or {}).get(PERSON) if capabilities is not None else None
        return self.context.request is None and isinstance(declared, Mapping) and declared.get("answers") is True

    async def respond(self, session: Session, input_id: str, answer: Answer, by: str) -> None:
        """Answers a question of the session, on behalf of this client and by the tool of that name."""
        self.service.respond(
            session.id,
            input_id,
            answer,
            principal=self.principal,
            by=by,
            client=self.dialogs.client,
            person=self.has_person_at_terminal,
        )
        await session.saved()  # what was allowed for the session outlives this process

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
        session = self.service.session(self.resumed_session, principal=self.principal)
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
        any_kind = can_be_asked(self.context) or can_open_addresses(self.context) or can_sample(self.context)
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


def can_sample(context: Context) -> bool:
    """Whether the client lets servers ask its model."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.sampling is not None


def declares_tasks(context: Context) -> bool:
    """Whether this request's client takes tasks. Only requests of 2026-07-28 can say so."""
    capabilities = context.session.client_capabilities
    extensions = capabilities.extensions if capabilities is not None else None
    return is_modern(context.protocol_version) and TASKS_EXTENSION in (extensions or {})


def read_state(params: types.CallToolRequestParams) -> Mapping[str, Any]:
    """The state that an earlier round of this call left with the client. The SDK has checked its seal."""
    return dict(json.loads(params.request_state)) if params.request_state else {}
