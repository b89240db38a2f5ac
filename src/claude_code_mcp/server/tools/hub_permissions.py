"""Permissions for clients that call hub tools.

The rules of the policy decide first. Where they neither allow nor deny the call, a person is asked through the client's
dialogs. There is no session to hold the question, so a client that cannot ask is refused.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from ...core.errors import InvalidArgument, PermissionDenied
from ...core.model.question import Answer, Question, Resolution
from ...core.service import Service
from ..rounds import RoundState
from .call import Call
from .waiting import first_of


def rule_on_call(service: Service, principal: str, tool: str, arguments: Mapping[str, Any]) -> Answer | None:
    """The rules' answer to a call made without a session; None if a person must be asked."""
    return service.answer_by_rule(principal, service.settings.default_cwd or "", tool, arguments)


@dataclass(frozen=True, slots=True)
class CallDecision:
    """The decision on a call, and the channel `by` which it was made; `policy` for a rule."""

    answer: Answer
    by: str


class PermissionQuestions:
    """The open questions, each for one call of one client."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._rulings: dict[str, asyncio.Future[CallDecision]] = {}
        """By question."""

    async def ask(
        self, call: Call, name: str, arguments: Mapping[str, Any]
    ) -> CallDecision | types.InputRequiredResult:
        """A person's answer, or the question as the result of the call for clients that expect that."""
        place = f"hub:{call.caller.key}"  # stands in for a session's id
        if call.state.permission is not None:
            return self._returned_answer(call, place, call.state.permission)
        if not (call.returns_questions or call.can_ask):
            return _denial(
                f"{name} needs a permission, and this client cannot show a question. Allow it with a policy rule: "
                f'allow = ["{name}"].'
            )
        question = self._open_question(call.principal, place, name, arguments)
        if call.returns_questions:
            return call.dialogs.as_result(place, [question], RoundState(offsets=call.offsets, permission=question.id))
        call.dialogs.follow(place)
        try:
            with call.dialogs.waiting(place, call.context.request_id, call.context.session):
                settled = self._rulings[question.id]
                while not settled.done():
                    await first_of(settled, call.dialogs.wait_for_change())
                    # A dismissed dialog is a denial: there is no session in which it could be answered later.
                    if not settled.done() and question not in call.dialogs.undismissed_questions(place):
                        return _denial()
                return settled.result()
        finally:
            # Also if the call is cancelled: nothing would use the answer.
            self._close_question(question.id)

    def _open_question(self, principal: str, place: str, name: str, arguments: Mapping[str, Any]) -> Question:
        settled: asyncio.Future[CallDecision] = asyncio.get_running_loop().create_future()

        def settle(question: Question, resolution: Resolution, _: Mapping[str, Any] | None) -> None:
            if not settled.done():
                answer = resolution.answer
                settled.set_result(
                    CallDecision(answer, resolution.by) if answer is not None else _denial(resolution.detail)
                )

        always = {"type": "addRules", "rules": [{"toolName": name}], "behavior": "allow", "destination": "session"}

        def check(question: Question, answer: Answer, _: Mapping[str, Any]) -> None:
            # The rules may have changed while the question was open.
            ruled = rule_on_call(self._service, principal, name, arguments)
            if ruled is not None and not ruled.allow:
                raise PermissionDenied(ruled.message or "", field="decision")
            if answer.updated_input is not None and answer.updated_input != question.tool_input:
                raise InvalidArgument("updated_input: this call can no longer be changed.", field="updated_input")

        question = self._service.broker.open(
            place, name, arguments, settle, suggestions=[always], of_client=True, check=check
        )
        self._rulings[question.id] = settled
        # A client that got the question as a result may never return: then it is closed when it expires.
        asyncio.get_running_loop().call_later(
            2 * self._service.settings.permission_timeout, self._close_question, question.id
        )
        return question

    def _returned_answer(self, call: Call, place: str, question_id: str) -> CallDecision | types.InputRequiredResult:
        """Handle a returning client: with the answer, for the next page of the question, or too late."""
        before = call.offsets.get(question_id)
        call.accept_forms(place)
        still_open = [question for question in call.dialogs.undismissed_questions(place) if question.id == question_id]
        if still_open and call.offsets.get(question_id) != before:
            return call.dialogs.as_result(place, still_open, RoundState(offsets=call.offsets, permission=question_id))
        settled = self._rulings.get(question_id)
        ruling = settled.result() if settled is not None and settled.done() else _denial()
        self._close_question(question_id)
        return ruling

    def _close_question(self, question_id: str) -> None:
        self._service.broker.withdraw(question_id, "the call has ended")
        self._rulings.pop(question_id, None)


def _denial(reason: str = "") -> CallDecision:
    return CallDecision(Answer(allow=False, message=reason or "The call was not allowed."), "nobody")
