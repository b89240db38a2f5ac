"""What a person does to sessions from the interface, on the real CLI and the scripted model."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.core.installation import extra_command
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.conversation_view import ConversationView
from claude_code_mcp.plugins.tui.dialog_screens import NewSession
from claude_code_mcp.testing.script import script, text
from tests.cli.conftest import program
from tests.startup.shared.support import SharedPlace
from tests.support.program import COMMAND
from tests.support.waiting import HANG_SECONDS

from .conftest import Screen, at, opened
from .recorded import BILLING, DOCS, NOW, OLD, SHOP, RecordedServer


@pytest.mark.soak  # tests/plugins/console/browser/test_steering.py
async def test_model_and_mode_are_switched_and_kept(place: SharedPlace, sessions: LiveSessions) -> None:
    async with opened(place) as screen:
        await screen.say(script("Begin.", "Begun."))
        await screen.until(lambda: screen.kinds == ["prompt", "text"])
        await screen.say("/mode plan")
        await screen.shows("Its mode is plan.")
        await screen.say("/model haiku")
        await screen.shows("Its model is haiku.")
        await screen.say("/mode nonsense")
        await screen.shows("Error [")
        await screen.say(script("Go on.", "Went on."))
        await screen.shows("· plan ·", "haiku")
        session_id = screen.view.conversation.session_id
        await screen.until(lambda: screen.kinds == ["prompt", "text", "prompt", "text"])
    summary = (await asyncio.to_thread(lambda: sessions.resources.feed(session_id)))["session"]
    assert (summary["permissionMode"], summary["model"]) == ("plan", "haiku")


@pytest.mark.soak  # tests/plugins/console/test_sharing.py
async def test_a_session_is_shared_and_taken_back(place: SharedPlace, sessions: LiveSessions) -> None:
    made = sessions.create(script("Begin.", "Begun."), **at(place))
    await asyncio.to_thread(lambda: sessions.status(made["sessionId"], waitSeconds=50))
    async with opened(place, session_id=made["sessionId"]) as screen:
        await screen.until(lambda: screen.kinds == ["prompt", "text"])
        await screen.say("/unshare")
        await screen.shows("The session is not shared.")
        await screen.say("/share bob")
        await screen.shows("Share the session with bob")
        await screen.pilot.press("down", "enter")
        await screen.shows("bob may answer it.", "· shared with bob (answer)")
        await screen.say("/share local")
        await screen.shows("Share the session with local")
        await screen.pilot.press("enter")
        await screen.shows("Error [INVALID_ARGUMENT]")
        await screen.say("/unshare")
        await screen.shows("Stop sharing with")
        await screen.pilot.press("enter")
        await screen.shows("No longer shared with bob.")
        await screen.until(lambda: "shared with bob (answer)" not in screen.text, "the line above goes")


@pytest.mark.soak
async def test_a_session_is_renamed_exported_and_forked(place: SharedPlace, sessions: LiveSessions) -> None:
    made = sessions.create(script("Original.", "Said once."), **at(place))
    await asyncio.to_thread(lambda: sessions.status(made["sessionId"], waitSeconds=50))
    async with opened(place, session_id=made["sessionId"]) as screen:
        await screen.until(lambda: screen.kinds == ["prompt", "text"])
        await screen.say("/rename The walrus papers")
        await screen.until(lambda: any(row.title == "The walrus papers" for row in screen.app.main.rows), "renamed")
        await screen.say("/export html")
        await screen.shows("Written to")
        await screen.say("/fork")
        await screen.until(lambda: screen.view.conversation.session_id != made["sessionId"], "forked")
        await screen.until(lambda: screen.kinds == ["prompt", "text"])
        await screen.say(script("Only here.", "Said in the copy."))
        await screen.until(lambda: screen.kinds == ["prompt", "text", "prompt", "text"])
    original = await asyncio.to_thread(lambda: sessions.resources.items(made["sessionId"]))
    assert [item["kind"] for item in original["items"]] == ["prompt", "text"]


async def test_a_new_session_has_the_directory_and_mode_that_were_chosen(place: SharedPlace) -> None:
    (place.sandbox.project / "inner").mkdir(exist_ok=True)
    async with opened(place) as screen:
        await screen.pilot.press("f2")
        await screen.until(lambda: isinstance(screen.app.screen, NewSession))
        dialog = screen.app.screen
        dialog.query_one("#prompt").text = script("In there.", "I am in.")  # type: ignore[attr-defined]
        dialog.query_one("#directory").value = "inner"  # type: ignore[attr-defined]
        worktree = dialog.query_one("#worktree")
        assert "X" not in str(worktree.render()), "without colors too it is seen that it is off"
        worktree.value = True  # type: ignore[attr-defined]
        assert "X" in str(worktree.render())
        worktree.value = False  # type: ignore[attr-defined]
        dialog.query_one("#mode").value = "acceptEdits"  # type: ignore[attr-defined]
        await screen.pilot.press("ctrl+s")
        await screen.until(lambda: screen.kinds == ["prompt", "text"])
        assert screen.view.conversation.cwd.endswith("inner")
        await screen.shows("acceptEdits")


@pytest.mark.soak  # test_model.py; in a browser: test_long_conversations.py
async def test_scrolling_up_loads_and_searches_older_pages(place: SharedPlace, sessions: LiveSessions) -> None:
    long = [text(f"needle{number} ", repeat=12_000) for number in range(3)]
    made = sessions.create(script("Long.", long[0]), **at(place))
    session_id = made["sessionId"]
    await asyncio.to_thread(lambda: sessions.status(session_id, waitSeconds=50))
    for answer in long[1:]:
        await asyncio.to_thread(lambda answer=answer: sessions.send(session_id, script("More.", answer)))  # type: ignore[misc]
        await asyncio.to_thread(lambda: sessions.status(session_id, waitSeconds=50))
    async with opened(place, session_id=session_id) as screen:
        await screen.until(lambda: screen.view.conversation.has_older, "older")
        assert not screen.view.conversation.search("needle0")
        screen.view.focus()
        await screen.pilot.press("ctrl+f")
        await screen.shows("Search in this conversation")
        await screen.type("needle0")
        await screen.pilot.press("enter")
        await screen.until(lambda: screen.view.selected is not None and "needle0" in screen.view.selected.text)
        assert screen.kinds == ["prompt", "text"] * 3


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")
def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    """A directory in which Textual cannot be found stands before the one in which it can."""
    hidden = "import sys, importlib.util as u; find = u.find_spec\n" + (
        "u.find_spec = lambda name, *more: None if name == 'textual' else find(name, *more)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hidden)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    answer = subprocess.run([COMMAND, "tui"], env=environment, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert extra_command("tui") in answer.stderr


def test_without_a_terminal_it_says_so() -> None:
    answer = subprocess.run([COMMAND, "tui"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "terminal" in answer.stderr


async def test_the_servers_of_the_hub_are_shown_with_their_tools(place: SharedPlace) -> None:
    async with opened(place) as screen:
        await screen.pilot.press("f5")
        await screen.shows("No MCP servers are configured")
        added = await asyncio.to_thread(lambda: place.command("mcp", "add", "small", "--", *program()))
        assert added.returncode == 0, added.stderr
        async with asyncio.timeout(HANG_SECONDS):
            while "small" not in screen.text:  # the server has seen the file when it is shown
                await screen.pilot.press("escape", "f5")
                await screen.pilot.pause(0.2)
        await screen.pilot.press("enter")
        await screen.shows("mcp__small__")
        await screen.pilot.press("escape", "f4")
        await screen.shows("Costs by day: $")


@pytest.mark.soak
async def test_a_session_of_a_fleet_is_moved_and_machines_are_groups_of_the_list() -> None:
    server = RecordedServer()
    server.machines = {SHOP: "desk", BILLING: "desk", DOCS: "laptop", OLD: "laptop"}
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.main.current == SHOP and app.pump.is_listed)
        await screen.shows("── desk", "── laptop")
        await pilot.press("f3", "down", "down", "down")  # over the names of the machines, which are no sessions
        await screen.until(lambda: app.main.target == DOCS)
        await pilot.press("escape")
        await screen.until(lambda: app.main.current == SHOP and "preview" not in screen.text)
        app.main.query_one(ConversationView).focus()
        await pilot.press("colon")
        await screen.type("another machine")
        await pilot.press("enter")
        await screen.shows("Move the session from desk to", "laptop", "another machine, by name")
        await pilot.press("down", "enter")
        await screen.shows("Name or id of the machine")
        await screen.type("cellar")
        await pilot.press("enter")
        await screen.shows("'cellar' is not there")
        await screen.say("/move laptop")
        await screen.shows("A turn is running.", "Move it after its turn")
        await pilot.press("down", "enter")
        await screen.shows("It is on machine laptop now.")
        await screen.until(lambda: server.machines[SHOP] == "laptop")
        server.machines = {}
        await screen.say("/move laptop")
        await screen.shows("only in a fleet")
    assert [(move["machine"], move.get("wait")) for move in server.moves] == [
        ("cellar", None),
        ("laptop", None),
        ("laptop", True),
    ]
