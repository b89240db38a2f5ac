"""A call of a hub's tool that may ask something on its way, carried on over as many rounds as its client needs.

On connections of the 2025 protocol a question of the upstream becomes a request to the client while the call waits. On
2026-07-28 the call returns with the question and is repeated with the answer; the upstream's own call goes on in the
meantime, since a server of the older kind waits for its answer in the middle of it.
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
from ...hub.elicitation import ask_nobody
from ...model.question import AskPerson
from ...model.text import visible
from ...questions.presentation import form_without_secrets
from .context import Call
from .waiting import call_progress

CallReply = types.CallToolResult | types.InputRequiredResult
Start = Callable[["Round"], Awaitable[CallReply]]
"""Begins the call at the upstream; progress and questions go to the round that is current."""

ROUND = "conversation"
_PARAMS: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)
_QUESTION = "question"
_CANCELLED = {"action": "cancel"}


class CallRounds:
    """Those that wait for their clients to come back, for as long as `patience` seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: dict[str, Round] = {}

    async def hold(self, call: Call, start: Start) -> CallReply:
        """One round of a call: until its result, or a question for the client to answer."""
        if not call.returns_questions:
            return await _in_one(call, start)
        round_ = self._back(call) if ROUND in call.state else Round(call, start)
        asked = await round_.go_on(call)
        if asked is None:
            return round_.result()
        key = secrets.token_hex(8)
        self._waiting[key] = round_
        asyncio.get_running_loop().call_later(self._patience, self._give_up, key)
        return types.InputRequiredResult(
            input_requests={_QUESTION: types.ElicitRequest(params=asked)}, request_state=json.dumps({ROUND: key})
        )

    def _back(self, call: Call) -> "Round":
        round_ = self._waiting.pop(str(call.state[ROUND]), None)
        if round_ is None:
            raise InvalidArgument("This call is no longer waiting for an answer; call the tool again.")
        round_.answered(call.responses.get(_QUESTION))
        return round_

    def _give_up(self, key: str) -> None:
        round_ = self._waiting.pop(key, None)
        if round_ is not None:
            round_.cancel()


async def _in_one(call: Call, start: Start) -> CallReply:
    """A client that can be asked in the middle, or one that cannot be asked at all."""
    whole = Round(call, start, _asker(call) if call.can_ask else ask_nobody)
    await whole.go_on(call)
    return whole.result()


class Round:
    """The upstream's side of one call. `ask` is how it asks, `progress` how it tells."""

    def __init__(self, call: Call, start: Start, ask: AskPerson | None = None) -> None:
        self._call = call
        self._asked: asyncio.Future[types.ElicitRequestParams] = _future()
        self._answer: asyncio.Future[Mapping[str, Any]] = _future()
        self.ask: AskPerson = ask or self._ask
        self._work = asyncio.ensure_future(start(self))
        self._work.add_done_callback(_forget)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        tell = call_progress(self._call)
        if tell is not None:
            await tell(progress, total, message)

    @property
    def wants_progress(self) -> bool:
        return self._call.wants_progress

    async def go_on(self, call: Call) -> types.ElicitRequestParams | None:
        """Waits for the end, or for the next question. Whoever cancels this cancels the upstream's call."""
        self._call = call
        waiting: set[asyncio.Future[Any]] = {self._work, self._asked}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return None if self._work.done() else self._asked.result()

    def result(self) -> CallReply:
        """What came of it; UpstreamUnavailable where the server did not follow the protocol."""
        try:
            return self._work.result()
        except MCPError as error:
            raise UpstreamUnavailable(f"The MCP server answered with an error: {error.message}") from None
        except ValidationError:
            raise UpstreamUnavailable("The MCP server's answer does not follow the protocol.") from None

    async def _ask(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            asked = _PARAMS.validate_python(params)
        except ValidationError:
            return _CANCELLED
        self._asked.set_result(asked.model_copy(update={"message": visible(asked.message)}))
        return dict(await self._answer)

    def answered(self, answer: object) -> None:
        """The client came back."""
        waiting, self._answer, self._asked = self._answer, _future(), _future()
        filled = answer if isinstance(answer, types.ElicitResult) else None
        waiting.set_result(_wire(filled) if filled is not None else _CANCELLED)

    def cancel(self) -> None:
        self._work.cancel()


def _asker(call: Call) -> AskPerson:
    async def ask(params: dict[str, Any]) -> dict[str, Any]:
        session, request_id = call.context.session, call.context.request_id
        message = visible(call.service.redaction.text(str(params.get("message", ""))))
        if params.get("mode") == "url":
            id_ = str(params.get("elicitationId", ""))
            return _wire(await session.elicit_url(message, str(params.get("url", "")), id_, request_id))
        schema = params.get("requestedSchema") or {"type": "object", "properties": {}}
        clean = form_without_secrets(schema, call.service.redaction)
        return _wire(await session.elicit_form(message, clean, request_id))

    return ask


def _wire(answer: types.ElicitResult) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


def _forget(work: "asyncio.Future[Any]") -> None:
    """Where nobody waits for it any more, how it ended is of no interest."""
    if not work.cancelled():
        work.exception()
