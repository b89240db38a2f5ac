"""Where only a person may answer: who counts as one at the socket of the shared server."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.client.connections import CallFailed, McpClient, ask_shared, join
from claude_code_mcp.core.processes.environment import MARK
from claude_code_mcp.core.processes.leftovers import new_mark, started_by_us
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.support.program import COMMAND
from tests.support.waiting import HANG_SECONDS, until

from .support import SharedPlace

POLICY = """
default = "agents"

[profiles.agents]
base = "local"
answers = "person"
allow = ["Bash(%s attack.py)"]
"""
ATTACK = """
import json, os, pty, sys
environment, *command = json.load(open("attack.json"))
os.environ.clear()
os.environ.update(environment)
with open("said", "wb") as said:
    pty.spawn(command, lambda fd: (said.write(data := os.read(fd, 1024)), data)[1], lambda fd: b"")
"""
SLEEP = [sys.executable, "-c", "input()"]


@pytest.fixture
def shared(shared: SharedPlace, tmp_path: Path) -> SharedPlace:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY % sys.executable)
    shared.environment |= {"CLAUDE_CODE_MCP_POLICY": str(policy), "CLAUDE_CODE_MCP_PROFILE": ""}
    assert shared.command("shared", "start").returncode == 0
    return shared


@pytest.fixture
def terminal() -> Iterator[int]:
    controller, inside = pty.openpty()
    yield inside
    os.close(inside)
    os.close(controller)


def create(client: McpClient, sandbox: Sandbox, prompt: str) -> dict[str, Any]:
    return client.call("claude_create_session", prompt=prompt, workingDirectory=str(sandbox.project), waitSeconds=50)


def asking(client: McpClient, sandbox: Sandbox) -> dict[str, Any]:
    made = create(client, sandbox, script("Touch", tool("Bash", command="touch touched"), text("Touched.")))
    assert made["status"] == "waiting_for_input"
    return made


def look(client: McpClient, session: str) -> dict[str, Any]:
    return client.call("claude_get_status", sessionId=session)


def answer(shared: SharedPlace, question: str, stdin: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "answer", question, "allow"],
        env=shared.environment,
        cwd=shared.sandbox.project,
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_person_answers_at_a_terminal_and_a_program_does_not(
    shared: SharedPlace, sandbox: Sandbox, terminal: int
) -> None:
    with join(shared.environment) as program:
        made = asking(program, sandbox)
        question = made["pendingInputs"][0]["inputId"]
        given = {"sessionId": made["sessionId"], "inputId": question, "decision": "allow"}
        with pytest.raises(CallFailed, match="only a person") as refused:
            program.call("claude_respond", **given)
        assert refused.value.code == "PERMISSION_DENIED"
        without = answer(shared, question, subprocess.DEVNULL)
        assert without.returncode != 0
        assert "only a person" in without.stderr
        assert not (sandbox.project / "touched").exists()
        allowed = answer(shared, question, terminal)
        assert allowed.returncode == 0, allowed.stderr
        program.call("claude_get_status", sessionId=made["sessionId"], waitSeconds=50)
        assert (sandbox.project / "touched").exists()


@pytest.mark.soak
def test_a_question_waits_for_its_full_time_after_the_last_person_has_left_their_terminal(
    shared: SharedPlace, sandbox: Sandbox, terminal: int
) -> None:
    assert shared.command("shared", "stop").returncode == 0
    shared.environment |= {"PERMISSION_TIMEOUT_MS": "400"}
    assert shared.command("shared", "start").returncode == 0
    with join(shared.environment) as program:
        session = create(program, sandbox, script("Hello", text("Hello.")))["sessionId"]
        attach = [COMMAND, "attach", session]
        attached = subprocess.Popen(attach, env=shared.environment, stdin=terminal, stdout=subprocess.DEVNULL)
        try:
            until(lambda: any(client["person"] for client in ask_shared(shared.environment, "status")["clients"]))
            made = asking(program, sandbox)["sessionId"]
            until(lambda: "expiresAt" not in look(program, made)["pendingInputs"][0])
        finally:
            attached.terminate()
            attached.wait(HANG_SECONDS)
        until(lambda: look(program, made)["status"] == "completed")
        assert not (sandbox.project / "touched").exists()


def test_session_command_cannot_claim_to_be_a_person(shared: SharedPlace, sandbox: Sandbox) -> None:
    """It has a terminal, and nothing in its environment says where it comes from."""
    with join(shared.environment) as program:
        made = asking(program, sandbox)
        question = made["pendingInputs"][0]["inputId"]
        (sandbox.project / "attack.py").write_text(ATTACK)
        command = [shared.environment, COMMAND, "answer", question, "allow"]
        (sandbox.project / "attack.json").write_text(json.dumps(command))
        attack = tool("Bash", command=f"{sys.executable} attack.py")
        attacked = create(program, sandbox, script("Attack", attack, text("Attacked.")))
        assert attacked["result"] == "Attacked."
        assert "only a person" in (sandbox.project / "said").read_text()
        seen = program.call("claude_get_status", sessionId=made["sessionId"])
        assert seen["pendingInputs"][0]["inputId"] == question
        assert not (sandbox.project / "touched").exists()


@pytest.mark.soak
def test_a_command_of_a_session_in_a_terminal_is_no_person(
    shared: SharedPlace, sandbox: Sandbox, terminal: int
) -> None:
    """Claude Code, here this process, notes that it has a session open. What it starts may be the model's command."""
    note = sandbox.home / ".claude" / "sessions" / f"{os.getpid()}.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"pid": os.getpid(), "sessionId": "5fc60788-a924-41a3-b019-bfc5dac52ac7"}))
    with join(shared.environment) as program:
        question = asking(program, sandbox)["pendingInputs"][0]["inputId"]
        refused = answer(shared, question, terminal)
        assert "only a person" in refused.stderr
        note.unlink()
        assert answer(shared, question, terminal).returncode == 0


def test_descendants_are_found_by_mark_or_parent() -> None:
    stranger = psutil.Process().parent()
    assert stranger is not None
    assert not started_by_us(stranger.pid)
    assert not started_by_us(os.getpid())
    for environment in ({**os.environ, MARK: new_mark()}, {}):
        child = subprocess.Popen(SLEEP, env=environment, stdin=subprocess.PIPE)
        try:
            assert started_by_us(child.pid)
        finally:
            child.communicate(b"\n")
    assert started_by_us(child.pid), "one that is gone"
