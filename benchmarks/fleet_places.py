"""Four machines of a fleet as processes with separate homes, on NATS servers of their own: to be killed and frozen.

Two of them are gateways as well. All of it is on loopback.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import claude_code_mcp
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.tickets import connect_credentials
from claude_code_mcp.testing import Sandbox
from tests.support.leftovers import RUN
from tests.support.own_nats import OwnServer, cluster
from tests.support.ports import free_port

from .fleet_network import Line, Lines

LIMIT = 180.0
"""Seconds after which something counts as never happening. It judges no speed."""
_SOURCE = str(Path(claude_code_mcp.__file__).parents[1])
"""Machines run what this program has imported, also where several checkouts share an environment."""
_MARK = "FLEET_ROUNDS"
_TOKEN = "rounds-0123456789abcdefghij"
_CALL_SECONDS = 90.0
_DISK = "256m"


class Problem(Exception):
    """What must not have happened."""


def until(reached: Callable[[], object], problem: str) -> None:
    """Waits for what another process does, and nobody tells."""
    deadline = time.monotonic() + LIMIT
    while not reached():
        if time.monotonic() > deadline:
            raise Problem(problem)
        time.sleep(0.05)


class MachinePlace(Sandbox):
    """A machine: its home, its key, and the process that runs it."""

    line: Line
    """Its line to the servers, where there is one that can be cut."""

    def __init__(
        self, root: Path, model_url: str, name: str, credentials: Path, nats: str, *, gateway: bool, capacity: int
    ) -> None:
        self.mounted = _mount(root)
        """Whether its files are on a small disk of its own, which can be filled."""
        super().__init__(root, model_url)
        self.name = name
        self.credentials = credentials
        self.port = free_port() if gateway else None
        self._flags = ["--nats", nats, "--creds", str(credentials), "--capacity", str(capacity)]
        self.process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def log(self) -> Path:
        return self.root / f"log-{self._starts}"

    def start(self) -> None:
        """Starts it, and returns before it is ready."""
        role = ["runner"] if self.port is None else ["fleet", "up", "--http", f"127.0.0.1:{self.port}"]
        variables = self.environment(
            CLAUDE_CODE_MCP_STATE_DIR=str(self.root / "state"),
            CLAUDE_CODE_MCP_RUNTIME_DIR=str(self.root / "run"),
            CLAUDE_CODE_MCP_TOKEN=_TOKEN,
            CLAUDE_CODE_MCP_TOOLSETS="sessions,care",
            LOG_LEVEL="info",
            PYTHONUNBUFFERED="1",
            PYTHONPATH=_SOURCE,
            **{_MARK: str(os.getpid()), RUN: os.environ[RUN]},
        )
        self._starts += 1
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "claude_code_mcp", *role, "--name", self.name, *self._flags],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        """Returns when it has said that it is a machine of the fleet. One that could not start is started again, as a
        service manager would: the server may be away just then."""
        ready = b"is now a machine of the fleet" if self.port is None else b"Clients with a token"
        assert self.process is not None

        def is_ready() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                self.start()
            return ready in self.log.read_bytes()

        until(is_ready, f"{self.name} does not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL for the program itself; what it has started must end by itself."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """SIGTERM, and its end is waited for."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(LIMIT)
            self.process = None

    def remove_data(self) -> None:
        """Removes everything that its product and Claude Code have stored, as a new disk would; its key and the working
        directories stay. To be called while it does not run; waits for what it has started, which would write again."""
        until(lambda: not [*self._tree()], f"processes of {self.name} go on without it")
        for directory in (self.root / "state", self.root / "run", self.home / ".claude"):
            shutil.rmtree(directory, ignore_errors=True)

    def fill_disk(self) -> None:
        """Writes until nothing more can be written."""
        with suppress(OSError), (self.root / "filling").open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free_disk(self) -> None:
        (self.root / "filling").unlink()

    def remove_disk(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.root)], check=True)

    def freeze(self, sent: signal.Signals) -> None:
        """Sends SIGSTOP or SIGCONT to every process of the machine, as a closed lid would stop them all."""
        for process in [*self._tree()]:
            with suppress(psutil.Error):
                process.send_signal(sent)

    def _tree(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get("HOME") == str(self.home):
                    yield process


class FleetPlaces:
    """The machines of one run and their servers."""

    def __init__(
        self,
        root: Path,
        model_url: str,
        servers: int,
        names: Sequence[str] = ("north", "east", "south", "west"),
        capacity: int = 10,
        *,
        cuttable: bool = False,
    ) -> None:
        """The first half of the machines are gateways too. Only `cuttable` lines can be cut: they pass through this
        process, and are slow while it is busy."""
        self.servers: list[OwnServer] = cluster(root / "nats", servers)
        self.nats = ",".join(server.url for server in self.servers)
        ports, lines = [server.port for server in self.servers], Lines() if cuttable else None
        found = [lines.line(ports) for _ in names] if lines is not None else []
        self._operator = self.servers[0].credentials("operator", 9)
        self.machines = [
            MachinePlace(
                root / name,
                model_url,
                name,
                self.servers[0].credentials(name, number),
                found[number].url if found else self.nats,
                gateway=number < len(names) / 2,
                capacity=capacity,
            )
            for number, name in enumerate(names)
        ]
        for machine, line in zip(self.machines, found, strict=False):
            machine.line = line

    @property
    def gateways(self) -> list[MachinePlace]:
        return [machine for machine in self.machines if machine.port is not None]

    def named(self, name: str) -> MachinePlace:
        return next(machine for machine in self.machines if machine.name == name)

    def start(self) -> None:
        """Starts everything, and returns when it is ready."""
        for server in self.servers:
            server.start()
        for machine in self.machines:
            machine.start()
        for machine in self.machines:
            machine.wait_until_ready()

    def stop(self) -> None:
        """Ends everything in order; raises Problem if a process is left."""
        try:
            for machine in reversed(self.machines):
                machine.stop()
        finally:
            for server in self.servers:
                server.kill(signal.SIGTERM)
        try:
            until(lambda: not processes_left(), f"processes are left: {processes_left()}")
        finally:
            for machine in self.machines:
                machine.remove_disk()

    async def connected(self) -> FleetConnection:
        """A connection that may read everything."""
        connection, _ = await connect_credentials(self.nats, self._operator)
        return connection


def _mount(directory: Path) -> bool:
    """Puts a small disk at a directory that is made; False where that is not allowed. Nothing is lost by `--lazy` when
    it is taken away: what still uses it keeps it for itself."""
    directory.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=0700", "fleet-rounds", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def processes_left() -> list[str]:
    """What this run has started and still runs, found by its mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == str(os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:150]}")
    return found


async def call(gateway: MachinePlace, name: str, **arguments: Any) -> tuple[bool, dict[str, Any]]:
    """One call of a tool through a gateway: whether it was accepted, and its structured result; of a gateway that is
    not reached `{"error": …}`."""
    try:
        async with (
            asyncio.timeout(_CALL_SECONDS),
            httpx2.AsyncClient(headers={"authorization": f"Bearer {_TOKEN}"}, timeout=_CALL_SECONDS) as http,
            Client(streamable_http_client(gateway.gateway_url, http_client=http), mode="2026-07-28") as client,
        ):
            result = await client.call_tool(name, arguments)
    except Exception as problem:  # of any of three libraries, and their groups: the caller tries elsewhere
        return False, {"error": {"code": "NOT_REACHED", "message": repr(problem)[:300]}}
    return not result.is_error, dict(result.structured_content or {})


def make_repository(directory: Path) -> None:
    """A repository with one commit. Blocks."""
    directory.mkdir()
    for line in (
        "init -q -b main",
        "config user.name Fleet",
        "config user.email fleet@example.org",
        "commit -q --allow-empty -m first",
    ):
        subprocess.run(["git", *line.split()], cwd=directory, check=True)
