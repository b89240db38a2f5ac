"""Removals of people at a gateway, for machines that were offline at that time.

A gateway records each removal in a bucket before it notifies the online machines. A machine that comes back asks the
keeper whether there are removals that it has not checked, and which of the people with sessions on its disk they
concern. Online machines ask periodically too, in case a notification was lost. The machine ends everything of these
people, as it would have done at once. It stores the number of the last checked removal on its own disk: a person who
was removed and later invited again under the same name keeps everything begun since.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.model.caller import LOCAL
from ...core.state.database import Database
from ...core.state.documents import Documents, JsonObject
from . import names
from .connection import FleetConnection
from .keeper import MAX_REQUESTED, KeeperOwnership, Verb
from .nats_client import KeyNotFoundError, StreamInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotedRemoval:
    """One removal of a person."""

    bucket: str
    """The bucket that records it: numbers of another fleet are meaningless."""
    number: int


class Removals:
    """The bucket, for gateways and keepers. Methods raise NATS errors."""

    def __init__(self, connection: FleetConnection) -> None:
        self._connection = connection

    async def note(self, principal: str) -> NotedRemoval:
        """Records that a person was removed. Stored on return."""
        bucket = await self._connection.jetstream.key_value(names.REMOVALS)
        number = await bucket.put(_key(principal), json.dumps({"principal": principal}).encode())
        return NotedRemoval(str((await self._stream()).created), number)

    async def _stream(self) -> StreamInfo:
        return await self._connection.jetstream.stream_info(f"KV_{names.REMOVALS}")

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """Requests that any keeper answers."""
        return {"removals": self._removed}

    async def _removed(self, _: str, arguments: dict[str, Any]) -> Any:
        """The number of the last removal of each of these principals that was removed. A machine learns nothing about
        other people."""
        asked = [str(principal) for principal in arguments["principals"][:MAX_REQUESTED]]
        # Before the entries: a removal that happens in between has a larger number and is found the next time.
        stream = await self._stream()
        bucket = await self._connection.jetstream.key_value(names.REMOVALS)
        found: dict[str, int] = {}
        for principal in asked:
            try:
                found[principal] = int((await bucket.get(_key(principal))).revision or 0)
            except KeyNotFoundError:
                continue
        return {"bucket": str(stream.created), "last": stream.state.last_seq, "removed": found}


def _key(principal: str) -> str:
    return hashlib.sha256(principal.encode()).hexdigest()


EndCaller = Callable[[str], Awaitable[None]]
"""Ends everything that a principal has on this machine, like a removal does."""


class MachineRemovals:
    """The removals that a machine has carried out."""

    def __init__(
        self,
        keeper: KeeperOwnership,
        database: Database,
        owners: Callable[[], Awaitable[Collection[str]]],
        end: EndCaller,
    ) -> None:
        """`owners` returns the people with sessions on this machine's disk."""
        self._keeper = keeper
        self._done = Documents(database, "fleet_removals")
        self._looked = Documents(database, "fleet_first_removals")
        """By bucket, the last removal checked; at first the last one before this machine joined."""
        self._owners = owners
        self._end = end

    async def ended(self, principal: str, removal: NotedRemoval) -> None:
        """Records that a removal was carried out here. Raises OSError if it cannot be written."""

        def note(known: JsonObject | None) -> JsonObject:
            done = known or {}
            return {**done, removal.bucket: max(removal.number, done.get(removal.bucket, 0))}

        await asyncio.to_thread(self._done.update, principal, note, durable=True)

    async def catch_up(self) -> None:
        """Ends everything here of people who were removed while this machine was offline. Raises ClaudeCodeError if no
        keeper answers, and OSError: the next call does the rest. One small request if there is nothing to do."""
        answer = await self._keeper.ask("removals", principals=[])
        bucket, last = str(answer["bucket"]), int(answer["last"])
        looked = await asyncio.to_thread(self._looked.read, bucket)
        # The first time, this machine has no data of people who were already removed.
        before = last if looked is None else int(looked["number"])
        if looked is not None and before >= last:
            return
        # After the last number was read: later removals have a larger number, and everything that a person began before
        # their removal is already on the disk.
        owners = sorted(name for name in await self._owners() if name != LOCAL)
        for at in range(0, len(owners), MAX_REQUESTED):
            answer = await self._keeper.ask("removals", principals=owners[at : at + MAX_REQUESTED])
            if str(answer["bucket"]) != bucket:
                return  # the bucket of another fleet by now: the next call starts over
            for principal, number in answer["removed"].items():
                await self._catch_up_with(principal, NotedRemoval(bucket, int(number)), before)
        # Last: a machine that dies earlier checks all of them again.
        await asyncio.to_thread(self._looked.update, bucket, lambda _: {"number": last}, durable=True)

    async def _catch_up_with(self, principal: str, removal: NotedRemoval, looked: int) -> None:
        known = await asyncio.to_thread(self._done.read, principal) or {}
        if removal.number <= max(looked, known.get(removal.bucket, 0)):
            return
        log.info("%s was removed while this machine was offline", principal)
        await self._end(principal)
        # Last: a machine that dies earlier repeats this, which changes nothing.
        await self.ended(principal, removal)
