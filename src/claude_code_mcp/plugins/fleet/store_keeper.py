"""The stores of a fleet for a machine: JetStream through the keeper, which checks every request.

NATS grants permissions by subject. A machine's key has few permanent permissions (`machine_permissions` of
`tickets.py`): it serves its own connections and asks the keeper. It may write to nothing that JetStream stores, not
even its own report: the sender of a message names the subject of the acknowledgment, which may be a subject of a
store, and there the acknowledgment would replace data of another writer. A machine may not use JetStream's API either:
a consumer delivers to any subject, whatever permissions exist there, and its filter may be wider than the subject of
the request shows. NATS cannot grant permissions for the sessions that a machine holds, because they are not a fixed set
of subjects.

A machine therefore sends its requests for JetStream to the keeper (`KeeperJetStream`). The keeper determines what a
request concerns (`access_to`, `store_request`), checks that the machine holds that session, and forwards the request
(`StoreKeeper`). JetStream answers the machine directly. All code for `JetStreamContext` works with a machine's key, for
its own sessions.
"""

import base64
import binascii
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from . import names
from .connection import FleetConnection
from .nats_client import Client, JetStreamContext, Msg, NatsError, PubAck
from .ownership import OwnershipBucket

log = logging.getLogger(__name__)


_API, _PUT, _REPORT = "api", "put", "report"
_HOLDER_SECONDS = 2.0
"""How long a looked-up holder is cached. The fence of each store does not depend on it."""
_MAX_HOLDERS = 100_000
_QUEUE = "keepers"


class KeeperJetStream(JetStreamContext):
    """JetStream for a machine: everything goes through the keeper; its lease has a separate path, so that it does not
    wait behind a tree that is being stored."""

    def __init__(self, client: Client, machine_id: str, timeout: float, *, reports_itself: bool = False) -> None:
        """`reports_itself`: the machine writes its lease itself, so that it survives without a keeper; its key may then
        write there."""
        super().__init__(client, prefix=f"fleet.keeper.{names.token(machine_id)}.{_API}", timeout=timeout)
        self._lease = names.entry(names.MACHINES, machine_id)
        self._report = self._lease if reports_itself else f"fleet.keeper.{machine_id}.{_REPORT}.lease"
        self._put = f"fleet.keeper.{machine_id}.{_PUT}."

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | None = None,
        stream: str | None = None,
        headers: dict[str, Any] | None = None,
        msg_ttl: float | None = None,
    ) -> PubAck:
        """As JetStreamContext.publish."""
        subject = self._report if subject == self._lease else self._put + subject
        return await super().publish(subject, payload, timeout, stream, headers, msg_ttl)


# -- subjects of a request --------------------------------------------------------------------------------------------

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
            access = SubjectAccess(None, writable=False)  # machines that know a session's id may know its holder
        case ["$O", names.TREES, "C", _]:
            access = SubjectAccess(None)  # the chunks of an object, whose random name is in its metadata
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
    """Serialized again from the checked data, because two parsers can read different things from one JSON text."""


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
    """The subjects that a consumer would read. Raises ValueError if it delivers elsewhere or has unknown fields."""
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
    # The name of a consumer is random, and no permitted request lists the names.
    "CONSUMER.INFO": (frozenset(), _nothing),
    "CONSUMER.DELETE": (frozenset(), _nothing),
    "CONSUMER.MSG.NEXT": (frozenset({"batch", "expires", "no_wait", "max_bytes", "idle_heartbeat"}), _nothing),
}
"""Request → the keys its body may have, and the subjects it concerns."""


# -- the keeper's side -------------------------------------------------------------------------------------------------


class StoreKeeper:
    """Forwards JetStream requests of machines for sessions that they hold. Any number may run."""

    def __init__(self, connection: FleetConnection, bucket: OwnershipBucket) -> None:
        self._connection = connection
        self._bucket = bucket
        self._holders: dict[tuple[str, str], float] = {}
        """Session and machine → until when the machine is cached as the holder."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers until the end of the block."""
        # One at a time for each kind: a machine's appends keep their order.
        kinds = {f"fleet.keeper.*.{kind}.>": self._take for kind in (_PUT, _API, _REPORT)}
        async with self._connection.answering(kinds, _QUEUE):
            yield

    async def _take(self, message: Msg) -> None:
        # Matches the subscription. NATS ensures that only the machine writes to a subject with its id.
        _, _, machine_id, kind, *path = message.subject.split(".")
        try:
            await self._pass_on(message, machine_id, kind, path)
        except (NatsError, OSError, TimeoutError) as problem:
            log.warning("%s of machine %s was not passed on: %s", kind, machine_id, problem)
        except Exception:
            log.exception("%s of machine %s failed", kind, machine_id)  # requests of other machines continue

    async def _pass_on(self, message: Msg, machine_id: str, kind: str, path: list[str]) -> None:
        inbox = names.inbox(machine_id)
        # NATS checks who may publish but not the reply subject: the answer must reach only the requesting machine.
        if not message.reply.startswith(f"{inbox}."):
            log.warning("ignored a request of machine %s: its reply subject is not allowed", machine_id)
            return
        request: StoreRequest | None
        if kind == _REPORT:
            # The subject belongs to the requesting machine, which NATS guarantees: no lookup is needed.
            target, request = names.entry(names.MACHINES, machine_id), StoreRequest([], True, message.data)
        elif kind == _PUT:
            target = ".".join(path)
            request = None if refused_headers(message.headers) else StoreRequest([target], True, message.data)
        else:
            target = f"$JS.API.{'.'.join(path)}"
            request = store_request(path, message.data, inbox)
        if request is None or not await self._may(machine_id, request):
            await self._refuse(message, machine_id, target)
            return
        await self._connection.client.publish(target, request.body, reply=message.reply, headers=message.headers)

    async def _may(self, machine_id: str, request: StoreRequest) -> bool:
        for subject in request.subjects:
            access = access_to(subject)
            if access is None or (request.writes and not access.writable):
                return False
            if access.session_id is not None and not await self._holds(machine_id, access.session_id):
                return False
        return True

    async def _holds(self, machine_id: str, session_id: str) -> bool:
        key, now = (session_id, machine_id), time.monotonic()
        if self._holders.get(key, 0.0) > now:
            return True
        found = await self._bucket.read(session_id)
        if found is None or found.machine != machine_id:
            self._holders.pop(key, None)
            return False
        if len(self._holders) >= _MAX_HOLDERS:
            self._holders.clear()
        self._holders[key] = now + _HOLDER_SECONDS
        return True

    async def _refuse(self, message: Msg, machine_id: str, target: str) -> None:
        log.warning("machine %s was refused %s", machine_id, target[:200])
        description = "not a store of a session that this machine holds"
        await message.respond(json.dumps({"error": {"code": 403, "err_code": 0, "description": description}}).encode())
