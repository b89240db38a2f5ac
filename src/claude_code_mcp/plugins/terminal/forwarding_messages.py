"""The messages between a server that forwards its terminals and the server that shows them. Pure.

The forwarding server sends a `Report` of all its terminals. The answer arrives as soon as one of their questions is
answered there, or after a while, and has every answer whose question is still in the report. No single message is
critical: a lost report is sent again, and an answer is repeated until a later report no longer has its question.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ...core.model.question import Answer, Question, Resolution, Scope

PATH = "/terminals"
POLL_SECONDS = 20.0
"""How long a report waits for an answer."""
MAX_REPORT = 20 << 20
MAX_TERMINALS = 50
"""Terminals in a report."""
MAX_QUESTIONS = 50
"""Questions of a terminal."""

_Name = Annotated[str, Field(max_length=200)]
_Line = Annotated[str, Field(max_length=4096)]
ModelT = TypeVar("ModelT", bound="_Message")


class _Message(BaseModel):
    """camelCase on the wire; fields of a later version are ignored."""

    model_config = ConfigDict(
        strict=True, allow_inf_nan=False, alias_generator=to_camel, validate_by_name=True, defer_build=True
    )

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def read(cls, raw: object) -> Self:
        """Raises ValueError without the values, which may be secret."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors(include_input=False, include_url=False)[0]["loc"])
            raise ValueError(f"{place[:200] or 'the message'} is not valid") from None


class ForwardedQuestion(_Message):
    """A question of a terminal, without secrets."""

    key: _Name
    """Identifies the question; changes when an answer was refused."""
    tool: _Name
    input: dict[str, Any]
    suggestions: list[dict[str, Any]] = Field(default=[], max_length=100)
    modes: list[_Name] = Field(default=[], max_length=20)
    mode_after: _Name | None = None
    reason: _Line | None = None

    @classmethod
    def of(cls, question: Question, key: str, shown: Callable[[Any], Any], refused: str | None) -> Self:
        """`shown` removes secrets, and `refused` is why an answer to this question was refused."""
        reason = question.reason if refused is None else f"The last answer was refused: {refused}"
        return cls(
            key=key,
            tool=shown(question.tool_name),
            input=shown(dict(question.tool_input)),
            suggestions=shown([dict(suggestion) for suggestion in question.suggestions]),
            modes=[*question.modes],
            mode_after=question.mode_after,
            reason=None if reason is None else shown(reason)[:4096],
        )


class ForwardedTerminal(_Message):
    """A session in a terminal."""

    session_id: _Name
    directory: _Line
    title: _Line
    state: Literal["running", "waiting", "idle"]
    permission_mode: _Name | None = None
    attended: bool = False
    """Whether the person is typing there right now."""
    questions: list[ForwardedQuestion] = Field(default=[], max_length=MAX_QUESTIONS)


class Report(_Message):
    """All terminals of one server. Without `terminals`, they are unchanged since the previous revision."""

    client: _Name
    """Identifies the forwarding server among the servers of its principal."""
    revision: _Name
    machine: _Name = ""
    terminals: list[ForwardedTerminal] | None = Field(None, max_length=MAX_TERMINALS)


class RelayedAnswer(_Message):
    """An answer to a forwarded question."""

    session_id: _Name
    key: _Name
    allow: bool
    message: str | None = None
    for_session: bool = False
    updated_input: dict[str, Any] | None = None
    answers: dict[str, str | list[str]] | list[str | list[str]] | None = None
    interrupt: bool = False
    mode: _Name | None = None
    by: _Line = ""
    """The channel and the client through which it came."""
    person: bool = False
    """Whether that channel vouches for a person."""

    @classmethod
    def of(cls, session_id: str, key: str, resolution: Resolution, answer: Answer) -> Self:
        return cls(
            session_id=session_id,
            key=key,
            allow=answer.allow,
            message=answer.message,
            for_session=answer.scope is Scope.SESSION,
            updated_input=dict(answer.updated_input) if answer.updated_input is not None else None,
            answers=_plain(answer.answers) if answer.answers is not None else None,
            interrupt=answer.interrupt,
            mode=answer.mode,
            by=resolution.whose[:4096],
            person=resolution.person,
        )

    def answer(self) -> Answer:
        return Answer(
            allow=self.allow,
            message=self.message,
            scope=Scope.SESSION if self.for_session else Scope.ONCE,
            updated_input=self.updated_input,
            answers=self.answers,
            interrupt=self.interrupt,
            mode=self.mode,
        )


def _plain(answers: Any) -> Any:
    """Answers as plain JSON values."""
    if isinstance(answers, Mapping):
        return {part: _plain(answer) for part, answer in answers.items()}
    return answers if isinstance(answers, str) else [_plain(answer) for answer in answers]


class ReportReply(_Message):
    """The answer to a report."""

    answers: list[RelayedAnswer] = Field(default=[], max_length=MAX_TERMINALS * MAX_QUESTIONS)
    principal: _Name = ""
    """The receiving server's name for the sender."""
    unknown: bool = False
    """Whether the revision is unknown there, so that the terminals must be sent."""
