"""Where requests go, and how answers of many machines become one: decided without a fleet."""

from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.plugins.fleet import merged_results
from claude_code_mcp.plugins.fleet.routing import (
    Goal,
    ListenFilter,
    find_machine,
    route,
    session_of,
    split_id,
    with_machine,
)

from .programs import NamedMachine

SESSION = "0B7C9C52-7A5B-4B43-9C39-0A3C3F7B0E11"
A, B = NamedMachine("a"), NamedMachine("b")


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("method", "params", "goal", "key"),
    [
        ("tools/call", tool_call("claude_get_status", sessionId=SESSION), Goal.SESSION, SESSION.lower()),
        (
            "tools/call",
            tool_call("claude_code_session", action="get", sessionId=SESSION),
            Goal.SESSION,
            SESSION.lower(),
        ),
        ("tools/call", tool_call("claude_code_session", action="list"), Goal.ALL, ""),
        ("tools/call", tool_call("claude_list_sessions"), Goal.ALL, ""),
        ("tools/call", tool_call("claude_list_sessions", machine="a"), Goal.MACHINE, "a"),
        ("tools/call", tool_call("claude_code_configure", action="get_config"), Goal.MACHINE, ""),
        ("tools/call", tool_call("claude_code", prompt="x"), Goal.NEW, ""),
        ("tools/call", {**tool_call("claude_code", prompt="x"), "requestState": "a.b.c"}, Goal.MACHINE, "a"),
        ("tools/call", tool_call("claude_get_status", sessionId="../../x"), Goal.ANY, ""),
        ("tools/call", {"name": None, "arguments": None}, Goal.ANY, ""),
        ("tools/call", {"name": ["x"], "arguments": {}}, Goal.ANY, ""),
        ("tools/call", {"name": "claude_code", "arguments": [1]}, Goal.ANY, ""),
        ("tasks/get", {"taskId": "a.t1"}, Goal.MACHINE, "a"),
        ("resources/read", {"uri": f"claude-session:///{SESSION}/transcript?full=1"}, Goal.SESSION, SESSION.lower()),
        ("resources/read", {"uri": f"claude-session:///{SESSION}x"}, Goal.ANY, ""),
        ("resources/read", {"uri": "claude-sessions:///costs"}, Goal.ALL, ""),
        ("resources/read", {"uri": 1}, Goal.ANY, ""),
        ("resources/list", {}, Goal.ALL, ""),
        ("prompts/list", {}, Goal.ANY, ""),
    ],
)
def test_a_request_goes_where_its_subject_is(method: str, params: dict[str, Any], goal: Goal, key: str) -> None:
    found = route(method, params, "ann")
    assert (found.goal, found.key) == (goal, key)


def test_a_session_is_moved_by_the_gateway_to_a_machine_that_must_be_named() -> None:
    asked = tool_call("claude_manage_session", sessionId=SESSION, action="move", machine="desk", wait=True)
    target = route("tools/call", asked, "ann")
    assert (target.goal, target.key, target.move_to) == (Goal.SESSION, SESSION.lower(), "desk")
    assert target.params["arguments"] == {"sessionId": SESSION, "action": "move", "wait": True}
    for wrong in ({"action": "move"}, {"action": "pin", "machine": "desk"}):
        with pytest.raises(InvalidArgument, match="machine"):
            route("tools/call", tool_call("claude_manage_session", sessionId=SESSION, **wrong), "ann")


def test_gateway_fields_are_not_forwarded() -> None:
    arguments = {"prompt": "x", "machine": "a", "labels": ["gpu"], "workingDirectory": "/w", "messageKey": "k"}
    found = route("tools/call", tool_call("claude_create_session", **arguments), "ann")
    assert found.params["arguments"] == {"prompt": "x", "workingDirectory": "/w", "messageKey": "k"}
    assert found.message_key == "k"
    assert found.placement is not None
    wanted = found.placement
    assert (wanted.principal, wanted.machine, wanted.directory) == ("ann", "a", "/w")
    assert wanted.labels == {"gpu"}
    state = route("tools/call", {**tool_call("claude_code", prompt="x"), "requestState": "a.b.c"}, "ann")
    assert state.params["requestState"] == "b.c"
    assert route("tasks/cancel", {"taskId": "a.t.1"}, "ann").params["taskId"] == "t.1"


@pytest.mark.parametrize("text", ["", "nothing", 1, None])
def test_an_id_without_a_machine_leads_nowhere(text: object) -> None:
    with pytest.raises(InvalidArgument):
        split_id(text)


def test_ids_come_back_as_they_were() -> None:
    assert split_id(with_machine("a", "x.y")) == ("a", "x.y")
    assert session_of(f"claude-session:///{SESSION}") == SESSION.lower()


def test_a_machine_is_found_by_id_before_name() -> None:
    class Named(NamedMachine):
        name = "a"

    assert find_machine([A, Named("z")], "a") is A
    assert find_machine([A, B], "b.example.org") is B
    with pytest.raises(InvalidArgument, match=r"(?i)several|ambiguous|more than one"):
        find_machine([Named("x"), Named("y")], "a")
    with pytest.raises(InvalidArgument, match=r"\bc\b.*\b(no|not|none)\b|\b(no|not|none)\b.*\bc\b"):
        find_machine([A, B], "c")


def test_each_machine_is_listened_to_for_what_it_has() -> None:
    wanted = ListenFilter({"resourcesListChanged": True})
    wanted.add("resourceSubscriptions", "u1", "a")
    wanted.add("resourceSubscriptions", "claude-sessions:///")
    wanted.add("resourceSubscriptions", "u2", "a")
    wanted.add("taskIds", "t1", "b")
    assert wanted.at("a") == {
        "resourcesListChanged": True,
        "resourceSubscriptions": ["claude-sessions:///", "u1", "u2"],
    }
    assert wanted.at("b") == {
        "resourcesListChanged": True,
        "resourceSubscriptions": ["claude-sessions:///"],
        "taskIds": ["t1"],
    }
    assert wanted.at("c") == {"resourcesListChanged": True, "resourceSubscriptions": ["claude-sessions:///"]}


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"sessionId": str(number), "timestamp": f"2026-01-{number:02}", **more}


