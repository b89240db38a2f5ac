"""The row of a session is the same for every front end."""

from dataclasses import fields
from typing import get_type_hints

from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.sessions.callers.session_access import Access, SessionSharing, Share
from claude_code_mcp.core.sessions.stored.session_row import SessionRow, session_row
from claude_code_mcp.core.transcripts.session_catalog import Entry
from claude_code_mcp.plugins.console.event_frames import page_row
from claude_code_mcp.server.tools.list_sessions import ListedSession, listed_session
from claude_code_mcp.server.tools.output import dump

ENTRY = Entry("s-1", "/src/app", "A title", "Fix it", 1000.0, "main", 10, created=900.0, cost_usd=0.5, pinned=True)


def test_row_round_trip() -> None:
    row = session_row(ENTRY, None, last_state=State.IDLE, continues_at=2000.0)
    assert SessionRow.from_json(row.as_json()) == row
    assert SessionRow.from_json(dump(listed_session(row))) == row
    assert SessionRow.from_json({**row.as_json(), "later": 1}) == row


def test_the_tools_show_columns_of_the_row_and_name_them_alike() -> None:
    columns = {field.name for field in fields(SessionRow)}
    assert {*ListedSession.model_fields} <= columns
    assert get_type_hints(ListedSession).keys() <= columns | {"model_config"}


def test_a_shared_row_says_whose_it_is_and_what_may_be_done() -> None:
    share = Share("s-1", "bob", Access.WATCH, "alice", 0.0)
    row = session_row(ENTRY, None, sharing=SessionSharing("alice", (share,), Access.WATCH))
    assert (row.owner, row.access, row.shared_with) == ("alice", "watch", [{"with": "bob", "access": "watch"}])
    assert page_row(row)["sharedBy"] == "alice"
    assert row.line().endswith("/src/app  A title  [of alice]  [shared with bob (watch)]")


def test_a_stored_row_has_nothing_of_a_session_in_memory() -> None:
    shown = page_row(session_row(ENTRY, None, last_state=State.IDLE))
    assert (shown["inMemory"], shown["status"], shown["title"]) == (False, "completed", "A title")
    assert "needs" not in shown
