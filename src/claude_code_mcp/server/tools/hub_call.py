"""A client's call to a hub server, and the messages between client and server during it.

On connections of the 2025 protocol a question of the server becomes a request to the client while the call waits, and
one round is enough. On 2026-07-28 the call returns with the question and the client repeats it with the answer, each
time as another round. The call at the server continues in between: a server of the older protocol waits for its answer
in the middle of it. Questions for the client's model (sampling) work the same way. Progress and log messages are sent
on the stream of the round.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, get_args

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, TypeAdapter, ValidationError

from ...core.errors import InvalidArgument
from ...core.model.question import AskPerson
from ...core.model.text import visible
from ...core.questions.presentation import form_without_secrets
from ...hub.client_session import CallerSide
from .. import sdk
from ..client_capabilities import can_be_asked, can_open_addresses, can_sample
from ..rounds import RoundState
from .call import Call
from .progress import progress_callback

CallReply = types.CallToolResult | types.InputRequiredResult
Start = Callable[["ProxiedCall"], Awaitable[CallReply]]
"""Begins the call at the server."""
_QUESTION = "question"
_CANCELLED = {"action": "cancel"}
_ANSWERS = (types.ElicitResult, types.CreateMessageResult, types.CreateMessageResultWithTools)
_LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)
_MAX_LOGGED = 1000
"""Maximum log messages queued for the client of a call; more are dropped."""
_PARAMS: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)


class CallRounds:
    """Runs calls in rounds, and keeps paused calls for up to `timeout` seconds until their clients return."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._paused: dict[str, ProxiedCall] = {}

    async def resume(self, call: Call) -> CallReply:
        """Run a later round, which continues the paused call in its state. InvalidArgument if that was abandoned."""
        # Removed: an answer is for one round, and the timer must find nothing.
        proxied = self._paused.pop(call.state.paused_call or "", None)
        if proxied is None:
            raise InvalidArgument("This call is no longer waiting for an answer; call the tool again.")
        proxied.answer(call.responses.get(_QUESTION))
        return await self.run(call, proxied)

    async def run(self, call: Call, proxied: "ProxiedCall") -> CallReply:
        """Run one round of a call, until its result or until a question for the client."""
        question = await proxied.wait(call)
        if question is None:
            return proxied.work.result()
        key = secrets.token_hex(8)
        self._paused[key] = proxied
        asyncio.get_running_loop().call_later(self._timeout, self._give_up, key)
        return types.InputRequiredResult(
            input_requests={_QUESTION: question},
            request_state=RoundState(paused_call=key).to_json(),
        )

    def end_of(self, principal: str) -> None:
        """Abandon a caller's paused calls."""
        for key in [key for key, proxied in self._paused.items() if proxied.principal == principal]:
            self._give_up(key)

    def _give_up(self, key: str) -> None:
        proxied = self._paused.pop(key, None)
        if proxied is not None:
            proxied.work.cancel()


