"""Test an orchestration of Claude Code with no account and no network.

`ScriptedModel` stands in for the Messages API: the real Claude Code CLI runs against it, and the prompt
itself contains the model's answers (see `claude_code_mcp.testing.script`). `Sandbox` gives that CLI a
separate home.

Standard library only; nothing here imports the rest of the package.
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
