"""A server that ends, politely or not, and the next one: what was promised of a session still holds."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import RUN
from tests.core.sessions.support import ENDLESS
from tests.support import warm_commands
from tests.support.program import COMMAND
from tests.support.waiting import until
from tests.support.warm_python import PID_FILE

from .connection import Connection

BASH = script("try", tool("Bash", command="touch let-in"), "tried")


@dataclass
class Servers:
    """Starts one server after the other, on the same disk."""

    place: Sandbox
    model: ScriptedModelThread

    @property
    def state(self) -> Path:
        return self.place.root / "state"

    @contextmanager
    def running(self, *, killed: bool = False, umask: int | None = None) -> Iterator[Connection]:
        """A server with a client, until the client leaves or the server is killed; with a umask, started anew."""
        pid_file = self.place.root / "pid"
        environment = self.place.environment(
            **{
                RUN: os.environ[RUN],
                "CLAUDE_CODE_MCP_STATE_DIR": str(self.place.root / "state"),
                "CLAUDE_CODE_MCP_ALLOW_DISK_RESUME": "1",
                PID_FILE: str(pid_file),
            }
        )
        program, arguments = warm_commands.program(), list[str]()
        if umask is not None:
            program, arguments = shutil.which("sh") or "sh", ["-c", f'umask {umask:o}; exec "{COMMAND}"']

        def open_client(_: Any) -> Client:
            server = StdioServerParameters(
                command=program, args=arguments, env=environment, cwd=str(self.place.project)
            )
            return Client(stdio_client(server), mode="legacy")

        with Connection(open_client, can_be_asked=False) as connection:
            yield connection
            if killed:
                os.kill(int(pid_file.read_text()), signal.SIGKILL)

    def transcript(self, session_id: str) -> str:
        try:
            return "".join(path.read_text() for path in self.place.home.rglob(f"{session_id}.jsonl"))
        except FileNotFoundError:  # Claude Code removes directories of its own meanwhile
            return ""

    def offered(self, session_id: str) -> set[str]:
        """The tools that the model was last offered in a session."""
        last = [request for request in self.model.requests if request.session_id == session_id and request.body][-1]
        assert last.body is not None
        return {tool["name"] for tool in last.body["tools"]}


@pytest.fixture
def servers(tmp_path: Path, model: ScriptedModelThread) -> Servers:
    return Servers(Sandbox(tmp_path, model.url), model)


# In one process with its services, a clean restart is tested with the engine.
CLEAN_OR_KILLED = pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.soak), True], ids=["clean", "killed"]
)


@pytest.mark.soak  # tests/core/sessions/test_records.py
@CLEAN_OR_KILLED
def test_session_keeps_its_limits_and_reported_data(servers: Servers, killed: bool) -> None:
    with servers.running(killed=killed) as client:
        made = client.call(
            "claude_code",
            prompt=script("one", "heron words"),
            tools=["Read"],
            disallowedTools=["WebFetch"],
            permissionMode="plan",
            systemPrompt="Speak like a heron.",
            maxBudgetUsd=5,
            model="claude-haiku-4-5",
        )
        before = client.look(made.session).data
        total = made.data["sessionTotalCostUsd"]
    with servers.running() as client:
        after = client.look(made.session).data
        cursor = after.pop("nextCursor")
        of_the_process = ("nextCursor", "memoryBytes")
        assert after == {key: value for key, value in before.items() if key not in of_the_process}
        assert (after["status"], after["result"]) == ("completed", "heron words")
        late = client.look(made.session, cursor=before["nextCursor"]).data
        assert (late["recentOutput"], "restarts" in late["notice"]) == (["heron words"], True)
        ended = client.send(made.session, BASH, waitSeconds=40)
        assert ended.status == "completed"
        assert servers.offered(made.session) <= {"Read", "ExitPlanMode", "AskUserQuestion"}
        assert "Speak like a heron." in str(servers.model.requests[-1].body)
        assert servers.model.requests[-1].model == "claude-haiku-4-5"
        assert not (servers.place.project / "let-in").exists()
        news = client.look(made.session, cursor=cursor).data
        assert (news["recentOutput"][-1], "notice" in news) == ("tried", False)
        assert ended.data["costUsd"] > total
        reply = client.call("claude_code_reply", sessionId=made.session, prompt=script("three", "third")).data
        assert reply["sessionTotalTurns"] == 4
        [info] = client.call("claude_code_session", action="get", sessionId=made.session).data["sessions"]
        assert (info["permissionMode"], info["model"], info["totalTurns"]) == ("plan", "claude-haiku-4-5", 4)


@CLEAN_OR_KILLED
def test_truncated_turn_is_not_completed_and_limits_apply_from_the_start(servers: Servers, killed: bool) -> None:
    with servers.running(killed=killed) as client:
        first = client.create("hello", waitSeconds=40)
        work = script("work", tool("Bash", command=ENDLESS))
        session = client.create(work, allowedTools=["Bash"]).session
        # Claude Code writes a transcript a moment after it has told what is in it.
        until(lambda: '"type":"tool_use"' in servers.transcript(session))
        limited = client.create(BASH, disallowedTools=["Bash"], permissionMode="acceptEdits").session
    with servers.running() as client:
        left = {session["sessionId"]: session.get("lastStatus") for session in client.sessions()}
        left.pop(limited, None)  # it is listed once it has a transcript
        assert left == {first.session: "completed", session: "interrupted"}
        look = client.look(session)
        assert look.status == "interrupted"
        assert "result" not in look.data
        assert ("was cut off" if killed else "server stopped") in look.data["error"]["message"]
        assert client.send(session, script("again", "recovered"), waitSeconds=40).data["result"] == "recovered"
        assert client.look(limited).status == "interrupted"
        assert client.send(limited, BASH, waitSeconds=40).data["result"] == "tried"
    assert "Bash" not in servers.offered(limited)
    assert not (servers.place.project / "let-in").exists()


@pytest.mark.soak
@CLEAN_OR_KILLED
def test_spent_and_cancelled_sessions_stay_so(servers: Servers, killed: bool) -> None:
    dear = script("spend", text("x", usage={"input_tokens": 10**6, "output_tokens": 10**5}))
    with servers.running(killed=killed) as client:
        spent = client.create(dear, maxBudgetUsd=0.5, waitSeconds=40).session
        cancelled = client.create("hello", waitSeconds=40).session
        client.call("claude_code_session", action="cancel", sessionId=cancelled)
    with servers.running() as client:
        assert client.send(spent, "more").code == "LIMIT_REACHED"
        assert client.call("claude_code_reply", sessionId=spent, prompt="more", maxTurns=3).code == "LIMIT_REACHED"
        assert client.send(cancelled, "more").code == "CANCELLED"
        assert client.look(cancelled).status == "cancelled"


@pytest.mark.soak  # tests/scenarios/security/test_private_files.py, tests/core/sessions/test_records.py
def test_records_are_private_whatever_the_umask_and_a_damaged_one_opens_nothing(servers: Servers) -> None:
    with servers.running(umask=0) as client:
        made = client.call("claude_code", prompt="hello", tools=["Read"], env={"SOME_NAME": "some value"})
    found = [servers.state, *servers.state.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o600}
    damage = "UPDATE sessions SET body = substr(body, 1, 100)"
    database_in(servers.state).write(lambda db: db.execute(damage))
    with servers.running() as client:
        refused = client.send(made.session, BASH)
        assert (refused.code, "cannot be read" in refused.refusal) == ("PERMISSION_DENIED", True)
        assert client.look(made.session).code == "PERMISSION_DENIED"
        assert client.call("claude_code_reply", sessionId=made.session, prompt=BASH).code == "PERMISSION_DENIED"


@pytest.mark.soak
def test_an_allowance_for_the_session_outlives_a_killed_server(servers: Servers) -> None:
    prompt = script("ask", tool("Bash", command="touch asked 'a (b), c'"), "done")
    with servers.running(killed=True) as client:
        asked = client.create(prompt, waitSeconds=40)
        assert asked.question["canAllowForSession"]
        assert client.respond(asked, "allow", scope="session", waitSeconds=40).data["result"] == "done"
    (servers.place.project / "asked").unlink()
    with servers.running() as client:
        assert client.send(asked.session, prompt, waitSeconds=40).data["result"] == "done"
    assert (servers.place.project / "asked").exists()
    assert not (servers.place.project / ".claude").exists()
