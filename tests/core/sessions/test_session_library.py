"""Sessions as things, on transcripts that the real CLI has just written."""

import asyncio
import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.errors import SessionBusy, SessionNotFound
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.stored.session_library import ExportFormat
from claude_code_mcp.core.state.session_marks import Mark
from claude_code_mcp.core.transcripts.transcript_export import Detail
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import agent, parallel, plan, script, thinking, tool
from tests.conftest import StartService
from tests.support.waiting import HANG_SECONDS

from .support import ENDLESS, end_of, options, parked, question, run, say, until
from .test_open_elsewhere import open_in_claude

TOOLS = ("Bash", "Write", "Edit", "Read", "Agent")
FULL = Detail(full=True)
SECRET = "hidden-behind-7-hills"


async def whole(service: Service, session_id: str, detail: Detail = FULL, **how: Any) -> str:
    text, cursor = "", "1"
    while cursor:
        page = await service.stored.read(session_id, cursor=cursor, detail=detail, size=2000, **how)
        text += page.text
        cursor = page.next_cursor or ""
    return text


async def test_a_conversation_is_read_turn_by_turn_and_exported_without_secrets(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service: Service = await start_service(extra={"MY_API_TOKEN": SECRET})
    file = str(sandbox.project / "a.txt")
    edits = (
        tool("Write", file_path=file, content="one\ntwo\nthree\n"),
        tool("Edit", file_path=file, old_string="two", new_string="TWO"),
        thinking("a deep thought", "Edited."),
    )
    session, _ = await run(service, script("edit it", *edits), options(sandbox, allowed_tools=TOOLS))
    look = script("look", tool("Bash", command="echo seen by the subagent"), "It is there.")
    await say(service, session, script("delegate", agent("look", look), "The subagent has looked."))
    both = parallel(tool("Bash", command="echo first; exit 3"), tool("Bash", command="echo second"))
    await say(service, session, script("both at once", both, "Done."))
    turn = await service.send(session.id, script("never ends", tool("Bash", command=ENDLESS)))
    await until(session, lambda: any(use.status == "running" for use in session.readable_lines.tools.values()))
    await service.interrupt(session.id)
    await end_of(turn)
    await say(service, session, script("go on", "On it goes."))

    text = await whole(service, session.id)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(headings) == 5
    for part in ("> edit it", "-two\n+TWO", "Edited.", "The subagent has looked.", "Exit code 3\nfirst", "second"):
        assert part in text
    for part in ("*Interrupted.*", "> go on", "On it goes."):
        assert part in text.split("> never ends")[1]
    assert "```thinking" not in text
    assert "```thinking\na deep thought" in await whole(service, session.id, Detail(full=True, thinking=True))
    last = await service.stored.read(session.id, cursor="-1")
    assert last.text.startswith("## 5 ")
    assert (last.turns, last.left_behind, last.next_cursor) == (5, 0, None)
    (subagent,) = last.agents
    assert subagent in text
    assert "seen by the subagent" in await whole(service, session.id, agent=subagent)

    fork = await service.fork(session.id, script("in the fork", "A fork."))
    await end_of(fork)
    forked = await whole(service, fork.session.id)
    assert "-two\n+TWO" in forked
    assert "A fork." in forked
    assert "A fork." not in await whole(service, session.id)

    telling = script("say it", tool("Bash", command=f"echo {SECRET}"), "<script>alert(1)</script>")
    await say(service, session, telling)
    await an_export_is_whole_and_has_no_secret(service, session.id, sandbox)


async def an_export_is_whole_and_has_no_secret(service: Service, session_id: str, sandbox: Sandbox) -> None:
    forms: dict[ExportFormat, str] = {"markdown": "<script>alert(1)", "html": "&lt;script&gt;alert(1)"}
    for form, escaped in forms.items():
        path = await service.stored.export(session_id, form)
        text = path.read_text(encoding="utf-8")
        assert escaped in text
        assert "hidden-behind" not in text
        assert path.stat().st_mode & 0o077 == 0
        assert path.is_relative_to(Path(sandbox.root / "state"))


@pytest.mark.soak  # tests/core/transcripts/test_conversation.py
async def test_plans_clearings_and_summaries_are_read_as_what_they_are(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(
        script("plan it", plan("# The plan\n1. do"), "Executed."), options(sandbox, permission_mode="plan")
    )
    session = turn.session
    service.respond(session.id, await question(session), Answer(True))
    await end_of(turn)
    assert "# The plan" in await whole(service, session.id)
    old = session.id
    await say(service, session, "/compact")
    await say(service, session, script("after the summary", "still here"))
    text = await whole(service, session.id)
    assert text.index("Executed.") < text.index("summarized") < text.index("> after the summary")
    await say(service, session, "/clear")
    await say(service, session, script("a new beginning", "fresh"))
    assert session.id != old
    read = await service.stored.read(old)
    assert read.session_id == session.id
    assert "a new beginning" in read.text
    assert "# The plan" not in read.text


@pytest.mark.soak  # from the shell: tests/cli/test_sessions.py
async def test_the_list_reports_what_the_transcript_does_and_claude_code_shows_the_title(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    given = options(sandbox, max_budget_usd=5, model="claude-opus-5-5")
    session, outcome = await run(service, script("hello", "one"), given)
    assert outcome.ok
    await say(service, session, script("again", "two"))
    await parked(session)
    (entry,) = await service.stored.entries()
    assert (entry.messages, entry.model) == (4, "claude-opus-5-5")
    assert entry.cost_usd == pytest.approx(session.usage.cost_usd)
    assert entry.created is not None
    assert entry.created <= entry.last_used
    assert await service.stored.rename(session.id, "  My\nkitchen ") == "My kitchen"
    assert await service.stored.tag(session.id, "cooking") == "cooking"
    copy = await service.stored.copy(session.id)
    (newest, first) = await service.stored.entries()
    assert (newest.session_id, newest.title) == (copy, "My kitchen (fork)")
    assert (first.title, first.tag) == ("My kitchen", "cooking")
    beside = json.loads(next(sandbox.home.glob(f".claude/projects/*/{session.id}/custom-title.json")).read_text())
    assert beside == {"customTitle": "My kitchen"}
    listed = await asyncio.to_thread(
        subprocess.run,
        [find_executable(environment=environment), "-p", "--resume", "My kitchen", script("by its name", "resumed")],
        cwd=sandbox.project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "resumed" in listed.stdout + listed.stderr
    outcome = await say(service, copy, script("in the copy", "copied"))
    assert outcome.result == "copied"
    assert service.session(copy).options.max_budget_usd == 5
    assert "in the copy" not in await whole(service, session.id)
    assert "> hello" in await whole(service, copy)


async def test_open_session_cannot_be_deleted(
    service: Service, start_service: StartService, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    turn = await service.create(script("work", tool("Bash", command=ENDLESS)), options(sandbox, allowed_tools=TOOLS))
    session = turn.session
    await until(session, lambda: any(use.status == "running" for use in session.readable_lines.tools.values()))
    with pytest.raises(SessionBusy):
        await service.stored.delete(session.id)
    other: Service = await start_service()
    with pytest.raises(SessionBusy):
        await other.stored.delete(session.id)
    await service.interrupt(session.id)
    await end_of(turn)
    await parked(session)
    async with open_in_claude(sandbox, environment, session.id, "--resume"):
        with pytest.raises(SessionBusy, match="open in another"):
            await service.stored.delete(session.id)
    await service.stored.mark(session.id, Mark.PINNED, True)
    exported = await service.stored.export(session.id, "markdown")
    assert exported.exists()
    unfinished = exported.with_name(f".{exported.name}.0.tmp")  # as a server leaves it that is killed meanwhile
    unfinished.touch()
    obstacle = exported.with_name(f"{session.id}.d")
    obstacle.mkdir()
    with pytest.raises(OSError, match=session.id):
        await service.stored.delete(session.id)
    obstacle.rmdir()
    assert list(sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")), "it can be deleted again"
    await service.stored.delete(session.id)
    assert not list(sandbox.home.glob(f".claude/**/*{session.id}*"))
    assert not list(sandbox.root.glob(f"state/sessions/**/{session.id}*"))
    assert not list(exported.parent.iterdir())
    assert await service.stored.entries() == []
    with pytest.raises(SessionNotFound):
        await service.find(session.id)
    with pytest.raises(SessionNotFound):
        await service.stored.delete(session.id)


@pytest.mark.soak  # tests/server/tools/test_resources.py
async def test_transcript_of_another_process_is_followed(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    session, _ = await run(service, script("hello", "one"), options(sandbox))
    await parked(session)
    seen: list[str] = []
    found = asyncio.Event()

    async def follow() -> None:
        async for lines in service.stored.follow(session.id):
            seen.extend(lines)
            if any("here" in line and not line.startswith(">") for line in seen):
                found.set()

    following = asyncio.create_task(follow())
    try:
        await asyncio.sleep(0)
        async with open_in_claude(sandbox, environment, session.id, "--resume"), asyncio.timeout(HANG_SECONDS):
            await found.wait()
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert seen[0].startswith("> there")


@pytest.mark.soak  # tests/core/transcripts/test_cost_report.py
async def test_costs_add_up_to_what_the_sessions_say(service: Service, sandbox: Sandbox) -> None:
    other = sandbox.root / "other"
    other.mkdir()
    first, _ = await run(service, script("hello", "one"), options(sandbox))
    second, _ = await run(service, script("hello", "two"), SessionOptions(cwd=str(other), model="claude-haiku-4-5"))
    await say(service, first, "/clear")
    await say(service, first, script("after", "three"))
    spent = first.usage.cost_usd + second.usage.cost_usd
    await parked(first)
    await parked(second)
    for by in ("session", "project", "model", "day"):
        costs = await service.stored.costs(by)
        assert costs.total.usd == pytest.approx(spent), by
        assert sum(line.usd for line in costs.lines) == pytest.approx(spent)
    by_project = await service.stored.costs("project")
    assert {line.name for line in by_project.lines} == {str(sandbox.project), str(other)}
    assert (await service.stored.costs("day", since="2999-01-01")).lines == []
    only = await service.stored.costs("session", project=str(other))
    assert [line.name for line in only.lines] == [second.id]
    assert only.total.usd == pytest.approx(second.usage.cost_usd)
    assert (await service.stored.costs("session", caller=Caller("alice"))).lines == []
