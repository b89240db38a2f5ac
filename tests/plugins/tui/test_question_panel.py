"""What is decided on is on the screen before it can be approved, and so are the keys, in any terminal."""

from typing import Any

import pytest
from textual.widgets import TextArea

from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.dialog_screens import EditCommand
from claude_code_mcp.plugins.tui.question_panel import QuestionText, session_meaning

from .conftest import Screen
from .recorded import NOW, SHOP, RecordedServer, asking

LONG = "\n".join(f"echo step {number}" for number in range(60)) + "\nrm -rf ~/important"
COMMAND = asking("Bash", {"command": LONG}, canAllowForSession=True, sessionRules=["Bash(echo:*)"])
PLAN = asking("ExitPlanMode", {"plan": "\n\n".join(f"Step {number}" for number in range(60))}, modes=["acceptEdits"])
CHOICE = asking(
    "AskUserQuestion", {"questions": [{"question": "Which one?", "options": [f"option{n}" for n in range(60)]}]}
)
SIZES = pytest.mark.parametrize(
    "size",
    [(30, 10), *(pytest.param(size, marks=pytest.mark.soak) for size in ((80, 24), (200, 50), (20, 6)))],
    ids=lambda size: "{}x{}".format(*size),
)


def interface(question: Any) -> tuple[RecordedServer, Tui]:
    server = RecordedServer(question)
    return server, Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)


