"""The list of sessions, on transcripts that the real CLI wrote."""

import subprocess
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.transcripts.session_catalog import Catalog
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import agent, script, text, tool
from tests.support.system_packages import require


@pytest.fixture
def catalog(sandbox: Sandbox) -> Catalog:
    return Catalog(str(sandbox.home / ".claude"))


@pytest.fixture
def repository(sandbox: Sandbox, environment: dict[str, str]) -> Path:
    require("git")
    git = ["git", "init", "--quiet", "--initial-branch", "feature/lists"]
    subprocess.run(git, cwd=sandbox.project, env=environment, check=True)
    return sandbox.project


async def run(service: Service, prompt: str, cwd: Path) -> str:
    turn = await service.create(prompt, SessionOptions(cwd=str(cwd), permission_mode="acceptEdits"))
    session = turn.session
    assert (await turn.outcome()).ok
    session.park()
    await session.closed()  # now its transcript is complete
    return session.id


@pytest.mark.soak
async def test_sessions_are_listed_with_what_their_transcripts_tell_newest_first(
    service: Service, sandbox: Sandbox, repository: Path, catalog: Catalog
) -> None:
    missing = str(repository / "missing")
    steps = (tool("Bash", command="echo $((6*7))"), tool("Read", file_path=missing), text("It is so.\nReally."))
    here = await run(service, script("bake bread", *steps), repository)
    (entry,) = catalog.list()
    assert (entry.session_id, entry.project) == (here, str(repository))
    assert (entry.branch, entry.title) == ("feature/lists", None)
    assert (entry.first_prompt or "").startswith("bake bread")
    transcript = next(sandbox.home.glob(f".claude/projects/*/{here}.jsonl")).stat()
    assert entry.last_used == pytest.approx(transcript.st_mtime)
    assert entry.size == transcript.st_size
    assert catalog.find(here) == entry
    lines = list(catalog.transcript_lines(here))
    assert lines[0].startswith("> bake bread")
    assert lines[1:4] == ["[Bash] echo $((6*7))", "[ok] 42", f"[Read] {missing}"]
    assert lines[4].startswith("[error] ")
    assert lines[5:] == ["It is so.", "Really."]

    other = sandbox.root / "other"
    other.mkdir()
    delegating = script("bake cake", agent("look", script("sub", "seen")), "done")
    there = await run(service, delegating, other)
    assert list(sandbox.home.glob(".claude/projects/**/agent-*.jsonl")), "a subagent is no session of its own"
    (entry,) = catalog.list(project=str(other))
    assert (entry.session_id, entry.branch) == (there, None), "without a repository there is no branch"

    def ids(project: Path | None = None, limit: int = 50, text: str | None = None) -> list[str]:
        where = str(project) if project else None
        return [entry.session_id for entry in catalog.list(project=where, limit=limit, text=text)]

    assert ids() == [there, here]
    assert ids(limit=1) == [there]
    assert ids(project=repository) == [here]
    assert ids(text="BAKE") == [there, here]
    assert ids(text="bread") == [here]
    assert ids(project=other, text="bread") == []

    turn = await service.fork(here, script("eat it", "done"), options=SessionOptions(cwd=str(other)))
    assert (await turn.outcome()).ok
    found = catalog.find(turn.session.id)
    assert found is not None
    assert found.project == str(other), "a fork into another directory belongs to that one"
    assert ids(project=other) == [turn.session.id, there]
    assert ids(project=repository) == [here]
    turn = await service.send(here, script("more bread", "done"))
    assert (await turn.outcome()).ok
    assert ids(limit=1) == [here]


def test_a_run_from_the_shell_is_listed_with_the_name_it_was_given(
    sandbox: Sandbox, environment: dict[str, str], catalog: Catalog
) -> None:
    command = [find_executable(environment=environment), "-p", script("hello", "hello"), "--name", "My kitchen"]
    subprocess.run(command, cwd=sandbox.project, env=environment, stdin=subprocess.DEVNULL, check=True)
    assert [entry.title for entry in catalog.list()] == ["My kitchen"]
