"""A connection over NATS: lines of any length, in order, each exactly once, or an end with a reason.

NATS delivers a message at most once and drops messages for a slow reader. Therefore every part has a number, and a part
with an unexpected number ends the connection on both sides with `WireBroken`: a line is never lost, duplicated or
reordered silently. A writer stops when `WINDOW` bytes are not acknowledged; bytes are acknowledged when the reader has
taken their lines. Each side holds at most a window and one line.

Both sides send heartbeats, which repeat the number of the next part and the acknowledgment. The loss of the last part
is therefore detected, and the loss of an acknowledgment does no harm. A side that receives nothing for `BEATS_MISSED`
beats ends the connection. A connection survives an interruption of NATS if no message was lost.

Anyone who may publish on the subject of a connection can end it or write to it. NATS permissions decide who may, and
the id of a connection cannot be guessed.
"""

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import anyio

from ...core.errors import UpstreamUnavailable
from .nats_client import Client, Msg, NatsError

log = logging.getLogger(__name__)

PART: Final = 256 << 10
"""Bytes of one or more lines in a message: below the default limit of NATS servers."""
WINDOW: Final = 4 << 20
"""Bytes sent without an acknowledgment."""
MAX_LINE: Final = 64 << 20
BEAT: Final = 2.0
"""Seconds between two heartbeats."""
BEATS_MISSED: Final = 4
_PART_COST = 256
"""Counted for each part in addition to its bytes, which limits the number of small parts in flight."""
_BUFFERED = 1 << 20
"""Bytes by which a writer may be ahead of the sent data."""
_GATHERING = 0.0005
"""Seconds after a part during which lines are collected for the next: a message for each line would cost more."""
_LAST_WORDS = 1.0
"""Seconds in which buffered data is still sent when a side closes."""
_LAST_MESSAGE = 0.25
"""Seconds in which NATS accepts one more message after that."""
_MAX_REASON = 500

_DATA, _SIGN, _END = b"D", b"S", b"E"
_HEAD = struct.Struct("!cQQ")
"""Kind, number (of this part for data, otherwise of the next part), and the sender's acknowledgment."""


class WireBroken(UpstreamUnavailable):
    """The connection ended early; the message is the reason."""


class IncomingLines:
    """Numbered parts in, lines out. Independent of NATS."""

    def __init__(self) -> None:
        self.next_number = 0
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._received = 0
        self._held = 0
        self._acknowledged = 0

    def check(self, number: int) -> None:
        """Raises WireBroken unless this is the number of the next part."""
        if number != self.next_number:
            what = "was lost" if number > self.next_number else "is a duplicate or from another sender"
            raise WireBroken(f"A part of the connection {what}: number {number} instead of {self.next_number}.")

    def feed(self, number: int, data: bytes) -> None:
        """Takes the next part. Raises WireBroken for any other part, for a line that is too long, and for a writer that
        exceeds the window."""
        self.check(number)
        self.next_number += 1
        self._received += len(data) + _PART_COST
        first, *others = data.split(b"\n")
        self._partial.append(first)
        self._partial_size += len(first)
        if others:
            self._add(b"".join(self._partial))
            for line in others[:-1]:
                self._add(line)
            self._partial, self._partial_size = [others[-1]], len(others[-1])
        if self._partial_size > MAX_LINE:
            raise WireBroken(f"A line is longer than {MAX_LINE} bytes.")
        if self._held + self._partial_size > MAX_LINE + 2 * WINDOW:
            raise WireBroken("More was sent than is acknowledged.")

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._held += len(line) + 1

    def take(self) -> bytes | None:
        """The next line without its line break; None if there is none now."""
        if not self._lines:
            return None
        line = self._lines.popleft()
        self._held -= len(line) + 1
        return line

    @property
    def acknowledged(self) -> int:
        """The number of received bytes that are no longer held. The beginning of an incomplete line counts: a line may
        be longer than the window."""
        self._acknowledged = max(self._acknowledged, self._received - self._held)
        return self._acknowledged


