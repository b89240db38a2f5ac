"""Remote servers over every transport: the same hub, whatever is in between."""

import asyncio
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from mcp import MCPError
from mcp.server.auth.provider import AccessToken
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.responses import Response
from websockets.asyncio.server import ServerConnection

from claude_code_mcp.core.audit.session_log import RedactingFormatter, without_contents
from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.transports import probe
from claude_code_mcp.hub.transports.transport_factory import IDE_HEADER
from tests.support.local_http import serving
from tests.support.ports import free_port

from .conftest import PATIENCE, Changes, StartHub, disconnect, text_of
from .oauth import auth_settings
from .remote import RemoteServer, http_server, sse_server, websocket_server

LOOPBACK = IPv4Address("127.0.0.1")


@dataclass
class Remote:
    """A kind of server, how to run one, and how it is configured."""

    kind: str
    serve: Callable[..., AbstractAsyncContextManager[str]]
    options: dict[str, Any]

    def running(self, remote: RemoteServer, port: int | None = None) -> AbstractAsyncContextManager[str]:
        return self.serve(remote, port or free_port(), **self.options)


KINDS = [
    Remote("http", http_server, {}),
    Remote("http", http_server, {"json_response": True}),
    Remote("sse", sse_server, {}),
    Remote("ws", websocket_server, {}),
]


@pytest.fixture(params=KINDS, ids=["http", "http-json", "sse", "ws"])
def kind(request: pytest.FixtureRequest) -> Remote:
    chosen: Remote = request.param
    return chosen


@dataclass
class Connected:
    hub: Hub
    remote: RemoteServer
    url: str


@pytest.fixture
async def connected(kind: Remote, start_hub: StartHub) -> AsyncIterator[Connected]:
    remote = RemoteServer()
    async with kind.running(remote) as url:
        hub = await start_hub({"x": {"type": kind.kind, "url": url}})
        yield Connected(hub, remote, url)
        await disconnect(hub, "x")


