"""Malformed calls: refused by name, the server alive and the sessions untouched afterward."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.support import warm_commands
from tests.support.program import HttpServer, http_server
from tests.support.tables import every_row
from tests.support.waiting import HANG_SECONDS

from .conftest import WIRES, Wire
from .connection import CODES, Connection, Reply, check
from .malformed import OTHER, QUESTION, SESSION, TABLE, Malformed
from .test_server import NAMES


@pytest.fixture(scope="module")
def waiting(client: Connection, place: Sandbox) -> Reply:
    """A session that waits for an answer."""
    (place.project / "a-file").touch()
    return client.create(script("go", tool("Bash", command="echo 1 >never"), "done"), waitSeconds=40)


def filled_in(value: Any, waiting: Reply, other: str) -> Any:
    real = {SESSION: waiting.session, QUESTION: waiting.question["inputId"], OTHER: other}
    if isinstance(value, dict):
        return {key: filled_in(one, waiting, other) for key, one in value.items()}
    return real.get(value, value) if isinstance(value, str) else value


def steady(client: Connection, session: str) -> dict[str, Any]:
    """All of a status that only a call may change. The process may still say something of itself, behind its answer."""
    of_the_process = ("memoryBytes", "nextCursor")
    return {key: value for key, value in client.look(session, cursor="0").data.items() if key not in of_the_process}


@pytest.mark.promise("input.strict")
@pytest.mark.parametrize(
    "wire", [WIRES[0], pytest.param(WIRES[-1], marks=pytest.mark.soak)], indirect=True, ids=str, scope="module"
)
def test_malformed_calls_are_refused_by_name_and_change_nothing(client: Connection, waiting: Reply, warm: str) -> None:
    sessions = client.sessions()
    before = [steady(client, waiting.session), steady(client, warm)]

    def refuse(wrong: Malformed) -> None:
        refused = client.call(wrong.tool, **filled_in(wrong.arguments, waiting, warm))
        assert refused.code == wrong.code, refused.text
        assert wrong.says in refused.refusal
        assert len(refused.refusal) < 3000

    every_row("wrong", TABLE)(refuse)()
    assert [steady(client, waiting.session), steady(client, warm)] == before
    assert client.sessions() == sessions


def test_the_table_is_long_and_its_names_are_unique() -> None:
    assert len(TABLE) >= 60
    assert len({item.name for item in TABLE}) == len(TABLE)


# -- below the level of a tool's arguments --------------------------------------------------------------------

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
RAW = {
    "arguments-list": b'{"name":"claude_get_status","arguments":[1]}',
    "arguments-text": b'{"name":"claude_get_status","arguments":"x"}',
    "name-number": b'{"name":7,"arguments":{}}',
    "params-list": b"[1,2]",
    "lone-surrogate": b'{"name":"claude_create_session","arguments":{"prompt":"\\ud800"}}',
    "not-utf8": b'{"name":"claude_create_session","arguments":{"prompt":"\xff\xfe"}}',
    "infinite": b'{"name":"claude_create_session","arguments":{"prompt":"x","maxBudgetUsd":1e999}}',
    "nan": b'{"name":"claude_create_session","arguments":{"prompt":"x","maxBudgetUsd":NaN}}',
    "deep": b'{"name":"claude_respond","arguments":{"updatedInput":' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    "unfinished": b'{"name":"claude_get_status"',
    "nothing": b"null",
}


def frame(number: int, method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}' % (number, method.encode(), params)


@pytest.fixture(scope="module")
def raw_stdio(place: Sandbox, server_environment: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    command, pipe = [warm_commands.program()], subprocess.PIPE
    with subprocess.Popen(command, env=server_environment, cwd=place.project, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(frame(0, "initialize", json.dumps(HELLO).encode()) + b"\n")
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.stdin.flush()
        read_answer(process, 0)
        yield process
        process.stdin.close()
        process.wait(HANG_SECONDS)


def read_answer(process: "subprocess.Popen[bytes]", number: int) -> dict[str, Any]:
    """The answer to one request; others are passed over."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        answer = json.loads(line)
        if answer.get("id") == number:
            return dict(answer)
    raise AssertionError("the server went away")


def is_refusal(answer: dict[str, Any]) -> bool:
    return "error" in answer or bool(answer["result"].get("isError"))


@pytest.mark.promise("input.strict")
@pytest.mark.parametrize("name", RAW)
def test_malformed_lines_do_not_hurt_a_stdio_server(raw_stdio: "subprocess.Popen[bytes]", name: str) -> None:
    number = 10 + 2 * list(RAW).index(name)
    assert raw_stdio.stdin is not None
    raw_stdio.stdin.write(frame(number, "tools/call", RAW[name]) + b"\n")
    sound = json.dumps({"name": "claude_list_sessions", "arguments": {}}).encode()
    raw_stdio.stdin.write(frame(number + 1, "tools/call", sound) + b"\n")
    raw_stdio.stdin.flush()
    assert "result" in read_answer(raw_stdio, number + 1), "the next call is answered"


@pytest.fixture(scope="module")
def raw_http(place: Sandbox, server_environment: dict[str, str]) -> Iterator[HttpServer]:
    with http_server(server_environment, place.project) as server:
        yield server


@pytest.mark.promise("input.strict")
@pytest.mark.parametrize("name", RAW)
def test_malformed_bodies_do_not_hurt_an_http_server(raw_http: HttpServer, name: str) -> None:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    with httpx2.Client(headers=headers, timeout=30) as http:
        opened = http.post(raw_http.url, content=frame(0, "initialize", json.dumps(HELLO).encode()))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        answer = http.post(raw_http.url, content=frame(1, "tools/call", RAW[name]), headers=session)
        assert answer.status_code < 500
        assert "Traceback" not in answer.text
        if answer.headers["content-type"].startswith("text/event-stream"):
            data = next(line[5:] for line in answer.text.splitlines() if line.startswith("data:") and "{" in line)
            assert is_refusal(json.loads(data))
        else:
            assert answer.status_code >= 400 or is_refusal(answer.json())
        assert http.get(f"{raw_http.base}/health").json()["status"] == "ok"


# -- anything at all ------------------------------------------------------------------------------------------

FIELDS = sorted(
    {"sessionId", "inputId", "decision", "scope", "answers", "updatedInput", "reason", "waitSeconds", "cursor"}
    | {"outputLines", "projectDirectory", "limit", "text", "message", "workingDirectory", "model", "maxTurns", "x"}
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.sampled_from(["allow", "deny", "once", "session", "/tmp", "0" * 36])
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
ARGUMENTS = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), ANYTHING, max_size=6)


@pytest.mark.promise("input.any")
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(NAMES), arguments=ARGUMENTS, real=st.booleans())
def test_whatever_is_given_the_answer_is_well_formed(
    client: Connection, wire: Wire, waiting: Reply, name: str, arguments: dict[str, Any], real: bool
) -> None:
    """Prompts are left out: with one, a session would start, as it should."""
    arguments.pop("prompt", None)
    if isinstance(arguments.get("waitSeconds"), int | float):
        arguments["waitSeconds"] = 0
    if real and name != "claude_send_message":
        arguments["sessionId"] = waiting.session
    if name == "claude_interrupt":
        arguments["x"] = 1
    future = asyncio.run_coroutine_threadsafe(client.client.call_tool(name, arguments), client._loop)
    refused = future.exception(40)
    if isinstance(refused, MCPError):
        assert refused.error.code in (-32600, -32601, -32602, -32700)
        return
    reply = Reply(future.result())
    check(client.tools[name], reply)
    assert reply.code is None or reply.code in CODES
