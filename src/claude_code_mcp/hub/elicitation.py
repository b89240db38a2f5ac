"""Questions of servers to people: whose call a question belongs to, and results that want an answer first."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientRequestContext
from pydantic import ValidationError

Message = dict[str, Any]
Ask = Callable[[Message], Awaitable[Message]]
"""From the params of `elicitation/create` to its result: `{"action": "accept" | "decline" | "cancel", …}`."""

_MOST_ROUNDS = 10
_here: ContextVar[Ask | None] = ContextVar("asker", default=None)


class Askers:
    """Who can be asked for the calls in flight on one connection.

    A server that asks in mid-call does not say for which call. Over HTTP the question comes in the context of its
    call. On a pipe it is clear as long as all calls in flight have one asker; otherwise nobody is asked, since
    a question must never reach the wrong person.
    """

    def __init__(self) -> None:
        self._in_flight: list[Ask | None] = []

    @contextmanager
    def during_call(self, ask: Ask | None) -> Iterator[None]:
        token = _here.set(ask)
        self._in_flight.append(ask)
        try:
            yield
        finally:
            self._in_flight.remove(ask)
            _here.reset(token)

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answers `elicitation/create` of the server."""
        ask = _here.get() or self._only_one()
        if ask is None:
            if len(set(self._in_flight)) > 1:
                return types.ErrorData(
                    code=types.INVALID_REQUEST, message="Several callers share this server: it is unclear whom to ask."
                )
            return types.ElicitResult(action="cancel")
        answer = await ask(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        try:
            return types.ElicitResult.model_validate(answer)
        except ValidationError:
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The answer is not one.")

    def _only_one(self) -> Ask | None:
        different = set(self._in_flight)
        return different.pop() if len(different) == 1 else None


Send = Callable[[Message], Awaitable[Message]]
"""Sends a request again with what is to be added to its params."""


async def with_input(send: Send, ask: Ask) -> Message:
    """Sends a request as often as its result wants input first (2026-07-28), asking each time."""
    result = await send({})
    for _ in range(_MOST_ROUNDS):
        if not wants_input(result):
            return result
        responses = {key: await _respond(one, ask) for key, one in (result.get("inputRequests") or {}).items()}
        more: Message = {"inputResponses": responses}
        if result.get("requestState") is not None:
            more["requestState"] = result["requestState"]
        result = await send(more)
    raise MCPError(types.INTERNAL_ERROR, f"The server asked for input more than {_MOST_ROUNDS} times.")


def wants_input(result: Message) -> bool:
    return result.get("resultType") == "input_required"


async def _respond(request: Message, ask: Ask) -> Message:
    if request.get("method") != "elicitation/create":
        raise MCPError(types.INVALID_REQUEST, f"The server wants {request.get('method')}, which is not offered here.")
    return await ask(request.get("params") or {})
