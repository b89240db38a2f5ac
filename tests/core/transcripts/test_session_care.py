"""Titles, tags, marks, copies and removals, on files written by hand."""

import json
import multiprocessing
import uuid
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import SessionNotFound
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.session_marks import Mark, Marks
from claude_code_mcp.core.transcripts.session_catalog import Catalog
from claude_code_mcp.core.transcripts.transcripts import ProjectFolders, SessionFiles

from .catalog_disk import Disk, ids, lines, user


@pytest.fixture
def files(disk: Disk) -> SessionFiles:
    return SessionFiles(str(disk.config), ProjectFolders.below(str(disk.config)))


def kept(disk: Disk) -> Catalog:
    return Catalog(str(disk.config), disk.config.parent / "state")


def test_a_title_is_a_line_of_its_own_even_behind_an_unfinished_one(disk: Disk, files: SessionFiles) -> None:
    session_id = disk.session("hello")
    path = disk.path_of(session_id)
    path.write_bytes(path.read_bytes() + b'{"type": "assis')
    before = path.read_bytes()
    files.set_title(session_id, "A \u202e title\n\x1b[31m")
    assert path.read_bytes().startswith(before + b"\n")
    assert json.loads(path.read_bytes().splitlines()[-1])["type"] == "custom-title"
    assert [entry.title for entry in kept(disk).list()] == ["A \u202e title [31m"]
    files.set_title(session_id, "")
    assert [entry.title for entry in kept(disk).list()] == [None]
    assert not (path.with_suffix("") / "custom-title.json").exists()


def test_a_title_is_not_written_to_where_a_link_leads(disk: Disk, files: SessionFiles, tmp_path: Path) -> None:
    """A session may have made the link, and this server may write to more than the session may."""
    session_id, elsewhere = disk.session("hello"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    disk.path_of(session_id).with_suffix("").symlink_to(elsewhere)
    files.set_title(session_id, "A title")
    assert [entry.title for entry in kept(disk).list()] == ["A title"]
    assert list(elsewhere.iterdir()) == []


def test_a_session_without_a_transcript_has_nothing_to_be_named(disk: Disk, files: SessionFiles) -> None:
    for wrong in (str(uuid.uuid4()), "../../etc/passwd", ""):
        for act in (files.set_title, files.set_tag):
            with pytest.raises(SessionNotFound):
                act(wrong, "title")
    with pytest.raises(SessionNotFound):
        files.remove("..")


def test_a_copy_has_the_conversation_and_none_of_the_costs(disk: Disk, files: SessionFiles) -> None:
    source = disk.write(
        lines(
            {**user("hello", cwd=str(disk.project)), "sessionId": "old", "uuid": "1"},
            {"type": "cost-state", "modelUsage": {"opus": {"costUSD": 1.0}}},
            {"type": "tag", "tag": "mine"},
        )
        + b"rubbish\n"
    )
    copy = str(uuid.uuid4())
    files.copy(source, copy, "The copy")
    (found,) = [entry for entry in kept(disk).list() if entry.session_id == copy]
    assert (found.title, found.first_prompt, found.cost_usd, found.tag) == ("The copy", "hello", None, None)
    assert {json.loads(line)["sessionId"] for line in disk.path_of(copy).read_bytes().splitlines()} == {copy}
    assert disk.path_of(copy).stat().st_mode & 0o077 == 0
    assert not [path for path in disk.path_of(copy).parent.iterdir() if path.name.endswith(".tmp")]


def test_a_removal_takes_everything_of_the_session_and_nothing_else(disk: Disk, files: SessionFiles) -> None:
    gone, stays = disk.session("gone"), disk.session("stays")
    disk.write(lines(user("gone too", cwd="/elsewhere")), cwd="/elsewhere", session_id=gone)
    beside = disk.path_of(gone).parent / gone / "subagents"
    beside.mkdir(parents=True)
    (beside / "agent-a1.jsonl").write_text("{}")
    history = disk.config / "file-history" / gone
    history.mkdir(parents=True)
    outside = disk.config.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (disk.config / "session-env").mkdir()
    (disk.config / "session-env" / gone).symlink_to(outside)
    files.remove(gone)
    assert not list(disk.config.glob(f"**/*{gone}*"))
    assert ids(kept(disk)) == [stays]
    assert (outside / "precious").exists()


# -- marks --------------------------------------------------------------------------------------------------------


def test_pinned_ones_come_first_and_archived_ones_apart(disk: Disk) -> None:
    made = [disk.session(f"number {number}") for number in range(4)]
    catalog = kept(disk)
    catalog.marks.set(made[0], Mark.PINNED, True)
    catalog.marks.set(made[3], Mark.ARCHIVED, True)
    for found in (catalog, kept(disk)):
        assert ids(found) == [made[0], made[2], made[1]]
        assert ids(found, archived=True) == [made[3]]
        assert [entry.pinned for entry in found.list()] == [True, False, False]
    catalog.marks.set(made[0], Mark.PINNED, False)
    catalog.marks.set(made[3], Mark.ARCHIVED, False)
    assert ids(kept(disk)) == made[::-1]


def _mark_many(state: str, numbers: list[int]) -> None:
    marks = Marks(Database(Path(state)))
    for number in numbers:
        marks.set(str(uuid.UUID(int=number)), Mark.PINNED, True)


def test_marks_of_several_processes_do_not_overwrite_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    jobs = [[*range(start, start + 15)] for start in (0, 100, 200)]
    running = [context.Process(target=_mark_many, args=(str(tmp_path), job)) for job in jobs]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert len(Marks(Database(tmp_path)).read().pinned) == 45


def test_marks_that_cannot_be_read_are_an_error_and_not_none(tmp_path: Path) -> None:
    database = Database(tmp_path)
    marks = Marks(database)
    marks.set(str(uuid.uuid4()), Mark.PINNED, True)
    database.close()
    with pytest.raises(OSError, match="closed"):
        marks.read()