async def test_slow_first_answer_is_not_treated_as_unresponsive(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be greeted with a handshake, which a server of the newest protocol alone does not take."""
    monkeypatch.setattr(probe, "_MUTE", 0.0)
    monkeypatch.setattr(probe, "_LOOK_EVERY", 0.01)
    app = RemoteServer().server.streamable_http_app()

    async def answer_late(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(0.3)  # thirty times as long as a program may be mute here
        await app(scope, receive, send)

    async with serving(answer_late) as base:
        hub = await start_hub({"x": {"type": "http", "url": f"{base}/mcp"}})
        [status] = await hub.connect()
        assert status.protocol_version == LATEST_MODERN_VERSION
        assert hub._memory.traits(hub._find("x").key).handshake_only is False
        hub.disable("x")
        await asyncio.sleep(0.05)


_OF_WEBSOCKETS = ("websockets.client", "claude_code_mcp.hub.transports.websocket")


async def test_the_log_has_no_contents_at_any_level(
    kind: Remote, start_hub: StartHub, caplog: pytest.LogCaptureFixture
) -> None:
    """Although libraries write whatever they send and receive at the level debug."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(RedactingFormatter("%(name)s: %(message)s", Redactor()))
    handler.addFilter(without_contents)
    caplog.set_level(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    try:
        async with kind.running(RemoteServer()) as url:
            hub = await start_hub({"x": {"type": kind.kind, "url": url}})
            assert "walrus" in text_of(await hub.call("x", "echo", {"a": "walrus"}))
            await disconnect(hub, "x")
    finally:
        logging.getLogger().removeHandler(handler)
    assert "walrus" not in output.getvalue()
    assert "jsonrpc" not in output.getvalue()
    # The loggers of the server, which is in this process too, are not looked at.
    written = [record.getMessage() for record in caplog.records if record.name in _OF_WEBSOCKETS]
    assert not [text for text in written if "jsonrpc" in text]


async def test_tools_are_listed_and_called(connected: Connected) -> None:
    tools = await connected.hub.tools("x")
    assert [tool.name for tool in tools] == [f"mcp__x__{name}" for name in connected.remote.tools]
    assert text_of(await connected.hub.call("x", "echo", {"a": 1})) == "echo {'a': 1}"
    assert connected.hub.status()[0].state == "connected"


async def test_calls_do_not_wait_for_each_other(connected: Connected) -> None:
    slow = asyncio.create_task(connected.hub.call("x", "slow"))
    await asyncio.wait_for(connected.remote.started.wait(), PATIENCE)
    assert text_of(await connected.hub.call("x", "echo")) == "echo {}"
    connected.remote.release.set()
    assert text_of(await slow) == "slow {}"


async def test_cancelling_the_caller_cancels_the_call_at_the_server(kind: Remote, connected: Connected) -> None:
    if kind.options:
        pytest.skip("a server that answers in one piece does not see that its client has gone")
    slow = asyncio.create_task(connected.hub.call("x", "slow"))
    await asyncio.wait_for(connected.remote.started.wait(), PATIENCE)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    await asyncio.wait_for(connected.remote.cancelled.wait(), PATIENCE)
    assert text_of(await connected.hub.call("x", "echo")) == "echo {}"


async def test_server_question_reaches_the_caller(connected: Connected) -> None:
    asked = []

    async def ask(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params["message"])
        return {"action": "accept", "content": {"name": "Ada"}}

    result = text_of(await connected.hub.call("x", "ask", ask=ask))
    assert result.endswith("accept {'name': 'Ada'}")
    assert asked == ["Who?"]


async def test_a_change_of_the_tools_is_noticed(connected: Connected) -> None:
    before = len(await connected.hub.tools("x"))
    changes = Changes(connected.hub, "x")
    await connected.hub.call("x", "change")
    await changes.until_seen("tools")
    assert len(await connected.hub.tools("x")) == before + 1


async def test_a_restarted_server_is_used_again(kind: Remote, start_hub: StartHub) -> None:
    port = free_port()
    async with kind.running(RemoteServer(), port) as url:
        hub = await start_hub({"x": {"type": kind.kind, "url": url}})
        assert text_of(await hub.call("x", "echo")) == "echo {}"
    for _ in range(4):
        with pytest.raises((MCPError, UpstreamUnavailable)):
            await hub.call("x", "echo")
    again = RemoteServer()
    async with kind.running(again, port):
        assert text_of(await hub.call("x", "echo", {"again": True})) == "echo {'again': True}"
        assert again.seen == 1
        await disconnect(hub, "x")


async def test_a_server_that_is_not_there_fails_with_the_reason(kind: Remote, start_hub: StartHub) -> None:
    scheme = "ws" if kind.kind == "ws" else "http"
    hub = await start_hub({"x": {"type": kind.kind, "url": f"{scheme}://127.0.0.1:{free_port()}/mcp"}})
    with pytest.raises(UpstreamUnavailable, match=r"[Cc]onnect"):
        await hub.call("x", "echo")
    assert hub.status()[0].state == "failed"


REFUSALS = {
    403: ({}, "not yours", r"HTTP 403\b.*\(not yours\)$"),
    429: ({"retry-after": "30"}, "", r"HTTP 429\b.*\b30 s\b"),
    500: ({}, "out of memory", r"HTTP 500\b.*\(out of memory\)$"),
    404: ({}, "", "HTTP 404"),
}


@pytest.mark.parametrize("type_", ["http", "sse"])
@pytest.mark.parametrize("status", REFUSALS)
async def test_refusal_statuses_are_distinguished(start_hub: StartHub, status: int, type_: str) -> None:
    headers, body, reason = REFUSALS[status]

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await Response(body, status, headers, media_type="text/plain")(scope, receive, send)

    async with serving(refuse, lifespan="off") as url:
        hub = await start_hub({"x": {"type": type_, "url": url}})
        with pytest.raises(UpstreamUnavailable, match=reason):
            await hub.call("x", "echo")
        assert re.search(reason, hub.status()[0].reason)


async def test_a_call_that_is_refused_says_why(start_hub: StartHub) -> None:
    remote, refused = RemoteServer(), list[int]()
    app = remote.server.streamable_http_app()

    async def fail_every_second(scope: Any, receive: Any, send: Any) -> None:
        first = await receive() if scope["type"] == "http" else None
        if refused and first is not None and b'"tools/call"' in first.get("body", b""):
            await Response("slow down", refused.pop(), {"retry-after": "5"})(scope, receive, send)
            return
        messages = [] if first is None else [first]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        await app(scope, replay, send)

    async with serving(fail_every_second) as url:
        hub = await start_hub({"x": {"type": "http", "url": f"{url}/mcp"}})
        await hub.tools("x")
        refused.append(429)
        with pytest.raises(MCPError, match=r"HTTP 429\b.*\b5 s\b.*\(slow down\)"):
            await hub.call("x", "echo")
        assert text_of(await hub.call("x", "echo")) == "echo {}", "the connection stays"
        await disconnect(hub, "x")


async def test_one_refused_request_does_not_end_the_others(start_hub: StartHub) -> None:
    """An HTTP server that stops listening: the call in flight still gets its answer."""
    remote = RemoteServer()
    async with http_server(remote) as url:
        hub = await start_hub({"x": {"type": "http", "url": url}})
        await hub.tools("x")
    with pytest.raises(MCPError):
        await hub.call("x", "echo")
    assert hub.status()[0].state == "connected"
    for _ in range(2):
        with pytest.raises(MCPError):
            await hub.call("x", "echo")
    assert hub.status()[0].state != "connected"


async def test_a_forgotten_session_is_made_again_without_the_caller_noticing(start_hub: StartHub) -> None:
    port = free_port()
    first, second = _Legacy(), _Legacy()
    async with http_server(first, port) as url:
        hub = await start_hub({"x": {"type": "http", "url": url}})
        await hub.call("x", "echo")
        assert hub.status()[0].protocol_version == "2025-11-25"
    async with http_server(second, port):
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        assert second.seen == 1
        await disconnect(hub, "x")


class _Legacy(RemoteServer):
    """A server that knows only revisions with a handshake."""

    def __init__(self) -> None:
        super().__init__()
        self.server.middleware.append(_without_discovery)


async def _without_discovery(ctx: Any, call_next: Any) -> Any:
    if ctx.method == "server/discover":
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
    return await call_next(ctx)


async def test_headers_are_sent(start_hub: StartHub) -> None:
    seen: list[Any] = []
    async with sse_server(RemoteServer(), headers=seen) as url:
        hub = await start_hub({"x": {"type": "sse", "url": url, "headers": {"X-Team": "blue"}}})
        await hub.tools("x")
        assert seen[0]["x-team"] == "blue"
        await disconnect(hub, "x")


async def test_an_ide_over_server_sent_events_is_shown_its_token(start_hub: StartHub, tmp_path: Path) -> None:
    seen: list[Any] = []
    port = free_port()
    (tmp_path / ".claude" / "ide").mkdir(parents=True)
    (tmp_path / ".claude" / "ide" / f"{port}.lock").write_text(json.dumps({"authToken": "from-the-ide"}))
    async with sse_server(RemoteServer(), port, seen) as url:
        hub = await start_hub({"x": {"type": "sse-ide", "url": url, "includeTools": ["echo"]}})
        assert text_of(await hub.call("x", "echo", {"a": 1})) == "echo {'a': 1}"
        assert seen[0][IDE_HEADER] == "from-the-ide"
        await disconnect(hub, "x")


@pytest.mark.parametrize("token_in", ["lock file", "configuration"])
async def test_an_ide_is_shown_its_token(start_hub: StartHub, tmp_path: Path, token_in: str) -> None:
    seen = []

    async def check(socket: ServerConnection) -> None:
        assert socket.request is not None
        seen.append(socket.request.headers.get(IDE_HEADER))

    port = free_port()
    entry: dict[str, Any] = {"type": "ws-ide", "url": f"ws://127.0.0.1:{port}", "includeTools": ["echo"]}
    if token_in == "configuration":
        entry["authToken"] = "from-the-ide"
    else:
        (tmp_path / ".claude" / "ide").mkdir(parents=True)
        (tmp_path / ".claude" / "ide" / f"{port}.lock").write_text(json.dumps({"authToken": "from-the-ide"}))
    async with websocket_server(RemoteServer(), port, check):
        hub = await start_hub({"x": entry})
        assert [tool.tool.name for tool in await hub.tools("x")] == ["echo"]
        assert seen == ["from-the-ide"]
        await disconnect(hub, "x")


async def test_refused_header_is_reported_without_its_value(start_hub: StartHub, caplog: Any) -> None:
    class SilentClient:
        async def verify_token(self, token: str) -> AccessToken | None:
            return None

    caplog.set_level("DEBUG")
    port = free_port()
    options = {"auth": auth_settings(port), "token_verifier": SilentClient()}
    async with http_server(RemoteServer(), port, **options) as url:
        headers = {"Authorization": "Bearer very-secret-token"}
        hub = await start_hub({"x": {"type": "http", "url": url, "headers": headers}})
        with pytest.raises(UpstreamUnavailable, match="credentials"):
            await hub.call("x", "echo")
    [status] = hub.status()
    assert status.state == "failed"
    assert status.config["headers"] == {"Authorization": "[redacted]"}
    assert "very-secret-token" not in repr(status) + caplog.text


async def test_a_server_in_this_process_is_one_like_any_other(start_hub: StartHub) -> None:
    remote = RemoteServer()
    hub = await start_hub({"x": {"type": "sdk"}}, in_process={"x": remote.run})
    assert text_of(await hub.call("x", "echo", {"a": 1})) == "echo {'a': 1}"
    slow = asyncio.create_task(hub.call("x", "slow"))
    await asyncio.wait_for(remote.started.wait(), PATIENCE)
    assert text_of(await hub.call("x", "echo")) == "echo {}"
    remote.release.set()
    await slow


async def test_an_exchange_of_any_length_takes_no_more_of_the_stack(start_hub: StartHub) -> None:
    hub = await start_hub({"x": {"type": "sdk"}}, in_process={"x": RemoteServer().run})
    for _ in range(2000):
        await hub.call("x", "echo")


async def test_a_secret_in_an_address_appears_in_no_log_line(start_hub: StartHub, caplog: Any) -> None:
    caplog.set_level("INFO")
    async with http_server(RemoteServer()) as url:
        hub = await start_hub({"x": {"type": "http", "url": f"{url}?key=very-secret"}})
        await hub.call("x", "echo")
        ours = [record.getMessage() for record in caplog.records if record.name.startswith(("httpx2", "claude_code"))]
        assert any("HTTP Request" in line for line in ours)
        assert "very-secret" not in "".join(ours) + repr(hub.status())
        await disconnect(hub, "x")


@dataclass
class Certificate:
    """A certificate for loopback that only its own file vouches for."""

    file: Path
    key: Path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(LOOPBACK)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    place = tmp_path_factory.mktemp("tls")
    pem, secret = serialization.Encoding.PEM, serialization.NoEncryption()
    (place / "cert.pem").write_bytes(made.public_bytes(pem))
    (place / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, secret))
    return Certificate(place / "cert.pem", place / "key.pem")


@pytest.mark.parametrize("trust", ["file", "anything", "nothing"])
async def test_certificate_must_be_signed_by_the_authority(
    start_hub: StartHub, certificate: Certificate, trust: str
) -> None:
    tls = {"file": {"caFile": str(certificate.file)}, "anything": {"verify": False}, "nothing": {}}[trust]
    port = free_port()
    encrypted = {"ssl_certfile": str(certificate.file), "ssl_keyfile": str(certificate.key)}
    async with serving(RemoteServer().server.streamable_http_app(), port, **encrypted):
        listening = asyncio.Event()
        entry = {"type": "http", "url": f"https://{LOOPBACK}:{port}/mcp", "tls": tls}
        hub = await start_hub({"x": entry}, on_notification=lambda *_: listening.set())
        if trust == "nothing":
            with pytest.raises(UpstreamUnavailable, match="certificate"):
                await hub.call("x", "echo")
        else:
            assert text_of(await hub.call("x", "echo")) == "echo {}"
            await asyncio.wait_for(
                listening.wait(), PATIENCE
            )  # httpcore leaks a socket that is cancelled in its handshake
        await disconnect(hub, "x")


async def test_a_command_prints_the_headers_of_each_connection(start_hub: StartHub, tmp_path: Path) -> None:
    seen: list[Any] = []
    count = tmp_path / "count"
    helper = (
        f'echo x >>{count}; echo "{{\\"X-Token\\": \\"$CLAUDE_CODE_MCP_SERVER_NAME-$(wc -l <{count} | tr -d " ")\\"}}"'
    )
    async with sse_server(RemoteServer(), headers=seen) as url:
        entry = {"type": "sse", "url": url, "headers": {"X-Team": "blue"}, "headersHelper": helper}
        hub = await start_hub({"x": entry, "bad": {**entry, "headersHelper": "echo s3cret; exit 3"}})
        await hub.call("x", "echo", {"word": "hi"})
        assert {(one.get("x-token"), one.get("x-team")) for one in seen} == {("x-1", "blue")}
        with pytest.raises(UpstreamUnavailable, match=r"headersHelper\b.*\b3\b") as failed:
            await hub.call("bad", "echo")
        assert "s3cret" not in failed.value.message
        seen.clear()
        await hub.reconnect("x")
        assert {one.get("x-token") for one in seen} == {"x-2"}