class Wire:
    """One side of a connection. Made by `open_wire`; used by one reader and any number of writers of one loop."""

    def __init__(self, client: Client, sends: str) -> None:
        self._client = client
        self._sends = sends
        self._part = min(PART, client.max_payload - _HEAD.size)
        self._incoming = IncomingLines()
        self._outgoing = bytearray()
        self._next_number = 0
        self._sent = 0
        self._last_part = 0.0
        self._acknowledged_by_peer = 0
        self._announced = 0
        """The last acknowledgment sent to the peer."""
        self._sign_due = False
        self._alive = True
        self._silent_beats = 0
        self._ended = False
        self._reason = ""
        self._peer_knows = False
        self._to_send, self._arrived, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()

    # -- for users of the connection ----------------------------------------------------------------------------

    def write(self, line: bytes) -> None:
        """Queues a line, which ends with its only line break. After the end it is dropped: `drain` says so."""
        if not self._ended:
            self._outgoing += line
            self._to_send.set()

    async def drain(self) -> None:
        """Waits while the other side does not read. Raises WireBroken after the end."""
        while len(self._outgoing) > _BUFFERED and not self._ended:
            # No await between the check and `clear`: room that is freed later sets it again.
            self._room.clear()
            await self._room.wait()
        if self._ended:
            raise WireBroken(self._reason or "The connection is closed.")

    async def line(self) -> bytes | None:
        """The next line without its line break; None at the end, if the other side has closed. Raises WireBroken if the
        connection broke; lines that arrived before are returned first."""
        while (line := self._incoming.take()) is None:
            if self._ended:
                if self._reason:
                    raise WireBroken(self._reason)
                return None
            self._arrived.clear()
            await self._arrived.wait()
        # Acknowledged in steps, because each acknowledgment costs a message.
        if self._incoming.acknowledged - self._announced >= WINDOW // 4:
            self._send_sign()
        return line

    def fail(self, reason: str) -> None:
        """Ends the connection on both sides with WireBroken; the first end counts."""
        self._end(reason[:_MAX_REASON])

    @property
    def ended(self) -> bool:
        return self._ended

    # -- incoming messages --------------------------------------------------------------------------------------

    async def received(self, message: Msg) -> None:
        """Takes a message of the other side, in the order in which NATS delivers them."""
        if self._ended:
            return
        self._alive = True
        try:
            self._take(message.data)
        except WireBroken as error:
            log.warning("%s: %s", self._sends, error.message)
            self.fail(error.message)

    def _take(self, message: bytes) -> None:
        if len(message) < _HEAD.size:
            raise WireBroken("A message that is not part of the connection arrived.")
        kind, number, acknowledged = _HEAD.unpack_from(message)
        if acknowledged > self._sent or kind not in (_DATA, _SIGN, _END):
            raise WireBroken("A message that is not part of the connection arrived.")
        if acknowledged > self._acknowledged_by_peer:
            self._acknowledged_by_peer = acknowledged
            self._to_send.set()
        if kind == _DATA:
            self._incoming.feed(number, message[_HEAD.size :])
            # A long line is acknowledged while it arrives, before a caller can take it.
            if self._incoming.acknowledged - self._announced >= WINDOW // 4:
                self._send_sign()
            self._arrived.set()
            return
        self._incoming.check(number)
        if kind == _END:
            self._peer_knows = True
            self._end(message[_HEAD.size :].decode(errors="replace")[:_MAX_REASON])

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended, self._reason = True, reason
            for event in (self._to_send, self._arrived, self._room):
                event.set()

    # -- outgoing messages --------------------------------------------------------------------------------------

    def _send_sign(self) -> None:
        self._sign_due = True
        self._to_send.set()

    async def run(self) -> None:
        """Sends until the end. The only place that publishes: numbers and messages are in the same order."""
        loop = asyncio.get_running_loop()
        try:
            while not self._ended:
                await self._to_send.wait()
                pause = self._last_part + _GATHERING - loop.time()
                if pause > 0 and len(self._outgoing) < PART:
                    # The first of several lines is sent at once; lines that follow closely are sent together.
                    await asyncio.sleep(pause)
                self._to_send.clear()
                await self._send_waiting()
            await self._send_end(self._reason)
        except (NatsError, OSError) as error:
            self.fail(f"NATS does not accept messages: {error or type(error).__name__}")

    async def _send_waiting(self) -> None:
        while self._outgoing and self._sent - self._acknowledged_by_peer < WINDOW:
            with memoryview(self._outgoing) as outgoing:
                data = bytes(outgoing[: self._part])
            del self._outgoing[: len(data)]
            number = self._next_number
            self._next_number += 1
            self._sent += len(data) + _PART_COST
            self._last_part = asyncio.get_running_loop().time()
            await self._publish(_DATA, number, data)
            if len(self._outgoing) <= _BUFFERED:
                self._room.set()
        if self._sign_due:
            self._sign_due = False
            await self._publish(_SIGN, self._next_number)

    async def _publish(self, kind: bytes, number: int, data: bytes = b"") -> None:
        self._announced = self._incoming.acknowledged
        await self._client.publish(self._sends, _HEAD.pack(kind, number, self._announced) + data)

    async def beat(self) -> None:
        """Sends heartbeats, and ends the connection when none arrive. Counts beats, not seconds: a process that was
        stopped for a while reads the messages that arrived meanwhile before it counts the next beat."""
        while not self._ended:
            await asyncio.sleep(BEAT)
            self._silent_beats = 0 if self._alive else self._silent_beats + 1
            self._alive = False
            if self._silent_beats >= BEATS_MISSED:
                self.fail(f"The other side sent nothing for {BEAT * BEATS_MISSED:g} seconds.")
            self._send_sign()

    async def last_words(self) -> None:
        """Sends the pending data as far as the peer accepts it, and then the end of the connection."""
        with contextlib.suppress(NatsError, OSError):
            if not self._ended:
                await self._send_waiting()
            while self._outgoing and not self._ended:
                self._to_send.clear()
                await self._to_send.wait()
                await self._send_waiting()
            unsent = "The other side closed the connection before it sent everything." if self._outgoing else ""
            await self._send_end(self._reason or unsent)

    async def _send_end(self, reason: str) -> None:
        if not self._peer_knows:
            self._peer_knows = True
            await self._publish(_END, self._next_number, reason.encode())


