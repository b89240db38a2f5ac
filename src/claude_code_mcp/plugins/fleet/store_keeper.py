"""The stores of a fleet for a machine: JetStream by way of the keeper, which checks every request."""

import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from . import names
from .connection import FleetConnection
from .nats_client import Client, JetStreamContext, Msg, NatsError, PubAck
from .nats_permissions import StoreRequest, access_to, refused_headers, store_request
from .ownership import OwnershipBucket

log = logging.getLogger(__name__)


_API, _PUT, _REPORT = "api", "put", "report"
_HOLDER_SECONDS = 2.0
"""How long a looked-up holder is cached. The fence of each store does not depend on it."""
_MAX_HOLDERS = 100_000
_QUEUE = "keepers"


class KeptJetStream(JetStreamContext):
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
        # One after the other for each kind: what a machine appends keeps its order.
        kinds = {f"fleet.keeper.*.{kind}.>": self._take for kind in (_PUT, _API, _REPORT)}
        async with self._connection.answering(kinds, _QUEUE):
            yield

    async def _take(self, message: Msg) -> None:
        # As the subscription has it; NATS checks that nobody but the machine writes to a subject with its id.
        _, _, machine_id, kind, *path = message.subject.split(".")
        try:
            await self._pass_on(message, machine_id, kind, path)
        except (NatsError, OSError, TimeoutError) as problem:
            log.warning("%s of machine %s was not passed on: %s", kind, machine_id, problem)
        except Exception:
            log.exception("%s of machine %s failed", kind, machine_id)  # those of the others go on

    async def _pass_on(self, message: Msg, machine_id: str, kind: str, path: list[str]) -> None:
        inbox = names.inbox(machine_id)
        # NATS checks who may publish, and not where the answer is to go: it must not reach anybody else.
        if not message.reply.startswith(f"{inbox}."):
            log.warning("ignored a request of machine %s: its reply subject is not allowed", machine_id)
            return
        request: StoreRequest | None
        if kind == _REPORT:
            # Of the machine that asks, which NATS lets nobody else be: there is nothing to look up.
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
