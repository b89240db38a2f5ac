"""Frames → readable lines: whole lines of Claude's text, tool calls and what came of them. Pure."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from ..claude.frames import Conversation, Raw
from ..questions.describe import describe
from ..secret_shapes import hide_shapes

_REMEMBERED = 200
_EXCERPT = 160


@dataclass(slots=True)
class ToolUse:
    """A tool call: `running`, then `completed`, `failed` or `denied`."""

    id: str
    name: str
    description: str
    status: str = "running"


class Narrator:
    """Follows one conversation. Text may arrive in fragments first and as a whole block afterwards."""

    def __init__(self, cwd: str = "") -> None:
        self._cwd = cwd
        self.tools: OrderedDict[str, ToolUse] = OrderedDict()
        self._inputs: OrderedDict[str, Raw] = OrderedDict()
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

    def tool_input(self, tool_use_id: str | None) -> Raw:
        """The input of a recent tool call, as the model wrote it."""
        return self._inputs.get(tool_use_id or "", {})

    def denied(self, tool_use_id: str | None) -> None:
        """Somebody denied this call; its result will say `error`."""
        tool = self.tools.get(tool_use_id or "")
        if tool is not None:
            tool.status = "denied"

    def _rest_of(self, text: str) -> list[str]:
        untold = text[self._told :]
        self.block_started()
        return untold.removesuffix("\n").split("\n") if untold else []

    def _tool_started(self, block: Raw) -> str:
        name, raw = str(block.get("name")), block.get("input")
        given = raw if isinstance(raw, dict) else {}
        tool = ToolUse(str(block.get("id")), name, describe(name, given, self._cwd))
        self.tools[tool.id] = tool
        self._inputs[tool.id] = given
        if len(self.tools) > _REMEMBERED:
            self.tools.popitem(last=False)
        if len(self._inputs) > 20:
            self._inputs.popitem(last=False)
        return f"[tool] {tool.description}"

    def _tool_ended(self, block: Raw) -> Iterator[tuple[str, str]]:
        tool = self.tools.get(str(block.get("tool_use_id")))
        if tool is None:
            return
        if tool.status == "running":
            tool.status = "failed" if block.get("is_error") else "completed"
        told = {"completed": "ok", "failed": "failed", "denied": "denied"}[tool.status]
        excerpt = _excerpt(block.get("content"))
        yield "outcome", f"[{told}] {tool.description}" + (f" -> {excerpt}" if excerpt else "")


def _excerpt(content: object) -> str:
    if isinstance(content, list):
        texts = (block.get("text") for block in content if isinstance(block, dict))
        content = next((text for text in texts if isinstance(text, str)), "")
    first = str(content or "").strip().split("\n", 1)[0]
    if len(first) <= _EXCERPT:
        return first
    first = hide_shapes(first)  # of a secret that is cut, the rest could not be recognised
    return first if len(first) <= _EXCERPT else first[: _EXCERPT - 1] + "…"
