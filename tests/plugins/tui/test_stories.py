"""Whole stories on the real CLI and the scripted model, told by keys and read from the screen."""

import time
from pathlib import Path

import pytest

from claude_code_mcp.client.connections import Target
from claude_code_mcp.client.live_sessions import LiveSessions, OpenQuestions
from claude_code_mcp.testing.script import ask_user, parallel, plan, question, script, text, thinking, tool
from tests.core.sessions.support import ENDLESS
from tests.core.sessions.usage_limit_support import SUBSCRIPTION, limited
from tests.startup.shared.support import SharedPlace

from .conftest import at, elsewhere, opened


@pytest.mark.soak  # tests/plugins/console/browser/test_stories.py; folded: test_screens.py
async def test_a_session_streams_and_folds_what_was_thought_and_called_until_it_is_opened(place: SharedPlace) -> None:
    async with opened(place) as screen:
        await screen.say(script("Say something.", text("# A heading\n\nSome **bold** words.\n", chunks=6)))
        await screen.shows("A heading", "Some bold words.", "✓ done")
        assert "**" not in screen.text.split("Some bold")[1]
        step = parallel(thinking("Deep thoughts on nothing.", ""), tool("Bash", command="printf 'one\\ntwo\\n'"))
        await screen.say(script("Think.", step, "Done thinking."))
        await screen.shows("▸ thinking", "▸ ✓ Run: printf", "Done thinking.")
        screen.view.focus()
        await screen.pilot.press("up", "up", "enter")
        await screen.shows("▾ ✓ Run: printf", "result")
        assert "two" in screen.text.split("result")[1]


async def test_an_edit_is_shown_as_a_diff_and_allowed_with_one_key_and_a_denial_has_a_reason(
    place: SharedPlace,
) -> None:
    file = place.sandbox.project / "calculator.py"
    file.write_text("def add(a, b):\n    return a - b\n")
    edit = tool("Edit", file_path=str(file), old_string="a - b", new_string="a + b")
    steps = (tool("Read", file_path=str(file)), edit, tool("Bash", command="touch denied"), "Fixed.")
    async with opened(place) as screen:
        await screen.say(script("Fix it.", *steps))
        await screen.asks("Edit")
        await screen.shows("Permission", "-     return a - b", "+     return a + b", "Ctrl+N or Tab: answer")
        assert screen.focused == "MessageArea"
        await screen.type("a note")  # goes into the message and answers nothing
        assert screen.app.query_one("MessageArea").text == "a note"  # type: ignore[attr-defined]
        assert screen.panel.display
        await screen.pilot.press("ctrl+n", "a")
        await screen.asks("touch denied")
        assert file.read_text() == "def add(a, b):\n    return a + b\n"
        await screen.pilot.press("ctrl+n", "d")
        await screen.type("use make instead")
        await screen.pilot.press("enter")
        await screen.shows("Fixed.", "✓ done", "✗ denied Run: touch denied")
        assert screen.focused == "MessageArea"
        assert screen.app.query_one("MessageArea").text == "a note"  # type: ignore[attr-defined]
        screen.view.action_unfold_all()
        await screen.shows("use make instead")
        # What it has changed, without a worktree: what its calls have noted.
        await screen.pilot.press("f9")
        await screen.shows("1 file", "Changes made by its file tools", "b/calculator.py", "+    return a + b")
        assert "Merge" not in screen.text
        await screen.pilot.press("m", "x", "end", "c")
        await screen.shows("Comment on calculator.py:2,")
    assert not (place.sandbox.project / "denied").exists()


@pytest.mark.soak  # its panel: test_screens.py; answered elsewhere: tests/scenarios/client_environments
async def test_a_question_is_answered_part_by_part_and_one_that_is_answered_elsewhere_says_by_whom(
    place: SharedPlace, sessions: LiveSessions
) -> None:
    asks = ask_user(
        question("Which color?", "red", "blue"), question("Which sizes?", "small", "large", "huge", multiple=True)
    )
    steps = (parallel("Thanks.", tool("Bash", command="touch elsewhere")), "Done there.")
    made = sessions.create(script("Ask me.", asks, *steps), **at(place))
    async with opened(place, session_id=made["sessionId"]) as screen:
        await screen.shows("Which color?", "1 of 2")
        await screen.pilot.press("ctrl+n", "2", "enter")
        await screen.shows("Which sizes?", "[ ] small")
        await screen.pilot.press("1", "3")
        await screen.shows("[x] huge")
        await screen.pilot.press("enter")
        await screen.shows("Thanks.")
        await screen.asks("touch elsewhere")
        await screen.pilot.press("ctrl+n", "d")
        await screen.type("because")
        (asked,) = screen.app.pump.open_questions()
        await elsewhere(lambda: OpenQuestions(sessions).answer(asked, {"decision": "allow"}))
        await screen.shows("Answered elsewhere: allowed by claude_respond", "Done there.")
        await screen.pilot.press("enter", "a")  # answers nothing any more
        await screen.pilot.press("escape")
        await screen.until(lambda: not screen.panel.display)
        screen.view.action_unfold_all()
        await screen.shows("blue", "small")


