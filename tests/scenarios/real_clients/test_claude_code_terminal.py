"""Claude Code in a terminal drives our tasks: it puts the call in the background, shows our question as a form, and
wakes the model when the task has ended."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.support.program import COMMAND

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from tests.support.terminal import Terminal, Words

RIGHT, DOWN, ENTER = "\x1b[C", "\x1b[B", "\r"


@pytest.fixture
def terminal(sandbox: Sandbox, environment: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    """Claude Code past its first-run dialogs, with our server, on a script that delegates to it."""
    answered = {"approved": [environment["ANTHROPIC_API_KEY"][-20:]], "rejected": []}
    project = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    known = {"hasCompletedOnboarding": True, "theme": "dark", "customApiKeyResponses": answered}
    (sandbox.home / ".claude.json").write_text(json.dumps({**known, "projects": {str(sandbox.project): project}}))
    servers = tmp_path / "servers.json"
    served = {"command": COMMAND, "args": ["serve", "--toolsets", "code"]}
    servers.write_text(json.dumps({"mcpServers": {"coder": served}}))
    inner = script("Touch", tool("Bash", command="touch touched"), text("Touched inside."))
    delegated = tool("mcp__coder__claude_code", prompt=inner, permissionMode="default")
    outer = script("Delegate", delegated, text("It runs."), text("The model was woken."), text("Again."))
    flags = ["--permission-mode", "default", "--strict-mcp-config", "--mcp-config", str(servers)]
    argv = [find_executable(None, environment), outer, *flags, "--allowedTools", "mcp__coder__claude_code"]
    at_once = {"TERM": "xterm-256color", "MCP_CONNECTION_NONBLOCKING": "false", "ENABLE_TOOL_SEARCH": "false"}
    with Terminal.of(argv, {**environment, **at_once}, sandbox.project, view=Words(), size=(50, 160)) as started:
        yield started


@pytest.mark.soak  # tests/server/test_tasks.py
def test_a_call_runs_as_a_task_whose_question_is_answered_in_the_terminal(terminal: Terminal, sandbox: Sandbox) -> None:
    terminal.until("requests your input")
    assert "1 MCP task" in terminal.shown
    terminal.until("Allow for this session", press=RIGHT)
    terminal.until("Decision: Allow once", press=ENTER)
    terminal.until("❯ Accept", press=DOWN)
    terminal.until("(coder/claude_code) completed", press=ENTER)
    terminal.until("The model was woken.")
    assert (sandbox.project / "touched").exists()
