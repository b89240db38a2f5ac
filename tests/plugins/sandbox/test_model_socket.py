"""Requests on their way from a sandbox to the model: which are sent, with which headers, and each as one request."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import h11
import pytest

from claude_code_mcp.core.model.usage import Usage
from claude_code_mcp.plugins.sandbox import model_socket
from claude_code_mcp.plugins.sandbox.model_request import NOTHING_MORE, allowed_headers
from claude_code_mcp.plugins.sandbox.model_socket import ModelSocket, forwarded_headers, is_billed
from claude_code_mcp.plugins.sandbox.network.http_exchange import end_to_end
from tests.support.waiting import HANG_SECONDS, until_true

KEY, TOKEN = "sk-ant-the-real-key", "the-real-token"
SOCKET = ModelSocket({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": TOKEN, "ANTHROPIC_BASE_URL": "https://a.b:1/c"})
GIVEN = SOCKET.replaced({})
SECRETS = {GIVEN["ANTHROPIC_API_KEY"]: KEY, GIVEN["ANTHROPIC_AUTH_TOKEN"]: TOKEN}
PLACEHOLDER = GIVEN["ANTHROPIC_API_KEY"]


def forwarded(*headers: tuple[str, str], added: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """The headers that are sent, without those that always are."""
    request = h11.Request(method="POST", target="/v1/messages", headers=[("Host", "inside"), *headers])
    allowed = allowed_headers(end_to_end(request.headers), NOTHING_MORE)
    sent = forwarded_headers(allowed, "a.b:1", SECRETS, added)
    always = {("host", "a.b:1"), ("accept-encoding", "identity"), ("connection", "close")}
    found = [(name.decode().lower(), value.decode()) for name, value in sent]
    assert always <= set(found)
    return [pair for pair in found if pair not in always]


def test_claude_code_is_given_placeholders_and_an_address_without_encryption() -> None:
    assert KEY not in str(GIVEN)
    assert TOKEN not in str(GIVEN)
    assert GIVEN["ANTHROPIC_BASE_URL"] == "http://a.b:1/c"
    assert "CLAUDE_CODE_OAUTH_TOKEN" not in GIVEN


def test_the_credentials_take_the_place_of_their_placeholders() -> None:
    key, token = SECRETS
    assert forwarded(("X-Api-Key", key)) == [("x-api-key", KEY)]
    assert forwarded(("authorization", f"Bearer {token}")) == [("authorization", f"Bearer {TOKEN}")]


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-api-key", "{} and more"), ("x-api-key", "another-key"), ("authorization", "Basic {}"), ("cookie", "k={}")],
)
def test_a_session_sends_no_credential_but_the_operators(name: str, value: str) -> None:
    assert forwarded((name, value.format(PLACEHOLDER))) == []


def test_a_placeholder_in_another_header_stays_what_it_is() -> None:
    assert forwarded(("x-app", PLACEHOLDER)) == [("x-app", PLACEHOLDER)]


def test_operator_headers_are_added_by_the_server_and_hidden_from_claude_code() -> None:
    environment = {
        "ANTHROPIC_BASE_URL": "https://me:p%40ss@gateway.example/c",
        "ANTHROPIC_CUSTOM_HEADERS": "X-Team: red\nno header\nbad name: x\nX-Empty:\nHost: other",
    }
    socket = ModelSocket(environment)
    assert socket.replaced({**environment, "LANG": "C"}) == {
        "LANG": "C",
        "ANTHROPIC_BASE_URL": "http://gateway.example/c",
        "ANTHROPIC_UNIX_SOCKET": "/run/model.sock",
    }
    added = {"Authorization": "Basic bWU6cEBzcw==", "X-Team": "red"}
    sent = forwarded(("x-team", "blue"), ("Authorization", "Basic eDp5"), ("X-App", "cli"), added=added)
    assert sent == [("authorization", "Basic bWU6cEBzcw=="), ("x-team", "red"), ("x-app", "cli")]


def test_a_credential_has_the_authorization_before_the_address() -> None:
    given = GIVEN["ANTHROPIC_AUTH_TOKEN"]
    sent = forwarded(("Authorization", f"Bearer {given}"), added={"Authorization": "Basic eDp5"})
    assert sent == [("authorization", f"Bearer {TOKEN}")]


def test_headers_that_are_not_known_are_not_sent() -> None:
    hop = [("Connection", "keep-alive, x-app"), ("Keep-Alive", "timeout=5"), ("Expect", "100-continue"), ("X-App", "x")]
    assert forwarded(*hop) == []
    assert forwarded(("Transfer-Encoding", "chunked"), ("Content-Encoding", "gzip"), ("X-Forwarded-For", "::1")) == []
    assert forwarded(
        ("User-Agent", "claude-cli/2.1.0"), ("X-Claude-Code-Agent-Id", "a"), ("X-Stainless-Os", "Linux")
    ) == [
        ("user-agent", "claude-cli/2.1.0"),
        ("x-claude-code-agent-id", "a"),
        ("x-stainless-os", "Linux"),
    ]


def test_no_compression_is_asked_for() -> None:
    assert forwarded(("Accept-Encoding", "gzip, br")) == []


@pytest.mark.parametrize(
    ("line", "costs"),
    [
        ("POST /v1/messages", True),
        ("POST /v1/messages?beta=true", True),
        ("POST /v1/messages/count_tokens?beta=true", False),
        ("GET /v1/models", False),
        ("GET /v1/models/claude-opus-5-5", False),
        ("HEAD /", False),
        ("POST /api/event_logging/batch", None),
        ("POST /api/oauth/claude_cli/create_api_key", None),
        ("GET /v1/messages/batches", None),
        ("GET /v1/organizations/api_keys", None),
        ("GET /v1/models/../messages/batches", None),
        ("GET /v1/models/..", None),
        ("POST /v1;x/messages", None),
        ("POST /v1#/messages", None),
        ("POST /v1/messages/batches", None),
        ("POST /v1/complete", None),
        ("POST /v1/messages/", None),
        ("POST //v1/messages/batches", None),
        ("POST /v1/messages/%62atches", None),
        ("POST /v1/x/../messages/batches", None),
        ("POST /proxy/v1/messages/batches", None),
        ("POST /V1/messages/batches", None),
        ("PUT /v1/messages", None),
        ("post /v1/messages", None),
        ("CONNECT a.b:1", None),
    ],
)
def test_only_what_is_counted_can_be_spent(line: str, costs: bool | None) -> None:
    method, _, target = line.encode().partition(b" ")
    assert is_billed(method, target) is costs


def test_the_path_of_the_address_is_part_of_the_request() -> None:
    assert is_billed(b"POST", b"/c/v1/messages", "/c") is True
    assert is_billed(b"POST", b"/c/v1/messages/batches", "/c") is None
    assert is_billed(b"POST", b"/v1/messages", "/c") is None
    assert is_billed(b"GET", b"/c/v1/models", "/c") is False
    assert is_billed(b"GET", b"/v1/models", "/c") is None


# -- over the line ----------------------------------------------------------------------------------------------------

USED = {"model": "claude-opus-5-5", "usage": {"input_tokens": 2_000_000, "output_tokens": 0}}


@dataclass
class Upstream:
    """An API that takes down what it gets, tells to go on where it is asked to, and answers with what was used."""

    received: list[bytes] = field(default_factory=list)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.received.append(head)
        body = json.dumps(USED).encode()
        # Some servers tell to go on though nobody has asked.
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        while data := await reader.read(1 << 16):
            self.received.append(data)
        writer.close()


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[Upstream, ModelSocket, Path]]:
    upstream = Upstream()
    async with await asyncio.start_server(upstream.take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "ANTHROPIC_API_KEY": KEY}
        socket = ModelSocket(address)
        path = await socket.open(directory)
        try:
            yield upstream, socket, path
        finally:
            socket.close()


async def said(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    async with asyncio.timeout(HANG_SECONDS):
        answer = await reader.read()
    writer.close()
    return answer


async def test_smuggled_request_is_not_forwarded(tmp_path: Path) -> None:
    hidden = f"POST /v1/messages HTTP/1.1\r\nHost: a\r\nx-api-key: {PLACEHOLDER}\r\n\r\n"
    async with opened(tmp_path) as (upstream, _, path):
        await said(path, f"GET /v1/models HTTP/1.1\nHost: a\n\n{hidden}".encode())
        inside = f"GET /v1/models HTTP/1.1\nHost: a\nContent-Length: 300\n\nx\r\nx-api-key: {PLACEHOLDER}\r\n\r\n"
        await said(path, inside.encode() + b"y" * 300)
        await until_true(lambda: len(upstream.received) >= 2)
    heads = [text for text in upstream.received if text.startswith((b"GET", b"POST"))]
    assert [head.split(b" ")[0] for head in heads] == [b"GET", b"GET"]
    assert all(KEY.encode() not in text for text in upstream.received)


@pytest.mark.parametrize("expects", ["", "Expect: 100-continue\r\n"])
async def test_an_answer_is_counted_whatever_comes_before_it(tmp_path: Path, expects: str) -> None:
    async with opened(tmp_path) as (upstream, socket, path):
        counted = list[Usage]()
        socket.traffic.counted = counted.append
        head = f"POST /v1/messages HTTP/1.1\r\nHost: a\r\n{expects}Content-Length: 2\r\n\r\n"
        assert b"2000000" in await said(path, head.encode() + b"{}")
        await until_true(lambda: counted)
        assert counted[0].total.input_tokens == 2_000_000
        assert b"expect" not in upstream.received[0].lower()


async def test_a_session_has_no_more_connections_than_are_needed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, _, path):
        idle = [await asyncio.open_unix_connection(path) for _ in range(model_socket._MAX_CONNECTIONS)]
        assert b" 503 " in (await said(path, b"")).splitlines()[0]
        for _, writer in idle:
            writer.close()
        head = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
        while b" 503 " in await said(path, head):
            pass  # the places are not free yet


async def test_the_log_says_whose_request_could_not_be_forwarded_and_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # It answers with something that is no HTTP.
    async def send_garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nonsense\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(send_garbage, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = {"ANTHROPIC_BASE_URL": f"http://user:{TOKEN}@127.0.0.1:{port}", "ANTHROPIC_API_KEY": KEY}
        socket = ModelSocket(address, "session s-1")
        path = await socket.open(tmp_path)
        try:
            await said(path, b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
            await until_true(lambda: "a request of session s-1 to 127.0.0.1 could not be forwarded" in caplog.text)
        finally:
            socket.close()
    assert KEY not in caplog.text
    assert TOKEN not in caplog.text


# -- what a session can cause ------------------------------------------------------------------------------------------


def post(body: object, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/messages?beta=true HTTP/1.1", "Host: a", f"Content-Length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


ASKED = {"model": "claude-opus-5-5", "max_tokens": 1000, "messages": [{"role": "user", "content": "x" * 4000}]}


async def test_a_refusal_looks_like_one_of_the_api(tmp_path: Path) -> None:
    async with opened(tmp_path) as (upstream, _, path):
        answer = await said(path, post({**ASKED, "mcp_servers": []}))
        head, _, text = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        error = json.loads(text)
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert "mcp_servers is not allowed" in error["error"]["message"]
        assert b"'files-api-2025-04-14'" in await said(path, post(ASKED, "anthropic-beta: files-api-2025-04-14"))
        assert upstream.received == []


async def test_a_request_is_sent_with_its_body_and_nothing_of_its_own_around_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (upstream, _, path):
        assert b" 200 " in await said(path, post(ASKED, "Content-Encoding: gzip", "anthropic-beta: effort-2025-11-24"))
        await until_true(lambda: b"xxx" in b"".join(upstream.received))
        head, _, text = b"".join(upstream.received).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/messages?beta=true HTTP/1.1")
        assert b"effort-2025-11-24" in head
        assert b"gzip" not in head
        assert json.loads(text) == ASKED


async def test_no_session_has_more_in_memory_than_two_requests_of_the_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_socket, "_MAX_HELD", 3000)
    async with opened(tmp_path) as (upstream, _, path):
        assert b"too large" in await said(path, post(ASKED))
        assert b" 200 " in await said(path, post({**ASKED, "messages": []}))
        assert len(b"".join(upstream.received)) < 4000


class SlowUpstream:
    """An API that answers once `answer` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        await self.answer.wait()
        body = json.dumps(USED).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def slow(directory: Path, clock: Callable[[], float]) -> AsyncIterator[tuple[SlowUpstream, ModelSocket, Path]]:
    upstream = SlowUpstream()
    async with await asyncio.start_server(upstream.take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        socket = ModelSocket({"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}"}, clock=clock)
        path = await socket.open(directory)
        try:
            yield upstream, socket, path
        finally:
            socket.close()
            upstream.answer.set()


async def hang_up(path: Path, upstream: SlowUpstream, times: int) -> None:
    """Asks so often, and leaves when the API has the request."""
    for number in range(1, times + 1):
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(post(ASKED))
        await until_true(lambda number=number: upstream.asked == number)  # type: ignore[misc]
        writer.close()


async def test_an_answer_that_the_session_hangs_up_on_is_counted(tmp_path: Path) -> None:
    async with slow(tmp_path, lambda: 0.0) as (upstream, socket, path):
        counted = list[Usage]()
        socket.traffic.counted = counted.append
        await hang_up(path, upstream, 20)
        await until_true(lambda: socket.traffic.open_requests == 0)
        assert socket.traffic.unfinished.total.input_tokens >= 20 * 1000, "they count before they are answered"
        upstream.answer.set()
        await until_true(lambda: len(counted) == 20)
        assert sum(counted, Usage()).total.input_tokens == 20 * 2_000_000


@pytest.mark.parametrize(("seconds", "output"), [(0.0, 0), (2.0, 600), (60.0, 1000)])
async def test_unanswered_requests_are_estimated_when_the_process_ends(
    tmp_path: Path, seconds: float, output: int
) -> None:
    now = 0.0
    async with slow(tmp_path, lambda: now) as (upstream, socket, path):
        counted = list[Usage]()
        socket.traffic.counted = counted.append
        await hang_up(path, upstream, 1)
        now = seconds
        socket.close()
        assert counted[0].total.input_tokens >= 1000
        assert counted[0].total.output_tokens == output
        assert [*counted[0].models] == ["claude-opus-5-5"]


async def test_an_api_that_cannot_be_reached_costs_nothing(tmp_path: Path) -> None:
    socket = ModelSocket({"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"})
    counted = list[Usage]()
    socket.traffic.counted = counted.append
    path = await socket.open(tmp_path)
    try:
        assert await said(path, post(ASKED)) == b""
        assert counted == []
        assert socket.traffic.unfinished == Usage()
    finally:
        socket.close()


async def test_garbage_is_logged_in_at_most_two_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as (_, socket, path):
        for number in range(300):
            await said(path, f"garbage {number}\r\n\r\n".encode())
        assert len(caplog.records) == 1
        socket.close()
        assert len(caplog.records) == 2
        assert "299 more lines" in caplog.text


# -- a login ----------------------------------------------------------------------------------------------------------


def login(directory: Path, expires_in: float) -> Path:
    file = directory / ".credentials.json"
    expires_at = int((time.time() + expires_in) * 1000)
    file.write_text(json.dumps({"claudeAiOauth": {"accessToken": TOKEN, "expiresAt": expires_at}}))
    return file


async def test_a_login_is_used_and_never_shown(tmp_path: Path) -> None:
    upstream = Upstream()
    async with await asyncio.start_server(upstream.take, "127.0.0.1", 0) as server:
        address = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        socket = ModelSocket(address, login=login(tmp_path, 3600.0))
        given = socket.replaced({})["CLAUDE_CODE_OAUTH_TOKEN"]
        assert TOKEN not in given
        path = await socket.open(tmp_path)
        try:
            assert b" 200 " in await said(path, post(ASKED, f"Authorization: Bearer {given}"))
            assert f"bearer {TOKEN}".encode() in upstream.received[0].lower()
            login(tmp_path, -1.0)
            assert b"has expired" in await said(path, post(ASKED, f"Authorization: Bearer {given}"))
        finally:
            socket.close()


def test_a_key_stands_before_a_login(tmp_path: Path) -> None:
    given = ModelSocket({"ANTHROPIC_API_KEY": KEY}, login=login(tmp_path, 3600.0)).replaced({})
    assert "ANTHROPIC_API_KEY" in given
    assert "CLAUDE_CODE_OAUTH_TOKEN" not in given
    assert "CLAUDE_CODE_OAUTH_TOKEN" not in ModelSocket({}, login=tmp_path / "missing").replaced({})
