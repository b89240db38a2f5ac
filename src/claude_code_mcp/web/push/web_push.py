"""Web Push: messages for a browser that is closed, encrypted for it alone (RFC 8291), signed as ours (RFC 8292).

The push service in between learns when a message is sent and how long it is, and nothing else.
"""

import base64
import binascii
import os
import time
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidKey, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from filelock import FileLock

from ... import json_text
from ...errors import InvalidArgument
from ...private_files import private_directory, read_regular, replace_file

LONGEST = 3000
"""Bytes of a message that every push service takes, with what the encryption adds."""
_RECORD_SIZE = 4096
_TOKEN_SECONDS = 12 * 3600
_CURVE = ec.SECP256R1()
_POINT_LENGTH = 65
_AUTH_LENGTH = 16


def encode64(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode64(text: str) -> bytes:
    """The bytes of base64url, with or without padding. ValueError if it is none."""
    try:
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeError):
        raise ValueError("is no base64url") from None


def check_keys(public_key: str, auth: str) -> None:
    """InvalidArgument for keys of a subscription that no message could be encrypted with."""
    try:
        _point(decode64(public_key))
        if len(decode64(auth)) != _AUTH_LENGTH:
            raise ValueError("wrong length")
    except ValueError:
        raise InvalidArgument("subscription: its keys cannot be used.", field="subscription.keys") from None


def _point(data: bytes) -> ec.EllipticCurvePublicKey:
    """ValueError if these bytes are no point of the curve."""
    if len(data) != _POINT_LENGTH:
        raise ValueError("no point")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, data)
    except (InvalidKey, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from None


def encrypt(message: bytes, public_key: str, auth: str) -> bytes:
    """A message as only the browser with these keys can read it, in the coding aes128gcm."""
    theirs, secret, salt = decode64(public_key), decode64(auth), os.urandom(16)
    ours = ec.generate_private_key(_CURVE)
    own_point = _bytes_of(ours.public_key())
    shared = ours.exchange(ec.ECDH(), _point(theirs))
    key_material = _derive(shared, secret, b"WebPush: info\0" + theirs + own_point, 32)
    key = _derive(key_material, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derive(key_material, salt, b"Content-Encoding: nonce\0", 12)
    sealed = AESGCM(key).encrypt(nonce, message + b"\x02", None)  # the delimiter of the last record
    return salt + _RECORD_SIZE.to_bytes(4, "big") + bytes([len(own_point)]) + own_point + sealed


def _derive(material: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(material)


def _bytes_of(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


class ServerKey:
    """The key by which push services know this server. Subscriptions are bound to it, so it is kept."""

    def __init__(self, path: Path) -> None:
        """Reads the key, or makes one. Blocks on the disk; raises OSError."""
        private_directory(path.parent)
        with FileLock(path.with_suffix(".lock"), mode=0o600):  # of two who make one, the second takes the first's
            self._key = _read_key(path) or _new_key(path)

    @property
    def public(self) -> str:
        """What a browser subscribes with."""
        return encode64(_bytes_of(self._key.public_key()))

    def authorization(self, endpoint: str, contact: str) -> str:
        """The header that tells a push service who sends; `contact` is where its operator finds us."""
        parts = urlsplit(endpoint)
        claims = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(time.time()) + _TOKEN_SECONDS,
            "sub": contact,
        }
        head = encode64(json_text.encode({"typ": "JWT", "alg": "ES256"}))
        unsigned = f"{head}.{encode64(json_text.encode(claims))}"
        first, second = decode_dss_signature(self._key.sign(unsigned.encode(), ec.ECDSA(hashes.SHA256())))
        signature = encode64(first.to_bytes(32, "big") + second.to_bytes(32, "big"))
        return f"vapid t={unsigned}.{signature}, k={self.public}"


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(read_regular(path, 8 << 10), None)
    except (OSError, ValueError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(_CURVE)
    replace_file(
        path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return key
