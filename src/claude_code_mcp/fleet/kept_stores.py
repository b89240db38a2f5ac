"""The stores of a fleet for a machine: JetStream by way of the keeper.

A machine's key may use nothing of JetStream (`permissions.py`). It sends the same requests to the keeper, which looks
what they are about, whether the machine holds that session, and passes them on; what JetStream answers goes straight to
the machine. So everything that is written for `JetStreamContext` works with a machine's key, for its own sessions.
"""

import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import PubAck

from . import names
from .connection import FleetConnection
from .ownership import OwnershipBucket
from .permissions import StoreRequest, access_to, refused_headers, store_request

log = logging.getLogger(__name__)

_API, _PUT = "api", "put"
_HOLDER_SECONDS = 2.0
"""How long a holder that was looked up is believed. The fence of each store does not depend on it."""
_MOST_HOLDERS = 100_000
_QUEUE = "keepers"


class KeptJetStream(JetStreamContext):
    """JetStream for a machine. Its own lease it writes itself; all else goes to the keeper."""

    def __init__(self, client: Client, machine_id: str, timeout: float) -> None:
        super().__init__(client, prefix=f"fleet.keeper.{names.token(machine_id)}.{_API}", timeout=timeout)
        self._lease = names.entry(names.MACHINES, machine_id)
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
        if subject != self._lease:
            subject = self._put + subject
        return await super().publish(subject, payload, timeout, stream, headers, msg_ttl)


class StoreKeeper:
    """Passes on what machines ask of JetStream for the sessions that they hold. Any number may run."""

    def __init__(self, connection: FleetConnection, bucket: OwnershipBucket) -> None:
        self._connection = connection
        self._bucket = bucket
        self._holders: dict[tuple[str, str], float] = {}
        """Session and machine → until when it is believed that the machine holds it."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers until the end of the block."""
        # One after the other for each kind: what a machine appends keeps its order.
        kinds = {f"fleet.keeper.*.{kind}.>": self._take for kind in (_PUT, _API)}
        async with self._connection.answering(kinds, _QUEUE):
            yield

    async def _take(self, message: Msg) -> None:
        try:
            await self._pass_on(message)
        except (nats.errors.Error, OSError, TimeoutError) as problem:
            log.warning("a request of a machine was not passed on: %s", problem)
        except Exception:
            log.exception("a request of a machine failed")  # those of the others go on

    async def _pass_on(self, message: Msg) -> None:
        _, _, machine_id, kind, *path = message.subject.split(".")
        inbox = names.inbox(machine_id)
        # NATS checks who may publish, and not where the answer is to go: it must not reach anybody else.
        if not message.reply.startswith(f"{inbox}."):
            log.warning("a request of machine %s wanted its answer elsewhere; it is not answered", machine_id)
            return
        if kind == _PUT:
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
        if len(self._holders) >= _MOST_HOLDERS:
            self._holders.clear()
        self._holders[key] = now + _HOLDER_SECONDS
        return True

    async def _refuse(self, message: Msg, machine_id: str, target: str) -> None:
        log.warning("machine %s was refused %s", machine_id, target[:200])
        description = "not a store of a session that this machine holds"
        await message.respond(json.dumps({"error": {"code": 403, "err_code": 0, "description": description}}).encode())
