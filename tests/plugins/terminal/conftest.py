"""A server in this process, and the real Claude Code in a pseudo-terminal with our plugin for it."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.model.events import Output
from claude_code_mcp.core.model.question import Question
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugin import RunningServer
from claude_code_mcp.plugins.terminal import plugin
from claude_code_mcp.testing import Sandbox
from tests.support.waiting import HANG_SECONDS

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from tests.support.terminal import Terminal, Words

_ORPHAN = """
import fcntl, os, sys, termios
if os.fork():
    os._exit(0)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.write(int(sys.argv[1]), b"%d" % os.getpid())
os.close(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""A server in this process takes a child of its own for a command of a session: as with a terminal that a person has
opened, nobody here may be its ancestor."""


class Orphan:
    """A program that is no child of this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path, terminal: int) -> None:
        reading, writing = os.pipe()
        launch = [sys.executable, "-c", _ORPHAN, str(writing), *command]
        started = subprocess.Popen(
            launch,
            env=dict(environment),
            cwd=directory,
            pass_fds=(writing,),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        started.wait()
        os.close(writing)
        with open(reading, "rb") as number:
            self.pid = int(number.read())
        self._process = psutil.Process(self.pid)

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()

    def wait(self, timeout: float) -> int:
        return self._process.wait(timeout) or 0

    def poll(self) -> int | None:
        return None if self._process.is_running() else 0


class ReadTerminal(Terminal):
    """A terminal that is read all the time: a program whose output nobody takes stops."""

    def __init__(self, process: Orphan, end: int) -> None:
        super().__init__(process, end, Words())  # type: ignore[arg-type]
        self._arrived = threading.Condition()
        self._taken = self._read_bytes = 0
        self._reader = threading.Thread(target=self._read_all, daemon=True)
        self._reader.start()

    def _read_all(self) -> None:
        while super()._read(time.monotonic() + 3600):
            with self._arrived:
                self._read_bytes += 1
                self._arrived.notify_all()

    def _read(self, deadline: float) -> bool:
        with self._arrived:
            more = self._arrived.wait_for(lambda: self._read_bytes > self._taken, max(0.0, deadline - time.monotonic()))
            self._taken = self._read_bytes
            return more

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(HANG_SECONDS)
        self._reader.join(HANG_SECONDS)  # ends with the program, whose side of the terminal is closed then
        os.close(self._end)


PLUGIN = Path(plugin.__file__).parent / "claude_plugin"


def prepare_home(sandbox: Sandbox, environment: dict[str, str]) -> None:
    """Claude Code past its first dialogs."""
    answered = {"approved": [environment["ANTHROPIC_API_KEY"][-20:]], "rejected": []}
    project = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    known = {"hasCompletedOnboarding": True, "theme": "dark", "customApiKeyResponses": answered}
    (sandbox.home / ".claude.json").write_text(json.dumps({**known, "projects": {str(sandbox.project): project}}))


StartClaude = Callable[..., Terminal]


@pytest.fixture
def claude(sandbox: Sandbox, environment: dict[str, str], tmp_path: Path) -> Iterator[StartClaude]:
    """Starts `claude` in a terminal, with a prompt that has a script."""
    prepare_home(sandbox, environment)
    copy = tmp_path / "plugin"
    shutil.copytree(PLUGIN, copy)
    (copy / ".mcp.json").unlink()
    with ExitStack() as stack:

        def start(
            prompt: str, *flags: str, mode: str = "default", executable: str = "", cwd: Path | None = None
        ) -> Terminal:
            program = executable or find_executable(None, environment)
            argv: Sequence[str] = (program, prompt, "--plugin-dir", str(copy), "--permission-mode", mode, *flags)
            at_once = {"TERM": "xterm-256color", "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}
            end, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
            process = Orphan(argv, {**environment, **at_once}, cwd or sandbox.project, theirs)
            os.close(theirs)
            return stack.enter_context(ReadTerminal(process, end))

        yield start


StartServer = Callable[..., Any]


@pytest.fixture
async def start_server(start_service: Any) -> AsyncIterator[StartServer]:
    """Starts services with the plug-in; `close` ends one."""
    async with AsyncExitStack() as stack:

        async def start(**arguments: Any) -> tuple[Service, Callable[[], Any]]:
            service = await start_service(**arguments)
            inner = await stack.enter_async_context(AsyncExitStack())
            await inner.enter_async_context(plugin.TerminalPlugin().running(RunningServer(service, lambda: None)))
            return service, inner.aclose

        yield start


@pytest.fixture
async def server(start_server: StartServer) -> Service:
    service, _ = await start_server()
    assert isinstance(service, Service)
    return service


async def eventually(look: Callable[[], Any], what: str) -> Any:
    """What `look` returns as soon as that is true."""
    async with asyncio.timeout(HANG_SECONDS):
        while not (found := look()):  # noqa: ASYNC110 - most of what is looked at has no event
            await asyncio.sleep(0.05)
    assert found, what
    return found


async def question_in(service: Service) -> Question:
    """The first open question."""
    found = await eventually(service.broker.pending, "a question")
    question = found[0]
    assert isinstance(question, Question)
    return question


async def press(terminal: Terminal, key: str, reached: Callable[[], Any], what: str) -> Any:
    """What `reached` returns as soon as it is true after this key, which is pressed again now and then: a dialog that
    is still being drawn ignores keys. No other dialog may follow while `reached` can still become true."""
    for attempt in range(round(HANG_SECONDS / 5) * 100):
        if attempt % 100 == 0:
            terminal.type(key)
        if found := reached():
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what}:\n{terminal.shown[-3000:]}")


def output_of(service: Service, session_id: str) -> list[str]:
    """The lines that the events of a session have as its output."""
    return [event.line for event in service.session(session_id).events.after(0) if isinstance(event, Output)]
