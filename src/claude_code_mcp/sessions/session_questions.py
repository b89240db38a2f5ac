"""The questions of one session: requests of its process on one side, the broker and its channels on the other."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..claude.frames import ControlRequest, Raw
from ..model.events import QuestionOpened, QuestionSettled
from ..model.question import Closure, Question, QuestionKind, Resolution
from ..questions.broker import Broker
from ..questions.cli_reply import chosen_mode
from ..questions.mcp_form import TOOL, filled_in, questions_of
from ..store.event_log import EventLog
from .event_writer import ReadableLines
from .policy_enforcer import BY, PolicyEnforcer


class QuestionSource(Protocol):
    """The session whose questions these are."""

    id: str
    cwd: str
    owner: str
    log: EventLog
    narrator: ReadableLines

    def granted(self, updates: list[Mapping[str, Any]]) -> None:
        """Somebody allowed something for the whole session."""

    def plan_approved(self, mode: str | None) -> None:
        """A plan was approved; the session goes on in this mode, or in the CLI's own choice."""


class SessionQuestions:
    """Opens questions for requests and hands the replies back; both ends are logged."""

    def __init__(
        self,
        asker: QuestionSource,
        broker: Broker,
        gate: PolicyEnforcer,
        reply: Callable[[str, Raw | None], None],
        settle: Callable[[], None],
    ) -> None:
        """`reply` takes the id of the request and what the CLI is to hear, None if it wants no answer any more;
        `settle` is called after every question that is no longer open."""
        self._asker = asker
        self._broker = broker
        self._gate = gate
        self._reply = reply
        self._settle = settle
        self._asked: dict[str, str] = {}

    @property
    def pending(self) -> list[Question]:
        """Oldest first."""
        return self._broker.pending(self._asker.id)

    def open(self, frame: ControlRequest) -> None:
        """Offers a `can_use_tool` request to everybody who may answer, unless a rule answers it."""
        request, asker = frame.request, self._asker
        tool_use_id = request.get("tool_use_id")
        modes, mode_after = self._gate.modes_after_plan(asker.owner)
        question = self._broker.open(
            self._asker.id,
            str(request.get("tool_name")),
            self._input(request, tool_use_id),
            lambda question, resolution, body: self._settled(frame.id, question, resolution, body),
            cwd=self._asker.cwd,
            tool_use_id=tool_use_id,
            suggestions=self._gate.suggestions(asker.owner, asker.cwd, request.get("permission_suggestions")),
            reason=request.get("decision_reason"),
            blocked_path=request.get("blocked_path"),
            modes=modes,
            mode_after=mode_after,
        )
        self._asked[frame.id] = question.id
        self._asker.log.append(QuestionOpened(question))
        answer = self._gate.answer(asker.owner, asker.cwd, question.tool_name, question.tool_input)
        if answer is not None:
            self._broker.answer(asker.id, question.id, answer, BY)

    def elicit(self, server: str, form: Raw) -> "asyncio.Future[Raw]":
        """Puts a form of an MCP server to everybody who may answer; done with the form as it was filled in."""
        filled: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()

        def settle(question: Question, resolution: Resolution, body: dict[str, Any] | None) -> None:
            self._asker.log.append(QuestionSettled(question, resolution))
            if not filled.done():
                filled.set_result(_filled_in(server, form, resolution, body))
            self._settle()

        question = self._broker.open(self._asker.id, TOOL, questions_of(server, form), settle, cwd=self._asker.cwd)
        self._asker.log.append(QuestionOpened(question))
        return filled

    def withdraw(self, request_id: str) -> None:
        """The CLI no longer wants an answer to this request."""
        self._broker.withdraw(self._asked.pop(request_id, ""), "Claude Code no longer needs an answer")

    def withdraw_all(self, detail: str) -> None:
        """Nobody wants any answer any more."""
        self._broker.withdraw_all(self._asker.id, detail)

    def _input(self, request: Raw, tool_use_id: str | None) -> Raw:
        """The input of the call; a plan that the CLI left out is taken from the model's own words."""
        given = request.get("input")
        given = given if isinstance(given, dict) else {}
        if request.get("tool_name") == "ExitPlanMode" and not given.get("plan"):
            plan = self._asker.narrator.plan_input(tool_use_id).get("plan")
            return {**given, "plan": plan} if plan else given
        return given

    def _settled(
        self, request_id: str, question: Question, resolution: Resolution, body: dict[str, Any] | None
    ) -> None:
        self._asked.pop(request_id, None)
        if body is not None and isinstance(updates := body.get("updatedPermissions"), list):
            self._asker.granted(updates)
        self._asker.log.append(QuestionSettled(question, resolution))
        if resolution.answer is not None and resolution.answer.allow and question.kind is QuestionKind.PLAN_REVIEW:
            self._asker.plan_approved(chosen_mode(question, resolution.answer))
        denied = body is not None and body.get("behavior") == "deny"
        if denied and question.kind is QuestionKind.PERMISSION:
            self._asker.narrator.denied(question.tool_use_id)
        self._reply(request_id, body)
        self._settle()


def _filled_in(server: str, form: Raw, resolution: Resolution, body: dict[str, Any] | None) -> Raw:
    if resolution.closure is not Closure.ANSWERED or body is None:
        return {"action": "cancel"}
    if body.get("behavior") != "allow":
        return {"action": "decline"}
    answers = body["updatedInput"].get("answers")
    return filled_in(server, form, answers if isinstance(answers, dict) else {})