def test_pages_of_many_machines_are_one_list() -> None:
    """Page by page everything comes once: pinned ones first, then the newest."""
    rows = {A: [row(9, pinned=True), row(7), row(5), row(1)], B: [row(8), row(6), row(2)]}
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        answers: list[tuple[NamedMachine, dict[str, Any]]] = []
        for machine, of_machine in rows.items():
            more = {"nextOffset": offset + 2} if len(of_machine) > offset + 2 else {}
            answers.append((machine, {"sessions": of_machine[: offset + 2], **more}))
        page = merged_results.merged_sessions(answers, offset, 2)
        seen += [f"{each['sessionId']}{each['machine'][0]}" for each in page["sessions"]]
        offset = page.get("nextOffset")
    assert seen == ["9a", "8b", "7a", "6b", "5a", "2b", "1a"]


def test_costs_of_many_machines_have_one_total() -> None:
    answers: list[tuple[NamedMachine, dict[str, Any]]] = [
        (
            A,
            {"by": "day", "lines": [{"name": "d1", "usd": 0.1}], "total": {"usd": 0.1, "sessions": 1, "name": "total"}},
        ),
        (B, {"by": "day", "lines": [{"name": "d1", "usd": 0.2}], "total": {"usd": 0.2, "sessions": 2}, "leftOut": 3}),
    ]
    answers[1][1]["budgets"] = [{"period": "day", "limitUsd": 5.0, "spentUsd": 4.0}]
    merged = merged_results.merged_costs(answers)
    assert merged["budgets"] == [{"period": "day", "limitUsd": 5.0, "spentUsd": 4.0, "machine": "b.example.org"}]
    assert merged["total"] == {"usd": 0.3, "sessions": 3, "name": "total"}
    assert [line["machine"] for line in merged["lines"]] == ["a.example.org", "b.example.org"]
    assert merged["leftOut"] == 3


def test_cost_parts_are_limited_over_all_machines() -> None:
    cheap = {f"model-{number}": 0.1 + number / 100 for number in range(5)}
    lines = [{"name": "d1", "usd": 9.0, "parts": {"opus": 9.0, "other": 0.5}}]
    more = [{"name": "d1", "usd": 3.6, "parts": {"haiku": 3.0, **cheap, "wrong": "much"}}, {"name": "d2", "parts": []}]
    merged = merged_results.merged_costs([(A, {"lines": lines}), (B, {"lines": more})])
    assert [line["parts"] for line in merged["lines"]] == [
        {"opus": 9.0, "other": 0.5},
        {"haiku": 3.0, "model-4": 0.14, "model-3": 0.13, "model-2": 0.12, "other": 0.21},
        {},
    ]


def test_unreadable_data_is_reported_with_the_machine_name() -> None:
    error = {"code": "UNREADABLE", "message": "a file"}
    merged = merged_results.merged_sessions([(A, {"sessions": []}), (B, {"sessions": [], "error": error})], 0, 50)
    assert merged["error"] == {"code": "UNREADABLE", "message": "b.example.org: a file"}


def test_a_refusal_of_every_machine_is_the_answer() -> None:
    refused = {"isError": True, "content": [{"type": "text", "text": "Error [INVALID_ARGUMENT]: limit"}]}
    assert merged_results.merged_tool("claude_list_sessions", {}, [(A, refused), (B, refused)], []) == refused
    accepted = {"structuredContent": {"sessions": [row(1)]}, "content": []}
    merged = merged_results.merged_tool("claude_list_sessions", {}, [(A, refused), (B, accepted)], [])
    assert merged["structuredContent"]["unanswered"] == [
        {"machine": "a.example.org", "reason": "Error [INVALID_ARGUMENT]: limit"}
    ]
    assert "a.example.org" in merged["content"][0]["text"]


NONSENSE: list[Any] = [
    7, "text", [], [7], {"sessions": 7}, {"sessions": [None, 7, []], "nextOffset": "x", "error": 5},
    {"lines": [7, {"usd": "much"}], "total": {"usd": "x"}, "leftOut": "x", "budgets": {}, "by": []},
    {"lines": 7, "total": 7, "leftOut": float("inf"), "budgets": 7, "error": []},
]  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_no_answer_of_one_machine_takes_those_of_the_others_away(nonsense: Any) -> None:
    good = {"sessions": [row(1)], "lines": [{"name": "day", "usd": 0.5}], "total": {"usd": 0.5}}
    for first, second in (((A, good), (B, nonsense)), ((B, nonsense), (A, good))):
        answers = [(machine, {"structuredContent": value}) for machine, value in (first, second)]
        listed = merged_results.merged_tool("claude_list_sessions", {}, answers, [])
        assert [each["machine"] for each in listed["structuredContent"]["sessions"]] == ["a.example.org"]
        costs = merged_results.merged_tool("claude_session_costs", {}, answers, [])
        assert costs["structuredContent"]["total"]["usd"] == 0.5
        contents = [(machine, {"contents": value, "resources": value, "completion": value, "_meta": value})
                    for machine, value in (first, second)]  # fmt: skip
        merged_results.merged_resources(contents, [])
        merged_results.merged_completions(contents)
        pages = [(machine, merged_results.json_of(answer)) for machine, answer in contents]
        merged_results.merged_contents("claude-sessions:///", contents[0][1], pages, [])
