"""The transcripts that Claude Code itself writes are read rightly."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.transcripts.transcripts import ProjectFolders, Transcripts
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text


class Cli:
    """Runs Claude Code to its clean end."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    async def run(self, cwd: Path, *arguments: str, prompt: str = "hello") -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            find_executable(None, self._environment),
            *("-p", "--output-format", "json", *arguments, script(prompt, text("Hi there."))),
            cwd=cwd,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        result: dict[str, Any] = json.loads(output)
        return result


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    return Cli(environment)


@pytest.fixture
def transcripts(sandbox: Sandbox) -> Transcripts:
    return Transcripts(ProjectFolders.below(str(sandbox.home / ".claude")))


async def test_a_session_is_found_with_its_directory_and_costs_across_resumes_and_forks(
    cli: Cli, transcripts: Transcripts, sandbox: Sandbox
) -> None:
    session_id, project = str(uuid.uuid4()), sandbox.project
    assert transcripts.read(session_id) is None
    first = await cli.run(project, "--session-id", session_id)
    read = transcripts.read(session_id)
    assert read is not None
    assert read.cwd == str(project.resolve())
    assert read.usage.cost_usd == pytest.approx(first["total_cost_usd"])
    assert read.usage.cost_usd > 0
    assert transcripts.path_of(session_id, str(project.resolve())) == read.path

    second = await cli.run(project, "--resume", session_id)
    read = transcripts.read(session_id)
    assert read is not None
    assert read.usage.cost_usd == pytest.approx(second["total_cost_usd"])
    assert read.usage.cost_usd > first["total_cost_usd"]
    assert transcripts.resumable(session_id, str(project))

    fork, elsewhere = str(uuid.uuid4()), sandbox.root / "else where.d"
    elsewhere.mkdir()
    await cli.run(elsewhere, "--resume", session_id, "--fork-session", "--session-id", fork)
    read = transcripts.read(fork)
    assert read is not None
    assert read.cwd == str(elsewhere.resolve()), "a fork made elsewhere has its own directory"
    assert transcripts.path_of(fork, str(elsewhere.resolve())) == read.path
    original = transcripts.read(session_id)
    assert original is not None
    assert original.cwd == str(project.resolve())


async def test_a_directory_with_a_very_long_name_is_found(cli: Cli, transcripts: Transcripts, sandbox: Sandbox) -> None:
    session_id, deep = str(uuid.uuid4()), sandbox.root / ("d" * 120) / ("ü" * 60) / ("e" * 120)
    deep.mkdir(parents=True)
    await cli.run(deep, "--session-id", session_id)
    read = transcripts.read(session_id)
    assert read is not None
    assert read.cwd == str(deep.resolve())
    assert transcripts.resumable(session_id, str(deep.resolve()))