@pytest.mark.soak  # tests/plugins/console/browser/test_stories.py; its panel: test_screens.py
async def test_a_plan_is_sent_back_with_feedback_and_then_approved(place: SharedPlace, sessions: LiveSessions) -> None:
    steps = (plan("# Notes\n\n1. One file"), plan("# Notes\n\n1. One file\n2. With a date"))
    made = sessions.create(script("Plan it.", *steps, "Both done."), permissionMode="plan", **at(place))
    async with opened(place, session_id=made["sessionId"]) as screen:
        await screen.asks("ExitPlanMode")
        await screen.shows("Plan · ", "One file")
        await screen.pilot.press("ctrl+n", "d")
        await screen.type("add a date")
        await screen.pilot.press("enter")
        await screen.until(lambda: screen.panel.asked and "With a date" in str(screen.panel.asked.question.tool_input))
        await screen.pilot.press("ctrl+n", "a")
        await screen.until(lambda: screen.panel.asked is None, "approved")
        ended = await elsewhere(lambda: sessions.result(sessions.status(made["sessionId"], waitSeconds=30)))
        assert ended == "Both done."


@pytest.mark.soak
async def test_escape_interrupts_the_turn_and_the_session_continues(place: SharedPlace, sessions: LiveSessions) -> None:
    made = sessions.create(script("Work.", tool("Bash", command=ENDLESS)), allowedTools=["Bash"], **at(place))
    async with opened(place, session_id=made["sessionId"]) as screen:
        await screen.until(lambda: "tool" in screen.kinds, "the call")
        await screen.pilot.press("escape")
        await screen.shows("◦ interrupted")
        await screen.say(script("Go on.", "Went on."))
        await screen.shows("Went on.", "✓ done")


@pytest.mark.soak
async def test_unread_messages_return_to_the_input_after_an_interruption(
    place: SharedPlace, sessions: LiveSessions
) -> None:
    made = sessions.create(script("Work.", tool("Bash", command=ENDLESS)), allowedTools=["Bash"], **at(place))
    long = "And then, when that is done, " + "very carefully " * 200
    async with opened(place, session_id=made["sessionId"]) as screen:
        # Not the command, which the prompt shows too: a message before the call would be read together with the prompt.
        await screen.until(lambda: "tool" in screen.kinds, "the call")
        await screen.say(long)
        await screen.until(lambda: "message" in screen.kinds, "sent")
        await screen.pilot.press("escape")
        await screen.shows("◦ interrupted")
        area = screen.app.query_one("MessageArea")
        await screen.until(lambda: area.text == long, "it is there again, whole")  # type: ignore[attr-defined]


@pytest.mark.soak
async def test_two_sessions_ask_at_once_and_both_are_answered_from_one(
    place: SharedPlace, sessions: LiveSessions
) -> None:
    first = sessions.create(script("First.", tool("Bash", command="touch first"), "First done."), **at(place))
    second = sessions.create(script("Second.", tool("Bash", command="touch second"), "Second done."), **at(place))
    async with opened(place, session_id=first["sessionId"]) as screen:
        await screen.asks("touch first")
        await screen.shows("1 asks elsewhere")
        await screen.pilot.press("ctrl+n", "ctrl+n")
        await screen.until(lambda: screen.panel.asked and "second" in screen.panel.asked.question.description)
        await screen.pilot.press("a")
        await screen.until((place.sandbox.project / "second").exists, "second")
        await screen.until(lambda: "elsewhere" not in screen.text)
        await screen.asks("touch first")
        assert screen.focused == "MessageArea"
        await screen.pilot.press("ctrl+n", "a")
        await screen.shows("First done.")
    await elsewhere(lambda: sessions.cancel(second["sessionId"]))


