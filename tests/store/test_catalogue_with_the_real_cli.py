"""The list of sessions, on transcripts that the real CLI wrote."""

import subprocess
from pathlib import Path

import pytest

from claude_code_mcp.claude.executable import find_executable
from claude_code_mcp.model.options import SessionOptions
from claude_code_mcp.service import Service
from claude_code_mcp.store.catalogue import Catalogue
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import agent, script, text, tool


@pytest.fixture
def catalogue(sandbox: Sandbox) -> Catalogue:
    return Catalogue(str(sandbox.home / ".claude"))


@pytest.fixture
def repository(sandbox: Sandbox, environment: dict[str, str]) -> Path:
    git = ["git", "init", "--quiet", "--initial-branch", "feature/lists"]
    subprocess.run(git, cwd=sandbox.project, env=environment, check=True)
    return sandbox.project


async def run(service: Service, prompt: str, cwd: Path) -> str:
    turn = await service.create(prompt, SessionOptions(cwd=str(cwd), permission_mode="acceptEdits"))
    session = turn.session
    assert (await turn.outcome()).ok
    session.evict()
    await session.closed()  # now its transcript is complete
    return session.id


async def test_a_session_is_listed_with_prompt_directory_branch_and_size(
    service: Service, sandbox: Sandbox, repository: Path, catalogue: Catalogue
) -> None:
    session_id = await run(service, script("Say the word", "hello"), repository)
    (entry,) = catalogue.list()
    assert (entry.session_id, entry.project) == (session_id, str(repository))
    assert (entry.branch, entry.title) == ("feature/lists", None)
    assert (entry.first_prompt or "").startswith("Say the word")
    transcript = next(sandbox.home.glob(f".claude/projects/*/{session_id}.jsonl")).stat()
    assert entry.last_used == pytest.approx(transcript.st_mtime)
    assert entry.size == transcript.st_size
    assert catalogue.find(session_id) == entry


async def test_sessions_are_listed_by_project_text_and_limit_newest_first(
    service: Service, sandbox: Sandbox, catalogue: Catalogue
) -> None:
    other = sandbox.root / "other"
    other.mkdir()
    here = await run(service, script("bake bread", "done"), sandbox.project)
    there = await run(service, script("bake cake", "done"), other)
    again = await run(service, script("wash up", "done"), sandbox.project)

    def ids(project: Path | None = None, limit: int = 50, text: str | None = None) -> list[str]:
        where = str(project) if project else None
        return [entry.session_id for entry in catalogue.list(project=where, limit=limit, text=text)]

    assert ids() == [again, there, here]
    assert ids(limit=2) == [again, there]
    assert ids(project=sandbox.project) == [again, here]
    assert ids(text="BAKE") == [there, here]
    assert ids(project=other, text="bread") == []
    turn = await service.send(here, script("more bread", "done"))
    assert (await turn.outcome()).ok
    assert ids() == [here, again, there]


async def test_without_a_repository_there_is_no_branch(
    service: Service, sandbox: Sandbox, catalogue: Catalogue
) -> None:
    await run(service, script("hello", "hello"), sandbox.project)
    assert [entry.branch for entry in catalogue.list()] == [None]


async def test_a_subagent_is_no_session_of_its_own(service: Service, sandbox: Sandbox, catalogue: Catalogue) -> None:
    session_id = await run(service, script("delegate", agent("look", script("sub", "seen")), "done"), sandbox.project)
    assert list(sandbox.home.glob(".claude/projects/**/agent-*.jsonl"))
    assert [entry.session_id for entry in catalogue.list()] == [session_id]


async def test_a_fork_into_another_directory_belongs_to_that_one(
    service: Service, sandbox: Sandbox, catalogue: Catalogue
) -> None:
    other = sandbox.root / "other"
    other.mkdir()
    source = await run(service, script("bake bread", "done"), sandbox.project)
    turn = await service.fork(source, script("eat it", "done"), options=SessionOptions(cwd=str(other)))
    fork = turn.session
    assert (await turn.outcome()).ok
    (found,) = catalogue.list(project=str(other))
    assert (found.session_id, found.project) == (fork.id, str(other))
    assert [entry.session_id for entry in catalogue.list(project=str(sandbox.project))] == [source]


def test_a_run_from_the_shell_is_listed_with_the_name_it_was_given(
    sandbox: Sandbox, environment: dict[str, str], catalogue: Catalogue
) -> None:
    command = [find_executable(environment=environment), "-p", script("hello", "hello"), "--name", "My kitchen"]
    subprocess.run(command, cwd=sandbox.project, env=environment, stdin=subprocess.DEVNULL, check=True)
    assert [entry.title for entry in catalogue.list()] == ["My kitchen"]


async def test_a_conversation_can_be_read(service: Service, sandbox: Sandbox, catalogue: Catalogue) -> None:
    missing = str(sandbox.project / "missing")
    steps = (tool("Bash", command="echo $((6*7))"), tool("Read", file_path=missing), text("It is so.\nReally."))
    session_id = await run(service, script("What is it?", *steps), sandbox.project)
    lines = list(catalogue.transcript_lines(session_id))
    assert lines[0].startswith("> What is it?")
    assert lines[1:4] == ["[Bash] echo $((6*7))", "[ok] 42", f"[Read] {missing}"]
    assert lines[4].startswith("[error] ")
    assert lines[5:] == ["It is so.", "Really."]
