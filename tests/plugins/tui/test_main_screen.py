"""The main screen: the palette, leaving, previews, questions of other sessions, and what a session has changed."""

import asyncio
from typing import Any

import pytest
from textual import events
from textual.command import CommandPalette
from textual.widgets import Input

from claude_code_mcp.client.live_sessions import LiveSessions, OpenQuestion
from claude_code_mcp.core.model.question import Question, QuestionKind
from claude_code_mcp.plugins.tui import main_screen
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.changes_screen import ChangesScreen
from claude_code_mcp.plugins.tui.input_box import MessageArea
from claude_code_mcp.plugins.tui.palette import NAMES, CommandProvider
from claude_code_mcp.plugins.tui.screens import CostsScreen
from claude_code_mcp.testing.script import script, tool
from tests.startup.shared.support import SharedPlace
from tests.support.repositories import git, repository

from . import recorded
from .conftest import Screen, at, elsewhere, opened
from .recorded import BILLING, NOW, SHOP, RecordedServer


def recorded_app(question: Any = None, session_id: str = SHOP) -> Tui:
    server = RecordedServer(question, session_id)
    return Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)


# -- the palette and leaving --------------------------------------------------------------------------------------


async def test_the_palette_finds_a_command_by_what_it_does_and_does_it() -> None:
    app = recorded_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("● working")
        assert set(app._commands) >= set(NAMES), "everything that is offered can be done"
        await pilot.press("ctrl+p")
        await screen.until(lambda: isinstance(app.screen, CommandPalette))
        await screen.shows("go to the list of sessions")
        await screen.type("have cost")
        await pilot.press("enter")
        await screen.until(lambda: isinstance(app.screen, CostsScreen))
        await pilot.press("escape")
        await pilot.press("colon")
        await screen.until(lambda: isinstance(app.screen, CommandPalette))
        await pilot.press("escape")
        await screen.until(lambda: app.screen is app.main)
        await pilot.press("a", "colon")
        assert app.main.query_one(MessageArea).text == "a:"


@pytest.mark.parametrize("size", [(80, 24), (20, 6)], ids=["80x24", "20x6"])
async def test_enter_right_after_the_name_runs_that_command(size: tuple[int, int]) -> None:
    """Textual searches in the background; Enter must not run what an earlier search has found."""
    app = recorded_app()
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.main.current == SHOP and app.pump.is_listed)
        await pilot.press("ctrl+p")
        await screen.until(lambda: isinstance(app.screen, CommandPalette) and "new" in screen.text)
        for key in (*"costs", "enter"):
            app.simulate_key(key)  # without a pause, as a terminal delivers what was typed ahead
        await screen.until(lambda: isinstance(app.screen, CostsScreen))


async def test_a_command_is_the_first_to_be_found_by_its_name() -> None:
    app = recorded_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await Screen(app, pilot).until(lambda: app.main.current == SHOP)
        provider = CommandProvider(app.main)
        for name in NAMES:
            hits = [hit async for hit in provider.search(name)]
            assert max(hits, key=lambda hit: hit.score).text == name
        assert {hit.text for hit in [hit async for hit in provider.discover()]} == set(NAMES)
        assert [hit.text async for hit in provider.search("another machine")] == ["move"]
        app.main.open_session(None)
        await Screen(app, pilot).until(lambda: app.main.target is None)
        offered = {hit.text for hit in [hit async for hit in provider.discover()]}
        assert {"new", "costs", "quit"} <= offered
        assert "delete" not in offered


async def test_ctrl_c_copies_what_is_selected_and_otherwise_twice_leaves() -> None:
    app = recorded_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("● working")
        await screen.type("secret")
        app.main.query_one(MessageArea).select_all()
        await pilot.press("ctrl+c", "ctrl+c")
        assert app.clipboard == "secret"
        assert app.is_running
        app.main.query_one(MessageArea).text = ""
        await pilot.press("ctrl+c")
        await screen.shows("Ctrl-C again quits")
        assert app.is_running
        await pilot.press("ctrl+c")
        await screen.until(lambda: not app.is_running)
    assert app.return_code == 0


async def test_ctrl_c_leaves_from_a_dialog_too() -> None:
    app = recorded_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("● working")
        await pilot.press("ctrl+p")
        await screen.until(lambda: isinstance(app.screen, CommandPalette))
        await pilot.press("ctrl+c", "ctrl+c")
        await screen.until(lambda: not app.is_running)


# -- questions of other sessions ----------------------------------------------------------------------------------


async def test_a_question_of_another_session_says_so_and_goes_with_the_focus() -> None:
    app = recorded_app(recorded.COMMAND, BILLING)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("1 question in other sessions")
        assert not screen.panel.display, "it covers nothing by itself"
        await pilot.press("ctrl+n")
        await screen.shows("another session", "make deploy", "o: open that session")
        await pilot.press("tab")
        await screen.until(lambda: not screen.panel.display, "it is gone")
        await pilot.press("ctrl+n", "o")
        await screen.until(lambda: screen.panel.display and not screen.panel.elsewhere, "its session is open")


