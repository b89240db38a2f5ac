"""What people are told: which session, why, and what, in a few words without secrets. Pure."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...model.events import Event, QuestionOpened, Stalled, TurnEnded
from ...model.outcome import OutcomeCode
from ...model.question import QuestionKind
from ...model.text import clip_line, iso
from ...questions.presentation import Redacts

_LONGEST_TITLE = 80
_LONGEST_BODY = 300
_BY_A_PERSON = frozenset({OutcomeCode.INTERRUPTED, OutcomeCode.CANCELLED, OutcomeCode.DROPPED})
_VERBS = {
    QuestionKind.PERMISSION: "Wants to: ",
    QuestionKind.PLAN_REVIEW: "",
    QuestionKind.USER_QUESTION: "",
}
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to be told."""

    kind: str
    session_id: str
    title: str
    body: str
    at: float
    expires_at: float
    """After that nobody wants to know."""
    question_id: str | None = None

    @property
    def tag(self) -> str:
        """The same for notices of which the newest replaces the others."""
        return hashlib.sha256(f"{self.session_id} {self.kind}".encode()).hexdigest()[:32]

    @property
    def path(self) -> str:
        """Where it can be answered, in the page; which asks for the sign-in first."""
        if not self.session_id:
            return "#/"
        question = f"/questions/{self.question_id}" if self.question_id else ""
        return f"#/sessions/{self.session_id}{question}"

    def fields(self, base: str) -> dict[str, Any]:
        """For receivers that take data; `base` is the address of the page."""
        return {
            "kind": self.kind,
            "title": self.title,
            "body": self.body,
            "sessionId": self.session_id or None,
            "questionId": self.question_id,
            "url": base + self.path,
            "tag": self.tag,
            "at": iso(self.at),
        }


def notice_of(session_id: str, event: Event, title: Callable[[], str], redactor: Redacts) -> Notice | None:
    """What an event is told as; None if it is not told. A turn that a person ended themselves is no news to them."""

    def notice(kind: str, body: str, expires_at: float, question_id: str | None = None) -> Notice:
        clean = (redactor.text(title()), redactor.text(body))
        shown = (clip_line(clean[0], _LONGEST_TITLE) or "A session", clip_line(clean[1], _LONGEST_BODY))
        return Notice(kind, session_id, *shown, event.at, expires_at, question_id)

    match event:
        case QuestionOpened(question=question):
            body = _VERBS[question.kind] + question.description
            return notice("question", body, question.deadline or event.at + _HOUR, question.id)
        case TurnEnded(outcome=outcome) if outcome.code not in _BY_A_PERSON:
            body = f"Finished: {outcome.result}" if outcome.ok else f"Failed ({outcome.code}): {outcome.detail}"
            return notice("ended", body, event.at + _HOUR)
        case Stalled(seconds=seconds):
            return notice("stalled", f"Nothing was heard of it for {seconds:.0f} seconds.", event.at + _HOUR)
    return None


def trial_notice(at: float) -> Notice:
    """What a person has sent to see that it arrives."""
    return Notice("test", "", "Claude Code", "This is how you will be told.", at, at + 60)
