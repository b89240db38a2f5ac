"""What is on the screen, without a screen: folding, windows, chunks, order, choices, completion."""

import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.client.live_sessions import OpenQuestion
from claude_code_mcp.core.model.question import Question, QuestionKind
from claude_code_mcp.core.sessions.stored.session_row import SessionRow
from claude_code_mcp.plugins.tui import session_list
from claude_code_mcp.plugins.tui.blocks import MAX_BLOCKS, ShownConversation
from claude_code_mcp.plugins.tui.chunked_text import MAX_LENGTH, ChunkedText
from claude_code_mcp.plugins.tui.drawn_blocks import DrawnBlock, Palette
from claude_code_mcp.plugins.tui.input_box import commands, files, word_before
from claude_code_mcp.plugins.tui.part_answers import PartAnswers
from claude_code_mcp.plugins.tui.screens import budget_lines
from claude_code_mcp.plugins.tui.session_list import ShownRow, asking_elsewhere
from claude_code_mcp.plugins.tui.status_lines import top_line

from .recorded import BILLING, CHOICES, DOCS, EVENTS, NOW, SESSIONS, SHOP, WORK, listed, message


def page(*events: dict[str, Any], **summary: Any) -> dict[str, Any]:
    return {"sessionId": SHOP, "events": list(events), "nextCursor": "a-1", "session": summary}


def fragment(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": "fragment", "kind": kind, "text": text}


def said(uuid: str, text: str) -> dict[str, Any]:
    return message("assistant", uuid, {"type": "text", "text": text})


def shown(conversation: ShownConversation) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in conversation.blocks]


# -- folding ------------------------------------------------------------------------------------------------------


def test_fragments_become_the_block_that_the_whole_message_is() -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(page(fragment("Hel")))
    conversation.fold(page(fragment("lo"), fragment(" there")))
    assert shown(conversation) == [("text", "Hello there")]
    assert conversation.blocks[0].streaming
    conversation.fold(page(said("u1", "Hello there.")))
    assert shown(conversation) == [("text", "Hello there.")]
    assert not conversation.blocks[0].streaming


def test_thinking_that_was_streamed_and_the_text_behind_it_are_two_blocks() -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(page(fragment("hm", "thinking"), fragment("So")))
    assert [kind for kind, _ in shown(conversation)] == ["thinking", "text"]


def test_a_budget_that_is_nearly_used_up_is_noted_and_among_the_costs() -> None:
    low = "80 % of the budget for this month is spent: $80.00 of $100.00."
    conversation = ShownConversation(SHOP)
    conversation.fold(page(said("u1", "Done."), {"type": "budget", "warning": low}))
    assert shown(conversation) == [("text", "Done."), ("note", low)]
    month = {"period": "month", "group": None, "limitUsd": 100.0, "spentUsd": 80.0, "warning": low}
    day = {"period": "day", "group": "leads", "limitUsd": 20.0, "spentUsd": 1.25}
    blank, of_day, of_month = budget_lines({"budgets": [day, month]})
    assert (blank, of_month) == ("", low)
    assert {"$1.25", "$20", "day", "leads"} <= {*of_day.split()}
    assert budget_lines({}) == []


def test_history_and_feed_are_merged_in_order_without_duplicates() -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(page(*EVENTS))
    items: list[dict[str, Any]] = [
        {"kind": "prompt", "id": "m0", "text": "Before"},
        {"kind": "text", "id": "u0", "text": "Said before"},
        {"kind": "prompt", "id": "m1", "text": "The cart shows the wrong total. Fix it."},
        {"kind": "tool", "id": "t1", "name": "Read", "input": {"file_path": "cart.py"}, "status": "ok"},
    ]
    assert conversation.add_history(items, None) == 2
    assert [block.id for block in conversation.blocks] == ["m0", "u0", "m1", "u1", "t1", "u4", "t2"]
    conversation.fold(page(*EVENTS))
    assert len(conversation.blocks) == 7


