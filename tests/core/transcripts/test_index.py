"""What is known of transcripts is kept between runs, read on from where it was left, and never trusted when damaged."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import zlib
from dataclasses import fields
from pathlib import Path

import pytest

from claude_code_mcp.core.state.session_leases import directory_name
from claude_code_mcp.core.transcripts import session_catalog as catalog_module
from claude_code_mcp.core.transcripts.index import SCHEMA, VERSION, file_name
from claude_code_mcp.core.transcripts.session_catalog import Catalog
from claude_code_mcp.core.transcripts.transcript_summary import TranscriptSummary, summarize

from .catalog_disk import Disk, ids, lines, user

pytestmark = pytest.mark.programs


def kept(disk: Disk) -> Catalog:
    """The catalog as a new process finds it."""
    return Catalog(str(disk.config), disk.config.parent / "state")


def index_file(disk: Disk) -> Path:
    return disk.config.parent / "state" / "index" / file_name(directory_name(str(disk.config)))


class Readings:
    """Which transcripts were read, and from which offset on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: list[int] = []
        monkeypatch.setattr(catalog_module, "summarize", self._summarize)

    def _summarize(self, path: str, size: int, before: TranscriptSummary | None = None) -> TranscriptSummary:
        self.offsets.append(before.offset if before is not None else 0)
        return summarize(path, size, before)


def test_a_new_process_reads_no_transcript_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [disk.session(f"number {number}") for number in range(5)]
    before = kept(disk).list()
    readings = Readings(monkeypatch)
    assert kept(disk).list() == before
    assert ids(kept(disk), text="number 3") == [made[3]]
    assert readings.offsets == []


def test_only_the_new_part_of_a_transcript_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = disk.session("first")
    path = disk.path_of(session_id)
    assert kept(disk).list()[0].messages == 1
    size = path.stat().st_size
    readings = Readings(monkeypatch)
    with path.open("ab") as file:
        file.write(lines(user("second"), {"type": "custom-title", "customTitle": "grown"}) + b'{"half a l')
    entry = kept(disk).list()[0]
    assert (entry.title, entry.messages, entry.first_prompt) == ("grown", 2, "first")
    with path.open("ab") as file:
        file.write(b"ine\n" + lines(user("third")))
    assert kept(disk).list()[0].messages == 3
    assert readings.offsets[0] == size
    assert readings.offsets[1] < size + path.stat().st_size


def test_a_transcript_that_was_replaced_by_a_longer_one_is_read_from_the_start(disk: Disk) -> None:
    session_id = disk.session("old words")
    assert kept(disk).list()[0].first_prompt == "old words"
    disk.write(lines(user("entirely new words, and more of them", cwd=str(disk.project))), session_id=session_id)
    assert [entry.first_prompt for entry in kept(disk).list()] == ["entirely new words, and more of them"]
    assert ids(kept(disk), text="old words") == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"not a database at all" * 1000),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: sqlite3.connect(path).executescript("DROP TABLE files; PRAGMA user_version = 99; VACUUM;").close(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: _set_facts(path, "no facts"),
        lambda path: _set_facts(path, '{"of": "another version"}'),
    ],
    ids=["rubbish", "empty", "cut", "another version", "a directory", "no facts", "other facts"],
)  # fmt: skip
def test_damaged_index_is_rebuilt(disk: Disk, damage: object) -> None:
    made = [disk.session(f"number {number}") for number in range(3)]
    first = kept(disk)
    assert ids(first, text="number") == made[::-1]
    first.index.close()
    for beside in ("-wal", "-shm"):
        Path(f"{index_file(disk)}{beside}").unlink(missing_ok=True)
    damage(index_file(disk))  # type: ignore[operator]
    assert ids(kept(disk)) == made[::-1]
    assert ids(kept(disk), text="number 1") == [made[1]]


