"""What passes a relay, and what it remembers: pure, so that every case can be tried."""

import json
import random
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.server.tools.toolsets import tools_of
from claude_code_mcp.startup.greeting.first_answers import GreetedInput
from claude_code_mcp.startup.shared import handshake as hello
from claude_code_mcp.startup.shared.handshake import MAX_LINE, Lines, look, unreadable
from claude_code_mcp.startup.shared.relay import KEYED_TOOLS, READING_TOOLS, Relay


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def messages(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(one) for one in data.splitlines()]


BIG = "x" * 20_000
TRICKY = ['"id": 7}', '\\"id\\":7}', ',"id":7', "}", '"', "\\", "[{", "ü\u2028"]


@pytest.mark.parametrize("text", [BIG, *(BIG + end for end in TRICKY), *(begin + BIG for begin in TRICKY)])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_large_line_is_seen_as_what_it_is(text: str, ascii_only: bool) -> None:
    bodies: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"id": 6, "text": text}},
        {"method": "tools/call", "params": {"method": "no", "text": text}, "jsonrpc": "2.0", "id": "five"},
        {"method": "notifications/message", "params": {"text": text, "id": 3}, "jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "id": 5, "result": {"content": [text]}},
        {"result": {"content": [text]}, "jsonrpc": "2.0", "id": 0},
        {"jsonrpc": "2.0", "error": {"message": text}, "id": -1},
        {"jsonrpc": "2.0", "extra": text, "id": 9, "method": "ping"},
        {"params": [text], "id": 4, "method": "x" * 600},
    ]
    for body in bodies:
        for separators in ((",", ":"), (", ", ": "), (" ,\t", " : ")):
            encoded = json.dumps(body, ensure_ascii=ascii_only, separators=separators).encode() + b"\r\n"
            seen = look(encoded)
            assert (seen.get("id"), seen.get("method")) == (body.get("id"), body.get("method")), encoded[-80:]


def test_invalid_message_is_ignored() -> None:
    deep = b"[" * 100_000
    for garbage in (b"", b"\n", b"null", b"[]", b"{", b"\xff\xfe", b'{"id":', deep, b'{"a":' + deep, BIG.encode()):
        assert look(garbage) == {}


def test_relay_accepts_any_line() -> None:
    dice = random.Random(7)
    pieces = [b'{"id"', b":", b"1", b'"method"', b'"tools/call"', b",", b"}", b"[", b"]", b"null", b'"params"', b"{"]
    relay = Relay()
    for _ in range(3000):
        garbage = b"".join(dice.choices(pieces, k=dice.randrange(12))) + b"\n"
        relay.from_client(garbage)
        relay.from_server(garbage)
        if dice.random() < 0.02:
            relay.lost()
            relay.resume()


def test_lines_come_whole_however_the_bytes_come() -> None:
    data = b"one\ntwo\n\nthree\nfour"
    for size in range(1, len(data) + 1):
        lines = Lines(unreadable)
        found = [one for at in range(0, len(data), size) for one in lines.receive(data[at : at + size])]
        assert found == [b"one\n", b"two\n", b"\n", b"three\n"]
        assert lines.take_rest() == b"four"


def test_a_line_that_is_too_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINE == 64 << 20
    monkeypatch.setattr(hello, "MAX_LINE", 1000)
    relay = Relay()
    relay.from_client(line(id=3, method="tools/call", params={"name": "none"}))
    lines = Lines(relay.too_long)
    found = [one for _ in range(5) for one in lines.receive(line(id=3, result={"text": "x" * 700})[:-1])]
    assert found == []
    refused, after = lines.receive(b"\nnext\n")
    assert json.loads(refused)["id"] == 3
    assert after == b"next\n"
    assert not relay.waiting


def test_only_reading_requests_are_repeated() -> None:
    relay = Relay()
    opening = line(id=0, method="initialize", params={})
    listing = line(id="l", method="tools/list")
    status = line(id=2, method="tools/call", params={"name": "claude_get_status"})
    for sent in (opening, line(method="notifications/initialized"), listing, status):
        assert relay.from_client(sent) == sent
    relay.from_client(line(id=3, method="tools/call", params={"name": "claude_send_message"}))
    relay.from_client(line(id=4, method="tools/call", params={"name": "claude_send_message"}))
    relay.from_client(line(method="notifications/cancelled", params={"requestId": 4}))
    relay.from_server(line(id=0, result={}))
    [refused] = messages(relay.lost())
    assert refused["id"] == 3
    assert "claude_list_sessions" in refused["error"]["message"]
    replayed, initialized, *repeated = relay.resume().splitlines(keepends=True)
    assert json.loads(replayed)["method"] == "initialize"
    assert json.loads(initialized)["method"] == "notifications/initialized"
    assert repeated == [listing, status]
    assert relay.from_server(line(id=json.loads(replayed)["id"], result={})) == b""
    answer = line(id=2, result={})
    assert relay.from_server(answer) == answer


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("request_id", [0, 7, -3, "7", "a,b", "claude-code-mcp/replay/9"])
@pytest.mark.parametrize("kind", ["result", "error"])
def test_an_answer_settles_its_request_however_it_is_written(
    separators: tuple[str, str], request_id: int | str, kind: str
) -> None:
    relay = Relay()
    relay.from_client(line(id=request_id, method="tools/list"))
    answer = json.dumps({"jsonrpc": "2.0", "id": request_id, kind: {}}, separators=separators).encode() + b"\n"
    assert relay.from_server(answer) == answer
    assert not relay.waiting


