"""A receiver of pushes on loopback: keeps what it is sent and answers as it is told."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.support.local_http import Handler, site
from tests.support.waiting import HANG_SECONDS


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class PushReceiver:
    """Answers with the statuses in order, the last one for good."""

    statuses: list[int] = field(default_factory=lambda: [200])
    received: "Queue[Received]" = field(default_factory=Queue)
    url: str = ""

    def next(self) -> Received:
        return self.received.get(timeout=HANG_SECONDS)

    def answer(self) -> int:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


@contextmanager
def receiving(*statuses: int) -> Iterator[PushReceiver]:
    receiver = PushReceiver(list(statuses) or [200])

    class PushService(Handler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            # Before the answer: as soon as it is sent, another thread may take the next delivery.
            receiver.received.put(Received(self.path, headers, self.body()))
            self.answer(receiver.answer())

    with site(PushService) as receiver.url:
        yield receiver


def decode64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encode64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class BrowserKeys:
    """The side of a browser in Web Push, by RFC 8291 and RFC 8188."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.auth = b"sixteen bytes ok"

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )

    def subscription(self, endpoint: str) -> dict[str, Any]:
        """As `PushSubscription.toJSON()`."""
        keys = {"p256dh": encode64(self.public), "auth": encode64(self.auth)}
        return {"endpoint": endpoint, "expirationTime": None, "keys": keys}

    def decrypt(self, body: bytes) -> Any:
        """The message of this server."""
        return json.loads(self.plaintext(body))

    def plaintext(self, body: bytes) -> bytes:
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        sender, sealed = body[21 : 21 + length], body[21 + length :]
        assert len(sealed) <= size
        shared = self.private.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender))
        material = _derive(shared, self.auth, b"WebPush: info\0" + self.public + sender, 32)
        key, nonce = (
            _derive(material, salt, b"Content-Encoding: aes128gcm\0", 16),
            _derive(material, salt, b"Content-Encoding: nonce\0", 12),
        )
        padded = AESGCM(key).decrypt(nonce, sealed, None)
        text, delimiter, _ = padded.rpartition(b"\x02")
        assert delimiter
        return text


def _derive(material: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(material)


def verified_claims(authorization: str, public_key: str) -> Any:
    """The claims of a VAPID header, whose signature must be that of the key."""
    scheme, _, fields = authorization.partition(" ")
    assert scheme == "vapid"
    parts = dict(part.strip().split("=", 1) for part in fields.split(","))
    assert parts["k"] == public_key
    head, claims, signature = parts["t"].split(".")
    raw = decode64(signature)
    encoded = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode64(public_key))
    key.verify(encoded, f"{head}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))
    assert json.loads(decode64(head))["alg"] == "ES256"
    return json.loads(decode64(claims))
