"""The answer to a pending input, from the arguments that every tool takes for it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from ...config import Settings
from ...errors import ClaudeCodeError, InvalidArgument
from ...model.question import Answer, Scope

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


ENABLE_BYPASS = "enable_bypass"


"""What `data["remedy"]` of an error says, where switching bypassPermissions on would help."""


_INSTRUCTIONS = {
    "sessions": "claude_create_session starts one and returns its id; claude_get_status with waitSeconds waits for its "
    "end or a question; claude_respond answers questions; claude_send_message goes on with any session.",
    "code": "claude_code runs a task and returns its result; claude_code_reply continues it; claude_code_session looks "
    "after what still runs and answers its questions.",
    "query": "claude_code_query runs a prompt and streams its messages.",
    "hub": "claude_mcp_servers shows and steers the MCP servers that all sessions share.",
}


def instructions(settings: Settings) -> str:
    """What the server says of itself: how the main family is used. The others explain themselves."""
    chosen = next((toolset for toolset in _INSTRUCTIONS if toolset in settings.toolsets), None)
    return "Runs Claude Code sessions." + (f" {_INSTRUCTIONS[chosen]}" if chosen is not None else "")


def how_to_answer(settings: Settings) -> str:
    """What to call for a session that waits for answers."""
    if "sessions" in settings.toolsets:
        return "Answer each entry of pendingInputs with claude_respond; then wait with claude_get_status."
    return (
        "Answer each entry of pendingInputs with claude_code_session, action respond; then wait with its action get "
        "and waitSeconds."
    )


def how_to_wait(settings: Settings) -> str:
    """What to call for a session whose turn goes on in the background."""
    how = "claude_get_status" if "sessions" in settings.toolsets else "claude_code_session, action get with waitSeconds"
    return f"It goes on in the background: wait for it with {how}, then continue with claude_code_reply."


def point_to_remedy(error: ClaudeCodeError, settings: Settings) -> None:
    """Adds to an error what the caller can do about it, if there is a tool for that."""
    if error.data.get("remedy") == ENABLE_BYPASS and "code" in settings.toolsets:
        error.message += " claude_code_configure with action enable_bypass asks to switch it on."
