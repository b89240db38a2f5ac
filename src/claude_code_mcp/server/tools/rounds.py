"""A call of a hub's tool that may ask the client something before it ends, over as many rounds as that takes.

On connections of the 2025 protocol a question of the upstream becomes a request to the client while the call waits, and
one round is enough. On 2026-07-28 the call returns with the question and the client repeats it with the answer, each
time as another round. The upstream's own call goes on in between: a server of the older protocol waits for its answer
in the middle of it.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from ...errors import InvalidArgument, UpstreamUnavailable
from ...model.question import AskPerson
from ...model.text import visible
from ...questions.presentation import form_without_secrets
from .context import Call, can_be_asked, can_open_addresses
from .waiting import progress_callback

CallReply = types.CallToolResult | types.InputRequiredResult
Start = Callable[["ProxiedCall"], Awaitable[CallReply]]
"""Begins the call at the upstream, whose progress and questions go to the `ProxiedCall`."""

PAUSED_CALL = "conversation"
"""The key in the state of a call under which a later round finds the paused call."""
_QUESTION = "question"
_CANCELLED = {"action": "cancel"}
_PARAMS: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)


class CallRounds:
    """Runs calls in rounds, and keeps those that wait for their clients to come back, each for `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._paused: dict[str, ProxiedCall] = {}

    async def run(self, call: Call, start: Start) -> CallReply:
        """One round of a call: until its result, or until a question that the client is to answer.

        The first round begins the upstream's call with `start`; a later one goes on with the paused call that its state
        names, or raises InvalidArgument if that was given up.
        """
        if not call.takes_rounds:
            proxied = ProxiedCall(call, start, _client_asker(call) if call.can_send_questions else _cancel_question)
            await proxied.wait(call)
            return proxied.result()
        proxied = self._resume(call) if PAUSED_CALL in call.state else ProxiedCall(call, start)
        question = await proxied.wait(call)
        if question is None:
            return proxied.result()
        key = secrets.token_hex(8)
        self._paused[key] = proxied
        asyncio.get_running_loop().call_later(self._timeout, self._give_up, key)
        return types.InputRequiredResult(
            input_requests={_QUESTION: types.ElicitRequest(params=question)},
            request_state=json.dumps({PAUSED_CALL: key}),
        )

    def _resume(self, call: Call) -> "ProxiedCall":
        proxied = self._paused.pop(str(call.state[PAUSED_CALL]), None)
        if proxied is None:
            raise InvalidArgument("This call is no longer waiting for an answer; call the tool again.")
        proxied.answer(call.responses.get(_QUESTION))
        return proxied

    def end_of(self, principal: str) -> None:
        """Gives up the calls of a caller that wait for it."""
        for key in [key for key, proxied in self._paused.items() if proxied.principal == principal]:
            self._give_up(key)

    def _give_up(self, key: str) -> None:
        proxied = self._paused.pop(key, None)
        if proxied is not None:
            proxied.cancel()


class ProxiedCall:
    """The upstream's side of one call. The hub asks through `ask` and reports through `progress`.

    Without an `ask` of its own, a question ends the current `wait`, and the upstream waits until `answer` is called.
    """

    def __init__(self, call: Call, start: Start, ask: AskPerson | None = None) -> None:
        self._call = call
        self._question: asyncio.Future[types.ElicitRequestParams] = _future()
        self._answer: asyncio.Future[Mapping[str, Any]] = _future()
        self.ask: AskPerson = ask or self._pause
        self._work = asyncio.ensure_future(start(self))
        self._work.add_done_callback(_retrieve_exception)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Reports progress to the client, on the stream of the current round."""
        report = progress_callback(self._call)
        if report is not None:
            await report(progress, total, message)

    @property
    def principal(self) -> str:
        return self._call.principal

    @property
    def wants_progress(self) -> bool:
        return self._call.wants_progress

    async def wait(self, call: Call) -> types.ElicitRequestParams | None:
        """Waits, in the round `call`, for the end of the upstream's call (None) or for its next question. When this is
        cancelled, so is the upstream's call."""
        self._call = call
        waiting: set[asyncio.Future[Any]] = {self._work, self._question}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return None if self._work.done() else self._question.result()

    def result(self) -> CallReply:
        """The result of the upstream's call, which has ended; UpstreamUnavailable where the server did not follow the
        protocol."""
        try:
            return self._work.result()
        except MCPError as error:
            raise UpstreamUnavailable(f"The MCP server answered with an error: {error.message}") from None
        except ValidationError:
            raise UpstreamUnavailable("The MCP server's answer does not follow the protocol.") from None

    async def _pause(self, params: dict[str, Any]) -> dict[str, Any]:
        """Ends the current round with a question, and waits for the answer that the next round brings."""
        try:
            question = _PARAMS.validate_python(params)
        except ValidationError:
            return _CANCELLED
        if not _takes(self._call, params):
            return _CANCELLED
        self._question.set_result(question.model_copy(update={"message": visible(question.message)}))
        return dict(await self._answer)

    def answer(self, response: object) -> None:
        """The client came back with its response to the question."""
        # Both futures are renewed before the answer is passed on: the upstream may ask again as soon as it has it.
        waiting, self._answer, self._question = self._answer, _future(), _future()
        waiting.set_result(_payload(response) if isinstance(response, types.ElicitResult) else _CANCELLED)

    def cancel(self) -> None:
        self._work.cancel()


async def _cancel_question(params: dict[str, Any]) -> dict[str, Any]:
    """The answer of a client that cannot ask anybody."""
    return _CANCELLED


def _client_asker(call: Call) -> AskPerson:
    """Asks through a request to the client, on the stream of the call."""

    async def ask(params: dict[str, Any]) -> dict[str, Any]:
        if not _takes(call, params):
            return _CANCELLED
        session, request_id = call.context.session, call.context.request_id
        message = visible(call.service.redaction.text(str(params.get("message", ""))))
        if params.get("mode") == "url":
            id_ = str(params.get("elicitationId", ""))
            return _payload(await session.elicit_url(message, str(params.get("url", "")), id_, request_id))
        schema = params.get("requestedSchema") or {"type": "object", "properties": {}}
        clean = form_without_secrets(schema, call.service.redaction)
        return _payload(await session.elicit_form(message, clean, request_id))

    return ask


def _takes(call: Call, params: Mapping[str, Any]) -> bool:
    """Whether the client has said that it takes a question of this kind: a form, or an address to open."""
    return can_open_addresses(call.context) if params.get("mode") == "url" else can_be_asked(call.context)


def _payload(result: types.ElicitResult) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


def _retrieve_exception(work: "asyncio.Future[Any]") -> None:
    """Keeps asyncio from logging the failure of a call that was given up."""
    if not work.cancelled():
        work.exception()
