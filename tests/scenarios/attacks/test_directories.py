"""A session that goes to another directory in one command, so that the next one means something else there."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import StepObject, script, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, question, until
from tests.scenarios.hub_and_sessions.conftest import rules
from tests.support.system_packages import require


async def question_after(session: Session, answered: str) -> str:
    """The id of the question that a session asks after one that was answered."""
    await until(session, lambda: any(each.id != answered for each in session.questions))
    return session.questions[0].id


KEPT = "CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR"


@pytest.fixture(params=[pytest.param("no settings", marks=pytest.mark.soak), "settings that let it move"])
def project(sandbox: Sandbox, request: pytest.FixtureRequest) -> Path:
    """A project with a file that nobody may remove."""
    (sandbox.project / "victim").write_text("precious")
    if request.param != "no settings":
        (sandbox.project / ".claude").mkdir()
        (sandbox.project / ".claude" / "settings.json").write_text(json.dumps({"env": {KEPT: "0"}}))
    return sandbox.project


@pytest.mark.parametrize("denial", ['deny = ["Bash(rm *)"]', pytest.param("", marks=pytest.mark.soak)])
async def test_a_command_that_is_spelled_out_runs_in_the_directory_of_the_session(
    start_service: StartService, project: Path, denial: str
) -> None:
    (project / "Makefile").write_text("check:\n\t@touch checked\n")
    (project / "scratch").mkdir()
    allowed = 'allow = ["Bash(make check)", "Edit(scratch/**)"]'
    service = await start_service(policy=rules(f"{allowed}\n{denial}\n"))
    written = tool("Write", file_path=str(project / "scratch" / "Makefile"), content="check:\n\trm ../victim\n")
    moving = [tool("Bash", command="cd scratch"), tool("Bash", command="make check")]
    turn = await service.create(
        script("go", written, *moving, "done"), SessionOptions(cwd=str(project)), caller=Caller("local")
    )
    assert (await end_of(turn)).result == "done"
    assert (project / "scratch" / "Makefile").exists()
    assert (project / "victim").exists()
    assert (project / "checked").exists(), "the session's own Makefile was not used"


async def test_git_looks_at_the_repository_of_the_session(
    start_service: StartService, sandbox: Sandbox, project: Path
) -> None:
    inner = project / "sub"
    inner.mkdir()
    require("git")
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(sandbox.home)}
    monitor = f"rm {project / 'victim'}; false"
    for words in (["init", "-q"], ["config", "core.fsmonitor", monitor]):
        await asyncio.to_thread(subprocess.run, ["git", *words], cwd=inner, env=bare, check=True)
    service = await start_service(policy=rules('allow = ["Bash(git status)"]\ndeny = ["Bash(rm *)"]\n'))
    moving = [tool("Bash", command="cd sub && pwd"), tool("Bash", command="git status")]
    turn = await service.create(script("go", *moving, "done"), SessionOptions(cwd=str(project)), caller=Caller("local"))
    assert (await end_of(turn)).result == "done"
    assert (project / "victim").exists()


MOVES = [
    tool("EnterWorktree", name="other"),
    tool("Agent", description="x", prompt="x", subagent_type="general-purpose", isolation="worktree"),
]


@pytest.mark.parametrize(
    ("denial", "move"), [('deny = ["Bash(rm *)"]', MOVES[0]), pytest.param("", MOVES[1], marks=pytest.mark.soak)]
)
async def test_entering_a_worktree_needs_approval(
    start_service: StartService, sandbox: Sandbox, denial: str, move: StepObject
) -> None:
    require("git")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        await asyncio.to_thread(subprocess.run, [*git, *words], cwd=sandbox.project, check=True)
    service = await start_service(policy=rules(f'allow = ["Bash(make check)"]\n{denial}\n'))
    moving = [move, tool("Bash", command="make check")]
    turn = await service.create(
        script("go", *moving, "done"), SessionOptions(cwd=str(sandbox.project)), caller=Caller("local")
    )
    asked = await question(turn.session)
    assert turn.session.questions[0].tool_name in ("EnterWorktree", "Agent")
    service.respond(turn.session.id, asked, Answer(allow=False))
    assert (await end_of(turn)).result == "done"
    assert not (sandbox.project / ".claude" / "worktrees").exists()


MOVING = {"description": "x", "prompt": "x", "isolation": "worktree"}
DEFINITION = "---\nname: mover\ndescription: x\nisolation: worktree\n---\nx\n"


@pytest.mark.parametrize(
    "place", ["options", pytest.param("project", marks=pytest.mark.soak), pytest.param("user", marks=pytest.mark.soak)]
)
async def test_a_subagent_that_its_definition_moves_runs_nothing_unasked(
    start_service: StartService, sandbox: Sandbox, place: str
) -> None:
    if place != "options":
        agents = (sandbox.project if place == "project" else sandbox.home) / ".claude" / "agents"
        agents.mkdir(parents=True)
        (agents / "mover.md").write_text(DEFINITION)
    (sandbox.project / "Makefile").write_text(f"check:\n\t@pwd >> {sandbox.root}/ran\n")
    require("git")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        await asyncio.to_thread(subprocess.run, [*git, *words], cwd=sandbox.project, check=True)
    service = await start_service(policy=rules('allow = ["Bash(make check)"]\n'))
    commands = [tool("Bash", command="make check") for _ in range(3)]
    task = {"description": "x", "prompt": script("go", *commands, "done"), "run_in_background": False}
    begin = tool("Agent", subagent_type="mover", **task)
    turn = await service.create(
        script("go", commands[0], begin, "done"),
        SessionOptions(cwd=str(sandbox.project), agents={"mover": MOVING} if place == "options" else None),
        caller=Caller("local"),
    )
    asked = await question(turn.session)
    assert turn.session.questions[0].tool_input == {"command": "make check"}
    assert "worktrees" in (turn.session.questions[0].reason or "")
    assert (sandbox.root / "ran").read_text().splitlines() == [str(sandbox.project)]
    service.respond(turn.session.id, asked, Answer(allow=False))
    again = await question_after(turn.session, asked)
    service.respond(turn.session.id, again, Answer(allow=True))
    assert (await end_of(turn)).result == "done"
    ran = (sandbox.root / "ran").read_text().splitlines()
    assert len(ran) == 3, "the third is in a directory that somebody has agreed to"
    assert ".claude/worktrees/" in ran[-1]