@SIZES
@pytest.mark.parametrize(
    ("question", "end", "key"),
    [(COMMAND, "rm -rf ~/important", "a"), (COMMAND, "rm -rf ~/important", "s"), (PLAN, "Step 59", "e")],
    ids=["command", "for-the-session", "plan"],
)
async def test_question_longer_than_the_screen_needs_its_end_on_screen(
    question: Any, end: str, key: str, size: tuple[int, int]
) -> None:
    server, app = interface(question)
    async with app.run_test(size=size, notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n")
        await screen.shows("PgDn")
        await pilot.press(key)
        await pilot.pause()
        assert server.answers == []
        await pilot.press("end")
        await screen.shows(end)
        await screen.shows("↑")
        await pilot.press(key)
        await pilot.pause()
        assert server.answers == [], "what was passed over was not on the screen"
        await screen.read()
        await screen.until(lambda: "PgUp" not in screen.text and "PgDn" not in screen.text, "nothing is left")
        for word in (f"{key}: " if size[1] > 15 else f"{key} ", "d", "Esc"):
            assert word in screen.text, "every key that answers is on the screen"
        await pilot.press(key)
        await screen.until(lambda: server.answers, "answered")
    assert server.answers[0]["decision"] == "allow"


@SIZES
async def test_it_can_be_denied_at_any_time(size: tuple[int, int]) -> None:
    server, app = interface(COMMAND)
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n", "d", "n", "o", "enter")
        await screen.until(lambda: server.answers, "answered")
    assert (server.answers[0]["decision"], server.answers[0]["reason"]) == ("deny", "no")


@SIZES
async def test_the_option_at_the_cursor_is_on_the_screen(size: tuple[int, int]) -> None:
    server, app = interface(CHOICE)
    async with app.run_test(size=size, notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n", "enter")
        await pilot.pause()
        assert server.answers == []
        for number in (1, 2, 3):
            await pilot.press("down")
            await screen.shows(f"option{number}")
        await pilot.press("up", "up", "up", "up")
        await screen.shows("❯ 60 option59")
        await screen.read()
        await pilot.press("enter")
        await screen.until(lambda: server.answers, "answered")
    assert server.answers[0]["answers"] == ["option59"]


async def test_lines_behind_a_notification_do_not_count_as_shown() -> None:
    server, app = interface(asking("Bash", {"command": "\n".join(f"echo {number}" for number in range(4))}))
    async with app.run_test(size=(30, 10), notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        app.notify("one\ntwo\nthree", timeout=600)
        await screen.shows("three")
        await pilot.press("ctrl+n")
        for _ in range(20):
            await pilot.press("pagedown")
            await pilot.pause()
        await pilot.press("a")
        await pilot.pause()
        assert server.answers == []
        app.clear_notifications()
        await screen.read()
        await pilot.press("a")
        await screen.until(lambda: server.answers, "answered")


HIDING = {
    "cells-beside-a-table": "| a | b |\n|---|---|\n| 1 | 2 | then remove everything |",
    "title-of-a-picture": 'See ![it](https://example.com/a.png "then remove everything").',
    "words-of-a-block": "```sh then remove everything\nmake\n```",
    "long-words-in-a-table": f"| a | b |\n|---|---|\n| {'x' * 60}everything | {'y' * 60} |",
}


@pytest.mark.parametrize("plan", HIDING.values(), ids=HIDING)
async def test_a_plan_that_markdown_would_cut_is_shown_as_written(plan: str) -> None:
    _, app = interface(asking("ExitPlanMode", {"plan": plan}))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n")
        await screen.shows("everything")


async def test_a_plan_that_markdown_shows_whole_is_drawn() -> None:
    plan = "# Move\n\n1. Add **tables**\n2. See [notes](https://example.com/n)\n\n| a | b |\n|---|---|\n| one | two |"
    _, app = interface(asking("ExitPlanMode", {"plan": f"{plan}\n\n<https://example.com/x>"}))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await screen.shows("Add tables", "notes (https://example.com/n)", "one")
        assert "**" not in screen.text


async def test_an_answer_is_given_with_the_mouse() -> None:
    server, app = interface(asking("Bash", {"command": "make"}, canAllowForSession=True))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n")
        await screen.shows("a: allow once")
        row = next(number for number, line in enumerate(screen.text.split("\n")) if "a: allow once" in line)
        await pilot.click(offset=(screen.text.split("\n")[row].index("a: allow once") + 3, row))
        await screen.until(lambda: server.answers, "answered")
    assert server.answers[0]["decision"] == "allow"


def test_the_key_for_the_session_says_what_it_allows() -> None:
    assert session_meaning(["mode acceptEdits", "Bash(ls:*)"]) == "accepts all file edits, Bash(ls:*)"
    assert session_meaning([]) == ""


@SIZES
async def test_a_changed_command_is_read_again_and_allowed_once(size: tuple[int, int]) -> None:
    server, app = interface(COMMAND)
    async with app.run_test(size=size, notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n")
        await screen.read()
        await pilot.press("c")
        await screen.until(lambda: isinstance(app.screen, EditCommand), "the command can be changed")
        app.screen.query_one(TextArea).text = LONG.replace("~/important", "build")
        await pilot.press("ctrl+s")
        await screen.until(lambda: not isinstance(app.screen, EditCommand), "the question is back")
        await screen.shows("PgDn")
        await pilot.press("a", "s")
        await pilot.pause()
        assert server.answers == []
        await screen.read()
        await pilot.press("end")
        await screen.shows("rm -rf build")
        await pilot.press("s")
        await pilot.press("a")
        await screen.until(lambda: server.answers, "answered")
    (answer,) = server.answers
    assert answer["decision"] == "allow"
    assert "scope" not in answer
    assert answer["updatedInput"] == {"command": LONG.replace("~/important", "build")}


@pytest.mark.parametrize("size", [(100, 30), (30, 10)])
async def test_a_command_is_headed_by_its_purpose_and_ends_with_what_the_session_would_allow(
    size: tuple[int, int],
) -> None:
    tool_input = {"command": "make", "description": "Build the program"}
    server, app = interface(asking("Bash", tool_input, canAllowForSession=True, sessionRules=["Bash(make)"]))
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n")
        await screen.shows("Build the program")
        await screen.shows("make")
        await screen.read()
        await screen.shows("Bash(make)")
        await pilot.press("s")
        await screen.until(lambda: server.answers, "answered")
    assert server.answers[0]["scope"] == "session"


async def test_a_long_command_is_shown_once() -> None:
    _, app = interface(COMMAND)
    async with app.run_test(size=(100, 90)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n")
        await screen.shows("run a command", "rm -rf ~/important", "s: for this session")
        await screen.until(lambda: screen.panel.query_one(QuestionText).is_read, "all of it is on the screen")
        drawn = screen.text[screen.text.index("run a command") :]
    assert drawn.count("echo step 0 ") + drawn.count("echo step 0\n") == 1
    assert drawn.count("rm -rf ~/important") == 1


@pytest.mark.soak
async def test_a_command_that_is_changed_back_is_allowed_as_it_was() -> None:
    server, app = interface(asking("Bash", {"command": "make"}, canAllowForSession=True, sessionRules=["Bash(make)"]))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.press("ctrl+n", "c")
        for command in ("make all", "", "make"):
            await screen.until(lambda: isinstance(app.screen, EditCommand))
            app.screen.query_one(TextArea).text = command
            await pilot.press("ctrl+s")
            await pilot.pause()
            if command == "make all":
                await screen.shows("You changed this command.")
                await pilot.press("c")
        await screen.shows("s, for this session: Bash(make)")
        await pilot.press("s")
        await screen.until(lambda: server.answers, "answered")
    assert server.answers[0]["scope"] == "session"
    assert "updatedInput" not in server.answers[0]
