"""One tool call as the tools see it: the caller, its connection, and how questions are answered.

The texts depend on the chosen toolsets: none may name a tool that the caller was not offered.

On 2026-07-28 a call that has a question for the client returns it, and the client repeats the call with the answer.
Each such repetition is another round of the same call: `state` is what the round before left with the client.

A call may wait for a turn: bounded in time, woken by questions, with progress notifications meanwhile. The turn belongs
to the service and not to the call: a wait that runs out of time or loses its client leaves the turn alone, unless the
client cancelled the call or the setting for clients that go away says otherwise.
"""

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import mcp_types as types
from mcp.shared.dispatcher import ProgressFnT
from pydantic import WithJsonSchema

from ...core import json_text
from ...core.config import Settings
from ...core.errors import ENABLE_BYPASS, ClaudeCodeError, InvalidArgument, PermissionDenied
from ...core.model.caller import Caller
from ...core.model.events import (
    BudgetWarned,
    Event,
    Gap,
    Output,
    QuestionOpened,
    QuestionSettled,
    Retrying,
    StateChanged,
    TurnEnded,
    TurnStarted,
    WaitChanged,
)
from ...core.model.options import BYPASS
from ...core.model.question import Answer, Closure, Question, Scope
from ...core.model.text import cut
from ...core.questions.question_forms import CONFIRM, confirmation, confirmed
from ...core.service import Service
from ...core.sessions.messages import UserMessage
from ...core.sessions.pending_turn import PendingTurn
from ...core.sessions.session import Session
from ...core.sessions.session_access import SessionSharing
from ...core.transcripts.event_log import Subscription
from ...startup.shared.hello import PERSON
from .. import sdk
from ..dialogs import SHOWN, Dialogs
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
    def subscribe(self, session: Session, after: int) -> Iterator[RoundEvents]:
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

    def sharing(self, session: Session) -> SessionSharing:
        """What the caller is told of whose a session is, and with whom it is shared."""
        return self.service.access.sharing(session.id, self.principal)

    def check_mode(self, permission_mode: str | None) -> None:
        """Refuses a mode that is switched off for the caller, at this client."""
        if permission_mode == BYPASS and not self.service.policy_for(self.caller).bypass_on:
            raise PermissionDenied(f"{BYPASS} is switched off.", remedy=ENABLE_BYPASS)

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


# -- waiting ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_PROGRESS_INTERVAL = 0.2
"""Seconds between two progress notifications of a call."""
_SHOWN = (Output, QuestionOpened, QuestionSettled, Retrying, StateChanged, TurnStarted, TurnEnded, WaitChanged, Gap)
"""The events by which a report changes."""
_MAX_PROGRESS_MESSAGE = 2000


async def wait_for_turn(
    call: Call, session: Session, message: UserMessage, seconds: float
) -> types.InputRequiredResult | None:
    """Waits for the outcome of the call's own message, as `wait_for_rest` does, with progress notifications.

    Returns open questions where the client takes them as the result of a call. When the call is cancelled while it
    waits, `waiting_cancelled` decides what becomes of the turn.
    """
    call.follow(session.id)
    await call.detach(session.id, message.id)
    try:
        async with progress_of(call, session):
            await wait_for_rest(call, session, seconds, message)
    except asyncio.CancelledError:
        waiting_cancelled(call, session, message)
        raise
    return None if message.outcome.done() else open_questions(call, session, message=message.id)


async def wait_for_rest(call: Call, session: Session, seconds: float, message: UserMessage | None = None) -> None:
    """Waits until the session rests or has an open question, but at most `seconds`. While all open questions are left
    to others the wait goes on. A call that has become a task waits as long as it takes.

    With a `message`, waits for the outcome of that message instead, whatever else the session does.
    """
    outcome = message.outcome if message is not None else None
    context = call.context
    with (
        contextlib.suppress(TimeoutError),
        call.dialogs.waiting(session.id, context.request_id, context.session),
    ):
        async with asyncio.timeout(None if call.detached else seconds):
            while outcome is None or not outcome.done():
                await first_of(outcome, session.wait(None))
                if not (session.busy and _left_to_others(call, session)):
                    break
                await first_of(outcome, call.dialogs.wait_for_change())
    await session.saved()  # what the caller is told now must be known after a crash too


async def wait_for_change(session: Session, position: int | None, seconds: float) -> None:
    """Waits until something that a report shows has happened behind that event, but at most `seconds`. Does not wait if
    it has happened already, or if the position is not known here."""
    if position is None:
        return
    with contextlib.suppress(TimeoutError), session.events.subscribe(position) as events:
        async with asyncio.timeout(seconds):
            async for event in events:
                if isinstance(event, _SHOWN):
                    break
    if not session.busy:
        await session.saved()  # what the caller is told now must be known after a crash too


def _left_to_others(call: Call, session: Session) -> bool:
    """Whether this call has nothing to do with the open questions: they are in dialogs that a person has before them,
    or the person has closed those of a task and will answer somewhere else."""
    dialogs = call.dialogs
    return dialogs.all_shown(session.id) or (call.detached and not dialogs.undismissed(session.id))