def test_a_message_that_was_sent_from_here_is_shown_once() -> None:
    conversation = ShownConversation("s")
    conversation.sent("mine")
    conversation.fold(
        page(*({"type": "message_joined", "messageId": each, "text": each} for each in ("theirs", "mine", "mine")))
    )
    assert shown(conversation) == [("message", "mine"), ("message", "theirs")]


def test_result_is_assigned_to_its_call_and_subagents_are_distinguished() -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(page(*EVENTS))
    calls = {block.id: block for block in conversation.blocks if block.kind == "tool"}
    assert (calls["t1"].status, calls["t2"].status) == ("ok", "")
    inner = message("assistant", "u9", {"type": "tool_use", "id": "t9", "name": "Bash", "input": {"command": "ls"}})
    inner["message"]["parent_tool_use_id"] = "t2"
    conversation.fold(page(inner))
    assert conversation.blocks[-1].within_agent


def test_a_folded_command_shows_its_purpose_and_the_end_of_its_output_and_an_edit_its_size() -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(page(*WORK))
    drawn = {}
    for block in conversation.blocks:
        picture = DrawnBlock(block)
        picture.draw(100, Palette())
        drawn[block.id] = [strip.text.rstrip() for strip in picture.strips if strip.text.strip()]
    tests = ["tests/test_cart.py ..F", "E  assert 8 == 11", "1 failed, 2 passed"]
    assert drawn["w6"] == ["▸ ✓ Run the tests  Run: pytest -q tests", *(f"    {line}" for line in tests)]
    assert drawn["w7"] == ["▸ ✓ Run: ls", "    one", "    two"]
    assert drawn["w5"] == ["▸ ✓ Edit /src/shop/cart.py: 1 line changed  +2 −1"]
    assert drawn["w8"] == ["▸ ✗ Read gone.py", "    File does not exist."]


def test_calls_that_only_look_are_one_line_until_one_fails_or_another_call_is_between() -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(page(*WORK[:5]))
    conversation.fold_read_calls()
    assert [block.run for block in conversation.blocks] == [None] * 3, "two calls are no run"
    conversation.fold(page(*WORK))
    conversation.fold_read_calls()
    runs = [(block.id, block.run.line) for block in conversation.blocks if block.run is not None]
    assert runs == [("w0", "Read 4 files, searched 1 time")]
    assert [block.id for block in conversation.blocks if block.is_hidden] == ["w1", "w2", "w3", "w4"]
    failed = {"type": "tool_result", "tool_use_id": "w2", "content": "no", "is_error": True}
    conversation.fold(page(message("user", "again", failed)))
    conversation.fold_read_calls()
    assert not any(block.is_hidden for block in conversation.blocks)


def test_an_error_is_shown_without_the_tags_that_are_for_the_model() -> None:
    conversation = ShownConversation(SHOP)
    read = message("assistant", "u1", {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "x"}})
    tagged = "<tool_use_error>File does not exist.</tool_use_error>"
    failed = {"type": "tool_result", "tool_use_id": "t1", "content": tagged, "is_error": True}
    conversation.fold(page(read, message("user", "u2", failed)))
    assert conversation.blocks[0].result == "File does not exist."


def test_the_report_of_a_subagent_is_shown_without_the_note_for_the_model() -> None:
    conversation = ShownConversation(SHOP)
    call = message("assistant", "u1", {"type": "tool_use", "id": "t1", "name": "Agent", "input": {"prompt": "Look"}})
    report = {"type": "tool_result", "tool_use_id": "t1", "content": "[Subagent hand-back] a note\n\nAll pass."}
    result = message("user", "u2", report)
    result["message"]["tool_use_result"] = {"agentId": "a1b2"}
    conversation.fold(page(call, result))
    assert conversation.blocks[0].result == "All pass."