def _set_facts(path: Path, facts: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE files SET facts = ?", (facts,))
    connection.close()


def test_an_index_that_is_damaged_while_it_is_open_costs_nothing_but_time(disk: Disk) -> None:
    made = [disk.session("one"), disk.session("two")]
    catalog = kept(disk)
    assert ids(catalog, text="one") == [made[0]]
    index_file(disk).write_bytes(b"\xff" * 40_000)
    made.append(disk.session("one more"))
    assert ids(catalog, text="one") == [made[2], made[0]]
    assert ids(kept(disk), text="one") == [made[2], made[0]]


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_the_index_is_for_its_owner_alone(disk: Disk) -> None:
    disk.session("secret words")
    old = os.umask(0)
    try:
        catalog = kept(disk)
        catalog.list()
        modes = {path.name: path.stat().st_mode & 0o077 for path in index_file(disk).parent.iterdir()}
    finally:
        os.umask(old)
    assert len(modes) >= 1
    assert set(modes.values()) == {0}
    assert index_file(disk).parent.stat().st_mode & 0o077 == 0


def test_an_index_that_another_process_keeps_locked_hides_nothing(disk: Disk) -> None:
    first = disk.session("number one")
    assert ids(kept(disk), text="number") == [first]
    second = disk.session("number two")
    with contextlib.closing(sqlite3.connect(index_file(disk), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        locked = kept(disk)
        assert ids(locked, text="number") == [second, first]
        assert ids(locked, text="two") == [second]
        other.execute("ROLLBACK")
    assert ids(locked, text="two") == [second]


def test_several_processes_share_one_index(disk: Disk) -> None:
    made = {disk.session(f"number {number} of many") for number in range(300)}
    code = (
        "import sys; from pathlib import Path\n"
        "from claude_code_mcp.core.transcripts.session_catalog import Catalog\n"
        "for _ in range(5): print(len(Catalog(sys.argv[1], Path(sys.argv[2])).list(text='of many', limit=1000)))"
    )
    command = [sys.executable, "-c", code, str(disk.config), str(disk.config.parent / "state")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].split() for process in running] == [[str(len(made))] * 5] * 3


def test_removed_files_are_forgotten(disk: Disk) -> None:
    gone, stays = disk.session("number one"), disk.session("number two")
    assert len(ids(kept(disk), text="number")) == 2
    disk.path_of(gone).unlink()
    catalog = kept(disk)
    assert ids(catalog, text="number") == [stays]
    assert {Path(path).stem for path in catalog.index.paths()} == {stays}


def test_names_that_are_not_utf8_are_listed_anyway(disk: Disk) -> None:
    folder = disk.config / "projects" / os.fsdecode(b"-caf\xe9")
    folder.mkdir(parents=True)
    session_id = disk.session("hello")
    disk.path_of(session_id).rename(folder / f"{session_id}.jsonl")
    other = disk.session("other")
    for catalog in (kept(disk), kept(disk)):
        assert set(ids(catalog)) == {session_id, other}
        assert ids(catalog, text="other") == [other]


# -- searching and pages ------------------------------------------------------------------------------------------


def test_a_text_is_found_in_every_prompt_and_on_request_anywhere(disk: Disk) -> None:
    answer = {"type": "assistant", "uuid": "a", "message": {"role": "assistant", "content": [
        {"type": "text", "text": 'It says "Grüße"\nand a KETTLE boils'},
        {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "make teapot"}},
    ]}}  # fmt: skip
    result = user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a saucer"}]}])
    hidden = {"type": "attachment", "attachment": {"type": "x"}, "message": {"content": "never shown"}}
    session_id = disk.session("first words", "second WORDS", before=(answer, result, hidden))
    disk.session("something else")
    catalog = kept(disk)
    assert ids(catalog, text="second words") == [session_id]
    for text in ("kettle", 'says "grüße"', "GRÜSSE", "make teapot", "a saucer"):
        assert ids(catalog, text=text) == []
        (found,) = catalog.list(text=text, whole=True)
        assert found.session_id == session_id
        assert found.mention is not None
        assert text.casefold() in found.mention.casefold()
    assert ids(catalog, text="never shown", whole=True) == []
    assert ids(catalog, text="customTitle", whole=True) == []


def test_pages_one_after_the_other_are_the_list(disk: Disk) -> None:
    made = [disk.session(f"number {number}") for number in range(7)][::-1]
    catalog = kept(disk)
    pages = [ids(catalog, limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert pages == [made[:3], made[3:6], made[6:], []]
    assert ids(catalog, limit=2, offset=2, text="number") == made[2:4]


def test_an_entry_reports_times_count_model_and_cost(disk: Disk) -> None:
    def answer(number: int, at: str) -> dict[str, object]:
        usage = {"input_tokens": 10, "output_tokens": 10 * number}
        message = {"role": "assistant", "id": f"m{number}", "model": f"opus-{number}", "usage": usage, "content": []}
        return {"type": "assistant", "message": message, "timestamp": at}

    costs = {"type": "cost-state", "startTime": 0, "modelUsage": {"opus-2": {"outputTokens": 20, "costUSD": 0.5}}}
    first, second = "2026-11-14T23:00:00.000Z", "2026-11-15T01:00:00.000Z"
    where = str(disk.project)
    disk.write(
        lines(
            user("hello", cwd=where, timestamp=first),
            answer(1, first),
            answer(1, first),
            answer(2, second),
            costs,
            {"type": "tag", "tag": "kitchen"},
        )
    )
    (entry,) = disk.catalog.list()
    assert (entry.messages, entry.model, entry.cost_usd, entry.tag) == (3, "opus-2", 0.5, "kitchen")
    assert entry.created is not None
    assert abs(entry.created - 1794697200) < 1


# -- versions -----------------------------------------------------------------------------------------------------


def test_changed_index_format_has_another_version() -> None:
    """If this fails, raise `VERSION` in `core/transcripts/index.py`, and take over the new number here."""
    form = "\n".join((*SCHEMA, *(f"{each.name}: {each.type}" for each in fields(TranscriptSummary))))
    assert (VERSION, zlib.crc32(form.encode())) == (3, 226722435)


def test_each_version_has_a_file_of_its_own_and_an_abandoned_one_is_removed(disk: Disk) -> None:
    made, current = disk.session("hello"), index_file(disk)
    current.parent.mkdir(parents=True, mode=0o700)
    name = directory_name(str(disk.config))
    abandoned, in_use = current.with_name(f"{name}.1.sqlite3"), current.with_name(f"{name}.99.sqlite3-wal")
    other = current.with_name("of-other-files.1.sqlite3")
    for path in (abandoned, in_use, other):
        path.write_bytes(b"of another version")
    for path in (abandoned, other):
        os.utime(path, (1, 1))
    assert ids(kept(disk), text="hello") == [made]
    assert (abandoned.exists(), in_use.exists(), other.exists(), current.exists()) == (False, True, True, True)