async def test_no_key_counts_for_a_question_that_came_while_the_terminal_was_left() -> None:
    app = recorded_app(recorded.PERMISSION)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = Screen(app, pilot)
        await screen.asks("")
        await pilot.press("ctrl+n")
        assert screen.panel.has_focus
        app.post_message(events.AppBlur())
        await screen.until(lambda: not screen.panel.has_focus)
        asked = screen.panel.asked
        assert asked is not None
        other = Question("q-2", SHOP, QuestionKind.PERMISSION, "Bash", {"command": "rm -rf /"}, "Run: rm -rf /")
        screen.panel.show(OpenQuestion(other, asked.session, False))
        app.post_message(events.AppFocus())
        await screen.until(lambda: screen.focused == "MessageArea", "the focus goes to the input")


# -- previews -----------------------------------------------------------------------------------------------------


async def test_a_preview_that_was_about_to_come_does_not_come_when_the_list_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main_screen, "_REST", 3600.0)  # the person is faster
    app = recorded_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.main.current is not None and app.pump.is_listed)
        await pilot.press("f3", "down", "down")
        await screen.until(lambda: app.main.preview.is_due)
        await pilot.press("escape")
        await screen.until(lambda: screen.focused == "MessageArea")
        assert not app.main.preview.is_due


@pytest.mark.soak  # filtered, opened and resumed: test_stories.py
async def test_sessions_are_previewed_while_going_through_the_list(place: SharedPlace, sessions: LiveSessions) -> None:
    ids = []
    for name in ("walrus", "narwhal"):
        made = await elsewhere(lambda name=name: sessions.create(script(f"The {name}.", f"Of {name}."), **at(place)))  # type: ignore[misc]
        ids.append(made["sessionId"])  # type: ignore[index]
        await elsewhere(lambda: sessions.status(ids[-1], waitSeconds=50))
    async with opened(place, session_id=ids[0]) as screen:
        await screen.shows("Of walrus.")
        await screen.pilot.press("f3")
        await screen.type("narwhal")
        await screen.until(lambda: [row.id for row in screen.app.main.rows] == [ids[1]], "filtered")
        await screen.pilot.press("down")
        await screen.shows("preview: Enter opens", "Of narwhal.")
        assert screen.app.main.current == ids[1]
        await screen.pilot.press("escape")
        await screen.shows("Of walrus.")
        assert screen.app.main.current == ids[0]
        assert not screen.app.main.query_one("#sessions").query_one(Input).value
        await screen.pilot.press("f3")
        await screen.type("narwhal")
        await screen.until(lambda: [row.id for row in screen.app.main.rows] == [ids[1]], "filtered")
        await screen.pilot.press("down")
        await screen.shows("Of narwhal.")
        await screen.pilot.press("enter")
        await screen.until(lambda: "preview" not in screen.text)
        await screen.say(script("And now?", "Now this."))
        await screen.shows("Now this.")
    # What was read on the screen is in the transcript when the turn has ended.
    await elsewhere(lambda: sessions.status(ids[1], waitSeconds=50))
    turns = (await asyncio.to_thread(lambda: sessions.resources.items(ids[1])))["items"]
    assert [item["kind"] for item in turns] == ["prompt", "text"] * 2


# -- worktrees ----------------------------------------------------------------------------------------------------


@pytest.mark.soak  # tests/cli/test_sessions.py
async def test_worktree_changes_are_shown_and_merged(place: SharedPlace, sessions: LiveSessions) -> None:
    checkout = place.sandbox.project / "checkout"
    repository(checkout)
    write = tool("Write", file_path="${cwd}/new.txt", content="one new line\n")
    made: Any = await elsewhere(
        lambda: sessions.create(
            script("Change it.", write, "Changed."),
            workingDirectory=str(checkout),
            worktree=True,
            permissionMode="acceptEdits",
        )
    )
    await elsewhere(lambda: sessions.status(made["sessionId"], waitSeconds=50))
    async with opened(place, session_id=made["sessionId"]) as screen:
        await screen.shows("Changed.")
        await screen.pilot.press("f9")
        await screen.until(lambda: isinstance(screen.app.screen, ChangesScreen))
        await screen.shows("1 file", "+one new line", "m Merge")
        await screen.pilot.press("c")
        await screen.shows("Comment on new.txt:1")
        await screen.type("why new")
        await screen.pilot.press("enter")
        await screen.shows("▸ why new", "s Send comments")
        await screen.pilot.press("s")
        await screen.shows("The comment was sent.", "> one new line")
        await screen.until(lambda: screen.kinds[-2:] == ["prompt", "text"] and not screen.view.conversation.busy)
        await screen.pilot.press("f9")
        await screen.until(lambda: isinstance(screen.app.screen, ChangesScreen))
        await screen.pilot.press("m")
        await screen.shows("Commit message")
        await screen.type("add it")
        await screen.pilot.press("enter")
        await screen.until((checkout / "new.txt").exists, "merged")
        await screen.say("/discard")
        await screen.until(lambda: len(git(checkout, "worktree", "list").splitlines()) == 1, "discarded")
    assert (checkout / "new.txt").read_text() == "one new line\n"
