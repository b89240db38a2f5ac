"""What a session has in its log: the frames of its process as events, with readable lines for people, and its state.

`EventWriter` logs the frames and keeps what they say about the process's health: a retry of the API, background work.
`ReadableLines` makes lines of text out of the same conversation, live from frames or later from a transcript.
`StateTracker` has the state, its legal moves and the tasks that wait for one; `StallTimer` notices a stalled turn.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..claude.protocol import Conversation, Frame, Garbage, Lifecycle, Other, Raw, Result, StreamEvent, System
from ..model.events import Message, Noise, Output, Partial, Retrying, StateChanged, UsageReported
from ..model.outcome import BUSY, MOVES, CallStatus, IllegalMove, State, call_statuses
from ..model.text import one_line
from ..model.usage_limits import PlanUsage, read_plan_usage
from ..questions import presentation
from ..transcripts.event_log import EventLog

_REPORT_DELAY = 5.0
"""Seconds in which the CLI starts a turn with the report of a background task that has ended."""
_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_NOISE_BYTES = 2000
_TOOLS_KEPT = 200
_PLANS_KEPT = 4
_EXCERPT_LENGTH = 160
_EXCERPT_SOURCE = 4000
"""What is redacted for an excerpt is longer than the excerpt, so that a secret in it is there whole."""
_CONTEXT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_MOST_COMMANDS = 1000
_TOOL_STATUS: Mapping[CallStatus, str] = {"ok": "completed", "error": "failed", "denied": "denied"}
_OUTCOME_LABELS = {"completed": "ok", "failed": "failed", "denied": "denied"}


class EventWriter:
    """Writes the log of one session. Knows nothing of turns and states."""

    def __init__(self, log: EventLog, cwd: str = "", redact: Callable[[Any], Any] = lambda data: data) -> None:
        self._log = log
        self.readable_lines = ReadableLines(cwd, redact)
        self.retrying: Retrying | None = None
        """The last refusal of the API, until the model answers."""
        self.plan: PlanUsage | None = None
        """The limits of the plan, as last reported."""
        self.rate_limited = False
        """Whether the last answer was made up by Claude Code because a limit is reached."""
        self.commands: tuple[str, ...] = ()
        """The slash commands that the process has told of."""
        self.context_tokens = 0
        """Tokens that the last answer of the model was based on, with that answer; 0 before the first."""
        self.context_window = 0
        """Tokens that the model takes, once a result has told; 0 before."""
        self.background_tasks = 0
        self._background_since = 0.0
        self._report_due = 0.0

    @property
    def context(self) -> tuple[int, int]:
        """`context_tokens` and `context_window`."""
        return self.context_tokens, self.context_window

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
        """Logs a frame. Control frames are left out: what they lead to is logged by those who act on them."""
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
        """Logs an event of a model's stream; returns whether it was a fragment of text, of thinking or of an input.
        Thousands may come in a second, so it does no more than it must."""
        raw = frame.raw
        try:
            delta = raw["event"]["delta"]
            field = _DELTA_FIELDS[delta["type"]]
            text = delta[field]
        except (KeyError, TypeError):
            text = None
        # Fragments are joined by whoever reads the log: what is no text, which only a forged frame has, is not one.
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
            # The report that was waited for has begun its turn.
            self._report_due = 0.0
            names = raw.get("slash_commands")
            if isinstance(names, list):
                self.commands = tuple(name for name in names[:_MOST_COMMANDS] if isinstance(name, str))
        elif frame.subtype == "background_tasks_changed":
            tasks = raw.get("tasks")
            before, self.background_tasks = self.background_tasks, len(tasks) if isinstance(tasks, list) else 0
            # From the first task on: what counts is the time without a break.
            if not before:
                self._background_since = time.monotonic()
            if self.background_tasks < before:
                self._report_due = time.monotonic() + _REPORT_DELAY


@dataclass(slots=True)
class ToolUse:
    """A tool call: `running`, then `completed`, `failed` or `denied`."""

    id: str
    name: str
    description: str
    status: str = "running"


class ReadableLines:
    """Follows one conversation. Text may arrive in fragments first and as a whole block afterwards; a line that was
    made from fragments is not repeated for the block."""

    def __init__(self, cwd: str = "", redact: Callable[[Any], Any] = lambda data: data) -> None:
        """`redact` is applied to tool inputs and results before they are shortened to one line."""
        self._cwd = cwd
        self._redact = redact
        self.tools: OrderedDict[str, ToolUse] = OrderedDict()
        self._plans: OrderedDict[str, Raw] = OrderedDict()
        self._unfinished: list[str] = []
        self._emitted = 0
        """How many characters of the current block have been made into lines."""

    def start_block(self) -> None:
        """A new block of text begins."""
        self._unfinished, self._emitted = [], 0

    def fragment(self, text: str) -> list[str]:
        """The lines that a fragment of text completes."""
        self._unfinished.append(text)  # not added up: a long line in many fragments would be copied each time
        if "\n" not in text:
            return []
        *lines, rest = "".join(self._unfinished).split("\n")
        self._unfinished = [rest]
        self._emitted += sum(len(line) + 1 for line in lines)
        return lines

    def unfinished(self, limit: int) -> str:
        """The line that is being written, at most its first `limit` characters."""
        parts, size = [], 0
        for part in self._unfinished:
            if size >= limit:
                break
            parts.append(part)
            size += len(part)
        return "".join(parts)[:limit]

    def conversation(self, frame: Conversation) -> Iterator[tuple[str, str]]:
        """The lines that a whole frame adds, each with its kind: text, tool or outcome."""
        statuses = call_statuses(frame.raw) if frame.role == "user" else {}
        for block in frame.content:
            match block.get("type"):
                case "text" if frame.role == "assistant" and not frame.from_subagent:
                    rest = str(block.get("text", ""))[self._emitted :]
                    self.start_block()
                    for line in rest.removesuffix("\n").split("\n") if rest else ():
                        yield "text", line
                case "tool_use":
                    yield "tool", self._start_tool(block)
                case "tool_result":
                    yield from self._end_tool(block, statuses.get(str(block.get("tool_use_id")), "error"))

    def plan_input(self, tool_use_id: str | None) -> Raw:
        """The input of a recent call with a plan, as the model wrote it."""
        return self._plans.get(tool_use_id or "", {})

    def mark_denied(self, tool_use_id: str | None) -> None:
        """The call was denied by an answer; its result will only say that it is an error."""
        tool = self.tools.get(tool_use_id or "")
        if tool is not None:
            tool.status = "denied"

    def input_changed(self, tool_use_id: str | None, description: str) -> None:
        """The call runs with another input than the model wrote: what becomes of it is told under that."""
        tool = self.tools.get(tool_use_id or "")
        if tool is not None:
            tool.description = f"{description} (changed by the answer)"

    def fail_running(self) -> None:
        """Nothing runs any more: calls without a result have failed."""
        for tool in self.tools.values():
            tool.status = "failed" if tool.status == "running" else tool.status

    def _start_tool(self, block: Raw) -> str:
        name, tool_input = str(block.get("name")), block.get("input")
        tool_input = tool_input if isinstance(tool_input, dict) else {}
        tool = ToolUse(str(block.get("id")), name, presentation.describe(name, self._redact(tool_input), self._cwd))
        self.tools[tool.id] = tool
        if len(self.tools) > _TOOLS_KEPT:
            self.tools.popitem(last=False)
        if name == "ExitPlanMode":
            self._plans[tool.id] = tool_input
            if len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        return f"[tool] {tool.description}"

    def _end_tool(self, block: Raw, status: CallStatus) -> Iterator[tuple[str, str]]:
        tool = self.tools.get(str(block.get("tool_use_id")))
        if tool is None:
            return
        if tool.status == "running":
            tool.status = _TOOL_STATUS[status]
        excerpt = one_line(self._redact(_first_line(block.get("content"))), _EXCERPT_LENGTH)
        yield "outcome", f"[{_OUTCOME_LABELS[tool.status]}] {tool.description}" + (f" -> {excerpt}" if excerpt else "")


def _first_line(content: object) -> str:
    if isinstance(content, list):
        texts = (block.get("text") for block in content if isinstance(block, dict))
        content = next((text for text in texts if isinstance(text, str)), "")
    return str(content or "").lstrip()[:_EXCERPT_SOURCE].split("\n", 1)[0].rstrip()


# -- the state ---------------------------------------------------------------------------------------------------------


class StateTracker:
    """The current state. Every change is checked against the state machine, logged, and wakes all waiting tasks."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._changed = asyncio.Event()
        self.state = State.IDLE

    def move(self, state: State, detail: str = "") -> None:
        """Changes the state; IllegalMove if the state machine has no such move. Staying put does nothing."""
        if state is self.state:
            return
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self.state} -> {state}")
        self.state = state
        self._log.append(StateChanged(state, detail))
        # A new event per change: the waiting tasks look at the state again when they run, and nothing must be cleared.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_until_at_rest(self, timeout: float | None, *, or_waiting: bool) -> bool:
        """Waits until no turn is running, with `or_waiting` also for a question; returns whether that came in time."""
        awaited = BUSY - {State.WAITING} if or_waiting else BUSY
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.state in awaited:
                    await self._changed.wait()
        return self.state not in awaited


