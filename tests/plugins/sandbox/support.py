"""Servers on loopback that say what they got, certificates for them, and a proxy before them."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from claude_code_mcp.core.model.events import AuditEvent
from claude_code_mcp.core.model.network import CredentialRule, NetworkRules, parse_host_rule
from claude_code_mcp.plugins.sandbox.network.egress import RunCertificateAuthority
from claude_code_mcp.plugins.sandbox.network.proxy import ProxyNotes, SandboxProxy


@dataclass
class Served:
    """A server, and the heads of the requests that it got."""

    port: int = 0
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    echoes: bool = False
    """Whether it sends the head of each request back."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                self.heads.append(head)
                length = next((int(v) for k, v in fields(head) if k == "content-length"), 0)
                body = await reader.readexactly(length)
                if self.echoes:
                    sent = head.encode() + body
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Echo: %s\r\n\r\n" % (len(sent), _line(head))
                    )
                    for at in range(0, len(sent), 7):  # in pieces, so that a secret comes in several
                        writer.write(sent[at : at + 7])
                        await writer.drain()
                else:
                    writer.write(self.answer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


def _line(head: str) -> bytes:
    return next((value.encode() for key, value in fields(head) if key == "authorization"), b"none")


def fields(head: str) -> list[tuple[str, str]]:
    """The headers of a head, names in lower case."""
    pairs = (line.partition(":") for line in head.split("\r\n")[1:] if line)
    return [(name.lower(), value.strip()) for name, _, value in pairs]


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None, **facts: Any) -> AsyncIterator[Served]:
    served = Served(**facts)
    server = await asyncio.start_server(served.connected, "127.0.0.1", 0, ssl=context)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served


@dataclass
class Behind:
    """A proxy, and what it wrote to the audit trail."""

    port: int
    proxy: SandboxProxy
    audited: list[AuditEvent]

    async def raw(self, sent: bytes) -> bytes:
        """All that the proxy answers to these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        try:
            async with asyncio.timeout(40):
                return await reader.read()
        except ConnectionResetError:
            return b""  # it was closed before all was read
        finally:
            writer.close()


@asynccontextmanager
async def proxying(
    hosts: Sequence[str],
    credentials: Sequence[CredentialRule] = (),
    environment: dict[str, str] | None = None,
    names: dict[str, list[str]] | None = None,
    authority: RunCertificateAuthority | None = None,
    trust: ssl.SSLContext | None = None,
    *,
    real_lookups: bool = False,
) -> AsyncIterator[Behind]:
    """`names` are the addresses of hosts; others are not known. With `real_lookups` the machine is asked instead."""
    audited: list[AuditEvent] = []

    async def lookup(host: str, _: int) -> list[str]:
        known = {"localhost": ["127.0.0.1"], **(names or {})}
        if host not in known:
            raise OSError("Name or service not known")
        return known[host]

    rules = NetworkRules(tuple(map(parse_host_rule, hosts)), tuple(credentials))
    more = {} if trust is None else {"trust": lambda: trust}
    notes = ProxyNotes(audited.append, "ann", "session-1")
    proxy = SandboxProxy(
        rules,
        environment or {},
        authority.context if authority else None,
        notes,
        lookup=None if real_lookups else lookup,
        **more,
    )
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0, limit=1 << 16)
    try:
        yield Behind(server.sockets[0].getsockname()[1], proxy, audited)
    finally:
        proxy.close()
        server.close()


class Certificates:
    """An authority of the test, and certificates that it signs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the test")])
        made = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self.file = directory / "authority.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))

    def server(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        made = self._builder(x509.Name([]), key).add_extension(names, True).sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._directory / f"{host}.pem"
        file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context
