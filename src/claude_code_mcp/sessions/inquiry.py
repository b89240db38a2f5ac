"""The questions of one session: requests of its process on one side, the broker and its channels on the other."""

from collections.abc import Callable
from typing import Any

from ..claude.frames import ControlRequest, Raw
from ..model.events import QuestionOpened, QuestionSettled
from ..model.question import Question, QuestionKind, Resolution
from ..questions.broker import Broker
from ..store.log import EventLog
from .narrator import Narrator


class Inquiry:
    """Opens questions for requests and hands the replies back; both ends are logged."""

    def __init__(
        self,
        session_id: str,
        cwd: str,
        broker: Broker,
        log: EventLog,
        narrator: Narrator,
        reply: Callable[[str, Raw | None], None],
    ) -> None:
        """`reply` takes the id of the request and what the CLI is to hear, None if it wants no answer any more."""
        self._session_id = session_id
        self._cwd = cwd
        self._broker = broker
        self._log = log
        self._narrator = narrator
        self._reply = reply
        self._asked: dict[str, str] = {}

    @property
    def pending(self) -> list[Question]:
        """Oldest first."""
        return self._broker.pending(self._session_id)

    def open(self, frame: ControlRequest) -> None:
        """Offers a `can_use_tool` request to everybody who may answer."""
        request = frame.request
        tool_use_id = request.get("tool_use_id")
        question = self._broker.open(
            self._session_id,
            str(request.get("tool_name")),
            self._input(request, tool_use_id),
            lambda question, resolution, body: self._settled(frame.id, question, resolution, body),
            cwd=self._cwd,
            tool_use_id=tool_use_id,
            suggestions=request.get("permission_suggestions") or (),
            reason=request.get("decision_reason"),
            blocked_path=request.get("blocked_path"),
        )
        self._asked[frame.id] = question.id
        self._log.append(QuestionOpened(question))

    def withdraw(self, request_id: str) -> None:
        """The CLI no longer wants an answer to this request."""
        self._broker.withdraw(self._asked.pop(request_id, ""), "Claude Code no longer needs an answer")

    def withdraw_all(self, detail: str) -> None:
        """Nobody wants any answer any more."""
        self._broker.withdraw_all(self._session_id, detail)

    def _input(self, request: Raw, tool_use_id: str | None) -> Raw:
        """The input of the call; a plan that the CLI left out is taken from the model's own words."""
        given = request.get("input")
        given = given if isinstance(given, dict) else {}
        if request.get("tool_name") == "ExitPlanMode" and not given.get("plan"):
            plan = self._narrator.tool_input(tool_use_id).get("plan")
            return {**given, "plan": plan} if plan else given
        return given

    def _settled(
        self, request_id: str, question: Question, resolution: Resolution, body: dict[str, Any] | None
    ) -> None:
        self._asked.pop(request_id, None)
        self._log.append(QuestionSettled(question, resolution))
        denied = body is not None and body.get("behavior") == "deny"
        if denied and question.kind is QuestionKind.PERMISSION:
            self._narrator.denied(question.tool_use_id)
        self._reply(request_id, body)
