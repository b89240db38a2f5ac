"""The answer to a pending input, from the arguments that every tool takes for it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from ..errors import InvalidArgument
from ..model.question import Answer, Scope

GivenAnswers = Annotated[
    dict[str, str | list[str]] | list[str | list[str]],
    # The whole shape would cost every caller 170 bytes of context per tool; what does not fit it is refused by name.
    WithJsonSchema({"oneOf": [{"type": "object"}, {"items": {}, "type": "array"}]}),
]
ModeAfterPlan = Literal["default", "acceptEdits", "dontAsk"]


def answer_in(
    decision: str,
    reason: str | None,
    scope: str | None,
    answers: GivenAnswers | None,
    updated_input: Mapping[str, Any] | None,
    permission_mode: str | None,
) -> Answer:
    """The answer; InvalidArgument where its parts contradict each other."""
    allow = decision == "allow"
    if not allow and scope == "session":
        raise InvalidArgument("scope: only an allowance can be for the session.", field="scope")
    if not allow and permission_mode is not None:
        raise InvalidArgument("permission_mode: only the approval of a plan has one.", field="permission_mode")
    return Answer(
        allow=allow,
        message=reason,
        scope=Scope(scope or "once"),
        updated_input=updated_input,
        answers=answers,
        mode=permission_mode,
    )
