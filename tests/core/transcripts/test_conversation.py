"""A transcript is a tree of lines: which are the conversation, and what can be read of it, whatever is damaged."""

import json
import os
import random
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claude_code_mcp.core.transcripts import conversation
from claude_code_mcp.core.transcripts.conversation import ConversationTurn, read_turn, turn_of
from claude_code_mcp.core.transcripts.outline import outline, read_outline
from claude_code_mcp.core.transcripts.transcript_export import Detail, markdown, page, read_page, turn_text


def line(uuid: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "parentUuid": parent, "type": role, "message": {"role": role, "content": content}, **more}


def prompt(uuid: str, parent: str | None, text: str, **more: Any) -> dict[str, Any]:
    return line(uuid, parent, "user", text, **more)


def answer(uuid: str, parent: str | None, *blocks: Any) -> dict[str, Any]:
    texts = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return line(uuid, parent, "assistant", texts)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": name, "input": arguments}


def result(uuid: str, parent: str, name: str, text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": name, "content": text, **more}]
    return line(uuid, parent, "user", content)


def written(tmp_path: Path, *lines: Any) -> str:
    path = tmp_path / "transcript.jsonl"
    raw = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)
    path.write_bytes(b"".join(one + b"\n" for one in raw))
    return str(path)


def turns(path: str) -> list[ConversationTurn]:
    return [read_turn(path, places) for places in read_outline(path).turns]


def prompts_and_items(path: str) -> list[tuple[str | None, list[str]]]:
    return [(turn.prompt, [item.text or item.name for item in turn.items]) for turn in turns(path)]


# -- which lines count --------------------------------------------------------------------------------------------


def test_a_conversation_that_was_taken_back_continues_in_its_last_branch(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        prompt("1", None, "first"),
        answer("2", "1", "one"),
        prompt("3", "2", "given up"),
        answer("4", "3", "in vain"),
        prompt("5", "2", "instead"),
        answer("6", "5", "two"),
    )
    assert prompts_and_items(path) == [("first", ["one"]), ("instead", ["two"])]
    assert read_outline(path).left_behind == 2


def test_results_of_calls_that_ran_at_once_are_found_on_their_side_branches(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        prompt("1", None, "go"),
        answer("2", "1", call("a")),
        answer("3", "2", call("b")),
        result("4", "2", "a", "of a", is_error=True),
        result("5", "3", "b", "of b"),
        answer("6", "5", "done"),
    )
    (turn,) = turns(path)
    assert [(item.name, item.result, item.status) for item in turn.items[:2]] == [
        ("a", "of a", "error"),
        ("b", "of b", "ok"),
    ]
    assert read_outline(path).left_behind == 0


def test_calls_of_one_answer_are_kept_in_any_order_of_completion(tmp_path: Path) -> None:
    parts = [answer("a", "p", "Both."), answer("b", "a", call("One")), answer("c", "b", call("Two"))]
    for part in parts:
        part["message"]["id"] = "msg_1"
    late = [result("r2", "c", "Two", "2"), result("r1", "b", "One", "1")]
    path = written(tmp_path, prompt("p", None, "Go."), *parts, *late, answer("d", "r1", "Done."))
    assert prompts_and_items(path) == [("Go.", ["Both.", "One", "Two", "Done."])]
    (turn,) = turns(path)
    assert [item.result for item in turn.items if item.kind == "tool"] == ["1", "2"]
    assert [item.id for item in turn.items] == ["a:0", "One", "Two", "d:0"]
    assert read_outline(path).left_behind == 0


def test_an_error_is_shown_without_the_tags_that_are_for_the_model(tmp_path: Path) -> None:
    tagged = "<tool_use_error>File does not exist.</tool_use_error>"
    path = written(
        tmp_path,
        prompt("u1", None, "Go"),
        answer("a1", "u1", call("Read"), call("Bash")),
        result("r1", "a1", "Read", tagged, is_error=True),
        result("r2", "r1", "Bash", tagged),
    )
    assert [item.result for item in turns(path)[0].items] == ["File does not exist.", tagged]


def test_a_new_file_is_a_diff_of_added_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        prompt("u1", None, "Go"),
        answer("a1", "u1", call("Write")),
        {
            **result("r1", "a1", "Write", "File created successfully"),
            "toolUseResult": {"type": "create", "content": "one\ntwo\n", "structuredPatch": []},
        },
    )
    assert turns(path)[0].items[0].diff == "@@ -0,0 +1,2 @@\n+one\n+two"


