"""HTTP spoken by hand: clients that read no stream but that of their call, and clients that hang up."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.support.program import HttpServer, http_server
from tests.support.waiting import until

from .connection import LONG

MODERN = "2026-07-28"
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
MEMBERS = {"name": "test", "version": "1"}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, str]:
    return {"CLAUDE_CODE_MCP_ON_DISCONNECT": "keep", "LOG_LEVEL": "debug"}


@pytest.fixture(scope="module")
def server(server_environment: dict[str, str], place: Sandbox) -> Iterator[HttpServer]:
    with http_server(server_environment, place.project) as running:
        yield running


class ByHand:
    """A client of the 2025 protocol that never opens the stream of its connection."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(timeout=LONG)
        self._url = url
        self._headers = dict(ACCEPT)
        self._ids = 0
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": MEMBERS}
        with self.asked("initialize", hello) as messages:
            next(messages)
        self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})

    @contextmanager
    def asked(self, method: str, params: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
        """A request, and everything that comes on its stream."""
        self._ids += 1
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        with self._http.stream("POST", self._url, headers=self._headers, json=message) as response:
            if "mcp-session-id" in response.headers:
                self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
            yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {"))

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        with self.asked("tools/call", {"name": name, "arguments": arguments}) as messages:
            content: dict[str, Any] = next(messages)["result"]["structuredContent"]
            return content

    def say(self, message: dict[str, Any]) -> None:
        assert self._http.post(self._url, headers=self._headers, json=message).status_code == 202

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def client(server: HttpServer) -> Iterator[ByHand]:
    connected = ByHand(server.url)
    yield connected
    connected.close()


@pytest.mark.soak  # test_dialogs.py
def test_a_form_comes_on_the_stream_of_the_call_that_waits(client: ByHand, place: Sandbox) -> None:
    """The question opens while nobody reads anything, which must not be taken for having shown it."""
    prompt = script("go", tool("Write", file_path=str(place.project / "by-hand"), content="x"), "done")
    session = client.call("claude_create_session", prompt=prompt)["sessionId"]
    until(lambda: client.call("claude_get_status", sessionId=session)["status"] == "waiting_for_input")
    waiting = {"name": "claude_get_status", "arguments": {"sessionId": session, "waitSeconds": 40}}
    with client.asked("tools/call", waiting) as messages:
        form = next(messages)
        assert form["method"] == "elicitation/create"
        assert "by-hand" in form["params"]["message"]
        answer = {"action": "accept", "content": {"decision": "Allow once"}}
        client.say({"jsonrpc": "2.0", "id": form["id"], "result": answer})
        report = next(messages)["result"]["structuredContent"]
    assert (report["status"], report["result"]) == ("completed", "done")
    assert (place.project / "by-hand").exists()


def modern(method: str, request_id: int | str, **params: Any) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": MEMBERS,
    }
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}


def named(tool_name: str) -> dict[str, str]:
    return {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool_name}


def post(server: HttpServer, data: bytes, name: str, **options: Any) -> httpx2.Response:
    return httpx2.post(server.url, headers=named(name), content=data, **options)


def called(server: HttpServer, name: str, **arguments: Any) -> dict[str, Any]:
    message = modern("tools/call", 1, name=name, arguments=arguments)
    response = post(server, json.dumps(message).encode(), name, timeout=LONG)
    text = response.text if response.text.startswith("{") else response.text.split("data: ", 1)[1].splitlines()[0]
    result: dict[str, Any] = json.loads(text)["result"]
    return result


def hang_up(server: HttpServer, prompt: str, begun: Path) -> None:
    """Calls `claude_code` and closes the connection when its turn has made a file."""
    arguments = {"prompt": prompt, "allowedTools": ["Bash"], "permissionMode": "default"}
    data = json.dumps(modern("tools/call", 1, name="claude_code", arguments=arguments)).encode()
    headers = {**named("claude_code"), "Host": httpx2.URL(server.url).netloc.decode(), "Content-Length": str(len(data))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    address = httpx2.URL(server.url)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + data)
        until(begun.exists)


