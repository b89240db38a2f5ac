"""Questions of a session and their answers. Permissions, plan reviews and user questions share one model."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from .text import one_line

AskPerson = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Shows the form of an MCP server to a person: takes the params of `elicitation/create` and returns its result, such as
`{"action": "accept", "content": {…}}`, or the action `decline` or `cancel`."""


class QuestionKind(StrEnum):
    """The kind of decision that is wanted."""

    PERMISSION = "permission"
    PLAN_REVIEW = "plan_review"
    USER_QUESTION = "user_question"
    SERVER_FORM = "server_form"
    """A form of an MCP server, which callers see and answer as a user question."""


class Scope(StrEnum):
    """How far an approval reaches."""

    ONCE = "once"
    SESSION = "session"


MAX_RULE = 400
"""How many characters of a rule's content are shown."""
_MAX_GRANT = 500
"""Characters of the line that shows a grant: a rule with its tool, a mode, or a directory."""
_KINDS = {"ExitPlanMode": QuestionKind.PLAN_REVIEW, "AskUserQuestion": QuestionKind.USER_QUESTION}


def kind_of(tool_name: str) -> QuestionKind:
    """The kind of question for a call of this tool. Plan reviews and user questions are separate tools; every other
    tool asks for permission."""
    return _KINDS.get(tool_name, QuestionKind.PERMISSION)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the questions inside a user question, with its options."""

    question: str
    header: str = ""
    options: tuple[tuple[str, str], ...] = ()
    several: bool = False
    field: Mapping[str, Any] | None = None
    """Properties of a form field: its title, type, whether it is required, default and limits."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for label, _ in self.options)


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change that a call would make to an existing file."""

    diff: str = ""
    """Hunks of a unified diff, based on the file when the question was asked."""
    note: str = ""
    """Why there is no diff."""


@dataclass(frozen=True, slots=True)
class Question:
    """A pending question. `id` is unguessable and never reused; times are Unix seconds."""

    id: str
    session_id: str
    kind: QuestionKind
    tool_name: str
    tool_input: Mapping[str, Any]
    description: str
    tool_use_id: str | None = None
    suggestions: Sequence[Mapping[str, Any]] = ()
    session_rules: Sequence[str] = ()
    """What an approval for the session allows, as in `rules_of`."""
    reason: str | None = None
    blocked_path: str | None = None
    change: FileChange | None = None
    """For a call that changes an existing file: the change, if it could be computed."""
    modes: Sequence[str] = ()
    """The permission modes that may be chosen after a plan."""
    mode_after: str | None = None
    """The mode after an approved plan if none is chosen; None leaves the choice to Claude Code, which asks for each
    tool."""
    form: Mapping[str, str] | None = None
    """If an MCP server asks instead of Claude: its name, its message, and the address that it wants to open."""
    of_client: bool = False
    """Whether the question is about a call of the client itself, not of a session."""
    opened_at: float = 0.0
    deadline: float | None = None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The parts of a user question or form; empty for other kinds."""
        if self.kind not in (QuestionKind.USER_QUESTION, QuestionKind.SERVER_FORM):
            return ()
        raw = self.tool_input.get("questions")
        parts = [part for part in raw if isinstance(part, Mapping)] if isinstance(raw, list) else []
        return tuple(_choice(part, of_form=self.kind is QuestionKind.SERVER_FORM) for part in parts)

    def for_once(self) -> "Question":
        """The question as shown to a person who may decide only about this call, not about later ones."""
        modes = tuple(mode for mode in self.modes if mode == _ASKS_EACH_TIME)
        return replace(self, suggestions=(), session_rules=(), modes=modes)

    def brief(self) -> "Question":
        """The form that a log keeps: which question it was, without the tool's input."""
        return replace(self, tool_input={}, suggestions=(), session_rules=(), reason=None, change=None)


def rules_of(suggestions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What an approval for the session allows, such as `Bash(git push:*)` or `mode acceptEdits`. A long rule, which
    repeats the requested command, is shortened in the middle."""
    for suggestion in suggestions:
        for rule in _listed(suggestion.get("rules")):
            if isinstance(rule, Mapping):
                content = rule.get("ruleContent")
                name = str(rule.get("toolName"))
                yield one_line(f"{name}({content})" if content else name, _MAX_GRANT)
        if suggestion.get("mode"):
            yield one_line(f"mode {suggestion['mode']}", _MAX_GRANT)
        for directory in _listed(suggestion.get("directories")):
            yield one_line(f"directory {directory}", _MAX_GRANT)


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _choice(raw: Mapping[str, Any], *, of_form: bool) -> Choice:
    options, field_facts = raw.get("options"), raw.get("field") if of_form else None
    return Choice(
        question=str(raw.get("question", "")),
        header=str(raw.get("header", "")),
        options=tuple(_option(option) for option in options) if isinstance(options, list) else (),
        several=bool(raw.get("multiSelect")),
        field=field_facts if isinstance(field_facts, Mapping) else None,
    )


def _option(raw: Any) -> tuple[str, str]:
    if isinstance(raw, Mapping):
        return str(raw.get("label", "")), str(raw.get("description", ""))
    return str(raw), ""


GivenAnswers: TypeAlias = Mapping[str, str | Sequence[str]] | Sequence[str | Sequence[str]]


_ASKS_EACH_TIME = "default"
"""The permission mode in which nothing is allowed in advance."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision. `message` is the reason of a denial or the feedback on a plan. `answers` (for user questions) maps
    question text to a label, several labels or free text, or lists them in the order of the questions. `updated_input`
    replaces the tool's input in an approval."""

    allow: bool
    message: str | None = None
    scope: Scope = Scope.ONCE
    updated_input: Mapping[str, Any] | None = None
    answers: GivenAnswers | None = None
    interrupt: bool = False
    mode: str | None = None
    """With the approval of a plan: the permission mode to continue in."""

    @property
    def exceeds_one_call(self) -> bool:
        """Whether it allows more than the requested call."""
        return self.allow and (self.scope is Scope.SESSION or self.mode not in (None, _ASKS_EACH_TIME))


POLICY_CHANNEL = "policy"
"""The channel of answers from rules."""


class Closure(StrEnum):
    """Why a question is no longer open."""

    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a question ended: the answer, if there was one, and the channel it came through."""

    closure: Closure
    by: str
    answer: Answer | None = None
    detail: str = ""
    at: float = field(default=0.0)
    client: str = ""
    """The name of the client through which the answer came, if known."""
    person: bool = False
    """Whether the channel vouched for a person."""

    @property
    def decision(self) -> str:
        """`allow` or `deny`; if it was not answered, how the question ended."""
        if self.answer is None or self.closure is not Closure.ANSWERED:
            return str(self.closure)
        return "allow" if self.answer.allow else "deny"

    @property
    def whose(self) -> str:
        """The channel and the client, human-readable."""
        return f"{self.by} ({self.client})" if self.client else self.by

    def brief(self) -> "Resolution":
        """The decision and its source, without inputs and answers."""
        if self.answer is None or (self.answer.updated_input is None and self.answer.answers is None):
            return self
        return replace(self, answer=replace(self.answer, updated_input=None, answers=None))
