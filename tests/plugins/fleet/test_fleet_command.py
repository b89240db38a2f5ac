"""The commands, as a person or a service manager gives them: real processes, each machine with a home of its own."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import read_lease_seconds
from claude_code_mcp.plugins.fleet.host import connect_to_host
from tests.support import warm_commands
from tests.support.program import OURS, Program, started
from tests.support.waiting import HANG_SECONDS, until

pytestmark = pytest.mark.programs


def environment(home: Path) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    inherited = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    return {
        **inherited,
        "HOME": str(home),
        "CLAUDE_CODE_MCP_STATE_DIR": str(home / "state"),
        "CLAUDE_CODE_MCP_FLEET_LEASE_MS": "60000",
        "PYTHONUNBUFFERED": "1",
    }


def run(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command to its end."""
    return warm_commands.run(arguments, environment(home))


def running(home: Path, *arguments: str, real: bool = False, **more: str) -> AbstractContextManager[Program]:
    """A command that runs until the end of the block; exit code 4 means that the machine was removed."""
    return started([OURS, *arguments], {**environment(home), **more}, real=real, exit_codes=(0, 4))


def status(home: Path) -> dict[str, dict[str, object]]:
    answer = run(home, "fleet", "status", "--json")
    assert answer.returncode == 0, answer.stderr
    return {machine["name"]: machine for machine in json.loads(answer.stdout)}


async def length_of_leases(home: Path) -> float:
    """Of the fleet that is up there."""
    connection = await connect_to_host(home / "state" / "fleet")
    try:
        return await read_lease_seconds(await connection.jetstream.key_value(names.MACHINES))
    finally:
        await connection.close()


def test_a_fleet_from_its_first_command_to_the_removal_of_a_machine(tmp_path: Path) -> None:
    server, laptop, copy = tmp_path / "server", tmp_path / "laptop", tmp_path / "copy"
    up_as = ("fleet", "up", "--listen", "127.0.0.1:0", "--name", "server", "--label", "big")
    with running(server, *up_as, real=True) as up:
        up.until_said("--join ")
        ticket = up.output.split("--join ")[1].split()[0]
        assert ticket not in up.errors
        joining = ("runner", "--join", ticket, "--name", "laptop", "--capacity", "6")
        with displaced(laptop, copy, *joining) as runner:
            seen = status(server)
            assert set(seen) == {"server", "laptop"}
            assert seen["server"]["labels"] == ["big"]
            assert (seen["laptop"]["capacity"], seen["laptop"]["draining"]) == (6, False)
            assert "laptop" in run(server, "fleet", "status").stdout
            assert run(server, "fleet", "drain", "laptop").returncode == 0
            assert status(server)["laptop"]["draining"] is True
            assert run(server, "fleet", "drain", "laptop", "--undo").returncode == 0
            assert run(server, "fleet", "drain", "nobody").returncode == 3

            assert run(server, "fleet", "remove", "laptop").returncode == 2, "nobody was asked"
            assert run(server, "fleet", "remove", "laptop", "--yes").returncode == 0
            assert runner.process.wait(HANG_SECONDS) == 4
            assert "it was removed" in runner.errors
            assert "Traceback" not in runner.errors
        assert set(status(server)) == {"server"}
        assert run(laptop, "runner").returncode == 5, "its key was revoked"
    assert "Traceback" not in up.errors
    assert run(server, "fleet", "status").returncode == 5, "it is not up"


@contextmanager
def displaced(home: Path, copy: Path, *joining: str) -> Iterator[Program]:
    """A runner with a copy of another runner's key, which ends and says so in one sentence."""
    with running(home, *joining, real=True) as first:
        first.until_said("laptop (")
        key = Path("state") / "fleet" / "machine.json"
        (copy / key).parent.mkdir(parents=True, mode=0o700)
        shutil.copy2(home / key, copy / key)
        with running(copy, "runner", "--name", "laptop", "--capacity", "6") as second:
            second.until_said("laptop (")
            assert first.process.wait(HANG_SECONDS) == 4
            for noise in ("Task was destroyed", "Traceback"):
                assert noise not in first.errors
            assert "Another process has written the entry of machine" in first.errors
            yield second