def test_behind_a_damaged_line_the_conversation_continues_above_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        prompt("1", None, "first"),
        answer("2", "1", "one"),
        b'{"uuid": "3", "parentUuid": "2", "type": "user", "mess',
        answer("4", "3", "two"),
        b"\xff\xfe rubbish",
        prompt("5", "4", "last"),
    )
    assert prompts_and_items(path) == [("first", ["one", "two"]), ("last", [])]


def test_a_summary_leads_on_to_what_it_summarizes(tmp_path: Path) -> None:
    boundary = {"uuid": "3", "parentUuid": None, "logicalParentUuid": "2", "type": "system"}
    path = written(
        tmp_path,
        prompt("1", None, "first"),
        answer("2", "1", "one"),
        {**boundary, "subtype": "compact_boundary"},
        prompt("4", "3", "This session is being continued", isCompactSummary=True),
        prompt("5", "4", "second"),
    )
    assert [turn.prompt for turn in turns(path)] == ["first", "second"]
    assert "summarized" in turns(path)[0].items[1].text
    assert "continued" not in turn_text(1, turns(path)[0], Detail(full=True))


def test_lines_in_a_circle_end_somewhere(tmp_path: Path) -> None:
    path = written(tmp_path, prompt("1", "3", "first"), answer("2", "1", "one"), prompt("3", "2", "second"))
    assert prompts_and_items(path) == [("first", ["one"]), ("second", [])]


def test_endless_turn_is_read_as_prompt_and_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_MAX_TURN_BYTES", 1000)
    lines = [answer(str(number), str(number - 1), f"{number}" * 100) for number in range(1, 10)]
    ((asked, (note, *shown)),) = prompts_and_items(written(tmp_path, prompt("0", None, "first"), *lines))
    assert asked == "first"
    assert 0 < len(shown) < 9
    assert shown[-1] == "9" * 100
    assert re.search(rf"\b{9 - len(shown)} lines\b", note)
    ((_, only),) = prompts_and_items(written(tmp_path, prompt("0", None, "first"), answer("1", "0", "x" * 5000)))
    assert only == ["x" * 5000], "a line has a limit of its own"


def test_the_memory_for_a_line_is_bounded_however_long_a_transcript_is() -> None:
    def lines(count: int) -> Iterator[tuple[bytes, int]]:
        end = 0
        for number in range(count):
            ids = {"uuid": f"{number:036d}", "parentUuid": f"{number - 1:036d}" if number else None}
            use = {"type": "tool_use", "id": f"toolu_{number:024d}", "name": "Bash", "input": {"command": "x" * 2000}}
            message = {"role": "assistant", "id": f"msg_{number:024d}", "content": [use]}
            if number % 10 == 0:
                message = {"role": "user", "content": "go on"}
            raw = json.dumps({**ids, "type": message["role"], "message": message}).encode()
            end += len(raw) + 1
            yield raw, end

    count = 5000
    tracemalloc.start()
    try:
        found = outline(lines(count))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.turns) == count // 10
    assert peak / count < 250, "while it is read; objects for each line took more than 700 bytes"
    assert kept / count < 40, "for as long as it is kept"


def test_latest_of_many_lines_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claude_code_mcp.core.transcripts.outline._MAX_LINES", 10)
    lines = [prompt(str(number), str(number - 1) if number else None, f"prompt {number}") for number in range(95)]
    found = prompts_and_items(written(tmp_path, *lines))
    assert 10 <= len(found) < 20
    assert found[-1] == ("prompt 94", [])


