"""A fleet as its users start it: `fleet up` on one computer, `runner` on the others.

Each `Computer` has its own home, state and project. A program runs until the end of its block and must end with exit
code 0 when it gets SIGTERM, unless the test has killed it. `processes_of` lists everything that still runs for some
computers, so that a test can assert that nothing is left.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from claude_code_mcp.testing import Sandbox

from . import warm_commands
from .leftovers import RUN
from .program import OURS, Process, Program, started
from .tool_calls import call, until_finished
from .waiting import HANG_SECONDS


class Computer(Sandbox):
    """One computer, as far as one user can have several; `toolsets` are those of its clients."""

    toolsets: str | None = None
    lease_ms = 60_000
    """The length of the leases of a fleet that is up here. A machine that hardly gets to run must not lose its lease,
    except where that is tested."""
    _program: Program | None = None

    def variables(self) -> dict[str, str]:
        more = {"CLAUDE_CODE_MCP_TOOLSETS": self.toolsets} if self.toolsets else {}
        return self.environment(
            CLAUDE_CODE_MCP_STATE_DIR=str(self.root / "state"),
            CLAUDE_CODE_MCP_RUNTIME_DIR=str(self.root / "run"),
            CLAUDE_CODE_MCP_FLEET_LEASE_MS=str(self.lease_ms),
            PYTHONUNBUFFERED="1",
            **{RUN: os.environ[RUN]},
            **more,
        )

    def tried(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return warm_commands.run(arguments, self.variables(), self.project)

    def run(self, *arguments: str) -> str:
        """Run a command that must succeed; the value is its output."""
        answer = self.tried(*arguments)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    @property
    def output(self) -> str:
        """What the latest program that was started here has printed."""
        assert self._program is not None
        return self._program.output

    @property
    def errors(self) -> str:
        assert self._program is not None
        return self._program.errors

    @property
    def ticket(self) -> str:
        """The ticket that `fleet up` has printed."""
        return self.output.split("--join ")[1].split()[0]

    @contextmanager
    def up(self, *options: str, listen: str = "127.0.0.1:0", name: str = "server") -> Iterator[Process]:
        """`fleet up`; entered when machines can join."""
        with self._started("fleet", "up", "--listen", listen, "--name", name, *options) as program:
            program.until_said("--join ")
            yield program.process

    @contextmanager
    def joined(self, name: str, *options: str, ticket: str | None = None) -> Iterator[Process]:
        """`runner`, with a ticket or with the key of an earlier one; entered when it belongs to the fleet."""
        join = () if ticket is None else ("--join", ticket)
        with self._started("runner", *join, "--name", name, *options) as program:
            program.until_said(f"{name} (")
            yield program.process

    @contextmanager
    def _started(self, *arguments: str) -> Iterator[Program]:
        codes = (0, -signal.SIGKILL)
        with started([OURS, *arguments], self.variables(), self.project, exit_codes=codes) as self._program:
            yield self._program


class MortalComputer(Computer):
    """One whose fleet notices soon that a machine is dead."""

    lease_ms = 10_000


class ManagingComputer(Computer):
    """One whose clients can delete sessions."""

    toolsets = "sessions,care"


def front_of(computer: Computer) -> StdioServerParameters:
    """A client's way to the server of this computer."""
    return StdioServerParameters(command=warm_commands.program(), args=["--shared"], env=computer.variables())


def gone_machines(server: Computer) -> set[str]:
    return {each["name"] for each in json.loads(server.run("fleet", "status", "--json")) if each["gone"]}


def processes_of(computers: Sequence[Computer]) -> list[str]:
    """The command lines of everything that runs with the home of one of these."""
    homes = {str(computer.home) for computer in computers}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") in homes and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:100])
    return found


def claude_processes(pid: int) -> list[int]:
    """The processes of sessions below a server's supervisor."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "--session-mirror" in process.cmdline():
                found.append(process.pid)
    return found


async def continued(client: Client, session_id: str, message: str, refusals: list[str] | None = None) -> dict[str, Any]:
    """The answer to the next message. While the lease of a dead machine lasts, the message is refused and sent again;
    the refusals are added to `refusals`."""
    refusals = [] if refusals is None else refusals
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        result = await client.call_tool(
            "claude_send_message", {"sessionId": session_id, "message": message, "waitSeconds": 50}
        )
        if not result.is_error:
            return await until_finished(client, dict(result.structured_content or {}))
        refusals.append(str(result.content))
        assert time.monotonic() < deadline, refusals
        await asyncio.sleep(0.5)


async def listed(client: Client, **wanted: Any) -> list[dict[str, Any]]:
    """The sessions that are listed."""
    return list((await call(client, "claude_list_sessions", **wanted))["sessions"])


async def until_listed(client: Client, *session_ids: str, gone: bool = False, **wanted: Any) -> list[dict[str, Any]]:
    """Waits until these are all the sessions, on machines that are there (or, with `gone`, that are not), and returns
    what is listed of them."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        rows = await listed(client, **wanted)
        if {(row["sessionId"], bool(row.get("machineGone"))) for row in rows} == {(each, gone) for each in session_ids}:
            return rows
        assert time.monotonic() < deadline, rows
        await asyncio.sleep(0.3)
