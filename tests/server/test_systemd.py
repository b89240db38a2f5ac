"""A server that systemd starts for a socket: it takes it over, says when it is ready, and its units are sound."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.server.transports.systemd import Notifier, inherited_listener
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support.ports import free_port
from tests.support.program import COMMAND

from .connection import LONG

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The end at which the service manager listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(LONG)
        yield listening


def test_a_server_is_started_for_a_socket_and_reports_when_it_is_ready(
    tmp_path: Path, model: ScriptedModelThread, manager: socket.socket
) -> None:
    starter = shutil.which("systemd-socket-activate")
    if starter is None:
        pytest.skip("there is no systemd here")
    place, port = Sandbox(tmp_path / "place", model.url), free_port()
    variables = {
        **place.environment(),
        RUN: os.environ[RUN],
        "CLAUDE_CODE_MCP_STATE_DIR": str(tmp_path / "state"),
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
    }
    given = [option for name, value in variables.items() for option in ("-E", f"{name}={value}")]
    command = [starter, "-l", f"127.0.0.1:{port}", *given, COMMAND, "serve", "--http", "systemd"]
    with subprocess.Popen(command, cwd=place.project, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "Listening on" in process.stderr.readline()
        try:
            # Nothing serves yet: this very request starts the server, and waits for it at the socket.
            answer = httpx2.get(f"http://127.0.0.1:{port}/health", timeout=LONG)
            assert answer.json()["status"] == "ok"
            assert manager.recv(1000).decode().splitlines() == [
                "READY=1",
                f"STATUS=serves MCP on http://127.0.0.1:{port}/mcp",
            ]
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
        assert process.wait(LONG) == 0
    assert manager.recv(1000) == b"STOPPING=1"


@pytest.mark.parametrize(
    "given",
    [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}],
    ids=["none", "for another process", "several"],
)
def test_without_a_socket_of_its_own_it_is_not_started(given: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="socket"):
        inherited_listener(given)
    assert not given, "no session may take itself for the service"


def test_no_notification_without_a_service_manager(tmp_path: Path, manager: socket.socket) -> None:
    Notifier({}).send("READY=1")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    Notifier(environment).send("READY=1", "STATUS=x")
    assert manager.recv(100) == b"READY=1\nSTATUS=x"
    assert not environment


def test_the_units_are_sound(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd here")
    for unit in UNITS.iterdir():
        # The program is looked for, and is not installed here under that name.
        text = unit.read_text().replace("/opt/claude-code-mcp/bin/claude-code-mcp", COMMAND)
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        [analyze, "verify", *map(str, tmp_path.iterdir())], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
