"""One NATS connection of this process: opened once, kept across interruptions, with the fleet's buckets and streams,
created if missing."""

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskStatus

from ...core.errors import InvalidArgument, UpstreamUnavailable
from ...core.state.message_keys import KEY_SECONDS
from . import names
from .nats_client import (
    BadRequestError,
    Client,
    DiscardPolicy,
    JetStreamContext,
    KeyValue,
    KeyValueConfig,
    Msg,
    NatsError,
    NoServersError,
    ObjectStoreConfig,
    StorageType,
    StreamConfig,
    cancellation_passes,
)
from .settings import MIN_LEASE_MS

log = logging.getLogger(__name__)

MIN_LEASE_SECONDS = MIN_LEASE_MS / 1000
"""Seconds without a report after which a machine is gone and its leases end, in a fleet that sets no other length."""
MAX_REPORT = 64 << 10
"""Maximum size of a machine's report, in bytes."""
_REQUEST_SECONDS = 5.0
_CREATE_SECONDS = 30.0
"""A cluster takes seconds to create a replicated stream, and a server whose disk is busy as well."""
_CONNECT_SECONDS = 5
_REFUSALS = 3
"""How many consecutive refusals of a key are ignored: a server that is reloading its keys refuses valid ones too."""
_ATTEMPTS = 5
"""Attempts to open the first connection, with growing pauses: a server that admits many machines reloads its keys
constantly and closes connections that are being opened."""
_RETRY_SECONDS = 0.2
_PROBE_SECONDS = 1.0
_SILENT_SECONDS = 1.5
"""Seconds after which a process that ends no longer waits for an unresponsive server."""
_STREAM_DIFFERS = 10058
"""JetStream's error for a stream with this name and another configuration."""


class FleetUnreachable(UpstreamUnavailable):
    """The fleet's server does not answer or rejects the key."""


class PlainText(InvalidArgument):
    """The connection would be unencrypted and leave this machine."""


class _KnownNoise(logging.Filter):
    """Drops asyncio's messages about peers that close a connection which nats-py opened with TLS first."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "returning true from eof_received()" not in str(record.msg)


_KNOWN_NOISE = _KnownNoise()


def require_tls(url: str, credentials: Mapping[str, Any]) -> None:
    """Raises PlainText unless every address is `tls://` with its own context, or on loopback."""
    for address in url.split(","):
        parts = urlsplit(address if "://" in address else f"nats://{address}")
        if parts.hostname in ("localhost", "127.0.0.1", "::1"):
            continue
        if parts.scheme not in ("tls", "wss") or not credentials.get("tls"):
            raise PlainText(f"{parts.hostname} is not this machine: use tls://{parts.netloc}.")


@dataclass(slots=True)
class _Probe:
    """The last ping of a connection."""

    alone: anyio.Lock = field(default_factory=anyio.Lock)
    at: float | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class FleetConnection:
    """The client and its JetStream."""

    client: Client
    jetstream: JetStreamContext
    when_reconnected: list[Callable[[], None]] = field(default_factory=list)
    """Called after each interruption: earlier observations may be outdated."""
    refused: anyio.Event = field(default_factory=anyio.Event)
    """Set when the server rejected the key of an open connection: it was revoked."""
    _probe: _Probe = field(default_factory=_Probe)

    @contextlib.asynccontextmanager
    async def answering(
        self, callbacks: Mapping[str, Callable[[Msg], Awaitable[None]]], queue: str = ""
    ) -> AsyncIterator[None]:
        """Answers requests on these subjects until the end of the block, which begins when the server knows about
        it."""
        subscriptions = [
            await self.client.subscribe(subject, queue=queue, cb=answer) for subject, answer in callbacks.items()
        ]
        await self.flushed()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                with contextlib.suppress(NatsError):  # the connection is interrupted or closed: no more requests arrive
                    for subscription in subscriptions:
                        await subscription.unsubscribe()

    def without_requests(self) -> contextlib.AbstractAsyncContextManager[None]:
        """As `OpenRequests.paused`: around a change of the server's keys."""
        return self.client.requests.paused()

    async def flushed(self) -> None:
        """Returns when the server has read everything that was sent before, subscriptions and messages."""
        # Twice: nats-py writes the ping of a flush to the socket at once, but writes earlier messages in the next turn
        # of the loop. The first answer shows that all of them are written, the second that the server has read them.
        await self.client.flush()
        await self.client.flush()

    async def answers(self) -> bool:
        """Whether the server answers a ping. Calls within a second share one ping."""
        async with self._probe.alone:
            if self._probe.at is None or anyio.current_time() > self._probe.at + _PROBE_SECONDS:
                try:
                    self._probe.answered = self.client.is_connected
                    if self._probe.answered:
                        await self.client.flush(_SILENT_SECONDS)
                except (NatsError, OSError):
                    self._probe.answered = False
                self._probe.at = anyio.current_time()
            return self._probe.answered

    async def until_silent(self) -> None:
        """Returns when the server stops answering."""
        while self.client.is_connected:
            try:
                await self.client.flush(_SILENT_SECONDS)
            except (NatsError, OSError):
                return
            await anyio.sleep(_RETRY_SECONDS)

    async def close(self) -> None:
        """Closes the connection; delivers published messages first if the server answers."""
        await self.client.drain()

    async def abandon(self) -> None:
        """Closes the connection at once, in any state."""
        await self.client.close()


