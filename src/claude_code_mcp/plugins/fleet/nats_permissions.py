"""What each kind of key may do at NATS, and what a request for JetStream is about.

NATS grants subjects. What a machine may always do is granted here, and is little: serve its own connections, and ask
the keeper. It may write to nothing that JetStream stores, not even its own report: the acknowledgement goes to any
subject that the sender names, also to one of a store, and takes the place there of what somebody else has written. Nor
may it use JetStream's API: a consumer delivers to any subject, whoever may
publish there, and its filter may be wider than the subject that asks for it shows. What depends on the sessions that a
machine holds cannot be granted by NATS at all, since they are no fixed set of subjects.

So a machine sends its requests for JetStream to the keeper (`store_keeper.py`), which looks what they are about
(`access_to`, `store_request`), whether the machine holds that session, and passes them on; what JetStream answers goes
straight to the machine. Everything that is written for `JetStreamContext` works with a machine's key, for its own
sessions.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from . import names

RESPONSES: Final = {"max": 1, "expires": "1m"}
"""A key may send one answer to each request that it receives."""


def machine_permissions(machine_id: str) -> dict[str, Any]:
    """The permissions of a machine's key."""
    return {
        "publish": {
            "allow": [
                f"fleet.gateway.{names.token(machine_id)}.>",
                f"fleet.keeper.{names.token(machine_id)}.>",
            ]
        },
        "subscribe": {"allow": [f"{names.inbox(machine_id)}.>", f"fleet.machine.{names.token(machine_id)}.>"]},
        "allow_responses": RESPONSES,
    }


def ticket_permissions(ticket_id: str) -> dict[str, Any]:
    """The permissions of a ticket's key, which can only ask for a machine key."""
    return {
        "publish": {"allow": [names.joining(ticket_id)]},
        "subscribe": {"allow": [f"{names.inbox(ticket_id)}.>"]},
    }


_STREAMS = frozenset({names.TRANSCRIPTS, f"KV_{names.RECORDS}", f"KV_{names.SESSIONS}", f"OBJ_{names.TREES}"})
_LEADING_SESSION = re.compile(r"([A-Za-z0-9_-]{1,64})(?:[./].*)?", re.DOTALL)
_PLAIN_TOKEN = re.compile(r"[A-Za-z0-9_=-]+")


@dataclass(frozen=True, slots=True)
class SubjectAccess:
    """What a subject of the stores belongs to."""

    session_id: str | None
    """The session that the machine must hold; None for entries found by an unguessable name."""
    writable: bool = True


def access_to(subject: str) -> SubjectAccess | None:
    """What is required to read or write a subject of the stores; None if no machine may, or if it has wildcards."""
    tokens = subject.split(".")
    if not all(_PLAIN_TOKEN.fullmatch(token.removeprefix("$")) for token in tokens):
        return None
    access = None
    match tokens:
        case ["fleet", "transcript", session_id] | ["$KV", names.RECORDS, session_id, *_]:
            access = SubjectAccess(session_id)
        case ["$KV", names.SESSIONS, _]:
            access = SubjectAccess(None, writable=False)  # who holds a session is no secret from who knows its id
        case ["$O", names.TREES, "C", _]:
            access = SubjectAccess(None)  # the chunks of an object, whose random name is in its description
        case ["$O", names.TREES, "M", name]:
            session = _session_in(name)
            access = None if session is None else SubjectAccess(session)
    return access


def _session_in(name: str) -> str | None:
    """The session at the beginning of an object's name, which NATS base64-encodes."""
    try:
        found = _LEADING_SESSION.fullmatch(base64.urlsafe_b64decode(name).decode())
    except (binascii.Error, ValueError):
        return None
    return None if found is None else found[1]


def refused_headers(headers: dict[str, str] | None) -> bool:
    """Whether a message does more than store data: a roll-up removes everything else from a stream."""
    return any(name.lower() == "nats-rollup" and value != "sub" for name, value in (headers or {}).items())


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request to JetStream's API that a machine may make if it may use these subjects."""

    subjects: list[str]
    writes: bool
    body: bytes
    """Serialized again from what was checked, because two parsers can read different things from one JSON text."""


def store_request(path: list[str], body: bytes, inbox: str) -> StoreRequest | None:
    """A machine's request; None if no machine may make it. `path` follows `$JS.API` in its subject; `inbox` is the only
    permitted delivery subject."""
    try:
        length = 3 if path[1] == "MSG" else 2
        verb, stream, rest = ".".join(path[:length]), path[length : length + 1], path[length + 1 :]
        keys, subjects_in = _REQUESTS[verb]
        request = json.loads(body) if body.strip() else {}
        if stream != [] if verb == "STREAM.NAMES" else not _STREAMS.issuperset(stream) or not stream:
            return None
        if not isinstance(request, dict) or not set(request) <= keys:
            return None
        subjects = subjects_in(request, rest, inbox)
        if not all(isinstance(subject, str) for subject in subjects):
            return None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return StoreRequest(subjects, verb == "STREAM.PURGE", json.dumps(request).encode() if request else b"")


_CONSUMER_KEYS = frozenset(
    {
        *("name", "description", "metadata", "inactive_threshold", "mem_storage", "num_replicas"),
        *("filter_subject", "filter_subjects", "deliver_policy", "opt_start_seq", "opt_start_time", "replay_policy"),
        *("deliver_subject", "flow_control", "idle_heartbeat", "headers_only"),
        *("ack_policy", "ack_wait", "max_ack_pending", "max_deliver", "max_waiting", "max_batch", "max_expires"),
    }
)


def _consumed(request: dict[str, Any], rest: list[str], inbox: str) -> list[str]:
    """What a consumer would read. Raises ValueError for one that delivers elsewhere or has unknown fields."""
    config = request["config"]
    if not set(config) <= _CONSUMER_KEYS:
        raise ValueError("cannot be parsed")
    deliver = config.get("deliver_subject")
    if deliver is not None and not deliver.startswith(f"{inbox}."):
        raise ValueError("delivers to another subject")
    return list(config.get("filter_subjects") or [config["filter_subject"]])


def _nothing(request: dict[str, Any], rest: list[str], inbox: str) -> list[str]:
    return []


_REQUESTS: Final[dict[str, tuple[frozenset[str], Callable[[dict[str, Any], list[str], str], list[str]]]]] = {
    "STREAM.INFO": (frozenset(), _nothing),
    "STREAM.NAMES": (frozenset({"subject"}), lambda request, rest, inbox: [request["subject"]]),
    "STREAM.MSG.GET": (frozenset({"last_by_subj"}), lambda request, rest, inbox: [request["last_by_subj"]]),
    "DIRECT.GET": (frozenset(), lambda request, rest, inbox: [".".join(rest)]),
    "STREAM.PURGE": (frozenset({"filter", "keep"}), lambda request, rest, inbox: [request["filter"]]),
    "CONSUMER.CREATE": (frozenset({"stream_name", "config", "action"}), _consumed),
    # The name of a consumer is random, and no request lists the names.
    "CONSUMER.INFO": (frozenset(), _nothing),
    "CONSUMER.DELETE": (frozenset(), _nothing),
    "CONSUMER.MSG.NEXT": (frozenset({"batch", "expires", "no_wait", "max_bytes", "idle_heartbeat"}), _nothing),
}
"""Request → the keys its body may have, and the subjects it concerns."""
