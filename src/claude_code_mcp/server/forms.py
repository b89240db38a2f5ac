"""A question as a form for a person, and the filled-in form as an answer. Pure."""

from collections.abc import Mapping
from typing import Any

from ..model.question import Answer, Choice, Question, QuestionKind, Scope

CONFIRM = "confirm"
_ONCE, _SESSION, _DENY = "Allow once", "Allow for this session", "Deny"
_APPROVE, _FEEDBACK = "Approve the plan", "Send feedback"
_APPROVE_EDITS, _EDITS = "Approve the plan and accept edits", "acceptEdits"
_PLAN_SHOWN = 12_000
_INPUT_SHOWN = 2_000


def form_of(question: Question, *, arrays: bool = True) -> tuple[str, dict[str, Any]]:
    """The message and the schema of the form. Without `arrays`, several choices are typed as text."""
    match question.kind:
        case QuestionKind.PERMISSION:
            return _permission_message(question), _permission_schema(question)
        case QuestionKind.PLAN_REVIEW:
            return _plan_message(question), _schema(
                {
                    "decision": _enum("Decision", _plan_choices(question)),
                    "feedback": _text("Feedback", "What should change, if you send feedback"),
                },
                ["decision"],
            )
        case QuestionKind.USER_QUESTION:
            return _question_message(question), _question_schema(question, arrays)


def answer_of(question: Question, action: str, content: Mapping[str, Any] | None) -> Answer | None:
    """The answer in a form; None if the person only put it away, which leaves the question open."""
    if action == "decline":
        return Answer(allow=False)
    if action != "accept":
        return None
    filled = content or {}
    match question.kind:
        case QuestionKind.PERMISSION:
            return _permission_answer(filled)
        case QuestionKind.PLAN_REVIEW:
            feedback = str(filled.get("feedback") or "") or None
            decision = filled.get("decision")
            mode = _EDITS if decision == _APPROVE_EDITS else None
            return Answer(decision in (_APPROVE, _APPROVE_EDITS), message=feedback, mode=mode)
        case QuestionKind.USER_QUESTION:
            return _question_answer(question, filled)


def confirmation() -> tuple[str, dict[str, Any]]:
    """The form that asks whether permission checks may be switched off."""
    message = (
        "A caller wants to switch permission checks off: Claude Code sessions could then run every command and change "
        "every file without asking. Allow that?"
    )
    return message, _schema({"confirm": {"type": "boolean", "title": "Switch permission checks off"}}, ["confirm"])


def confirmed(action: str, content: Mapping[str, Any] | None) -> bool:
    """Whether the person said yes."""
    return action == "accept" and bool((content or {}).get("confirm"))


def _schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _enum(title: str, values: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "title": title, "enum": list(values)}


def _text(title: str, description: str) -> dict[str, Any]:
    return {"type": "string", "title": title, "description": description}


def _permission_message(question: Question) -> str:
    command = question.tool_input.get("command")
    details = [question.reason or "", f"Path: {question.blocked_path}" if question.blocked_path else ""]
    if isinstance(command, str) and command not in question.description:
        details.append(_cut(command, _INPUT_SHOWN))
    return "\n".join(["Claude Code wants to: " + question.description, *filter(None, details)])


def _permission_schema(question: Question) -> dict[str, Any]:
    choices = (_ONCE, _SESSION, _DENY) if question.suggestions else (_ONCE, _DENY)
    reason = _text("Reason", "Told to Claude if you deny")
    return _schema({"decision": _enum("Decision", choices), "reason": reason}, ["decision"])


def _permission_answer(filled: Mapping[str, Any]) -> Answer:
    decision = filled.get("decision")
    if decision not in (_ONCE, _SESSION):
        return Answer(allow=False, message=str(filled.get("reason") or "") or None)
    return Answer(allow=True, scope=Scope.SESSION if decision == _SESSION else Scope.ONCE)


def _plan_choices(question: Question) -> tuple[str, ...]:
    return (_APPROVE, _APPROVE_EDITS, _FEEDBACK) if _EDITS in question.modes else (_APPROVE, _FEEDBACK)


def _plan_message(question: Question) -> str:
    plan = str(question.tool_input.get("plan") or "(Claude gave no text for its plan.)")
    return "Claude Code has a plan and asks for approval:\n\n" + _cut(plan, _PLAN_SHOWN)


def _question_message(question: Question) -> str:
    return "Claude Code asks:\n" + "\n".join(_told(choice) for choice in question.choices)


def _told(choice: Choice) -> str:
    options = "".join(f"\n  - {label}" + (f": {about}" if about else "") for label, about in choice.options)
    return choice.question + options


def _question_schema(question: Question, arrays: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for number, choice in enumerate(question.choices, 1):
        properties[f"answer{number}"] = _choice_schema(choice, arrays)
        properties[f"other{number}"] = _text("Something else", "Your own answer instead")
    return _schema(properties, [])


def _choice_schema(choice: Choice, arrays: bool) -> dict[str, Any]:
    title = choice.header or choice.question
    about = {"description": choice.question}
    if not choice.labels:
        return _text(title, choice.question)
    if choice.several and arrays:
        return {"type": "array", "title": title, **about, "items": {"type": "string", "enum": list(choice.labels)}}
    if choice.several:
        return _text(title, f"{choice.question} (one or more of: {', '.join(choice.labels)})")
    return {**_enum(title, choice.labels), **about}


def _question_answer(question: Question, filled: Mapping[str, Any]) -> Answer:
    answers: dict[str, str | list[str]] = {}
    for number, choice in enumerate(question.choices, 1):
        given = filled.get(f"other{number}") or filled.get(f"answer{number}")
        if given:
            answers[choice.question] = [str(one) for one in given] if isinstance(given, list) else str(given)
    return Answer(allow=True, answers=answers)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n… ({len(text) - limit} more characters)"
