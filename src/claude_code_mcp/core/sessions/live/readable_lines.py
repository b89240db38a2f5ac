"""A conversation as lines of text, live from frames or later from a transcript."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...claude.protocol import Conversation, Raw
from ...model.outcome import CallStatus, call_statuses
from ...model.text import one_line
from ...questions import presentation

_TOOLS_KEPT = 200
_PLANS_KEPT = 4
_EXCERPT_LENGTH = 160
_EXCERPT_SOURCE = 4000
"""Characters that are redacted to make an excerpt: more than it shows, so that no secret is cut in two before
redaction."""
_TOOL_STATUS: Mapping[CallStatus, str] = {"ok": "completed", "error": "failed", "denied": "denied"}
_OUTCOME_LABELS = {"completed": "ok", "failed": "failed", "denied": "denied"}


@dataclass(slots=True)
class ToolUse:
    """A tool call: `running`, then `completed`, `failed` or `denied`."""

    id: str
    name: str
    description: str
    status: str = "running"


class ReadableLines:
    """Follows one conversation. Text may arrive in fragments first and as a whole block afterward; a line that was
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
        """Note that a new block of text begins."""
        self._unfinished, self._emitted = [], 0

    def fragment(self, text: str) -> list[str]:
        """The lines that a fragment of text completes."""
        self._unfinished.append(text)  # not concatenated: a long line in many fragments would be copied each time
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
        """Note that an answer denied the call: its result will only report an error."""
        tool = self.tools.get(tool_use_id or "")
        if tool is not None:
            tool.status = "denied"

    def input_changed(self, tool_use_id: str | None, description: str) -> None:
        """Note that the call runs with another input than the model wrote; its outcome is shown with this
        description."""
        tool = self.tools.get(tool_use_id or "")
        if tool is not None:
            tool.description = f"{description} (changed by the answer)"

    def fail_running(self) -> None:
        """Mark the calls without a result as failed, because nothing runs any more."""
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