@pytest.mark.soak
def test_a_machine_comes_back_with_its_key_and_one_that_died_is_shown_as_gone(tmp_path: Path) -> None:
    server, laptop = tmp_path / "server", tmp_path / "laptop"
    with running(server, "fleet", "up", "--listen", "127.0.0.1:0", "--name", "server") as up:
        up.until_said("--join ")
        ticket = run(server, "fleet", "ticket").stdout.strip()
        with running(laptop, "runner", "--join", ticket, "--name", "laptop") as runner:
            runner.until_said("laptop (")
        until(lambda: status(server)["laptop"]["gone"])
        with running(laptop, "runner", "--name", "laptop") as runner:
            runner.until_said("laptop (")
            assert status(server)["laptop"]["gone"] is False
            second = run(laptop, "runner")
            assert (second.returncode, "already running" in second.stderr) == (2, True)
            assert runner.process.poll() is None


def test_clients_reach_a_fleet_over_http_with_a_token_and_it_ends_when_it_is_stopped(tmp_path: Path) -> None:
    home, token = tmp_path / "server", "a-token-0123456789abcdefghij"
    up = ("fleet", "up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with running(home, *up, CLAUDE_CODE_MCP_TOKEN=token) as process:
        process.until_said("--join ")
        url = re.findall(r"http://\S+/mcp\b", process.output)[-1]
        request: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "claude_list_sessions"},
        }
        request["params"]["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "claude_list_sessions",
        }
        assert httpx2.post(url, json=request, headers=headers, timeout=HANG_SECONDS).status_code == 401
        answer = httpx2.post(
            url, json=request, headers={**headers, "authorization": f"Bearer {token}"}, timeout=HANG_SECONDS
        )
        assert (answer.status_code, '"sessions":[]' in answer.text.replace(" ", "")) == (200, True), answer.text
        metrics = httpx2.get(
            url.removesuffix("/mcp") + "/metrics",
            headers={"authorization": f"Bearer {token}"},
            timeout=HANG_SECONDS,
        )
        assert 'claude_code_mcp_fleet_machine_up{id="' in metrics.text, metrics.text
        trail = home / "state" / "audit.jsonl"
        until(lambda: trail.exists() and "\n" in trail.read_text())  # written by a thread of its own
        assert asyncio.run(length_of_leases(home)) == 60
        begun = json.loads(trail.read_text().splitlines()[0])
        assert (begun["act"], begun["machine"]) == ("server_started", socket.gethostname())
        assert f"{url.removesuffix('/mcp')}/#ticket=" in run(home, "web").stdout  # of this very server
        second = run(home, "fleet", "up", "--listen", "127.0.0.1:0")
        assert (second.returncode, "already running" in second.stderr) == (2, True), second.stderr
        assert run(home, "shared", "stop").returncode == 0
        assert process.process.wait(HANG_SECONDS) == 0, process.errors


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("runner",), 2, "not joined a fleet"),
        (("runner", "--join", "hello"), 2, "not a valid ticket"),
        (("runner", "--nats", "tls://192.0.2.1"), 2, "must be used together"),
        (("fleet", "status"), 5, "There is no fleet on this machine"),
        (("fleet", "ticket"), 5, "There is no fleet on this machine"),
        (("fleet", "up", "--listen", "here"), 2, "HOST:PORT"),
        (("fleet", "status", "--nats", "nats://192.0.2.1", "--creds", "CREDS"), 2, "not this machine"),
        (("fleet", "status", "--nats", "tls://192.0.2.1", "--creds", "/nothing"), 2, "No such file"),
    ],
)
def test_unusable_combinations_are_refused_with_the_reason(
    arguments: tuple[str, ...], code: int, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "user.creds"
    file.write_text("-----BEGIN NATS USER JWT-----\ne30.eyJzdWIiOiJVQSJ9.x\n------END NATS USER JWT------\n")
    file.chmod(0o600)
    answer = run(tmp_path / "home", *(str(file) if argument == "CREDS" else argument for argument in arguments))
    assert answer.returncode == code, answer.stderr
    assert reason in answer.stderr
    assert "Traceback" not in answer.stderr


def test_without_a_fleet_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from claude_code_mcp import serving; from claude_code_mcp.cli.parser import build_parser; "
        "build_parser(); print(*(name for name in sys.modules if name.split('.')[0] in ('nats', 'nkeys') "
        "or name.startswith('claude_code_mcp.plugins.fleet.')))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The parser knows the commands of the fleet, which import the rest when one of them runs.
    known = {f"claude_code_mcp.plugins.fleet.{name}" for name in ("plugin", "settings", "commands", "session_commands")}
    assert set(answer.stdout.split()) == known
