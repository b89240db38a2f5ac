"""An error while transcripts are listed or read is never taken for their absence, and nothing of it is kept.

Descriptors run out for real, in a process of its own. Other errors, which no test can bring about as every user, are
raised by the functions that open files and list directories.
"""

import errno
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from claude_code_mcp.core import private_files
from claude_code_mcp.core.errors import TranscriptUnreadable
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.state.session_records import SessionRecord, SessionRecords
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.core.transcripts import index, transcript_lines
from claude_code_mcp.core.transcripts.session_catalog import Catalog
from claude_code_mcp.core.transcripts.transcripts import ProjectFolders, Transcripts

from .catalog_disk import Disk, ids, lines, user
from .test_index import kept

MANY = 20
_IN_A_PROCESS = """
import contextlib, json, os, resource, sys
from pathlib import Path
from claude_code_mcp.core.errors import ClaudeCodeError
from claude_code_mcp.core.transcripts.session_catalog import Catalog

config, state, start, free, question = sys.argv[1:]
catalog, free, question = Catalog(config, Path(state)), int(free), json.loads(question)
if start == "warm":  # files are known and databases open: nothing but reading a transcript needs a descriptor
    catalog.ids(), catalog.marks.read(), catalog.index.paths(), catalog.unread()
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
taken = []
with contextlib.suppress(OSError):
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
for _ in range(free):
    os.close(taken.pop())
try:
    listed = [entry.session_id for entry in catalog.list(limit=100, **question)]
    told = catalog.unread()
except (ClaudeCodeError, OSError) as error:
    listed, told = [], str(error)
for descriptor in taken:
    os.close(descriptor)
again = [entry.first_prompt for entry in catalog.list(limit=100)]
print(json.dumps({"listed": listed, "told": told, "again": again, "told again": catalog.unread()}))
"""


