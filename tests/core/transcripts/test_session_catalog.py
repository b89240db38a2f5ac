"""Which sessions are listed, on files written by hand: the odd ones are those that nobody writes on purpose."""

import os
import random
import uuid
from typing import Any

import pytest

from claude_code_mcp.core.model.text import iso
from claude_code_mcp.core.state.session_marks import Mark
from claude_code_mcp.core.transcripts import session_catalog
from claude_code_mcp.core.transcripts.index import File
from claude_code_mcp.core.transcripts.session_catalog import Catalog, HistoryEntry
from claude_code_mcp.core.transcripts.transcript_lines import folder_of
from claude_code_mcp.core.transcripts.transcript_summary import TranscriptSummary, summarize

from .catalog_disk import Disk, ids, lines, typed, user

# -- what is a session --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"no json at all",
        random.Random(0).randbytes(300_000),
        b"\x00" * 300_000,
        b"[" * 300_000,
        b'{"a":' * 300_000,
        b'"cwd":"' + b"\\" * 300_000,
        b'{"type":"user","message":{"role":"user","content":"half a li',
        lines({"type": "queue-operation", "operation": "enqueue", "content": "never begun"}),
        lines([1], "text", None, 3),
        lines({**user("subagent"), "isSidechain": True}),
        lines({**user("cwd is a number"), "cwd": 3}),
    ],
    ids=lambda content: content[:12].hex(),
)
def test_files_without_a_conversation_are_not_listed(disk: Disk, content: bytes) -> None:
    good = disk.session("hello")
    bad = disk.write(content)
    assert ids(disk.catalog) == [good]
    assert ids(disk.catalog, text="hello", project=str(disk.project)) == [good]
    assert disk.catalog.find(bad) is None
    assert list(disk.catalog.transcript_lines(bad)) in ([], ["> subagent"], ["> cwd is a number"])


def test_damaged_line_is_skipped_alone(disk: Disk) -> None:
    where = str(disk.project)
    torn = b'{"type":"user","message":{"role":"user","con\n' + lines(user("hello", cwd=where)) + b'{"type":"us'
    session_id = disk.write(torn)
    assert disk.catalog.list()[0].first_prompt == "hello"
    assert list(disk.catalog.transcript_lines(session_id)) == ["> hello"]


def test_only_transcripts_of_sessions_are_looked_at(disk: Disk) -> None:
    good = disk.session("hello")
    folder = disk.path_of(good).parent
    content = lines(user("not a session"))
    (folder / "agent-0123abcd.jsonl").write_bytes(content)
    (folder / f"{uuid.uuid4()}.json").write_bytes(content)
    (folder / "memory.jsonl").write_bytes(content)
    (folder / f"{uuid.uuid4()}.jsonl").mkdir()
    (folder / f"{uuid.uuid4()}.jsonl").symlink_to(folder / "gone")
    below = folder / good / "subagents"
    below.mkdir(parents=True)
    (below / f"{uuid.uuid4()}.jsonl").write_bytes(content)
    (disk.config / "projects" / f"{uuid.uuid4()}.jsonl").write_bytes(content)
    assert ids(disk.catalog) == [good]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_a_transcript_does_not_make_it_wait(disk: Disk) -> None:
    good = disk.session("hello")
    os.mkfifo(disk.path_of(good).parent / f"{uuid.uuid4()}.jsonl")
    os.mkfifo(disk.config / "history.jsonl")
    assert ids(disk.catalog) == [good]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_transcript_is_listed_without_what_is_in_it(disk: Disk) -> None:
    good, bad = disk.session("hello"), disk.session("secret")
    disk.path_of(bad).chmod(0)
    assert [(entry.session_id, entry.first_prompt) for entry in disk.catalog.list()] == [(bad, None), (good, "hello")]


def test_a_transcript_of_gigabytes_is_read_in_part(disk: Disk) -> None:
    session_id = disk.session("hello")
    path = disk.path_of(session_id)
    size = 8 << 30
    os.truncate(path, size)  # sparse: takes no room
    with path.open("ab") as file:
        file.write(b"\n" + lines({"type": "custom-title", "customTitle": "huge"}, user("the end")))
    entry = disk.catalog.list()[0]
    assert (entry.first_prompt, entry.title, entry.size > size) == ("hello", "huge", True)
    note, end = disk.catalog.transcript_lines(session_id)
    assert (note[0], note[-1], end) == ("[", "]", "> the end")


