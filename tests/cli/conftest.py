"""The `mcp` command as a shell runs it: in a private home, with no keyring but a file."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox
from tests.hub.conftest import local, packages
from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS

__all__ = ["packages"]  # a fixture for the tests here too

TIMEOUT = HANG_SECONDS
Process = warm_commands.WarmProcess | subprocess.Popen[bytes]
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


def start(environment: dict[str, str], *arguments: str) -> Process:
    """The command, running; for tests that serve what it connects to in their own loop."""
    if is_posix():
        return warm_commands.helper().open(["mcp", *arguments], environment)
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*arguments), env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


async def finish(process: Process, lines: str = "") -> tuple[int, str, str]:
    """Its exit code and what it said from now on."""
    out, err = await asyncio.to_thread(process.communicate, lines.encode(), TIMEOUT)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def run_into(output: int, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """`claude-code-mcp` whose standard output is this descriptor, which is closed: its exit code and its errors."""
    ours, theirs = os.pipe()
    with open(os.devnull, "rb") as nothing:
        process = warm_commands.helper().start(arguments, environment, None, (nothing.fileno(), output, theirs))
    os.close(output)
    os.close(theirs)
    with os.fdopen(ours, encoding="utf-8") as errors:
        said = errors.read()
    return process.wait(TIMEOUT), said


def is_posix() -> bool:
    return os.name == "posix"


async def until(process: Process, wanted: str) -> str:
    """The next line that begins like this."""
    assert process.stdout is not None
    while line := (await asyncio.to_thread(process.stdout.readline)).decode():
        if line.startswith(wanted):
            return line
    raise AssertionError(f"{wanted!r} was never printed")


def configure(own_file: Path, **servers: Any) -> None:
    own_file.parent.mkdir(parents=True, exist_ok=True)
    own_file.write_text(json.dumps({"mcpServers": servers}))
