"""`web --lan`: the console on this machine's address in the local network, over TLS.

The command accepts TLS connections and passes their bytes to the console's port on loopback. The certificate is
self-signed. It is kept, so that a phone has to accept it once.
"""

import asyncio
import contextlib
import datetime
import hashlib
import ipaddress
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ...core.errors import InvalidArgument
from ...core.private_files import private_directory, replace_file

_DAYS = 397
"""Phones refuse certificates that are valid for longer."""
_RENEW_DAYS = 30
_MAX_CONNECTIONS_OF_ONE_ADDRESS = 32
_MAX_CONNECTIONS = 256
_CHUNK = 64 << 10
_HANDSHAKE_SECONDS = 10.0


def lan_address(wanted: str) -> str:
    """The address to listen on: the wanted one if this machine has it, or the address of the default route.

    Raises InvalidArgument if there is no default route, or if the address is not private.
    """
    host = wanted or _address_of_default_route()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise InvalidArgument(f"--lan takes an IP address of this machine, not {host!r}.") from None
    if address.is_loopback or address.is_unspecified:
        raise InvalidArgument(f"A phone cannot reach {host}. Pass an address of this machine in the local network.")
    if not (address.is_private or address.is_link_local):
        raise InvalidArgument(
            f"{host} is a public address, and --lan is for the local network. For access from the internet put a TLS "
            "proxy in front of the console (docs/web.md) or use --tunnel."
        )
    return host


def _address_of_default_route() -> str:
    # Connecting a UDP socket sends nothing; it only chooses the route.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            raise InvalidArgument(
                "This machine has no default route. Pass its address in the local network: --lan ADDRESS."
            ) from None


def certificate(directory: Path, host: str) -> tuple[Path, str]:
    """The file with the key and the certificate for an address, and the certificate's SHA-256 fingerprint.

    Makes both if the file is missing or damaged, or if the certificate expires soon. Blocks on the disk; OSError.
    """
    file = private_directory(directory) / f"lan-{host.replace(':', '-')}.pem"
    with contextlib.suppress(OSError, ValueError):
        fingerprint, expires = _read(file.read_bytes())
        if expires > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=_RENEW_DAYS):
            return file, fingerprint
    replace_file(file, _make(host))
    return file, _read(file.read_bytes())[0]


def _read(pem: bytes) -> tuple[str, datetime.datetime]:
    """The fingerprint of the certificate in a file, and when it expires. ValueError if it cannot be parsed."""
    from cryptography import x509  # noqa: PLC0415 - takes a while
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    found = x509.load_pem_x509_certificate(pem)
    digest = hashlib.sha256(found.public_bytes(Encoding.DER)).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2)), found.not_valid_after_utc


def _make(host: str) -> bytes:
    """A new key and a self-signed certificate for the address, as PEM."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"claude-code-mcp on {host}")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)  # the phone's clock may be behind
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + made.public_bytes(serialization.Encoding.PEM)


@asynccontextmanager
async def serve_lan(host: str, port: int, pem: Path) -> AsyncIterator[str]:
    """Serves the console that listens on this port of 127.0.0.1 and yields the address. The port there is the same if
    it is free, so that the phone's bookmark stays valid. Raises InvalidArgument if the machine cannot listen there."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    relay = _Relay(port, context)
    try:
        server = await _listen(relay, host, port)
    except OSError as error:
        raise InvalidArgument(f"Cannot listen on {host}: {error.strerror or error}.") from None
    bound = server.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    try:
        yield f"https://{name}:{bound}"
    finally:
        server.close()
        await relay.close()


async def _listen(relay: "_Relay", host: str, port: int) -> asyncio.Server:
    for wanted in (port, 0):
        try:
            return await asyncio.start_server(relay.accept, host, wanted)
        except OSError:
            if not wanted:
                raise
    raise AssertionError


class _Relay:
    """The open connections, from before their TLS handshake on. Each peer has its own share of them: a stranger cannot
    use up the shares of others."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port = port
        self._context = context
        self._closed = False
        self._open: Counter[str] = Counter()
        self._writers: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Ends all connections."""
        self._closed = True
        tasks = list(self._writers.values())
        for writer, task in self._writers.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # No await until the handshake begins: the first bytes of the other side must not arrive before.
        address = writer.get_extra_info("peername")  # None if it has left already
        peer = address[0] if address is not None else ""
        is_full = self._open[peer] >= _MAX_CONNECTIONS_OF_ONE_ADDRESS or len(self._writers) >= _MAX_CONNECTIONS
        if self._closed or address is None or is_full:
            writer.transport.abort()
            return
        self._open[peer] += 1
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        self._writers[writer] = task
        try:
            await writer.start_tls(self._context, ssl_handshake_timeout=_HANDSHAKE_SECONDS)
            await self._pass_on(peer, reader, writer)
        except* (OSError, _Closed):
            pass
        finally:
            writer.close()  # after the rest is sent
            del self._writers[writer]
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    async def _pass_on(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copies both directions until one side closes. Raises OSError, or a group with OSError or _Closed."""
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=_source(peer))
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, inner_writer))
                both.create_task(_copy(inner_reader, writer))
        finally:
            inner_writer.transport.abort()


class _Closed(Exception):
    """One side has closed the connection, which ends both directions."""


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # No time limit: the console closes connections that are idle, and its event streams send something regularly.
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    raise _Closed


def _source(peer: str) -> tuple[str, int] | None:
    """The loopback address from which the console sees this peer: it limits connections and failed sign-ins by address.
    Only Linux has more than one."""
    if sys.platform != "linux":
        return None
    digest = hashlib.sha256(peer.encode()).digest()
    return f"127.{digest[0] % 254 + 1}.{digest[1]}.{digest[2] % 254 + 1}", 0
