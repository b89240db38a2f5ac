"""Texts that name the tool to call next.

They depend on the chosen toolsets: a text must not name a tool that is not offered.
"""

from ...core.config import Settings
from ...core.errors import ENABLE_BYPASS, ClaudeCodeError

_INSTRUCTIONS = {
    "sessions": "claude_create_session starts one and returns its id; claude_get_status with waitSeconds waits for "
    "its end or a question; claude_respond answers questions; claude_send_message continues any "
    "session.",
    "code": "claude_code runs a task and returns its result; claude_code_reply continues it; claude_code_session "
    "checks running sessions and answers their questions.",
    "query": "claude_code_query runs a prompt and streams its messages.",
    "hub": "claude_mcp_servers shows and controls the MCP servers that all sessions share.",
    "hub-search": "claude_mcp_search finds tools of the MCP servers that sessions share; claude_mcp_call calls one.",
}


def instructions(settings: Settings) -> str:
    """The server's instructions in the handshake: how to use its main toolset. The others are self-explanatory."""
    main = next((toolset for toolset in _INSTRUCTIONS if toolset in settings.toolsets), None)
    return "Runs Claude Code sessions." + (f" {_INSTRUCTIONS[main]}" if main is not None else "")


def how_to_answer(settings: Settings) -> str:
    """What to call for a session that waits for answers."""
    if "sessions" in settings.toolsets:
        return "Answer each entry of pendingInputs with claude_respond; then wait with claude_get_status."
    return (
        "Answer each entry of pendingInputs with claude_code_session, action respond; then wait with its action get "
        "and waitSeconds."
    )


def how_to_wait(settings: Settings) -> str:
    """What to call for a session whose turn continues in the background."""
    how = "claude_get_status" if "sessions" in settings.toolsets else "claude_code_session, action get with waitSeconds"
    return f"It continues in the background: wait for it with {how}, then continue with claude_code_reply."


def point_to_remedy(error: ClaudeCodeError, settings: Settings) -> None:
    """Add the remedy to an error's message, if a tool for it is offered."""
    if error.data.get("remedy") == ENABLE_BYPASS and "code" in settings.toolsets:
        error.message += " claude_code_configure with action enable_bypass asks to switch it on."
