"""The tools of the hub's servers as tools of this server: each call passes the policy, and a person if it says so."""

import asyncio
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from ...errors import PermissionDenied
from ...hub.hub import Hub
from ...model.question import Answer, Question, Resolution, Scope
from ...service import Service
from .context import Call
from .rounds import ROUND, CallReply, CallRounds, Round

_PATIENCE = 5.0
_QUESTION = "question"


class HubProxy:
    """Lists and calls. What a person allowed for good is remembered as long as the server runs."""

    def __init__(self, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._allowed: set[tuple[str, str]] = set()
        self._opened: dict[str, asyncio.Future[Answer]] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._conversations = CallRounds(service.settings.permission_timeout)

    async def listing(self) -> list[types.Tool]:
        """The tools under the names they have here. A server that is not there in time is left out."""
        found = await self._hub.tools(timeout=_PATIENCE)
        self._names = {one.name: (one.server, one.tool.name) for one in found}
        return [one.tool.model_copy(update={"name": one.name}) for one in found]

    async def knows(self, name: str) -> bool:
        if name not in self._names:
            await self.listing()
        return name in self._names

    async def call(self, name: str, call: Call, arguments: Mapping[str, Any]) -> CallReply:
        """Calls the tool, once that is permitted."""
        if ROUND not in call.state:  # the state is sealed, and holds for this very call only
            asked = await self._permitted(call, name, arguments)
            if asked is not None:
                return asked
        server, tool = self._names[name]

        async def start(round_: Round) -> CallReply:
            progress = round_.progress if round_.wants_progress else None
            return await self._hub.call(
                server, tool, arguments, caller=call.principal, on_progress=progress, ask=round_.ask
            )

        return await self._conversations.hold(call, start)

    # -- permission -------------------------------------------------------------------------------------------

    async def _permitted(self, call: Call, name: str, arguments: Mapping[str, Any]) -> types.InputRequiredResult | None:
        """Nothing once it is permitted, PermissionDenied if it is not, or the question as the result of the call."""
        answer: Answer | types.InputRequiredResult | None
        answer = self._service.policy_answer(call.principal, name, arguments)
        if answer is None and (call.principal, name) not in self._allowed:
            answer = await self._asked(call, name, arguments)
        if answer is None or isinstance(answer, types.InputRequiredResult):
            return answer
        if not answer.allow:
            raise PermissionDenied(answer.message or f"{name} was denied.")
        if answer.scope is Scope.SESSION:
            self._allowed.add((call.principal, name))
        return None

    async def _asked(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Answer | types.InputRequiredResult:
        place = f"hub:{call.principal}"
        earlier = call.state.get(_QUESTION)
        if isinstance(earlier, str):
            return self._returned(call, place, earlier)
        if not (call.returns_questions or call.can_ask):
            return Answer(
                allow=False,
                message=f"{name} needs somebody's permission, and this client cannot ask. A rule in the policy can "
                f'allow it: allow = ["{name}"].',
            )
        question = self._open(place, name, arguments)
        if call.returns_questions:
            return call.dialogs.as_result(place, [question], call.offsets, question=question.id)
        call.dialogs.follow(place)
        try:
            with call.dialogs.waiting(place, call.context.request_id, call.context.session):
                return await self._answer(call, place, question)
        finally:
            self._done(question.id)

    def _open(self, place: str, name: str, arguments: Mapping[str, Any]) -> Question:
        settled: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def settle(question: Question, resolution: Resolution, _: Mapping[str, Any] | None) -> None:
            if not settled.done():
                settled.set_result(resolution.answer or _denial(resolution.detail))

        always = {"type": "addRules", "rules": [{"toolName": name}], "behavior": "allow", "destination": "session"}
        question = self._service.open_question(place, name, arguments, settle, suggestions=[always])
        self._opened[question.id] = settled
        # A client that is given the question as a result may never come back.
        asyncio.get_running_loop().call_later(2 * self._service.settings.permission_timeout, self._done, question.id)
        return question

    def _returned(self, call: Call, place: str, question_id: str) -> Answer | types.InputRequiredResult:
        """The client came back with an answer, or to see the next part, or somebody else was faster."""
        before = call.offsets.get(question_id)
        call.dialogs.take_all(place, call.responses, call.offsets)
        left = [one for one in call.dialogs.not_put_away(place) if one.id == question_id]
        if left and call.offsets.get(question_id) != before:
            return call.dialogs.as_result(place, left, call.offsets, question=question_id)
        settled = self._opened.get(question_id)
        answer = settled.result() if settled is not None and settled.done() else _denial()
        self._done(question_id)
        return answer

    async def _answer(self, call: Call, place: str, question: Question) -> Answer:
        """Waits for it; a dialog that is put away is a no, since no session waits here that could be asked later."""
        settled = self._opened[question.id]
        while not settled.done():
            change = asyncio.ensure_future(call.dialogs.change())
            waiting: set[asyncio.Future[Any]] = {settled, change}
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
            if not settled.done() and question not in call.dialogs.not_put_away(place):
                return _denial()
        return settled.result()

    def _done(self, question_id: str) -> None:
        self._service.withdraw_question(question_id, "the call is over")
        self._opened.pop(question_id, None)


def _denial(why: str = "") -> Answer:
    return Answer(allow=False, message=why or "Nobody allowed it.")
