"""Questions reach the person through the client's own dialogs.

On connections of the 2025 protocol a question is pushed as soon as the client can hear of it: on the stream of a call
that waits, or else on the connection's own. On 2026-07-28 a server may not ask by itself: there a waiting call returns
the question and the client repeats the call with the answer. The queue stays open beside both; whoever is first, wins.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ... import json_text
from ...errors import InvalidArgument
from ...model.question import Question, Resolution
from ...questions.presentation import as_offered, without_secrets
from ...service import Service
from ..transports.wire import log_pushed
from .forms import CONFIRM, answer_of, confirmation, following, form_of, turns_page

log = logging.getLogger(__name__)

_WITH_ARRAYS = "2025-11-25"
_FORMS_AT_ONCE = 1 << 19
"""Characters of all forms in one result; what does not fit is asked in the next round."""
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)
NAME = "elicitation"


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingCall:
    """A call that waits for a session, with the stream that it came on."""

    session_id: str
    request_id: types.RequestId | None
    session: ServerSession


class Dialogs:
    """The dialogs of one connection: a channel for the questions of the sessions that this client has used."""

    name = NAME

    def __init__(
        self,
        service: Service,
        session: ServerSession,
        *,
        pushes: bool,
        is_heard: Callable[[], bool],
        connection: str | None = None,
    ) -> None:
        """`is_heard` tells whether the client reads what is sent to it outside of a call."""
        self._service = service
        self._session = session
        self._pushes = pushes
        self._is_heard = is_heard
        self.connection = connection
        self.followed: set[str] = set()
        """The sessions that this client has used."""
        self._waiting: list[_WaitingCall] = []
        self._shown: dict[str, asyncio.Task[None]] = {}
        self._put_away: set[str] = set()
        self._offsets: dict[str, int] = {}
        """How far the person has read in questions that take several forms, where forms are pushed."""
        self._pulse = asyncio.Event()
        service.add_channel(self)

    def close(self) -> None:
        """The client is gone: nothing more is shown, and what is shown is taken back."""
        self._service.remove_channel(self)
        for task in self._shown.values():
            task.cancel()

    async def tell_tools_changed(self) -> None:
        """The client should ask for the tools anew. Clients of 2026-07-28 hear it where they listen."""
        if not is_modern(self._session.protocol_version):
            await self._session.send_tool_list_changed()

    def follow(self, session_id: str) -> None:
        """From now on the questions of this session are shown here, those that are open already too."""
        self.followed.add(session_id)
        self.offer_again()

    def session_moved(self, old: str, new: str) -> None:
        """A session that this client has used goes on under another id."""
        if old in self.followed:
            self.follow(new)

    @contextmanager
    def waiting(self, session_id: str, request_id: types.RequestId | None, session: ServerSession) -> Iterator[None]:
        """While this lasts a call waits for the session, so that its stream is read: questions are shown there, also
        those that were opened when nobody would have heard of them."""
        call = _WaitingCall(session_id, request_id, session)
        self._waiting.append(call)
        self.offer_again()
        try:
            yield
        finally:
            self._waiting.remove(call)

    def offer_again(self) -> None:
        """Shows what is open and was not shown yet: there may be a way to the client now."""
        for session_id in self.followed:
            for question in self.not_put_away(session_id):
                self._show_if_heard(question)

    # -- pushing ----------------------------------------------------------------------------------------------

    def offer(self, question: Question) -> None:
        self._show_if_heard(question)
        self._changed()

    def _show_if_heard(self, question: Question) -> None:
        if self._pushes and question.session_id in self.followed and question.id not in self._shown:
            way = self._way_for(question)
            if way is not None:
                self._shown[question.id] = self._service.start_task(self._show(question, way))

    def _way_for(self, question: Question) -> "_WaitingCall | None":
        """The stream of a call that waits, for this session if there is one, or else the connection's own. None where
        nobody would see the form: it is shown when a call waits."""
        waiting = sorted(self._waiting, key=lambda call: call.session_id == question.session_id)
        if waiting:
            return waiting[-1]
        return _WaitingCall(question.session_id, None, self._session) if self._is_heard() else None

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        self._put_away.discard(question.id)
        self._offsets.pop(question.id, None)
        task = self._shown.pop(question.id, None)
        if task is not None:
            task.cancel()
        self._changed()

    def _changed(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def change(self) -> None:
        """Returns when a question was opened, settled or put away."""
        await self._pulse.wait()

    async def _show(self, question: Question, way: "_WaitingCall") -> None:
        arrays = self._session.protocol_version >= _WITH_ARRAYS
        message, schema = self._form(question, self._offsets, arrays=arrays)
        log_pushed("request", "elicitation/create")
        try:
            result = await way.session.elicit_form(
                json_text.sound_text(message), json_text.sound(schema), related_request_id=way.request_id
            )
        except (MCPError, ValidationError, *_GONE) as error:
            log.info("question %s could not be shown: %s", question.id, error)
            self._put_aside(question.id)
            return
        del self._shown[question.id]  # the dialog is done: there is nothing left to take back
        self.take(question.session_id, question.id, result.action, result.content, self._offsets)
        if question.id in self._offsets and question.id not in self._put_away:
            self.offer(question)  # the next part of it

    def _form(
        self, question: Question, offsets: Mapping[str, int], *, arrays: bool = True
    ) -> tuple[str, dict[str, Any]]:
        shown = without_secrets(question, self._service.redaction)
        return form_of(shown, arrays=arrays, offset=offsets.get(question.id, 0))

    # -- returning and taking answers -------------------------------------------------------------------------

    def _put_aside(self, question_id: str) -> None:
        self._put_away.add(question_id)
        self._changed()

    def not_put_away(self, session_id: str) -> list[Question]:
        """Open questions that the person has not put away."""
        return [
            question for question in self._service.pending_questions(session_id) if question.id not in self._put_away
        ]

    def all_shown(self, session_id: str) -> bool:
        """Whether a person has every open question of the session before them, so that no one else need answer."""
        questions = self._service.pending_questions(session_id)
        return bool(questions) and all(one.id in self._shown and one.id not in self._put_away for one in questions)

    def as_result(
        self, session_id: str, questions: list[Question], offsets: Mapping[str, int], **state: Any
    ) -> types.InputRequiredResult:
        """The questions as the result of a call, to be repeated with the answers. At least one; the others as far as
        they fit, the rest follow in the next round. `offsets` says how far the person has read in them."""
        requests: dict[str, types.ElicitRequest] = {}
        room = _FORMS_AT_ONCE
        for question in questions:
            message, schema = self._form(question, offsets)
            room -= len(message)
            if requests and room < 0:
                break
            params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
            requests[question.id] = types.ElicitRequest(params=params)
        return types.InputRequiredResult(
            input_requests=dict(requests),
            request_state=json.dumps({"session": session_id, "offsets": dict(offsets), **state}),
        )

    def confirmation_result(self) -> types.InputRequiredResult:
        """The question whether permission checks may be switched off, as the result of a call."""
        message, schema = confirmation()
        request = types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))
        return types.InputRequiredResult(input_requests={CONFIRM: request}, request_state=json.dumps({}))

    def take_all(self, session_id: str, responses: Mapping[str, Any], offsets: dict[str, int]) -> bool:
        """The answers that a repeated call brought; tells whether all of them came in time. `offsets` says how far the
        person has read, and is brought up to date."""
        forms = [(one, form) for one, form in responses.items() if isinstance(form, types.ElicitResult)]
        taken = [self.take(session_id, one, form.action, form.content, offsets) for one, form in forms]
        return all(taken)

    def take(
        self,
        session_id: str,
        question_id: str,
        action: str,
        content: Mapping[str, Any] | None,
        offsets: dict[str, int],
    ) -> bool:
        """One filled-in form; tells whether the question was still open."""
        question = next((one for one in self._service.pending_questions(session_id) if one.id == question_id), None)
        if question is None:
            return False
        shown = without_secrets(question, self._service.redaction)
        rest = following(shown, offsets.get(question_id, 0))
        if rest is not None and turns_page(action, content):
            offsets[question_id] = rest
            return True
        answer = answer_of(shown, action, content, all_shown=rest is None)
        try:
            if answer is None:
                self._put_aside(question_id)
            else:
                self._service.answer_question(session_id, question_id, as_offered(question, shown, answer), self.name)
        except InvalidArgument as error:
            log.info("the answer to %s does not fit: %s", question_id, error.message)
            self._put_aside(question_id)
        return True


def is_modern(protocol_version: str) -> bool:
    """Whether this is a revision in which the server may not send requests."""
    return protocol_version in MODERN_PROTOCOL_VERSIONS
