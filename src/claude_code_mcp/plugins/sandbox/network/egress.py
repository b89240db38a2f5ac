"""The network access of one sandbox: the files and variables that point its programs to the proxy, and the proxy
itself.

The sandbox's network is only its own loopback. `start_in_sandbox` runs first in it, opens a port there and sends the
listening socket here, through a Unix socket that accepts one connection. It runs before any of the session's programs,
on this server's interpreter, which the sandbox can read. To see requests for hosts with a credential, the proxy has its
own certificate authority (`RunCertificateAuthority`). A sandbox gets its certificate together with the system's, and
trusts hosts as before; hosts without a credential are never intercepted. Imported with the first sandbox that has a
proxy, because cryptography is slow to load.
"""

import asyncio
import contextlib
import datetime
import logging
import os
import socket
import ssl
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ....core.model.network import CERTIFICATES, SOCKET, STARTER, Audit, NetworkRules, read_address
from ....core.private_files import bind_below
from . import start_in_sandbox
from .http_exchange import PIECE
from .proxy import ProxyNotes, SandboxProxy

log = logging.getLogger(__name__)

_DAYS = 3650
_MAX_HOSTS = 256
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems store their trusted certificates in one file."""


class RunCertificateAuthority:
    """The certificate authority of one run of the server. Its methods, except `context`, block briefly."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "claude-code-mcp (this run of the server)")])
        self._certificate = (
            _certificate(name, name, self._key, days=_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._made: dict[str, ssl.SSLContext] = {}

    @property
    def certificate(self) -> bytes:
        """The authority's certificate, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def bundle(self) -> bytes:
        """The system's trusted certificates and ours."""
        return _system_bundle() + b"\n" + self.certificate

    async def context(self, host: str) -> ssl.SSLContext:
        """The context with which the proxy answers a client of this host."""
        context = self._made.get(host)
        if context is None:
            # Two concurrent connections may each create one for the same host. Both are valid; the later one is kept.
            context = await asyncio.to_thread(self._make, host)
            if len(self._made) >= _MAX_HOSTS:
                self._made.clear()
            self._made[host] = context
        return context

    def _make(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        address = read_address(host)
        alternative = x509.IPAddress(address) if address is not None else x509.DNSName(host)
        certificate = (
            _certificate(x509.Name([]), self._certificate.subject, key, days=365)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, certificate, key)
        return context


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Loads certificate and key. OpenSSL reads a key only from a file, so a private temporary file is used."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor, path = tempfile.mkstemp()  # mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(certificate.public_bytes(serialization.Encoding.PEM) + private)
        context.load_cert_chain(path)
    finally:
        # Also if loading fails: a private key must not stay on the disk.
        os.unlink(path)


@lru_cache(maxsize=1)
def _system_bundle() -> bytes:
    default = ssl.get_default_verify_paths().cafile
    for path in (default, *_BUNDLES):
        if path is not None and Path(path).is_file():
            return Path(path).read_bytes()
    return b""


# -- the way out -------------------------------------------------------------------------------------------------------


_TAKEN = b"K"


class EgressProxy:
    """The proxy of one sandboxed process, from `open` to `close`."""

    def __init__(
        self,
        rules: NetworkRules,
        environment: Mapping[str, str],
        authority: RunCertificateAuthority | None,
        audit: Audit,
        who: str,
        session_id: str | None,
    ) -> None:
        self._rules = rules
        self._authority = authority
        context_for = authority.context if authority is not None else None
        notes = ProxyNotes(audit, who, session_id)
        self._owner = notes.owner
        self.proxy = SandboxProxy(rules, environment, context_for, notes)
        self._loop = asyncio.get_running_loop()
        self._listening_socket: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Future[None] | None = None
        self._closed = False

    async def open(self, directory: Path) -> list[tuple[str, str]]:
        """Starts waiting for the sandbox. Returns the files to mount, as pairs of a path here and one there. Raises
        OSError."""
        listening_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening_socket.setblocking(False)
            bind_below(listening_socket, directory, "network.sock")
            listening_socket.listen(1)
            visible = [(str(directory / "network.sock"), SOCKET), (str(Path(start_in_sandbox.__file__)), STARTER)]
            if self._rules.credentials:
                assert self._authority is not None
                bundle = directory / "network-certificates.pem"
                content = await asyncio.to_thread(self._authority.bundle)
                await asyncio.to_thread(bundle.write_bytes, content)
                visible.append((str(bundle), CERTIFICATES))
        except BaseException:
            listening_socket.close()
            raise
        self._listening_socket = listening_socket
        self._loop.add_reader(listening_socket.fileno(), self._arrived)
        return visible

    def close(self) -> None:
        """Closes every connection and accepts no more."""
        # First: `_listen` may be about to finish and must not report a port as open that is being closed.
        self._closed = True
        self._close_listening_socket()
        self._close_channel()
        if self._opening is not None:
            self._opening.cancel()
        if self._server is not None:
            self._server.close()
        self.proxy.close()

    # -- the port of the sandbox ----------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """Accepts the sandbox's connection and no second one."""
        assert self._listening_socket is not None
        try:
            channel, _ = self._listening_socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("the proxy of %s cannot be opened: %s", self._owner, error)
            self._close_listening_socket()
            return
        # Immediately: commands of the session reach the same path, and only the first connection precedes them.
        self._close_listening_socket()
        channel.setblocking(False)
        self._channel = channel
        self._loop.add_reader(channel.fileno(), self._received)

    def _received(self) -> None:
        assert self._channel is not None
        try:
            _, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            descriptors = []
        self._loop.remove_reader(self._channel.fileno())
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if len(listeners) == 1 and _is_listening(listeners[0]):
            self._opening = asyncio.ensure_future(self._listen(listeners[0]))
        else:
            for listener in listeners:
                listener.close()
            self._close_channel()

    async def _listen(self, listener: socket.socket) -> None:
        try:
            listener.setblocking(False)
            self._server = await asyncio.start_server(self.proxy.connected, sock=listener, limit=PIECE)
        except OSError as error:
            log.warning("the proxy of %s cannot be opened: %s", self._owner, error)
            listener.close()
        else:
            if self._channel is not None and not self._closed:
                with contextlib.suppress(OSError):  # the sandbox is gone
                    self._channel.send(_TAKEN)
        self._close_channel()

    def _close_listening_socket(self) -> None:
        listening_socket, self._listening_socket = self._listening_socket, None
        if listening_socket is not None:
            self._loop.remove_reader(listening_socket.fileno())
            listening_socket.close()

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._loop.remove_reader(channel.fileno())
            channel.close()


def _is_listening(listener: socket.socket) -> bool:
    is_stream = listener.family == socket.AF_INET and listener.type == socket.SOCK_STREAM
    return is_stream and bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
