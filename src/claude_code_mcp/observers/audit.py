"""The audit trail: a line for each act that matters to security, with who, what, which session, decision and cost.

Everything is redacted as a whole before long texts are shortened.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from ..model.audit_events import AuditEvent, AuditKind
from ..model.events import Event, QuestionOpened, QuestionSettled, Spent, TurnEnded
from ..model.question import Answer, Question
from ..model.text import cut
from ..questions.describe import describe
from ..redaction import Redactor
from .rotating_jsonl import RotatingJsonl, timestamp

_LONGEST_TEXT = 2000


class Audit:
    """An observer that writes the trail. Of a prompt it has the hash, and with `prompts` the whole text."""

    def __init__(self, trail: RotatingJsonl, redactor: Redactor, *, prompts: bool = False) -> None:
        self._trail = trail
        self._redactor = redactor
        self._prompts = prompts

    def close(self) -> None:
        """Blocks until everything is written."""
        self._trail.close()

    def act(self, act: AuditEvent) -> None:
        if act.kind is AuditKind.FAILED:
            return  # a refusal has an event of its own; other failures are no matter of security
        details = dict(act.details)
        prompt = details.pop("prompt", None)
        if prompt is not None:
            digest = hashlib.sha256(str(prompt).encode("utf-8", "replace")).hexdigest()[:16]
            details |= {"prompt_sha256": digest, **({"prompt": str(prompt)} if self._prompts else {})}
        self._write(str(act.kind), act.who, act.session_id, details)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        match event:
            case QuestionOpened(question=question):
                self._write("question_opened", owner, session_id, _question(question))
            case QuestionSettled(question=question, resolution=resolution):
                answer = resolution.answer
                decision = None if answer is None else "allow" if answer.allow else "deny"
                scope = str(answer.scope) if answer is not None and answer.allow else None
                details = {
                    **_question(question),
                    "by": resolution.by,
                    "decision": decision,
                    "changed_to": _changed_to(question, answer),
                    "scope": scope,
                    "reason": resolution.detail or None,
                }
                self._write(f"question_{resolution.closure}", owner, session_id, details)
            case TurnEnded(number=number, outcome=outcome):
                cost = round(outcome.usage.cost_usd, 6)
                details = {"turn": number, "outcome": str(outcome.code), "cost_usd": cost}
                self._write("turn_ended", owner, session_id, details)
            case Spent(usage=usage):
                self._write("turn_cost", owner, session_id, {"cost_usd": round(usage.cost_usd, 6)})

    def _write(self, act: str, who: str, session_id: str | None, details: Mapping[str, Any]) -> None:
        entry = {"at": timestamp(), "act": act, "who": who, **({"session": session_id} if session_id else {})}
        entry |= {name: value for name, value in details.items() if value is not None}
        clean = self._redactor.data(entry)
        shortened = {
            name: cut(value, _LONGEST_TEXT) if isinstance(value, str) and name != "prompt" else value
            for name, value in clean.items()
        }
        self._trail.write(shortened)


def _changed_to(question: Question, answer: Answer | None) -> str | None:
    """What is run instead of what was asked, if the answer has another input."""
    if answer is None or answer.updated_input is None or answer.updated_input == question.tool_input:
        return None
    return describe(question.tool_name, answer.updated_input)


def _question(question: Question) -> dict[str, Any]:
    return {
        "question": question.id,
        "kind": str(question.kind),
        "tool": question.tool_name,
        "description": question.description,
    }
