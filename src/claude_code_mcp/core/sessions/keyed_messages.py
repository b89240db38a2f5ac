"""Messages with an idempotency key: a message that is repeated because its answer was lost is accepted only once.

This is guaranteed within this server, and across restarts and servers unless a write to the database failed: a key is
recorded as pending before its message reaches the session, and as accepted before the sender gets the answer. A server
that dies in between leaves a pending key; the next attempt first looks for the message in the transcript (`Accepting`
gets it as `orphaned`).
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from ..errors import Cancelled, InvalidArgument, SessionBusy
from ..state.message_keys import MAX_KEY, KeyName, KeyState, MessageKeys, TakenKey
from .pending_turn import PendingTurn, turn_of_accepted_message
from .session import Session

log = logging.getLogger(__name__)

_KEPT = 2000
"""Maximum number of accepted keys kept in memory."""


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message to deliver under this id, or under any id if empty."""

    message_id: str = ""
    orphaned: bool = False
    """Whether a server that died may already have delivered it."""


class ReadStateUnknown(Cancelled):
    """The message was given to the session, and it is unknown whether a process has read it: the next server must check
    the transcript."""


Accepting = Callable[[KeyedMessage], Awaitable[PendingTurn]]
Finding = Callable[[str], Awaitable[Session]]
"""Finds the session with an id, in memory or on disk."""


class KeyedMessages:
    """The messages with keys of one server."""

    def __init__(self, keys: MessageKeys, *, replicated: bool = False) -> None:
        """`replicated` means that accepted keys must reach other machines, like everything in a record."""
        self._keys = keys
        self._replicated = replicated
        self._known: OrderedDict[KeyName, TakenKey] = OrderedDict()
        self._locks: WeakValueDictionary[KeyName, asyncio.Lock] = WeakValueDictionary()
        self._work: set[asyncio.Task[PendingTurn]] = set()

    async def once(
        self, key: str, owner: str, session_id: str, parts: Sequence[str], accept: Accepting, find: Finding
    ) -> PendingTurn:
        """Accept the message, or find the one accepted with this key. `parts` are its contents, the text first:
        InvalidArgument if the key was used for another message. SessionBusy while another server accepts it.

        Cancelling the caller changes nothing: the message and its key are still accepted or refused.
        """
        if not 0 < len(key) <= MAX_KEY:
            raise InvalidArgument(f"messageKey: must have 1 to {MAX_KEY} characters.", field="message_key")
        name = KeyName(owner, session_id, key)
        work = asyncio.ensure_future(self._once(name, parts, accept, find))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return await asyncio.shield(work)

    async def _once(self, name: KeyName, parts: Sequence[str], accept: Accepting, find: Finding) -> PendingTurn:
        digest = digest_of(parts)
        # The lock lives as long as it is held or waited for.
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            taken = self._known.get(name) or await self._take(name, digest)
            if taken.digest != digest:
                if taken.state is KeyState.ORPHANED:
                    # Shared by all holders of the same message, on any server.
                    await self._quietly(self._keys.leave, name)
                raise InvalidArgument("messageKey: was used for another message.", field="message_key")
            if taken.state is KeyState.ACCEPTED:
                return turn_of_accepted_message(await find(taken.session_id), taken.message_id, parts[0])
            if taken.state is KeyState.PENDING:
                raise SessionBusy("This message is being accepted by another server; try again in a moment.")
            return await self._accept(name, taken, accept)

    async def _accept(self, name: KeyName, taken: TakenKey, accept: Accepting) -> PendingTurn:
        try:
            turn = await accept(KeyedMessage(taken.message_id, taken.state is KeyState.ORPHANED))
        except Exception as error:
            # A refusal now does not prove a refusal then: the server that died may have delivered it, and the next
            # attempt with this key must also look for it in the transcript.
            doubtful = taken.state is KeyState.ORPHANED or isinstance(error, ReadStateUnknown)
            await self._quietly(self._keys.leave if doubtful else self._keys.free_key, name)
            raise
        session_id = turn.session.id
        # Before waiting for the disk: from here on the message runs, even if the database fails.
        self._known[name] = TakenKey(KeyState.ACCEPTED, turn.message_id, taken.digest, session_id)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        await self._quietly(self._keys.accept, name, session_id)
        if self._replicated:
            turn.session.recorder.changed(turn.session)
        return turn

    async def _take(self, name: KeyName, digest: str) -> TakenKey:
        try:
            return await asyncio.to_thread(self._keys.take, name, digest)
        except OSError as error:
            # A full disk must not block messages: the key then holds only within this server.
            _log_unrecorded(name, error)
            return TakenKey(KeyState.NEW, "", digest)

    async def _quietly(self, step: Callable[..., None], name: KeyName, *arguments: object) -> None:
        try:
            await asyncio.to_thread(step, name, *arguments)
        except OSError as error:
            _log_unrecorded(name, error)

    async def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for messages being accepted; keys still pending after that are released."""
        if self._work:
            _, left = await asyncio.wait(self._work, timeout=timeout)
            for work in left:
                work.cancel()
        await asyncio.to_thread(self._keys.close)


def _log_unrecorded(name: KeyName, error: OSError) -> None:
    where = f"session {name.session_id}" if name.session_id else "a new session"
    log.warning("the key of a message of %s to %s is not recorded: %s", name.principal, where, error)


def digest_of(parts: Sequence[str]) -> str:
    """The digest that identifies a message in the database."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        whole.update(len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()
