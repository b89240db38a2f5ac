"""Who may call over HTTP, and what each may see."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.http import check_exposure, read_address
from claude_code_mcp.server.transports.tokens_file import load_tokens
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.support import warm_commands
from tests.support.program import HttpServer, http_server
from tests.support.tables import every_row

from .connection import Connection

ANN, BOB = "ann-5f0c9d2e7b41a86c3d90", "bob-91e4d7c2a5b8f3061e7d"
ANN, BOB = ANN + "-and-more", BOB + "-and-more"
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


def tokens_file(directory: Path, content: str, mode: int = 0o600) -> Path:
    path = directory / "tokens"
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def server_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("tokens")
    path = tokens_file(directory, f"# callers\nann {ANN}\n\nbob {BOB}\n")
    return {"CLAUDE_CODE_MCP_TOKENS_FILE": str(path)}


@pytest.fixture(scope="module")
def guarded(server_environment: dict[str, str], place: Sandbox) -> Iterator[HttpServer]:
    with http_server(server_environment, place.project) as server:
        yield server


def as_caller(server: HttpServer, token: str, mode: str = "legacy") -> Connection:
    @asynccontextmanager
    async def open_client(_: object) -> AsyncIterator[Client]:
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
            Client(streamable_http_client(server.url, http_client=http), mode=mode) as client,
        ):
            yield client

    return Connection(open_client, can_be_asked=False)


def posted(server: HttpServer, token: str | None = None, **headers: str) -> httpx2.Response:
    shown = {"authorization": f"Bearer {token}"} if token is not None else {}
    return httpx2.post(server.url, json=HELLO, headers={**ACCEPT, **shown, **headers}, timeout=30)


@pytest.mark.promise("http.token")
@pytest.mark.parametrize("token", [None, "wrong", ANN[:-1], ANN + "x", ANN.upper(), "ann"])
def test_without_a_known_token_there_is_no_answer(guarded: HttpServer, token: str | None) -> None:
    refused = posted(guarded, token)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert "claude" not in refused.text


@pytest.mark.promise("http.token")
def test_every_known_token_is_taken(guarded: HttpServer) -> None:
    assert [posted(guarded, token).status_code for token in (ANN, BOB)] == [200, 200]
    assert posted(guarded, authorization=f"Basic {ANN}").status_code == 401


@pytest.mark.promise("http.token")
def test_a_request_of_the_new_era_needs_a_token_too(guarded: HttpServer) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
    assert httpx2.post(guarded.url, json=body, headers=headers).status_code == 401


@pytest.mark.promise("http.rebinding")
def test_foreign_hosts_and_origins_are_refused(guarded: HttpServer) -> None:
    assert posted(guarded, ANN, host="evil.example").status_code == 421
    assert posted(guarded, ANN, origin="http://evil.example").status_code == 403
    assert posted(guarded, ANN, origin=guarded.base).status_code == 200


@pytest.mark.promise("http.health")
def test_the_health_endpoint_needs_no_token(guarded: HttpServer) -> None:
    answer = httpx2.get(f"{guarded.base}/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


@pytest.mark.promise("http.body")
def test_a_body_that_is_too_large_is_refused(guarded: HttpServer) -> None:
    huge = {**HELLO, "params": {**HELLO["params"], "padding": "x" * (5 << 20)}}
    headers = {**ACCEPT, "authorization": f"Bearer {ANN}"}
    refused = httpx2.post(guarded.url, json=huge, headers=headers, timeout=30)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, -32600)
    assert posted(guarded, ANN).status_code == 200


@pytest.mark.promise("http.connection")
def test_connection_belongs_to_its_creator_only(guarded: HttpServer) -> None:
    session = posted(guarded, ANN).headers["mcp-session-id"]
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}

    def listed(token: str) -> int:
        headers = {**ACCEPT, "authorization": f"Bearer {token}", "mcp-session-id": session}
        return httpx2.post(guarded.url, json=body, headers=headers, timeout=30).status_code

    assert [listed(ANN), listed(BOB)] == [200, 404]


@pytest.mark.promise("http.principals")
# Whose a session is, is decided by the token, which is checked in both eras.
@pytest.mark.parametrize("mode", [pytest.param("legacy", marks=pytest.mark.soak), "2026-07-28"], ids=["2025", "2026"])
def test_session_belongs_to_its_creator_only(
    guarded: HttpServer, server_environment: dict[str, str], place: Sandbox, mode: str
) -> None:
    with as_caller(guarded, ANN, mode) as ann, as_caller(guarded, BOB, mode) as bob:
        asked = ann.create(script("secret plans", tool("Bash", command="echo 1 >mine"), "done"), waitSeconds=40)
        refusals = [
            bob.look(asked.session),
            bob.send(asked.session, "hello"),
            bob.interrupt(asked.session),
            bob.respond(asked, "allow"),
        ]
        assert [refusal.code for refusal in refusals] == ["SESSION_NOT_FOUND"] * 4
        assert "secret" not in " ".join(refusal.text for refusal in refusals)
        assert asked.session not in [session["sessionId"] for session in bob.sessions()]
        assert asked.session in [session["sessionId"] for session in ann.sessions()]
        assert ann.look(asked.session).question == asked.question, "untouched"
        assert ann.respond(asked, "deny", waitSeconds=40).status == "completed"
    with http_server(server_environment, place.project) as later:
        with as_caller(later, BOB, mode) as bob:
            assert bob.look(asked.session).code == "SESSION_NOT_FOUND"
            assert bob.send(asked.session, "hello").code == "SESSION_NOT_FOUND"
            assert asked.session not in [session["sessionId"] for session in bob.sessions()]
        with as_caller(later, ANN, mode) as ann:
            assert asked.session in [session["sessionId"] for session in ann.sessions()]


# -- at the start ---------------------------------------------------------------------------------------------


def refused_start(environment: dict[str, str], cwd: Path, *arguments: str) -> str:
    """The one line that a server says which does not start, behind warnings of what this machine has not."""
    done = warm_commands.run(["serve", *arguments], environment, cwd)
    assert done.returncode == 2, done
    assert done.stdout == ""
    *warnings, line = done.stderr.splitlines()
    assert all(" WARNING claude_code_mcp.plugins.sandbox.homes: " in each for each in warnings), warnings
    return line


@pytest.mark.promise("http.exposure")
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_beyond_loopback_a_token_is_needed(environment: dict[str, str], tmp_path: Path, address: str) -> None:
    assert "without a token" in refused_start(environment, tmp_path, "--http", address)


@pytest.mark.promise("http.weak-token")
def test_a_weak_token_stops_the_start(environment: dict[str, str], tmp_path: Path) -> None:
    weak = {**environment, "CLAUDE_CODE_MCP_TOKEN": "hunter2"}
    line = refused_start(weak, tmp_path, "--http", "127.0.0.1:0")
    assert "too weak" in line
    assert "hunter2" not in line


@pytest.mark.promise("http.weak-token")
@every_row(
    ("content", "mode", "says"),
    [
        (f"ann {ANN}\n", 0o644, "can be read by others"),
        ("", 0o600, "contains no token"),
        (f"ann {ANN}\nann {BOB}\n", 0o600, "Line 2"),
        (f"ann {ANN} extra\n", 0o600, "Line 1"),
        ("ann\n", 0o600, "Line 1"),
        (f"ann {ANN}\nbob {ANN}\n", 0o600, "used twice"),
        ("ann short\n", 0o600, "too weak"),
        ("ann " + "ab" * 20 + "\n", 0o600, "too weak"),
        (f"local {ANN}\n", 0o600, "'local' is taken"),
    ],
)
def test_a_tokens_file_must_be_sound(tmp_path: Path, content: str, mode: int, says: str) -> None:
    path = tokens_file(tmp_path, content, mode)
    with pytest.raises(InvalidArgument) as refused:
        load_tokens(load_settings({}, http_tokens_file=path))
    assert says in refused.value.message
    assert ANN not in refused.value.message


KEYS = ["TOKEN", "TOKENS_FILE", "METRICS_TOKEN"]
EMPTY = ["", " ", "\t\n"]


@pytest.mark.promise("http.weak-token")
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TOKEN", " "),
        ("TOKENS_FILE", ""),
        *(pytest.param(variable, value, marks=pytest.mark.soak) for variable in KEYS for value in EMPTY),
    ],
)
def test_empty_token_setting_keeps_the_server_closed(
    environment: dict[str, str], tmp_path: Path, variable: str, value: str
) -> None:
    name = f"CLAUDE_CODE_MCP_{variable}"
    line = refused_start({**environment, name: value}, tmp_path, "--http", "127.0.0.1:0")
    assert f"{name}" in line
    assert "set, but empty" in line


@pytest.mark.promise("http.weak-token")
@every_row("value", EMPTY)
@every_row("variable", KEYS)
def test_a_key_that_is_set_but_empty_is_no_setting(variable: str, value: str) -> None:
    name = f"CLAUDE_CODE_MCP_{variable}"
    with pytest.raises(InvalidArgument, match="set, but empty"):
        load_settings({name: value})


@pytest.mark.promise("http.weak-token")
@pytest.mark.parametrize("token", [f"{ANN} {BOB}", f"{ANN}\n", f"{ANN}\x00", f"{ANN}é"])
def test_a_token_that_no_client_could_send_stops_the_start(token: str) -> None:
    with pytest.raises(InvalidArgument, match="visible ASCII"):
        load_tokens(load_settings({}, http_token=token))


@pytest.mark.promise("http.weak-token")
def test_a_tokens_file_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="tokens file"):
        load_tokens(load_settings({}, http_tokens_file=tmp_path))
    with pytest.raises(InvalidArgument, match="/dev/null"):
        load_tokens(load_settings({}, http_tokens_file="/dev/null"))
    with pytest.raises(InvalidArgument, match="missing"):
        load_tokens(load_settings({}, http_tokens_file=tmp_path / "missing"))


@pytest.mark.promise("http.weak-token")
def test_the_name_of_the_single_token_cannot_be_taken_in_the_file(tmp_path: Path) -> None:
    path = tokens_file(tmp_path, f"default {ANN}\n")
    with pytest.raises(InvalidArgument, match="'default'"):
        load_tokens(load_settings({}, http_token=BOB, http_tokens_file=path))


def test_serving_without_a_token_is_logged(environment: dict[str, str], sandbox: Sandbox) -> None:
    # No sandbox and no person: a session could read a token as well.
    with http_server({**environment, "CLAUDE_CODE_MCP_PROFILE": "local"}, sandbox.project) as server:
        assert httpx2.post(server.url, json=HELLO, headers=ACCEPT, timeout=30).status_code == 200
    assert re.search(r"WARNING claude_code_mcp\.server\.transports\.http: .*\btoken", server.log)


def test_serving_with_a_token_says_no_such_thing(guarded: HttpServer) -> None:
    assert "WARNING claude_code_mcp.server.transports.http: " not in guarded.log


@pytest.mark.parametrize(
    ("address", "url", "warned"),
    [
        ("0.0.0.0:8765", None, True),
        ("192.0.2.7:8765", "http://claude.example.org", True),
        ("0.0.0.0:8765", "https://claude.example.org", False),
        ("127.0.0.1:8765", None, False),
    ],
)
def test_a_network_address_without_tls_is_logged(
    address: str, url: str | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_settings({}, http_token=ANN, web_url=url)
    check_exposure(read_address(address), Callers(settings), settings)
    assert ("without TLS" in caplog.text) is warned


# -- no authorization server ----------------------------------------------------------------------------------

WELL_KNOWN = (
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/mcp",
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration",
    "/authorize",
    "/register",
    "/token",
)


@pytest.mark.parametrize("token", [None, "wrong-token-0123456789abcdefgh"])
def test_a_refusal_points_to_no_authorization_server(guarded: HttpServer, token: str | None) -> None:
    shown = {} if token is None else {"authorization": f"Bearer {token}"}
    refused = httpx2.post(guarded.url, json=HELLO, headers={**ACCEPT, **shown}, timeout=30)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer error=")
    assert "resource_metadata" not in refused.headers["www-authenticate"]
    for path in WELL_KNOWN:
        assert httpx2.get(f"{guarded.base}{path}", timeout=30).status_code == 404, path


@pytest.mark.promise("http.weak-token")
def test_tokens_come_from_the_environment_and_the_file(tmp_path: Path) -> None:
    settings = load_settings({}, http_token=BOB, http_tokens_file=tokens_file(tmp_path, f"ann {ANN}\n"))
    assert load_tokens(settings) == {BOB: "default", ANN: "ann"}
    with pytest.raises(InvalidArgument, match="missing"):
        load_tokens(load_settings({}, http_tokens_file=tmp_path / "missing"))


@pytest.mark.parametrize("address", ["8080", "host:", "host:http", "host:70000", "host:-1", "host:٣"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InvalidArgument, match="HOST:PORT"):
        read_address(address)


def test_addresses_know_whether_they_are_loopback() -> None:
    loopback = ["127.0.0.1:1", "localhost:1", "[::1]:1", ":1", "127.9.9.9:1"]
    assert all(read_address(item).loopback for item in loopback)
    assert not any(read_address(item).loopback for item in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])


@pytest.mark.promise("http.exposure")
def test_an_address_in_use_stops_the_start(guarded: HttpServer, environment: dict[str, str], sandbox: Sandbox) -> None:
    line = refused_start(environment, sandbox.project, "--http", guarded.base.removeprefix("http://"))
    assert "Cannot listen on" in line
    assert json.loads(httpx2.get(f"{guarded.base}/health").text)["status"] == "ok"
