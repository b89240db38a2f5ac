"""The proxy of a sandbox, without one: what it lets through, what it refuses, what it makes of odd requests."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from unittest.mock import ANY

import pytest

from claude_code_mcp.core.model.network import parse_credential
from claude_code_mcp.plugins.sandbox.network import http_exchange
from claude_code_mcp.plugins.sandbox.network import proxy as proxy_module
from claude_code_mcp.plugins.sandbox.network.proxy import ProxyNotes
from tests.support.waiting import HANG_SECONDS

from .support import fields, proxying, serving


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


async def test_a_listed_host_is_reached_and_headers_of_the_hop_stay_on_it() -> None:
    async with serving() as web, proxying([f"127.0.0.1:{web.port}"]) as behind:
        answer = await behind.raw(
            f"GET http://127.0.0.1:{web.port}/a?b=c HTTP/1.1\r\nHost: elsewhere.example\r\nProxy-Authorization: x\r\n"
            "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\nProxy-Connection: keep-alive\r\n\r\n".encode()
        )
        assert status(answer) == 200
        assert answer.endswith(b"hello")
        (head,) = web.heads
        assert head.startswith("GET /a?b=c HTTP/1.1\r\n")
        sent = fields(head)
        assert ("host", f"127.0.0.1:{web.port}") in sent
        assert ("x-kept", "2") in sent
        assert {"x-hop", "proxy-authorization", "proxy-connection"}.isdisjoint(name for name, _ in sent)
        assert [value for name, value in sent if name == "connection"] == ["close"]


async def test_a_tunnel_passes_bytes_in_both_directions() -> None:
    async with serving() as web, proxying([f"127.0.0.1:{web.port}"]) as behind:
        reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
        writer.write(f"CONNECT 127.0.0.1:{web.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET / HTTP/1.1\r\nHost: anything\r\n\r\n")
        assert (await reader.readuntil(b"hello")).endswith(b"hello")
        writer.close()


LISTED = "api.listed.example"
REFUSED: list[tuple[str, int]] = [
    # Hosts that are not on the list, in whatever spelling
    ("CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    (f"CONNECT evil.example:443 HTTP/1.1\r\nHost: {LISTED}\r\n\r\n", 403),
    (f"GET http://evil.example/ HTTP/1.1\r\nHost: {LISTED}\r\n\r\n", 403),
    (f"CONNECT x{LISTED}:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    (f"CONNECT {LISTED}.evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    (f"CONNECT sub.{LISTED}:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    (f"CONNECT {LISTED}:22 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    (f"CONNECT {LISTED}:25 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("CONNECT below.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("CONNECT 127.0.0.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    # Addresses in forms on which programs do not agree
    ("CONNECT 127.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("CONNECT 2130706433:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("CONNECT 0x7f.0.0.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("CONNECT 0177.0.0.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    # Targets that are none
    (f"CONNECT {LISTED} HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"CONNECT {LISTED}:0 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"CONNECT {LISTED}:99999 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"CONNECT {LISTED}:443:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"CONNECT user@{LISTED}:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"CONNECT evil.example@{LISTED}:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"GET http://evil.example@{LISTED}/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"GET http://{LISTED}@evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"GET http://{LISTED}\\@evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"GET http://{LISTED}%2eevil.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"GET https://{LISTED}/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"GET ftp://{LISTED}/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("GET http:///path HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    # Names that lead inside
    ("CONNECT rebound.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("CONNECT mapped.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("CONNECT site.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    ("GET http://rebound.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    # What is no HTTP
    ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS without a tunnel\r\n\r\n", 400),
    ("SSH-2.0-OpenSSH_9.0\r\n\r\n", 400),
    (f"GET http://{LISTED}/ HTTP/1.1\r\nNo colon\r\n\r\n", 400),
    (f"GET http://{LISTED}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (f"GET http://{LISTED}/\r\nX: HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (f"CONNECT {LISTED}:443 HTTP/1.1\r\nHost: x\r\n\r\nbytes before the tunnel is open", 400),
]
NAMES = {
    "rebound.example": ["10.0.0.1", "127.0.0.1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "site.example": ["fec0::1"],
}


@pytest.mark.parametrize(("sent", "expected"), REFUSED)
async def test_refused_call_reaches_no_server(sent: str, expected: int) -> None:
    async with serving() as web:
        hosts = [LISTED, "*.below.example", *NAMES]
        names = {**NAMES, LISTED: ["127.0.0.1"]}
        async with proxying(hosts, names=names) as behind:
            assert status(await behind.raw(sent.encode("latin-1"))) == expected
        assert web.connections == 0


async def test_a_refusal_names_the_host_and_the_list() -> None:
    async with proxying(["api.github.com", "*.example.org"]) as behind:
        answer = (await behind.raw(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")).decode()
    assert "evil.example:443 " in answer
    assert "network = ['api.github.com', '*.example.org']" in answer
    assert "X-Refused-By: policy" in answer


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to() -> None:
    """Of a name with two addresses the private one is not used, though it comes first; each name is looked up once."""
    asked: list[str] = []

    async with serving() as web, proxying([f"two.example:{web.port}", f"127.0.0.1:{web.port}"]) as behind:

        async def lookup(host: str, _: int) -> list[str]:
            asked.append(host)
            return ["10.255.255.1", "127.0.0.1"] if len(asked) == 1 else ["10.255.255.1"]

        behind.proxy._lookup = lookup
        answer = await behind.raw(f"GET http://two.example:{web.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (status(answer), asked) == (200, ["two.example"])


async def test_a_body_is_passed_on_once_however_it_is_framed() -> None:
    async with serving(echoes=True) as web, proxying([f"127.0.0.1:{web.port}"]) as behind:
        url = f"http://127.0.0.1:{web.port}/"
        plain = await behind.raw(f"POST {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody".encode())
        assert plain.endswith(b"body")
        # Two ways to say where a body ends are one request, or none.
        both = (
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET http://evil.example/ HTTP/1.1\r\n\r\n"
        )
        smuggled = await behind.raw(f"POST {url} HTTP/1.1\r\nHost: x\r\n{both}".encode())
        assert b"evil.example" not in b"".join(head.encode() for head in web.heads)
        assert smuggled.count(b"HTTP/1.1 ") <= 1


async def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    async with serving(echoes=True) as web, proxying([f"127.0.0.1:{web.port}"]) as behind:
        reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
        url = f"http://127.0.0.1:{web.port}/"
        writer.write(f"PUT {url} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode())
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"late")
        assert (await reader.read()).endswith(b"late")
        writer.close()


async def test_a_head_that_has_no_end_and_one_that_never_comes_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "_HEAD_SECONDS", 0.2)
    async with proxying([LISTED]) as behind:
        assert status(await behind.raw(b"GET http://x/ HTTP/1.1\r\n" + b"X: " + b"a" * 200_000)) in (0, 400)
        assert status(await behind.raw(b"GET http://")) == 400


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "_MAX_CONNECTIONS", 3)
    async with proxying([LISTED]) as behind:
        open_ones = [await asyncio.open_connection("127.0.0.1", behind.port) for _ in range(3)]
        while len(behind.proxy._connections) < 3:  # noqa: ASYNC110 - the server accepts in its own time
            await asyncio.sleep(0.01)
        assert status(await behind.raw(b"")) == 503
        for _, writer in open_ones:
            writer.close()


async def test_a_tunnel_in_which_nothing_moves_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "IDLE", 0.2)
    async with serving() as web, proxying([f"127.0.0.1:{web.port}"]) as behind:
        assert b" 200 " in await behind.raw(f"CONNECT 127.0.0.1:{web.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", 502),
        (b"no HTTP at all\r\n\r\n", 502),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 502),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
    ],
)
async def test_valid_server_answers(answer: bytes, expected: int) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with proxying([f"127.0.0.1:{port}"]) as behind:
            sent = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
            assert status(await behind.raw(sent.encode())) == expected


async def test_every_refusal_is_in_the_trail_and_ten_thousand_are_not_ten_thousand_lines() -> None:
    async with proxying([LISTED]) as behind:
        for _ in range(50):
            await behind.raw(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
        behind.proxy.close()
        entries = [(str(act.kind), act.who, act.session_id, act.details) for act in behind.audited]
    refusal = {"host": "evil.example:443", "why": ANY}
    assert entries == [
        ("network_refused", "ann", "session-1", {**refusal, "count": 1}),
        ("network_refused", "ann", "session-1", {**refusal, "count": 49}),
    ]


async def test_very_many_different_hosts_are_counted_together() -> None:
    written: list[object] = []
    notes = ProxyNotes(lambda act: written.append(act.details), "ann", None)
    for number in range(1000):
        notes.refused(f"{number}.example", 443, "not on the list")
    notes.close()
    assert len(written) < 250
    assert sum(details["count"] for details in written) == 1000  # type: ignore[index]
    assert json.dumps(written)


async def test_slow_names_of_one_session_delay_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, looking = threading.Event(), threading.Semaphore(0)

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host.startswith("slow"):
            looking.release()
            may_end.wait(HANG_SECONDS)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    hosts = ["*.example:443"]
    async with proxying(hosts, real_lookups=True) as one, proxying(hosts, real_lookups=True) as other:
        tunnel = "CONNECT {}.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"
        slow = [asyncio.ensure_future(one.raw(tunnel.format(f"slow{number}").encode())) for number in range(16)]
        try:
            for _ in range(4):
                assert await asyncio.to_thread(looking.acquire, True, HANG_SECONDS)
            async with asyncio.timeout(HANG_SECONDS):
                assert b"its address is not public" in await other.raw(tunnel.format("quick").encode())
            assert not looking.acquire(blocking=False), "one session has four threads, and no more"
        finally:
            may_end.set()
            await asyncio.gather(*slow)


HANGING = """
import asyncio, socket, threading
from claude_code_mcp.plugins.sandbox.network.proxy import NameLookups

