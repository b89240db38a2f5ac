"""What lies in a project must not run where the policy does not let a session run programs."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, REMOTE_PROFILE, Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, options, parked, question, run, say

OTHER_ID = "22222222-2222-4222-8222-222222222222"
NO_SHELL = Profile(tools=("Read", "Write", "Edit", "Glob", "Agent", "Skill"))
TRUSTING_NO_SHELL = NO_SHELL.model_copy(update={"setting_sources": ("user", "project", "local")})


def plant(place: Path, marks: Path, name: str) -> None:
    """Everything in a directory that Claude Code may run: whatever does leaves a file in `marks`."""
    marks.mkdir(exist_ok=True)
    claude = place / ".claude"

    def mark(what: str) -> str:
        return f"touch {marks}/{name}-{what}"

    def hooks(where: str) -> dict[str, object]:
        moments = ("SessionStart", "UserPromptSubmit", "PreToolUse", "Stop")
        return {one: [{"hooks": [{"type": "command", "command": mark(f"{where}-{one}")}]}] for one in moments}

    settings = {
        "hooks": hooks("settings"),
        "apiKeyHelper": f"{mark('helper')}; echo sk-other",
        "env": {"BASH_ENV": str(place / "env.sh")},
        "statusLine": {"type": "command", "command": mark("status-line")},
    }
    files = {
        ".claude/settings.json": json.dumps(settings),
        ".claude/settings.local.json": json.dumps({"hooks": hooks("local")}),
        ".mcp.json": json.dumps({"mcpServers": {name: {"command": "sh", "args": ["-c", mark("server")]}}}),
        f".claude/commands/{name}-command.md": f"---\nallowed-tools: Bash\n---\nDo !`{mark('command')}`\n",
        f".claude/skills/{name}-skill/SKILL.md": f"---\nname: {name}-skill\ndescription: x\n---\nDo !`{mark('skill')}`",
        f".claude/agents/{name}-agent.md": f"---\nname: {name}-agent\ndescription: x\n---\nAGENT-OF-{name}",
        "CLAUDE.md": f"TEXT-OF-{name}",
        "env.sh": mark("bash-env"),
    }
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(content)
    assert claude.is_dir()


def planted(sandbox: Sandbox) -> tuple[Path, Sequence[str]]:
    """Planted in the project, in a directory below and one above it, and in one that is added; the last one's path."""
    marks, added, below = sandbox.root / "marks", sandbox.project / "added", sandbox.project / "below"
    for place, name in ((sandbox.project, "project"), (sandbox.root, "above"), (added, "added"), (below, "below")):
        plant(place, marks, name)
    return marks, (str(added),)


@pytest.mark.parametrize(
    ("profile", "runs"),
    [
        pytest.param(OPEN_PROFILE, True, marks=pytest.mark.soak),
        (REMOTE_PROFILE, False),
        pytest.param(NO_SHELL, False, marks=pytest.mark.soak),  # both: tests/core/policy/test_admission.py
        pytest.param(TRUSTING_NO_SHELL, True, marks=pytest.mark.soak),
    ],
    ids=["trusted", "remote", "no shell", "no shell, but trusted"],
)
async def test_the_programs_of_a_project_run_only_where_the_profile_trusts_it(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread, profile: Profile, runs: bool
) -> None:
    marks, added = planted(sandbox)
    service = await start_service(policy=Policy(profile), default_cwd=str(sandbox.project))
    look = tool("Read", file_path=str(sandbox.project / "below" / "env.sh"))
    session, outcome = await run(service, script("look", look, "done"), options(sandbox, additional_directories=added))
    assert outcome.result == "done"
    sent = json.dumps([one.body for one in model.requests if one.session_id == session.id])
    assert ("TEXT-OF" in sent) is runs
    assert ("project-agent" in sent) is runs
    assert bool(list(marks.iterdir())) is runs


async def test_a_prompt_cannot_name_a_command_of_a_project_that_is_not_trusted(
    start_service: StartService, sandbox: Sandbox
) -> None:
    marks, added = planted(sandbox)
    profile = REMOTE_PROFILE.model_copy(update={"slash_commands": None})
    service = await start_service(policy=Policy(profile), default_cwd=str(sandbox.project))
    given = options(sandbox, additional_directories=added, allowed_tools=("Bash",))
    session, _ = await run(service, script("hello", "hi"), given)
    for command in ("/project-command", "/project-skill", "/below-skill", "/added-skill", "/above-command"):
        await say(service, session, command)
    assert not list(marks.iterdir())


