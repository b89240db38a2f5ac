"""The fleet's own certificate authority, and the certificate of its NATS server.

Clients trust this authority alone, which a ticket brings, and expect the name `SERVER_NAME` whatever address they have
connected to: an address behind NAT or a new one needs no new certificate. Functions block on the disk.
"""

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..private_files import private_directory, replace_file

SERVER_NAME: Final = "fleet.claude-code-mcp.internal"
_LIFETIME = datetime.timedelta(days=3650)
_BACKDATED = datetime.timedelta(days=1)
"""The clock of a machine may be behind that of the server."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The files that a TLS server needs, and what its clients need."""

    certificate: Path
    key: Path
    authority: str
    """The certificate of the authority (PEM), which is no secret."""


def server_certificate(directory: Path) -> ServerCertificate:
    """The certificate of the server whose files are in `directory`, made with its authority if there is none.

    The authority's own key is not kept: it signs one certificate, and nobody can make another. Raises OSError.
    """
    private_directory(directory)
    files = ServerCertificate(directory / "server.pem", directory / "server-key.pem", "")
    authority = directory / "authority.pem"
    if not (authority.exists() and files.certificate.exists() and files.key.exists()):
        own, server, key = _made()
        replace_file(files.key, key)
        replace_file(files.certificate, server)
        replace_file(authority, own)  # last: with it everything is there
    return ServerCertificate(files.certificate, files.key, authority.read_text(encoding="ascii"))


def _made() -> tuple[bytes, bytes, bytes]:
    """Certificate of a new authority, certificate of the server, key of the server; each PEM."""
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "claude-code-mcp fleet")])
    own = (
        _builder(name, name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    server = (
        _builder(subject, name, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return own.public_bytes(pem), server.public_bytes(pem), key


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFETIME)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def client_context(authority: str) -> ssl.SSLContext:
    """For a client that trusts this authority and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    return context
