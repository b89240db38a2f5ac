"""Questions of servers to people: to whom a question goes, and results that want an answer first.

Servers of the protocol with a handshake ask in the middle of a call (`CallersInFlight`). Those of 2026-07-28 return a
result that says what they need, and the request is sent again with the answers (`request_with_input`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientRequestContext
from pydantic import ValidationError

from ..model.question import AskPerson
from .streams import JsonObject

_MAX_ROUNDS = 10
_LONGEST_UNCLEAR = 60.0
_NOT_CLEAR = "Several callers share this connection, and it is not clear whom to ask. Repeat the call."
_current_call: "ContextVar[CallInFlight | None]" = ContextVar("current_call", default=None)

SendAgain = Callable[[JsonObject], Awaitable[JsonObject]]
"""Sends a request with these members added to its params."""


async def cancel_elicitation(params: JsonObject) -> JsonObject:
    """Cancels every question: for callers that have no person to ask."""
    return {"action": "cancel"}


class MovedElsewhere(Exception):
    """The call was given up on a connection that several callers share; it is to be sent again on another."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, and in which directory; None where that does not matter."""

    name: str = ""
    directory: str | None = None


ANONYMOUS = Caller()


@dataclass(eq=False, slots=True)
class CallInFlight:
    """One request that waits for its answer, who made it, and who can be asked about it."""

    caller: Caller
    ask: AskPerson | None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    moved: bool = False


class CallersInFlight:
    """Who can be asked for the calls in flight on one connection.

    A server that asks in mid-call does not say for which call. Over HTTP the question comes in the context of its
    call. On a pipe it is clear when all calls in flight are of one caller. Otherwise the question waits until they are:
    the call that it belongs to does not end without an answer. When every call waits for an answer, none of them would
    end; then all of them are given up with `MovedElsewhere`. A question never reaches the wrong person. All of this is
    for the first question of a server only: callers that come later have connections of their own.
    """

    def __init__(self, on_question: Callable[[], Awaitable[None]]) -> None:
        self._on_question = on_question
        self._calls: list[CallInFlight] = []
        self._unclear = 0
        self._changed = asyncio.Event()

    @contextmanager
    def during_call(self, caller: Caller, ask: AskPerson | None) -> Iterator[None]:
        """Within the block, questions may go to `ask`; None stands for a caller that cannot be asked.

        Raises MovedElsewhere where the call was given up.
        """
        call = CallInFlight(caller, ask)
        token = _current_call.set(call)
        self._calls.append(call)
        try:
            with call.scope:
                yield
        finally:
            self._calls.remove(call)
            _current_call.reset(token)
            self._changed.set()
        if call.moved:
            raise MovedElsewhere

    @property
    def directories(self) -> set[str]:
        """The directories of the calls in flight."""
        return {call.caller.directory for call in self._calls if call.caller.directory is not None}

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answers `elicitation/create` of the server."""
        possible = list(self._calls)  # calls that begin later cannot be the one that asks
        await self._on_question()
        try:
            call = _current_call.get() or await self._asking_call(possible)
        except TimeoutError:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_NOT_CLEAR)
        ask = cancel_elicitation if call is None or call.ask is None else call.ask
        answer = await ask(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        try:
            return types.ElicitResult.model_validate(answer)
        except ValidationError:
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The answer is not one.")

    async def _asking_call(self, possible: list[CallInFlight]) -> CallInFlight | None:
        """The call that a question on a pipe belongs to, once that is clear; None if there is none, or no more.

        Raises TimeoutError after `_LONGEST_UNCLEAR` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LONGEST_UNCLEAR
        self._unclear += 1
        try:
            possible = [call for call in possible if call in self._calls]
            while len({call.caller for call in possible}) > 1:
                if self._unclear >= len(possible):
                    _move(possible)
                    return None
                self._changed.clear()
                await asyncio.wait_for(self._changed.wait(), max(0.0, deadline - loop.time()))
                possible = [call for call in possible if call in self._calls]
        finally:
            self._unclear -= 1
        # Of several calls of one caller, one that can be asked.
        return next((call for call in possible if call.ask is not None), None)


def _move(calls: Iterable[CallInFlight]) -> None:
    for call in calls:
        call.moved = True
        call.scope.cancel()


def wants_input(result: JsonObject) -> bool:
    """Whether a result is not final, but says what the server needs to know first."""
    return result.get("resultType") == "input_required"


async def request_with_input(send: SendAgain, ask: AskPerson, roots: Callable[[], JsonObject]) -> JsonObject:
    """Sends a request, and again with the answers of `ask` for as long as its result wants input.

    A refusal that says which addresses a person has to open first (-32042) is the same: they are shown, and the
    request is sent again once the person has agreed to all of them. Raises MCPError where the server wants something
    else, where the person did not agree, or after `_MAX_ROUNDS` rounds.
    """
    answers: JsonObject = {}
    for _ in range(_MAX_ROUNDS):
        try:
            result = await send(answers)
        except MCPError as error:
            if not await _addresses_opened(error, ask):
                raise
            continue
        if not wants_input(result):
            return result
        requests = (result.get("inputRequests") or {}).items()
        answers = {"inputResponses": {key: await _input(request, ask, roots) for key, request in requests}}
        if result.get("requestState") is not None:
            answers["requestState"] = result["requestState"]
    raise MCPError(types.INTERNAL_ERROR, f"The server asked for input more than {_MAX_ROUNDS} times.")


async def _input(request: JsonObject, ask: AskPerson, roots: Callable[[], JsonObject]) -> JsonObject:
    method = request.get("method")
    if method == "roots/list":
        return roots()
    if method != "elicitation/create":
        raise MCPError(types.INVALID_REQUEST, f"The server wants {method}, which is not offered here.")
    return await ask(request.get("params") or {})


async def _addresses_opened(error: MCPError, ask: AskPerson) -> bool:
    """Whether the error names addresses, and a person has agreed to open every one of them."""
    data = error.error.data
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    if error.code != types.URL_ELICITATION_REQUIRED or not isinstance(wanted, list) or not wanted:
        return False
    for address in wanted:
        answer = await ask({**address, "mode": "url"}) if isinstance(address, dict) else {}
        if answer.get("action") != "accept":
            return False
    return True