@contextlib.asynccontextmanager
async def open_wire(client: Client, *, sends: str, receives: str) -> AsyncIterator[Wire]:
    """A connection whose other side sends on the subject `receives`, until the end of the block.

    The subscription exists before the block is entered: a peer that learns of the connection in the block can write at
    once. At the end, pending data is still sent for a moment, and the peer is notified.
    """
    wire = Wire(client, sends)
    subscription = await client.subscribe(receives, cb=wire.received)
    # Separate tasks instead of a task group: exceptions from the block pass through unwrapped.
    running = [asyncio.ensure_future(wire.run()), asyncio.ensure_future(wire.beat())]
    try:
        yield wire
    finally:
        for task in running:
            task.cancel()
        with anyio.CancelScope(shield=True):
            _, publishing = await asyncio.wait(running, timeout=_LAST_WORDS)
        # Nothing else may publish meanwhile: parts would not be in the order of their numbers.
        if not publishing:
            with anyio.move_on_after(_LAST_WORDS, shield=True) as closing:
                await wire.last_words()
            if closing.cancelled_caught:
                wire.fail("The other side did not read to the end.")
                with anyio.move_on_after(_LAST_MESSAGE, shield=True):
                    await wire.last_words()
        wire.fail("The connection is closed.")
        with anyio.move_on_after(_LAST_MESSAGE, shield=True), contextlib.suppress(NatsError, OSError):
            await subscription.unsubscribe()