class StallTimer:
    """Calls `report` with the seconds, once per silence of at least `limit`, while `expects_output` returns true.

    `touch` runs for every frame, so it only stores the time; the timer looks at that time when it fires and sets
    itself again.
    """

    def __init__(self, limit: float, expects_output: Callable[[], bool], report: Callable[[float], None]) -> None:
        self._limit = limit
        self._expects_output = expects_output
        self._report = report
        self._last_output = 0.0
        self._clock: Callable[[], float] = time.monotonic
        """That of the event loop, once the timer has been started."""
        self._timer: asyncio.TimerHandle | None = None
        self.stalled = False
        """Whether the limit has passed since the last output."""

    def touch(self) -> None:
        """Notes that there was output: the silence begins anew."""
        self._last_output = self._clock()
        self.stalled = False

    def start(self) -> None:
        """Counts the silence from now on, also if it is running already."""
        self._clock = asyncio.get_running_loop().time
        self.touch()
        if self._timer is None:
            self._schedule(self._limit)

    def stop(self) -> None:
        self.stalled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        silence = self._clock() - self._last_output
        if silence >= self._limit and not self.stalled and self._expects_output():
            self.stalled = True
            self._report(silence)
        # Not at once again: a silence that goes on is reported once, and from then on only looked at.
        self._schedule(max(self._limit - silence, self._limit / 10))
