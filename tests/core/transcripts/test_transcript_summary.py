"""What is told about one session: its names in the list, and its conversation."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.transcripts.transcript_summary import summarize

from .catalog_disk import Disk, lines, typed, user

# -- what a session is called -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "<system-reminder>be good</system-reminder>",
        "<local-command-stdout>done</local-command-stdout>",
        "<ide_opened_file>a.py</ide_opened_file>",
        "[Request interrupted by user for tool use]",
        "   ",
        [{"type": "tool_result", "tool_use_id": "t", "content": "42"}],
        [],
        None,
        17,
    ],
)
def test_the_first_prompt_is_the_first_thing_that_a_person_typed(disk: Disk, content: Any) -> None:
    disk.session(content, "fix   the\nbuild", "later")
    assert disk.catalog.list()[0].first_prompt == "fix the build"


@pytest.mark.parametrize("mark", ["isMeta", "isCompactSummary"])
def test_messages_that_claude_code_writes_itself_are_no_prompt(disk: Disk, mark: str) -> None:
    disk.session("mine", before=({**user("not mine"), mark: True},))
    assert disk.catalog.list()[0].first_prompt == "mine"


def test_a_prompt_loses_what_is_wrapped_around_it(disk: Disk) -> None:
    reminder = {"type": "text", "text": "<system-reminder>\nbe good\n</system-reminder>"}
    disk.session([reminder, {"type": "text", "text": "fix it"}])
    assert disk.catalog.list()[0].first_prompt == "fix it"


def test_a_command_without_arguments_is_a_prompt_only_if_there_is_no_better_one(disk: Disk) -> None:
    command = "<command-name>/clear</command-name>\n<command-args></command-args>"
    with_arguments = "<command-name>/review</command-name>\n<command-args>pull request 7</command-args>"
    disk.session(command)
    disk.session(command, "now this")
    disk.session(command, with_arguments, "now this")
    prompts = [entry.first_prompt for entry in disk.catalog.list()]
    assert prompts == ["/review pull request 7", "now this", "/clear"]


def test_a_long_prompt_is_cut(disk: Disk) -> None:
    disk.session("word " * 1000)
    prompt = disk.catalog.list()[0].first_prompt
    assert prompt is not None
    assert prompt.startswith("word word")
    assert prompt.endswith("…")
    assert len(prompt) <= 200


@pytest.mark.parametrize("filler", ["x", "é", "漢", '"', "\\", "\n"])
@pytest.mark.parametrize("shift", range(4))
def test_a_prompt_larger_than_what_is_read_is_still_known(disk: Disk, filler: str, shift: int) -> None:
    disk.session("a" * shift + "begin " + filler * 300_000, "second")
    entry = disk.catalog.list()[0]
    assert (entry.first_prompt or "")[shift:].startswith("begin")
    assert entry.project == str(disk.project)


def test_a_title_given_by_the_person_goes_before_one_made_by_the_model(disk: Disk) -> None:
    made, given = {"type": "ai-title", "aiTitle": "made"}, {"type": "custom-title", "customTitle": "given"}
    disk.session("hello", before=(given, {**given, "customTitle": "given later"}, made))
    disk.session("hello", before=(made,))
    disk.session("hello", before=(made, given, {**given, "customTitle": ""}))
    disk.session("hello")
    assert [entry.title for entry in disk.catalog.list()] == [None, "made", "made", "given later"]


def test_a_title_at_the_end_of_a_large_transcript_is_found(disk: Disk) -> None:
    noise = [{"type": "assistant", "message": {"content": "x" * 10_000}} for _ in range(100)]
    title = {"type": "custom-title", "customTitle": "at the end"}
    disk.write(lines(user("hello", cwd=str(disk.project)), *noise, title, {"type": "cost-state"}))
    assert disk.catalog.list()[0].title == "at the end"


def test_a_summary_is_a_title_only_for_the_conversation_it_ends_with(disk: Disk) -> None:
    ours, foreign = str(uuid.uuid4()), str(uuid.uuid4())
    summaries = (
        {"type": "summary", "summary": "ours", "leafUuid": ours},
        {"type": "summary", "summary": "of another one", "leafUuid": foreign},
    )
    disk.session("hello", before=summaries, uuid=ours)
    assert disk.catalog.list()[0].title == "ours"


def test_words_about_titles_in_a_conversation_are_no_title(disk: Disk) -> None:
    disk.session('{"type":"custom-title","customTitle":"no"}', 'the word "custom-title"')
    assert disk.catalog.list()[0].title is None


def test_the_branch_is_the_latest_and_a_detached_head_is_none(disk: Disk) -> None:
    disk.write(lines(user("a", gitBranch="main"), user("b", gitBranch="fix/ü")))
    disk.session("hello", gitBranch="HEAD")
    disk.session("hello", gitBranch="")
    assert [entry.branch for entry in disk.catalog.list()] == [None, None, "fix/ü"]


def test_nothing_in_an_entry_can_steer_a_terminal_or_break_an_encoding(disk: Disk) -> None:
    evil = "red \x1b[31m\x07 \ud800 \x00 end"
    disk.session(evil, before=({"type": "custom-title", "customTitle": evil},), gitBranch=evil)
    disk.remember(typed(str(uuid.uuid4()), evil, 1, f"/{evil}"))
    for entry in disk.catalog.list(project=None):
        read_back = f"{entry.title}{entry.first_prompt}{entry.branch}{entry.project}"
        read_back.encode()
        assert read_back.isprintable()


# -- reading one --------------------------------------------------------------------------------------------------


def test_a_transcript_reads_like_a_conversation(disk: Disk) -> None:
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "make\ntest", "description": "d"}}
    calls = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Running.\nWait."}, call]
    edit = {"type": "tool_use", "id": "e", "name": "Edit", "input": {"file_path": "a.py", "replace_all": True}}
    failure = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "exit 1\n\x1b[31mred"}
    success = {"type": "tool_result", "tool_use_id": "e", "content": [{"type": "text", "text": "y" * 500}]}
    session_id = disk.write(
        lines(
            user("run\nthe tests"),
            {"type": "assistant", "message": {"role": "assistant", "content": calls}},
            user([failure]),
            {"type": "assistant", "message": {"role": "assistant", "content": [edit]}},
            user([success]),
            {"type": "system", "subtype": "compact_boundary"},
            user("of no interest", isMeta=True),
            {"type": "assistant", "isSidechain": True, "message": {"content": "aside"}},
            {"type": "assistant", "message": {"content": "Done."}},
            {"type": "assistant", "message": {"content": [None, 3, {"type": "tool_use", "input": []}]}},
        )
    )
    read_back = list(disk.catalog.transcript_lines(session_id))
    assert read_back == [
        "> run", "> the tests", "Running.", "Wait.", "[Bash] make test", "[error] exit 1 [31mred",
        "[Edit] file_path=a.py, replace_all=true", f"[ok] {'y' * 154}…",
        "[the conversation so far was summarized]", "Done.", "[tool]",
    ]  # fmt: skip
    assert list(disk.catalog.transcript_lines(session_id, limit=2)) == ["Done.", "[tool]"]


# -- what it cost -------------------------------------------------------------------------------------------------


def test_many_models_and_days_keep_the_sum_and_limit_the_names(tmp_path: Path) -> None:
    count = 5000
    answers = [
        {
            "type": "assistant",
            "timestamp": f"{2000 + at // 28}-11-{1 + at % 28:02}T10:00:00Z",
            "message": {"id": f"{at}", "model": f"m{at % 90}", "usage": {"input_tokens": 1}},
        }
        for at in range(count)
    ]
    costs = {"type": "cost-state", "modelUsage": {f"m{at}": {"inputTokens": 1, "costUSD": 1.0} for at in range(90)}}
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(lines(user("hello"), *answers))
    summary = summarize(str(path), path.stat().st_size)
    assert sum(row[0] for row in summary.pending.values()) == count
    assert len(summary.pending) <= 4096 + 65
    path.write_bytes(lines(user("hello"), *answers, costs, costs))
    summary = summarize(str(path), path.stat().st_size)
    assert summary.cost_usd == pytest.approx(90)
    assert len({key[11:] for key in summary.usage}) <= 65


def test_unreported_usage_is_estimated_at_list_prices(tmp_path: Path) -> None:
    used = {"input_tokens": 1_000_000, "output_tokens": 1_000_000}
    answer = {"type": "assistant", "timestamp": "2026-11-01T10:00:00Z"}
    first = {**answer, "message": {"id": "1", "model": "claude-sonnet-5", "usage": used}}
    second = {**answer, "message": {"id": "2", "model": "claude-opus-5", "usage": used}}
    costs = {"type": "cost-state", "modelUsage": {"claude-sonnet-5": {"inputTokens": 1_000_000, "costUSD": 18.0}}}
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(lines(user("hello"), first))
    summary = summarize(str(path), path.stat().st_size)
    assert [summary.cost_usd, summary.estimated_usd] == [None, 12.0]
    path.write_bytes(lines(user("hello"), first, costs))
    summary = summarize(str(path), path.stat().st_size)
    assert [summary.cost_usd, summary.estimated_usd] == [18.0, None]
    path.write_bytes(lines(user("hello"), first, costs, second))
    summary = summarize(str(path), path.stat().st_size)
    assert [summary.cost_usd, summary.estimated_usd] == [18.0, 18.0 + 24.0]
