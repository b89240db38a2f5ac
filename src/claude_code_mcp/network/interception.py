"""Certificates for the hosts whose requests the proxy must see, to put a credential in.

To see the requests for a host with a credential, the proxy has a certificate authority of its own. A sandbox is handed
its certificate together with the system's, and trusts hosts as before; hosts
without a credential are never intercepted.

Only who has such a host imports this: cryptography takes a while to load.
"""

import asyncio
import datetime
import os
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..model.network import read_address

_DAYS = 3650
_MOST_HOSTS = 256
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep the certificates that they trust, in one file."""


class RunAuthority:
    """The authority of one run of the server. Its methods but `context` block for a moment."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "claude-code-mcp (this run of the server)")])
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._made: dict[str, ssl.SSLContext] = {}

    @property
    def certificate(self) -> bytes:
        """The certificate of the authority, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def bundle(self) -> bytes:
        """The certificates that the system trusts, and ours."""
        return _system_bundle() + b"\n" + self.certificate

    async def context(self, host: str) -> ssl.SSLContext:
        """With what the proxy speaks to a client that believes it is at this host."""
        context = self._made.get(host)
        if context is None:
            # Two connections at once may each make one for the same host. Both are good; the later one is kept.
            context = await asyncio.to_thread(self._make, host)
            if len(self._made) >= _MOST_HOSTS:
                self._made.clear()
            self._made[host] = context
        return context

    def _make(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        address, now = read_address(host), datetime.datetime.now(datetime.UTC)
        alternative = x509.IPAddress(address) if address is not None else x509.DNSName(host)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=365))
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
    """Loads certificate and key. OpenSSL takes a key from a file only, so there is one for this moment that nobody else
    can open."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor, path = tempfile.mkstemp()  # mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(certificate.public_bytes(serialization.Encoding.PEM) + private)
        context.load_cert_chain(path)
    finally:
        # Also when it cannot be loaded: a private key must not stay on the disk.
        os.unlink(path)


@lru_cache(maxsize=1)
def _system_bundle() -> bytes:
    default = ssl.get_default_verify_paths().cafile
    for path in (default, *_BUNDLES):
        if path is not None and Path(path).is_file():
            return Path(path).read_bytes()
    return b""
