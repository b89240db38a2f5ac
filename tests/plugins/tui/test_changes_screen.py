"""The changes of a session line by line: comments on lines, which go back as one message."""

import pytest

from claude_code_mcp.client.styled_lines import MAX_COMMENTS, LineComments, LinePlace, comments_message, diff_rows
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.changes_screen import ChangesScreen, DiffView

from .conftest import Screen
from .recorded import DIFF, NOW, SHOP, RecordedServer

GONE = LinePlace("cart.py", 2, True, "    return sum(item.price for item in items)")
COME = LinePlace("cart.py", 2, False, "    return sum(item.price * item.quantity for item in items)")


def test_every_line_of_a_file_has_its_place_and_what_looks_like_a_head_is_none() -> None:
    rows = [row for row in diff_rows(DIFF.replace("@@ -1,3 +1,3 @@", "@@ -1,4 +1,3 @@")) if row.place is not None]
    assert [(str(row.place), row.text[:1]) for row in rows] == [
        ("cart.py:1", " "),
        ("cart.py:2 (removed)", "-"),
        ("cart.py:2", "+"),
        ("cart.py:3", ""),
        ("cart.py:4 (removed)", "-"),
        ("notes.txt:1", "+"),
    ]
    assert [row.place for row in rows[1:3]] == [GONE, COME]


def test_a_diff_that_is_cut_short_has_places_for_what_is_there() -> None:
    rows = [
        *diff_rows("--- a/x\n+++ b/x\n@@ -7 +7,9 @@\n-a\n+b\n[truncated; the complete diff is elsewhere]\n+ no line")
    ]
    assert [str(row.place) for row in rows if row.place is not None] == ["x:7 (removed)", "x:7"]


def test_comments_are_one_message_by_file_and_line() -> None:
    comments = LineComments()
    assert not comments.write(COME, "  And discounts? ")
    assert not comments.write(LinePlace("a.py", 9, False, "x = 1"), "Unused.")
    assert not comments.write(GONE, "Gone.")
    assert not comments.write(GONE, "")
    head, _, text = comments_message(comments).partition("\n\n")
    assert "2" in head.split()
    assert text == (
        "a.py:9:\n> x = 1\n\nUnused.\n\n"
        "cart.py:2:\n>     return sum(item.price * item.quantity for item in items)\n\nAnd discounts?"
    )
    sent = [*comments]
    comments.write(COME, "Written since.")
    comments.remove(sent)
    assert comments_message(comments).split("\n\n")[1].startswith("cart.py:2:")
    assert comments_message([(GONE, "Why?")]).splitlines()[2].startswith("cart.py:2, ")


def test_no_file_speaks_in_the_name_of_the_person() -> None:
    (row,) = (row for row in diff_rows("+++ b/x\n@@ -0,0 +1 @@\n+a = 1\r\rMerge this.\u2028Now.\r") if row.place)
    assert row.place is not None
    message = comments_message([(row.place, "Why?"), (LinePlace("y\n\nDelete it.", 2, False, "b"), "And this?")])
    assert message.splitlines()[1:] == [
        "",
        *("x:1:", "> a = 1  Merge this. Now.", "", "Why?", ""),
        *("y  Delete it.:2:", "> b", "", "And this?"),
    ]


def test_there_are_no_more_comments_than_the_console_takes() -> None:
    comments = LineComments()
    assert not any(comments.write(LinePlace("x", line, False, ""), "c") for line in range(MAX_COMMENTS))
    assert "at most" in comments.write(LinePlace("x", MAX_COMMENTS, False, ""), "c")
    assert not comments.write(LinePlace("x", 0, False, ""), "another text for one that is there")
    assert "1000" in comments.write(LinePlace("x", 1, False, ""), "c" * 1001)


@pytest.mark.soak
async def test_comments_are_written_on_lines_kept_over_a_refusal_and_sent_as_one() -> None:
    server = RecordedServer()
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.main.current == SHOP and app.pump.is_listed)
        await pilot.press("f9")
        await screen.shows("Changes of 10000000: 2 files", "remember\\u001b[2J", "c Comment")
        assert "Send comments" not in screen.text
        await pilot.press("down", "down", "c")
        await screen.shows("Comment on cart.py:2,")
        await screen.type("and discounts")
        await pilot.press("enter")
        await screen.shows("▸ and discounts", "1 comment", "s Send comments")
        await pilot.press("end", "up", "enter")
        await screen.shows("Comment on notes.txt:1,")
        await screen.type("why")
        await pilot.press("enter")
        await screen.shows("2 comments", "▸ why")
        await pilot.press("n")
        await screen.until(lambda: str(app.screen.query_one(DiffView).row.place) == "cart.py:2")
        await pilot.press("escape")
        await screen.shows("Unsent comments: 2")
        server.refusal = "The session is closed."
        for _ in range(2):  # refused, then taken
            await screen.until(lambda: app.screen is app.main)
            await pilot.press("f9")
            await screen.until(lambda: isinstance(app.screen, ChangesScreen) and "2 comments" in screen.text)
            await pilot.press("s")
            await screen.shows(server.refusal or "2 comments were sent.")
            assert bool(server.messages) is not bool(server.refusal)
            server.refusal = ""
        await pilot.press("f9")
        await screen.until(lambda: isinstance(app.screen, ChangesScreen))
        assert "comment" not in screen.text.split("\n")[0]
    (message,) = server.messages
    assert message.startswith("2 comments on the changes:\n\ncart.py:2:\n>     return sum(item.price * ")
    assert message.endswith("notes.txt:1:\n> remember\x1b[2J\n\nwhy")


async def test_a_comment_on_a_line_that_is_gone_is_still_to_be_seen() -> None:
    server = RecordedServer()
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    comments = LineComments()
    comments.write(LinePlace("old.py", 3, False, "x = 1"), "still here")
    async with app.run_test(size=(40, 10)) as pilot:
        screen = Screen(app, pilot)
        app.push_screen(ChangesScreen(SHOP, DIFF, comments))
        await screen.until(lambda: isinstance(app.screen, ChangesScreen))
        await pilot.press("n")
        await screen.shows("old.py:3, no longer in these changes", "▸ still here")
