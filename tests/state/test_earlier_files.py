"""What earlier releases kept is read: files from before the database, and databases of every version."""

import logging
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from claude_code_mcp.errors import RecordUnreadable, StateUnavailable
from claude_code_mcp.state.database import FILE_NAME, VERSION, Database
from claude_code_mcp.state.deliveries import Deliveries
from claude_code_mcp.state.documents import Documents
from claude_code_mcp.state.known_people import Identity, InvitedPeople, PersonNames, SignIns
from claude_code_mcp.state.oauth_grants import OAuthGrants
from claude_code_mcp.state.session_marks import Marks
from claude_code_mcp.state.session_records import KeyName, KeyState, MessageKeys, MovedIds, SessionRecords
from claude_code_mcp.state.spending import Spending
from claude_code_mcp.state.state_directory import ASIDE, database_in, import_earlier_files
from claude_code_mcp.state.task_records import TaskRecords

RELEASES = Path(__file__).parent / "releases"
FILES = RELEASES / "0.1.0-files"
DATABASES = sorted(RELEASES.glob("*.sql"))
CONFIG = "/home/user/.claude"
SPENT, CANCELLED, RUNNING, DAMAGED, MOVED, _ = (
    f"0000000{number}-0000-4000-8000-000000000000" for number in range(1, 7)
)
DAY_OF_THE_RELEASE = 1_790_000_000.0


def state_of(release: Path, place: Path) -> Path:
    """The state directory that a release has left."""
    if release.is_dir():
        shutil.copytree(release, place)
    else:
        place.mkdir()
        with sqlite3.connect(place / FILE_NAME) as db:
            db.executescript(release.read_text(encoding="utf-8"))
        db.close()
    return place


@pytest.mark.parametrize("release", [FILES, *DATABASES], ids=lambda path: path.name)
def test_everything_that_a_release_remembered_is_known(release: Path, tmp_path: Path) -> None:
    database = database_in(state_of(release, tmp_path / "state"))
    records = SessionRecords(database, CONFIG)
    spent = records.read(SPENT)
    assert spent is not None
    assert (spent.spent_usd, spent.options.max_budget_usd, spent.options.permission_mode) == (5.0, 5.0, "plan")
    assert (spent.options.disallowed_tools, spent.revision, spent.first_prompt) == (
        ("Bash",),
        2,
        "Fix the failing test",
    )
    assert spent.outcome is not None
    assert spent.outcome.result == "done"
    cancelled, running = records.read(CANCELLED), records.read(RUNNING)
    assert cancelled is not None
    assert running is not None
    assert (cancelled.owner, cancelled.cancelled) == ("alice", True)
    assert running.running_since is not None
    assert running.grants == ({"type": "addRules", "rules": [{"toolName": "Read"}]},)
    with pytest.raises(RecordUnreadable, match="damaged"):
        records.read(DAMAGED)
    assert set(records.summaries()) == {SPENT, CANCELLED, RUNNING, DAMAGED}
    assert MovedIds(database, CONFIG).resolve(MOVED) == SPENT
    assert Marks(database).read().pinned == {SPENT}
    assert Marks(database).read().archived == {RUNNING}
    spending = Spending(database, lambda: DAY_OF_THE_RELEASE)
    spending.refresh()
    assert (spending.today("alice"), spending.today("bob")) == (1.75, 2.0)
    task = TaskRecords(database).read("task-aaaaaaaaaaaaaaaaaaaaaaaa", "local")
    assert task is not None
    assert (task.session_id, task.status, task.result) == (SPENT, "completed", {"content": []})
    sign_in = SignIns(database).find("cookie-of-the-fixture", "csrf-of-the-fixture")
    assert sign_in is not None
    assert (sign_in.identity, sign_in.device) == (Identity("alice", "credential-hash"), "Phone")
    push = Documents(database, "push").read("alice")
    assert push is not None
    assert push["receivers"][0]["url"] == "https://ntfy.example.org/topic"
    (delivery,) = Deliveries(database).take_over()
    assert (delivery.delivery_id, delivery.notice["title"]) == ("msg_0123456789abcdef", "Title")
    assert Documents(database, "server").read("f" * 64) == {
        "handshake_only": False, "asks_for_roots": True, "asks_questions": False,
    }  # fmt: skip


def test_there_is_a_database_of_every_version() -> None:
    versions = {path.stem for path in DATABASES}
    assert versions == {f"schema-{version}" for version in range(1, VERSION + 1)}


def test_the_keys_of_messages_are_known(tmp_path: Path) -> None:
    keys = MessageKeys(database_in(state_of(RELEASES / "schema-2.sql", tmp_path / "state")))
    found = keys.take(KeyName("alice", SPENT, "a-key"), "digest")
    assert (found.state, found.session_id, found.message_id[:8]) == (KeyState.ACCEPTED, SPENT, "00000009")


