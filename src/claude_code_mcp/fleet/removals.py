"""People who were removed at a gateway, for machines that were away then.

A gateway notes each removal in a bucket before it tells the machines that are there. A machine that comes back asks the
keeper which of the people with sessions on its disk were removed, and ends what it has of theirs, as it would have done
at once. What it has ended it remembers on its own disk, by the number of the removal: whoever was removed, and invited
again under the same name, keeps what they have begun since.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nats.js.api import StreamInfo
from nats.js.errors import KeyNotFoundError

from ..model.options import LOCAL
from ..state.database import Database
from ..state.documents import Documents, JsonObject
from . import names
from .connection import FleetConnection
from .ownership import MOST_ASKED, KeptOwnership, Verb

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotedRemoval:
    """One removal of a person."""

    bucket: str
    """In which it is noted: numbers of another fleet mean nothing."""
    number: int


class Removals:
    """The bucket, for gateways and keepers. Methods raise what NATS raises."""

    def __init__(self, connection: FleetConnection) -> None:
        self._connection = connection

    async def note(self, principal: str) -> NotedRemoval:
        """A person was removed. It is stored when this returns."""
        bucket = await self._connection.jetstream.key_value(names.REMOVALS)
        number = await bucket.put(_key(principal), json.dumps({"principal": principal}).encode())
        return NotedRemoval(str((await self._stream()).created), number)

    async def _stream(self) -> StreamInfo:
        return await self._connection.jetstream.stream_info(f"KV_{names.REMOVALS}")

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """What any keeper answers."""
        return {"removals": self._removed}

    async def _removed(self, _: str, arguments: dict[str, Any]) -> Any:
        """Of these principals, the number of the last removal of each that was removed. A machine learns nothing of
        people whom it does not name."""
        asked = [str(principal) for principal in arguments["principals"][:MOST_ASKED]]
        # Before the entries: a removal that comes in between has a larger number, and is found the next time.
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
"""Ends what a principal has on this machine, as their removal does."""


class MachineRemovals:
    """What a machine has made of removals."""

    def __init__(
        self,
        keeper: KeptOwnership,
        database: Database,
        owners: Callable[[], Awaitable[Collection[str]]],
        end: EndCaller,
    ) -> None:
        """`owners` says who has sessions on this machine's disk."""
        self._keeper = keeper
        self._done = Documents(database, "fleet_removals")
        self._first = Documents(database, "fleet_first_removals")
        self._owners = owners
        self._end = end

    async def ended(self, principal: str, removal: NotedRemoval) -> None:
        """A removal was done here. OSError if that cannot be written."""

        def note(known: JsonObject | None) -> JsonObject:
            done = known or {}
            return {**done, removal.bucket: max(removal.number, done.get(removal.bucket, 0))}

        await asyncio.to_thread(self._done.update, principal, note, durable=True)

    async def catch_up(self) -> None:
        """Ends what people have here who were removed while this machine was away. Raises ClaudeCodeError if no keeper
        answers, and OSError: what is not done yet is done by the next call."""
        owners = sorted(name for name in await self._owners() if name != LOCAL)
        for at in range(0, max(len(owners), 1), MOST_ASKED):
            answer = await self._keeper.ask("removals", principals=owners[at : at + MOST_ASKED])
            bucket = str(answer["bucket"])
            first = await asyncio.to_thread(self._first_number, bucket, int(answer["last"]))
            for principal, number in answer["removed"].items():
                known = await asyncio.to_thread(self._done.read, principal) or {}
                if number > max(first, known.get(bucket, 0)):
                    log.info("%s was removed while this machine was away", principal)
                    await self._end(principal)
                    # Last: a machine that dies before this does it again, which changes nothing.
                    await self.ended(principal, NotedRemoval(bucket, number))

    def _first_number(self, bucket: str, last: int) -> int:
        """The last removal before this machine first asked: it has nothing of whoever was removed by then. Blocks."""
        known = self._first.read(bucket)
        if known is None:
            known = {"number": last}
            self._first.update(bucket, lambda written: written or known, durable=True)
        return int(known["number"])
