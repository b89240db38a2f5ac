"""Writes down what a process says: frames → events in the log, readable lines, and what they tell of its health."""

import time
from collections.abc import Callable
from typing import Any

from ..claude.frames import Conversation, Frame, Garbage, Lifecycle, Other, Raw, Result, StreamEvent, System
from ..model.events import Message, Noise, Output, Partial, Retrying
from ..store.log import EventLog
from .narrator import Narrator

_REPORT_WITHIN = 5.0
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class Journal:
    """The record of one session. Knows nothing of turns and states."""

    def __init__(self, log: EventLog, cwd: str = "", redact: Callable[[Any], Any] = lambda data: data) -> None:
        self._log = log
        self.narrator = Narrator(cwd, redact)
        self.retrying: Retrying | None = None
        """The last refusal of the API, until the model is heard again."""
        self.background_tasks = 0
        self._background_since = 0.0
        self._report_due = 0.0

    @property
    def background_work(self) -> bool:
        """Whether tasks run in the background, or one has just ended and is about to start a turn with its report."""
        return self.background_tasks > 0 or time.monotonic() < self._report_due

    @property
    def background_seconds(self) -> float:
        """How long something has been running in the background without a break; 0 if nothing is."""
        return time.monotonic() - self._background_since if self.background_tasks else 0.0

    def process_left(self) -> None:
        """Whatever ran in the background is gone with the process."""
        self.background_tasks, self._report_due = 0, 0.0

    def write(self, frame: Frame) -> None:
        """Notes a frame. Control frames are not for the record: what they lead to is."""
        if frame.__class__ is StreamEvent:
            self._stream_event(frame)
            return
        match frame:
            case Conversation():
                self._conversation(frame)
            case System():
                self._system(frame)
            case Result() | Lifecycle() | Other():
                self._log.append(Message(frame.raw, size=frame.size))
            case Garbage():
                self._log.append(Noise(frame.text, size=min(frame.size, 2000)))

    def _stream_event(self, frame: StreamEvent) -> None:
        event = frame.raw.get("event") or {}
        delta = event.get("delta") or {}
        field = _DELTAS.get(delta.get("type", ""))
        if field is None:
            self._log.append(Partial("", raw=frame.raw, size=frame.size))
            self.retrying = None
            if event.get("type") == "content_block_start":
                self.narrator.block_started()
            return
        text = delta.get(field, "")
        self._log.append(Partial(text, field, frame.raw, size=frame.size))
        if field == "text" and frame.raw.get("parent_tool_use_id") is None:
            for line in self.narrator.fragment(text):
                self._log.append(Output(line, size=len(line)))

    def _conversation(self, frame: Conversation) -> None:
        self.retrying = None
        self._log.append(Message(frame.raw, size=frame.size))
        for kind, line in self.narrator.conversation(frame):
            self._log.append(Output(line, kind, size=len(line)))

    def _system(self, frame: System) -> None:
        self._log.append(Message(frame.raw, size=frame.size))
        if frame.subtype == "api_retry":
            self.retrying = _retry(frame.raw)
            self._log.append(self.retrying)
        elif frame.subtype == "init":
            self._report_due = 0.0
        elif frame.subtype == "background_tasks_changed":
            self._background_changed(frame.raw.get("tasks"))

    def _background_changed(self, tasks: object) -> None:
        before, self.background_tasks = self.background_tasks, len(tasks) if isinstance(tasks, list) else 0
        if not before:
            self._background_since = time.monotonic()
        if self.background_tasks < before:
            self._report_due = time.monotonic() + _REPORT_WITHIN


def _retry(raw: Raw) -> Retrying:
    return Retrying(
        attempt=int(raw.get("attempt") or 0),
        of=raw.get("max_retries"),
        delay_ms=float(raw.get("retry_delay_ms") or 0),
        status=raw.get("error_status"),
        detail=str(raw.get("error") or ""),
    )
