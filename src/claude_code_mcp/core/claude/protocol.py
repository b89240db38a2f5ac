"""The stream-json and control protocol without I/O: frames from bytes and to bytes.

Frames keep the raw object: the CLI adds fields in every version, and unknown ones must reach subscribers unchanged.
Tracks state between the two directions: requests of the CLI that need an answer, and user messages whose turn has not
ended.
"""

import json
import re
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .. import json_text
from ..model.image import PDF, Image
from ..model.usage import Usage
from ..processes.line_splitter import LineSplitter, Oversized

Raw: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class StreamEvent:
    """A raw event of the Messages API, forwarded while the model writes."""

    raw: Raw
    size: int


@dataclass(slots=True)
class Conversation:
    """An `assistant` or `user` frame: one content block or a list of tool results."""

    raw: Raw
    size: int

    @property
    def role(self) -> str:
        return str(self.raw["type"])

    @property
    def from_subagent(self) -> bool:
        return self.raw.get("parent_tool_use_id") is not None

    @property
    def model(self) -> str:
        """The model that answered; empty in a user frame."""
        message = self.raw.get("message")
        return str(message.get("model", "")) if isinstance(message, dict) else ""

    @property
    def content(self) -> list[Raw]:
        """The content blocks; text content counts as one text block, malformed content as none."""
        message = self.raw.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


@dataclass(slots=True)
class Result:
    """The end of a turn. `usage` is the turn's usage, filled in later from the totals of the process."""

    raw: Raw
    size: int
    usage: Usage = field(default_factory=Usage)

    @property
    def message_ids(self) -> list[str]:
        """The user messages that this result answers."""
        ids = self.raw.get("user_message_uuids")
        return [str(message_id) for message_id in ids] if isinstance(ids, list) else []

    @property
    def unasked(self) -> bool:
        """Whether the turn was not started by a user, but by the end of a background task, possibly of an earlier
        process."""
        origin = self.raw.get("origin")
        return isinstance(origin, dict) and origin.get("kind") == "task-notification"


@dataclass(slots=True)
class Lifecycle:
    """The status of a user message: queued, started, completed or cancelled."""

    raw: Raw
    size: int

    @property
    def message_id(self) -> str:
        return str(self.raw.get("command_uuid", ""))

    @property
    def state(self) -> str:
        return str(self.raw.get("state", ""))


@dataclass(slots=True)
class System:
    """A `system` frame: init, status, api_retry, background tasks and many more."""

    raw: Raw
    size: int

    @property
    def subtype(self) -> str:
        return str(self.raw.get("subtype", ""))


@dataclass(slots=True)
class ControlRequest:
    """A request of the CLI to the host."""

    id: str
    subtype: str
    request: Raw
    unreadable: bool = False
    """Whether the line could not be parsed, for example because an input is nested too deeply. `request` then has the
    name of the tool, if any."""


@dataclass(slots=True)
class ControlCancel:
    """The CLI no longer wants an answer to a request."""

    id: str


@dataclass(slots=True)
class ControlResponse:
    """The CLI's answer to our request."""

    id: str
    response: Raw
    error: str | None


@dataclass(slots=True)
class Other:
    """A frame of an unknown type."""

    raw: Raw
    size: int


@dataclass(slots=True)
class Garbage:
    """A line that is not a JSON object, cut to a readable length."""

    text: str
    size: int


Frame: TypeAlias = (
    StreamEvent
    | Conversation
    | Result
    | Lifecycle
    | System
    | ControlRequest
    | ControlCancel
    | ControlResponse
    | Other
    | Garbage
)

_CONTENT_FRAMES: dict[str, type[StreamEvent | Conversation | Result | Lifecycle | System]] = {
    "stream_event": StreamEvent,
    "assistant": Conversation,
    "user": Conversation,
    "result": Result,
    "command_lifecycle": Lifecycle,
    "system": System,
}


