"""The routes on questions: see what is asked, whole, and answer it. The first answer wins, from wherever it comes."""

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from ..model.question import Question
from ..questions.presentation import as_offered, without_secrets
from ..server.tools.answering import AnswerTexts, ModeAfterPlan, answer_from
from ..server.tools.base import Arguments
from ..server.tools.status import status_of
from ..service import Service
from .answers import answer, arguments_of
from .guard import WebCaller
from .rows import question_row
from .session_routes import session_id_of

CHANNEL = "web"
"""Through which an answer came, as others are told."""


class QuestionAnswer(Arguments):
    decision: Literal["allow", "deny"]
    reason: str | None = None
    scope: Literal["once", "session"] | None = None
    answers: AnswerTexts | None = None
    updated_input: dict[str, Any] | None = None
    permission_mode: ModeAfterPlan | None = None


class QuestionRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, _: Request, caller: WebCaller) -> Response:
        sessions = self._service.sessions(owner=caller.principal)
        questions = [question for session in sessions for question in session.questions]
        rows = [question_row(question, self._service.redaction) for question in questions]
        return answer({"questions": sorted(rows, key=lambda row: str(row["openedAt"]))})

    async def show(self, request: Request, caller: WebCaller) -> Response:
        question = self._question(request, caller)
        return answer({"question": question_row(question, self._service.redaction)})

    async def answer(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, QuestionAnswer)
        decided = answer_from(arguments.decision, arguments)
        # Nothing is awaited from here on to the answer itself.
        question = self._question(request, caller)
        shown = without_secrets(question, self._service.redaction)
        session = self._service.respond(
            question.session_id,
            question.id,
            as_offered(question, shown, decided),
            owner=caller.principal,
            by=CHANNEL,
            client=caller.device,
        )
        await session.saved()  # what was allowed for the session outlives this process
        return answer({"sessionId": session.id, "status": status_of(session)})

    def _question(self, request: Request, caller: WebCaller) -> Question:
        """The question in the path, while it is open; QuestionClosed tells what became of it."""
        session = self._service.session(session_id_of(request), owner=caller.principal)
        question_id = str(request.path_params["question"])
        found = next((question for question in session.questions if question.id == question_id), None)
        if found is None:
            raise self._service.why_closed(session.id, question_id)
        return found
