"""The stream-json and control protocol without I/O: bytes in, frames out, and frames in, bytes out.

Keeps what must be remembered between the two directions: the CLI's requests that we still owe an answer, and the
user messages whose turn has not ended.
"""

import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from ..model.image import Image
from ..processes.lines import LineSplitter, Oversized
from .frames import (
    ControlCancel,
    ControlRequest,
    Frame,
    Garbage,
    Lifecycle,
    Raw,
    Result,
    StreamEvent,
    control_error,
    control_request,
    control_success,
    encode,
    parse_frame,
    user_message,
)

_MESSAGE_ENDS = frozenset({"completed", "cancelled"})
_ASKED_KEPT = 10_000
"""Of so many requests of ours it is known that they were made."""


class ControlProtocol:
    """One end of the conversation with one process: ours."""

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self.owed: set[str] = set()
        """Requests of the CLI that wait for our answer; stdin must stay open while there are any."""
        self.unfinished: set[str] = set()
        """User messages whose turn has not ended."""
        self._started: set[str] = set()
        self._follows_messages = False
        self._asked: OrderedDict[str, None] = OrderedDict()

    def receive(self, data: bytes) -> Iterator[Frame]:
        """The frames that this data completes, in order, each tracked only when it is taken."""
        frame = self._frame
        for line in self._lines.feed(data):
            yield frame(line)

    def end(self) -> Iterator[Frame]:
        """The frames that are complete only because the stream ended."""
        for line in self._lines.close():
            yield self._frame(line)

    def _frame(self, line: bytes | Oversized) -> Frame:
        if line.__class__ is Oversized:
            return Garbage(line.head.decode("utf-8", "replace"), line.length)
        frame = parse_frame(line)  # type: ignore[arg-type]  # an exact class check is cheaper than isinstance here
        if frame.__class__ is not StreamEvent:
            self._track(frame)
        return frame

    def _track(self, frame: Frame) -> None:
        match frame:
            case ControlRequest():
                self.owed.add(frame.id)
            case ControlCancel():
                self.owed.discard(frame.id)
            case Lifecycle():
                self._track_lifecycle(frame)
            case Result():
                self._track_result(frame)

    def _track_lifecycle(self, frame: Lifecycle) -> None:
        self._follows_messages = True
        if frame.state == "started":
            self._started.add(frame.message_id)
        elif frame.state in _MESSAGE_ENDS:
            self._started.discard(frame.message_id)
            self.unfinished.discard(frame.message_id)

    def _track_result(self, result: Result) -> None:
        """A result that names no message may belong to a turn that began by itself, beside a message on its way."""
        answered = set(result.message_ids) or self._messages_meant_by(result)
        self.unfinished -= answered
        self._started -= answered

    def _messages_meant_by(self, result: Result) -> set[str]:
        if result.unasked:
            return set()
        if self._follows_messages:
            return set(self._started)
        return set() if result.raw.get("queued_turn_count") else set(self.unfinished)

    def message(self, text: str, message_id: str, *, images: Sequence[Image] = (), later: bool = False) -> bytes:
        """A user message."""
        self.unfinished.add(message_id)
        return encode(user_message(text, message_id, images=images, later=later))

    def request(self, subtype: str, fields: dict[str, Any]) -> tuple[str, bytes]:
        """A request of ours: its id and its bytes."""
        request_id = uuid.uuid4().hex
        self._asked[request_id] = None
        if len(self._asked) > _ASKED_KEPT:
            self._asked.popitem(last=False)
        return request_id, encode(control_request(request_id, subtype, fields))

    def was_asked(self, request_id: str) -> bool:
        """Whether a request with this id was made, however long ago and whoever still waits for the answer."""
        return request_id in self._asked

    def answer(self, request_id: str, response: Raw) -> bytes | None:
        """Our answer to a request of the CLI, or None when it no longer wants one."""
        return self._settle_request(request_id, control_success(request_id, response))

    def refuse(self, request_id: str, error: str) -> bytes | None:
        """Our refusal of a request of the CLI, or None when it no longer wants an answer."""
        return self._settle_request(request_id, control_error(request_id, error))

    def _settle_request(self, request_id: str, frame: Raw) -> bytes | None:
        if request_id not in self.owed:
            return None
        data = encode(frame)  # first: an answer that cannot be written leaves us owing one
        self.owed.discard(request_id)
        return data
