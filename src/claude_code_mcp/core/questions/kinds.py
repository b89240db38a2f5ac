"""One class for each kind of question: its text, its form, the answers it accepts, and what the policy may decide.
Pure.

`kind_class` finds the class of a question. A new `QuestionKind` does not type-check without a class here, and a class
cannot be instantiated without every abstract member.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, assert_never

from ..errors import InvalidArgument
from ..model.question import Answer, Choice, Question, QuestionKind, Scope
from ..model.text import one_line, visible
from .edited_input import REQUIRED_FIELDS, refuse_cut
from .form_model import FieldKind, FormField, options_of
from .presentation import change_lines, field_lines, fields_in_change, is_described, measures

WireType = Literal["permission", "plan_review", "user_question"]
DENY = "Deny"
REASON = FormField("reason", "Reason", "Reason for Claude if you deny")
_ONCE, _SESSION = "Allow once", "Allow for this session"
_APPROVE, _FEEDBACK = "Approve the plan", "Send feedback"
_APPROVE_EDITS, ACCEPT_EDITS = "Approve the plan and accept edits", "acceptEdits"
_FEEDBACK_TEXT = FormField("feedback", "Feedback", "What should change, if you send feedback")
_MAX_QUESTION = 200


class Reaction(StrEnum):
    """The possible answers to a question, by the names that front ends use."""

    ALLOW = "allow"
    SESSION = "session"
    """Allow it and similar calls for the rest of the session."""
    EDITS = "edits"
    """Approve the plan and accept all later file edits."""
    SAY = "say"
    """Answer with a label or a text."""
    DENY = "deny"


class Kind(ABC):
    """A kind of question."""

    @property
    @abstractmethod
    def wire_type(self) -> WireType:
        """Its name in tool results."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Its human-readable name."""

    @property
    @abstractmethod
    def denial(self) -> str:
        """The message to Claude about a denial without a reason."""

    @property
    @abstractmethod
    def rule_may_allow(self) -> bool:
        """Whether a policy rule that allows the call answers the question. A rule can deny every kind."""

    @abstractmethod
    def text(self, question: Question) -> str:
        """Everything that is decided on, readable and complete at any length."""

    @abstractmethod
    def push_text(self, question: Question) -> str:
        """The body of a push notification."""

    @abstractmethod
    def reactions(self, question: Question, *, for_session: bool) -> frozenset[Reaction]:
        """The answers that it accepts. `for_session` says whether it can be allowed for the rest of the session."""

    @abstractmethod
    def fields(self, question: Question, *, arrays: bool) -> Sequence[FormField]:
        """The fields of its form. Without `arrays`, several choices are typed as text."""

    @abstractmethod
    def answer_in(self, question: Question, filled: Mapping[str, Any]) -> Answer:
        """The answer in a form that was filled in and not declined."""

    @abstractmethod
    def allowed_input(self, question: Question, answer: Answer) -> dict[str, Any]:
        """The input with which the call runs after this approval. Raises InvalidArgument if the answer does not fit."""

    def chosen_mode(self, question: Question, answer: Answer) -> str | None:
        """The permission mode after an approval; None leaves it unchanged, or to Claude Code."""
        if answer.mode is not None:
            raise InvalidArgument("permission_mode: only for approving a plan.", field="permission_mode")
        return None


def _in_sentence(description: str) -> str:
    """A description, which begins with a verb (`Run: ls`), after "wants to"."""
    return description[:1].lower() + description[1:]


