"""What another machine of the fleet has stored is a claim: with a stolen key it may say anything of a session."""

import json
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.fleet.records import SessionDocument, put_beside
from claude_code_mcp.fleet.trees import TreeRef, TreeRefused
from claude_code_mcp.model.options import SessionOptions
from claude_code_mcp.state.session_records import SessionRecord
from claude_code_mcp.state.state_directory import database_in

ROWS = json.loads(Path(__file__).parents[1].joinpath("scenarios", "attacks", "documents.json").read_text())
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
def test_nobodys_spending_is_changed_but_its_owners_and_never_lowered(tmp_path: Path, row: dict[str, Any]) -> None:
    database = database_in(tmp_path)
    spending = tuple(map(tuple, row["spending"]))
    put_beside(database, SessionDocument(epoch=1, record=RECORD, spending=spending))
    found = database.read(lambda db: db.execute("SELECT day, principal, usd FROM spending").fetchall())
    assert [[*each] for each in found] == row["kept"]


@named("keys")
def test_only_keys_of_the_session_are_taken(tmp_path: Path, row: dict[str, Any]) -> None:
    database = database_in(tmp_path)
    put_beside(database, SessionDocument(epoch=1, record=RECORD, keys=tuple(map(tuple, row["keys"]))))
    found = database.read(lambda db: db.execute("SELECT key FROM message_keys").fetchall())
    assert len(found) == row["kept"]
