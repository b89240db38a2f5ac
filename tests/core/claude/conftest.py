"""One process at a time: a listener that records what it says, and ways to start the real and the misbehaving CLI."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from claude_code_mcp.core.claude.command_line import CommandLine, ConversationStart, build_command, write_files
from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.claude.process import ClaudeProcess
from claude_code_mcp.core.claude.protocol import ControlRequest, Frame, Result
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.processes.child import Exit
from claude_code_mcp.core.processes.environment import build_environment
from claude_code_mcp.core.processes.leftovers import new_mark, scratch_path
from claude_code_mcp.testing import Sandbox
from tests.support.misbehaving_cli import install_misbehaving_cli
from tests.support.waiting import HANG_SECONDS, until_true

# A busy machine must not fail a property.

PATIENCE = HANG_SECONDS
ENDLESS = "until [ -e never ]; do sleep 0.1; done"
"""A command that runs until it is ended; the CLI refuses to run a long `sleep` as it is."""
F = TypeVar("F")


class Listener:
    """An owner that keeps every frame and lets a test wait for one."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.exit: Exit | None = None
        self._news = asyncio.Event()

    def frame_received(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._tell()

    def process_ended(self, exit_: Exit) -> None:
        self.exit = exit_
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def of(self, kind: type[F]) -> list[F]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def first(self, kind: type[F], number: int = 1) -> F:
        """Waits for the first (or a later) frame of a kind."""
        async with asyncio.timeout(PATIENCE):
            while len(self.of(kind)) < number:
                await self._news.wait()
        return self.of(kind)[number - 1]

    async def ended(self) -> Exit:
        async with asyncio.timeout(PATIENCE):
            while self.exit is None:
                await self._news.wait()
        return self.exit

    async def result(self, number: int = 1) -> dict[str, Any]:
        return (await self.first(Result, number)).raw

    async def question(self) -> ControlRequest:
        return await self.first(ControlRequest)


class Started:
    """A process with its listener and its mark."""

    def __init__(self, process: ClaudeProcess, listener: Listener, mark: str) -> None:
        self.process = process
        self.listener = listener
        self.mark = mark

    async def initialize(self) -> None:
        await self.process.request("initialize", timeout=PATIENCE)


Start = Callable[..., Awaitable[Started]]


@pytest.fixture
async def start(sandbox: Sandbox, environment: dict[str, str], tmp_path: Path) -> AsyncIterator[Start]:
    """Starts the misbehaving CLI with the given ways; every process is stopped at the end."""
    cli = install_misbehaving_cli(tmp_path / "bin")
    running: list[ClaudeProcess] = []

    async def start(listener: Listener | None = None, *, initialized: bool = True, **ways: Any) -> Started:
        mark, listener = new_mark(), listener or Listener()
        env = build_environment(environment, {"MISBEHAVE": json.dumps(ways)}, mark)
        process = await ClaudeProcess.start(listener, [str(cli)], cwd=str(sandbox.project), environment=env, mark=mark)
        running.append(process)
        started = Started(process, listener, mark)
        if initialized:
            await started.initialize()
        return started

    yield start
    await asyncio.gather(*(process.stop(1.0) for process in running))


def prepared(options: SessionOptions, session_id: str, mark: str) -> tuple[CommandLine, Path | None]:
    """The command of a new session with its files written, and the directory that holds them, if it needs one."""
    directory = scratch_path(mark)
    command = build_command(options, ConversationStart(session_id), directory)
    return command, write_files(command, directory)


@pytest.fixture
async def start_real(sandbox: Sandbox, environment: dict[str, str]) -> AsyncIterator[Start]:
    """Starts the real CLI with the given options; every process is stopped at the end."""
    running: list[ClaudeProcess] = []

    async def start(session_id: str, **options: Any) -> Started:
        mark, listener = new_mark(), Listener()
        command, scratch = prepared(SessionOptions(**options), session_id, mark)
        process = await ClaudeProcess.start(
            listener,
            [find_executable(), *command.arguments],
            cwd=str(sandbox.project),
            environment=build_environment(environment, command.variables, mark),
            mark=mark,
            scratch=scratch,
        )
        running.append(process)
        started = Started(process, listener, mark)
        await started.initialize()
        return started

    yield start
    await asyncio.gather(*(process.stop(3.0) for process in running))


def mark_of_a_dead_server() -> str:
    """A mark whose owner has ended."""
    code = "from claude_code_mcp.core.processes.leftovers import new_mark; print(new_mark())"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


async def gone(*pids: int) -> None:
    """Waits until none of these processes runs any more; their corpses do not count."""
    await until_true(lambda: not any(map(runs, pids)), f"one of {pids} goes on")


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def number_in(path: Path) -> int:
    """Waits for a file with a number in it, written by a process of the test."""
    await until_true(lambda: _number(path) is not None, f"there is no number in {path}")
    number = _number(path)
    assert number is not None
    return number


def _number(path: Path) -> int | None:
    words = path.read_text().split() if path.exists() else []
    return int(words[0]) if words else None
