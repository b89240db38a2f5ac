"""What the greeting answers and what it leaves to the server, without a process."""

import json
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import methods
from pydantic import ValidationError

from claude_code_mcp.startup.greeting.first_answers import SHIPPED, Greeting, Manifest, read

from .client import INITIALIZED, LEGACY, MODERN, Message, enveloped, initialize, lines, request, unknown_tool
from .conftest import STALE


def shipped() -> Manifest:
    manifest = read(SHIPPED)
    if manifest is None:
        pytest.skip(STALE, allow_module_level=True)
    return manifest


MANIFEST = shipped()


def talk(*chunks: bytes) -> tuple[list[Message], bytes, frozenset[int | str]]:
    """What is answered, what the server has to read, and what of it is answered already."""
    greeting = Greeting(MANIFEST)
    said = b"".join(greeting.receive(chunk) for chunk in chunks)
    handover = greeting.handover()
    return [json.loads(line) for line in said.splitlines()], handover.unread, handover.answered


def answered(*messages: Message) -> list[Any]:
    return [answer["id"] for answer in talk(lines(*messages))[0]]


def test_the_opening_and_what_is_not_answered_go_to_the_server_in_order() -> None:
    sent = [initialize(), INITIALIZED, request("ping", 1), request("tools/list", 2), unknown_tool(3)]
    answers, unread, already = talk(lines(*sent))
    assert [answer["id"] for answer in answers] == [0, 2]
    assert unread == lines(sent[0], sent[1], sent[2], sent[4])
    assert already == {0}


def test_answers_carry_the_id_as_it_was_given() -> None:
    for request_id in (0, -5, 2**70, "", "a", 'quo"te', "é\n\u2028", "0"):
        assert answered(initialize(request_id=request_id)) == [request_id]


@given(st.data())
def test_it_does_not_matter_how_the_bytes_are_cut(data: st.DataObject) -> None:
    whole = lines(initialize(), INITIALIZED, request("tools/list", 1), request("ping", 2)) + b'{"jsonrpc'
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    chunks = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert talk(*chunks) == talk(whole)


@pytest.mark.parametrize(
    "opening",
    [
        request("ping", 1),
        request("tools/list", 1),
        request("server/discover", 1),
        unknown_tool(1),
        enveloped("tools/call", 1, name="x"),
        enveloped("tools/list", 1, LEGACY[-1]),
        enveloped("tools/list", 1, "2099-01-01"),
        enveloped("tools/list", 1, cursor="x"),
        {"jsonrpc": "2.0", "id": 1, "method": "initialize"},
        {"jsonrpc": "1.0", "id": 1, "method": "initialize"},
        {**initialize(), "id": None},
        {**initialize(), "id": 1.5},
        {**initialize(), "id": True},
        {**initialize(), "extra": 1},
        initialize(clientInfo={"name": "x"}),
        initialize(clientInfo={"name": "x", "version": 1}),
        initialize(capabilities={"roots": True}),
        initialize(capabilities={"roots": {"listChanged": "yes"}}),
        initialize(capabilities={"roots": {"listChanged": {}}}),
        initialize(capabilities=None),
        initialize(protocolVersion=1),
        initialize(_meta={"io.modelcontextprotocol/protocolVersion": MODERN}),
        initialize(_meta={"progressToken": []}),
        initialize(capabilities={"experimental": {"x": {"y": [[[[[]]]]] * 50}}}),
        initialize(clientInfo={"name": "\ud800", "version": "1"}),
    ],
    ids=str,
)
def test_an_unusual_opening_leaves_everything_to_the_server(opening: Message) -> None:
    sent = lines(opening, initialize(request_id=5), request("tools/list", 6), enveloped("tools/list", 7))
    assert talk(sent) == ([], sent, frozenset())


@pytest.mark.parametrize(
    "later",
    [
        enveloped("tools/list", 1),
        enveloped("server/discover", 1),
        request("server/discover", 1),
        request("tools/list", 1, cursor="x"),
        request("tools/list", 1, _meta={"progressToken": None}),
        request("resources/list", 1),
        {**request("tools/list", 1), "params": None},
        initialize(request_id=1),
    ],
    ids=str,
)
def test_after_a_handshake_only_a_plain_list_is_answered(later: Message) -> None:
    assert answered(initialize(), later) == [0]
    assert answered(initialize(), request("tools/list", 1, _meta={"progressToken": 7, "other": {}})) == [0, 1]