class Permission(Kind):
    """Whether a tool call may run."""

    wire_type = "permission"
    title = "Permission"
    denial = "The user denied this."
    rule_may_allow = True

    def text(self, question: Question) -> str:
        return "\n".join(self._lines(question))

    def _lines(self, question: Question) -> Iterator[str]:
        yield f"{'This client' if question.of_client else 'Claude Code'} wants to {_in_sentence(question.description)}"
        if question.reason:
            yield visible(question.reason)
        if question.blocked_path:
            yield f"Path: {visible(question.blocked_path)}"
        if question.session_rules:
            yield f'"For this session" allows: {visible(", ".join(question.session_rules))}'
        change, in_change = question.change, fields_in_change(question)
        for name, value in question.tool_input.items():
            if name not in in_change and not is_described(question.tool_name, name, value, question.description):
                yield from field_lines(name, value, question.id)
        if change is not None and change.note:
            yield change.note
        if change is not None and change.diff:
            yield f"--- change to the file {question.id[:6]} ---"
            yield from (line for _, line in change_lines(change.diff))
            yield f"--- end of the change {question.id[:6]} ---"

    def push_text(self, question: Question) -> str:
        return f"Wants to {_in_sentence(question.description)}"

    def reactions(self, question: Question, *, for_session: bool) -> frozenset[Reaction]:
        more = {Reaction.SESSION} if for_session else set()
        return frozenset({Reaction.ALLOW, Reaction.DENY} | more)

    def fields(self, question: Question, *, arrays: bool) -> Sequence[FormField]:
        choices = (_ONCE, _SESSION, DENY) if question.suggestions else (_ONCE, DENY)
        return decision_field(*choices), REASON

    def answer_in(self, question: Question, filled: Mapping[str, Any]) -> Answer:
        decision = filled.get("decision")
        if decision not in (_ONCE, _SESSION):
            return Answer(allow=False, message=REASON.entered_text(filled))
        return Answer(allow=True, scope=Scope.SESSION if decision == _SESSION else Scope.ONCE)

    def allowed_input(self, question: Question, answer: Answer) -> dict[str, Any]:
        if answer.answers is not None:
            raise _misfit(f"Only a user_question takes answers; this is a {self.wire_type}.")
        updated = answer.updated_input
        if updated is None:
            return dict(question.tool_input)
        if not updated and question.tool_input:
            # Claude Code takes an empty object for "unchanged" and would run the original call.
            raise InvalidArgument("updated_input: must not be empty; deny the call instead.", field="updated_input")
        refuse_cut(updated, question.tool_input)
        # Claude Code would accept an invalid input as the answer and then fail the call, with the question already
        # closed. Only fields of the original call are checked, because other versions of the CLI may have other names.
        tool, original = question.tool_name, question.tool_input
        required = [name for name in REQUIRED_FIELDS.get(tool, ()) if name in original]
        missing = [name for name in required if name not in updated]
        if missing:
            raise InvalidArgument(
                f"updated_input: {', '.join(missing)} is missing; pass the complete input of {tool}.",
                field="updated_input",
            )
        for name in required:
            if isinstance(original[name], str) and not isinstance(updated[name], str):
                raise InvalidArgument(f"updated_input: {name} of {tool} must be a string.", field="updated_input")
        return dict(updated)


class PlanReview(Kind):
    """Whether a plan is carried out."""

    wire_type = "plan_review"
    title = "Plan"
    denial = "The user did not approve the plan."
    rule_may_allow = True

    def text(self, question: Question) -> str:
        plan = question.tool_input.get("plan")
        if not isinstance(plan, str) or not plan:
            return "Claude Code asks you to approve its plan: (Claude wrote no text for it.)"
        others = {name: value for name, value in question.tool_input.items() if name != "plan"}
        lines = "".join(f"{line}\n" for name, value in others.items() for line in field_lines(name, value, question.id))
        return f"Claude Code has a plan and asks for approval ({measures(plan)}):\n{lines}\n{visible(plan)}"

    def push_text(self, question: Question) -> str:
        return question.description

    def reactions(self, question: Question, *, for_session: bool) -> frozenset[Reaction]:
        more = {Reaction.EDITS} if ACCEPT_EDITS in question.modes else set()
        return frozenset({Reaction.ALLOW, Reaction.DENY} | more)

    def fields(self, question: Question, *, arrays: bool) -> Sequence[FormField]:
        edits = (_APPROVE_EDITS,) if ACCEPT_EDITS in question.modes else ()
        return decision_field(_APPROVE, *edits, _FEEDBACK), _FEEDBACK_TEXT

    def answer_in(self, question: Question, filled: Mapping[str, Any]) -> Answer:
        decision = filled.get("decision")
        return Answer(
            decision in (_APPROVE, _APPROVE_EDITS),
            message=_FEEDBACK_TEXT.entered_text(filled),
            mode=ACCEPT_EDITS if decision == _APPROVE_EDITS else None,
        )

    def allowed_input(self, question: Question, answer: Answer) -> dict[str, Any]:
        if answer.answers is not None:
            raise _misfit(f"Only a user_question takes answers; this is a {self.wire_type}.")
        return _edited_in_part(question, answer)

    def chosen_mode(self, question: Question, answer: Answer) -> str | None:
        if answer.mode is not None and answer.mode not in question.modes:
            choices = f"it can be {', '.join(question.modes)}" if question.modes else "it cannot be chosen here"
            raise InvalidArgument(
                f"permission_mode: {answer.mode!r} is not available; {choices}.", field="permission_mode"
            )
        return answer.mode or question.mode_after