def test_a_subagent_is_known_from_its_start_and_not_lost_with_a_result_that_does_not_name_it() -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(page(*EVENTS))
    call = next(block for block in conversation.blocks if block.id == "t2")
    started = {"type": "system", "subtype": "task_started", "task_id": "a1b2", "tool_use_id": "t2"}
    conversation.fold(page({"type": "message", "message": {**started, "task_type": "local_bash"}}))
    assert call.agent == ""
    conversation.fold(page({"type": "message", "message": {**started, "task_type": "local_agent"}}))
    assert call.agent == "a1b2"
    failed = {"type": "tool_result", "tool_use_id": "t2", "content": "interrupted", "is_error": True}
    conversation.fold(page(message("user", "u8", failed)))
    assert (call.status, call.agent) == ("error", "a1b2")


def test_a_turn_without_a_login_says_once_what_it_is_and_what_to_type() -> None:
    conversation = ShownConversation(SHOP)
    said = {"type": "text", "text": "Not logged in · Please run /login"}
    ending = {"type": "turn_ended", "turn": 1, "code": "api_error", "result": said["text"]}
    advice = "(For the server: `claude-code-mcp claude auth login` on its machine.)"
    conversation.fold(page(message("assistant", "u1", said), {**ending, "detail": f"{said['text']} {advice}"}))
    assert shown(conversation) == [("text", said["text"]), ("note", f"The turn ended: api_error. {advice}")]


def test_transcript_written_elsewhere_grows_at_its_end() -> None:
    conversation = ShownConversation(SHOP)
    conversation.add_history([{"kind": "prompt", "id": "m0", "text": "One"}], None)
    grown = [{"kind": "prompt", "id": "m0", "text": "One"}, {"kind": "text", "id": "u1", "text": "Two"}]
    conversation.add_newer(grown)
    conversation.add_newer(grown)
    assert shown(conversation) == [("prompt", "One"), ("text", "Two")]


def test_a_window_of_blocks_is_kept_and_the_rest_can_be_read_again() -> None:
    conversation = ShownConversation(SHOP)
    for number in range(MAX_BLOCKS + 50):
        conversation.fold(page(said(f"u{number}", f"Number {number}")))
    assert len(conversation.blocks) == MAX_BLOCKS
    assert conversation.has_older
    assert conversation.first_id == "u50"


def test_a_hundred_thousand_deltas_take_a_bounded_amount_of_memory() -> None:
    conversation = ShownConversation(SHOP)
    delta, paragraph = fragment("words "), fragment("\n\n")
    for _ in range(1_000):
        conversation.fold(page(*[delta] * 99, paragraph))
    (block,) = conversation.blocks
    assert block.size < MAX_LENGTH + 10_000
    assert block.body.left_out > 300_000
    assert sum(map(sys.getsizeof, block.body.chunks)) < 2 * MAX_LENGTH


def test_one_long_line_is_bounded_too() -> None:
    text = ChunkedText()
    for _ in range(2_000):
        text.append("x" * 500)
    assert text.size < MAX_LENGTH + 10_000


# -- chunks -------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", "```\n", "```python\n", "  b", "1. c\n", "# d\n", "~~~"])))
def test_chunks_are_the_same_however_the_text_was_torn(parts: list[str]) -> None:
    whole, pieces = ChunkedText("".join(parts)), ChunkedText()
    for part in parts:
        for character in part:
            pieces.append(character)
    assert (whole.chunks, whole.tail) == (pieces.chunks, pieces.tail)


def test_code_that_is_too_long_for_a_chunk_continues_as_code() -> None:
    text = ChunkedText("```python\n" + "x = 1\n" * 3_000 + "```\nend\n")
    assert len(text.chunks) > 2
    assert all(chunk.startswith("```python\n") for chunk in text.chunks)
    assert all(chunk.rstrip().endswith("```") for chunk in text.chunks[:-1])
    assert text.text.count("x = 1") == 3_000


def test_a_streamed_answer_is_drawn_like_the_whole_one() -> None:
    answer = "# Head\n\nText with **bold**.\n\n- a\n- b\n\n```python\nx = 1\n\ny = 2\n```\n\nEnd.\n"
    streamed, whole = ShownConversation(SHOP), ShownConversation(SHOP)
    drawn: DrawnBlock | None = None
    for character in answer:
        streamed.fold(page(fragment(character)))
        drawn = drawn or DrawnBlock(streamed.blocks[0])
        drawn.draw(60, Palette())
    whole.fold(page(said("u", answer)))
    at_once = DrawnBlock(whole.blocks[0])
    at_once.draw(60, Palette())
    assert drawn is not None
    assert [strip.text.rstrip() for strip in drawn.strips] == [strip.text.rstrip() for strip in at_once.strips]