@pytest.mark.soak  # tests/core/policy/test_rules.py
@pytest.mark.parametrize("sources", [pytest.param(("user",), marks=pytest.mark.soak), ("user", "project", "local")])
async def test_a_session_without_a_shell_cannot_write_a_program_into_effect(
    start_service: StartService, sandbox: Sandbox, sources: tuple[str, ...]
) -> None:
    rules = {"setting_sources": sources, "allow": (parse_rule("Edit"), parse_rule("Read")), "roots": (".",)}
    profile = NO_SHELL.model_copy(update=rules)
    service = await start_service(policy=Policy(profile), default_cwd=str(sandbox.project))
    ran = sandbox.root / "ran"
    hook = {"hooks": [{"type": "command", "command": f"touch {ran}"}]}
    settings = json.dumps({"hooks": {"UserPromptSubmit": [hook], "PreToolUse": [hook]}})
    (sandbox.project / "link").symlink_to(sandbox.project / ".claude")
    places = [
        sandbox.project / ".claude" / "settings.json",
        sandbox.project / "link" / "settings.local.json",
        sandbox.project / "sub" / ".CLAUDE" / "settings.json",
        sandbox.project / ".mcp.json",
        sandbox.project / ".git" / "config",
        sandbox.home / ".claude" / "settings.json",
        sandbox.home / ".claude" / "agents" / "x.md",
        sandbox.home / ".bashrc",
        sandbox.root / "state" / "anything.json",
    ]
    writes = [tool("Write", file_path=str(place), content=settings) for place in places]
    good = tool("Write", file_path=str(sandbox.project / "good"), content="x")
    given = options(sandbox, allowed_tools=("Write",), permission_mode="acceptEdits")
    session, outcome = await run(service, script("write", *writes, good, "done"), given)
    assert outcome.result == "done"
    assert (sandbox.project / "good").exists()
    assert [place for place in places if place.exists() and settings in place.read_text()] == []
    await say(service, session, script("again", tool("Read", file_path=str(sandbox.project / "good")), "done"))
    assert not ran.exists()


@pytest.mark.soak  # tests/core/policy/test_rules.py
async def test_a_file_that_names_programs_is_asked_about_where_some_commands_are_denied(
    start_service: StartService, sandbox: Sandbox
) -> None:
    profile = Profile(allow=(parse_rule("Edit(**)"),), deny=(parse_rule("Bash(rm *)"),))
    service = await start_service(policy=Policy(profile))
    path = sandbox.project / ".claude" / "settings.json"
    turn = await service.create(
        script("write", tool("Write", file_path=str(path), content="{}"), text("${tool_result}")),
        options(sandbox, allowed_tools=("Write",)),
    )
    service.respond(turn.session.id, await question(turn.session), Answer(allow=False))
    await end_of(turn)
    assert not path.exists()


@pytest.mark.soak  # which tools run commands: tests/core/policy
async def test_a_denied_command_is_denied_to_every_tool_that_runs_commands(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=Policy(Profile(deny=(parse_rule("Bash(rm *)"),))))
    (sandbox.project / "kept").touch()
    watch = tool("Monitor", command="rm kept", description="d", timeout_ms=5000, persistent=False)
    _, outcome = await run(
        service, script("work", watch, text("${tool_result}")), options(sandbox, allowed_tools=("Monitor",))
    )
    assert "Bash(rm *)" in outcome.result
    assert (sandbox.project / "kept").exists()


@pytest.mark.soak
async def test_a_session_without_a_shell_cannot_be_taken_back_to_files_that_it_may_not_write(
    start_service: StartService, sandbox: Sandbox
) -> None:
    profile = NO_SHELL.model_copy(update={"allow": (parse_rule("Edit"), parse_rule("Read")), "roots": (".",)})
    service = await start_service(policy=Policy(profile), default_cwd=str(sandbox.project))
    evil, settings = sandbox.project / "evil.json", sandbox.home / ".claude" / "settings.json"
    writes = [tool("Write", file_path=str(evil), content=content) for content in ('{"evil": 1}', "{}")]
    more = options(sandbox, file_checkpointing=True)
    session, _ = await run(service, script("first", writes[0], "done"), more)
    await say(service, session, script("second", writes[1], "done"))
    await parked(session)
    transcript = next((sandbox.home / ".claude" / "projects").rglob(f"{session.id}.jsonl"))
    # Should a session find a way to its transcript, what that says of files is a claim all the same.
    honest = transcript.read_text()
    assert json.dumps(evil.name) in honest
    transcript.write_text(honest.replace(f"{json.dumps(evil.name)}:", f"{json.dumps(str(settings))}:"))
    before = settings.read_bytes() if settings.exists() else None
    [*_, checkpoint] = await service.work.checkpoints(session.id)
    assert str(settings) in checkpoint.files
    with pytest.raises(PermissionDenied, match="The session may not change"):
        await service.work.rewind(session.id, checkpoint.checkpoint.message_id, None)
    assert (settings.read_bytes() if settings.exists() else None) == before
    await parked(session)
    transcript.write_text(honest)
    await service.work.rewind(session.id, checkpoint.checkpoint.message_id, None)
    assert evil.read_text() == '{"evil": 1}'


@pytest.mark.soak  # tests/core/policy/test_rules.py
async def test_a_session_without_a_shell_cannot_write_a_transcript(
    start_service: StartService, sandbox: Sandbox
) -> None:
    profile = NO_SHELL.model_copy(update={"allow": (parse_rule("Edit"), parse_rule("Read")), "roots": (".",)})
    service = await start_service(policy=Policy(profile), default_cwd=str(sandbox.project))
    session, _ = await run(service, script("first", "done"), options(sandbox))
    transcript = next((sandbox.home / ".claude" / "projects").rglob(f"{session.id}.jsonl"))
    forging = [
        tool("Write", file_path=str(transcript), content="{}"),
        tool("Write", file_path=str(transcript.with_name(OTHER_ID + ".jsonl")), content="{}"),
    ]
    _, outcome = await run(service, script("forge", *forging, text("${tool_result}")), options(sandbox))
    assert "may name programs" in outcome.result
    assert not transcript.with_name(OTHER_ID + ".jsonl").exists()