def test_a_machine_without_sessions_has_an_empty_list(disk: Disk) -> None:
    assert disk.catalog.list() == []
    assert disk.catalog.find(str(uuid.uuid4())) is None
    disk.config.mkdir()
    (disk.config / "projects").write_text("a file where a directory should be")
    assert disk.catalog.list() == []


# -- order, number and filters ------------------------------------------------------------------------------------


def test_the_newest_come_first_up_to_the_limit(disk: Disk) -> None:
    made = [disk.session(f"number {number}") for number in range(5)]
    assert ids(disk.catalog) == made[::-1]
    assert ids(disk.catalog, limit=2) == made[:2:-1]
    assert ids(disk.catalog, limit=0) == ids(disk.catalog, limit=-1) == []


def test_other_files_do_not_count_against_the_limit(disk: Disk) -> None:
    good = disk.session("hello")
    for _ in range(3):
        disk.write(b"rubbish")
    assert ids(disk.catalog, limit=1) == [good]


def test_a_text_is_found_in_title_prompt_directory_branch_and_id(disk: Disk) -> None:
    prompt = disk.session("Make the ÖVEN hot")
    title = disk.session("x", before=({"type": "ai-title", "aiTitle": "Colder fridge"},))
    branch = disk.session("x", gitBranch="Fix/kettle")
    directory = disk.session("x", cwd="/nowhere/Toaster")
    catalog = disk.catalog
    found = {text: ids(catalog, text=text) for text in ("öven", "FRIDGE", "kettle", "toaster", branch[:13], "?")}
    assert found == {
        "öven": [prompt], "FRIDGE": [title], "kettle": [branch], "toaster": [directory], branch[:13]: [branch], "?": [],
    }  # fmt: skip


def test_a_text_is_looked_for_beyond_the_limit_of_newest_ones(disk: Disk) -> None:
    old = [disk.session("needle one"), disk.session("needle two")]
    for _ in range(10):
        disk.session("hay")
    assert ids(disk.catalog, text="needle", limit=1) == [old[1]]


def test_the_list_can_be_of_certain_sessions_alone(disk: Disk) -> None:
    made = [disk.session("transcript") for _ in range(4)]
    wanted = frozenset({made[0], made[2], str(uuid.uuid4())})
    assert ids(disk.catalog, only=wanted) == [made[2], made[0]]
    assert ids(disk.catalog, only=wanted, limit=1) == [made[2]]
    assert ids(disk.catalog, only=frozenset()) == []


