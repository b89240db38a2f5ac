"""Credentials that the proxy puts in: with real clients over TLS, for the right host alone, and never back to them."""

import asyncio
import os
import re
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.network import parse_credential
from claude_code_mcp.plugins.sandbox.network.egress import RunCertificateAuthority
from claude_code_mcp.plugins.sandbox.network.http_exchange import SecretMask, read_credential, same_host

from .support import Behind, Certificates, Served, fields, proxying, serving

HOST = "api.test"
SECRET = "ghp-very-secret-value/with+signs="
ENVIRONMENT = {"GITHUB_TOKEN": SECRET}


@pytest.fixture(scope="module")
def authority() -> RunCertificateAuthority:
    return RunCertificateAuthority()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def secured(
    certificates: Certificates, authority: RunCertificateAuthority, **facts: object
) -> AsyncIterator[tuple[Served, Behind]]:
    """A host with a credential, over TLS, behind the proxy."""
    async with (
        serving(certificates.server(HOST), **facts) as web,
        proxying(
            [f"{HOST}:{web.port}", f"plain.test:{web.port}", f"127.0.0.1:{web.port}"],
            [parse_credential(f"{HOST}:{web.port}", "Authorization", "env:GITHUB_TOKEN")],
            ENVIRONMENT,
            {HOST: ["127.0.0.1"], "plain.test": ["127.0.0.1"]},
            authority,
            certificates.trusting(),
        ) as behind,
    ):
        yield web, behind


async def curl(behind: Behind, bundle: Path, *arguments: str) -> tuple[int, str]:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "-i", "--max-time", "30", "--proxy", f"http://127.0.0.1:{behind.port}"),
        *("--cacert", str(bundle), *arguments),
        env={"PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.fixture
def bundle(tmp_path: Path, authority: RunCertificateAuthority) -> Path:
    file = tmp_path / "bundle.pem"
    file.write_bytes(authority.bundle())
    return file


async def test_the_credential_is_put_in_and_the_requests_own_header_is_replaced(
    certificates: Certificates, authority: RunCertificateAuthority, bundle: Path
) -> None:
    async with secured(certificates, authority) as (web, behind):
        url = f"https://{HOST}:{web.port}/repos"
        code, output = await curl(behind, bundle, url, url, "-H", "Authorization: Bearer mine", "-H", "X-Kept: 1")
    assert (code, output.count("hello")) == (0, 2), output
    for head in web.heads:
        sent = fields(head)
        assert [value for name, value in sent if name == "authorization"] == [f"Bearer {SECRET}"]
        assert ("host", f"{HOST}:{web.port}") in sent
        assert ("x-kept", "1") in sent
    assert web.connections == 1, "one connection serves several requests"
    used = [act for act in behind.audited if str(act.kind) == "credential_used"]
    assert sum(act.details["count"] for act in used) == 2 or used[0].details["count"] == 1
    assert used[0].details["host"] == f"{HOST}:{web.port}"
    assert SECRET not in str(behind.audited)


async def test_a_server_that_sends_the_credential_back_does_not_give_it_away(
    certificates: Certificates, authority: RunCertificateAuthority, bundle: Path
) -> None:
    async with secured(certificates, authority, echoes=True) as (web, behind):
        code, output = await curl(behind, bundle, f"https://{HOST}:{web.port}/echo", "-d", "x=1")
    assert (code, web.connections) == (0, 1), output
    assert "POST /echo" in output
    assert SECRET not in output
    assert "*" * len(SECRET) in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-X", "TRACE"], " 403 "),
        (["-X", "trace"], " 403 "),
        (["-H", "Host: other.test"], " 421 "),
        (["-H", "Host: plain.test"], " 421 "),
        (["--request-target", "http://other.test/"], " 421 "),
    ],
)
async def test_requests_in_a_tunnel_are_for_its_host_and_reflect_nothing(
    certificates: Certificates, authority: RunCertificateAuthority, bundle: Path, arguments: list[str], said: str
) -> None:
    async with secured(certificates, authority, echoes=True) as (web, behind):
        _, output = await curl(behind, bundle, f"https://{HOST}:{web.port}/", *arguments)
    assert said in output
    assert web.heads == []
    assert [str(act.kind) for act in behind.audited] == ["network_refused"]


