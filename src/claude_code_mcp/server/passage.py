"""The tools of the hub's servers as tools of this server: each call passes the policy, and a person if it says so."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from ..errors import PermissionDenied
from ..hub.hub import Hub
from ..model.question import Answer, Question, Resolution, Scope
from ..service import Service
from .call import Call
from .turns import call_progress

log = logging.getLogger(__name__)

_PATIENCE = 5.0


class Passage:
    """Lists and calls. What a person allowed for good is remembered as long as the server runs."""

    def __init__(self, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._allowed: set[tuple[str, str]] = set()
        self._answers: dict[str, Answer] = {}
        self._names: dict[str, tuple[str, str]] = {}

    async def listing(self) -> list[types.Tool]:
        """The tools under the names they have here. A server that is not there in time is left out."""
        found = await self._hub.tools(patience=_PATIENCE)
        self._names = {one.name: (one.server, one.tool.name) for one in found}
        return [one.tool.model_copy(update={"name": one.name}) for one in found]

    async def knows(self, name: str) -> bool:
        if name not in self._names:
            await self.listing()
        return name in self._names

    async def call(
        self, name: str, call: Call, arguments: Mapping[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Calls the tool, once that is permitted."""
        asked = await self._permitted(call, name, arguments)
        if asked is not None:
            return asked
        server, tool = self._names[name]
        passes_on = call.returns_questions
        result = await self._hub.call(
            server,
            tool,
            arguments,
            caller=call.principal,
            on_progress=call_progress(call),
            ask=None if passes_on or not call.can_ask else self._asker(call),
            input_responses=_wire(call.responses) if call.state.get("upstream") else None,
            request_state=_text(call.state.get("upstream")),
        )
        if isinstance(result, types.InputRequiredResult):
            state = json.dumps({"upstream": result.request_state or "", "permitted": name})
            return result.model_copy(update={"request_state": state})
        return result

    def _asker(self, call: Call) -> Any:
        async def ask(params: dict[str, Any]) -> dict[str, Any]:
            result = await call.context.session.elicit_form(
                str(params.get("message", "")),
                params.get("requestedSchema") or {"type": "object", "properties": {}},
                related_request_id=call.context.request_id,
            )
            return result.model_dump(mode="json", by_alias=True, exclude_none=True)

        return ask

    # -- permission -------------------------------------------------------------------------------------------

    async def _permitted(self, call: Call, name: str, arguments: Mapping[str, Any]) -> types.InputRequiredResult | None:
        """Nothing once it is permitted, PermissionDenied if it is not, or the question as the result of the call."""
        if call.state.get("permitted") == name or (call.principal, name) in self._allowed:
            return None
        cwd = self._service.settings.default_cwd or ""
        ruled = self._service.gate.answer(call.principal, cwd, name, arguments)
        answer = ruled or await self._asked(call, name, arguments)
        if isinstance(answer, types.InputRequiredResult):
            return answer
        if not answer.allow:
            raise PermissionDenied(answer.message or f"{name} was denied.")
        if answer.scope is Scope.SESSION:
            self._allowed.add((call.principal, name))
        return None

    async def _asked(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Answer | types.InputRequiredResult:
        place = f"hub:{call.principal}"
        earlier = call.state.get("question")
        if isinstance(earlier, str):
            call.dialogs.take_all(place, call.responses)
            return self._answers.pop(earlier, None) or Answer(allow=False, message="Nobody allowed it.")
        if not (call.returns_questions or call.can_ask):
            return Answer(
                allow=False,
                message=f"{name} needs somebody's permission, and this client cannot ask. A rule in the policy can "
                f'allow it: allow = ["{name}"].',
            )
        settled: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        question = self._open(place, name, arguments, settled)
        if call.returns_questions:
            return call.dialogs.as_result(place, [question], question=question.id)
        call.dialogs.follow(place)
        return await settled

    def _open(self, place: str, name: str, arguments: Mapping[str, Any], settled: "asyncio.Future[Answer]") -> Question:
        def settle(question: Question, resolution: Resolution, _: Mapping[str, Any] | None) -> None:
            answer = resolution.answer or Answer(allow=False, message=resolution.detail or "Nobody answered.")
            self._answers[question.id] = answer
            if not settled.done():
                settled.set_result(answer)

        always = {"type": "addRules", "rules": [{"toolName": name}], "behavior": "allow", "destination": "session"}
        return self._service.broker.open(place, name, arguments, settle, suggestions=[always])


def _wire(responses: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.model_dump(mode="json", by_alias=True, exclude_none=True) for key, value in responses.items()}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