# -- hostile text -------------------------------------------------------------------------------------------------

HOSTILE = [
    "\x1b[2J\x1b[H\x1b]0;title\x07",
    "\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\u202eoverride\u202c zero\u200bwidth",
    "[bold red]markup[/] [@click=app.quit]quit[/] [link=https://evil.example]x[/link]",
    "bell\x07 backspace\x08\x08 cr\rover nul\x00 c1\x9b31m",
    "<script>alert(1)</script> <!-- hidden -->",
    "[hidden]: https://evil.example 'a title nobody sees'",
    "```\x1b[31m\n\x1b[0m```",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_others_wrote_steers_the_terminal_or_hides(hostile: str) -> None:
    conversation = ShownConversation(SHOP)
    conversation.fold(
        page(
            {"type": "turn_started", "turn": 1, "messageId": "m", "prompt": hostile},
            message("assistant", "u1", {"type": "thinking", "thinking": hostile}),
            said("u2", hostile),
            message("assistant", "u3", {"type": "tool_use", "id": "t", "name": hostile, "input": {hostile: hostile}}),
            message("user", "u4", {"type": "tool_result", "tool_use_id": "t", "content": hostile}),
            fragment(hostile),
        )
    )
    for block in conversation.blocks:
        block.is_open = True
        drawn = DrawnBlock(block)
        drawn.draw(200, Palette())
        for strip in drawn.strips:
            assert all(character.isprintable() for character in strip.text), repr(strip.text)
            assert not any(segment.style and (segment.style.link or segment.style.meta) for segment in strip)
    (text,) = [block for block in conversation.blocks if block.id == "u2"]
    drawn = DrawnBlock(text)
    drawn.draw(400, Palette())
    all_shown = "".join(strip.text for strip in drawn.strips)
    for word in ("evil.example", "alert(1)", "hidden", "nobody sees", "[bold red]"):
        assert (word in hostile) <= (word in all_shown), all_shown


def arranged(
    live: Iterable[dict[str, Any]], stored: Iterable[dict[str, Any]], now: float, wanted: str = ""
) -> list[ShownRow]:
    return session_list.arranged(map(SessionRow.from_json, live), map(SessionRow.from_json, stored), now, wanted)


def test_rows_are_on_one_line_and_hold_nothing_invisible() -> None:
    (row,) = arranged([listed(SHOP, "a\nb\x1b[2J", "p\u202e", activeStatus="running", asks=["x\n\x07"])], [], NOW)
    assert all(text.isprintable() for text in (row.title, row.project, row.details, *row.asks))


def test_a_row_says_whose_it_is_and_with_whom_it_is_shared() -> None:
    shares = [{"with": "bob\u202e", "access": "watch"}, {"with": "group:leads", "access": "answer"}]
    own, theirs, plain = (
        session_list.row_of(SessionRow.from_json(listed(SHOP, "Title", "p", **more)), NOW)
        for more in ({"sharedWith": shares}, {"owner": "ann\x1b", "sharedWith": shares[1:]}, {})
    )
    assert own.details.startswith("shared · p")
    assert own.sharing.endswith(" bob\\u202e (watch), group:leads (answer)")
    assert theirs.details.startswith("of ann\\u001b · p")
    assert theirs.sharing.endswith(" group:leads (answer)")
    assert "ann\\u001b ·" in theirs.sharing
    assert plain.sharing == ""
    line = top_line(theirs.title, 0, "", Palette(), sharing=theirs.sharing).plain
    assert line == " Title · of ann\\u001b · shared with group:leads (answer)"


# -- the list -----------------------------------------------------------------------------------------------------


def test_those_that_need_a_person_are_first_then_those_busy_then_the_rest() -> None:
    asking = {**SESSIONS[1], "activeStatus": "waiting_for_input", "asks": ["Run: ls", "Run: cat"]}
    live = [SESSIONS[0], asking, SESSIONS[2]]
    random.Random(1).shuffle(live)
    rows = arranged(live, SESSIONS, NOW)
    assert [row.id for row in rows][:3] == [BILLING, SHOP, DOCS]
    assert asking_elsewhere(rows, SHOP) == 2
    assert asking_elsewhere(rows, BILLING) == 0


def test_the_filter_takes_words_in_any_order_and_case() -> None:
    assert [row.id for row in arranged(SESSIONS[:1], SESSIONS, NOW, "TOTAL cart")] == [SHOP]
    assert arranged(SESSIONS, [], NOW, "nothing like it") == []


def test_sessions_of_a_fleet_are_grouped_by_machine_and_filtered_by_it() -> None:
    asking = listed("5" * 36, "d", "p", machine="desk", activeStatus="waiting_for_input", asks=["x"])
    at = {name: f"2026-01-01T0{hour}:00:00Z" for hour, name in enumerate("abc", 1)}
    stored = [
        listed("1" * 36, "a", "p", machine="desk") | {"timestamp": at["a"]},
        listed("2" * 36, "b", "p", machine="lap\x1btop") | {"timestamp": at["b"]},
        listed("3" * 36, "c", "p", machine="desk") | {"timestamp": at["c"]},
    ]
    rows = arranged([asking], stored, NOW)
    # Who asks comes first, wherever it is; of the rest the machine that was used last.
    assert [row.title for row in rows] == ["d", "c", "a", "b"]
    assert rows[1].details.startswith("desk · ")
    assert "\x1b" not in rows[3].machine
    assert [row.title for row in arranged([], stored, NOW, "top")] == ["b"]
    # One that is gone says so wherever it is named, and is found by that.
    gone = listed("4" * 36, "e", "p", machine="attic", machineGone=True) | {"timestamp": at["c"]}
    (row,) = arranged([], [*stored, gone], NOW, "(gone)")
    assert (row.title, row.machine) == ("e", "attic (gone)")


# -- choices and completion ---------------------------------------------------------------------------------------


def choosing() -> PartAnswers:
    asked = Question("q", SHOP, QuestionKind.USER_QUESTION, "AskUserQuestion", {"questions": CHOICES}, "")
    return PartAnswers(OpenQuestion(asked, SessionRow(session_id=SHOP), for_session=False))


def test_each_part_is_answered_by_marks_by_the_cursor_or_in_words() -> None:
    by_cursor = choosing()
    by_cursor.move(1)
    assert by_cursor.confirm() is None
    by_cursor.mark(0)
    by_cursor.mark(1)
    by_cursor.mark(0)
    assert by_cursor.confirm() == {"decision": "allow", "answers": ["two", ["texts"]]}
    in_words = choosing()
    assert in_words.say("three") is None
    assert in_words.say("everywhere") == {"decision": "allow", "answers": ["three", "everywhere"]}


def test_nothing_marked_is_no_answer_where_several_may_be() -> None:
    parts = choosing()
    parts.confirm()
    assert parts.confirm() is None
    assert parts.part is not None
    parts.mark(7)
    assert parts.confirm() is None
    assert parts.say("  ") is None


def test_a_word_is_completed_where_it_is_a_command_or_a_mention(tmp_path: Path) -> None:
    assert word_before("/mo", 3, is_first_line=True) == ("/", "mo", 0)
    assert word_before("/mo", 3, is_first_line=False) is None
    assert word_before("say /mo", 7, is_first_line=True) is None
    assert word_before("see @src/m", 10, is_first_line=False) == ("@", "src/m", 4)
    assert commands(["model", "mode", "compact"], "mo") == ["mode", "model"]
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").touch()
    (tmp_path / ".secret").touch()
    assert files(str(tmp_path), "") == ["src/"]
    assert files(str(tmp_path), "src/M") == ["src/main.py"]
    assert files(str(tmp_path), ".s") == [".secret"]
    assert files(str(tmp_path / "none"), "x") == []