# json.loads guesses the encoding and looks for white space with a regular expression, which on short lines costs
# as much as the parsing itself. The CLI writes UTF-8, one value per line.
_read_value = json.JSONDecoder().raw_decode
_REQUEST_HEAD = re.compile(
    rb'\{"type": ?"control_request", ?"request_id": ?"([\w-]{1,200})", ?"request": ?\{"subtype": ?"(\w{1,100})"'
)
"""How the CLI begins the line of a request."""
_TOOL_NAME = re.compile(rb'"tool_name": ?"([\w.-]{1,200})"')
_MAX_HEAD = 4096
"""Bytes of a line in which the name of the tool is searched."""
_MAX_LOGGED = 100
"""Characters of a name or id in the log."""
_ESCAPED_SURROGATE = b"\\ud"
"""How the CLI writes half a surrogate pair, such as text that ends within an emoji."""


def parse_frame(line: bytes) -> Frame:
    """The frame on one line. Never raises: an unreadable line is Garbage, or an unreadable request, which must still be
    answered."""
    size = len(line)
    try:
        text = line.decode("utf-8", "replace").strip()
        raw, end = _read_value(text)
        if _ESCAPED_SURROGATE in line:
            raw = _without_surrogates(raw)
    except (ValueError, RecursionError):
        return _unreadable_request(line) or _garbage(line)
    if raw.__class__ is not dict or end != len(text):
        return _garbage(line)
    kind = raw.get("type")
    known = _CONTENT_FRAMES.get(kind) if kind.__class__ is str else None
    if known is not None:
        return known(raw, size)
    return _parse_control(raw, size) if isinstance(kind, str) and kind.startswith("control_") else Other(raw, size)


def _without_surrogates(value: Any) -> Any:
    """The value without lone surrogates in its strings, which could not be sent to a client."""
    if isinstance(value, str):
        return json_text.sound_text(value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(part) for key, part in value.items()}
    return [_without_surrogates(part) for part in value] if isinstance(value, list) else value


def _unreadable_request(line: bytes) -> ControlRequest | None:
    """The request that a line begins with; None if it does not."""
    head = _REQUEST_HEAD.match(line)
    if head is None:
        return None
    tool = _TOOL_NAME.search(line, head.end(), _MAX_HEAD)
    named = {"tool_name": tool[1].decode()} if tool is not None else {}
    return ControlRequest(head[1].decode(), head[2].decode(), named, unreadable=True)


def _garbage(line: bytes) -> Garbage:
    return Garbage(line[:2000].decode("utf-8", "replace"), len(line))


def _parse_control(raw: Raw, size: int) -> Frame:
    match raw:
        case {
            "type": "control_request",
            "request_id": str(id_),
            "request": {"subtype": str(subtype)} as request,
        }:
            return ControlRequest(id_, subtype, request)
        case {"type": "control_cancel_request", "request_id": str(id_)}:
            return ControlCancel(id_)
        case {
            "type": "control_response",
            "response": {"request_id": str(id_), "subtype": "error", "error": error},
        }:
            return ControlResponse(id_, {}, str(error))
        case {"type": "control_response", "response": {"request_id": str(id_)} as response}:
            answer = response.get("response")
            return ControlResponse(id_, answer if isinstance(answer, dict) else {}, None)
    return Other(raw, size)


def describe(frame: Frame) -> str:
    """A frame for the log: its type, subtype, id and size, and none of its contents."""
    match frame:
        case ControlRequest():
            return f"control_request/{frame.subtype[:_MAX_LOGGED]} id {frame.id[:_MAX_LOGGED]}"
        case ControlCancel():
            return f"control_cancel_request id {frame.id[:_MAX_LOGGED]}"
        case ControlResponse():
            return f"control_response/{'success' if frame.error is None else 'error'} id {frame.id[:_MAX_LOGGED]}"
        case Garbage():
            return f"no frame {frame.size} bytes"
    raw = frame.raw
    kind = "/".join(str(raw[name])[:_MAX_LOGGED] for name in ("type", "subtype") if name in raw)
    known = f" id {str(raw['uuid'])[:_MAX_LOGGED]}" if "uuid" in raw else ""
    return f"{kind}{known} {frame.size} bytes"


def encode(frame: Raw) -> bytes:
    """One frame in the CLI's format. A line that it cannot parse would end it, so values that are not JSON are
    replaced. Raises ValueError for a frame that is nested too deeply."""
    return json_text.encode(frame) + b"\n"


