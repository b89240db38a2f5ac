"""The answer channel through the client's own dialogs (MCP elicitation).

On connections of the 2025 protocol a question is pushed as an `elicitation/create` request as soon as the client reads
a stream: the stream of a waiting call, otherwise the connection's own. On 2026-07-28 a server may not send requests:
there a waiting call returns the question, and the client repeats the call with the answer. The broker offers every
question to the other channels too; the first answer wins, and the dialog of a question that was settled elsewhere is
withdrawn.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import mcp_types as types
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from ..core import json_text
from ..core.errors import InvalidArgument, PermissionDenied
from ..core.model.caller import LOCAL
from ..core.model.question import Answer, Closure, Question, Resolution
from ..core.questions.presentation import original_answer, without_secrets
from ..core.questions.question_forms import answer_of, form_of, next_offset, wants_next_page
from ..core.service import Service
from .rounds import RoundState
from .sdk import is_modern, log_pushed

log = logging.getLogger(__name__)

_WITH_ARRAYS = "2025-11-25"
_FORMS_AT_ONCE = 1 << 19
"""Maximum characters of all forms in one result; the other questions follow in the next round."""
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)


@dataclass(frozen=True, slots=True, eq=False)
class _CallStream:
    """The stream of a call that waits for a session: the client reads it, so a question can be pushed on it."""

    session_id: str
    request_id: types.RequestId | None
    session: ServerSession


class Dialogs:
    """The dialogs of one connection: a channel for the questions of this client's sessions."""

    name = "elicitation"

    def __init__(
        self,
        service: Service,
        session: ServerSession,
        *,
        pushes: bool,
        can_push: Callable[[], bool],
        connection: str | None = None,
        client: str = "",
        principal: str = LOCAL,
    ) -> None:
        """`pushes` is whether questions are sent as requests at all; `can_push` returns whether the client currently
        reads messages outside a call."""
        self._service = service
        self._session = session
        self._principal = principal
        self._pushes = pushes
        self._can_push = can_push
        self.connection = connection
        self.client = client
        """The client's name; shown to other clients if a question is answered here first."""
        self.followed: set[str] = set()
        """The sessions that this client has used."""
        self.log_level: str | None = None
        """The minimum level of hub server logs that this client wants; None for all."""
        self._waiting: list[_CallStream] = []
        self._shown: dict[str, asyncio.Task[None]] = {}
        """The dialogs that a person has open, by question."""
        self._dismissed: set[str] = set()
        """Questions whose dialog was closed without an answer, or could not be shown: other channels may answer."""
        self._offsets: dict[str, int] = {}
        """By question, how far the person has read, if it needs several forms and forms are pushed."""
        self._taken_away: dict[str, str] = {}
        """By session, the last question that was answered elsewhere while its dialog was open here."""
        self._change = asyncio.Event()
        service.broker.add_channel(self)

    def close(self) -> None:
        """Stop offering questions here and cancel the open dialogs, because the connection has ended."""
        self._service.broker.remove_channel(self)
        for task in self._shown.values():
            task.cancel()

    async def notify_changed(self, kind: str) -> None:
        """Tell the client to list the tools, resources or prompts again. Clients of 2026-07-28 subscribe to such
        changes instead."""
        if is_modern(self._session.protocol_version):
            return
        match kind:
            case "tools":
                await self._session.send_tool_list_changed()
            case "resources":
                await self._session.send_resource_list_changed()
            case "prompts":
                await self._session.send_prompt_list_changed()

    async def notify_updated(self, uri: str) -> None:
        """Tell the client that a resource that it has subscribed to has changed."""
        await self._session.send_resource_updated(uri)

    def follow(self, session_id: str) -> None:
        """Show the questions of this session here from now on, including already open ones."""
        self.followed.add(session_id)
        self._offer_pending_of(session_id)

    def session_moved(self, old: str, new: str) -> None:
        """Note that a session of this client continues under another id."""
        if old in self.followed:
            self.follow(new)

    @contextmanager
    def waiting(self, session_id: str, request_id: types.RequestId | None, session: ServerSession) -> Iterator[None]:
        """Context in which a call waits for the session and questions are pushed on its stream, including those opened
        while no stream was read."""
        call = _CallStream(session_id, request_id, session)
        self._waiting.append(call)
        # Add the stream first: `offer_pending` pushes on the streams in the list.
        self.offer_pending()
        try:
            yield
        finally:
            self._waiting.remove(call)

    def offer_pending(self) -> None:
        """Show the open questions that have no dialog yet; called when a stream to the client may have opened."""
        for session_id in self.followed:
            self._offer_pending_of(session_id)

    def _offer_pending_of(self, session_id: str) -> None:
        for question in self.undismissed_questions(session_id):
            self._show_if_possible(question)

    def offer(self, question: Question) -> None:
        self._show_if_possible(question)
        self._changed()

    def _show_if_possible(self, question: Question) -> None:
        # A client that only watches a session gets no dialogs.
        followed = question.session_id in self.followed and self.may_answer(question.session_id)
        if not (self._pushes and followed) or question.id in self._shown:
            return
        # On the stream of a waiting call, preferably one that waits for this session, or else the connection's own.
        waiting = sorted(self._waiting, key=lambda call: call.session_id == question.session_id)
        if waiting:
            stream = waiting[-1]
        elif self._can_push():
            stream = _CallStream(question.session_id, None, self._session)
        else:
            return  # the client reads no stream now: `offer_pending` shows the question later
        # In the table before the task has run: `offer_pending` may be called again in the meantime.
        self._shown[question.id] = self._service.start_task(self._show(question, stream))

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        self._dismissed.discard(question.id)
        self._offsets.pop(question.id, None)
        task = self._shown.pop(question.id, None)
        if task is not None:
            task.cancel()
            if resolution.closure is Closure.ANSWERED:
                self._taken_away[question.session_id] = question.id
        self._changed()

    def taken_away(self, session_id: str) -> str:
        """Who answered a question of the session while its dialog was open here, reported once; otherwise an empty
        string. The protocol cannot report this in the dialog itself."""
        question_id = self._taken_away.pop(session_id, None)
        return self._service.broker.why_closed(session_id, question_id).message if question_id is not None else ""

    def _changed(self) -> None:
        # A new event for each change: waiters check again when they run, and nothing has to be cleared.
        change, self._change = self._change, asyncio.Event()
        change.set()

    def wait_for_change(self) -> Coroutine[Any, Any, Any]:
        """Wait until a question is opened, settled or dismissed, counting from this call: changes before the await are
        not missed."""
        return self._change.wait()

    async def _show(self, question: Question, stream: "_CallStream") -> None:
        arrays = self._session.protocol_version >= _WITH_ARRAYS
        message, schema = self._form(question, self._offsets, arrays=arrays)
        log_pushed("request", "elicitation/create")
        try:
            result = await stream.session.elicit_form(
                json_text.sound_text(message), json_text.sound(schema), related_request_id=stream.request_id
            )
        except (MCPError, ValidationError, *_GONE) as error:
            log.info("question %s could not be shown: %s", question.id, error)
            self._dismiss(question.id)
            return
        # The dialog is closed. Dropped before the answer is given: answering withdraws the question from all channels,
        # which would cancel this very task.
        del self._shown[question.id]
        self.accept_form(question.session_id, question.id, result.action, result.content, self._offsets)
        if question.id in self._offsets and question.id not in self._dismissed:
            self.offer(question)  # the person wants the next part

    def _form(
        self, question: Question, offsets: Mapping[str, int], *, arrays: bool = True
    ) -> tuple[str, dict[str, Any]]:
        return form_of(self._as_shown(question), arrays=arrays, offset=offsets.get(question.id, 0))

    def _as_shown(self, question: Question) -> Question:
        """A question without secrets, with the decisions that the person at this client may make."""
        asked = self._service.access.question_for(question, self._principal)
        return without_secrets(asked, self._service.redaction)

    def _dismiss(self, question_id: str) -> None:
        self._dismissed.add(question_id)
        self._changed()

    def undismissed_questions(self, session_id: str) -> list[Question]:
        """Open questions of a session that the person has not dismissed."""
        pending = self._service.broker.pending(session_id)
        if not pending or not self.may_answer(session_id):
            return []
        return [question for question in pending if question.id not in self._dismissed]

    def may_answer(self, session_id: str) -> bool:
        """Whether the person at this client may answer the questions of a session: their own, or shared with them for
        answering. Questions without a session belong to the caller they were asked for."""
        return self._service.access.may_answer(session_id, self._principal)

    def all_shown(self, session_id: str) -> bool:
        """Whether the session has open questions and all of them have open dialogs: then a waiting call leaves them to
        the person."""
        ids = [question.id for question in self._service.broker.pending(session_id)]
        return bool(ids) and all(id_ in self._shown and id_ not in self._dismissed for id_ in ids)

    def as_result(self, session_id: str, questions: list[Question], state: RoundState) -> types.InputRequiredResult:
        """The questions as the result of a call, which the client repeats with the answers and with `state`. The first
        question always, further ones as far as they fit; the rest follow when the call is repeated."""
        requests: dict[str, types.ElicitRequest] = {}
        room = _FORMS_AT_ONCE
        for question in questions:
            message, schema = self._form(question, state.offsets)
            room -= len(message)
            if requests and room < 0:
                break
            params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
            requests[question.id] = types.ElicitRequest(params=params)
        return types.InputRequiredResult(
            input_requests=dict(requests),
            request_state=replace(state, session=session_id, shown=[*requests]).to_json(),
        )

    def accept_forms(self, session_id: str, responses: Mapping[str, Any], offsets: dict[str, int]) -> str:
        """Accept the forms that a repeated call brought, by question; return what happened to a question that was no
        longer open, or an empty string. `offsets` says how far the person has read in each, and is updated."""
        late = [
            self._service.broker.why_closed(session_id, question_id).message
            for question_id, form in responses.items()
            if isinstance(form, types.ElicitResult)
            and not self.accept_form(session_id, question_id, form.action, form.content, offsets)
        ]
        return late[-1] if late else ""

    def accept_form(
        self,
        session_id: str,
        question_id: str,
        action: str,
        content: Mapping[str, Any] | None,
        offsets: dict[str, int],
    ) -> bool:
        """Accept one filled-in form; return whether its question was still open. An answer that does not fit the
        question dismisses the dialog and leaves the question to the other channels."""
        # Looked up now: the question may have been answered elsewhere while the form was open.
        question = self._service.broker.find(session_id, question_id)
        if question is None or not self.may_answer(session_id):  # the share may have ended in the meantime
            return False
        shown = self._as_shown(question)
        following = next_offset(shown, offsets.get(question_id, 0))
        if following is not None and wants_next_page(action, content):
            offsets[question_id] = following
            return True
        answer = answer_of(shown, action, content, all_shown=following is None)
        try:
            if answer is None:
                self._dismiss(question_id)
            else:
                self._take(question, original_answer(question, shown, answer))
        except (InvalidArgument, PermissionDenied) as error:
            log.info("the answer to %s does not fit: %s", question_id, error.message)
            self._dismiss(question_id)
        return True

    def _take(self, question: Question, answer: Answer) -> None:
        if question.of_client:  # about the client's own call to the hub, without a session
            self._service.broker.answer(question.session_id, question.id, answer, self.name, self.client)
            return
        # A client shows forms to its user. The reply is checked like every answer, not only against the form: a client
        # can send anything.
        self._service.respond(
            question.session_id,
            question.id,
            answer,
            principal=self._principal,
            by=self.name,
            client=self.client,
            person=True,
        )
