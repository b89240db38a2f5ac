"""Events that a command of a session, or another user of the machine, could send: none is believed too far."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from tests.support.waiting import HANG_SECONDS

from .conftest import eventually, question_in
from .test_hook import SILENT, Hook, asking, directory, event, hook, listener  # noqa: F401 - fixtures

OVER = b"over\n"


def note(sandbox: Sandbox, session_id: str, *, pid: int | None = None, **changes: object) -> None:
    """Notes, as Claude Code does, that a process, by default this one, has a session open in a terminal."""
    notes = sandbox.home / ".claude" / "sessions"
    notes.mkdir(parents=True, exist_ok=True)
    number = pid or os.getpid()
    hook_input = {"pid": number, "sessionId": session_id, "kind": "interactive", "entrypoint": "cli"}
    (notes / f"{number}.json").write_text(json.dumps({**hook_input, **changes}))


@asynccontextmanager
async def connection(sandbox: Sandbox) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    (path,) = (sandbox.root / "state" / "terminal").glob("*.sock")
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.close()


def written(name: str, hook_input: dict[str, Any], pid: int | None = None) -> bytes:
    body = json.dumps(hook_input).encode()
    return f"{name} {pid or os.getpid()} {time.time():.3f} {len(body)} 0\n".encode() + body


async def reply_to(sandbox: Sandbox, name: str, hook_input: dict[str, Any], pid: int | None = None) -> bytes:
    """What the server says to an event of this process, which is no child of the server."""
    async with asyncio.timeout(HANG_SECONDS), connection(sandbox) as (reader, writer):
        writer.write(written(name, hook_input, pid))
        return await reader.read()


@pytest.mark.parametrize(
    "noted",
    [{}, {"sessionId": str(uuid.uuid4())}, {"kind": "background"}, {"entrypoint": "sdk-py"}],
    ids=["nothing", "another session", "in the background", "no terminal"],
)
async def test_an_event_of_a_process_without_that_session_is_refused(
    server: Service, sandbox: Sandbox, noted: dict[str, Any]
) -> None:
    hook_input = event(sandbox, prompt="Forged")
    if noted:
        note(sandbox, hook_input["session_id"], **noted)
    assert await reply_to(sandbox, "PermissionRequest", hook_input) == OVER
    assert await reply_to(sandbox, "UserPromptSubmit", hook_input) == OVER
    assert not server.broker.pending()
    assert not server.sessions()


@pytest.fixture
def other_terminal() -> Iterator[int]:
    """A process that neither the server nor this process has as a child."""
    started = subprocess.run(["sh", "-c", "sleep 1000 >&- 2>&- & echo $!"], stdout=subprocess.PIPE, check=True)
    pid = int(started.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


async def test_a_command_cannot_ask_in_the_name_of_another_terminal(
    server: Service, sandbox: Sandbox, other_terminal: int
) -> None:
    hook_input = event(sandbox)
    note(sandbox, hook_input["session_id"], pid=other_terminal)
    assert await reply_to(sandbox, "PermissionRequest", hook_input, other_terminal) == OVER
    assert not server.broker.pending()


@pytest.mark.parametrize("name", ["UserPromptSubmit", "Stop", "StopFailure", "PostToolUse", "PermissionDenied"])
async def test_a_program_cannot_report_in_the_name_of_a_terminal(
    server: Service, sandbox: Sandbox, other_terminal: int, name: str
) -> None:
    hook_input = event(sandbox, prompt="Forged", last_assistant_message="Forged", cwd=str(sandbox.home))
    note(sandbox, hook_input["session_id"], pid=other_terminal, cwd=str(sandbox.project))
    assert await reply_to(sandbox, "SessionStart", hook_input, other_terminal) == b""
    (session,) = server.sessions()
    assert await reply_to(sandbox, name, hook_input, other_terminal) == OVER
    assert (session.first_prompt, session.outcome) == (None, None)


async def test_answer_reaches_only_the_requester(server: Service, sandbox: Sandbox) -> None:
    """A command that asks in the name of its terminal is told the answer, and nothing else is."""
    hook_input = event(sandbox)
    note(sandbox, hook_input["session_id"])
    async with connection(sandbox) as (real, writer), connection(sandbox) as (forged, other):
        writer.write(written("PermissionRequest", hook_input))
        question = await question_in(server)
        other.write(written("PermissionRequest", {**hook_input, "tool_input": {"command": "rm -rf /"}}))
        await eventually(lambda: len(server.broker.pending()) == 2, "both questions")
        server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
        allowed = json.loads(await real.readline())["hookSpecificOutput"]["decision"]
        assert allowed["behavior"] == "allow"
        assert [each.tool_input["command"] for each in server.broker.pending()] == ["rm -rf /"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(forged.read(1), 0.2)
    await eventually(lambda: not server.broker.pending(), "the end of the forged question")


async def test_questions_without_end_are_refused(server: Service, sandbox: Sandbox) -> None:
    hook_input = event(sandbox)
    note(sandbox, hook_input["session_id"])
    connections = []
    for number in range(60):
        held = connection(sandbox)
        _, writer = await held.__aenter__()
        connections.append(held)
        writer.write(written("PermissionRequest", {**hook_input, "tool_input": {"command": f"touch {number}"}}))
    await eventually(lambda: len(server.broker.pending()) == 50, "the questions")
    assert await reply_to(sandbox, "PermissionRequest", hook_input) == OVER
    for held in connections:
        await held.__aexit__(None, None, None)
    await eventually(lambda: not server.broker.pending(), "the end of the questions")


async def test_prompts_without_end_are_not_all_reported(server: Service, sandbox: Sandbox) -> None:
    hook_input = event(sandbox, prompt="Forged")
    note(sandbox, hook_input["session_id"])
    await reply_to(sandbox, "UserPromptSubmit", hook_input)
    outside = server.sessions()[0].outside
    assert outside is not None
    reported: list[str] = []
    outside.report_prompt = reported.append  # type: ignore[assignment, method-assign]
    began = time.monotonic()
    await asyncio.gather(*(reply_to(sandbox, "UserPromptSubmit", hook_input) for _ in range(40)))
    assert len(reported) <= 1 + 2 * (time.monotonic() - began)


def make_transcript(kind: str, transcript: Path, other: Path) -> None:
    transcript.parent.mkdir(parents=True)
    if kind == "link":
        plan = {"type": "tool_use", "name": "ExitPlanMode", "input": {"plan": "Somebody's secret"}}
        line = {"type": "assistant", "message": {"role": "assistant", "content": [plan]}}
        other.write_text(json.dumps(line) + "\n")
        transcript.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(transcript)
    else:
        transcript.mkdir()


@pytest.mark.parametrize("kind", ["link", "pipe", pytest.param("directory", marks=pytest.mark.soak)])
async def test_a_transcript_that_is_no_file_of_the_session_is_not_waited_for(
    server: Service, sandbox: Sandbox, tmp_path: Path, kind: str
) -> None:
    hook_input = event(sandbox, tool_name="ExitPlanMode", tool_input={})
    note(sandbox, hook_input["session_id"])
    make_transcript(kind, Path(hook_input["transcript_path"]), tmp_path / "other.jsonl")
    assert await reply_to(sandbox, "PermissionRequest", hook_input) == OVER
    assert not server.broker.pending()


def test_a_directory_that_others_can_write_to_is_not_trusted(
    hook: Hook,  # noqa: F811
    sandbox: Sandbox,
    listener: socket.socket,  # noqa: F811
    directory: Path,  # noqa: F811
) -> None:
    """Another user who could put a socket there would answer the dialog."""
    directory.chmod(0o777)
    assert hook.run("Stop", event(sandbox)) == SILENT
    listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.accept()
    directory.chmod(0o700)
    with asking(hook, json.dumps(event(sandbox)).encode()) as process:
        listener.settimeout(HANG_SECONDS)
        listener.accept()[0].close()
        process.kill()
