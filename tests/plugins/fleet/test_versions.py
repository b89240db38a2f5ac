"""Machines of two versions in one fleet: what is added is ignored, and what must not be is refused with the reason."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from claude_code_mcp import __version__
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.state.session_records import SessionRecord
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.keeper import KeeperOwnership
from claude_code_mcp.plugins.fleet.machines import FleetMember, Machine, Members
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.placement import NoMachine, choose_machine
from claude_code_mcp.plugins.fleet.records import RecordStore
from claude_code_mcp.plugins.fleet.routing import PlacementRequest
from claude_code_mcp.plugins.fleet.working_trees import TreeRef

from .machines import OpenSeal, held

ID = "11111111-1111-4111-8111-111111111111"
RECORD = SessionRecord(session_id=ID, owner="", created_at=1, used_at=1, cwd="/p", options=SessionOptions())


async def changed_document(fleet: FleetConnection, tmp_path: Path, **changes: Any) -> RecordStore:
    """The records of a fleet in which another version has written the session's document, with these differences.
    Those of `record` and `options` are of the record, and of its options."""
    store = RecordStore(fleet, database_in(tmp_path / "state"), OpenSeal())
    await store.put(RECORD, held(ID, "a", 1))
    bucket = await fleet.jetstream.key_value(names.RECORDS)
    written = json.loads(zlib.decompress((await bucket.get(ID)).value or b""))
    assert written["written_by"] == __version__
    written["record"] |= changes.pop("record", {})
    written["record"]["options"] |= changes.pop("options", {})
    written |= changes
    without = {name: value for name, value in written.items() if value is not ...}
    await bucket.put(ID, zlib.compress(json.dumps(without).encode()))
    return store


async def test_unknown_fields_of_newer_machines_are_ignored_and_missing_ones_have_defaults(
    fleet: FleetConnection, tmp_path: Path
) -> None:
    question = {"id": "q", "title": "t", "since": 3}
    record = {"mood": "good", "origin": None}
    store = await changed_document(
        fleet, tmp_path, extra=1, written_by=..., questions=[question], record=record, options={"pace": None}
    )
    document = await store.read(ID)
    assert document.record == RECORD
    assert (document.questions[0].id, document.written_by) == ("q", "")
    taken = await store.take_over(ID, held(ID, "b", 2))
    assert taken.epoch == 2
    assert (await store.read(ID)).written_by == __version__


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2, "written_by": "9.1"}, "in a different format, written by claude-code-mcp 9.1"),
        ({"options": {"curfew": "22:00"}, "written_by": "9.1"}, r"does not support \(curfew\).*claude-code-mcp 9.1"),
        ({"options": {"most_files": 0}}, r"does not support \(most_files\)"),
        ({"record": {"version": 2}, "written_by": "9.1"}, "damaged, or in a different format.*claude-code-mcp 9.1"),
        ({"version": 2, "written_by": ...}, "written by another version of claude-code-mcp"),
    ],
)
async def test_what_must_not_be_ignored_is_refused_with_the_version_that_wrote_it(
    fleet: FleetConnection, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    store = await changed_document(fleet, tmp_path, **changes)
    with pytest.raises(InvalidArgument, match=reason):
        await store.read(ID)
    with pytest.raises(InvalidArgument, match=reason):
        await store.take_over(ID, held(ID, "b", 2))


def test_a_tree_that_a_newer_machine_has_saved_is_read() -> None:
    ref = TreeRef(head=None, branch=None, index="a", files="b", digest="c", packs=("p",))
    assert TreeRef.model_validate({**ref.model_dump(), "signed": True}) == ref


def test_a_machine_that_reports_otherwise_is_seen_and_not_chosen() -> None:
    newer = Machine.from_json("a", {"name": "server", "version": "9.1", "cli_version": "2.1", "capacity": 3, "mood": 1})
    older = Machine.from_json("b", {"capacity": 3})
    assert (newer.name, newer.repositories, older.name) == ("server", (), "b")
    with pytest.raises(NoMachine) as refused:
        choose_machine([newer, older], PlacementRequest(""))
    reasons = refused.value.reasons
    assert set(reasons) == {"server (a)", "b (b)"}
    assert all(__version__ in reason for reason in reasons.values())
    assert "9.1" in reasons["server (a)"]
    assert not refused.value.waiting_helps


async def test_members_and_holders_that_another_version_has_written_are_read(fleet: FleetConnection) -> None:
    bucket = await fleet.jetstream.key_value(names.MEMBERS)
    await bucket.put("a", json.dumps({"name": "server", "draining": True, "region": "north"}).encode())
    await bucket.put("b", b"{}")
    members = await Members.opened(fleet)
    assert await members.all() == [FleetMember("b", "b"), FleetMember("a", "server", draining=True)]
    sessions = await fleet.jetstream.key_value(names.SESSIONS)
    await sessions.put(ID, json.dumps({"machine": "a", "epoch": 1, "principal": "", "since": 5}).encode())
    stored = await (await OwnershipBucket.opened(fleet)).read(ID)
    answer = {"session_id": ID, "machine": "a", "epoch": 1, "principal": "", "revision": 4, "since": 5}

    async def newer_keeper(message: Msg) -> None:
        await message.respond(json.dumps({"result": answer}).encode())

    async with fleet.answering({names.keeper("a", "read"): newer_keeper}):
        record = await KeeperOwnership(fleet, "a").read(ID)
    for found in (stored, record):
        assert found is not None
        assert (found.machine, found.epoch, found.arriving) == ("a", 1, False)
