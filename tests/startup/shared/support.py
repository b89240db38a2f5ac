"""A shared server of a test's own: where it is, which process it is, and that nothing of it is left at the end."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from claude_code_mcp.startup.shared import place
from claude_code_mcp.testing import Sandbox
from tests.startup.greeting.client import INITIALIZED, Client, Message, initialize, request
from tests.support import warm_commands
from tests.support.waiting import until

NO_SPARES = {"CLAUDE_CODE_MCP_SPARE_PROCESSES": "0"}
"""Without the spare process that a server keeps for its next session (see tests/core/sessions/test_spares.py)."""


class SharedPlace:
    """The environment of clients that share a server, and that server."""

    def __init__(self, sandbox: Sandbox, environment: Mapping[str, str], runtime: Path) -> None:
        self.sandbox = sandbox
        self.runtime = runtime
        self.environment = {**environment, **NO_SPARES, place.RUNTIME_DIR: str(runtime), "LOG_LEVEL": "info"}

    def client(self, *arguments: str, **variables: str) -> Client:
        """A client that has not said anything yet; it and the server that it may start need not load."""
        environment = {**self.environment, **variables, warm_commands.WARM_SERVERS: "1"}
        return Client(environment, "--shared", *arguments, warm=True)

    def real_client(self, *arguments: str, **variables: str) -> Client:
        """The same for a test of the start: the program itself, which starts the server as it does for everybody."""
        return Client({**self.environment, **variables}, "--shared", *arguments)

    def command(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **variables, warm_commands.WARM_SERVERS: "1"}
        return warm_commands.run(arguments, environment, self.sandbox.project)

    def status(self, **variables: str) -> list[dict[str, Any]]:
        statuses: list[dict[str, Any]] = json.loads(self.command("shared", "status", "--json", **variables).stdout)
        return statuses

    def locked_pids(self) -> set[int]:
        """The processes that are a shared server here, starting and ending ones included."""
        return {pid for pid in map(_pid_in, self.runtime.glob("*.lock")) if pid and psutil.pid_exists(pid)}

    def kill_server(self) -> int:
        """SIGKILL for the one server; returns when the process is gone."""
        until(lambda: len(self.locked_pids()) == 1)
        (pid,) = self.locked_pids()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not _runs(pid))
        return pid

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.runtime.glob("*.log")))


def _pid_in(lock: Path) -> int:
    text = lock.read_text().strip()
    return int(text) if text.isdigit() else 0


def _runs(pid: int) -> bool:
    """Whether something of a process is left: its files stay open until the last of its threads is gone, although it
    counts as a zombie before."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


@contextmanager
def shared_place(sandbox: Sandbox, environment: Mapping[str, str]) -> Iterator[SharedPlace]:
    """Ends every server of the place afterward; nothing may be left that runs for its home."""
    runtime = sandbox.root / "run"
    runtime.mkdir(mode=0o700)
    shared = SharedPlace(sandbox, environment, runtime)
    try:
        yield shared
    finally:
        shared.command("shared", "stop", "--all")
        until(lambda: not any(_runs(pid) for pid in shared.locked_pids()))
    until(lambda: not running_in(sandbox))


def running_in(sandbox: Sandbox) -> list[str]:
    """Every program, but for this one and what exits, whose home is the sandbox's."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("HOME") == str(sandbox.home):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def opened(client: Client) -> Client:
    """The client after its handshake."""
    assert "result" in client.ask(initialize())
    client.send(INITIALIZED)
    return client


def call(client: Client, number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of a tool's result."""
    answer = client.ask(request("tools/call", number, name=tool, arguments=arguments))
    structured: dict[str, Any] = answer["result"]["structuredContent"]
    return structured


def next_answer(client: Client, number: int) -> Message:
    """The answer to a request; what else is said before is skipped."""
    while True:
        message = client.read()
        if message.get("id") == number and "method" not in message:
            return message
