"""Test an orchestration of Claude Code with no account and no network.

`ScriptedModel` stands in for the Messages API: the real Claude Code CLI runs against it, and the prompt
itself says what the model answers (see `claude_code_mcp.testing.script`). `Sandbox` gives that CLI a home
of its own.

Standard library only; nothing here knows the rest of the package.
"""

from claude_code_mcp.testing.scripted_model import (
    RequestRecord,
    Sandbox,
    ScriptedModel,
    ScriptedModelThread,
    ToolResult,
)

__all__ = [
    "RequestRecord",
    "Sandbox",
    "ScriptedModel",
    "ScriptedModelThread",
    "ToolResult",
]
