"""Questions of servers to people: to whom a question goes, and results that want an answer first.

Servers of the protocol with a handshake ask in the middle of a call (`CallersInFlight`). Those of 2026-07-28 return a
result that says what they need, and the request is sent again with the answers (`request_with_input`).
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientRequestContext
from pydantic import ValidationError

from ..model.question import AskPerson
from .streams import JsonObject

_MAX_ROUNDS = 10
_current_caller: ContextVar[AskPerson | None] = ContextVar("current_caller", default=None)

SendAgain = Callable[[JsonObject], Awaitable[JsonObject]]
"""Sends a request with these members added to its params."""


async def cancel_elicitation(params: JsonObject) -> JsonObject:
    """Cancels every question: for callers that have no person to ask."""
    return {"action": "cancel"}


class CallersInFlight:
    """Who can be asked for the calls in flight on one connection.

    A server that asks in mid-call does not say for which call. Over HTTP the question comes in the context of its
    call. On a pipe it is clear as long as all calls in flight have the same caller; otherwise nobody is asked, since a
    question must never reach the wrong person.
    """

    def __init__(self) -> None:
        self._callers: list[AskPerson | None] = []

    @contextmanager
    def during_call(self, ask: AskPerson | None) -> Iterator[None]:
        """Within the block, questions may go to `ask`; None stands for a caller that cannot be asked."""
        token = _current_caller.set(ask)
        self._callers.append(ask)
        try:
            yield
        finally:
            self._callers.remove(ask)
            _current_caller.reset(token)

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answers `elicitation/create` of the server."""
        callers = set(self._callers)
        ask = _current_caller.get() or (next(iter(callers)) if len(callers) == 1 else None)
        if ask is None:
            if len(callers) > 1:
                return types.ErrorData(
                    code=types.INVALID_REQUEST, message="Several callers share this server: it is unclear whom to ask."
                )
            ask = cancel_elicitation
        answer = await ask(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        try:
            return types.ElicitResult.model_validate(answer)
        except ValidationError:
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The answer is not one.")


def wants_input(result: JsonObject) -> bool:
    """Whether a result is not final, but says what the server needs to know first."""
    return result.get("resultType") == "input_required"


async def request_with_input(send: SendAgain, ask: AskPerson) -> JsonObject:
    """Sends a request, and again with the answers of `ask` for as long as its result wants input.

    Raises MCPError where the server wants something else than an answer, or after `_MAX_ROUNDS` rounds.
    """
    result = await send({})
    for _ in range(_MAX_ROUNDS):
        if not wants_input(result):
            return result
        responses: JsonObject = {}
        for key, request in (result.get("inputRequests") or {}).items():
            if request.get("method") != "elicitation/create":
                wanted = request.get("method")
                raise MCPError(types.INVALID_REQUEST, f"The server wants {wanted}, which is not offered here.")
            responses[key] = await ask(request.get("params") or {})
        answers: JsonObject = {"inputResponses": responses}
        if result.get("requestState") is not None:
            answers["requestState"] = result["requestState"]
        result = await send(answers)
    raise MCPError(types.INTERNAL_ERROR, f"The server asked for input more than {_MAX_ROUNDS} times.")