class ProxiedCall:
    """One call at a server of the hub. The server's requests and reports during the call pass through `side` to the
    client.

    If the client expects questions as the result of a call, a question ends the current `wait`, and the server waits
    until `answer` is called.
    """

    def __init__(self, call: Call, server: str, start: Start) -> None:
        self._call = call
        self._server = server
        self._question: asyncio.Future[types.InputRequest] = _future()
        self._answer: asyncio.Future[dict[str, Any] | None] = _future()
        self._logged: deque[dict[str, Any]] = deque()
        self._sending: asyncio.Future[None] | None = None
        self._waited_for = False
        """Whether a round is running, on whose stream notifications can be sent."""
        level = _log_level(call)
        self.side = CallerSide(
            on_progress=self._report_progress if call.wants_progress else None,
            ask=self._pause_for_person if call.takes_rounds else _client_asker(call),
            sample=_sampler(call, self._answered),
            on_log=partial(self._log, level) if level is not None else None,
            log_level=level,
        )
        self.principal = call.principal
        self.work = asyncio.ensure_future(start(self))
        """The call at the server, with its result."""
        self.work.add_done_callback(_retrieve_exception)

    async def wait(self, call: Call) -> types.InputRequest | None:
        """In the round `call`, wait for the end of the server's call (None) or for its next question. Cancelling this
        cancels the server's call."""
        self._call, self._waited_for = call, True
        self._send_logged()
        waiting: set[asyncio.Future[Any]] = {self.work, self._question}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # Messages logged before the result or question are sent before it.
            if self._sending is not None:
                await asyncio.wait([self._sending])
        except asyncio.CancelledError:
            self.work.cancel()
            raise
        finally:
            self._waited_for = False
        # The end takes precedence: no answer is needed any more.
        return None if self.work.done() else self._question.result()

    def answer(self, response: object) -> None:
        """Pass on the client's response to the question."""
        # Both futures are renewed before the answer is passed on: the server may immediately ask again.
        waiting, self._answer, self._question = self._answer, _future(), _future()
        waiting.set_result(_payload(response) if isinstance(response, _ANSWERS) else None)

    async def _report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report progress to the client, on the stream of the current round."""
        report = progress_callback(self._call)
        if report is not None:
            await report(progress, total, message)

    async def _pause_for_person(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            question = _PARAMS.validate_python(params)
        except ValidationError:
            return _CANCELLED
        if not _takes(self._call, params):
            return _CANCELLED
        question = question.model_copy(update={"message": visible(question.message)})
        return await self._answered(types.ElicitRequest(params=question)) or _CANCELLED

    async def _answered(self, question: types.InputRequest) -> dict[str, Any] | None:
        """End the current round with a question, and wait for the answer from the next round; None if it brings none.
        Simultaneous questions of one call are asked one per round."""
        # Shielded here and below: the server may withdraw its question while the client still answers it.
        while self._question.done():  # the client is answering another one
            await asyncio.shield(self._answer)
        self._question.set_result(question)
        return await asyncio.shield(self._answer)

    def _log(self, lowest: str, params: Mapping[str, Any]) -> None:
        """Queue a log message for the client, to be sent on the stream of its call."""
        level = params.get("level")
        wanted = level in _LEVELS and _LEVELS.index(level) >= _LEVELS.index(lowest)
        # Bounded: a client may be slower to read than a server to log.
        if wanted and len(self._logged) < _MAX_LOGGED:
            logger = params.get("logger")
            named = {**params, "logger": f"{self._server}: {logger}" if logger else self._server}
            self._logged.append(self._call.service.redaction.data(named))
            self._send_logged()

    def _send_logged(self) -> None:
        if self._logged and self._waited_for and (self._sending is None or self._sending.done()):
            self._sending = asyncio.ensure_future(self._send_all_logged())

    async def _send_all_logged(self) -> None:
        while self._logged and self._waited_for:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client disconnected
                await sdk.send_notification(self._call.context, "notifications/message", self._logged.popleft())


def _log_level(call: Call) -> str | None:
    """The minimum level of log messages that the client wants; None for none."""
    if sdk.is_modern(call.context.protocol_version):
        level = (call.context.meta or {}).get(types.LOG_LEVEL_META_KEY)
        return level if level in _LEVELS else None
    return call.dialogs.log_level or _LEVELS[0]


def _sampler(call: Call, pause: Callable[[types.InputRequest], Awaitable[dict[str, Any] | None]]) -> AskPerson | None:
    """Returns a function that lets the client's model answer, through a request or as a question that ends the round;
    None if it has no model. The client decides whether and what the model is asked, as with its own servers."""
    if not can_sample(call.context):
        return None

    async def sample(params: dict[str, Any]) -> dict[str, Any]:
        asked = types.CreateMessageRequestParams.model_validate(call.service.redaction.data(params))
        request = types.CreateMessageRequest(params=asked)
        if call.takes_rounds:
            answer = await pause(request)
            if answer is None:
                raise MCPError(types.INVALID_REQUEST, "The client's model has not answered.")
            return answer
        related = ServerMessageMetadata(related_request_id=call.context.request_id)
        with_tools = asked.tools is not None or asked.tool_choice is not None
        kind = types.CreateMessageResultWithTools if with_tools else types.CreateMessageResult
        return _payload(await call.context.session.send_request(request, kind, metadata=related))

    return sample


def _client_asker(call: Call) -> AskPerson:
    """Ask through a request to the client, on the stream of the call; cancel requests that the client does not
    support."""

    async def ask(params: dict[str, Any]) -> dict[str, Any]:
        session, request_id = call.context.session, call.context.request_id
        if not session.can_send_request or not _takes(call, params):
            return _CANCELLED
        message = visible(call.service.redaction.text(str(params.get("message", ""))))
        if params.get("mode") == "url":
            id_ = str(params.get("elicitationId", ""))
            return _payload(await session.elicit_url(message, str(params.get("url", "")), id_, request_id))
        schema = params.get("requestedSchema") or {"type": "object", "properties": {}}
        clean = form_without_secrets(schema, call.service.redaction)
        return _payload(await session.elicit_form(message, clean, request_id))

    return ask


def _takes(call: Call, params: Mapping[str, Any]) -> bool:
    """Whether the client declares support for this kind of question: a form, or a URL to open."""
    return can_open_addresses(call.context) if params.get("mode") == "url" else can_be_asked(call.context)


def _payload(result: BaseModel) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


def _retrieve_exception(work: "asyncio.Future[Any]") -> None:
    """Keep asyncio from logging the failure of an abandoned call."""
    if not work.cancelled():
        work.exception()