class UserQuestion(Kind):
    """A question of Claude to the user, in one or several parts with options."""

    wire_type = "user_question"
    title = "Question"
    denial = "The user chose not to answer. Continue with your best judgment."
    rule_may_allow = False  # a rule cannot give an answer

    def text(self, question: Question) -> str:
        return "Claude Code asks:\n" + "\n".join(map(_choice_text, question.choices))

    def push_text(self, question: Question) -> str:
        return question.description

    def reactions(self, question: Question, *, for_session: bool) -> frozenset[Reaction]:
        return frozenset({Reaction.SAY, Reaction.DENY} if question.choices else {Reaction.DENY})

    def fields(self, question: Question, *, arrays: bool) -> Sequence[FormField]:
        pairs = (_choice_fields(number, choice, arrays) for number, choice in enumerate(question.choices, 1))
        return [field for pair in pairs for field in pair]

    def answer_in(self, question: Question, filled: Mapping[str, Any]) -> Answer:
        answers: dict[str, str | list[str]] = {}
        for number, choice in enumerate(question.choices, 1):
            answer, other = _choice_fields(number, choice)
            entered = other.entered(filled) or answer.entered(filled)
            if entered is not None:
                answers[choice.question] = entered
        return Answer(allow=True, answers=answers)

    def allowed_input(self, question: Question, answer: Answer) -> dict[str, Any]:
        edited = _edited_in_part(question, answer)
        answers: object = answer.answers
        if answers is None:
            answers = (answer.updated_input or {}).get("answers")
        by_text = answers_by_text(question, answers) if answers is not None else {}
        if not any(by_text.values()) and self._needs_answers(question):
            asked = "; ".join(one_line(choice.question, _MAX_QUESTION) for choice in question.choices)
            raise _misfit(f"answers: required to allow this question ({asked}); deny it to leave it unanswered.")
        return edited if answers is None else {**edited, "answers": by_text}

    def _needs_answers(self, question: Question) -> bool:
        """Whether allowing the question requires answers."""
        return bool(question.choices)


class ServerForm(UserQuestion):
    """A form of an MCP server. It is shown and answered like a user question, with a part for each field."""

    denial = "The user did not complete the form."

    def text(self, question: Question) -> str:
        return "An MCP server asks:\n" + "\n".join(map(_choice_text, question.choices))  # each part names it

    def _needs_answers(self, question: Question) -> bool:
        # All fields of a form may be optional; a form without fields is a yes/no question.
        return any(choice.field is None or choice.field.get("required") for choice in question.choices)


_PERMISSION, _PLAN_REVIEW, _USER_QUESTION, _SERVER_FORM = Permission(), PlanReview(), UserQuestion(), ServerForm()


def kind_class(kind: QuestionKind) -> Kind:
    """The class of a kind of question."""
    match kind:
        case QuestionKind.PERMISSION:
            return _PERMISSION
        case QuestionKind.PLAN_REVIEW:
            return _PLAN_REVIEW
        case QuestionKind.USER_QUESTION:
            return _USER_QUESTION
        case QuestionKind.SERVER_FORM:
            return _SERVER_FORM
        case _:
            assert_never(kind)


def full_text(question: Question) -> str:
    """Everything that is decided on, readable and complete at any length."""
    return kind_class(question.kind).text(question)


def reply(question: Question, answer: Answer) -> dict[str, Any]:
    """The response for the CLI; InvalidArgument if the answer does not fit the question."""
    kind = kind_class(question.kind)
    if not answer.allow:
        if answer.updated_input is not None or answer.answers is not None or answer.mode is not None:
            raise InvalidArgument("A denial takes only a reason, not an updated input, answers or a mode.")
        denial = {"behavior": "deny", "message": answer.message or kind.denial}
        return {**denial, "interrupt": True} if answer.interrupt else denial
    body: dict[str, Any] = {"behavior": "allow", "updatedInput": kind.allowed_input(question, answer)}
    updates: list[dict[str, Any]] = []
    if answer.scope is Scope.SESSION:
        # The CLI would write some of its suggestions to the project's settings, but a permission for a session must not
        # outlive it.
        suggestions = [rule for rule in question.suggestions if isinstance(rule, Mapping)]
        if not suggestions:
            raise InvalidArgument(
                "Claude Code offers no rule that would allow this for the whole session; allow it once instead."
            )
        updates = [{**rule, "destination": "session"} for rule in suggestions]
    mode = kind.chosen_mode(question, answer)
    if mode is not None:
        updates.append({"type": "setMode", "mode": mode, "destination": "session"})
    return {**body, "updatedPermissions": updates} if updates else body


