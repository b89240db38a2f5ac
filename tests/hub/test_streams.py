"""What JSON cannot say, on its way to a server or back: it costs no more than the call that carries it."""

import asyncio
import json
import math
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from claude_code_mcp.hub.streams import (
    BufferedInbox,
    ObservedInbox,
    RequestsInFlight,
    TransportFailure,
    id_of_answer,
    parse_message,
)
from claude_code_mcp.hub.transports.probe import Probe

from .conftest import PATIENCE, StartHub, local, text_of

DEEP = '{"jsonrpc":"2.0","id":ID,"result":{"content":' + "[" * 5000 + "]" * 5000 + "}}"
HALF = '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\\ud800b"}]}}'
NUMBERS = (
    '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"x"}],"structuredContent":{"n":[NaN,1e999]}}}'
)


async def test_arguments_that_cannot_be_written_are_mended_or_refused(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    text = text_of(await hub.call("x", "echo", {"half": "a\ud800b", "\udfff": 1, "none": math.nan, "most": math.inf}))
    assert json.loads(text) == {"half": "a\ufffdb", "\ufffd": 1, "none": None, "most": None}
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(MCPError, match="nested"):
        await hub.call("x", "echo", {"deep": deep})
    assert text_of(await hub.call("x", "echo", {"still": "there"})) == '{"still": "there"}'


async def test_an_answer_that_is_no_proper_one_ends_its_call_and_no_other(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    async with asyncio.timeout(PATIENCE):
        assert text_of(await hub.call("x", "raw", {"line": HALF})) == "a\ufffdb"
        result = await hub.call("x", "raw", {"line": NUMBERS})
        assert "x" in text_of(result)
        for line in (DEEP, '{"jsonrpc":"2.0","id":ID,"result":7}', '{"jsonrpc":"2.0","id":ID,"error":"no"}'):
            with pytest.raises(MCPError, match="protocol"):
                await hub.call("x", "raw", {"line": line})
        assert text_of(await hub.call("x", "echo")) == "{}"


async def test_messages_that_the_sdk_transport_rejects_are_parsed_again() -> None:
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](4)
    requests = RequestsInFlight()
    for id_ in (4, 5):
        requests.sent(types.JSONRPCRequest(jsonrpc="2.0", id=id_, method="tools/call"))
    tap = ObservedInbox(receive, requests, lambda method, params: None, lambda: None)
    for line in (HALF.replace("ID", "4"), DEEP.replace("ID", "5"), "no message"):
        with pytest.raises(ValidationError) as failure:
            types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        await send.send(failure.value)
    whole, error, nothing = [await tap.receive() for _ in range(3)]
    assert isinstance(whole, SessionMessage)
    assert isinstance(whole.message, types.JSONRPCResponse)
    assert (whole.message.id, whole.message.result["content"][0]["text"]) == (4, "a\ufffdb")
    assert isinstance(error, SessionMessage)
    assert isinstance(error.message, types.JSONRPCError)
    assert error.message.id == 5
    assert isinstance(nothing, ValidationError)
    send.close()
    receive.close()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (DEEP.replace("ID", "12"), 12),
        (DEEP.replace("ID", '"a-1"'), "a-1"),
        ('{"result":{"id":3,"x":"\\"id\\":9"},"id":4}', 4),
        ('{"result":{"id":3}}', None),
        ('{"id":4,"method":"result"}', None),
        ('{"id":4,"result":{}', None),
        ("DEBUG: {id: 4}", None),
        ('["id", 4, "result"]', None),
    ],
)
def test_the_id_of_an_answer_is_found_without_reading_the_answer(line: str, expected: object) -> None:
    assert id_of_answer(line) == expected


def test_lines_that_are_no_messages_stay_none() -> None:
    for line in ("", "Starting up", "[1, 2]", "{}", '{"id": 1}', "{not json"):
        assert parse_message(line) is None


NO_ID, WRONG_ID = '{"jsonrpc":"2.0","result":{}}', '{"jsonrpc":"2.0","id":12345,"result":{}}'
NULL_ID = '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}'


@pytest.mark.parametrize(("line", "message"), [(NO_ID, "protocol"), (WRONG_ID, "never sent"), (NULL_ID, "Parse error")])
async def test_an_answer_without_the_id_of_a_call_ends_the_call_anyway(
    start_hub: StartHub, line: str, message: str
) -> None:
    hub = await start_hub({"x": local()})
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(MCPError, match=message):
            await hub.call("x", "raw", {"line": line})
        assert text_of(await hub.call("x", "echo")) == "{}"


async def test_an_answer_without_an_id_among_several_calls_ends_the_one_that_gets_no_other(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    async with asyncio.timeout(PATIENCE):
        stray, *fine = await asyncio.gather(
            hub.call("x", "raw", {"line": NO_ID}), *(hub.call("x", "echo") for _ in range(5)), return_exceptions=True
        )
    assert isinstance(stray, MCPError)
    assert [text_of(result) for result in fine] == ["{}"] * 5


async def test_a_number_that_comes_back_as_text_is_the_same_id(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    line = '{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"ok"}]}}'
    assert text_of(await asyncio.wait_for(hub.call("x", "raw", {"line": line}), PATIENCE)) == "ok"


async def test_a_server_that_has_answered_is_not_looked_at_again_however_much_it_has_left_unread() -> None:
    def look() -> bool:
        pytest.fail("it was looked at")

    probe = Probe(TransportFailure(has_read_input=look))
    probe.inbox = ObservedInbox(BufferedInbox(lambda _: None), RequestsInFlight(), lambda *_: None, lambda: None)
    probe.inbox.has_answered = True
    with probe.watching(lambda: pytest.fail("it was given up")):
        pass
