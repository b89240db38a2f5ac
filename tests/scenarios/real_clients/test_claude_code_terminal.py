"""Claude Code in a terminal drives our tasks: it puts the call in the background, shows our question as a form, and
wakes the model when the task has ended."""

import json
import os
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.claude.executable import find_executable
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.support.waiting import HANG_SECONDS

from .serving import COMMAND

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

import fcntl
import pty
import termios

_STEERING = re.compile(rb"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>78c]")
RIGHT, DOWN, ENTER = b"\x1b[C", b"\x1b[B", b"\r"
LONG = HANG_SECONDS
_AGAIN = 5.0


class Terminal:
    """A program in a pseudo-terminal, and everything that it has written."""

    def __init__(self, argv: list[str], environment: dict[str, str], cwd: Path) -> None:
        self._written = b""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(cwd)
            os.execve(argv[0], argv, environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))

    @property
    def text(self) -> str:
        return " ".join(_STEERING.sub(b" ", self._written).decode("utf-8", "replace").split())

    def until(self, wanted: str, after: int = 0, key: bytes = b"") -> int:
        """Reads until a text was written behind a place in the text; returns where. A key is pressed for it, again and
        again, since a dialog that is being drawn does not take it."""
        deadline, pressed = time.monotonic() + LONG, 0.0
        while wanted not in self.text[after:]:
            assert time.monotonic() < deadline, self.text[-3000:]
            if key and time.monotonic() - pressed > _AGAIN:
                os.write(self._terminal, key)
                pressed = time.monotonic()
            if select.select([self._terminal], [], [], 0.2)[0]:
                self._written += os.read(self._terminal, 1 << 16)
        return self.text.find(wanted, after)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._terminal)


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
    started = Terminal(argv, {**environment, **at_once}, sandbox.project)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.soak  # tests/server/test_tasks.py
def test_a_call_runs_as_a_task_whose_question_is_answered_in_the_terminal(terminal: Terminal, sandbox: Sandbox) -> None:
    asked = terminal.until("requests your input")
    assert "1 MCP task" in terminal.text
    opened = terminal.until("Allow for this session", asked, RIGHT)
    chosen = terminal.until("Decision: Allow once", opened, ENTER)
    terminal.until("❯ Accept", chosen, DOWN)
    ended = terminal.until("(coder/claude_code) completed", chosen, ENTER)
    terminal.until("The model was woken.", ended)
    assert (sandbox.project / "touched").exists()