@pytest.mark.soak
async def test_a_session_is_found_on_disk_by_typing_and_resumed(place: SharedPlace, sessions: LiveSessions) -> None:
    made = sessions.create(script("Remember the octopus.", "I will."), **at(place))
    await elsewhere(lambda: sessions.status(made["sessionId"], waitSeconds=50))
    async with opened(place) as screen:
        await screen.pilot.press("f3")
        await screen.type("octopus")
        await screen.until(lambda: len(screen.app.main.rows) == 1, "filtered")
        await screen.pilot.press("enter")
        await screen.shows("> Remember the octopus.", "I will.")
        await screen.say(script("Still?", "Still."))
        await screen.shows("Still.", "✓ done")
        assert screen.view.conversation.session_id == made["sessionId"]
        await screen.until(lambda: screen.kinds == ["prompt", "text", "prompt", "text"])


@pytest.mark.soak  # of a client: tests/startup/shared
async def test_the_server_is_restarted_and_the_conversation_continues(place: SharedPlace) -> None:
    async with opened(place) as screen:
        await screen.say(script("Before.", "Said before."))
        await screen.shows("Said before.", "✓ done")
        await elsewhere(lambda: place.command("shared", "stop"))
        await screen.shows("no server")
        await elsewhere(lambda: place.command("shared", "start"))
        await screen.until(lambda: "no server" not in screen.text)
        await screen.shows("Said before.")
        await screen.say(script("After.", "Said after."))
        await screen.until(lambda: screen.kinds == ["prompt", "text", "prompt", "text"])


@pytest.mark.soak  # tests/plugins/console/browser/test_review.py has its conversation
async def test_the_conversation_of_a_subagent_has_a_screen_of_its_own_while_it_works(
    place: SharedPlace, tmp_path: Path
) -> None:
    may_end = tmp_path / "may-end"
    steps = (tool("Read", file_path="${cwd}/none.md"), text("Looked. ", repeat=2, until=str(may_end)))
    where = {"subagent_type": "Explore", "run_in_background": False}
    asks = tool("Task", description="Look", prompt=script("Look around.", *steps), **where)
    async with opened(place) as screen:
        await screen.say(script("Have it looked at.", asks, "All done."))
        await screen.shows("a: its conversation")
        screen.view.focus()
        await screen.pilot.press("a")
        await screen.shows("Subagent ", "> Look around.", "▸ ✗ Read")
        assert "Looked. Looked." not in screen.text
        may_end.touch()
        await screen.shows("Looked. Looked.")
        assert "All done." not in screen.text
        await screen.pilot.press("escape")
        await screen.shows("All done.", "✓ done")


@pytest.mark.soak  # found by typing: the test above
async def test_a_session_is_opened_where_the_text_stands_that_it_was_found_by(
    place: SharedPlace, sessions: LiveSessions
) -> None:
    answer = "The zephyrine stands here.\n\n" + "\n\n".join(f"Paragraph {number}." for number in range(80))
    made = sessions.create(script("Write.", text(answer)), **at(place))
    await elsewhere(lambda: sessions.status(made["sessionId"], waitSeconds=50))
    async with opened(place) as screen:
        await screen.pilot.press("f3")
        await screen.type("~zephyrine")
        await screen.until(lambda: [row.id for row in screen.app.main.rows] == [made["sessionId"]])
        await screen.pilot.press("enter")
        await screen.shows("▌ The zephyrine stands here.")
        assert "Paragraph 79." not in screen.text


@pytest.mark.soak
async def test_at_a_usage_limit_one_key_waits_and_one_continues(place: SharedPlace) -> None:
    prompt = script("Work.", limited(time.time() + 3600, times=1, then="Worked."))
    with Target().join({**place.environment, **SUBSCRIPTION}) as client:
        made = LiveSessions(client).create(prompt, **at(place))
        async with opened(place, session_id=made["sessionId"]) as screen:
            await screen.shows("◷ usage limit", "resets at", "F6: wait")
            await screen.pilot.press("f6")
            await screen.shows("continues at", "Esc: stop waiting, F7: continue now")
            await screen.pilot.press("escape")
            await screen.shows("F6: wait")
            await screen.pilot.press("f7")
            await screen.shows("Worked.", "✓ done")
