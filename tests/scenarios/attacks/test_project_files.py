"""What a project has in it that Claude Code or git would run: not where the profile does not trust projects."""

import asyncio
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.policy.policy import OPEN_PROFILE, REMOTE_PROFILE, Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import StepObject, script, tool
from tests.conftest import StartService
from tests.core.sessions.support import options, parked, run, say
from tests.support.bubblewrap import missing
from tests.support.system_packages import require

ROWS = json.loads(Path(__file__).with_name("project_files.json").read_text())
GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
NO_SHELL = Profile(tools=("Read", "Write", "Edit", "Agent", "Skill"))
RULES_WITHOUT_PROJECTS = Profile(
    allow=(parse_rule("Bash"),), deny=(parse_rule("Bash(rm *)"),), setting_sources=("user",)
)
TRUSTED = [row["attack"] for row in ROWS if row.get("runs")]


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    parts = {name: merged(old.get(name, {}), part) if isinstance(part, dict) else part for name, part in new.items()}
    return {**old, **parts}


def plant(project: Path, marks: Path) -> list[StepObject]:
    """Puts everything of the table into the project; what runs leaves a file in the project, and in `marks` if it runs
    where that can be written. The calls that use it."""
    settings: dict[str, Any] = {}
    local: dict[str, Any] = {}
    servers: dict[str, Any] = {}
    configuration: dict[str, str] = {}
    for place in (marks, project / "ran"):
        place.mkdir()
    for number, row in enumerate(ROWS):
        program = project / "programs" / str(number) / "post-index-change"
        program.parent.mkdir(parents=True)
        leave_mark = f"touch {project}/ran/{number} {marks}/{number}"
        # What is put in front of a command runs it, so that the others of the table have their chance.
        program.write_text(f'#!/bin/sh\n{leave_mark}\n[ -z "$1" ] || exec sh -c "$*"\n')
        program.chmod(0o755)

        def filled(part: object, mark: str = leave_mark, program: Path = program) -> Any:
            text = json.dumps(part).replace("{mark}", mark).replace("{files}", str(program.parent))
            return json.loads(text.replace("{file}", str(program)))

        settings = merged(settings, filled(row.get("settings", {})))
        local = merged(local, filled(row.get("local", {})))
        configuration |= filled(row.get("git", {}))
        if "mcp" in row:
            servers[f"server-{number}"] = filled(row["mcp"])
        for name, content in filled(row.get("files", {})).items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(content)
    (project / ".claude" / "settings.json").write_text(json.dumps(settings))
    (project / ".claude" / "settings.local.json").write_text(json.dumps(local))
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    require("git")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*GIT, *words], cwd=project, check=True)
    for name, value in configuration.items():
        subprocess.run([*GIT, "config", name, value], cwd=project, check=True)
    for changed in project.glob("*.filtered"):
        changed.write_text("changed\n")
    return [call_of(*row["call"]) for row in ROWS if "call" in row]


def call_of(name: str, arguments: dict[str, Any]) -> StepObject:
    task = {"description": "x", "prompt": script("go", tool("Read", file_path="Makefile"), "done")}
    return tool(name, **({**task, "run_in_background": False} if name == "Agent" else {}), **arguments)


@dataclass
class Ran:
    inside: list[str]
    """What was run, wherever."""
    outside: list[str]
    """What was run outside of a sandbox."""


async def ran_under(start_service: StartService, sandbox: Sandbox, profile: Profile) -> Ran:
    """What of the table was run by a session in a project that has all of it."""
    marks = sandbox.root / "marks"
    calls = await asyncio.to_thread(plant, sandbox.project, marks)
    profile = profile.model_copy(update={"slash_commands": None})
    service = await start_service(policy=Policy(profile), default_cwd=str(sandbox.project))
    look = tool("Read", file_path=str(sandbox.project / ".mcp.json"))
    work = script("work", look, *calls, "done")
    session, outcome = await run(service, work, options(sandbox, allowed_tools=("Skill", "Agent")))
    assert outcome.result == "done", outcome
    for row in ROWS:
        if "prompt" in row:
            await say(service, session, row["prompt"])
    await parked(session)
    return Ran(
        *([ROWS[number]["attack"] for number in numbers_in(place)] for place in (sandbox.project / "ran", marks))
    )


def numbers_in(place: Path) -> list[int]:
    return sorted(int(mark.name) for mark in place.iterdir())


@pytest.mark.parametrize(
    "profile",
    [
        REMOTE_PROFILE.model_copy(update={"isolation": "none"}),
        pytest.param(NO_SHELL, marks=pytest.mark.soak),
        pytest.param(RULES_WITHOUT_PROJECTS, marks=pytest.mark.soak),
    ],
    ids=["remote", "no shell", "rules on commands"],
)
async def test_nothing_of_a_project_runs_where_it_is_not_trusted(
    start_service: StartService, sandbox: Sandbox, profile: Profile
) -> None:
    assert await ran_under(start_service, sandbox, profile) == Ran([], [])


@pytest.mark.soak
async def test_the_attacks_are_alive_where_a_project_is_trusted(start_service: StartService, sandbox: Sandbox) -> None:
    assert await ran_under(start_service, sandbox, OPEN_PROFILE) == Ran(TRUSTED, TRUSTED)


@pytest.mark.soak
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
async def test_programs_of_a_trusted_project_run_in_the_sandbox(start_service: StartService, sandbox: Sandbox) -> None:
    trusting = {"isolation": "sandbox", "setting_sources": ("user", "project", "local")}
    ran = await ran_under(start_service, sandbox, REMOTE_PROFILE.model_copy(update=trusting))
    assert (ran.inside, ran.outside) == (TRUSTED, [])
