"""The audit trail, a line for each act that matters to security: who, what, which session, decided how, what cost."""

import hashlib
from collections.abc import Mapping
from typing import Any

from ..model.audit_events import AuditEvent, AuditKind
from ..model.events import Event, QuestionOpened, QuestionSettled, Spent, TurnEnded
from ..model.question import Question
from ..model.text import cut
from ..redaction import Redactor
from .rotating_jsonl import RotatingJsonl, timestamp

_LONGEST = 2000


class Audit:
    """An observer that writes a trail. Secrets are taken out; prompts are told by their hash unless wanted whole."""

    def __init__(self, trail: RotatingJsonl, redactor: Redactor, *, prompts: bool = False) -> None:
        self._trail = trail
        self._redactor = redactor
        self._prompts = prompts

    def close(self) -> None:
        """Blocks until all is written."""
        self._trail.close()

    def act(self, act: AuditEvent) -> None:
        if act.kind is AuditKind.FAILED:
            return  # what was refused has been told by itself; the rest is no matter of security
        details = dict(act.details)
        prompt = details.pop("prompt", None)
        if prompt is not None:
            details |= self._prompt(str(prompt))
        self._write(str(act.kind), act.who, act.session_id, details)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        match event:
            case QuestionOpened(question=question):
                self._write("question_opened", owner, session_id, _question(question))
            case QuestionSettled(question=question, resolution=resolution):
                answer = resolution.answer
                decision = None if answer is None else "allow" if answer.allow else "deny"
                scope = str(answer.scope) if answer is not None and answer.allow else None
                how = {"by": resolution.by, "decision": decision, "scope": scope, "reason": resolution.detail or None}
                self._write(f"question_{resolution.closure}", owner, session_id, {**_question(question), **how})
            case TurnEnded(number=number, outcome=outcome):
                about = {"turn": number, "outcome": str(outcome.code), "cost_usd": round(outcome.usage.cost_usd, 6)}
                self._write("turn_ended", owner, session_id, about)
            case Spent(usage=usage):
                self._write("turn_cost", owner, session_id, {"cost_usd": round(usage.cost_usd, 6)})

    def _prompt(self, prompt: str) -> dict[str, Any]:
        digest = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16]
        return {"prompt_sha256": digest, **({"prompt": prompt} if self._prompts else {})}

    def _write(self, act: str, who: str, session_id: str | None, details: Mapping[str, Any]) -> None:
        told = {name: value for name, value in details.items() if value is not None}
        entry = {"at": timestamp(), "act": act, "who": who, **({"session": session_id} if session_id else {}), **told}
        clean = self._redactor.data(entry)
        self._trail.write({name: value if name == "prompt" else _short(value) for name, value in clean.items()})


def _question(question: Question) -> dict[str, Any]:
    return {
        "question": question.id,
        "kind": str(question.kind),
        "tool": question.tool_name,
        "description": question.description,
    }


def _short(value: Any) -> Any:
    return cut(value, _LONGEST) if isinstance(value, str) else value