async def test_the_name_in_the_handshake_must_be_that_of_the_tunnel(
    certificates: Certificates, authority: RunCertificateAuthority
) -> None:
    async with secured(certificates, authority) as (web, behind):
        for name, good in ((HOST, True), (HOST.upper(), True), ("other.test", False), (None, True)):
            reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
            writer.write(f"CONNECT {HOST}:{web.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            try:
                await writer.start_tls(context, server_hostname=name or "127.0.0.1")
                taken = True
            except (ssl.SSLError, OSError):
                taken = False
            assert taken is good, name
            writer.close()


async def test_hosts_without_a_credential_are_not_intercepted(
    certificates: Certificates, authority: RunCertificateAuthority, bundle: Path
) -> None:
    async with serving(certificates.server("plain.test")) as web:
        names = {"plain.test": ["127.0.0.1"]}
        hosts = [f"plain.test:{web.port}", f"127.0.0.1:{web.port}"]
        rule = parse_credential("elsewhere.test", "Authorization", "env:GITHUB_TOKEN")
        async with proxying(hosts, [rule], ENVIRONMENT, names, authority) as behind:
            url = f"https://plain.test:{web.port}/"
            refused, _ = await curl(behind, bundle, url)  # the certificate is the server's own, which nobody trusts
            code, output = await curl(behind, certificates.file, url)
    assert refused != 0
    assert code == 0, output
    assert not [name for head in web.heads for name, _ in fields(head) if name == "authorization"]


async def test_a_server_with_a_wrong_certificate_does_not_get_the_credential(
    certificates: Certificates, authority: RunCertificateAuthority, bundle: Path
) -> None:
    async with serving(certificates.server("somebody-else.test")) as web:
        rule = parse_credential(f"{HOST}:{web.port}", "Authorization", "env:GITHUB_TOKEN")
        hosts, names = [f"{HOST}:{web.port}", f"127.0.0.1:{web.port}"], {HOST: ["127.0.0.1"]}
        async with proxying(hosts, [rule], ENVIRONMENT, names, authority, certificates.trusting()) as behind:
            code, output = await curl(behind, bundle, f"https://{HOST}:{web.port}/")
    assert code != 0
    assert "502" in output
    assert web.heads == []


async def test_over_an_unencrypted_connection_a_credential_goes_to_loopback_alone(
    authority: RunCertificateAuthority,
) -> None:
    async with serving() as web:
        rules = [
            parse_credential(f"{name}:{web.port}", "X-Api-Key", "env:GITHUB_TOKEN") for name in ("localhost", HOST)
        ]
        hosts = [f"localhost:{web.port}", f"{HOST}:{web.port}"]
        async with proxying(hosts, rules, ENVIRONMENT, {HOST: ["93.184.216.34"]}, authority) as behind:

            async def opened(*_: object) -> object:
                reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
                return reader, writer, ip_address("93.184.216.34")

            got = await behind.raw(f"GET http://localhost:{web.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            behind.proxy._open = opened  # type: ignore[method-assign, assignment]
            refused = await behind.raw(f"GET http://{HOST}:{web.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b"hello" in got
    assert b" 403 " in refused.splitlines()[0]
    assert HOST.encode() in refused
    assert [value for name, value in fields(web.heads[0]) if name == "x-api-key"] == [SECRET]
    assert len(web.heads) == 1


# -- rules and values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "source", "prefix"),
    [
        ("Host", "env:X", None), ("Content-Length", "env:X", None), ("Transfer-Encoding", "env:X", None),
        ("Connection", "env:X", None), ("Proxy-Authorization", "env:X", None), ("A B", "env:X", None),
        ("X\r\nY", "env:X", None), ("", "env:X", None), ("X", "X", None), ("X", "env:", None), ("X", "cmd:ls", None),
        ("X", "env:X", "a\r\nb"), ("X", "env:X", "é"),
    ],
)  # fmt: skip
def test_invalid_credential_is_refused(header: str, source: str, prefix: str | None) -> None:
    with pytest.raises(ValueError, match=r"header|from|prefix"):
        parse_credential("api.test", header, source, prefix)


@pytest.mark.parametrize(
    ("header", "value", "prefix", "sent"),
    [
        ("Authorization", "abc", None, "Bearer abc"),
        ("authorization", "Basic dTpw", None, "Basic dTpw"),
        ("Authorization", "abc", "token ", "token abc"),
        ("X-Api-Key", " abc\n", None, "abc"),
    ],
)
def test_header_parsing(header: str, value: str, prefix: str | None, sent: str) -> None:
    rule = parse_credential("api.test", header, "env:X", prefix)
    assert read_credential(rule, {"X": value}).value == sent


def test_a_file_is_read_for_each_use_and_must_be_private(tmp_path: Path) -> None:
    file = tmp_path / "token"
    rule = parse_credential("api.test", "X-Key", f"file:{file}")
    with pytest.raises(InvalidArgument, match=re.escape(str(file))):
        read_credential(rule, {})
    file.touch(mode=0o600)
    for value in ("first", "second"):
        file.write_text(f"{value}\n")
        assert read_credential(rule, {}).value == value
    file.chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        read_credential(rule, {})
    file.chmod(0o600)
    file.write_text("x" * (65 << 10))
    with pytest.raises(InvalidArgument, match="too large"):
        read_credential(rule, {})


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can give a file away")
def test_credential_owned_by_another_user_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("mine")
    os.chown(file, 12345, -1)
    file.chmod(0o600)
    with pytest.raises(InvalidArgument, match=re.escape(str(file))):
        read_credential(parse_credential("api.test", "X-Key", f"file:{file}"), {})


@pytest.mark.parametrize("value", ["", "a\r\nX: y", "a\0b", "é"])
def test_a_value_that_no_header_can_have_is_not_repeated_in_the_refusal(value: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read_credential(parse_credential("api.test", "X-Key", "env:X"), {"X": value})
    assert not value or value not in refusal.value.message


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("api.test", True), ("API.test.", True), ("api.test:443", True), ("api.test:80", False), ("other.test", False),
        ("api.test.evil", False), ("", False), ("api.test:", False), ("[::1]", False), ("a@api.test", False),
    ],
)  # fmt: skip
def test_which_host_headers_are_the_same_host(text: str, same: bool) -> None:
    assert same_host(text, "api.test", 443, 443) is same


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_secret_is_covered_however_it_is_cut(size: int) -> None:
    credential = read_credential(parse_credential("api.test", "X", "env:X"), {"X": "abcabd"})
    text, mask = b"abcabcabd-abcab-abcabdabcabd-abc", SecretMask(credential)
    out = b"".join(mask.feed(text[at : at + size]) for at in range(0, len(text), size)) + mask.end()
    assert out == b"abc******-abcab-************-abc"
