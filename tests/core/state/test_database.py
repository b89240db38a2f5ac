"""The state database: whole transactions over many processes and kills, and nothing taken for an absence."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import StateUnavailable
from claude_code_mcp.core.state.database import APPLICATION_ID, FILE_NAME, VERSION, Database, StateFault, Tables
from claude_code_mcp.core.state.state_directory import database_in
from tests.support.full_disk import small_disk


def put(database: Database, name: str, value: str, *, durable: bool = False) -> None:
    statement = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
    database.write(lambda db: db.execute(statement, (name, value)), durable=durable)


def fact(database: Database, name: str) -> str | None:
    row = database.read(lambda db: db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone())
    return None if row is None else str(row[0])


def test_all_files_are_for_their_owner_alone_whatever_the_umask(database: Database, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        put(database, "a", "b")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "state").iterdir() if path.name.startswith(FILE_NAME)]
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_an_exception_takes_the_whole_transaction_back(database: Database) -> None:
    put(database, "kept", "1")

    def incomplete_step(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO facts VALUES ('lost', '1')")
        db.execute("DELETE FROM facts WHERE name = 'kept'")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        database.write(incomplete_step)
    assert (fact(database, "kept"), fact(database, "lost")) == ("1", None)
    put(database, "next", "2", durable=True)
    assert fact(database, "next") == "2"


def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    put(database, "a", "before")
    within, go_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        db.execute("UPDATE facts SET value = 'after' WHERE name = 'a'")
        within.set()
        assert go_on.wait(60)

    writer = threading.Thread(target=database.write, args=(slow,))
    writer.start()
    assert within.wait(60)
    assert fact(database, "a") == "before"
    assert fact(Database(database.directory), "a") == "before"
    go_on.set()
    writer.join()
    assert fact(database, "a") == "after"


ADDER = """
import sys
from pathlib import Path
from claude_code_mcp.core.state.database import Database
database, name, times = Database(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
def add(db):
    db.execute("INSERT OR IGNORE INTO facts VALUES (?, '0')", (name,))
    (value,) = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    db.execute("UPDATE facts SET value = ? WHERE name = ?", (str(int(value) + 1), name))
for number in range(times):
    database.write(add)
    print(number, flush=True)
"""


def adding(directory: Path, times: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ADDER, str(directory), "sum", str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_many_processes_that_make_and_use_one_database_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [adding(tmp_path / "state", 50) for _ in range(6)]
    for writer in writers:
        output, _ = writer.communicate()
        assert (writer.returncode, len(output.splitlines())) == (0, 50)
    assert fact(Database(tmp_path / "state"), "sum") == "300"


def test_a_server_waits_for_another_that_makes_the_database_at_the_same_moment(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.path.parent.mkdir(mode=0o700)
    # In this state SQLite refuses the write-ahead log at once, whatever the time it was told to wait.
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("claude_code_mcp.core.state.database.time.sleep", lambda _: other.close())
    database.open()
    put(database, "name", "value")
    assert fact(database, "name") == "value"


@pytest.mark.parametrize("rounds", [5, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.time_limit(1800)])])
def test_what_was_acknowledged_survives_the_kill_of_its_writer(tmp_path: Path, rounds: int) -> None:
    acknowledged = attempted = 0
    for number in range(rounds):
        with adding(tmp_path / "state", 10**6) as writer:
            assert writer.stdout is not None
            for _ in range(1 + number % 7):
                writer.stdout.readline()
                acknowledged += 1
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read()
        acknowledged += rest.count("\n")
        attempted = acknowledged + number + 1  # the transaction that was under way may be there or not
    kept = int(fact(Database(tmp_path / "state"), "sum") or 0)
    assert acknowledged <= kept <= attempted
    Database(tmp_path / "state").check()


def test_a_database_of_a_later_version_is_refused_untouched(database: Database, tmp_path: Path) -> None:
    put(database, "written_by", "9.8.7")
    database.write(lambda db: db.execute(f"PRAGMA user_version = {VERSION + 1}"))
    database.close()
    before = (tmp_path / "state" / FILE_NAME).read_bytes()
    with pytest.raises(StateUnavailable, match=rf"9\.8\.7 and has version {VERSION + 1}.*nothing was changed"):
        Database(tmp_path / "state").open()
    assert (tmp_path / "state" / FILE_NAME).read_bytes() == before


def test_a_database_that_another_server_makes_meanwhile_is_not_mistaken_for_that_of_another_program(
    tmp_path: Path,
) -> None:
    others: list[Database] = []

    def create_concurrently(statement: str) -> None:
        if "sqlite_schema" in statement and not others:  # the program's mark has been read, the tables have not
            others.append(Database(tmp_path))
            others[0].open()

    class Slow(Database):
        def _connect(self) -> sqlite3.Connection:
            connection = super()._connect()
            connection.set_trace_callback(create_concurrently)
            return connection

    database = Slow(tmp_path)
    database.open()
    put(others[0], "made by", "the other")
    assert fact(database, "made by") == "the other"


def test_the_database_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as foreign:
        foreign.execute("CREATE TABLE bookmarks (a)")
    foreign.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StateUnavailable, match="another program"):
        Database(tmp_path).open()
    after = sqlite3.connect(tmp_path / FILE_NAME)
    assert after.execute("SELECT name FROM sqlite_schema").fetchall() == [("bookmarks",)]
    assert after.execute("PRAGMA application_id").fetchone() == (0,)
    after.close()
    assert len(before) > 0


def test_every_database_of_ours_is_marked_as_such(database: Database) -> None:
    database.open()
    assert database.read(lambda db: db.execute("PRAGMA application_id").fetchone()) == (APPLICATION_ID,)
    assert database.read(lambda db: db.execute("PRAGMA user_version").fetchone()) == (VERSION,)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, bytes(range(256)) * 64])
def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StateUnavailable, match=r"damaged.*Nothing was changed"):
        Database(tmp_path).open()
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_broken_pages_are_found_and_nothing_is_used_any_more(database: Database, tmp_path: Path) -> None:
    for number in range(200):
        put(database, f"fact {number}", "x" * 500)
    database.check()
    database.close()
    path = tmp_path / "state" / FILE_NAME
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 200] = os.urandom(200)
    path.write_bytes(content)
    damaged = Database(tmp_path / "state")
    with pytest.raises(StateUnavailable, match="damaged"):
        damaged.check()
    with pytest.raises((OSError, StateUnavailable), match=r"damaged|malformed|closed"):
        put(damaged, "a", "b")


def test_a_file_system_that_cannot_lock_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    # SQLite's own stand-in for such a file system: locks by files, and no shared memory.
    with pytest.raises(StateUnavailable, match=r"cannot share and lock files.*CLAUDE_CODE_MCP_STATE_DIR"):
        Database(tmp_path, vfs="unix-dotfile").open()


@pytest.mark.parametrize("what", ["file", "link"])
def test_a_place_that_cannot_be_used_is_explained(tmp_path: Path, what: str) -> None:
    place = tmp_path / "state"
    if what == "file":
        place.write_text("not a directory")
    else:
        place.mkdir()
        (place / FILE_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateUnavailable, match=str(place)):
        Database(place).open()
    assert not (tmp_path / "elsewhere").exists()


def fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def test_a_full_disk_fails_the_transaction_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as place:
        database = Database(place)
        put(database, "a", "before")
        filler = place / "filler"
        fill(filler)
        with pytest.raises(StateFault, match=r"No space|disk"):
            put(database, "a", "x" * 100_000)
        assert fact(database, "a") == "before"
        filler.unlink()
        put(database, "a", "after", durable=True)
        assert fact(database, "a") == "after"
        database.check()
        database.close()


def test_one_process_has_one_database_for_each_directory(tmp_path: Path) -> None:
    one = database_in(tmp_path / "a")
    assert database_in(tmp_path / "b" / ".." / "a") is one
    assert database_in(tmp_path / "b") is not one


def test_a_copy_of_the_files_while_servers_run_can_be_opened(database: Database, tmp_path: Path) -> None:
    put(database, "a", "b")
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    assert fact(Database(tmp_path / "copy"), "a") == "b"


PETS = Tables("pets", ("CREATE TABLE pets (name TEXT) STRICT;",))
MORE_PETS = Tables("pets", (*PETS.steps, "ALTER TABLE pets ADD COLUMN age INTEGER;"))


def test_the_tables_of_a_plug_in_are_made_when_they_are_used(database: Database, tmp_path: Path) -> None:
    put(database, "before", "1")
    database.use(PETS)
    database.execute("INSERT INTO pets VALUES ('Rex')")
    other = Database(tmp_path / "state")
    other.use(MORE_PETS)
    assert other.rows("SELECT name, age FROM pets") == [("Rex", None)]


def test_tables_of_a_later_version_of_a_plug_in_are_refused_untouched(database: Database, tmp_path: Path) -> None:
    database.use(MORE_PETS)
    database.execute("INSERT INTO pets VALUES ('Rex', 3)")
    other = Database(tmp_path / "state")
    other.use(PETS)
    with pytest.raises(StateUnavailable, match="plug-in pets"):
        other.rows("SELECT * FROM pets")
    assert database.rows("SELECT * FROM pets") == [("Rex", 3)]


def test_many_threads_find_the_tables_that_one_of_them_asks_for(database: Database) -> None:
    names = [f"t{number}" for number in range(40)]
    failed: list[Exception] = []

    def add(name: str) -> None:
        try:
            database.use(Tables(name, (f"CREATE TABLE {name} (value TEXT) STRICT;",)))
            database.execute(f"INSERT INTO {name} VALUES ('x')")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(database.rows(f"SELECT * FROM {name}") == [("x",)] for name in names)


def test_failed_plugin_migration_leaves_nothing(database: Database) -> None:
    database.use(Tables("pets", ("CREATE TABLE pets (name TEXT) STRICT; CREATE TABLE pets (name TEXT) STRICT;",)))
    with pytest.raises(StateUnavailable):
        put(database, "a", "b")
    database.use(PETS)
    assert database.rows("SELECT * FROM pets") == []
