"""The questions of one session: opens them at the broker for requests of its process and of hub servers, and delivers
each answer to the requester.

A question is in the log before anything can answer it, and its end is in the log before the process gets the reply.
Answers from policy rules take the same path as people's answers, and `verdicts.py` checks both. If an answer cannot be
delivered, the call is denied.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..claude.protocol import ControlRequest, Raw
from ..errors import InvalidArgument, PermissionDenied
from ..model.events import QuestionOpened, QuestionSettled
from ..model.question import POLICY_CHANNEL, Answer, Closure, FileChange, Question, QuestionKind, Resolution, kind_of
from ..model.tool_names import PREFIX
from ..policy.rules import Decision, Verdict
from ..questions import presentation
from ..questions.broker import Check
from ..questions.form_model import TOOL, GivenAnswer, check_answers, filled_in, heading_of, questions_of
from ..questions.kinds import kind_class, labels_by_text
from .verdicts import Occasion, answer_of_rules

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

Finish = Callable[[Question, Resolution, Raw | None], None]
"""Delivers the reply to the requester: the CLI or a hub server."""


class SessionQuestions:
    """Opens questions for requests and delivers the replies."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._broker = session.deps.broker
        self._question_ids: dict[str, str] = {}
        """By the id of the CLI's request."""
        self._open_ids: set[str] = set()

    @property
    def pending(self) -> list[Question]:
        """The open questions of the session, oldest first."""
        return self._broker.pending(self._session.id)

    @property
    def any_open(self) -> bool:
        """Whether a question is open."""
        return bool(self._open_ids)

    def open(self, frame: ControlRequest, change: FileChange | None = None) -> None:
        """Offer a `can_use_tool` request to every channel, unless a rule answers it. `change` is the call's change to a
        file. A request that cannot be checked or asked about is denied."""
        request, session = frame.request, self._session
        tool, tool_use_id = str(request.get("tool_name")), request.get("tool_use_id")
        try:
            tool_input = request.get("input")
            tool_input = tool_input if isinstance(tool_input, dict) else {}
            if tool == "ExitPlanMode" and not tool_input.get("plan"):
                # The CLI has left the plan out: the model's own call has it.
                plan = session.readable_lines.plan_input(tool_use_id).get("plan")
                tool_input = {**tool_input, "plan": plan} if plan else tool_input
            admission = session.deps.enforcer.admission(session.owner)
            is_plan = kind_of(tool) is QuestionKind.PLAN_REVIEW
            modes, mode_after = admission.modes_after_plan() if is_plan else ((), None)
            question = self._ask(
                tool,
                tool_input,
                partial(self._reply, frame.id),
                lambda question, answer, _: session.verdicts.check_answer(question, answer),
                tool_use_id=tool_use_id,
                suggestions=admission.offers(request.get("permission_suggestions"), tool, tool_input, session.cwd),
                reason=request.get("decision_reason"),
                blocked_path=request.get("blocked_path"),
                change=change,
                modes=modes,
                mode_after=mode_after,
                request_id=frame.id,
            )
            self._answer_by_rule(question, session.verdicts.verdict(Occasion.QUESTION, tool, tool_input, tool_use_id))
        except Exception:
            log.exception("a request of session %s could not be turned into a question", session.id)
            if frame.id in self._question_ids:
                self.withdraw(frame.id)
            else:
                denial = session.verdicts.give_up(Occasion.QUESTION, tool, request.get("input"))
                process = session.process.process
                if process is not None:
                    process.answer(frame.id, {"behavior": "deny", "message": denial.message})

    def _ask(
        self,
        tool: str,
        tool_input: Mapping[str, Any],
        finish: Finish,
        check: Check,
        *,
        request_id: str | None = None,
        **details: Any,
    ) -> Question:
        """Open a question. Its end is logged before `finish` delivers the reply; an exception in between turns an
        allowance into a denial."""
        session = self._session

        def settle(question: Question, resolution: Resolution, body: Raw | None) -> None:
            self._open_ids.discard(question.id)
            try:
                session.log.append(QuestionSettled(question, resolution))
                finish(question, resolution, body)
                # Last: an answer that cannot be delivered allows no later call either.
                if body is not None and isinstance(updates := body.get("updatedPermissions"), list):
                    session.grant(updates)
            except Exception:
                log.exception("the answer to %s of session %s could not be delivered", question.id, session.id)
                denial = session.verdicts.give_up(Occasion.ANSWER, question.tool_name, question.tool_input)
                refused = replace(resolution, answer=denial)
                finish(question, refused, None if body is None else {"behavior": "deny", "message": denial.message})
            session.turn_runner.question_settled()

        question = self._broker.open(session.id, tool, tool_input, settle, cwd=session.cwd, check=check, **details)
        self._open_ids.add(question.id)
        if request_id is not None:
            self._question_ids[request_id] = question.id
        session.log.append(QuestionOpened(question))
        return question

    def _answer_by_rule(self, question: Question, verdict: Verdict) -> None:
        answer = answer_of_rules(question.tool_name, verdict)
        if answer is not None:
            self._broker.answer(self._session.id, question.id, answer, POLICY_CHANNEL)

    def elicit(self, server: str, form: Raw) -> "asyncio.Future[Raw]":
        """Offer a form of an MCP server to every channel; the future gets the completed form. An answer that does not
        fit the form is refused, and the question stays open."""
        filled: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        session = self._session
        asked = questions_of(server, form)
        if session.verdicts.verdict(Occasion.FORM, TOOL, asked).decision is Decision.DENY:
            filled.set_result({"action": "decline"})
            return filled

        def check(question: Question, answer: Answer, body: Raw) -> None:
            session.verdicts.check_answer(question, answer)
            check_answers(server, form, _answers_in(question, answer, body))

        def finish(question: Question, resolution: Resolution, body: Raw | None) -> None:
            # The requester may be gone: cancelling a task cancels the future that it awaits.
            if filled.done():
                return
            if resolution.closure is not Closure.ANSWERED or resolution.answer is None or body is None:
                filled.set_result({"action": "cancel"})
            elif body.get("behavior") != "allow":
                filled.set_result({"action": "decline"})
            else:
                filled.set_result(filled_in(server, form, _answers_in(question, resolution.answer, body)))

        self._ask(TOOL, asked, finish, check, form=heading_of(server, form))
        return filled

    def ask_about_call(self, tool: str, arguments: Mapping[str, Any], verdict: Verdict) -> "asyncio.Future[None]":
        """Ask about a call to a hub server that Claude Code did not ask about; the future fails with PermissionDenied
        if it is denied. The policy's `verdict` may answer at once. The input cannot be changed: the call is already in
        progress."""
        allowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session = self._session

        def check(question: Question, answer: Answer, body: Raw) -> None:
            if answer.updated_input is not None and answer.updated_input != question.tool_input:
                raise InvalidArgument("updated_input: this call can no longer be changed.", field="updated_input")
            session.verdicts.check_answer(question, answer)

        def finish(question: Question, resolution: Resolution, body: Raw | None) -> None:
            # The requester may be gone: cancelling a task cancels the future that it awaits.
            if allowed.done():
                return
            answer = resolution.answer
            if answer is not None and answer.allow:
                allowed.set_result(None)
            else:
                reason = answer.message if answer is not None else resolution.detail
                allowed.set_exception(PermissionDenied(reason or "The call was denied."))

        self._answer_by_rule(self._ask(tool, arguments, finish, check), verdict)
        return allowed

    def withdraw(self, request_id: str) -> None:
        """The CLI no longer wants an answer to this request."""
        self._broker.withdraw(self._question_ids.pop(request_id, ""), "Claude Code no longer needs an answer")

    def withdraw_all(self, detail: str) -> None:
        """Close all open questions without an answer."""
        self._broker.withdraw_all(self._session.id, detail)

    def _reply(self, request_id: str, question: Question, resolution: Resolution, body: Raw | None) -> None:
        """Answer the CLI, after everything that its next frames depend on."""
        session, answer = self._session, resolution.answer
        self._question_ids.pop(request_id, None)
        allowance = answer if answer is not None and answer.allow else None
        changed_input = allowance.updated_input if allowance is not None else None
        if changed_input is not None and changed_input != question.tool_input:
            changed = presentation.describe(question.tool_name, changed_input, session.cwd)
            session.readable_lines.input_changed(question.tool_use_id, changed)
        denied = body is not None and body.get("behavior") == "deny"
        if denied:  # a permission, a plan or an answer: the CLI reports each denial as an error
            session.readable_lines.mark_denied(question.tool_use_id)
        live, process = session.process.live, session.process.process
        if body is not None and live is not None and process is not None and question.tool_name.startswith(PREFIX):
            updated = body.get("updatedInput")
            granted = None if denied else updated if isinstance(updated, Mapping) else question.tool_input
            # Before the reply: the call that it allows may be the very next frame.
            live.claims.use_answered(question.tool_use_id, question.tool_name, granted)
        if process is not None and body is not None:
            process.answer(request_id, body)
        elif process is not None:
            process.refuse(request_id, "the question was withdrawn")
        # After the reply: an answer that cannot be delivered changes nothing for later calls.
        if allowance is not None:
            if question.kind is QuestionKind.PLAN_REVIEW:
                session.plan_approved(kind_class(question.kind).chosen_mode(question, allowance))
            session.verdicts.command_agreed(question)


def _answers_in(question: Question, answer: Answer, body: Raw) -> Mapping[str, GivenAnswer]:
    """The answers by question text, with several labels separate: joined they would be ambiguous."""
    if answer.answers is not None:
        return labels_by_text(question, answer.answers)
    answers = body["updatedInput"].get("answers")
    return answers if isinstance(answers, dict) else {}
