"""Web Push: messages that only one browser can read (RFC 8291), and the key that identifies this server (RFC 8292). The
push service only sees when a message is sent and how long it is. Encryption needs the extra `web` (http_ece)."""

import base64
import binascii
import hmac
import importlib.util
import time
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from filelock import FileLock

from ...core.errors import InvalidArgument
from ...core.installation import extra_command
from ...core.model.text import base64url
from ...core.private_files import private_directory, read_regular, replace_file

_TOKEN_SECONDS = 12 * 3600
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of that curve."""
_POINT_LENGTH = 65
_AUTH_LENGTH = 16


def not_installed() -> str:
    """The error for a server without the extra `web`."""
    return f"Web Push needs the extra `web` on the server: {extra_command('web')}"


def is_installed() -> bool:
    """Whether messages can be encrypted."""
    return importlib.util.find_spec("http_ece") is not None


def decode64(text: str) -> bytes:
    """Decodes base64url, with or without padding. Raises ValueError."""
    try:
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeError):
        raise ValueError("not base64url") from None


def check_keys(public_key: str, auth: str) -> None:
    """Raises InvalidArgument if no message can be encrypted with a subscription's keys."""
    try:
        point = decode64(public_key)
        if len(point) != _POINT_LENGTH or len(decode64(auth)) != _AUTH_LENGTH:
            raise ValueError("wrong length")
        ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidArgument("subscription: its keys cannot be used.", field="subscription.keys") from None


def encrypt(message: bytes, public_key: str, auth: str) -> bytes:
    """A message that only the browser with these keys can read, in the encoding aes128gcm. Raises ValueError for
    invalid keys; ImportError if http_ece is not installed."""
    import http_ece  # type: ignore[import-untyped]  # noqa: PLC0415 - optional

    return bytes(
        http_ece.encrypt(
            message,
            private_key=ec.generate_private_key(_CURVE),  # a new key for each message
            dh=decode64(public_key),
            auth_secret=decode64(auth),
            version="aes128gcm",
        )
    )


class ServerKey:
    """The key that identifies this server to push services. It is stored, because subscriptions are bound to it."""

    def __init__(self, path: Path) -> None:
        """Reads or creates the key. Blocks on the disk. Raises OSError if it cannot be read or created; an existing one
        is never replaced."""
        private_directory(path.parent)
        with FileLock(path.with_suffix(".lock"), mode=0o600):  # concurrent creators share the first key
            self._key = _read_key(path) or _new_key(path)

    @property
    def public(self) -> str:
        """The public key for browser subscriptions."""
        encoding, form = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        return base64url(self._key.public_key().public_bytes(encoding, form))

    def authorization(self, endpoint: str, contact: str) -> str:
        """The header that identifies the sender to a push service; `contact` is where its operator can reach us."""
        import jwt  # noqa: PLC0415 - seldom needed

        parts = urlsplit(endpoint)
        claims = {"aud": f"{parts.scheme}://{parts.netloc}", "exp": int(time.time()) + _TOKEN_SECONDS, "sub": contact}
        return f"vapid t={jwt.encode(claims, self._key, 'ES256')}, k={self.public}"


class DerivedKey(ServerKey):
    """A key derived from a secret: equal wherever the secret is known, and not stored."""

    def __init__(self, secret: bytes) -> None:
        digest = hmac.digest(secret, b"claude-code-mcp: web push", "sha384")  # longer than the order: no bias
        self._key = ec.derive_private_key(int.from_bytes(digest, "big") % (_ORDER - 1) + 1, _CURVE)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """None if there is no file. Raises OSError if it cannot be used: replacing it would end every subscription bound to
    it."""
    try:
        content = read_regular(path, 8 << 10)
    except FileNotFoundError:
        return None
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: the key has a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise OSError(
            f"{path} is damaged or holds another kind of key. Restore the previous file, or remove it; then every "
            "browser has to subscribe again."
        )
    return key


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(_CURVE)
    replace_file(
        path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return key
