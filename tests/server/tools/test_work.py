"""What a session has changed, as a caller sees it: its worktree and the checkpoints of its files."""

from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.core.sessions.support import ENDLESS
from tests.support.repositories import git, repository

from .conftest import StartCaller, ToolCaller

CARE = "sessions,code,care"
MANAGE = "claude_manage_session"


def exists(path: Path) -> bool:
    return path.exists()


async def in_worktree(caller: ToolCaller, *commands: str, **more: Any) -> dict[str, Any]:
    """The report of a session that has run these commands in a worktree of the project."""
    steps = [tool("Bash", command=command) for command in commands]
    given = {"prompt": script("Work", *steps, "done"), "workingDirectory": str(caller.sandbox.project)}
    report = await caller.ok(
        "claude_create_session", **given, allowedTools=["Bash"], worktree=True, waitSeconds=50, **more
    )
    assert report["status"] == "completed"
    return report


@pytest.mark.soak  # tests/plugins/console/test_changes.py
async def test_a_session_in_a_worktree_is_found_after_a_restart_merged_and_discarded(
    start_caller: StartCaller, sandbox: Sandbox
) -> None:
    repo = repository(sandbox.project)
    caller: ToolCaller = await start_caller(toolsets=CARE)
    report = await in_worktree(caller, "pwd > where; echo two > a.txt")
    session_id, tree = report["sessionId"], Path(report["worktree"]["path"])
    assert (tree / "where").read_text().strip() == str(tree)
    assert git(tree, "branch", "--show-current") == report["worktree"]["branch"]
    assert (repo / "a.txt").read_text() == "one\n"

    again: ToolCaller = await start_caller(toolsets=CARE)
    await caller.ok("claude_interrupt", sessionId=session_id)
    caller.session(report).park()
    await caller.session(report).closed()
    assert (await again.ok("claude_get_status", sessionId=session_id))["worktree"] == report["worktree"]
    more = script("More", tool("Bash", command="pwd >> where"), "done")
    await again.ok("claude_send_message", sessionId=session_id, message=more, waitSeconds=50)
    assert (tree / "where").read_text().split() == [str(tree)] * 2

    shown = (await again.ok(MANAGE, sessionId=session_id, action="diff"))["message"]
    assert "+two" in shown
    assert "+++ b/where" in shown
    _, refusal = await again.refused(MANAGE, sessionId=session_id, action="merge")
    assert "not committed: a.txt, where" in refusal
    code, refusal = await again.refused(MANAGE, sessionId=session_id, action="discard")
    assert (code, "2 uncommitted files" in refusal) == ("PERMISSION_DENIED", True)
    await again.ok(MANAGE, sessionId=session_id, action="merge", text="What the session did")
    assert (repo / "a.txt").read_text() == "two\n"
    await again.ok(MANAGE, sessionId=session_id, action="discard")
    assert not exists(tree)
    assert (await again.ok("claude_get_status", sessionId=session_id))["worktree"]["state"] == "removed"
    assert "Work" in (await again.ok("claude_read_session", sessionId=session_id))["transcript"]
    assert "was removed" in (await again.refused("claude_send_message", sessionId=session_id, message="Go on"))[1]


# That a person confirms is tested in both eras with the bypass of permissions.
@pytest.mark.soak  # tests/plugins/worktrees/test_worktrees.py; a person: test_library.py
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_person_is_asked_what_may_be_lost(start_caller: StartCaller, sandbox: Sandbox, mode: str) -> None:
    repository(sandbox.project)
    asked, answers = [], [{"confirm": False}, {"confirm": True}]

    async def person(_: object, params: types.ElicitRequestFormParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content=answers.pop(0))

    caller: ToolCaller = await start_caller(mode, person, toolsets=CARE)
    report = await in_worktree(caller, "echo 1 > new; echo 2 > x.log")
    tree, discard = Path(report["worktree"]["path"]), {"sessionId": report["sessionId"], "action": "discard"}
    await caller.refused(MANAGE, **discard)
    assert exists(tree / "new")
    assert "1 uncommitted file, 1 ignored path" in asked[0]
    await caller.ok(MANAGE, **discard)
    assert not exists(tree)


