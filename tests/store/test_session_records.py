"""The records of sessions and the pointers of cleared ones: private, whole, never wrong in anybody's favour, and gone
in the end."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from claude_code_mcp.errors import RecordUnreadable
from claude_code_mcp.model.options import Preset, SessionOptions, Thinking, ToolPreset
from claude_code_mcp.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.model.states import State
from claude_code_mcp.model.usage import ModelUsage, Usage
from claude_code_mcp.model.worktree import Worktree
from claude_code_mcp.store import session_records
from claude_code_mcp.store.session_records import LOCAL, Aliases, SessionRecord, SessionRecords

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
def records(tmp_path: Path) -> SessionRecords:
    return SessionRecords(tmp_path / "state", str(tmp_path / "config"))


def file_of(tmp_path: Path, session_id: str) -> Path:
    [path] = tmp_path.glob(f"state/sessions/*/{session_id}.json")
    return path


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
    kept = record(options=EVERYTHING, outcome=outcome, grants=grants, usage=outcome.usage, origin=("x", None))
    records.write(kept)
    assert records.read(kept.session_id) == kept


def test_a_directory_whose_name_is_no_text_comes_back_as_it_was(records: SessionRecords) -> None:
    kept = record(cwd=os.fsdecode(b"/src/caf\xe9"))
    records.write(kept)
    assert records.read(kept.session_id) == kept
    assert kept.session_id in records.summaries()


def test_a_record_is_its_owners_alone_whatever_the_umask(records: SessionRecords, tmp_path: Path) -> None:
    kept = record()
    before = os.umask(0)
    try:
        records.write(kept)
    finally:
        os.umask(before)
    path = file_of(tmp_path, kept.session_id)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.stat().st_mode & 0o777 for one in (path.parent, path.parent.parent, tmp_path / "state")] == [0o700] * 3


def test_a_writer_that_is_killed_leaves_the_old_record_or_the_new(records: SessionRecords, tmp_path: Path) -> None:
    kept = record(first_prompt="0")
    records.write(kept)
    code = (
        "import sys; from pathlib import Path\n"
        "from claude_code_mcp.store.session_records import SessionRecords\n"
        "records = SessionRecords(Path(sys.argv[1]), sys.argv[2]); found = records.read(sys.argv[3])\n"
        "print('ready', flush=True)\n"
        "for n in range(10**6):\n"
        "    records.write(found.model_copy(update={'revision': n, 'first_prompt': str(n) * 50000}))\n"
    )
    for _ in range(3):
        arguments = [str(tmp_path / "state"), str(tmp_path / "config"), kept.session_id]
        with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.02)  # somewhere in the middle of its writes
            writer.send_signal(signal.SIGKILL)
        found = records.read(kept.session_id)
        assert found is not None
        assert found.first_prompt in (str(found.revision) * 50000, "0")


def test_a_write_that_fails_leaves_the_old_record_and_nothing_else(
    records: SessionRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = record()
    records.write(kept)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write(kept.model_copy(update={"cancelled": True}))
    assert records.read(kept.session_id) == kept
    assert len(list(tmp_path.glob("state/sessions/*/*"))) == 1


@pytest.mark.parametrize("rest", [b'\n{"version":1,"revi', b"\n", bytes(5000), b"\n\xff\xfe", b"\n" + b"[" * 100_000])
def test_what_was_not_written_whole_when_the_machine_failed_does_not_count(
    records: SessionRecords, tmp_path: Path, rest: bytes
) -> None:
    kept = record()
    for number in range(3):
        records.write_at_once(kept.model_copy(update={"revision": number}))
        assert records.read(kept.session_id) == kept.model_copy(update={"revision": number})
    with file_of(tmp_path, kept.session_id).open("ab") as file:
        file.write(rest)
    expected = kept.model_copy(update={"revision": 2 if rest.startswith(b"\n") else 1})
    assert records.read(kept.session_id) == expected
    assert kept.session_id in records.summaries()
    records.write_at_once(kept.model_copy(update={"revision": 3}))
    assert records.read(kept.session_id) == kept.model_copy(update={"revision": 3})


def test_a_newer_record_that_is_not_understood_does_not_bring_an_older_one_back(
    records: SessionRecords, tmp_path: Path
) -> None:
    kept = record()
    records.write(kept)
    newer = {**json.loads(file_of(tmp_path, kept.session_id).read_text()), "forbids": ["Bash"]}
    with file_of(tmp_path, kept.session_id).open("a") as file:
        file.write("\n" + json.dumps(newer))
    with pytest.raises(RecordUnreadable, match="1 of its fields"):
        records.read(kept.session_id)


def test_a_file_of_many_records_is_replaced_by_one_with_the_newest(records: SessionRecords, tmp_path: Path) -> None:
    kept, largest = record(), 0
    for number in range(400):
        records.write_at_once(kept.model_copy(update={"revision": number}))
        largest = max(largest, file_of(tmp_path, kept.session_id).stat().st_size)
    assert 32 << 10 < largest <= 64 << 10
    assert records.read(kept.session_id) == kept.model_copy(update={"revision": 399})
    records.make_durable(kept.session_id)
    assert len(list(tmp_path.glob("state/sessions/*/*"))) == 1


def test_a_disk_that_is_full_in_the_middle_of_a_record_leaves_the_one_before(
    records: SessionRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, write = record(), os.write
    records.write(kept)
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:100]))
    with pytest.raises(OSError, match="No space"):
        records.write_at_once(kept.model_copy(update={"revision": 1}))
    monkeypatch.undo()
    assert records.read(kept.session_id) == kept
    records.write_at_once(kept.model_copy(update={"revision": 2}))
    assert records.read(kept.session_id) == kept.model_copy(update={"revision": 2})


def test_only_no_record_at_all_is_no_record(records: SessionRecords, tmp_path: Path) -> None:
    assert records.read(str(uuid.uuid4())) is None
    kept = record()
    records.write(kept)
    path = file_of(tmp_path, kept.session_id)
    path.unlink()
    path.mkdir()
    with pytest.raises(RecordUnreadable):
        records.read(kept.session_id)


def test_a_record_with_an_unknown_field_is_not_taken_in_part(records: SessionRecords, tmp_path: Path) -> None:
    kept = record()
    records.write(kept)
    path = file_of(tmp_path, kept.session_id)
    path.write_text(json.dumps({**json.loads(path.read_text()), "forbids": ["Bash"]}))
    with pytest.raises(RecordUnreadable, match="1 of its fields"):
        records.read(kept.session_id)


def test_summaries_follow_what_changes_and_read_nothing_else(
    records: SessionRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [record(owner=f"owner {number % 3}") for number in range(9)]
    for one in many:
        records.write(one)
    read: list[str] = []
    summary = session_records._summary

    def counted(path: str) -> object:
        read.append(path)
        return summary(path)

    monkeypatch.setattr(session_records, "_summary", counted)
    told = records.summaries()
    assert {one: summary.owner for one, summary in told.items()} == {one.session_id: one.owner for one in many}
    assert len(read) == 9
    records.summaries()
    assert len(read) == 9
    records.write(many[0].model_copy(update={"cancelled": True, "owner": "somebody"}))
    again = records.summaries()
    assert (len(read), again[many[0].session_id].owner) == (10, "somebody")
    assert again[many[0].session_id].state is State.CANCELLED
    records.remove(many[1].session_id)
    assert many[1].session_id not in records.summaries()
    file_of(tmp_path, many[2].session_id).write_bytes(b"{")
    os.utime(file_of(tmp_path, many[2].session_id).parent)
    assert many[2].session_id not in records.summaries()


def test_a_settled_directory_is_not_scanned_again(
    records: SessionRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = record()
    records.write(kept)
    long_ago = time.time() - 60
    os.utime(file_of(tmp_path, kept.session_id).parent, (long_ago, long_ago))
    assert set(records.summaries()) == {kept.session_id}
    monkeypatch.setattr(os, "scandir", None)
    assert set(records.summaries()) == {kept.session_id}


def test_ownership_is_nobodys_where_the_record_does_not_tell(records: SessionRecords, tmp_path: Path) -> None:
    kept = record(owner="alice")
    records.write(kept)
    assert records.owned_by("alice", kept.session_id)
    assert records.owned_by(LOCAL, kept.session_id)
    assert not records.owned_by("mallory", kept.session_id)
    assert not records.owned_by("alice", "../../etc/passwd")
    file_of(tmp_path, kept.session_id).write_bytes(b"")
    assert not records.owned_by("alice", kept.session_id)


def test_records_without_a_transcript_go_after_a_time_a_few_at_once(records: SessionRecords, tmp_path: Path) -> None:
    many = [record() for _ in range(250)]
    for one in many:
        records.write(one)
    fresh, kept = many[0].session_id, many[1].session_id
    old = time.time() - 100
    for one in many:
        if one.session_id != fresh:
            os.utime(file_of(tmp_path, one.session_id), (old, old))
    asked: list[str] = []

    def has_transcript(session_id: str) -> bool:
        asked.append(session_id)
        return session_id == kept

    removed = []
    for _ in range(4):
        before = len(asked)
        removed.append(records.clean_up(has_transcript, 50))
        assert len(asked) - before <= 100
    assert sum(removed) == 248
    assert {path.stem for path in tmp_path.glob("state/sessions/*/*.json")} == {fresh, kept}


def test_what_a_crash_left_half_written_is_removed(records: SessionRecords, tmp_path: Path) -> None:
    kept = record()
    records.write(kept)
    left = file_of(tmp_path, kept.session_id).with_name(".x.tmp")
    left.touch()
    records.clean_up(lambda _: True, 0)
    assert left.exists()  # it may be being written
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))
    records.clean_up(lambda _: True, 0)
    assert not left.exists()
    assert records.read(kept.session_id) == kept


# -- pointers of cleared sessions -----------------------------------------------------------------------------------


@pytest.fixture
def aliases(tmp_path: Path) -> Aliases:
    return Aliases(tmp_path / "state", str(tmp_path / "config"))


def pointers(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.glob("state/moved/**/*") if path.is_file()]


def test_a_cleared_session_is_found_by_every_id_it_had(aliases: Aliases, tmp_path: Path) -> None:
    ids = [str(uuid.uuid4()) for _ in range(4)]
    for old, new in pairwise(ids):
        aliases.point(old, new)
    again = Aliases(tmp_path / "state", str(tmp_path / "config"))
    assert [again.resolve(session_id) for session_id in ids] == [ids[-1]] * 4
    assert all(path.stat().st_mode & 0o077 == 0 for path in pointers(tmp_path))


def test_a_pointer_of_an_earlier_version_still_leads_on(aliases: Aliases, tmp_path: Path) -> None:
    old, new = str(uuid.uuid4()), str(uuid.uuid4())
    (tmp_path / "state" / "moved").mkdir(parents=True)
    (tmp_path / "state" / "moved" / old).write_text(new)
    assert aliases.resolve(old) == new


def test_pointers_of_conversations_that_are_gone_are_removed(aliases: Aliases, tmp_path: Path) -> None:
    gone, cleared, moved, fresh = (str(uuid.uuid4()) for _ in range(4))
    targets = {old: str(uuid.uuid4()) for old in (gone, cleared, moved, fresh)}
    for old, new in targets.items():
        aliases.point(old, new)
    long_ago = time.time() - 100
    for path in pointers(tmp_path):
        if path.name != fresh:
            os.utime(path, (long_ago, long_ago))
    transcripts = {cleared, targets[moved]}
    assert aliases.clean_up(transcripts.__contains__, 50) == 1
    assert {path.name for path in pointers(tmp_path)} == {cleared, moved, fresh}
    assert aliases.resolve(cleared) == targets[cleared], "the old id must not mean the old conversation again"
