"""Writes the frames of a session's process to its log as events, with human-readable lines.

Tracks the process's health from them: API retries, background work.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...claude.protocol import Conversation, Frame, Garbage, Lifecycle, Other, Raw, Result, StreamEvent, System
from ...model.events import Message, Noise, Output, Partial, Retrying, UsageReported
from ...model.usage_limits import PlanUsage, read_plan_usage
from ...transcripts.event_log import EventLog
from .readable_lines import ReadableLines

_REPORT_DELAY = 5.0
"""Seconds within which the CLI starts a turn to report that a background task has ended."""
_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_NOISE_BYTES = 2000
_CONTEXT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_MAX_COMMANDS = 1000


class EventWriter:
    """Writes the log of one session. Independent of turns and states."""

    def __init__(self, log: EventLog, cwd: str = "", redact: Callable[[Any], Any] = lambda data: data) -> None:
        self._log = log
        self.readable_lines = ReadableLines(cwd, redact)
        self.retrying: Retrying | None = None
        """The last API error, until the model answers."""
        self.plan: PlanUsage | None = None
        """The limits of the plan, as last reported."""
        self.rate_limited = False
        """Whether Claude Code produced the last answer itself because a limit is reached."""
        self.commands: tuple[str, ...] = ()
        """The slash commands that the process has reported."""
        self.context_tokens = 0
        """Tokens of context at the model's last answer, that answer included; 0 before the first."""
        self.context_window = 0
        """The size of the model's context window, once a result has reported it; 0 before."""
        self.background_tasks = 0
        self._background_since = 0.0
        self._report_due = 0.0

    @property
    def context(self) -> tuple[int, int]:
        """`context_tokens` and `context_window`."""
        return self.context_tokens, self.context_window

    @property
    def background_work(self) -> bool:
        """Whether background tasks are running, or one has just ended and is about to start a turn with its report."""
        return self.background_tasks > 0 or time.monotonic() < self._report_due

    @property
    def background_seconds(self) -> float:
        """How long background work has been running without a break; 0 if none is running."""
        return time.monotonic() - self._background_since if self.background_tasks else 0.0

    def process_left(self) -> None:
        """Clear the background work, which ended with the process."""
        self.background_tasks, self._report_due = 0, 0.0

    def write(self, frame: Frame) -> None:
        """Log a frame, except control frames: their effects are logged where they are handled."""
        match frame:
            case StreamEvent():
                self.write_stream_event(frame)
            case Conversation():
                self.retrying = None
                if frame.role == "assistant" and not frame.from_subagent:
                    self.rate_limited = frame.raw.get("error") == "rate_limit"
                self._count_context(frame.raw)
                self._log.append(Message(frame.raw, size=frame.size))
                for kind, line in self.readable_lines.conversation(frame):
                    self._log.append(Output(line, kind, size=len(line)))
            case System():
                self._write_system(frame)
            case Result() | Lifecycle() | Other():
                if isinstance(frame, Result):
                    self._learn_window(frame.raw)
                self._log.append(Message(frame.raw, size=frame.size))
                if isinstance(frame, Other) and frame.raw.get("type") == "rate_limit_event":
                    self._report_plan(frame.raw)
            case Garbage():
                self._log.append(Noise(frame.text, size=min(frame.size, _NOISE_BYTES)))

    def _report_plan(self, raw: Raw) -> None:
        plan = read_plan_usage(raw.get("rate_limit_info"))
        if plan is None:
            return
        if not plan.windows and self.plan is not None:
            # Some reports have only the status; the windows stay as they were.
            plan = replace(plan, windows=self.plan.windows)
        if plan != self.plan:
            self.plan = plan
            self._log.append(UsageReported(plan))

    def _count_context(self, raw: Raw) -> None:
        message = raw.get("message")
        usage = message.get("usage") if isinstance(message, Mapping) else None
        if raw.get("type") == "assistant" and raw.get("parent_tool_use_id") is None and isinstance(usage, Mapping):
            counts = (usage.get(name) for name in _CONTEXT)
            self.context_tokens = sum(count for count in counts if isinstance(count, int)) or self.context_tokens

    def _learn_window(self, raw: Raw) -> None:
        models = raw.get("modelUsage")
        for model in models.values() if isinstance(models, Mapping) else ():
            window = model.get("contextWindow") if isinstance(model, Mapping) else None
            if isinstance(window, int) and window > 0:
                self.context_window = max(self.context_window, window)

    def write_stream_event(self, frame: StreamEvent) -> bool:
        """Log an event of a model's stream; return whether it was a fragment of text, thinking or tool input. Thousands
        may arrive per second, so this does as little as possible."""
        raw = frame.raw
        try:
            delta = raw["event"]["delta"]
            field = _DELTA_FIELDS[delta["type"]]
            text = delta[field]
        except (KeyError, TypeError):
            text = None
        # Readers of the log join fragments, so anything but a string, which only a forged frame has, is not a fragment.
        if text.__class__ is not str:
            self._log.append(Partial("", raw=raw, size=frame.size))
            self.retrying = None
            event = raw.get("event")
            if isinstance(event, dict) and event.get("type") == "content_block_start":
                self.readable_lines.start_block()
            return False
        self._log.append(Partial(text, field, raw, size=frame.size))
        if field == "text" and raw.get("parent_tool_use_id") is None:
            for line in self.readable_lines.fragment(text):
                self._log.append(Output(line, size=len(line)))
        return True

    def _write_system(self, frame: System) -> None:
        raw = frame.raw
        self._log.append(Message(raw, size=frame.size))
        if frame.subtype == "api_retry":
            self.retrying = Retrying(
                attempt=int(raw.get("attempt") or 0),
                of=raw.get("max_retries"),
                delay_ms=float(raw.get("retry_delay_ms") or 0),
                status=raw.get("error_status"),
                detail=str(raw.get("error") or ""),
            )
            self._log.append(self.retrying)
        elif frame.subtype == "init":
            # The turn that reports the ended task has started.
            self._report_due = 0.0
            names = raw.get("slash_commands")
            if isinstance(names, list):
                self.commands = tuple(name for name in names[:_MAX_COMMANDS] if isinstance(name, str))
        elif frame.subtype == "background_tasks_changed":
            tasks = raw.get("tasks")
            before, self.background_tasks = self.background_tasks, len(tasks) if isinstance(tasks, list) else 0
            # Set by the first task only: overlapping tasks count as one period.
            if not before:
                self._background_since = time.monotonic()
            if self.background_tasks < before:
                self._report_due = time.monotonic() + _REPORT_DELAY