@pytest.mark.soak
async def test_a_worktree_is_left_alone_while_a_session_works_in_it(
    start_caller: StartCaller, sandbox: Sandbox
) -> None:
    repository(sandbox.project)
    caller: ToolCaller = await start_caller(toolsets=CARE)
    report = await in_worktree(caller, "echo 1 > new")
    fork = await caller.ok(MANAGE, sessionId=report["sessionId"], action="fork")
    busy = script("Go on", tool("Bash", command=ENDLESS), "never")
    await caller.ok("claude_send_message", sessionId=fork["sessionId"], message=busy)
    code, refusal = await caller.refused(MANAGE, sessionId=report["sessionId"], action="discard", confirm=True)
    assert (code, fork["sessionId"] in refusal) == ("SESSION_BUSY", True)
    await caller.ok("claude_interrupt", sessionId=fork["sessionId"])
    await caller.ok(MANAGE, sessionId=report["sessionId"], action="discard", confirm=True)
    assert not exists(Path(report["worktree"]["path"]))


@pytest.mark.soak
async def test_a_session_that_is_refused_leaves_no_worktree(start_caller: StartCaller, sandbox: Sandbox) -> None:
    caller: ToolCaller = await start_caller(toolsets=CARE)
    given = {"prompt": "Look", "workingDirectory": str(sandbox.project), "worktree": True}
    _, refusal = await caller.refused("claude_create_session", **given)
    assert "not in a checkout of a git repository" in refusal
    repo = repository(sandbox.project)
    await caller.refused("claude_create_session", **given, images=["missing.png"])
    assert git(repo, "worktree", "list").count("\n") == 0
    assert git(repo, "branch", "--list", "worktree-*") == ""
    assert (await caller.ok("claude_code", prompt=script("Go", "done"), worktree=True))["result"] == "done"
    assert git(repo, "worktree", "list").count("\n") == 1


async def test_files_are_rewound_to_a_message_after_consent(start_caller: StartCaller, sandbox: Sandbox) -> None:
    caller: ToolCaller = await start_caller(toolsets=CARE)
    file = sandbox.project / "a.txt"
    first = script("First", tool("Write", file_path=str(file), content="one\n"), "done")
    given = {"workingDirectory": str(sandbox.project), "permissionMode": "acceptEdits", "checkpoints": True}
    report = await caller.ok("claude_create_session", prompt=first, waitSeconds=50, **given)
    session_id = report["sessionId"]
    second = script("Second", tool("Edit", file_path=str(file), old_string="one", new_string="two"), "done")
    await caller.ok("claude_send_message", sessionId=session_id, message=second, waitSeconds=50)

    listed = (await caller.ok(MANAGE, sessionId=session_id, action="changes"))["message"]
    lines = [line for line in listed.splitlines()[1:] if not line.startswith(" ")]
    assert ["1 files (+0 -1)" in lines[0], "1 files (+1 -1)" in lines[1]] == [True, True]
    assert ["First" in lines[0], "Second" in lines[1]] == [True, True]
    rewind = {"sessionId": session_id, "action": "rewind", "text": lines[1].split()[0]}
    code, refusal = await caller.refused(MANAGE, **rewind)
    assert (code, "1 files (+1 -1)" in refusal) == ("PERMISSION_DENIED", True)
    assert file.read_text() == "two\n"

    caller.session(report).park()  # the next process knows the checkpoints of this one
    assert str(file) in (await caller.ok(MANAGE, **rewind, confirm=True))["message"]
    assert file.read_text() == "one\n"
    _, refusal = await caller.refused(MANAGE, sessionId=session_id, action="rewind", text="nowhere", confirm=True)
    assert "no checkpoint" in refusal
    plain = await caller.ok("claude_code", prompt=script("Go", "done"))
    _, refusal = await caller.refused(MANAGE, sessionId=plain["sessionId"], action="changes")
    assert "not started with file checkpointing" in refusal