def _edited_in_part(question: Question, answer: Answer) -> dict[str, Any]:
    """The edited input of a plan or user question. Omitted fields stay unchanged."""
    if answer.updated_input is None:
        return dict(question.tool_input)
    refuse_cut(answer.updated_input, question.tool_input)
    return {**question.tool_input, **answer.updated_input}


# -- forms -------------------------------------------------------------------------------------------------------------


def decision_field(*labels: str) -> FormField:
    """The field for the decision, with these options."""
    return FormField("decision", "Decision", options=options_of(*labels), required=True)


def _choice_fields(number: int, choice: Choice, arrays: bool = True) -> tuple[FormField, FormField]:
    """The two fields for one part of a user question: the choice between Claude's options, and a text to answer
    instead."""
    title, asked = visible(choice.header or choice.question), visible(choice.question)
    kind, options = FieldKind.STRING, options_of(*choice.labels)
    if choice.several and options and arrays:
        kind = FieldKind.ARRAY
    elif choice.several and options:
        asked, options = f"{asked} (one or more of: {', '.join(choice.labels)})", {}
    answer = FormField(f"answer{number}", title, asked, kind, options)
    return answer, FormField(f"other{number}", "Something else", "Your own answer instead")


def _choice_text(choice: Choice) -> str:
    options = "".join(
        f"\n  - {visible(label)}" + (f": {visible(description)}" if description else "")
        for label, description in choice.options
    )
    return visible(choice.question) + options


# -- answers to the parts of a user question ---------------------------------------------------------------------------


def answers_by_text(question: Question, answers: object) -> dict[str, str]:
    """Answers keyed by question text, several labels joined as the CLI takes them, from a mapping or a list in order.

    The keys of a mapping are question texts, headers or numbers from 1. A single text answers a question with a single
    part.
    """
    by_text = labels_by_text(question, answers)
    return {text: value if isinstance(value, str) else ", ".join(value) for text, value in by_text.items()}


def labels_by_text(question: Question, answers: object) -> dict[str, str | Sequence[str]]:
    """Answers keyed by question text like `answers_by_text`, but with several labels still in a list."""
    if isinstance(answers, Mapping):
        return _from_mapping(question, answers)
    if isinstance(answers, str) and len(question.choices) == 1:
        answers = [answers]
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        raise _misfit("Pass answers as a mapping from question to answer, or as a list in the order of the questions.")
    if len(answers) > len(question.choices):
        raise _misfit(f"{len(answers)} answers for {len(question.choices)} question(s).")
    return {choice.question: _labels(value) for choice, value in zip(question.choices, answers, strict=False)}


def _from_mapping(question: Question, answers: Mapping[Any, object]) -> dict[str, str | Sequence[str]]:
    by_text: dict[str, str | Sequence[str]] = {}
    for key, value in answers.items():
        text = _question_text(question, str(key))
        if text in by_text:
            raise _misfit(f"{text!r} is answered twice.")
        by_text[text] = _labels(value)
    return by_text


def _question_text(question: Question, key: str) -> str:
    """The text of the part of a question that this key names by its text, its header or its number."""
    texts = [choice.question for choice in question.choices]
    headers = {choice.header: choice.question for choice in reversed(question.choices) if choice.header}
    numbers = {str(number): text for number, text in enumerate(texts, 1)}
    if key in texts:
        return key
    if key in headers or key in numbers:
        return headers.get(key) or numbers[key]
    raise _misfit(f"There is no question {key!r}; the questions are {', '.join(map(repr, texts))}.")


def _labels(value: object) -> str | Sequence[str]:
    """A label or free text, or several labels."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence) or not all(isinstance(label, str) for label in value):
        raise _misfit(f"An answer must be a string or a list of labels, not {value!r}.")
    return value


def _misfit(why: str) -> InvalidArgument:
    return InvalidArgument(why, field="answers")