@pytest.mark.parametrize(
    "later", [request("tools/list", 1), initialize(request_id=1), enveloped("tools/list", 1, LEGACY[0])], ids=str
)
def test_a_modern_connection_wants_an_envelope_every_time(later: Message) -> None:
    assert answered(enveloped("server/discover", 0), later) == [0]
    assert answered(enveloped("tools/list", 0), enveloped("tools/list", 1)) == [0, 1]


def test_after_a_second_handshake_nothing_is_answered() -> None:
    assert answered(initialize(), initialize(LEGACY[0], 1), request("tools/list", 2)) == [0]


def test_the_server_does_not_hear_that_an_answered_request_is_called_off() -> None:
    off = [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": one}} for one in (0, 1, True)
    ]
    _, unread, _ = talk(lines(initialize(), request("ping", 1), *off))
    assert unread == lines(initialize(), request("ping", 1), *off[1:])


def test_more_than_enough_input_stays_in_the_pipe() -> None:
    greeting = Greeting(MANIFEST)
    greeting.receive(lines(initialize()))
    before = greeting.full, greeting.waiting
    greeting.receive(b"x" * (2 << 20))
    assert (before, (greeting.full, greeting.waiting)) == ((False, False), (True, True))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.just(0.5) | st.sampled_from(["", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "form", "icons"]), inner, max_size=2)
    ),
    max_leaves=4,
)
CAPABILITIES = st.dictionaries(
    st.sampled_from(["roots", "sampling", "elicitation", "experimental", "extensions", "tasks", "other"]),
    ANYTHING
    | st.dictionaries(
        st.sampled_from(["listChanged", "form", "url", "context", "tools", "list", "cancel", "requests", "x"]),
        ANYTHING
        | st.dictionaries(
            st.sampled_from(["sampling", "elicitation", "createMessage", "applyDefaults"]), ANYTHING, max_size=2
        ),
        max_size=2,
    ),
    max_size=3,
)
CLIENTS = st.fixed_dictionaries(
    {"name": st.just("x") | ANYTHING, "version": st.just("1") | ANYTHING},
    optional={key: st.just("x") | ANYTHING for key in ("title", "description", "websiteUrl", "icons", "other")},
)
METAS = st.dictionaries(st.sampled_from(["progressToken", "progress_token", "x"]), ANYTHING, max_size=2)


@settings(max_examples=200)
@given(st.just({}) | CAPABILITIES, CLIENTS, st.just({}) | METAS, st.sampled_from(LEGACY))
def test_a_handshake_that_is_greeted_is_one_that_the_server_takes(
    capabilities: Any, client: Any, meta: Any, version: str
) -> None:
    message = initialize(version, capabilities=capabilities, clientInfo=client, _meta=meta)
    if answered(message):
        methods.validate_client_request("initialize", LEGACY[-1], message["params"])
        types.InitializeRequestParams.model_validate(message["params"], by_name=False)


@settings(max_examples=200)
@given(st.just({}) | CAPABILITIES, CLIENTS, st.just({}) | METAS, st.sampled_from(["tools/list", "server/discover"]))
def test_a_modern_request_that_is_greeted_is_one_that_the_server_takes(
    capabilities: Any, client: Any, meta: Any, method: str
) -> None:
    message = enveloped(method, 1)
    message["params"]["_meta"].update(
        {types.CLIENT_CAPABILITIES_META_KEY: capabilities, types.CLIENT_INFO_META_KEY: client, **meta}
    )
    if answered(message):
        methods.validate_client_request(method, MODERN, message["params"])
        types.RequestParams.model_validate(message["params"], by_name=False)


def test_the_server_refuses_what_the_property_above_could_hit() -> None:
    bad = initialize(clientInfo={"name": "x", "version": "1", "icons": "x"})
    with pytest.raises(ValidationError):
        types.InitializeRequestParams.model_validate(bad["params"], by_name=False)