def test_a_handshake_in_flight_is_repeated_as_it_is() -> None:
    relay = Relay()
    opening = line(id=0, method="initialize", params={})
    relay.from_client(opening)
    assert relay.lost() == b""
    assert relay.resume() == opening
    answer = line(id=0, result={})
    assert relay.from_server(answer) == answer


def test_a_request_that_ends_every_server_is_abandoned() -> None:
    relay = Relay()
    relay.from_client(line(id=1, method="tools/list"))
    for _ in range(2):
        assert relay.lost() == b""
        assert relay.resume()
    assert messages(relay.lost())[0]["id"] == 1
    assert relay.resume() == b""


def test_subscriptions_come_back_except_those_that_were_ended() -> None:
    relay = Relay()
    for number, uri in enumerate(("a", "b")):
        relay.from_client(line(id=number, method="resources/subscribe", params={"uri": uri}))
        relay.from_server(line(id=number, result={}))
    relay.from_client(line(id=2, method="resources/unsubscribe", params={"uri": "a"}))
    relay.from_server(line(id=2, result={}))
    relay.from_client(line(id=3, method="logging/setLevel", params={"level": "debug"}))
    relay.from_server(line(id=3, result={}))
    relay.lost()
    assert [(one["method"], one["params"]) for one in messages(relay.resume())] == [
        ("logging/setLevel", {"level": "debug"}),
        ("resources/subscribe", {"uri": "b"}),
    ]


def test_answers_to_a_server_that_is_gone_reach_no_other() -> None:
    relay = Relay()
    question = line(id=1, method="elicitation/create", params={})
    assert relay.from_server(question) == question
    [withdrawn] = messages(relay.lost())
    assert withdrawn["params"]["requestId"] == 1
    relay.resume()
    [second] = messages(relay.from_server(question))
    assert second["id"] != 1
    assert relay.from_client(line(id=1, result={"action": "decline"})) == b""
    [answer] = messages(relay.from_client(line(id=second["id"], result={"action": "accept"})))
    assert answer["id"] == 1
    [third] = messages(relay.from_server(line(id=2, method="elicitation/create", params={})))
    [ended] = messages(relay.from_server(line(method="notifications/cancelled", params={"requestId": 2})))
    assert ended["params"]["requestId"] == third["id"]
    assert relay.from_client(line(id=third["id"], result={})) == b""


def test_a_greeted_handshake_is_replayed_and_not_answered_twice() -> None:
    relay = Relay()
    call = line(id=5, method="tools/call", params={"name": "none"})
    unread = line(id=0, method="initialize") + line(method="notifications/initialized") + call + b'{"half'
    left, rest = relay.greeted(GreetedInput(unread, frozenset({0})))
    assert left == [line(method="notifications/initialized"), call]
    assert rest == b'{"half'
    [opening] = messages(relay.resume())
    assert relay.from_server(line(id=opening["id"], result={})) == b""


def test_the_tools_that_are_repeated_are_those_that_only_read_or_take_a_key() -> None:
    toolsets = ("sessions", "code", "query", "care", "hub")
    tools = [tool.listing() for tool in tools_of(load_settings({}, toolsets=toolsets)).values()]
    assert {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint} == READING_TOOLS
    assert {tool.name for tool in tools if "messageKey" in tool.input_schema["properties"]} == KEYED_TOOLS


def test_a_message_with_a_key_is_repeated_and_a_fork_is_not() -> None:
    relay = Relay()
    keyed = line(id=1, method="tools/call", params={"name": "claude_send_message", "arguments": {"messageKey": "k"}})
    fork = {"name": "claude_code_reply", "arguments": {"messageKey": "k", "forkSession": True}}
    relay.from_client(keyed)
    relay.from_client(line(id=2, method="tools/call", params=fork))
    [refused] = messages(relay.lost())
    assert refused["id"] == 2
    assert relay.resume() == keyed


def test_invalid_id_is_never_written() -> None:
    relay = Relay()
    wrong_ids: list[Any] = [True, False, None, 1.5, [], {}, "half of a pair: \ud83d"]
    for wrong in wrong_ids:
        relay.from_client(line(id=wrong, method="tools/call", params={"name": "claude_create_session"}))
    assert not relay.waiting, "the server answers such a request without an id"
    assert messages(relay.lost()) == []


def test_client_requests_cannot_control_the_server() -> None:
    """Lines that begin with `!` are what a front itself says to a server."""
    passed = Relay().from_client(b"!handover 99.0\n")
    assert not passed.startswith(b"!")
    assert passed.endswith(b"!handover 99.0\n"), "the server says that it cannot be read"
