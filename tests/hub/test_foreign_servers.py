"""Servers that others wrote, from npm."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.testing import Sandbox
from tests.conftest import RUN, programs_below
from tests.support.ports import free_port

from .conftest import PATIENCE, Changes, StartHub, make_hub, text_of
from .test_session_endpoint import Session, answer_with, text_in

pytestmark = pytest.mark.time_limit(600)  # packages are installed first


def node(packages: Path, name: str, *arguments: str, **entry: Any) -> dict[str, Any]:
    return {"command": "node", "args": [str(packages / name / "dist" / "index.js"), *arguments], **entry}


ON_SHARED_LOOP = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file in it."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "a.txt").write_text("hello from disk")
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(packages: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hub]:
    root = tmp_path_factory.mktemp("foreign")
    servers = {
        "everything": node(packages, "server-everything"),
        "files": node(packages, "server-filesystem", str(files)),
        "memory": node(packages, "server-memory", env={"MEMORY_FILE_PATH": str(root / "memory.jsonl")}),
    }
    async with make_hub(root, servers) as started:
        yield started


@ON_SHARED_LOOP
async def test_all_three_are_found_with_their_tools(hub: Hub) -> None:
    names = {tool.name for tool in await hub.tools(timeout=PATIENCE)}
    assert {"mcp__everything__echo", "mcp__files__read_text_file", "mcp__memory__read_graph"} <= names
    assert {status.state for status in hub.status()} == {"connected"}


@ON_SHARED_LOOP
async def test_files_are_read(hub: Hub, files: Path) -> None:
    # It serves the directory of its caller, which it asks for, instead of the one that it was started with.
    result = await hub.call("files", "read_text_file", {"path": str(files / "a.txt")}, directory=str(files))
    assert text_of(result) == "hello from disk"


@ON_SHARED_LOOP
async def test_a_memory_is_kept_between_calls(hub: Hub) -> None:
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    await hub.call("memory", "create_entities", {"entities": [entity]})
    assert "writes programs" in text_of(await hub.call("memory", "read_graph"))


@ON_SHARED_LOOP
async def test_progress_of_a_long_operation_comes_through(hub: Hub) -> None:
    seen: list[tuple[float, float | None]] = []
    done = asyncio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total))
        if progress == total:
            done.set()

    arguments = {"duration": 0.3, "steps": 3}
    await hub.call("everything", "trigger-long-running-operation", arguments, on_progress=report)
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == [(1, 3), (2, 3), (3, 3)]


@ON_SHARED_LOOP
async def test_resources_and_prompts_come_through(hub: Hub) -> None:
    resources = await hub.resources("everything")
    content = (await hub.read("everything", str(resources[0].uri))).contents[0]
    assert str(content.uri) == str(resources[0].uri)
    assert "args-prompt" in [prompt.name for prompt in await hub.prompts("everything")]
    prompt = await hub.prompt("everything", "args-prompt", {"city": "Paris"})
    assert "Paris" in str(prompt.messages[0].content)
    assert await hub.resource_templates("everything") != []


@ON_SHARED_LOOP
async def test_a_question_of_the_server_reaches_the_session(hub: Hub) -> None:
    session = Session(hub, "everything")
    await session.begin(elicitation={})
    answer, _ = await asyncio.gather(session.call("trigger-elicitation-request"), answer_with(session, "Ada"))
    assert "Ada" in text_in(answer)


@ON_SHARED_LOOP
async def test_structured_content_is_kept(hub: Hub) -> None:
    result = await hub.call("everything", "get-structured-content", {"location": "New York"})
    assert getattr(result, "structured_content", None)


@pytest.mark.soak  # of our own: test_remote_servers.py
async def test_over_http_too_and_again_after_a_restart(packages: Path, start_hub: StartHub) -> None:
    port = free_port()
    script = str(packages / "server-everything" / "dist" / "index.js")

    async def serve() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            "node",
            script,
            "streamableHttp",
            env={**_environment(), "PORT": str(port)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        while b"listening" not in (await process.stderr.readline()):
            pass
        return process

    hub = await start_hub({"x": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}})
    first = await serve()
    try:
        assert text_of(await hub.call("x", "echo", {"message": "one"})) == "Echo: one"
    finally:
        first.kill()
        await first.communicate()
    second = await serve()
    try:
        assert text_of(await hub.call("x", "echo", {"message": "two"})) == "Echo: two"
    finally:
        second.kill()
        await second.communicate()


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], RUN: os.environ[RUN]}


@pytest.mark.soak  # of our own: test_local_servers.py
@ON_SHARED_LOOP
async def test_a_killed_foreign_server_comes_back(hub: Hub) -> None:
    await hub.call("memory", "read_graph")
    changes = Changes(hub, "memory")
    [process] = [program for program in programs_below() if "server-memory" in " ".join(program.cmdline())]
    process.kill()
    await changes.until_seen("pending")
    assert "entities" in text_of(await hub.call("memory", "read_graph"))


async def test_claude_code_itself_is_a_server_like_any_other(
    start_hub: StartHub, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    entry = {"command": find_executable(), "args": ["mcp", "serve"], "env": environment, "cwd": str(sandbox.project)}
    hub = await start_hub({"claude": {**entry, "includeTools": ["Bash", "Read"]}})
    tools = await hub.tools("claude", timeout=PATIENCE)
    assert {tool.name for tool in tools} == {"mcp__claude__Bash", "mcp__claude__Read"}
    assert all(len(tool.tool.description or "") <= 2048 for tool in tools)
    result = await hub.call("claude", "Bash", {"command": "echo from-claude", "description": "Say something"})
    assert "from-claude" in text_of(result)
