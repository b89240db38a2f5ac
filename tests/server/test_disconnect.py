"""A client that goes away, and signals: the server ends well, and nothing is left running."""

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.support.program import COMMAND, HttpServer, http_server
from tests.support.waiting import HANG_SECONDS, until

from .conftest import Wire, open_client
from .connection import Connection
from .test_bad_input import HELLO, frame, read_answer

MARK = "TEST_OF_LEAVING"
ENDLESS = "touch begun; until [ -e never ]; do sleep 0.1; done"


def marked(mark: str) -> list[psutil.Process]:
    """What is running with this mark in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@dataclass
class Stdio:
    """A server on pipes, spoken to by hand, so that the test decides when and how to leave."""

    process: "subprocess.Popen[bytes]"
    log: Path
    calls: int = 1

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        self.calls += 1
        assert self.process.stdin is not None
        params = json.dumps({"name": tool, "arguments": arguments}).encode()
        self.process.stdin.write(frame(self.calls, "tools/call", params) + b"\n")
        self.process.stdin.flush()
        content: dict[str, Any] = read_answer(self.process, self.calls)["result"]["structuredContent"]
        return content

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def stdio_server(environment: dict[str, str], cwd: Path) -> Iterator[Stdio]:
    log, pipe, verbose_environment = cwd / "stderr", subprocess.PIPE, {**environment, "LOG_LEVEL": "info"}
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [COMMAND], env=verbose_environment, cwd=cwd, stdin=pipe, stdout=pipe, stderr=stderr
        ) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(frame(1, "initialize", json.dumps(HELLO).encode()) + b"\n")
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.stdin.flush()
        read_answer(process, 1)
        try:
            yield Stdio(process, log)
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex  # other workers have directories of the same name


@pytest.fixture
def marked_environment(environment: dict[str, str], mark: str) -> dict[str, str]:
    return {**environment, MARK: mark}


def in_the_middle(what: str, stdio: Stdio, project: Path) -> None:
    """Brings a session to a point at which leaving could hurt."""
    if what == "nothing":
        stdio.call("claude_list_sessions")
        return
    if what == "an answer":
        stdio.call("claude_create_session", prompt=script("go", text("slow", delay=30)))
        return
    prompt = script("go", tool("Bash", command=ENDLESS), "never")
    if what == "a question":
        asked = stdio.call("claude_create_session", prompt=prompt, waitSeconds=40)
        assert asked["status"] == "waiting_for_input"
        return
    stdio.call("claude_create_session", prompt=prompt, allowedTools=["Bash"])
    until((project / "begun").exists)


MIDDLES = ["nothing", "an answer", "a question", "a command"]
ENDS = ["end of input", "SIGTERM", "SIGINT"]
USUAL = [("a command", "end of input")]
"""Two ends, the third is that of keeping; all combinations of them with what may be at work are for `make soak`."""
RARE = [(what, how) for what in MIDDLES for how in ENDS if (what, how) not in USUAL]


def leave(stdio: Stdio, how: str) -> None:
    if how == "end of input":
        stdio.leave()
    else:
        stdio.process.send_signal(getattr(signal, how))


@pytest.mark.promise("leave.stdio", "leave.signals")
@pytest.mark.parametrize(
    ("what", "how"), [*USUAL, *(pytest.param(what, how, marks=pytest.mark.soak) for what, how in RARE)]
)
def test_a_stdio_server_ends_well_and_leaves_nothing(
    what: str, how: str, marked_environment: dict[str, str], mark: str, sandbox: Sandbox
) -> None:
    with stdio_server(marked_environment, sandbox.project) as stdio:
        in_the_middle(what, stdio, sandbox.project)
        leave(stdio, how)
        assert stdio.process.wait(HANG_SECONDS) == 0
        assert marked(mark) == []


@pytest.mark.soak
@pytest.mark.promise("leave.keep")
def test_with_keep_a_stdio_server_lets_turns_finish(
    marked_environment: dict[str, str], mark: str, sandbox: Sandbox
) -> None:
    environment = {**marked_environment, "CLAUDE_CODE_MCP_ON_DISCONNECT": "keep"}
    with stdio_server(environment, sandbox.project) as stdio:
        steps = script("go", tool("Bash", command="until [ -e go ]; do sleep 0.05; done; touch finished"), "done")
        stdio.call("claude_create_session", prompt=steps, allowedTools=["Bash"])
        stdio.leave()
        until(lambda: "the client disconnected; waiting for 1 turns to end" in stdio.log.read_text())
        (sandbox.project / "go").touch()
        assert stdio.process.wait(HANG_SECONDS) == 0
        assert (sandbox.project / "finished").exists()
        assert marked(mark) == []


@pytest.mark.soak  # a signal alone, and keeping alone: this file
@pytest.mark.promise("leave.keep", "leave.signals")
def test_signal_stops_the_keeper(marked_environment: dict[str, str], mark: str, sandbox: Sandbox) -> None:
    environment = {**marked_environment, "CLAUDE_CODE_MCP_ON_DISCONNECT": "keep"}
    with stdio_server(environment, sandbox.project) as stdio:
        in_the_middle("a command", stdio, sandbox.project)
        stdio.leave()
        until(lambda: "the client disconnected; waiting for 1 turns to end" in stdio.log.read_text())
        stdio.process.send_signal(signal.SIGTERM)
        assert stdio.process.wait(HANG_SECONDS) == 0
        assert marked(mark) == []


@pytest.mark.soak
@pytest.mark.promise("leave.interrupt")
def test_with_interrupt_a_stdio_server_interrupts_first(
    marked_environment: dict[str, str], mark: str, sandbox: Sandbox
) -> None:
    environment = {**marked_environment, "CLAUDE_CODE_MCP_ON_DISCONNECT": "interrupt"}
    with stdio_server(environment, sandbox.project) as stdio:
        in_the_middle("a command", stdio, sandbox.project)
        stdio.leave()
        assert stdio.process.wait(HANG_SECONDS) == 0
    assert marked(mark) == []
    written = "".join(path.read_text() for path in (sandbox.home / ".claude" / "projects").glob("*/*.jsonl"))
    assert "interrupted by user" in written, "the transcript tells of it"


# -- over HTTP ------------------------------------------------------------------------------------------------


def connected(server: HttpServer, sandbox: Sandbox, mode: str = "legacy") -> Connection:
    return Connection(
        lambda ask: open_client(Wire("http", mode), server.url, {}, sandbox.project, ask), can_be_asked=False
    )


@pytest.mark.soak  # a server on stdio: above
@pytest.mark.promise("leave.signals")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_an_http_server_ends_well_and_leaves_nothing(
    number: signal.Signals, marked_environment: dict[str, str], mark: str, sandbox: Sandbox
) -> None:
    with http_server({**marked_environment, "CLAUDE_CODE_MCP_PROFILE": "local"}, sandbox.project) as server:
        with connected(server, sandbox) as client:
            prompt = script("go", tool("Bash", command=ENDLESS), "never")
            client.create(prompt, allowedTools=["Bash"])
            client.create(script("go", tool("Bash", command="echo 1 >x"), "never"), waitSeconds=40)
            until((sandbox.project / "begun").exists)
        server.process.send_signal(number)
        assert server.process.wait(HANG_SECONDS) == 0
        assert marked(mark) == []


STATUS_AFTER = {"keep": "running", "interrupt": "interrupted", "stop": "interrupted", "": "running"}


@pytest.mark.promise("leave.keep", "leave.interrupt", "leave.stop", "leave.others")
@pytest.mark.parametrize(
    "setting",
    # What keeping and interrupting do is tested on stdio.
    [
        *(pytest.param(setting, marks=pytest.mark.soak) for setting in ("keep", "interrupt")),
        "stop",
        pytest.param("", marks=pytest.mark.soak),
    ],
    ids=["keep", "interrupt", "stop", "default"],
)
def test_over_http_the_sessions_of_a_client_that_left_are_treated_as_wished(
    setting: str, environment: dict[str, str], sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    settings = {**environment, "CLAUDE_CODE_MCP_PROFILE": "local"}
    settings |= {"CLAUDE_CODE_MCP_ON_DISCONNECT": setting} if setting else {}
    slow = script("go", text("slow", delay=60))
    with http_server(settings, sandbox.project) as server, connected(server, sandbox) as stays:
        with connected(server, sandbox) as leaves:
            alone, shared = leaves.create(slow).session, leaves.create(slow).session
            stays.look(shared)
            other = stays.create(slow).session
            started = {alone, shared, other}
            until(lambda: started <= {request.session_id for request in model.requests})
        if setting in ("interrupt", "stop"):
            until(lambda: stays.look(alone, waitSeconds=1).status == "interrupted")
            until(lambda: _active(stays, alone) == (setting == "interrupt"))
        assert [stays.look(item).status for item in (alone, shared, other)] == [
            STATUS_AFTER[setting],
            "running",
            "running",
        ]


def _active(client: Connection, session: str) -> bool:
    return next(bool(item["isActive"]) for item in client.sessions() if item["sessionId"] == session)