def test_a_directory_is_the_same_in_every_spelling(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = disk.session("hello")
    link = disk.project.parent / "link"
    link.symlink_to(disk.project)
    monkeypatch.chdir(disk.project.parent)
    spellings = [str(disk.project), f"{disk.project}/", f"{disk.project}/../project", str(link), "project", "./link/"]
    assert [ids(disk.catalog, project=spelling) for spelling in spellings] == [[session_id]] * len(spellings)


@pytest.mark.parametrize("wrong", ["", "/", "projec", "project/below", "/nowhere", "\x00", "\ud800", "x" * 5000])
def test_another_directory_has_other_sessions(disk: Disk, wrong: str) -> None:
    disk.session("hello")
    assert ids(disk.catalog, project=wrong) == []


def test_directories_with_equal_encoded_names_are_distinguished(disk: Disk) -> None:
    dotted, dashed = disk.session("x", cwd="/gone/my.app"), disk.session("x", cwd="/gone/my-app")
    assert disk.path_of(dotted).parent == disk.path_of(dashed).parent
    assert ids(disk.catalog, project="/gone/my.app/") == [dotted]
    assert ids(disk.catalog, project="/gone/my-app") == [dashed]


def test_the_sessions_of_a_directory_with_a_very_long_name_are_found(disk: Disk) -> None:
    long = "/gone/" + "/".join(["directory"] * 40)
    session_id = str(uuid.uuid4())
    folder = disk.config / "projects" / f"{folder_of(long)}-1x2y3z"
    folder.mkdir(parents=True)
    (folder / f"{session_id}.jsonl").write_bytes(lines(user("hello", cwd=long)))
    assert ids(disk.catalog, project=long) == [session_id]
    assert ids(disk.catalog, project=f"{long}/other") == []


def test_a_session_that_moved_belongs_to_its_new_directory(disk: Disk) -> None:
    moved = lines(user("hello", cwd="/gone/old"), {"type": "relocated", "relocatedCwd": "/gone/new"})
    session_id = disk.write(moved, cwd="/gone/new")
    disk.remember(typed(session_id, "hello", 1, "/gone/old"))
    assert [entry.project for entry in disk.catalog.list()] == ["/gone/new"]
    assert ids(disk.catalog, project="/gone/new") == [session_id]
    assert ids(disk.catalog, project="/gone/old") == []


def test_newer_of_two_transcripts_with_one_id_counts(disk: Disk) -> None:
    session_id = disk.session("older")
    disk.write(lines(user("newer", cwd="/elsewhere")), cwd="/elsewhere", session_id=session_id)
    assert [entry.first_prompt for entry in disk.catalog.list()] == ["newer"]
    found = disk.catalog.find(session_id)
    assert found
    assert found.first_prompt == "newer"


# -- the history --------------------------------------------------------------------------------------------------


def test_a_session_that_only_the_history_knows_cannot_be_resumed_and_is_not_listed(disk: Disk) -> None:
    session_id = str(uuid.uuid4())
    with_transcript = disk.session("in a transcript")
    disk.remember(typed(session_id, "first words", disk.clock + 20, str(disk.project)))
    assert ids(disk.catalog, project=str(disk.project)) == [with_transcript]
    assert ids(disk.catalog, text="first words") == []
    assert disk.catalog.find(session_id) is None
    assert disk.catalog.count() == 1
    assert list(disk.catalog.transcript_lines(session_id)) == []


def test_the_history_may_spell_the_id_of_a_session_in_two_ways(disk: Disk) -> None:
    named, other = disk.session("hello"), disk.session("hello")
    line = typed(named, "hello", disk.clock + 100, str(disk.project))
    line["session_id"] = line.pop("sessionId")
    disk.remember(line)
    assert ids(disk.catalog) == [named, other]


def test_a_session_in_both_places_is_listed_once(disk: Disk) -> None:
    session_id = disk.session("from the transcript")
    disk.session("newer transcript")
    disk.remember(typed(session_id, "from the history", disk.clock + 100, "/elsewhere"))
    entry = disk.catalog.list()[0]
    assert (entry.session_id, entry.first_prompt) == (session_id, "from the transcript")
    assert (entry.last_used, entry.project) == (disk.clock + 100, str(disk.project))
    assert len(disk.catalog.list()) == 2


def test_lines_of_the_history_that_tell_nothing_are_skipped(disk: Disk) -> None:
    made = [disk.session("hello") for _ in range(8)]
    later = disk.clock + 100
    good = typed(made[0], "good", later, "/somewhere")
    others = [typed(session_id, "bad", later, "/somewhere") for session_id in made[1:]]
    for line, field, value in zip(
        others,
        ("sessionId", "sessionId", "project", "timestamp", "timestamp", "timestamp", "timestamp"),
        ("../../etc/passwd", None, None, "now", -1, float("inf"), 10**400),
        strict=True,
    ):
        line[field] = value
    old = {"display": "from before ids", "timestamp": 1, "project": "/somewhere"}
    disk.remember(*others, old, good, b'{"sessionId": broken\n', b'["sessionId"]\n', b'{"sessionId":"half')
    assert ids(disk.catalog) == [made[0], *reversed(made[1:])], "only the good one was used later than its file"


def test_only_the_end_of_a_long_history_is_read(disk: Disk) -> None:
    old, new, unnamed = (disk.session("hello") for _ in range(3))
    disk.remember(
        typed(old, "x" * 3_000_000, disk.clock + 200, "/somewhere"), typed(new, "hello", disk.clock + 100, "/somewhere")
    )
    assert ids(disk.catalog) == [new, unnamed, old]


# -- the last use -------------------------------------------------------------------------------------------------


def said(at: str) -> dict[str, Any]:
    return {"timestamp": f"2023-11-{at}:00Z"}


def test_a_session_was_last_used_when_its_last_message_was_written(disk: Disk) -> None:
    early = disk.session("hello", **said("01T10:00"))
    late = disk.session("hello", **said("03T10:00"))
    middle = disk.session("hello", **said("02T10:00"))
    # As Claude Code does when its process ends.
    with disk.path_of(early).open("ab") as file:
        file.write(lines({"type": "cost-state", "modelUsage": {}}))
    assert ids(disk.catalog) == [late, middle, early]
    assert ids(disk.catalog, limit=1) == [late]
    assert iso(disk.catalog.list()[0].last_used).startswith("2023-11-03T10:00")
    catalog = Catalog(str(disk.config), disk.config.parent / "state")
    catalog.marks.set(middle, Mark.PINNED, True)
    assert ids(catalog) == [middle, late, early]


def test_a_listing_opens_no_more_transcripts_than_it_needs(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [disk.session("hello") for _ in range(20)]
    opened: list[str] = []

    def noted(path: str, *given: Any) -> TranscriptSummary:
        opened.append(path)
        return summarize(path, *given)

    monkeypatch.setattr(session_catalog, "summarize", noted)
    assert ids(disk.catalog, limit=2) == made[:-3:-1]
    assert len(opened) == 2


def test_in_a_copied_home_directory_only_the_first_listing_looks_into_all_transcripts(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every file is younger than the messages of all."""
    monkeypatch.setattr(session_catalog, "_SORTED_AFTER", 1)
    made = [disk.session("hello", **said(f"{day:02}T10:00")) for day in (5, 3, 9, 1, 7)]
    same = sorted(disk.session("hello", **said("02T10:00")) for _ in range(5))
    catalog = disk.catalog
    looked: list[str] = []
    last = [made[2], made[4], made[0], made[1], *same, made[3]]
    summary = catalog._summary

    def noted(file: File) -> TranscriptSummary | None:
        looked.append(session_catalog._session_of(file.path))
        return summary(file)

    monkeypatch.setattr(catalog, "_summary", noted)
    assert ids(catalog) == last
    looked.clear()
    assert ids(catalog, limit=2) == last[:2]
    assert set(looked) <= set(last[:3])
    assert [ids(catalog, limit=1, offset=at) for at in range(10)] == [[one] for one in last]
    with disk.path_of(made[3]).open("ab") as file:
        file.write(lines(user("again", cwd=str(disk.project), **said("20T10:00"))))
    assert ids(catalog, limit=2) == [made[3], last[0]]


def test_a_directory_with_a_line_break_in_its_name_is_found(disk: Disk) -> None:
    odd = disk.project / "two\nlines"
    odd.mkdir()
    session_id, other = disk.session("hello", cwd=str(odd)), disk.session("hello", cwd=f"{disk.project}/two lines")
    assert disk.path_of(session_id).parent == disk.path_of(other).parent
    assert session_id in ids(disk.catalog, project=str(odd))
    assert ids(disk.catalog, project=f"{disk.project}/two") == []


# -- remembering --------------------------------------------------------------------------------------------------


def test_disk_changes_are_seen_at_the_next_call(disk: Disk) -> None:
    catalog = disk.catalog
    session_id = disk.session("before")
    assert [entry.first_prompt for entry in catalog.list()] == ["before"]
    disk.write(lines(user("after", cwd=str(disk.project))), session_id=session_id)
    assert [entry.first_prompt for entry in catalog.list()] == ["after"]
    disk.path_of(session_id).unlink()
    assert catalog.list() == []


def test_a_session_that_comes_while_another_thread_lists_is_in_the_next_list(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, catalog, later = disk.session("first"), disk.catalog, []
    read_history = catalog._history

    def meanwhile() -> dict[str, HistoryEntry]:
        """After the files were listed and before they are ordered, another thread sees a new one."""
        later.append(disk.session("later"))
        assert set(catalog.ids()) == {first, *later}
        monkeypatch.undo()
        return read_history()

    monkeypatch.setattr(catalog, "_history", meanwhile)
    assert ids(catalog) == [first]
    assert ids(catalog) == [*later, first]


def test_no_more_files_are_opened_than_are_asked_for(disk: Disk) -> None:
    """A file that was replaced without a trace in the directory shows whether it was opened before."""
    catalog = disk.catalog
    made = [disk.session(f"number {number}") for number in range(6)]
    catalog.list(limit=2)
    for session_id in made:
        path = disk.path_of(session_id)
        facts = path.stat()
        path.write_bytes(path.read_bytes().replace(b"number", b"NUMBER"))
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    prompts = [entry.first_prompt for entry in catalog.list()]
    assert prompts == ["number 5", "number 4", "NUMBER 3", "NUMBER 2", "NUMBER 1", "NUMBER 0"]


@pytest.mark.parametrize("wrong", ["", "x", "../../etc/passwd", "*", "\x00", f"{uuid.UUID(int=7)}/.."])
def test_invalid_session_id_finds_nothing(disk: Disk, wrong: str) -> None:
    disk.session("hello")
    assert disk.catalog.find(wrong) is None
    assert list(disk.catalog.transcript_lines(wrong)) == []
