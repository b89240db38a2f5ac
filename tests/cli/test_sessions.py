"""`claude-code-mcp sessions`, as typed in a shell."""

import asyncio
import json
import subprocess
import sys

import pytest

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.core.sessions.support import parked
from tests.support.repositories import git, repository
from tests.support.terminal import Terminal
from tests.support.waiting import HANG_SECONDS

from .test_commands import run


def sessions(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(environment, "sessions", *arguments)


def on_terminal(environment: dict[str, str], *arguments: str) -> str:
    """The output of a command on a terminal."""
    with Terminal.ours(arguments, environment) as terminal:
        assert terminal.end() == 0
        return terminal.shown


async def a_session(service: Service, sandbox: Sandbox) -> str:
    prompt = script("Greet the reader", "hello there")
    turn = await service.create(prompt, SessionOptions(cwd=str(sandbox.project)))
    session = turn.session
    await turn.outcome()
    return session.id


@pytest.mark.soak  # so they do of the one that is looked after
async def test_list_and_show_tell_of_a_session(service: Service, sandbox: Sandbox, environment: dict[str, str]) -> None:
    session_id = await a_session(service, sandbox)
    listed = await asyncio.to_thread(sessions, environment, "list", "--text", "greet the reader")
    assert listed.returncode == 0
    assert listed.stdout.startswith(session_id)
    shown = await asyncio.to_thread(sessions, environment, "show", session_id[:8])
    assert "hello there" in shown.stdout
    (entry,) = json.loads((await asyncio.to_thread(sessions, environment, "--json")).stdout)
    assert (entry["sessionId"], entry["project"]) == (session_id, str(sandbox.project))
    session = json.loads((await asyncio.to_thread(sessions, environment, "show", session_id, "--json")).stdout)
    assert session["sessionId"] == session_id
    assert session["lines"] == shown.stdout.splitlines()


async def test_an_unknown_session_is_not_found(environment: dict[str, str]) -> None:
    shown = await asyncio.to_thread(sessions, environment, "show", "ffffffff")
    assert shown.returncode == 3
    assert "No session has an id that begins with 'ffffffff'" in shown.stderr
    assert "Traceback" not in shown.stderr


async def test_session_is_managed_from_the_shell(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    session_id = await a_session(service, sandbox)
    await parked(service.session(session_id))
    short = session_id[:8]
    state = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}

    async def shell(*arguments: str) -> str:
        done = await asyncio.to_thread(run, state, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert await shell("sessions", "rename", short, "My  kitchen") == "My kitchen\n"
    await shell("sessions", "tag", short, "cooking")
    await shell("sessions", "pin", short)
    (entry,) = json.loads(await shell("sessions", "list", "--json"))
    assert (entry["title"], entry["tag"], entry["pinned"]) == ("My kitchen", "cooking", True)
    page = sandbox.root / "page.html"
    assert await shell("sessions", "export", short, "--format", "html", "--output", str(page)) == f"{page}\n"
    assert "hello there" in await asyncio.to_thread(page.read_text)
    assert "hello there" in await shell("sessions", "show", short, "--full")
    copy = (await shell("sessions", "fork", short, "--title", "Another")).strip()
    costs = json.loads(await shell("costs", "--by", "session", "--json"))
    assert [line["name"] for line in costs["lines"]] == [session_id]
    assert "█" in await shell("costs", "--days", "2")
    refused = await asyncio.to_thread(run, state, "sessions", "delete", copy)
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    await shell("sessions", "delete", copy, "--yes")
    assert [row["sessionId"] for row in json.loads(await shell("sessions", "list", "--json"))] == [session_id]


@pytest.mark.soak  # tests/core/transcripts/test_watched_files.py; on a terminal: `attach` in test_running_sessions.py
async def test_follow_prints_what_happens_next(service: Service, sandbox: Sandbox, environment: dict[str, str]) -> None:
    session_id = await a_session(service, sandbox)
    command = [sys.executable, "-m", "claude_code_mcp", "sessions", "follow", session_id]
    follower = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    try:
        assert follower.stdout is not None
        await _until(follower.stdout, "hello there")
        turn = await service.send(session_id, script("again", "and good bye"))
        await _until(follower.stdout, "and good bye")
        assert (await turn.outcome()).ok
    finally:
        follower.terminate()
        await follower.wait()


async def _until(stream: asyncio.StreamReader, wanted: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while line := await stream.readline():
            if wanted in line.decode() and not line.startswith(b">"):
                return
    raise AssertionError(f"{wanted!r} was never printed")


@pytest.mark.soak  # tests/plugins/console/test_changes.py, tests/server/tools/test_work.py
async def test_a_worktree_is_seen_merged_and_discarded_from_the_shell(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    repo = repository(sandbox.project)
    state = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}
    # What is in files, and their names, must not steer a terminal.
    command = r"printf 'two\033[2J\n' > a.txt; echo kept > x.log; touch $(printf 'red\033[31m')"
    prompt = script("Work", tool("Bash", command=command), "done")
    options = SessionOptions(cwd=str(repo), allowed_tools=("Bash",), worktree=True)
    turn = await service.create(prompt, options)
    await turn.outcome()
    short = turn.session.id[:8]
    assert "in use" in (await asyncio.to_thread(sessions, state, "diff", short)).stderr
    await parked(turn.session)
    assert "+two\x1b[2J\n" in (await asyncio.to_thread(sessions, state, "diff", short)).stdout
    assert r"+two\u001b[2J" in await asyncio.to_thread(on_terminal, state, "sessions", "diff", short)
    refused = await asyncio.to_thread(sessions, state, "merge", short)
    assert (refused.returncode, r"not committed: a.txt, red\u001b[31m" in refused.stderr) == (2, True)
    assert (await asyncio.to_thread(sessions, state, "merge", short, "-m", "Work")).returncode == 0
    assert (repo / "a.txt").read_text() == "two\x1b[2J\n"
    refused = await asyncio.to_thread(sessions, state, "discard", short)
    assert (refused.returncode, "1 ignored path" in refused.stderr) == (2, True)
    assert (await asyncio.to_thread(sessions, state, "discard", short, "--yes")).returncode == 0
    assert git(repo, "worktree", "list").count("\n") == 0


def test_without_a_fleet_no_session_is_moved(environment: dict[str, str]) -> None:
    refused = sessions(environment, "move", "0b7c9c52", "--to", "desk")
    assert (refused.returncode, "only in a fleet" in refused.stderr) == (5, True)
