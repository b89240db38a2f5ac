"""The arguments by which tools answer a question."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import WithJsonSchema

from ...core.errors import InvalidArgument
from ...core.model.question import Answer, Scope

AnswerTexts = Annotated[
    dict[str, str | list[str]] | list[str | list[str]],
    # The full schema would cost every caller 170 bytes of context per tool; invalid input is refused by name.
    WithJsonSchema({"oneOf": [{"type": "object"}, {"items": {}, "type": "array"}]}),
]
"""Labels or free text for a user question, by question or in order."""
ModeAfterPlan = Literal["default", "acceptEdits", "dontAsk"]


class AnswerArguments(Protocol):
    """The arguments that all tools for answering questions have in addition to the decision."""

    @property
    def reason(self) -> str | None: ...
    @property
    def scope(self) -> str | None: ...
    @property
    def answers(self) -> AnswerTexts | None: ...
    @property
    def updated_input(self) -> Mapping[str, Any] | None: ...
    @property
    def permission_mode(self) -> str | None: ...


def answer_from(decision: str, arguments: AnswerArguments) -> Answer:
    """The answer in a tool's arguments; InvalidArgument if they contradict each other."""
    allow = decision == "allow"
    if not allow and arguments.scope == "session":
        raise InvalidArgument("scope: can be session only with decision allow.", field="scope")
    if not allow and arguments.permission_mode is not None:
        raise InvalidArgument("permission_mode: only for approving a plan.", field="permission_mode")
    return Answer(
        allow=allow,
        message=arguments.reason,
        scope=Scope(arguments.scope or "once"),
        updated_input=arguments.updated_input,
        answers=arguments.answers,
        mode=arguments.permission_mode,
    )
