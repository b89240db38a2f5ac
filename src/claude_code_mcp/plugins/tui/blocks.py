"""A conversation as blocks, built from the server's data. Pure.

There are two sources: the transcript (`add_history`, backwards, page by page) and the feed of a running session
(`fold`). A block has the id of its content, so that duplicates are merged. A window of the newest blocks is kept;
earlier ones can be read again. All text is made visible here: nothing drawn later contains control characters.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...client.styled_lines import call_line, result_text
from ...core.model.folded_calls import MIN_RUN, is_read_call, run_line
from ...core.model.outcome import call_statuses, without_error_tags
from ...core.model.states import BUSY_STATUSES
from ...core.model.text import clip_line, cut, visible
from ...core.transcripts.conversation import recorded_diff
from ...core.transcripts.transcript_lines import without_sequences
from .chunked_text import ChunkedText

MAX_BLOCKS = 400
MAX_CHARACTERS = 3_000_000
_READ_BACK = 5
"""How many times as much is kept while the user scrolls back."""
_MAX_RESULT = 50_000
_HAND_BACK = re.compile(r"\A\[Subagent hand-back\][^\n]*\n*")
"""Precedes the report of a subagent, for the model."""
_SHOWN_NOTES = {"expired": "A question timed out.", "withdrawn": "A question was withdrawn."}


@dataclass(frozen=True, slots=True)
class ReadCallRun:
    """A run of calls that only read, shown as one line."""

    line: str
    is_open: bool
    is_running: bool


@dataclass(slots=True, eq=False)
class ConversationBlock:
    """One item of the conversation."""

    kind: str
    """`prompt`, `message`, `text`, `thinking`, `tool` or `note`."""
    id: str = ""
    body: ChunkedText = field(default_factory=ChunkedText)
    name: str = ""
    """The name of the tool."""
    summary: str = ""
    """A tool call on one line."""
    input: Any = None
    status: str = ""
    """Status of a tool call: `ok`, `error`, or empty without a result."""
    result: str = ""
    diff: str = ""
    within_agent: bool = False
    """Whether a subagent did it."""
    agent: str = ""
    """The subagent that the call started, whose conversation can be read."""
    is_open: bool = False
    """Whether a foldable block is unfolded."""
    run: ReadCallRun | None = None
    """On the first block of a run."""
    opens_run: bool = False
    """Whether the user unfolded the run that the block is in."""
    is_hidden: bool = False
    """Whether the block is in a folded run, and not its first block."""
    streaming: bool = False
    revision: int = 0
    """Grows with every change, for caching what is drawn."""

    @property
    def can_fold(self) -> bool:
        return self.kind in ("tool", "thinking")

    @property
    def is_read_call(self) -> bool:
        return self.kind == "tool" and is_read_call(self.name, self.status)

    @property
    def size(self) -> int:
        return self.body.size + len(self.result) + len(self.diff) + 2 * len(self.summary) + 200

    @property
    def text(self) -> str:
        """The block's text for copying."""
        if self.kind != "tool":
            return self.body.text
        return "\n".join(filter(None, (self.summary, self.result)))


