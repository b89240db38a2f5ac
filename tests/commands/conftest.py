"""The `mcp` command as a shell runs it: in a private home, with no keyring but a file."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox

from .. import warm_commands
from ..hub.conftest import local, packages

__all__ = ["packages"]  # a fixture for the tests here too

TIMEOUT = 80.0
Mcp = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}


@pytest.fixture
def own_file(sandbox: Sandbox) -> Path:
    """Where the product keeps its servers on this platform's usual layout."""
    return sandbox.home / ".xdg" / "config" / "claude-code-mcp" / "mcp.json"


@pytest.fixture
def mcp(shell: dict[str, str], sandbox: Sandbox) -> Mcp:
    """Runs `claude-code-mcp mcp …` to its end; `lines` is what it is given on standard input."""

    def run(*arguments: str, lines: str = "", **extra: str) -> "subprocess.CompletedProcess[str]":
        return warm_commands.run(["mcp", *arguments], {**shell, **extra}, sandbox.project, lines)

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "claude_code_mcp", "mcp", *arguments]


def program(*faults: str) -> list[str]:
    """The command of the small server."""
    entry = local(*faults)
    return [entry["command"], *entry["args"]]


async def start(environment: dict[str, str], *arguments: str, **pipes: Any) -> asyncio.subprocess.Process:
    """The command, running; for tests that serve what it connects to in their own loop."""
    usual = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(*command(*arguments), env=environment, **{**usual, **pipes})


async def finish(process: asyncio.subprocess.Process, lines: str = "") -> tuple[int, str, str]:
    """Its exit code and what it said from now on."""
    async with asyncio.timeout(TIMEOUT):
        out, err = await process.communicate(lines.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def is_posix() -> bool:
    return os.name == "posix"


async def until(process: asyncio.subprocess.Process, wanted: str) -> str:
    """The next line that begins like this."""
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        while line := (await process.stdout.readline()).decode():
            if line.startswith(wanted):
                return line
    raise AssertionError(f"{wanted!r} was never printed")
