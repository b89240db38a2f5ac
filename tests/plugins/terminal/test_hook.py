"""The program that Claude Code runs for each event: silent without a server, and believed only as far as it goes."""

import asyncio
import json
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.terminal.hook_events import MAX_EVENT, read_event, read_head
from claude_code_mcp.testing import Sandbox
from tests.support.waiting import HANG_SECONDS

from .conftest import PLUGIN

HOOK = PLUGIN / "hooks" / "send_event.sh"


def event(sandbox: Sandbox, **about: Any) -> dict[str, Any]:
    session_id = about.pop("session_id", str(uuid.uuid4()))
    transcript = sandbox.home / ".claude" / "projects" / "-src-app" / f"{session_id}.jsonl"
    hook_input = {"session_id": session_id, "transcript_path": str(transcript), "cwd": str(sandbox.project)}
    return {**hook_input, "tool_name": "Bash", "tool_input": {"command": "true"}, **about}


class Hook:
    """Runs the hook as Claude Code does."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = {**environment, "CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_PID": str(os.getpid())}

    def start(self, name: str, **changes: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["sh", str(HOOK), name],
            env={**self.environment, **changes},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, name: str, hook_input: dict[str, Any], **changes: str) -> tuple[bytes, bytes, int]:
        process = self.start(name, **changes)
        output, errors = process.communicate(json.dumps(hook_input).encode(), HANG_SECONDS)
        return output, errors, process.returncode


SILENT = (b"", b"", 0)


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    found = sandbox.root / "state" / "terminal"
    found.mkdir(parents=True)
    return found


@pytest.fixture
def hook(sandbox: Sandbox, environment: dict[str, str]) -> Hook:
    return Hook({**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")})


@pytest.fixture
def listener(directory: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(directory / "1.sock"))
        listening.listen(10)
        listening.settimeout(HANG_SECONDS)
        yield listening


def test_without_a_server_it_is_silent(hook: Hook, sandbox: Sandbox) -> None:
    assert hook.run("Stop", event(sandbox)) == SILENT
    assert hook.run("PermissionRequest", event(sandbox, agent_id="a")) == SILENT


def test_a_question_waits_for_the_first_server(hook: Hook, sandbox: Sandbox, directory: Path) -> None:
    hook_input = json.dumps(event(sandbox)).encode()
    with asking(hook, hook_input) as process, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(directory / "1.sock"))
        listening.listen(10)
        listening.settimeout(HANG_SECONDS)
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as stream:
            head = read_head(stream.readline())
            assert stream.read(head.size) == hook_input
            connection.sendall(b"{}\n")
            assert process.communicate(timeout=HANG_SECONDS) == (b"{}", b"")


def test_a_socket_that_a_killed_server_has_left_is_passed_over(hook: Hook, sandbox: Sandbox, directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(directory / "1.sock"))
    assert hook.run("Stop", event(sandbox)) == SILENT


@pytest.mark.parametrize(
    "changes",
    [{"CLAUDE_CODE_ENTRYPOINT": "sdk-py"}, {"CLAUDE_CODE_MCP_DEPTH": "1"}],
    ids=["no terminal", "a session of ours"],
)
def test_it_does_nothing_outside_of_terminals(
    hook: Hook, sandbox: Sandbox, listener: socket.socket, changes: dict[str, str]
) -> None:
    assert hook.run("PermissionRequest", event(sandbox), **changes) == SILENT
    listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_server_that_does_nothing_does_not_hold_up_a_note(
    hook: Hook, sandbox: Sandbox, listener: socket.socket
) -> None:
    # Nobody accepts, and nobody reads.
    assert hook.run("SessionStart", event(sandbox)) == SILENT
    assert hook.run("SessionEnd", event(sandbox)) == SILENT
    assert hook.run("PostToolUse", event(sandbox, tool_response="x" * 3_000_000)) == SILENT


def test_every_hook_that_waits_for_a_server_runs_next_to_the_terminal() -> None:
    hooks = json.loads((PLUGIN / "hooks" / "hooks.json").read_text())["hooks"]
    beside = {name for name, (entry,) in hooks.items() if entry["hooks"][0].get("async")}
    assert {*hooks} - beside == {"SessionStart", "SessionEnd", "PermissionRequest"}


def test_a_hook_stays_until_the_server_has_looked_at_it(hook: Hook, sandbox: Sandbox, listener: socket.socket) -> None:
    process = hook.start("Stop")
    assert process.stdin is not None
    process.stdin.write(json.dumps(event(sandbox)).encode())
    process.stdin.close()
    process.stdin = None
    with process:
        connection, _ = listener.accept()
        with connection:
            assert process.poll() is None
        assert process.communicate(timeout=HANG_SECONDS) == (b"", b"")


def asking(hook: Hook, hook_input: bytes) -> subprocess.Popen[bytes]:
    """A hook that waits for an answer."""
    process = hook.start("PermissionRequest")
    assert process.stdin is not None
    process.stdin.write(hook_input)
    process.stdin.close()
    process.stdin = None
    return process


def test_an_answer_is_printed(hook: Hook, sandbox: Sandbox, listener: socket.socket) -> None:
    hook_input = json.dumps(event(sandbox)).encode()
    with asking(hook, hook_input) as process:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            head = read_head(stream.readline())
            assert (head.name, head.pid, head.size) == ("PermissionRequest", os.getpid(), len(hook_input))
            assert stream.read(head.size) == hook_input
            connection.sendall(b'{"decision": 1}\nmore')
            assert process.communicate(timeout=HANG_SECONDS) == (b'{"decision": 1}', b"")
    assert process.returncode == 0


def test_server_that_exits_silently_is_replaced(
    hook: Hook, sandbox: Sandbox, listener: socket.socket, directory: Path
) -> None:
    with asking(hook, json.dumps(event(sandbox)).encode()) as process:
        connection, _ = listener.accept()
        os.unlink(directory / "1.sock")  # before the hook notices the end, and connects again
        connection.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as following:
            following.bind(str(directory / "2.sock"))
            following.listen(10)
            following.settimeout(HANG_SECONDS)
            connection, _ = following.accept()
            with connection:
                connection.sendall(b"over\n")
                assert process.communicate(timeout=HANG_SECONDS) == (b"", b"")
    assert process.returncode == 0


def test_it_ends_when_claude_code_no_longer_reads(hook: Hook, sandbox: Sandbox, listener: socket.socket) -> None:
    with asking(hook, json.dumps(event(sandbox)).encode()) as process:
        connection, _ = listener.accept()
        with connection:
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(HANG_SECONDS) == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"Stop 1 1.0 0\n",
        b"Stop 1 1.0 %d\n" % (MAX_EVENT + 1),
        b"Stop 1 nan 5\n",
        b"Stop 1 -1 5\n",
        b"Stop -1 1.0 5\n",
        b"Reboot 1 1.0 5\n",
        b"Stop 1 1.0 5 6\n",
        b"\xff\xfe 1 1.0 5\n",
    ],
)
def test_invalid_head_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_head(line)


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "../../x"},
        {"cwd": "relative"},
        {"cwd": None},
        {"transcript_path": "/etc/passwd"},
        {"transcript_path": None},
        {"transcript_path": "/elsewhere/projects/-src-app/5fc60788-a924-41a3-b019-bfc5dac52ac7.jsonl"},
    ],
)
def test_an_event_that_names_another_place_is_refused(sandbox: Sandbox, changes: dict[str, Any]) -> None:
    head = read_head(b"Stop 1 1.0 5 0\n")
    with pytest.raises(ValueError, match=r".*"):
        read_event(head, json.dumps(event(sandbox) | changes).encode(), str(sandbox.home / ".claude"))
    for broken in (b"[]", b"{", b"[" * 100_000):
        with pytest.raises(ValueError, match=r".*"):
            read_event(head, broken, str(sandbox.home / ".claude"))


async def test_a_command_of_a_session_cannot_report_anything(server: Service, hook: Hook, sandbox: Sandbox) -> None:
    """The hook, and the process that it names, are children of this process, as those of a session are."""
    with subprocess.Popen(["sleep", "1000"]) as child:  # noqa: ASYNC220 - starts at once
        named = {"CLAUDE_PID": str(child.pid)}
        asked = await asyncio.to_thread(hook.run, "PermissionRequest", event(sandbox), **named)
        noted = await asyncio.to_thread(hook.run, "UserPromptSubmit", event(sandbox, prompt="Forged"), **named)
        child.kill()
    assert (asked, noted) == (SILENT, SILENT)
    assert not server.broker.pending()
    assert not server.sessions()


async def test_only_the_user_can_connect(server: Service, sandbox: Sandbox) -> None:
    places = list((sandbox.root / "state" / "terminal").iterdir())
    assert len(places) == 1
    assert places[0].stat().st_mode & 0o077 == 0
    assert places[0].parent.stat().st_mode & 0o077 == 0