async def first_of(outcome: "asyncio.Future[Any] | None", event: Coroutine[Any, Any, Any]) -> None:
    """Waits for an outcome, if there is one, or for an event: whichever comes first. Then the wait for the event is
    cancelled, never the outcome."""
    if outcome is None:
        await event
        return
    other = asyncio.ensure_future(event)
    try:
        await asyncio.wait({outcome, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()


def waiting_cancelled(call: Call, session: Session, message: UserMessage) -> None:
    """The call was cancelled while it waited. If the client cancelled it, its message is given up and the turn is
    interrupted; if the client is gone, the setting for that decides."""
    by_client = sdk.cancelled_by_client(call.context) or _closed_to_cancel(call)
    effect = "interrupt" if by_client else call.on_disconnect
    log.info("session %s: the call that waited %s: %s", session.id, "was cancelled" if by_client else "is gone", effect)
    if by_client:
        # In a task of the service: this call is being cancelled, and cannot wait for it.
        call.service.start_task(session.give_up_message(message))
    elif call.on_disconnect != "keep":
        call.service.start_task(end_turns(call.service, [session.id], stop=call.on_disconnect == "stop"))


def _closed_to_cancel(call: Call) -> bool:
    """Whether the end of the connection is the client's way to cancel. On HTTP in 2026-07-28 it is the only one: to
    close the stream of a response cancels its request. A task runs on, as its client asked, and so does every call
    where the operator has set what becomes of turns whose client goes away."""
    over_http = call.context.request is not None
    kept = call.detached or call.service.settings.on_disconnect is not None
    return over_http and sdk.is_modern(call.context.protocol_version) and not kept


async def end_turns(service: Service, session_ids: Collection[str], *, stop: bool) -> None:
    """Interrupts what these sessions are doing and, to `stop` them, closes their processes too."""
    sessions = [session for session in service.sessions(principal=None) if session.id in session_ids]
    await asyncio.gather(*(session.interrupt() for session in sessions))
    # Only after the turn has ended: a session at work cannot be parked.
    for session in sessions:
        if stop and session.can_park:
            session.park()


def open_questions(call: Call, session: Session, **state: Any) -> types.InputRequiredResult | None:
    """The open questions as the result of the call, where the client takes them so; None if there are none. `state`
    comes back with the answers."""
    questions = call.dialogs.undismissed(session.id) if call.returns_questions else []
    return call.dialogs.as_result(session.id, questions, call.offsets, **state) if questions else None


# -- progress -------------------------------------------------------------------------------------------------


def progress_callback(call: Call) -> ProgressFnT | None:
    """Sends progress of this call; None if the client did not ask for it."""
    return call.context.session.report_progress if call.wants_progress else None


@asynccontextmanager
async def progress_of(call: Call, session: Session) -> AsyncIterator[None]:
    """Within this context a client that asked for progress is notified of what the session does. All of it has been
    sent when the context is left, unless by an exception."""
    if not call.wants_progress:
        yield
        return
    # Before the task runs: what happens until then is reported too.
    with session.events.subscribe() as events:
        ended = asyncio.Event()
        reporting = call.service.start_task(_report_progress(call, session.questions, events, ended))
        try:
            yield
            # The result follows: who answered a moment ago is told before it, and no interval is waited for.
            events.close()
            ended.set()
            await asyncio.wait({reporting})
        finally:
            reporting.cancel()


async def _report_progress(call: Call, questions: list[Question], events: Subscription, ended: asyncio.Event) -> None:
    """Sends the open questions, then what happens: every question that is opened or answered, and of all other events
    since the last notification the latest line, at a bounded rate until the call has `ended`."""
    report = call.context.session.report_progress

    def clean(line: str) -> str:
        return json_text.sound_text(call.service.redaction.text(line))

    for count, question in enumerate(questions, 1):
        await report(count, None, clean(_question_line(question)))
    count = len(questions)
    async for event in events:
        reports = [(new, line) for new in (event, *_available(events)) if (line := _progress_line(new)) is not None]
        for number, (new, line) in enumerate(reports, 1):
            if number == len(reports) or isinstance(new, QuestionOpened | QuestionSettled):
                await report(count + number, None, cut(clean(line), _MAX_PROGRESS_MESSAGE))
        if reports:
            count += len(reports)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _PROGRESS_INTERVAL)


def _available(events: Subscription) -> Iterator[Event]:
    """The events that need no waiting for."""
    with contextlib.suppress(IndexError):
        while True:
            yield events.take()


def _progress_line(event: Event) -> str | None:
    match event:
        case Output():
            return event.line
        case BudgetWarned():
            return event.line
        case Retrying():
            return f"The API answered {event.status or 'with an error'}; attempt {event.attempt} follows."
        case QuestionOpened():
            return _question_line(event.question)
        case QuestionSettled() if event.resolution.closure is Closure.ANSWERED:
            verdict = "allowed" if event.resolution.answer and event.resolution.answer.allow else "denied"
            return f"Question [{event.question.id}] was {verdict} by {event.resolution.whose}."
    return None


def _question_line(question: Question) -> str:
    return f"Waiting for an answer [{question.id}]: {question.description}"
