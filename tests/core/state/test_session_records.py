"""The records of sessions and the pointers of cleared ones: whole, never wrong in anybody's favor, and gone in the
end."""

import os
import time
import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import RecordUnreadable
from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.model.options import Preset, SessionOptions, Thinking, ToolPreset
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.core.model.usage_limits import LimitWait
from claude_code_mcp.core.model.worktree import Worktree
from claude_code_mcp.core.state.database import Database, StateFault
from claude_code_mcp.core.state.session_records import MovedIds, SessionRecord, SessionRecords

EVERYTHING = SessionOptions(
    cwd="/src",
    model="claude-haiku-4-5",
    fallback_model="x",
    permission_mode="plan",
    dangerously_skip_permissions=True,
    ask=False,
    allowed_tools=("Read",),
    disallowed_tools=("Bash",),
    tools=ToolPreset(),
    max_turns=3,
    max_budget_usd=1.5,
    turn_timeout=60.0,
    system_prompt=Preset(append="more"),
    append_system_prompt="even more",
    agents={"one": {"description": "d", "tools": ["Read"]}},
    agent="one",
    effort="high",
    thinking=Thinking(type="enabled", budget_tokens=5),
    betas=("b",),
    additional_directories=("/a",),
    output_schema={"type": "object"},
    mcp_servers={"s": {"type": "http", "url": "http://x", "headers": {"Authorization": "secret"}}},
    strict_mcp_config=True,
    hub_servers=("h",),
    setting_sources=("user",),
    sandbox={"enabled": True},
    file_checkpointing=True,
    include_partial_messages=False,
    persist=True,
    stay_on_machine=True,
    on_limit="wait",
    debug=True,
    debug_file="/tmp/x",
    executable="/bin/claude",
    env={"A": "b"},
    worktree=Worktree(
        path="/src/.claude/worktrees/mcp-1",
        branch="worktree-mcp-1",
        base="0123",
        into="main",
        repository="/src",
        common_dir="/src/.git",
        git_dir="/src/.git/worktrees/mcp-1",
    ),
)


def record(session_id: str | None = None, **more: object) -> SessionRecord:
    given = {"owner": LOCAL, "created_at": 1.0, "used_at": 2.0, "cwd": "/src", "options": SessionOptions(), **more}
    return SessionRecord(session_id=session_id or str(uuid.uuid4()), **given)


@pytest.fixture
def records(database: Database, tmp_path: Path) -> SessionRecords:
    return SessionRecords(database, str(tmp_path / "config"))


def change_row(database: Database, statement: str, *values: object) -> None:
    database.write(lambda db: db.execute(statement, values))


def test_every_option_comes_back_as_it_was(records: SessionRecords) -> None:
    assert EVERYTHING.model_fields_set == set(SessionOptions.model_fields)
    outcome = Outcome(
        OutcomeCode.MAX_TURNS,
        result="text",
        structured_output={"a": [1]},
        usage=Usage({"m": ModelUsage(1, 2, 3, 4, 0.5)}),
        permission_denials=({"tool_name": "Bash"},),
        num_turns=3,
    )
    grants = ({"type": "addRules", "rules": [{"toolName": "Bash"}]},)
    wait = LimitWait("w", "again", since=1.0, continues_at=5.0, resets_at=4.0, kind="five_hour", attempt=2)
    kept = record(options=EVERYTHING, outcome=outcome, grants=grants, usage=outcome.usage, origin=("x", None))
    kept = kept.model_copy(update={"limit_wait": wait})
    records.write(kept)
    assert records.waiting() == [(kept.session_id, kept.owner, 5.0)]
    assert records.read(kept.session_id) == kept


