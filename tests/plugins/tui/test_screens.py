"""Every screen and panel as it was once looked at, in a small and in a large terminal.

`UPDATE_SCREENS=1` writes them anew; then they must be looked at.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from textual.containers import Vertical
from textual.events import Paste

from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.dialog_screens import Dialog
from claude_code_mcp.plugins.tui.input_box import MessageArea

from . import recorded
from .conftest import Screen
from .recorded import NOW, SHOP, RecordedServer

SCREENS = Path(__file__).parent / "screens"
SIZES = [(80, 24), pytest.param((120, 40), marks=pytest.mark.soak)]
SMALL = {
    "conversation": "working",
    "permission": "Permission",
    "permission-focused": "Claude Code",
    "question": "How many",
    "help": "Everywhere",
}
"""What is looked at in terminals that have hardly any room, and a text that fits there."""


async def nothing(_: Screen) -> None:
    """The screen as it is."""


async def answering(screen: Screen) -> None:
    await screen.asks("")
    await screen.pilot.press("ctrl+n")


async def denying(screen: Screen) -> None:
    await answering(screen)
    await screen.pilot.press("d")
    await screen.type("too early")


async def unfolded(screen: Screen) -> None:
    screen.view.focus()
    await screen.pilot.press("x", "end")


def pressed(*keys: str) -> Callable[[Screen], Awaitable[None]]:
    async def press(screen: Screen) -> None:
        await screen.pilot.press(*keys)

    return press


STORIES: dict[str, tuple[Any, Callable[[Screen], Awaitable[None]], str]] = {
    "conversation": (None, nothing, "● working"),
    "unfolded": (None, unfolded, "item.quantity"),
    "permission": (recorded.PERMISSION, nothing, "Permission"),
    "permission-focused": (recorded.PERMISSION, answering, "a: allow once"),
    "command": (recorded.COMMAND, answering, "make deploy"),
    "deny": (recorded.PERMISSION, denying, "too early"),
    "plan": (recorded.PLAN_REVIEW, answering, "Move the invoices"),
    "question": (recorded.USER_QUESTION, answering, "How many mistakes"),
    "help": (None, pressed("f1"), "Everywhere"),
    "new-session": (None, pressed("f2"), "New session"),
    "costs": (None, pressed("f4"), "Costs by day"),
    "servers": (None, pressed("f5"), "github"),
    "commands": (None, pressed("slash", "m", "o"), "model"),
}


def lines_of(screen: Screen) -> list[str]:
    """The lines of the screen; of a dialog, its own: how much is drawn of what lies behind it is not decided by us."""
    lines = screen.text.split("\n")
    if not isinstance(screen.app.screen, Dialog):
        return lines
    box = screen.app.screen.query_one(Vertical).region
    return [line[box.x : box.right] for line in lines[box.y : box.bottom]]


@pytest.mark.parametrize("size", [pytest.param((30, 10), marks=pytest.mark.soak), (20, 6)], ids=["30x10", "20x6"])
@pytest.mark.parametrize("name", sorted(SMALL))
async def test_a_small_screen_is_drawn_as_before(name: str, size: tuple[int, int]) -> None:
    question, act, _ = STORIES[name]
    await compare(name, size, question, act, SMALL[name])


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])
@pytest.mark.parametrize("name", sorted(STORIES))
async def test_a_screen_is_drawn_as_before(name: str, size: tuple[int, int]) -> None:
    question, act, wanted = STORIES[name]
    await compare(name, size, question, act, wanted)


@pytest.mark.parametrize("size", [(100, 30), (60, 20)], ids=["100x30", "60x20"])
async def test_the_work_of_a_turn_is_folded_to_what_matters_of_it(size: tuple[int, int]) -> None:
    await compare("work", size, None, nothing, "1 failed, 2 passed", recorded.WORK)


async def test_a_run_of_reads_is_unfolded_call_by_call_and_folded_again() -> None:
    server = RecordedServer()
    server.events = list(recorded.WORK)
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(100, 60)) as pilot:
        screen = Screen(app, pilot)
        run = "✓ Read 4 files, searched 1 time"
        await screen.shows(f"▸ {run}", "It is the sum.")
        assert "part1.py" not in screen.text
        screen.view.focus()
        await pilot.press(*["up"] * 8, "down", "enter")
        await screen.shows(f"▾ {run}", "▸ ✓ Read part0.py", "▸ ✓ Read part3.py", "▸ ✓ Search for: total")
        await pilot.press("down", "enter")
        await screen.shows("▾ ✓ Read part1.py", "file_path: part1.py")
        await pilot.press("up", "enter")
        await screen.shows("▾ ✓ Read part0.py")
        await pilot.press("enter")
        await screen.shows(f"▸ {run}")
        assert "part1.py" not in screen.text
        await pilot.press("down")
        selected = screen.view.selected
        assert selected is not None
        assert selected.text == "It is the sum.", "what is hidden is not selected"
        # What is found in a folded run is shown.
        assert screen.view.search("part2.py") == 1
        await screen.shows(f"▾ {run}", "▸ ✓ Read part2.py")


async def compare(
    name: str,
    size: tuple[int, int],
    question: Any,
    act: Callable[[Screen], Awaitable[None]],
    wanted: str,
    events: list[dict[str, Any]] = recorded.EVENTS,
) -> None:
    """Does something with the interface, and compares what is on the screen with what was there once."""
    server = RecordedServer(question)
    server.events = list(events)
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.pump.is_listed and len(screen.view.conversation.blocks) > 4)
        if question is not None:
            await screen.until(lambda: screen.panel.asked is not None)
        await act(screen)
        await screen.shows(wanted)

        def drawn() -> str:
            return "\n".join(line.rstrip() for line in lines_of(screen)) + "\n"

        file = SCREENS / f"{name}-{size[0]}x{size[1]}.txt"
        if os.environ.get("UPDATE_SCREENS"):
            await pilot.pause(1.0)
            file.write_text(drawn(), encoding="utf-8")
        expected = file.read_text(encoding="utf-8")
        with suppress(AssertionError):  # the comparison below shows what differs
            await screen.until(lambda: drawn() == expected)
        assert drawn() == expected


async def test_an_empty_server_says_how_to_begin() -> None:
    server = RecordedServer()
    async with Tui(lambda: server, "/src/shop", clock=lambda: NOW).run_test(size=(80, 24)) as pilot:
        screen = Screen(pilot.app, pilot)  # type: ignore[arg-type]
        await screen.shows("Type a message to start", "Something from last")


async def test_a_choice_is_made_with_the_mouse_alone() -> None:
    server = RecordedServer(recorded.USER_QUESTION)
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("2 two")
        row = next(number for number, line in enumerate(screen.text.split("\n")) if "2 two" in line)
        column = screen.text.split("\n")[row].index("2 two")
        await pilot.click(offset=(column, row))
        await screen.shows("❯ 2 two")
        assert screen.panel.has_focus
        await pilot.click(offset=(column, row))
        await screen.shows("Where? 2 of 2")


async def test_pasted_text_keeps_its_lines_and_loses_control_characters() -> None:
    server = RecordedServer()
    app = Tui(lambda: server, "/src/shop", clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        area = app.main.query_one(MessageArea)
        area.post_message(Paste("one\r\ntwo\x1b[2J\n"))
        await pilot.pause()
        assert area.text == "one\ntwo[2J\n"


async def test_input_history_keeps_the_draft() -> None:
    server = RecordedServer()
    app = Tui(lambda: server, "/src/shop", clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        screen, area = Screen(app, pilot), app.main.query_one(MessageArea)
        await screen.say("/mode")
        await screen.until(lambda: len(app.screen_stack) > 1)
        await pilot.press("escape")
        await screen.until(lambda: len(app.screen_stack) == 1)
        area.focus()
        await screen.type("draft")
        await pilot.press("up")
        assert area.text == "/mode"
        await pilot.press("down")
        assert area.text == "draft"
