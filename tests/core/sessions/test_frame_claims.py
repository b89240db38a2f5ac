"""What frames may say: a table of forged ones and of real ones, each with what becomes of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.claude.protocol import ControlRequest, Frame, Result, parse_frame
from claude_code_mcp.core.model.tool_names import plain_name
from claude_code_mcp.core.model.usage import Usage
from claude_code_mcp.core.sessions.live.frame_claims import CallClaim, ClaimContext, FalseClaim, FrameClaims

OWN = "11111111-1111-4111-8111-111111111111"
TABLE = json.loads((Path(__file__).parents[2] / "scenarios" / "attacks" / "frames.json").read_text())


def knowing(
    turn: bool = True, interrupted: bool = False, requests: int = 1, taken: Mapping[str, str] | None = None
) -> ClaimContext:
    return ClaimContext(turn, interrupted, requests, (taken or {}).get)


def parsed(frame: Any) -> Frame:
    return parse_frame((frame if isinstance(frame, str) else json.dumps(frame)).encode())


def reaction(claims: FrameClaims, frame: Frame, context: ClaimContext) -> str:
    """What becomes of a frame: `acted` on, `ignored`, or what is known of the call that it is."""
    acted = claims.check(frame, context)
    if isinstance(frame, ControlRequest) and frame.subtype == "mcp_message" and "message" in frame.request:
        params = frame.request["message"]["params"]
        return str(claims.call_claimed(plain_name(frame.request["server_name"], params["name"]), params))
    return "acted" if acted else "ignored"


@pytest.mark.parametrize("row", TABLE, ids=[row["attack"] for row in TABLE])
def test_the_table_of_frames(row: dict[str, Any]) -> None:
    claims = FrameClaims(OWN)
    for number, text in enumerate(row.get("sent", [])):
        claims.message_sent(f"message-{number}", text)
    for frame in row.get("earlier", []):
        claims.check(parsed(frame), knowing())
    for use, tool, allowed in row.get("answers", []):
        claims.use_answered(use, tool, allowed)
    for frame in row.get("afterward", []):
        claims.check(parsed(frame), knowing())
    for frame in row.get("calls", []):
        assert reaction(FrameClaims(OWN), parsed(frame), knowing()) == "unknown"
        call = parsed(frame)
        assert isinstance(call, ControlRequest)
        params = call.request["message"]["params"]
        assert claims.call_claimed("mcp__x__pay", params) is CallClaim.ALLOWED
    context = knowing(row.get("turn", True), row.get("interrupted", False), row.get("open", 1), row.get("taken", {}))
    before = claims.session_id
    if row["reaction"] == "ended":
        with pytest.raises(FalseClaim, match=row["reason"]):
            reaction(claims, parsed(row["frame"]), context)
        assert claims.session_id == before
    else:
        assert reaction(claims, parsed(row["frame"]), context) == row["reaction"]


def test_the_table_is_as_large_as_it_is_said_to_be() -> None:
    names = [row["attack"] for row in TABLE]
    assert len(set(names)) == len(names)
    assert sum(not name.startswith("no attack") for name in names) >= 55


def test_a_call_that_had_no_result_may_be_repeated() -> None:
    """Claude Code does so itself, after a sign-in."""
    claims, params = FrameClaims(OWN), {"name": "pay", "_meta": {"claudecode/toolUseId": "toolu_1"}}
    claims.use_answered("toolu_1", "mcp__x__pay", {})
    assert claims.call_claimed("mcp__x__pay", params) is CallClaim.ALLOWED
    claims.call_failed(params)
    assert claims.call_claimed("mcp__x__pay", params) is CallClaim.ALLOWED
    assert claims.call_claimed("mcp__x__pay", params) is CallClaim.UNKNOWN


def test_the_id_of_a_cleared_conversation_is_followed() -> None:
    claims = FrameClaims(OWN)
    claims.message_sent("m", "/clear")
    new = "33333333-3333-4333-8333-333333333333"
    assert claims.check(parsed({"type": "system", "subtype": "init", "session_id": new}), knowing())
    assert claims.session_id == new


def test_what_was_remembered_is_bounded() -> None:
    claims = FrameClaims(OWN)
    for number in range(20_000):
        claims.check(
            parsed({"type": "control_request", "request_id": str(number), "request": {"subtype": "x"}}), knowing()
        )
        claims.use_answered(f"toolu_{number}", "mcp__x__pay", {})
    assert len(claims._requests) <= 10_000
    assert len(claims._uses) <= 2000


def test_a_result_of_a_process_that_is_being_closed_counts_as_far_as_it_can_be_true() -> None:
    claims = FrameClaims(OWN)
    forged = parsed({"type": "result", "total_cost_usd": -5})
    assert isinstance(forged, Result)
    assert claims.late_usage(forged) == Usage()
    real = parsed({"type": "result", "total_cost_usd": 0.25})
    assert isinstance(real, Result)
    assert claims.late_usage(real).cost_usd == 0.25


def test_a_deeply_nested_input_matches_nothing() -> None:
    claims = FrameClaims(OWN)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    claims.use_answered("toolu_1", "mcp__x__pay", {"a": deep})
    params = {"name": "pay", "arguments": {"a": deep}, "_meta": {"claudecode/toolUseId": "toolu_1"}}
    assert claims.call_claimed("mcp__x__pay", params) is CallClaim.UNKNOWN
