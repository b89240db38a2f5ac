"""What another machine of the fleet has stored is a claim: with a stolen key it may say anything of a session."""

import json
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import PermissionDenied, SessionNotFound
from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import LOCAL_PROFILE, Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.core.sessions.callers.policy_enforcer import PolicyEnforcer
from claude_code_mcp.core.state.session_records import SessionRecord
from claude_code_mcp.core.state.spending import Spending
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.leases import Holding
from claude_code_mcp.plugins.fleet.records import AbsentRecords, SessionDocument, put_keys_and_spending
from claude_code_mcp.plugins.fleet.working_trees import TreeRef, TreeRefused
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.core.sessions.support import run, say

from .machines import Ledger, machine

ROWS = json.loads(Path(__file__).parents[2].joinpath("scenarios", "attacks", "documents.json").read_text())
ID = "11111111-1111-4111-8111-111111111111"
RECORD = SessionRecord(session_id=ID, owner="alice", created_at=1, used_at=1, cwd="/p", options=SessionOptions())


def named(field: str) -> pytest.MarkDecorator:
    rows = [row for row in ROWS if field in row]
    return pytest.mark.parametrize("row", rows, ids=[row["attack"] for row in rows])


@named("tree")
def test_a_tree_leads_nowhere_else_and_is_no_option_of_git(row: dict[str, Any]) -> None:
    if row["attack"].startswith("no attack"):
        assert TreeRef.read(row["tree"]).below == row["tree"]["below"]
        return
    with pytest.raises(TreeRefused):
        TreeRef.read(row["tree"])


@named("spending")
def test_only_the_owners_spending_changes_and_never_decreases(tmp_path: Path, row: dict[str, Any]) -> None:
    database = database_in(tmp_path)
    spending = tuple(map(tuple, row["spending"]))
    put_keys_and_spending(database, SessionDocument(epoch=1, record=RECORD, spending=spending))
    found = database.read(lambda db: db.execute("SELECT day, principal, usd FROM spending").fetchall())
    assert [[*each] for each in found] == row["kept"]


@named("keys")
def test_only_keys_of_the_session_are_taken(tmp_path: Path, row: dict[str, Any]) -> None:
    database = database_in(tmp_path)
    put_keys_and_spending(database, SessionDocument(epoch=1, record=RECORD, keys=tuple(map(tuple, row["keys"]))))
    found = database.read(lambda db: db.execute("SELECT key FROM message_keys").fetchall())
    assert len(found) == row["kept"]


@named("options")
def test_no_record_of_another_machine_decides_which_program_runs(tmp_path: Path, row: dict[str, Any]) -> None:
    # Whatever a caller may ask for: the profile has no limit.
    profile = Profile(allow=(parse_rule("Bash(known --stdio)"),))
    enforcer = PolicyEnforcer(Policy(profile), str(tmp_path), Spending(database_in(tmp_path)))
    recorded = SessionOptions.model_validate(row["options"])
    check = partial(enforcer.check_record_of_machine, "alice", str(tmp_path), recorded)
    if row["refused"] is None:
        check(None)
        return
    with pytest.raises(PermissionDenied) as refused:
        check(None)
    assert refused.value.data["field"] == row["refused"]
    with pytest.raises(PermissionDenied):
        check(SessionOptions())
    check(recorded)  # what this machine has recorded itself


NAME_NO_PROGRAM = frozenset(
    {
        *("cwd", "worktree", "model", "fallback_model", "effort", "thinking", "betas", "agent", "system_prompt"),
        *("append_system_prompt", "output_schema", "permission_mode", "dangerously_skip_permissions", "ask"),
        *("allowed_tools", "disallowed_tools", "tools", "additional_directories", "hub_servers", "strict_mcp_config"),
        *("setting_sources", "max_turns", "max_budget_usd", "turn_timeout", "file_checkpointing", "persist", "debug"),
        *("include_partial_messages", "on_limit", "stay_on_machine"),
    }
)


def test_every_option_names_programs_that_are_looked_for_or_none() -> None:
    """A new option belongs into `programs_named`, with a row of the table, or here."""
    attacked = {name for row in ROWS if row.get("refused") for name in row["options"]}
    assert attacked == SessionOptions.model_fields.keys() - NAME_NO_PROGRAM


async def test_a_session_whose_record_was_changed_to_name_a_program_is_not_taken(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    ledger, cwd, ran = Ledger(), tmp_path / "work", tmp_path / "ran"
    cwd.mkdir()
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o700)
    policy = Policy(LOCAL_PROFILE)
    async with (
        machine("one", fleet, ledger, tmp_path, model.url, policy=policy) as one,
        machine("two", fleet, ledger, tmp_path, model.url, policy=policy) as two,
    ):
        session, _ = await run(one.service, script("hello", "hello"), SessionOptions(cwd=str(cwd)))
        await one.replica.complete(session.id)
        honest, holding = (await one.records.read(session.id)).record, ledger.held[session.id]
        forged = honest.options.model_copy(update={"executable": str(program)})
        await one.records.put(honest.model_copy(update={"options": forged, "revision": honest.revision + 1}), holding)
        ledger.release(session.id)
        with pytest.raises(PermissionDenied, match="executable: the session's record comes from another machine"):
            await two.mover.take(session.id, LOCAL, str(cwd))
        with pytest.raises(SessionNotFound):
            await two.service.find(session.id)
        assert not ran.exists()
        assert session.id not in ledger.held, "it is free for others"
        again = ledger.claim(session.id, "one")
        await one.records.put(honest.model_copy(update={"revision": honest.revision + 2}), again)
        ledger.release(session.id)
        await two.mover.take(session.id, LOCAL, str(cwd))
        assert (await say(two.service, session.id, script("go on", "here"))).result == "here"


async def test_no_document_of_a_machine_that_is_gone_takes_the_others_out_of_a_list(fleet: FleetConnection) -> None:
    bucket = await fleet.jetstream.key_value(names.RECORDS)
    good = RECORD.model_copy(update={"cwd": "/" + "x" * 100_000, "options": SessionOptions(model="m" * 100_000)})
    documents = {
        ID: SessionDocument(epoch=1, record=good).model_dump_json(),
        ID.replace("1", "2"): "[" * 1_000_000,
        ID.replace("1", "3"): '{"record": {"created_at": NaN}}',
    }
    for session_id, document in documents.items():
        await bucket.put(session_id, zlib.compress(document.encode()))
    holdings = [Holding(session_id, "b", 1, "alice", at) for at, session_id in enumerate(documents)]
    known, *damaged = await AbsentRecords(fleet).read(holdings, ["a"])
    assert (known.session_id, known.directory) == (ID, good.cwd[:4096])
    assert len(known.model or "") < 1000, "many of them make one answer"
    assert [each.state for each in damaged] == [None, None]
    assert all("cannot be used" in each.title for each in damaged)