looking = threading.Event()

def getaddrinfo(*_, **__):
    looking.set()
    threading.Event().wait()

socket.getaddrinfo = getaddrinfo

async def main():
    lookup = asyncio.ensure_future(NameLookups().addresses("slow.example", 443))
    await asyncio.to_thread(looking.wait)
    lookup.cancel()

asyncio.run(main())
"""


def test_hanging_lookup_does_not_block_shutdown() -> None:
    subprocess.run([sys.executable, "-c", HANGING], check=True, timeout=HANG_SECONDS)


def test_the_limits_are_there() -> None:
    assert http_exchange.MAX_HEAD == 64 << 10
    assert http_exchange.IDLE == 300.0


async def test_the_log_says_whose_credential_cannot_be_read_and_for_which_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as web:
        listed = f"127.0.0.1:{web.port}"
        async with proxying([listed], [parse_credential(listed, "Authorization", "env:MISSING")]) as behind:
            assert status(await behind.raw(f"GET http://{listed}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())) == 502
    (said,) = [record.getMessage() for record in caplog.records if listed in record.getMessage()]
    assert {"session-1", "ann"} <= {*said.split()}


async def test_a_credential_that_cannot_be_read_writes_one_line_however_often_it_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as web:
        listed = f"127.0.0.1:{web.port}"
        async with proxying([listed], [parse_credential(listed, "Authorization", "env:MISSING")]) as behind:
            for _ in range(20):
                await behind.raw(f"GET http://{listed}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert caplog.text.count("cannot use the credential") == 1
    assert "19 more lines" in caplog.text