async def connect(url: str, **credentials: Any) -> FleetConnection:
    """Connects and keeps reconnecting for as long as the process lives. `credentials` are passed to `nats.connect`.
    Raises FleetUnreachable if the first connection fails, and PlainText for an unencrypted address beyond this
    machine."""
    require_tls(url, credentials)
    logging.getLogger("asyncio").addFilter(_KNOWN_NOISE)  # adding it again has no effect
    when_reconnected: list[Callable[[], None]] = []
    refused = anyio.Event()
    refusals = 0

    async def note_error(error: Exception) -> None:  # otherwise each failed attempt is logged with a traceback
        nonlocal refusals
        if "authorization violation" in str(error).lower():
            refusals += 1
            if refusals >= _REFUSALS:
                refused.set()
        log.debug("nats: %s", error)

    async def note_interruption() -> None:
        if not client.is_closed:
            log.warning("the connection to the fleet was lost")

    async def note_reconnection() -> None:
        nonlocal refusals
        refusals = 0
        log.info("the connection to the fleet is restored")
        for call in when_reconnected:
            call()

    servers = url.split(",")
    options: dict[str, Any] = {"reconnect_time_wait": _RETRY_SECONDS, "max_reconnect_attempts": 1, **credentials}
    problem: Exception | None = None
    for attempt in range(len(servers) * _ATTEMPTS):  # each attempt uses another server
        if attempt:
            await anyio.sleep(_RETRY_SECONDS * 2 ** ((attempt - 1) // len(servers)))
        client = Client()
        try:
            await client.connect(
                servers,
                error_cb=note_error,
                disconnected_cb=note_interruption,
                reconnected_cb=note_reconnection,
                allow_reconnect=False,
                connect_timeout=_CONNECT_SECONDS,
                **options,
            )
        except (NatsError, OSError, TimeoutError) as failed:
            problem = failed
            if isinstance(failed, NoServersError) and attempt + 1 >= len(servers):
                break  # no server is reachable: each was tried more than once
            continue
        # Set only now: with these options, a first connection that can never succeed would be retried forever.
        client.options.update(allow_reconnect=True, max_reconnect_attempts=-1)
        return FleetConnection(client, client.jetstream(timeout=_REQUEST_SECONDS), when_reconnected, refused)
    if refused.is_set():
        raise FleetUnreachable(f"The fleet at {_without_user(url)} rejects this key: it was revoked or never admitted.")
    raise FleetUnreachable(f"The fleet at {_without_user(url)} cannot be reached: {problem or type(problem).__name__}.")


def _without_user(url: str) -> str:
    """The address without a password."""
    return ",".join(re.sub(r"//[^/@]*@", "//", address) for address in url.split(","))


async def entries_of(bucket: KeyValue) -> list[KeyValue.Entry]:
    """All entries of a bucket now, without deletions. Raises NATS errors."""
    found: list[KeyValue.Entry] = []
    watcher: Any = await bucket.watchall(ignore_deletes=True)
    try:
        with cancellation_passes():
            # Each with a limit: after an interruption the end of the entries never comes.
            while (entry := await watcher.updates(timeout=_REQUEST_SECONDS)) is not None:
                found.append(entry)
    finally:
        with anyio.CancelScope(shield=True), contextlib.suppress(NatsError):
            await watcher.stop()
    return found


async def follow_bucket(
    connection: FleetConnection,
    bucket: str,
    take: Callable[[KeyValue.Entry], None],
    opened: Callable[[KeyValue], Awaitable[None]] | None = None,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Calls `take` with every entry of a bucket and with each change (including deletions), until cancelled. It has
    started when all entries are known. Reads all entries again after an interruption; awaits `opened` before, each
    time. Entries on which `take` fails are logged and skipped."""
    reconnected, known = anyio.Event(), False

    def note_reconnection() -> None:
        # A restarted server has lost its bucket watchers.
        nonlocal reconnected
        reconnected.set()
        reconnected = anyio.Event()

    async def read(watcher: Any) -> None:
        nonlocal known
        async for entry in watcher:
            if entry is not None:
                try:
                    take(entry)
                except Exception:
                    # The entry may be a machine's claim: a bad claim of one machine must not hide the entries of the
                    # others.
                    log.exception("entry %s of the bucket %s cannot be parsed", entry.key, bucket)
            elif not known:
                known = True
                task_status.started()

    connection.when_reconnected.append(note_reconnection)
    try:
        while True:
            interrupted = reconnected  # before the bucket is requested, so that an interruption meanwhile is not missed
            try:
                found = await connection.jetstream.key_value(bucket)
                if opened is not None:
                    await opened(found)
                watcher: Any = await found.watchall()
            except (NatsError, OSError, TimeoutError) as problem:
                log.warning("cannot watch the bucket %s now: %s", bucket, problem)
                await anyio.sleep(_RETRY_SECONDS)
                continue
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(read, watcher)
                    await interrupted.wait()
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True), contextlib.suppress(NatsError):
                    await watcher.stop()  # otherwise it is subscribed again after each interruption
    finally:
        connection.when_reconnected.remove(note_reconnection)


async def read_lease_seconds(machines: KeyValue) -> float:
    """The length of the fleet's leases, which its bucket of machines keeps as the time to live of the entries. Raises
    NATS errors."""
    return (await machines.status()).ttl or MIN_LEASE_SECONDS


async def create_stores(connection: FleetConnection, replicas: int = 1, lease_seconds: float | None = None) -> None:
    """Creates the fleet's missing buckets and streams. Existing ones stay unchanged, except for the length of the
    leases if another one is given."""
    js = connection.client.jetstream(timeout=_CREATE_SECONDS)
    await _create_leases(js, replicas, lease_seconds)
    for bucket in (names.SESSIONS, names.RECORDS, names.MEMBERS, names.PUSH, names.REMOVALS):
        await js.create_key_value(KeyValueConfig(bucket=bucket, history=1, replicas=replicas))
    await js.create_key_value(KeyValueConfig(bucket=names.KEYS, ttl=KEY_SECONDS, history=1, replicas=replicas))
    await js.create_object_store(names.TREES, config=ObjectStoreConfig(replicas=replicas))
    await js.add_stream(
        StreamConfig(
            name=names.TRANSCRIPTS, subjects=["fleet.transcript.>"], storage=StorageType.FILE, num_replicas=replicas
        )
    )


async def _create_leases(js: JetStreamContext, replicas: int, wanted: float | None) -> None:
    """Creates the bucket of machines, or gives it another length of leases. A machine must never believe that its lease
    is longer than it is at NATS. Therefore a length is shortened only while no machine has a lease: machines ask for
    the length after they have taken one (`leases.MachineLease`)."""
    # The bucket is configured as nats-py configures one, but without roll-ups: with them, a header on any machine's
    # report would delete the reports of all other machines. This also rules out markers for expired entries, so
    # `machines.py` tracks expiry itself.
    leases = StreamConfig(
        name=f"KV_{names.MACHINES}",
        subjects=[f"$KV.{names.MACHINES}.>"],
        max_msgs_per_subject=1,
        max_age=wanted or MIN_LEASE_SECONDS,
        max_msg_size=MAX_REPORT,
        discard=DiscardPolicy.NEW,
        deny_delete=True,
        allow_rollup_hdrs=False,
        num_replicas=replicas,
    )
    try:
        await js.add_stream(leases)
        return
    except BadRequestError as problem:
        if problem.err_code != _STREAM_DIFFERS:
            raise
    machines = await js.key_value(names.MACHINES)
    stored = await read_lease_seconds(machines)
    length = wanted or max(stored, MIN_LEASE_SECONDS)
    if length >= stored or not await entries_of(machines):
        await js.update_stream(leases.evolve(max_age=length))
        if length >= stored or not await entries_of(machines):
            return
        # A machine took its lease between the check and the change, and may count with the longer one.
        await js.update_stream(leases.evolve(max_age=stored))
    log.warning(
        "the fleet's leases keep their length of %g s because machines are online; %g s take effect when `fleet up` "
        "starts while no machine has a lease",
        stored,
        length,
    )