@pytest.mark.soak  # on stdio: test_disconnect.py
def test_hanging_up_leaves_the_turn_alone_where_the_setting_says_keep(server: HttpServer, place: Sandbox) -> None:
    begun, go_on = place.project / "hung-begun", place.project / "hung-on"
    command = f"touch {begun}; until [ -e {go_on} ]; do sleep 0.1; done"
    hang_up(server, script("go", tool("Bash", command=command), "came to its end"), begun)
    until(lambda: "gone: keep" in server.log)
    go_on.touch()
    (gone,) = [line for line in server.log.splitlines() if "gone: keep" in line]
    session = gone.split("session ")[1].split(":")[0]
    report = called(server, "claude_get_status", sessionId=session, waitSeconds=40)["structuredContent"]
    assert (report["status"], report["result"]) == ("completed", "came to its end")


@pytest.mark.soak
def test_hanging_up_interrupts_the_turn_where_no_setting_says_otherwise(
    server_environment: dict[str, str], place: Sandbox
) -> None:
    """In this era to close the stream of a response is how a client cancels its request."""
    begun = place.project / "cancelled-begun"
    command = f"touch {begun}; until [ -e {place.project / 'never'} ]; do sleep 0.1; done"
    environment = {**server_environment, "CLAUDE_CODE_MCP_ON_DISCONNECT": ""}
    with http_server(environment, place.project) as running:
        hang_up(running, script("go", tool("Bash", command=command), "never said"), begun)
        until(lambda: "cancelled: interrupt" in running.log)
        (line,) = [line for line in running.log.splitlines() if "cancelled: interrupt" in line]
        session = line.split("session ")[1].split(":")[0]
        report = called(running, "claude_get_status", sessionId=session, waitSeconds=40)["structuredContent"]
        assert report["status"] == "interrupted"
        again = called(running, "claude_send_message", sessionId=session, message=script("x", "y"), waitSeconds=40)
        assert again["structuredContent"]["result"] == "y", "the session stays usable"


@pytest.mark.soak  # on stdio: test_disconnect.py
def test_hanging_up_leaves_alone_what_was_started_to_run_in_the_background(
    server_environment: dict[str, str], place: Sandbox
) -> None:
    go_on = place.project / "background-on"
    command = f"until [ -e {go_on} ]; do sleep 0.1; done"
    prompt = script("go", tool("Bash", command=command), "came to its end")
    environment = {**server_environment, "CLAUDE_CODE_MCP_ON_DISCONNECT": ""}
    with http_server(environment, place.project) as running:
        started = called(running, "claude_create_session", prompt=prompt, allowedTools=["Bash"])["structuredContent"]
        waiting = modern("tools/call", 2, name="claude_get_status", arguments={**started, "waitSeconds": 40})
        waiting["params"]["arguments"].pop("status")
        data = json.dumps(waiting).encode()
        with pytest.raises(httpx2.ReadTimeout):
            post(running, data, "claude_get_status", timeout=httpx2.Timeout(LONG, read=1.0))
        go_on.touch()
        report = called(running, "claude_get_status", sessionId=started["sessionId"], waitSeconds=40)
        assert report["structuredContent"]["result"] == "came to its end"


def test_arguments_that_json_cannot_say_are_refused_by_name(server: HttpServer) -> None:
    """On this wire the SDK's parser takes them."""
    for value in (b'"a\\ud800b"', b"NaN", b"1e999", b'["x", -Infinity]'):
        data = json.dumps(modern("tools/call", 1, name="claude_create_session", arguments={"prompt": "VALUE"})).encode()
        response = post(server, data.replace(b'"VALUE"', value), "claude_create_session", timeout=LONG)
        assert "Error [INVALID_ARGUMENT]: prompt" in response.text, response.text
    strange = json.dumps(modern("ping", "ID")).encode().replace(b'"ID"', b'"\\ud800"')
    post(server, strange, "ping", timeout=LONG)
    assert not called(server, "claude_list_sessions").get("isError")


@pytest.mark.soak
def test_frames_are_in_the_log_without_their_contents(server: HttpServer, client: ByHand) -> None:
    session = client.call("claude_create_session", prompt="a-very-private-prompt", waitSeconds=40)["sessionId"]
    assert "errors" not in session
    client.call("claude_get_status", sessionId=session)
    said = server.log
    assert f"session {session} started by local in " in said
    for part in ("<- client request tools/call 'claude_create_session' id", "-> client result of tools/call id"):
        assert part in said
    for part in (" control_request/initialize id ", "control_response/success id ", " user id ", "<- process "):
        assert part in said
    assert "a-very-private-prompt" not in said