class ShownConversation:
    """The kept blocks of one session."""

    def __init__(self, session_id: str, cwd: str = "") -> None:
        self.session_id = session_id
        self.cwd = cwd
        self.blocks: list[ConversationBlock] = []
        self.cursor: str | None = None
        """The position in the feed."""
        self.summary: dict[str, Any] = {}
        """The facts for the status line, as last reported."""
        self.model = ""
        self.commands: list[str] = []
        """The slash commands that the session knows."""
        self.previous: str | None = None
        """The position for older history; None if there is none or it is unknown."""
        self.has_older = False
        self.is_read_back = False
        """Whether the user is reading older blocks: then more are kept."""
        self.revision = 0
        """Grows with every change of any block."""
        self._by_id: dict[str, ConversationBlock] = {}
        self._stream: ConversationBlock | None = None
        self._writing_input = 0

    def fold(self, page: Mapping[str, Any]) -> None:
        """Adds a page of the feed."""
        self.session_id = page["sessionId"]
        self.cursor = page["nextCursor"]
        self.summary = dict(page["session"])
        self.cwd = self.summary.get("workingDirectory") or self.cwd
        for event in page["events"]:
            self._fold_event(event)
        self._shrink()
        self.revision += 1

    def _fold_event(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "fragment":
                self._fold_fragment(event)
            case "message":
                self._fold_message(event["message"])
            case "turn_started":
                self._end_stream()
                self._add(ConversationBlock("prompt", event["messageId"], _body(event["prompt"])))
            case "message_joined":
                self._joined(event["messageId"], event["text"])
            case "turn_ended":
                self._end_stream()
                if event["code"] not in ("ok", "completed", "success"):
                    # Claude Code reports some failures also as its answer, which is already shown here.
                    answer = self.blocks[-1].text.strip() if self.blocks and self.blocks[-1].kind == "text" else ""
                    reason = visible(event.get("detail") or event["result"]).removeprefix(answer).strip()
                    self._note(f"The turn ended: {event['code']}. {reason}".strip())
            case "budget":
                self._note(event["warning"])
            case "gap":
                self._note("Some earlier events are no longer available.")
            case "expired" | "withdrawn":
                self._note(_SHOWN_NOTES[event["type"]])

    def _fold_fragment(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "partial_json":
            self._writing_input += event["size"]
            return
        if self._stream is None or self._stream.kind != kind:
            self._end_stream()
            self._stream = ConversationBlock(kind, streaming=True)
            self.blocks.append(self._stream)
        self._stream.body.append(visible(event["text"]))
        self._stream.revision += 1

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.streaming = False
            self._stream.revision += 1
            self._stream = None

    def _fold_message(self, message: Mapping[str, Any]) -> None:
        kind, content = message.get("type"), (message.get("message") or {}).get("content")
        if kind == "system" and message.get("subtype") == "init":
            self.model = visible(str(message.get("model") or self.model))
            self.commands = [visible(str(name)) for name in message.get("slash_commands") or ()]
        elif kind == "system" and message.get("subtype") == "task_started":
            self._agent_started(message)
        elif kind == "system" and message.get("subtype") == "compact_boundary":
            self._note("The conversation so far was summarized.")
        elif kind in ("assistant", "user") and isinstance(content, list):
            statuses = call_statuses(message)
            for part in content:
                if isinstance(part, Mapping):
                    self._fold_part(kind, message, part, statuses)
        elif "omitted_bytes" in message:
            self._note(f"A message of {message['omitted_bytes']} bytes is too long to be shown here.")

    def _fold_part(
        self, kind: str, message: Mapping[str, Any], part: Mapping[str, Any], statuses: Mapping[str, str]
    ) -> None:
        within = message.get("parent_tool_use_id") is not None
        match part.get("type"):
            case ("text" | "thinking") as wanted if kind == "assistant" and not within:
                self._whole(str(wanted), str(message.get("uuid") or ""), str(part.get(str(wanted)) or ""))
            case "tool_use":
                self._writing_input = 0
                self._add(self._call(str(part.get("id")), str(part.get("name")), part.get("input"), within))
            case "tool_result":
                self._result(part, statuses, message.get("tool_use_result"))

    def _whole(self, kind: str, block_id: str, text: str) -> None:
        """A text is complete, streamed or not."""
        # The complete text replaces the streamed one: fragments may have been omitted for a slow reader.
        streamed, self._stream = self._stream, None
        if streamed is not None and (streamed.kind != kind or block_id in self._by_id):
            self._remove(streamed)
            streamed = None
        if block_id in self._by_id or not text.strip():
            if streamed is not None:
                self._remove(streamed)
            return
        block = streamed or ConversationBlock(kind)
        block.id, block.body, block.streaming = block_id, _body(text), False
        block.revision += 1
        if streamed is None:
            self._add(block)
        else:
            self._by_id[block_id] = block

    def _call(self, block_id: str, name: str, tool_input: Any, within: bool = False) -> ConversationBlock:
        summary = clip_line(call_line(name, tool_input, self.cwd), 500)
        return ConversationBlock(
            "tool", block_id, name=visible(name), summary=summary, input=tool_input, within_agent=within
        )

    def _result(self, part: Mapping[str, Any], statuses: Mapping[str, str], details: object = None) -> None:
        call = str(part.get("tool_use_id"))
        block = self._by_id.get(call)
        if block is not None and block.kind == "tool":
            block.status = statuses.get(call, "error")
            result = without_error_tags(without_sequences(result_text(part.get("content"))), block.status)
            if block.agent or (isinstance(details, Mapping) and details.get("agentId")):
                result = _HAND_BACK.sub("", result)
            block.result = cut(visible(result), _MAX_RESULT)
            named = details.get("agentId") if isinstance(details, Mapping) else None
            block.agent = visible(str(named)) if named else block.agent
            if isinstance(details, Mapping):
                block.diff = visible(recorded_diff(details))
            block.revision += 1

    def _agent_started(self, message: Mapping[str, Any]) -> None:
        """A subagent starts: its conversation can be read before its call has a result."""
        block = self._by_id.get(str(message.get("tool_use_id")))
        if block is not None and block.kind == "tool" and message.get("task_type") == "local_agent":
            block.agent = visible(str(message.get("task_id") or ""))
            block.revision += 1

    def _note(self, text: str) -> None:
        self._end_stream()
        self.blocks.append(ConversationBlock("note", body=_body(text)))

    def _add(self, block: ConversationBlock) -> None:
        if block.id and block.id in self._by_id:
            return
        if self._stream is not None and block.kind != "tool":
            self._end_stream()
        self.blocks.append(block)
        if block.id:
            self._by_id[block.id] = block

    def _remove(self, block: ConversationBlock) -> None:
        self.blocks = [other for other in self.blocks if other is not block]
        self._by_id.pop(block.id, None)

    def sent(self, text: str) -> None:
        """A message was sent into the running turn; the transcript will contain it later."""
        self._add(ConversationBlock("message", body=_body(text)))
        self.revision += 1

    def _joined(self, message_id: str, text: str) -> None:
        """A message joined the running turn; one sent from here is already shown."""
        body = _body(text)
        for block in reversed(self.blocks):
            # The newest first: an older one with the same text may never have been processed.
            if block.kind == "message" and not block.id and block.body.text == body.text:
                block.id = message_id
                self._by_id.setdefault(message_id, block)
                return
        self._end_stream()
        self._add(ConversationBlock("message", message_id, body))

    @property
    def first_id(self) -> str:
        """The id of the oldest block from the transcript; empty if there is none."""
        return next((block.id for block in self.blocks if block.id), "")

    def add_history(self, items: Iterable[Mapping[str, Any]], previous: str | None) -> int:
        """Inserts a page of the transcript at the top; returns the number of new blocks."""
        older = [block for block in map(self._of_item, items) if not block.id or block.id not in self._by_id]
        self.blocks[:0] = older
        self._by_id.update({block.id: block for block in older if block.id})
        self.previous, self.has_older = previous, previous is not None
        self.revision += 1
        return len(older)

    def add_newer(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Appends new content of a transcript that another program writes: what follows the newest block from it."""
        pages = list(items)
        known = [number for number, item in enumerate(pages) if item.get("id") in self._by_id]
        for item in pages[known[-1] :] if known else pages:
            if not item.get("id"):
                continue  # a note: whether it is already shown is unknown
            block = self._of_item(item)
            before = self._by_id.get(block.id)
            if before is None:
                self._add(block)
            elif before.kind == "tool" and before.status != block.status:
                before.status, before.result, before.diff = block.status, block.result, block.diff
                before.agent = block.agent
                before.revision += 1
        self._shrink()
        self.revision += 1

    def _of_item(self, item: Mapping[str, Any]) -> ConversationBlock:
        if item["kind"] != "tool":
            return ConversationBlock(item["kind"], item.get("id") or "", _body(item.get("text") or ""))
        block = self._call(item["id"], item.get("name") or "tool", item.get("input"))
        block.status, block.diff = item.get("status") or "", visible(item.get("diff") or "")
        block.agent = visible(item.get("agent") or "")
        block.result = cut(visible(item.get("result") or ""), _MAX_RESULT)
        return block

    def fold_read_calls(self) -> None:
        """Folds runs of calls that only read; a run stays unfolded in which the user unfolded a block."""
        for leader, *others in self._runs():
            run = [leader, *others]
            is_run = len(run) >= MIN_RUN
            is_open = is_run and any(block.opens_run or block.is_open for block in run)
            is_running = not all(block.status for block in run)
            leader.run = ReadCallRun(run_line(block.name for block in run), is_open, is_running) if is_run else None
            leader.is_hidden = False
            for block in run:
                block.opens_run = is_open
            for block in others:
                block.run, block.is_hidden = None, is_run and not is_open

    def _runs(self) -> list[list[ConversationBlock]]:
        """The blocks as runs; a block that is not a read-only call is alone."""
        runs: list[list[ConversationBlock]] = []
        for block in self.blocks:
            before = runs[-1][-1] if runs else None
            if before and before.is_read_call and block.is_read_call and before.within_agent == block.within_agent:
                runs[-1].append(block)
            else:
                runs.append([block])
        return runs

    def fold_run(self, leader: ConversationBlock) -> None:
        """Folds the run that begins with this block, and its blocks."""
        for block in next((run for run in self._runs() if run[0] is leader), []):
            block.opens_run = block.is_open = False

    def _shrink(self) -> None:
        """Drops the oldest blocks outside of the window."""
        size, kept, more = 0, 0, _READ_BACK if self.is_read_back else 1
        for block in reversed(self.blocks):
            size += block.size
            if kept and (kept >= MAX_BLOCKS * more or size > MAX_CHARACTERS * more):
                break
            kept += 1
        gone = self.blocks[: len(self.blocks) - kept]
        if gone:
            del self.blocks[: len(gone)]
            for block in gone:
                self._by_id.pop(block.id, None)
            # The position of the next older page is unknown now: `load_older` searches for the oldest remaining block.
            self.previous, self.has_older = None, True

    @property
    def status(self) -> str:
        return str(self.summary.get("status") or "")

    @property
    def busy(self) -> bool:
        return self.status in BUSY_STATUSES

    @property
    def in_terminal(self) -> bool:
        """Whether a person uses the session in a terminal: the feed has only its questions."""
        return bool(self.summary.get("inTerminal"))

    @property
    def activity(self) -> str:
        """A remark on work in progress that no block shows; otherwise empty."""
        if self._writing_input:
            return f"writing tool input ({self._writing_input} characters)"
        return ""

    def search(self, text: str) -> list[int]:
        """The blocks that contain a text, ignoring case."""
        wanted = text.casefold()
        return [number for number, block in enumerate(self.blocks) if wanted and wanted in block.text.casefold()]


def _body(text: str) -> ChunkedText:
    return ChunkedText(visible(text))