def test_who_is_invited_is_known(tmp_path: Path) -> None:
    database = database_in(state_of(RELEASES / "schema-4.sql", tmp_path / "state"))
    (person,) = InvitedPeople(database).everybody()
    assert (person.name, person.groups, person.passkeys, person.invites) == ("carol", ("platform",), 1, 1)
    token = OAuthGrants(database).refresh_token("refresh-of-the-fixture")
    assert token is not None
    assert (token.granted.person.name, token.granted.client_id) == ("carol", "client-of-the-fixture")
    assert [(name.name, name.issuer) for name in PersonNames(database).all()] == [
        ("ann", "https://id.example.org"),
        ("carol", "invited"),
    ]


def test_the_files_are_kept_aside_and_it_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = state_of(FILES, tmp_path / "state")
    before = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with caplog.at_level(logging.WARNING):
        database_in(place).open()
    assert "what earlier versions kept in files is in the database now" in caplog.text
    kept = {path.relative_to(place / ASIDE): path.read_bytes() for path in (place / ASIDE).rglob("*") if path.is_file()}
    assert kept == before
    caplog.clear()
    again = Database(place, on_open=import_earlier_files)
    again.open()
    assert caplog.text == ""


def test_an_earlier_version_finds_no_directory_to_write_to(tmp_path: Path) -> None:
    for place in (state_of(FILES, tmp_path / "used"), tmp_path / "new"):
        database_in(place).open()
        with pytest.raises(NotADirectoryError):
            os.mkdir(place / "sessions" / "d1c0b5410b1d771c")
        with pytest.raises(NotADirectoryError):  # which it does not take for the absence of a record
            os.stat(place / "sessions" / "d1c0b5410b1d771c" / f"{SPENT}.json")


def test_what_an_earlier_version_wrote_in_between_is_read_too(tmp_path: Path) -> None:
    place = state_of(FILES, tmp_path / "state")
    (place / ASIDE).mkdir()
    (place / "sessions").rename(place / ASIDE / "sessions")  # where a first attempt was killed
    late = place / "sessions" / "d1c0b5410b1d771c" / f"{MOVED[:7]}9{MOVED[8:]}.json"
    late.parent.mkdir(parents=True)
    shutil.copy(place / ASIDE / "sessions" / "d1c0b5410b1d771c" / f"{CANCELLED}.json", late)
    late.write_text(late.read_text().replace(CANCELLED, late.stem))
    records = SessionRecords(database_in(place), CONFIG)
    assert records.read(late.stem) is not None
    assert records.read(SPENT) is not None


def test_of_two_records_with_one_id_the_stricter_one_counts(tmp_path: Path) -> None:
    place = state_of(FILES, tmp_path / "state")
    for name, session_id in (("0" * 16, CANCELLED), ("0" * 16, DAMAGED)):
        free = (FILES / "sessions" / "d1c0b5410b1d771c" / f"{RUNNING}.json").read_text().replace(RUNNING, session_id)
        path = place / "sessions" / name / f"{session_id}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(free)
    records = SessionRecords(database_in(place), CONFIG)
    cancelled = records.read(CANCELLED)
    assert cancelled is not None
    assert cancelled.cancelled
    with pytest.raises(RecordUnreadable):
        records.read(DAMAGED)


def test_servers_that_start_at_once_read_everything_once(tmp_path: Path) -> None:
    place, counts = state_of(FILES, tmp_path / "state"), []
    starting = [threading.Thread(target=lambda: counts.append(import_earlier_files(Database(place)))) for _ in range(5)]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join()
    assert sorted(counts) == [0, 0, 0, 0, 15]


def test_a_file_that_cannot_be_read_stops_the_start_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, opened = state_of(FILES, tmp_path / "state"), Path.open

    def failing(path: Path, *arguments: object, **named: object) -> object:
        if path.name == f"{CANCELLED}.json":
            raise OSError(24, "Too many open files", str(path))
        return opened(path, *arguments, **named)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        with pytest.raises(StateUnavailable, match="Too many open files"):
            Database(place, on_open=import_earlier_files).open()
    records = SessionRecords(database_in(place), CONFIG)
    assert set(records.summaries()) == {SPENT, CANCELLED, RUNNING, DAMAGED}


@pytest.mark.parametrize("content", ['{"pinned": 5}', '{"pinned": [5]}', '{"pinned": "all"}', "[]", "no json", ""])
def test_damaged_marks_stop_no_start_and_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    place = state_of(FILES, tmp_path / "state")
    damaged = place / "marks" / "0000000000000000.json"
    damaged.write_text(content)
    database = database_in(place)
    assert Marks(database).read().pinned == {SPENT}
    assert Marks(database).read().archived == {RUNNING}
    assert SessionRecords(database, CONFIG).read(SPENT) is not None
    kept = place / ASIDE / "marks" / damaged.name
    assert f"{kept} is damaged" in caplog.text
    assert kept.read_text() == content
