"""The requests that deliver a notification, one kind for each kind of receiver:

- `webhook`: JSON, signed according to Standard Webhooks, so that its libraries can verify it;
- `ntfy`: JSON for the root of an ntfy server, with the topic in it;
- `webpush`: encrypted JSON for the browser (`web_push.py`).
"""

import base64
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ...core import json_text
from ...core.errors import InvalidArgument
from ...core.model.text import clip, one_line, visible
from . import web_push
from .preferences import Notice, Receiver
from .sending import SendFailed
from .web_push import ServerKey

MAX_MESSAGE_BYTES = 3000
"""Bytes that every push service accepts, including the overhead of encryption."""
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
    """The HTTP request that delivers a notification. `base` is the address of the page. Each attempt has the same id.
    Raises SendFailed for a kind of a later version."""
    kind = KINDS.get(receiver.kind)
    if kind is None:
        raise SendFailed(f"this version does not support receivers of the kind {one_line(visible(receiver.kind), 40)}")
    return kind.request(receiver, Attempt(notice, base, key, delivery_id))


class Attempt(NamedTuple):
    """One attempt to deliver a notification."""

    notice: Notice
    base: str
    """The address of the page."""
    key: ServerKey
    delivery_id: str


class ReceiverDetails(NamedTuple):
    """What a person entered for a receiver, or a browser's subscription. The address is validated."""

    url: str
    token: str = ""
    public_key: str = ""
    auth: str = ""


def signature(secret: str, delivery_id: str, timestamp: str, body: bytes) -> str:
    """The required value of the header `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX))
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _webhook_fields(_: ReceiverDetails) -> dict[str, str]:
    """A signing secret in the libraries' format."""
    return {"secret": _SECRET_PREFIX + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()}


def _webhook(receiver: Receiver, attempt: Attempt) -> PushRequest:
    body, timestamp = json_text.encode(attempt.notice.fields(attempt.base)), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "webhook-id": attempt.delivery_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(receiver.secret, attempt.delivery_id, timestamp, body),
    }
    return PushRequest(receiver.url, headers, body)


def check_topic(url: str) -> str:
    """The topic in an address such as `https://ntfy.sh/topic`. Raises InvalidArgument if there is none."""
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
    headers = {"Content-Type": "application/json"}
    if receiver.token:
        headers["Authorization"] = f"Bearer {receiver.token}"
    return PushRequest(parts._replace(path="/", query="", fragment="").geturl(), headers, json_text.encode(message))


def _web_push_fields(details: ReceiverDetails) -> dict[str, str]:
    if not web_push.is_installed():
        raise InvalidArgument(web_push.not_installed(), field="kind")
    web_push.check_keys(details.public_key, details.auth)
    return {"public_key": details.public_key, "auth": details.auth}


def _web_push(receiver: Receiver, attempt: Attempt) -> PushRequest:
    if not web_push.is_installed():
        raise SendFailed(web_push.not_installed())
    notice, fields = attempt.notice, attempt.notice.fields(attempt.base)
    message = json_text.encode(fields)
    while len(message) > MAX_MESSAGE_BYTES and len(fields["body"]) > 1:  # one character may take six bytes
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
    return PushRequest(receiver.url, headers, web_push.encrypt(message, receiver.public_key, receiver.auth))


@dataclass(frozen=True, slots=True)
class ReceiverKind:
    """The specifics of one kind of receiver."""

    fields: Callable[[ReceiverDetails], dict[str, str]]
    """The stored fields in addition to its address. Raises InvalidArgument for missing or invalid fields."""
    request: Callable[[Receiver, Attempt], PushRequest]
    by_browser: bool = False
    """Whether a browser registers itself with a subscription; otherwise a person enters the address."""


KINDS: Mapping[str, ReceiverKind] = {
    "ntfy": ReceiverKind(_ntfy_fields, _ntfy),
    "webhook": ReceiverKind(_webhook_fields, _webhook),
    "webpush": ReceiverKind(_web_push_fields, _web_push, by_browser=True),
}
"""All kinds, in the order in which the page offers those that a person enters."""