def test_a_message_into_a_running_turn_and_an_interruption_are_part_of_it(tmp_path: Path) -> None:
    queued = {"uuid": "3", "parentUuid": "2", "type": "attachment"}
    path = written(
        tmp_path,
        prompt("1", None, "go"),
        answer("2", "1", "well"),
        {**queued, "attachment": {"type": "queued_command", "prompt": "faster"}},
        answer("4", "3", "yes"),
        prompt("5", "4", "[Request interrupted by user]"),
    )
    (turn,) = turns(path)
    assert [(item.kind, item.text) for item in turn.items] == [
        ("text", "well"),
        ("message", "faster"),
        ("text", "yes"),
        ("note", "Interrupted."),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_branch_of_the_last_message_is_read_from_any_tree(seed: int) -> None:
    """The lines on the way from the last message to the root, no more and no fewer, in their order."""
    chance = random.Random(seed)
    parents: dict[str, str | None] = {"0": None}
    for number in range(1, chance.randrange(2, 60)):
        parents[str(number)] = str(chance.randrange(number))
    lines = [
        prompt(uuid, parent, uuid) if chance.random() < 0.4 else answer(uuid, parent, uuid)
        for uuid, parent in parents.items()
    ]
    raw = [json.dumps(one).encode() for one in lines]
    ends = [sum(len(one) + 1 for one in raw[: number + 1]) for number in range(len(raw))]
    expected: list[str] = []
    at: str | None = str(len(lines) - 1)
    while at is not None:
        expected.append(at)
        at = parents[at]
    found = outline(zip(raw, ends, strict=True))
    starts = {end - len(one) - 1: number for number, (one, end) in enumerate(zip(raw, ends, strict=True))}
    assert [str(starts[place.start]) for turn in found.turns for place in turn] == expected[::-1]
    assert found.left_behind == len(lines) - len(expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image", "?"])},
        optional={
            "text": JSON, "thinking": JSON, "id": JSON, "name": JSON, "input": JSON, "content": JSON,
            "tool_use_id": JSON, "is_error": JSON,
        },
    ),
    max_size=3,
)  # fmt: skip
LINES = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "assistant", "system", "attachment"]), "uuid": st.sampled_from("abcdef")},
    optional={
        "parentUuid": st.sampled_from("abcdefg") | JSON,
        "logicalParentUuid": JSON,
        "message": JSON | st.fixed_dictionaries({"content": JSON | BLOCKS}, optional={"model": JSON, "usage": JSON}),
        "attachment": JSON | st.fixed_dictionaries({"type": st.just("queued_command"), "prompt": JSON | BLOCKS}),
        "toolUseResult": JSON | st.fixed_dictionaries({}, optional={"structuredPatch": JSON, "agentId": JSON}),
        "subtype": st.just("compact_boundary"),
        "timestamp": JSON,
        "isMeta": JSON,
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LINES | st.binary(max_size=30), max_size=5))
def test_nothing_in_a_transcript_breaks_the_reader(lines: list[Any]) -> None:
    raw = [one.replace(b"\n", b"") if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    ends = [sum(len(one) + 1 for one in raw[: number + 1]) for number in range(len(raw))]
    found = outline(zip(raw, ends, strict=True))
    content = b"".join(one + b"\n" for one in raw)
    shown = [
        turn_of(parsed for place in places if isinstance(parsed := json.loads(content[place.start : place.end]), dict))
        for places in found.turns
    ]
    for detail in (Detail(), Detail(full=True, thinking=True)):
        "".join(markdown("title", [], shown, detail)).encode("utf-8", "replace")
        "".join(page("title", [], shown, detail)).encode("utf-8", "replace")


# -- pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 50, 333, 5000, 10**6])
def test_pages_one_after_the_other_are_the_whole(tmp_path: Path, size: int) -> None:
    lines = []
    for number in range(12):
        parent = f"a{number - 1}" if number else None
        lines += [prompt(f"p{number}", parent, f"prompt {number}")]
        lines += [answer(f"a{number}", f"p{number}", f"{number} " * 40 * number, call("Bash", command="ls"))]
    path = written(tmp_path, *lines)
    found = read_outline(path)
    whole = [turn_text(n, turn, Detail()) for n, turn in enumerate(turns(path), 1)]
    read, cursor = "", "1"
    for _ in range(100_000):
        shown = read_page(path, found, cursor, size, Detail(), lambda value: value)
        read += shown.text + ("\n" if shown.next_cursor is None or "." not in shown.next_cursor else "")
        if shown.next_cursor is None:
            break
        cursor = shown.next_cursor
    assert read.rstrip("\n") == "\n".join(whole).rstrip("\n")
    last = read_page(path, found, "-1", 10**6, Detail(), lambda value: value)
    assert last.text == whole[-1]
    assert read_page(path, found, "99", 10, Detail(), lambda value: value).text == ""


@pytest.mark.parametrize("cursor", ["", "x", "1.", ".5", "1.5.7", "1e3", "٣", "1 ", "9" * 40])
def test_invalid_cursor_is_refused(tmp_path: Path, cursor: str) -> None:
    path = written(tmp_path, prompt("1", None, "first"))
    with pytest.raises(ValueError, match="cursor"):
        read_page(path, read_outline(path), cursor, 10, Detail(), lambda value: value)


def test_secret_is_redacted_before_text_is_paged(tmp_path: Path) -> None:
    path = written(tmp_path, prompt("1", None, "first"), answer("2", "1", "x" * 40 + "SECRET" + "y" * 40))
    found = read_outline(path)
    for size in range(1, 120):
        shown = read_page(path, found, "1", size, Detail(), lambda value: json.loads(
            json.dumps(value).replace("SECRET", "[redacted]")))  # fmt: skip
        assert "SEC" not in shown.text


# -- what is written ----------------------------------------------------------------------------------------------

HOSTILE = (
    '</pre></details><script>alert(1)</script><img src="http://evil.example/x.png" onerror=alert(1)>"\'&\u202e\x1b[31m'
)


def test_hostile_text_stays_text_on_the_page() -> None:
    table = f"{HOSTILE} | b\n--- | ---\n{HOSTILE} | {HOSTILE}"
    text = (
        f"# {HOSTILE}\n- {HOSTILE}\n1. {HOSTILE}\n\n{table}\n\n**{HOSTILE}** `{HOSTILE}`\n```{HOSTILE}\n{HOSTILE}\n```"
    )
    changed = {"structuredPatch": [{"lines": [f"+{HOSTILE}"]}]}
    lines = [
        prompt("1", None, HOSTILE),
        answer("2", "1", text, call(HOSTILE, **{HOSTILE: HOSTILE}), call("b", command=HOSTILE)),
        {**result("3", "2", HOSTILE, HOSTILE), "toolUseResult": changed},
        result("4", "2", "b", HOSTILE),
    ]
    html = "".join(page(HOSTILE, [(HOSTILE, HOSTILE)], [turn_of(lines)], Detail(full=True)))
    assert html.count("<script") == html.count("<img") == 0
    assert "\u202e" not in html
    assert "\x1b" not in html
    body = html.split("</style>", 1)[1]
    assert "http://evil.example" in body
    assert 'src="http' not in body
    assert "default-src 'none'" in html.split("<style>", 1)[0]


def test_what_the_model_said_is_rendered_as_markdown() -> None:
    text = "- a\n  - b\n3. c\n4. d\n\n| x | `y` |\n|---|:-:|\n| 1 | **2** |\n\n| no\ntable |"
    html = "".join(page("t", [], [turn_of([prompt("1", None, "x"), answer("2", "1", text)])], Detail()))
    assert "<li>a\n<ul>\n<li>b</li>\n</ul>\n</li>" in html
    assert '<ol start="3">\n<li>c</li>\n<li>d</li>\n</ol>' in html
    assert '<th>x</th>\n<th style="text-align:center"><code>y</code></th>' in html
    assert "<td>1</td>\n" in html
    assert "<p>| no\ntable |</p>" in html


def test_text_cannot_leave_its_block_in_markdown() -> None:
    lines = [prompt("1", None, "x"), answer("2", "1", call("Bash", command="echo\n````\n# no heading\n`````")),
             result("3", "2", "Bash", "```\nout\n```")]  # fmt: skip
    text = turn_text(1, turn_of(lines), Detail(full=True))
    assert "``````\necho\n````\n# no heading\n`````\n``````" in text
    assert "````\n```\nout\n```\n````" in text


def test_thinking_is_left_out_unless_it_is_asked_for() -> None:
    turn = turn_of([prompt("1", None, "x"), answer("2", "1", {"type": "thinking", "thinking": "hm"}, "said")])
    for detail, shown in ((Detail(), False), (Detail(full=True), False), (Detail(thinking=True), True)):
        assert ("hm" in turn_text(1, turn, detail)) is shown
        assert ("hm" in "".join(page("", [], [turn], detail)).split("</h2>")[1]) is shown


@pytest.mark.parametrize("kind", ["symlink", "fifo"])
def test_link_or_shared_file_is_not_read(tmp_path: Path, kind: str) -> None:
    target = Path(written(tmp_path, prompt("1", None, "of somebody else")))
    path = tmp_path / "agent-a1.jsonl"
    if kind == "symlink":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    assert read_outline(str(path)).turns == ()
    assert read_turn(str(path), read_outline(str(target)).turns[0]).prompt is None