def user_message(text: str, message_id: str, *, images: Sequence[Image] = (), later: bool = False) -> Raw:
    """A user message; `later` makes it a separate turn instead of part of the running one."""
    shown = [
        {
            "type": "document" if image.media_type == PDF else "image",
            "source": {"type": "base64", "media_type": image.media_type, "data": image.data},
        }
        for image in images
    ]
    # The model refuses an empty text block: an image without text is sent without one.
    written = [{"type": "text", "text": text}] if text else []
    frame: Raw = {
        "type": "user",
        "message": {"role": "user", "content": [*shown, *written] if shown else text},
        "parent_tool_use_id": None,
        "session_id": "",
        "uuid": message_id,
    }
    return {**frame, "priority": "later"} if later else frame


def control_request(request_id: str, subtype: str, fields: Raw) -> Raw:
    """A request of ours to the CLI."""
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}}


def control_success(request_id: str, response: Raw) -> Raw:
    """Our answer to a request of the CLI."""
    body = {"subtype": "success", "request_id": request_id, "response": response}
    return {"type": "control_response", "response": body}


def control_error(request_id: str, error: str) -> Raw:
    """Our refusal of a request of the CLI."""
    return {
        "type": "control_response",
        "response": {"subtype": "error", "request_id": request_id, "error": error},
    }


_MESSAGE_ENDS = frozenset({"completed", "cancelled"})
_ASKED_KEPT = 10_000
"""How many of our requests are remembered."""


class ControlProtocol:
    """Our end of the conversation with one process."""

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
        """The frames completed by this data, in order, each tracked when it is consumed."""
        frame = self._frame
        for line in self._lines.feed(data):
            yield frame(line)

    def end(self) -> Iterator[Frame]:
        """The frames completed by the end of the stream."""
        for line in self._lines.close():
            yield self._frame(line)

    def _frame(self, line: bytes | Oversized) -> Frame:
        # Reported to the owner, so that an unreadable frame is not lost silently.
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
                self._follows_messages = True
                if frame.state == "started":
                    self._started.add(frame.message_id)
                elif frame.state in _MESSAGE_ENDS:
                    self._started.discard(frame.message_id)
                    self.unfinished.discard(frame.message_id)
            case Result():
                answered = set(frame.message_ids)
                # A result without a message may belong to a turn that started automatically, while a message was in
                # transit.
                if not answered and not frame.unasked:
                    if self._follows_messages:
                        # The CLI has reported which messages the turn took up; others wait for a separate turn.
                        answered = set(self._started)
                    elif not frame.raw.get("queued_turn_count"):
                        answered = set(self.unfinished)
                self.unfinished -= answered
                self._started -= answered

    def message(self, text: str, message_id: str, *, images: Sequence[Image] = (), later: bool = False) -> bytes:
        """A user message."""
        self.unfinished.add(message_id)
        return encode(user_message(text, message_id, images=images, later=later))

    def request(self, subtype: str, fields: dict[str, Any]) -> tuple[str, bytes]:
        """Our request: its id and bytes."""
        request_id = uuid.uuid4().hex
        # Kept after the answer too: a second or late answer must not look like an answer to a request that was never
        # sent, which only a command of the session could have written.
        self._asked[request_id] = None
        if len(self._asked) > _ASKED_KEPT:
            self._asked.popitem(last=False)
        return request_id, encode(control_request(request_id, subtype, fields))

    def was_asked(self, request_id: str) -> bool:
        """Whether we made a request with this id, even if nothing waits for its answer any more."""
        return request_id in self._asked

    def answer(self, request_id: str, response: Raw) -> bytes | None:
        """Our answer to a request of the CLI; None if it no longer wants one."""
        return self._settle_request(request_id, control_success(request_id, response))

    def refuse(self, request_id: str, error: str) -> bytes | None:
        """Our refusal of a request of the CLI; None if it no longer wants an answer."""
        return self._settle_request(request_id, control_error(request_id, error))

    def _settle_request(self, request_id: str, frame: Raw) -> bytes | None:
        if request_id not in self.owed:
            return None
        data = encode(frame)  # first: an answer that cannot be written is still owed
        self.owed.discard(request_id)
        return data