def without_descriptors(
    disk: Disk, *, warm: bool, free: int = 0, question: dict[str, object] | None = None
) -> dict[str, object]:
    """Lists with so many descriptors free, and again with plenty of them, in a process of its own."""
    state = disk.config.parent / "state"
    command = [sys.executable, "-c", _IN_A_PROCESS, disk.config, state, "warm" if warm else "cold", str(free)]
    done = subprocess.run([*map(str, command), json.dumps(question or {})], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def prompts(catalog: Catalog) -> list[str | None]:
    return [entry.first_prompt for entry in catalog.list(limit=100)]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize(
    "question",
    [{}, pytest.param({"text": "number"}, marks=pytest.mark.soak), {"text": "number", "whole": True}],
    ids=str,
)
def test_with_no_descriptor_free_nothing_is_noted_and_the_next_listing_has_all(
    disk: Disk, question: dict[str, object]
) -> None:
    made = [disk.session(f"number {number}") for number in range(MANY)]
    wanted = [f"number {number}" for number in range(MANY)][::-1]
    seen = without_descriptors(disk, warm=True, question=question)
    assert seen["told"] is not None
    assert os.strerror(errno.EMFILE) in str(seen["told"])
    if not question:  # listed with what its directory tells
        assert seen["listed"] == made[::-1]
    assert (seen["again"], seen["told again"]) == (wanted, None)
    fresh = kept(disk)
    assert prompts(fresh) == wanted
    assert fresh.unread() is None
    assert len(ids(fresh, text="number", limit=100)) == MANY


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize(
    "free", [free if free % 6 == 0 else pytest.param(free, marks=pytest.mark.soak) for free in range(9)]
)
def test_unread_files_are_reported_for_any_number_of_descriptors(disk: Disk, free: int) -> None:
    wanted = [disk.session(f"number {number}") and f"number {number}" for number in range(3)][::-1]
    seen = without_descriptors(disk, warm=False, free=free)
    assert seen["again"] == wanted
    assert prompts(kept(disk)) == wanted
    assert len(seen["listed"]) == 3 or seen["told"] is not None  # type: ignore[arg-type]


class Failing:
    """Makes opening and listing of some paths fail with an error, as a disk or a full table of files does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self._code = code
        self._open, self._open_folder, self._scan = (
            private_files.open_at,
            private_files._open_directory,
            private_files.scanned,
        )
        self.paths: Callable[[str], bool] = lambda path: False
        for module in (private_files, transcript_lines):
            monkeypatch.setattr(module, "open_at", self._open_at)
        monkeypatch.setattr(private_files, "_open_directory", self._open_directory)
        for module in (private_files, index):
            monkeypatch.setattr(module, "scanned", self._scanned)

    def _open_at(self, path: str, flags: int) -> int:
        self._fail(os.fspath(path))
        return self._open(path, flags)

    def _open_directory(self, path: str) -> int:
        self._fail(path)
        return self._open_folder(path)

    def _scanned(self, path: str) -> object:
        self._fail(path)
        return self._scan(path)

    def _fail(self, path: str) -> None:
        if self.paths(path):
            raise OSError(self._code, os.strerror(self._code), path)


CODES = [errno.EIO, errno.EACCES, errno.ENOMEM, errno.ENFILE]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
def test_a_transcript_that_cannot_be_read_is_listed_with_what_was_known_of_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    known, new = disk.session("known before"), disk.session("new")
    other = kept(disk)
    assert other.find(known) is not None
    disk.write(lines(user("known before", cwd=str(disk.project)), user("more")), session_id=known)
    failing = Failing(monkeypatch, code)
    failing.paths = lambda path: path.endswith(".jsonl")
    catalog = kept(disk)
    assert prompts(catalog) == ["known before", None]
    assert set(ids(catalog, project=str(disk.project))) == {known, new}
    assert os.strerror(code) in (catalog.unread() or "")
    assert ids(catalog, text="new") == []
    failing.paths = lambda path: False
    assert prompts(catalog) == ["known before", "new"]
    assert catalog.list()[0].messages == 2
    assert catalog.unread() is None
    assert ids(kept(disk), text="new") == [new]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("which", ["root", "folder"])
def test_a_directory_that_cannot_be_listed_keeps_its_files(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, code: int, which: str
) -> None:
    made = [disk.session("one", cwd="/gone/a"), disk.session("two", cwd="/gone/b")][::-1]
    catalog = kept(disk)
    assert len(ids(catalog, text="o")) == 2
    root = str(disk.config / "projects")
    failing = Failing(monkeypatch, code)
    failing.paths = lambda path: path == root if which == "root" else os.path.dirname(path) == root
    (disk.config / "projects" / "-new").mkdir()  # makes everything be scanned again
    assert ids(catalog) == made
    assert os.strerror(code) in (catalog.unread() or "")
    assert ids(catalog, text="o") == made
    assert kept(disk).unread() is not None
    failing.paths = lambda path: False
    assert catalog.unread() is None
    later = disk.session("three", cwd="/gone/new")
    assert ids(catalog) == [later, *made]


def test_unreadable_history_keeps_its_last_content(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, failing = disk.session("hello"), disk.session("hello"), Failing(monkeypatch, errno.EIO)
    typed = {"display": "hello", "timestamp": (disk.clock + 5) * 1000, "project": "/x", "sessionId": first}
    disk.remember(typed)
    catalog = kept(disk)
    failing.paths = lambda path: path.endswith("history.jsonl")
    assert ids(catalog) == [second, first]
    assert "history" in (catalog.unread() or "")
    failing.paths = lambda path: False
    assert ids(catalog) == [first, second]
    failing.paths = lambda path: path.endswith("history.jsonl")
    disk.remember({**typed, "timestamp": (disk.clock + 10) * 1000, "sessionId": second})
    assert ids(catalog) == [first, second]


def test_failed_session_lookup_is_not_reported_as_missing(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = disk.session("hello")
    projects = ProjectFolders.below(str(disk.config), linked=True)
    transcripts, failing = Transcripts(projects), Failing(monkeypatch, errno.EMFILE)
    failing.paths = lambda path: True
    for look in (transcripts.path_of, transcripts.resumable, transcripts.read, transcripts.usage_of):
        with pytest.raises(TranscriptUnreadable, match=os.strerror(errno.EMFILE)):
            look(session_id)
    with pytest.raises(TranscriptUnreadable):
        Catalog(str(disk.config)).find(session_id)
    failing.paths = lambda path: path.endswith(".jsonl")
    with pytest.raises(TranscriptUnreadable):
        transcripts.resumable(session_id)
    failing.paths = lambda path: False
    assert transcripts.resumable(session_id)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
def test_an_older_transcript_is_not_mistaken_for_one_that_cannot_be_seen_now(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    session_id = disk.session("before it was moved", cwd="/gone/a")
    disk.write(lines(user("after it was moved", cwd="/gone/b")), cwd="/gone/b", session_id=session_id)
    newest = str(disk.config / "projects" / "-gone-b" / f"{session_id}.jsonl")
    projects, look = ProjectFolders.below(str(disk.config), linked=True), os.lstat
    assert projects.locate(session_id) == newest

    def failing(path: str, **named: int | None) -> os.stat_result:
        if path == newest:
            raise OSError(code, os.strerror(code), path)
        return look(path, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", failing)
        with pytest.raises(TranscriptUnreadable, match=os.strerror(code)):
            projects.locate(session_id)
    assert projects.locate(session_id) == newest


def test_the_table_of_files_scans_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text("x")
    failing = Failing(monkeypatch, errno.EMFILE)
    table = index.FileTable(str(tmp_path), lambda name: name.endswith(".jsonl"))
    failing.paths = lambda path: True
    assert table.files() == {}
    assert [*table.unread] == [str(tmp_path)]
    failing.paths = lambda path: False
    assert len(table.files()) == 1
    (tmp_path / "b.jsonl").write_text("x")
    failing.paths = lambda path: True
    assert len(table.files()) == 1  # the note of the change is gone from the queue, the file is not known yet
    failing.paths = lambda path: False
    assert len(table.files()) == 2
    assert table.unread == {}


def test_no_record_is_removed_because_transcripts_cannot_be_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id, gone = disk.session("hello"), str(uuid.uuid4())
    records = SessionRecords(database_in(disk.config.parent / "state"), str(disk.config))
    for each in (session_id, gone):
        values = {"session_id": each, "owner": "local", "cwd": "/x", "created_at": 1, "used_at": 1}
        records.write(SessionRecord(**values, options=SessionOptions(max_budget_usd=1.0)))
    transcripts = Transcripts(ProjectFolders.below(str(disk.config), linked=True))
    failing = Failing(monkeypatch, errno.EMFILE)
    failing.paths = lambda path: True
    with pytest.raises(TranscriptUnreadable):
        records.clean_up(lambda each: transcripts.path_of(each) is not None, -1)
    assert records.summaries().keys() == {session_id, gone}
    failing.paths = lambda path: False
    assert records.clean_up(lambda each: transcripts.path_of(each) is not None, -1) == 1
    assert records.read(session_id) is not None