def test_a_directory_whose_name_is_no_text_comes_back_as_it_was(database: Database, tmp_path: Path) -> None:
    records = SessionRecords(database, os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    kept = record(cwd=os.fsdecode(b"/src/caf\xe9"))
    records.write(kept)
    assert records.read(kept.session_id) == kept
    assert kept.session_id in records.summaries()


def test_a_session_has_one_record_however_its_files_are_reached(database: Database, tmp_path: Path) -> None:
    before, moved = tmp_path / "claude", tmp_path / "elsewhere"
    before.mkdir()
    kept = record(spent_usd=5.0, options=SessionOptions(max_budget_usd=5.0, disallowed_tools=("Bash",)))
    SessionRecords(database, str(before)).write(kept)
    before.rename(moved)
    before.symlink_to(moved)
    assert SessionRecords(database, str(before)).read(kept.session_id) == kept
    assert SessionRecords(database, str(tmp_path / "another")).read(kept.session_id) == kept


def test_later_write_of_another_server_is_kept(database: Database, records: SessionRecords) -> None:
    kept = record(revision=3)
    records.write(kept)
    SessionRecords(Database(database.directory), "/elsewhere").write(kept.model_copy(update={"revision": 7}))
    with pytest.raises(StateFault, match="another server has continued"):
        records.write(kept.model_copy(update={"revision": 4}))
    found = records.read(kept.session_id)
    assert found is not None
    assert found.revision == 7


@pytest.mark.parametrize("bit", [0, 333, 2000])
def test_one_flipped_bit_refuses_the_session_and_brings_no_older_record_back(
    database: Database, records: SessionRecords, bit: int
) -> None:
    kept = record()
    records.write(kept)
    records.write(kept.model_copy(update={"revision": 1, "cancelled": True, "spent_usd": 9.0}))
    (body,) = database.read(lambda db: db.execute("SELECT body FROM sessions").fetchone())
    damaged = bytearray(body.encode())
    damaged[bit // 8] ^= 1 << (bit % 8)
    change_row(database, "UPDATE sessions SET body = ?", damaged.decode("latin-1"))
    with pytest.raises(RecordUnreadable, match="it is damaged"):
        records.read(kept.session_id)
    assert not records.owned_by("alice", kept.session_id)


def test_a_record_of_another_session_in_its_place_is_refused(database: Database, records: SessionRecords) -> None:
    free, limited = record(), record(options=SessionOptions(max_budget_usd=1.0))
    records.write(free)
    records.write(limited)
    query = "SELECT body, checksum FROM sessions WHERE session_id = ?"
    body, checksum = database.read(lambda db: db.execute(query, (free.session_id,)).fetchone())
    update = "UPDATE sessions SET body = ?, checksum = ? WHERE session_id = ?"
    change_row(database, update, body, checksum, limited.session_id)
    with pytest.raises(RecordUnreadable):
        records.read(limited.session_id)


def test_unreadable_is_not_treated_as_absent(records: SessionRecords, database: Database) -> None:
    kept = record()
    records.write(kept)
    database.close()
    with pytest.raises(RecordUnreadable):
        records.read(kept.session_id)
    with pytest.raises(OSError, match="closed"):
        records.summaries()


@pytest.mark.parametrize("field", ["version", "forbids"])
def test_a_record_of_another_version_is_not_taken_in_part(
    database: Database, records: SessionRecords, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = record()
    content = {**kept.model_dump(), field: 2}
    monkeypatch.setattr(SessionRecord, "model_dump", lambda _: content)
    records.write(kept)
    with pytest.raises(RecordUnreadable, match=r"another version|1 of its fields"):
        records.read(kept.session_id)


def test_a_session_that_continues_under_another_id_is_moved_whole_or_not_at_all(
    database: Database, records: SessionRecords, tmp_path: Path
) -> None:
    old, moved_ids = record(running_since=5.0), MovedIds(database, str(tmp_path / "config"))
    records.write(old)
    new = record(running_since=5.0, revision=2)
    records.move(old.session_id, new, new.session_id)
    assert records.read(new.session_id) == new
    assert records.read(old.session_id) == old.model_copy(update={"running_since": None})
    assert moved_ids.resolve(old.session_id) == new.session_id
    another = str(uuid.uuid4())
    with pytest.raises(StateFault):
        records.move(new.session_id, new.model_copy(update={"revision": 1}), another)
    assert records.read(new.session_id) == new
    assert moved_ids.resolve(new.session_id) == new.session_id


def test_summaries_follow_what_changes_in_every_server(database: Database, records: SessionRecords) -> None:
    many = [record(owner=f"owner {number % 3}") for number in range(9)]
    for kept in many:
        records.write(kept)
    before = records.summaries()
    assert {session_id: summary.owner for session_id, summary in before.items()} == {
        kept.session_id: kept.owner for kept in many
    }
    assert records.summaries() is before, "nothing has changed"
    elsewhere = SessionRecords(Database(database.directory), "/elsewhere")
    elsewhere.write(many[0].model_copy(update={"cancelled": True, "owner": "carol"}))
    after = records.summaries()
    assert (after[many[0].session_id].owner, after[many[0].session_id].state) == ("carol", State.CANCELLED)
    assert before[many[0].session_id].owner == "owner 0", "what was handed out is not changed"
    elsewhere.remove(many[1].session_id)
    assert set(records.summaries()) == {kept.session_id for kept in many} - {many[1].session_id}


def test_only_what_has_changed_is_read_again(database: Database, records: SessionRecords) -> None:
    many = [record() for _ in range(50)]
    for kept in many:
        records.write(kept)
    records.summaries()
    records.write(many[7].model_copy(update={"revision": 1}))
    _, rows = database.read(records._news)
    assert [row[0] for row in rows] == [many[7].session_id]


def test_session_without_a_recorded_owner_has_none(records: SessionRecords) -> None:
    kept = record(owner="alice")
    records.write(kept)
    assert records.owned_by("alice", kept.session_id)
    assert records.owned_by(LOCAL, kept.session_id)
    assert not records.owned_by("mallory", kept.session_id)
    assert not records.owned_by("alice", "../../etc/passwd")
    assert not records.owned_by("alice", str(uuid.uuid4()))


def test_records_without_a_transcript_go_after_a_time_a_few_at_once(
    database: Database, records: SessionRecords
) -> None:
    many = [record() for _ in range(250)]
    for kept in many:
        records.write(kept)
    fresh, present = many[0].session_id, many[1].session_id
    change_row(database, "UPDATE sessions SET written_at = ? WHERE session_id != ?", time.time() - 100, fresh)
    asked: list[str] = []

    def has_transcript(session_id: str) -> bool:
        asked.append(session_id)
        return session_id == present

    removed = []
    for _ in range(4):
        before = len(asked)
        removed.append(records.clean_up(has_transcript, 50))
        assert len(asked) - before <= 100
    assert sum(removed) == 248
    assert set(records.summaries()) == {fresh, present}


def test_a_record_that_is_written_while_it_is_looked_at_stays(database: Database, records: SessionRecords) -> None:
    kept = record()
    records.write(kept)
    change_row(database, "UPDATE sessions SET written_at = ?", time.time() - 100)

    def has_transcript(_: str) -> bool:
        records.write(kept.model_copy(update={"revision": 1}))
        return False

    records.clean_up(has_transcript, 50)
    assert records.read(kept.session_id) is not None


def test_records_of_another_configuration_directory_are_not_cleaned_up(database: Database, tmp_path: Path) -> None:
    kept = record()
    SessionRecords(database, str(tmp_path / "one")).write(kept)
    change_row(database, "UPDATE sessions SET written_at = ?", time.time() - 100)
    assert SessionRecords(database, str(tmp_path / "two")).clean_up(lambda _: False, 50) == 0
    assert SessionRecords(database, str(tmp_path / "one")).clean_up(lambda _: False, 50) == 1


# -- ids that moved ---------------------------------------------------------------------------------------------


@pytest.fixture
def moved_ids(database: Database, tmp_path: Path) -> MovedIds:
    return MovedIds(database, str(tmp_path / "config"))


def test_a_cleared_session_is_found_by_every_id_it_had(moved_ids: MovedIds, database: Database) -> None:
    ids = [str(uuid.uuid4()) for _ in range(4)]
    for old, new in pairwise(ids):
        moved_ids.point(old, new)
    again = MovedIds(Database(database.directory), "/config")
    assert [again.resolve(session_id) for session_id in ids] == [ids[-1]] * 4
    assert again.all() == dict.fromkeys(ids[:-1], ids[-1])


def test_ids_that_lead_in_a_circle_end_somewhere(moved_ids: MovedIds) -> None:
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    moved_ids.point(first, second)
    moved_ids.point(second, first)
    assert moved_ids.resolve(first) in (first, second)


def test_pointers_of_conversations_that_are_gone_are_removed(moved_ids: MovedIds, database: Database) -> None:
    gone, cleared, moved, fresh = (str(uuid.uuid4()) for _ in range(4))
    targets = {old: str(uuid.uuid4()) for old in (gone, cleared, moved, fresh)}
    for old, new in targets.items():
        moved_ids.point(old, new)
    change_row(database, "UPDATE moved_ids SET written_at = ? WHERE old_id != ?", time.time() - 100, fresh)
    transcripts = {cleared, targets[moved]}
    assert moved_ids.clean_up(transcripts.__contains__, 50) == 1
    assert set(moved_ids.all()) == {cleared, moved, fresh}
    assert moved_ids.resolve(cleared) == targets[cleared], "the old id must not mean the old conversation again"
