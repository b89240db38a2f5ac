"""A notice as each kind of receiver takes it: the address, the headers and the body of one request.

- `webhook`: JSON, signed as the specification Standard Webhooks has it, so that its libraries verify it;
- `ntfy`: JSON as the ntfy server takes it at its root, with the topic in it;
- `webpush`: encrypted JSON for the browser.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ... import json_text
from ...errors import InvalidArgument
from ...model.text import clip
from .news import Notice
from .preferences import Receiver
from .web_push import LONGEST, ServerKey, encrypt

_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix that the specification has for secrets
_CONTACT = "https://pypi.org/project/claude-code-mcp/"
_URGENT = frozenset({"question", "stalled"})
_TAGS = {"question": ["question"], "ended": ["checkered_flag"], "stalled": ["hourglass"], "test": ["wave"]}


class PushRequest(NamedTuple):
    url: str
    headers: Mapping[str, str]
    body: bytes


def request_for(receiver: Receiver, notice: Notice, base: str, key: ServerKey, delivery_id: str) -> PushRequest:
    """The request that tells a receiver; `base` is the address of the page. The same notice has the same id each time
    that it is tried."""
    match receiver.kind:
        case "webhook":
            return _webhook(receiver, notice, base, delivery_id)
        case "ntfy":
            return _ntfy(receiver, notice, base)
        case "webpush":
            return _web_push(receiver, notice, base, key)


def new_secret(random: bytes) -> str:
    """A secret for signatures as the libraries take it."""
    return _SECRET_PREFIX + base64.b64encode(random).decode()


def signature(secret: str, delivery_id: str, timestamp: str, body: bytes) -> str:
    """What the header `webhook-signature` must be."""
    key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX))
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _webhook(receiver: Receiver, notice: Notice, base: str, delivery_id: str) -> PushRequest:
    body, timestamp = json_text.encode(notice.fields(base)), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "claude-code-mcp",
        "webhook-id": delivery_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(receiver.secret, delivery_id, timestamp, body),
    }
    return PushRequest(receiver.url, headers, body)


def check_topic(url: str) -> str:
    """The topic in an address such as `https://ntfy.sh/topic`; InvalidArgument if there is none."""
    topic = unquote(urlsplit(url).path.strip("/"))
    if not topic or "/" in topic or not topic.replace("-", "").replace("_", "").isalnum() or len(topic) > 64:
        raise InvalidArgument("url: must end with a topic, such as https://ntfy.sh/my-topic.", field="url")
    return topic


def _ntfy(receiver: Receiver, notice: Notice, base: str) -> PushRequest:
    parts = urlsplit(receiver.url)
    message = {
        "topic": check_topic(receiver.url),
        "title": notice.title,
        "message": notice.body,
        "priority": 4 if notice.kind in _URGENT else 3,
        "tags": _TAGS.get(notice.kind, []),
        "click": base + notice.path,
    }
    headers = {"Content-Type": "application/json", "User-Agent": "claude-code-mcp"}
    if receiver.token:
        headers["Authorization"] = f"Bearer {receiver.token}"
    return PushRequest(parts._replace(path="/", query="", fragment="").geturl(), headers, json_text.encode(message))


def _web_push(receiver: Receiver, notice: Notice, base: str, key: ServerKey) -> PushRequest:
    fields = notice.fields(base)
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
        "Authorization": key.authorization(receiver.url, _CONTACT),
    }
    return PushRequest(receiver.url, headers, encrypt(message, receiver.public_key, receiver.auth))
