"""Writes down what a process says: frames → events in the log, readable lines, and what they tell of its health."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..claude.frames import Conversation, Frame, Garbage, Lifecycle, Other, Raw, Result, StreamEvent, System
from ..model.events import Message, Noise, Output, Partial, Retrying
from ..model.text import one_line
from ..questions.describe import describe
from ..store.event_log import EventLog

_REPORT_WITHIN = 5.0


_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class EventWriter:
    """The record of one session. Knows nothing of turns and states."""

    def __init__(self, log: EventLog, cwd: str = "", redact: Callable[[Any], Any] = lambda data: data) -> None:
        self._log = log
        self.narrator = ReadableLines(cwd, redact)
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


_REMEMBERED = 200


_PLANS_REMEMBERED = 4


_EXCERPT = 160


_LOOKED_AT = 4000


@dataclass(slots=True)
class ToolUse:
    """A tool call: `running`, then `completed`, `failed` or `denied`."""

    id: str
    name: str
    description: str
    status: str = "running"


class ReadableLines:
    """Follows one conversation. Text may arrive in fragments first and as a whole block afterwards."""

    def __init__(self, cwd: str = "", redact: Callable[[Any], Any] = lambda data: data) -> None:
        """`redact` takes secrets out of what is put in one line, before it is."""
        self._cwd = cwd
        self._redact = redact
        self.tools: OrderedDict[str, ToolUse] = OrderedDict()
        self._plans: OrderedDict[str, Raw] = OrderedDict()
        self._unfinished: list[str] = []
        self._told = 0

    def block_started(self) -> None:
        """A new block of text begins."""
        self._unfinished, self._told = [], 0

    def fragment(self, text: str) -> list[str]:
        """The lines that a fragment of text completes."""
        self._unfinished.append(text)  # not added up: a long line in many fragments would be copied each time
        if "\n" not in text:
            return []
        *lines, rest = "".join(self._unfinished).split("\n")
        self._unfinished = [rest]
        self._told += sum(len(line) + 1 for line in lines)
        return lines

    def conversation(self, frame: Conversation) -> Iterator[tuple[str, str]]:
        """The lines that a whole frame adds, each with its kind: text, tool or outcome."""
        for block in frame.content:
            match block.get("type"):
                case "text" if frame.role == "assistant" and not frame.from_subagent:
                    for line in self._rest_of(str(block.get("text", ""))):
                        yield "text", line
                case "tool_use":
                    yield "tool", self._tool_started(block)
                case "tool_result":
                    yield from self._tool_ended(block)

    def plan_input(self, tool_use_id: str | None) -> Raw:
        """The input of a recent call with a plan, as the model wrote it."""
        return self._plans.get(tool_use_id or "", {})

    def denied(self, tool_use_id: str | None) -> None:
        """Somebody denied this call; its result will say `error`."""
        tool = self.tools.get(tool_use_id or "")
        if tool is not None:
            tool.status = "denied"

    def ended(self) -> None:
        """Nothing runs any more: calls without a result have failed."""
        for tool in self.tools.values():
            tool.status = "failed" if tool.status == "running" else tool.status

    def _rest_of(self, text: str) -> list[str]:
        untold = text[self._told :]
        self.block_started()
        return untold.removesuffix("\n").split("\n") if untold else []

    def _tool_started(self, block: Raw) -> str:
        name, raw = str(block.get("name")), block.get("input")
        given = raw if isinstance(raw, dict) else {}
        tool = ToolUse(str(block.get("id")), name, describe(name, self._redact(given), self._cwd))
        self.tools[tool.id] = tool
        if len(self.tools) > _REMEMBERED:
            self.tools.popitem(last=False)
        if name == "ExitPlanMode":
            self._plans[tool.id] = given
            if len(self._plans) > _PLANS_REMEMBERED:
                self._plans.popitem(last=False)
        return f"[tool] {tool.description}"

    def _tool_ended(self, block: Raw) -> Iterator[tuple[str, str]]:
        tool = self.tools.get(str(block.get("tool_use_id")))
        if tool is None:
            return
        if tool.status == "running":
            tool.status = "failed" if block.get("is_error") else "completed"
        told = {"completed": "ok", "failed": "failed", "denied": "denied"}[tool.status]
        excerpt = one_line(self._redact(_first_line(block.get("content"))), _EXCERPT)
        yield "outcome", f"[{told}] {tool.description}" + (f" -> {excerpt}" if excerpt else "")


def _first_line(content: object) -> str:
    """Longer than what is shown of it, so that a secret in what is shown is there whole."""
    if isinstance(content, list):
        texts = (block.get("text") for block in content if isinstance(block, dict))
        content = next((text for text in texts if isinstance(text, str)), "")
    return str(content or "").lstrip()[:_LOOKED_AT].split("\n", 1)[0].rstrip()
