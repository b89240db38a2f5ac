"""A notice as each kind of receiver takes it, encrypted for browsers, and sent to a checked address.

The kinds are
- `webhook`: JSON, signed as the specification Standard Webhooks has it, so that its libraries verify it;
- `ntfy`: JSON as the ntfy server takes it at its root, with the topic in it;
- `webpush`: encrypted JSON for the browser: the push service in between learns when a message is sent and how long it
  is, and nothing else.

The name is looked up once and the connection goes to that very address, so that it cannot lead elsewhere between the
check and the act. Lookups have threads of their own: a name server that is dead keeps nobody else waiting.
"""

import asyncio
import base64
import binascii
import functools
import hashlib
import hmac
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from cryptography.exceptions import InvalidKey, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from filelock import FileLock

from ...core import json_text
from ...core.errors import InvalidArgument
from ...core.model.network import is_public, read_address
from ...core.model.text import clip, one_line, visible
from ...core.private_files import private_directory, read_regular, replace_file
from ..console.guard import base64url
from .preferences import Notice, Receiver

LONGEST = 3000
"""Bytes of a message that every push service takes, with what the encryption adds."""
_RECORD_SIZE = 4096
_TOKEN_SECONDS = 12 * 3600
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of that curve."""
_POINT_LENGTH = 65
_AUTH_LENGTH = 16


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
        """Reads the key, or makes one if there is none. Blocks on the disk. OSError if it cannot be read or made; one
        that is there stays as it is."""
        private_directory(path.parent)
        with FileLock(path.with_suffix(".lock"), mode=0o600):  # of two who make one, the second takes the first's
            self._key = _read_key(path) or _new_key(path)

    @property
    def public(self) -> str:
        """What a browser subscribes with."""
        return base64url(_bytes_of(self._key.public_key()))

    def authorization(self, endpoint: str, contact: str) -> str:
        """The header by which a push service knows the sender; `contact` is where its operator finds us."""
        parts = urlsplit(endpoint)
        claims = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(time.time()) + _TOKEN_SECONDS,
            "sub": contact,
        }
        head = base64url(json_text.encode({"typ": "JWT", "alg": "ES256"}))
        unsigned = f"{head}.{base64url(json_text.encode(claims))}"
        first, second = decode_dss_signature(self._key.sign(unsigned.encode(), ec.ECDSA(hashes.SHA256())))
        signature = base64url(first.to_bytes(32, "big") + second.to_bytes(32, "big"))
        return f"vapid t={unsigned}.{signature}, k={self.public}"


class DerivedKey(ServerKey):
    """One that follows from a secret: the same wherever that is known, and kept nowhere."""

    def __init__(self, secret: bytes) -> None:
        digest = hmac.digest(secret, b"claude-code-mcp: web push", "sha384")  # longer than the order: no bias
        self._key = ec.derive_private_key(int.from_bytes(digest, "big") % (_ORDER - 1) + 1, _CURVE)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """None if there is none. OSError if there is one that cannot be used: another one in its place would end every
    subscription that is bound to it."""
    try:
        content = read_regular(path, 8 << 10)
    except FileNotFoundError:
        return None
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise OSError(
            f"{path} is damaged or holds another kind of key. Put back the one from before; or remove the file, and "
            "every browser has to subscribe again."
        )
    return key


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(_CURVE)
    replace_file(
        path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return key


# -- receivers --------------------------------------------------------------------------------------------------------


_SECRET_BYTES = 32
_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix that the specification has for secrets
_CONTACT = "https://pypi.org/project/claude-code-mcp/"
_URGENT = frozenset({"question", "stalled"})
_TAGS = {
    "question": ["question"],
    "ended": ["checkered_flag"],
    "stalled": ["hourglass"],
    "budget": ["moneybag"],
    "test": ["wave"],
}


class PushRequest(NamedTuple):
    url: str
    headers: Mapping[str, str]
    body: bytes


def request_for(receiver: Receiver, notice: Notice, base: str, key: ServerKey, delivery_id: str) -> PushRequest:
    """The HTTP request that delivers a notice to a receiver. `base` is the address of the page. Each try of the same
    notice has the same id. SendFailed for a kind of a later version, which this one cannot send to."""
    kind = KINDS.get(receiver.kind)
    if kind is None:
        raise SendFailed(f"this version has no receivers of the kind {one_line(visible(receiver.kind), 40)}")
    return kind.request(receiver, Attempt(notice, base, key, delivery_id))


class Attempt(NamedTuple):
    """One try to deliver a notice."""

    notice: Notice
    base: str
    """The address of the page."""
    key: ServerKey
    delivery_id: str


class ReceiverDetails(NamedTuple):
    """What a person has entered of a receiver, or their browser of its subscription. The address is checked."""

    url: str
    token: str = ""
    public_key: str = ""
    auth: str = ""


def signature(secret: str, delivery_id: str, timestamp: str, body: bytes) -> str:
    """What the header `webhook-signature` must be."""
    key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX))
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _webhook_fields(_: ReceiverDetails) -> dict[str, str]:
    """A secret for signatures as the libraries take it."""
    return {"secret": _SECRET_PREFIX + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()}


def _webhook(receiver: Receiver, attempt: Attempt) -> PushRequest:
    body, timestamp = json_text.encode(attempt.notice.fields(attempt.base)), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "claude-code-mcp",
        "webhook-id": attempt.delivery_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(receiver.secret, attempt.delivery_id, timestamp, body),
    }
    return PushRequest(receiver.url, headers, body)


def check_topic(url: str) -> str:
    """The topic in an address such as `https://ntfy.sh/topic`; InvalidArgument if there is none."""
    topic = unquote(urlsplit(url).path.strip("/"))
    if not topic or "/" in topic or not topic.replace("-", "").replace("_", "").isalnum() or len(topic) > 64:
        raise InvalidArgument("url: must end with a topic, such as https://ntfy.sh/my-topic.", field="url")
    return topic


def _ntfy_fields(details: ReceiverDetails) -> dict[str, str]:
    check_topic(details.url)
    if not details.token.isascii() or not details.token.isprintable():
        raise InvalidArgument("token: must consist of visible ASCII characters", field="token")
    return {"token": details.token}


def _ntfy(receiver: Receiver, attempt: Attempt) -> PushRequest:
    parts, notice = urlsplit(receiver.url), attempt.notice
    message = {
        "topic": check_topic(receiver.url),
        "title": notice.title,
        "message": notice.body,
        "priority": 4 if notice.kind in _URGENT else 3,
        "tags": _TAGS.get(notice.kind, []),
        "click": attempt.base + notice.path,
    }
    headers = {"Content-Type": "application/json", "User-Agent": "claude-code-mcp"}
    if receiver.token:
        headers["Authorization"] = f"Bearer {receiver.token}"
    return PushRequest(parts._replace(path="/", query="", fragment="").geturl(), headers, json_text.encode(message))


def _web_push_fields(details: ReceiverDetails) -> dict[str, str]:
    check_keys(details.public_key, details.auth)
    return {"public_key": details.public_key, "auth": details.auth}


def _web_push(receiver: Receiver, attempt: Attempt) -> PushRequest:
    notice, fields = attempt.notice, attempt.notice.fields(attempt.base)
    message = json_text.encode(fields)
    while len(message) > LONGEST and len(fields["body"]) > 1:  # one character may take six bytes
        fields["body"] = clip(fields["body"], max(1, len(fields["body"]) // 2))
        message = json_text.encode(fields)
    headers = {
        "Content-Encoding": "aes128gcm",
        "Content-Type": "application/octet-stream",
        "TTL": str(max(0, int(notice.expires_at - time.time()))),
        "Urgency": "high" if notice.kind in _URGENT else "normal",
        "Topic": notice.tag,
        "Authorization": attempt.key.authorization(receiver.url, _CONTACT),
    }
    return PushRequest(receiver.url, headers, encrypt(message, receiver.public_key, receiver.auth))


@dataclass(frozen=True, slots=True)
class ReceiverKind:
    """What is particular to one kind of receiver."""

    fields: Callable[[ReceiverDetails], dict[str, str]]
    """What is kept of it beside its address. Raises InvalidArgument where something is missing or does not fit."""
    request: Callable[[Receiver, Attempt], PushRequest]
    by_browser: bool = False
    """Whether a browser registers itself with a subscription. The address of any other a person enters."""


KINDS: Mapping[str, ReceiverKind] = {
    "ntfy": ReceiverKind(_ntfy_fields, _ntfy),
    "webhook": ReceiverKind(_webhook_fields, _webhook),
    "webpush": ReceiverKind(_web_push_fields, _web_push, by_browser=True),
}
"""All kinds, in the order in which the page offers those that a person enters."""


# -- sending ----------------------------------------------------------------------------------------------------------


_TIMEOUT = 15.0
_LONGEST_HEAD = 16 << 10
_LONGEST_URL = 2000
_lookups = ThreadPoolExecutor(2, "push-lookup")


class SendFailed(Exception):
    """The request did not get an answer; the text says why."""


@dataclass(frozen=True, slots=True)
class PushReply:
    """The answer of a receiver."""

    status: int
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def check_url(url: str, *, private: bool) -> SplitResult:
    """The parts of a receiver's address. InvalidArgument if it is none or, without `private`, is not encrypted."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidArgument("url: must be an http or https address.", field="url")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("url: must have no name and password in it; give a token.", field="url")
    if not private and parts.scheme != "https":
        raise InvalidArgument("url: must be an https address.", field="url")
    return parts


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, private: bool, timeout: float = _TIMEOUT
) -> PushReply:
    """Sends a request. SendFailed if no answer comes in time, or if the address is not public and `private` is not
    allowed; InvalidArgument if the address is none at all."""
    parts = check_url(url, private=private)
    try:
        async with asyncio.timeout(timeout):
            address = await looked_up(parts, private)
            return await _exchange(parts, address, headers, body)
    except TimeoutError:
        raise SendFailed("it did not answer in time") from None
    except (OSError, ssl.SSLError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
        raise SendFailed(str(error) or type(error).__name__) from None


async def looked_up(parts: SplitResult, private: bool) -> str:
    """The address that the name of a host leads to, to be connected to as it is. SendFailed if any that it leads to is
    not public, unless `private` ones are allowed; OSError if it leads nowhere."""
    host, port = parts.hostname or "", _port(parts)
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    addresses = [str(entry[4][0]) for entry in found]
    read = [read_address(text) for text in addresses]
    # All of them: a private address among public ones may be an attempt to reach what is behind this server.
    if not private and not all(address is not None and is_public(address) for address in read):
        raise SendFailed("its address is not public")
    # The very address that was checked: a second lookup of the name could lead elsewhere.
    return addresses[0]


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


@functools.cache
def _trust() -> ssl.SSLContext:
    """What the certificates of receivers are checked by, read once. Blocks on the disk."""
    return ssl.create_default_context()


async def _exchange(parts: SplitResult, address: str, headers: Mapping[str, str], body: bytes) -> PushReply:
    # In a thread: the first time it reads every certificate that this machine trusts.
    context = await asyncio.to_thread(_trust) if parts.scheme == "https" else None
    name = parts.hostname if context is not None else None
    reader, writer = await asyncio.open_connection(
        address, _port(parts), ssl=context, server_hostname=name, limit=_LONGEST_HEAD
    )
    try:
        writer.write(_request(parts, headers, body))
        await writer.drain()
        return _reply(await reader.readuntil(b"\r\n\r\n"))
    finally:
        writer.close()


def _request(parts: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    lines = [f"POST {target} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    # Part of the address and the headers comes from people: a line break would begin a header of its own.
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header has a line break in it")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def _reply(head: bytes) -> PushReply:
    first, *rest = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdigit():
        raise ValueError("it does not speak HTTP")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    wait = fields.get("retry-after", "")
    return PushReply(int(status[:3]), float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 8 else None)
