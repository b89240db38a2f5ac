"""A transcript as a conversation: its turns, each with messages, tool calls and results.

`outline.py` finds the lines of each turn; `read_turn` reads them. It is linear in the size of the turn, never raises
because of its contents, and blocks on the disk.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..model.outcome import call_statuses, without_error_tags
from ..model.text import clip_line
from ..model.unified_diff import unified_diff
from ..private_files import entries_at, is_absence, unless_absent
from .outline import LineRange
from .transcript_lines import (
    MAX_LINE,
    clean,
    clean_data,
    clean_line,
    id_of,
    interrupted_by,
    message_blocks,
    moment_of,
    open_regular,
    parse,
    shown_text,
    steers_terminal,
    typed,
    unwrapped,
    without_sequences,
    without_surrogates,
)

_SUMMARY_NOTE = "The conversation so far was summarized."
_INTERRUPTED_NOTE = "Interrupted."
"""The transcript does not say who interrupted: a person, or an agent that drives the session."""
_SUBAGENTS = "subagents"
_AGENT_PREFIX, _AGENT_SUFFIX = "agent-", ".jsonl"
_MAX_NAME = 200
_MAX_CELL = 1 << 20
_MAX_NEW_FILE = 1 << 16
"""Characters of a new file that are shown as a diff as well; the call has all of them."""
"""How many characters of a cell, before and after a change, are compared."""
_MAX_TURN_BYTES = 64 << 20
"""How many bytes of a turn are read: a session's commands can write any amount into its transcript, and one process
reads the conversations of all callers."""
_MAX_DEPTH, _MAX_FOLDERS = 5, 1000
"""How deep, and in how many directories, to look for transcripts of subagents."""


@dataclass(slots=True)
class Item:
    """One item of a turn."""

    kind: str
    """`text` and `thinking` of the model, a `tool` call, a `message` sent during the turn, or a `note`."""
    text: str = ""
    name: str = ""
    """The name of the tool."""
    input: Any = None
    status: str = ""
    """Status of a tool call: `ok`, `error`, `denied`, or empty without a result."""
    result: str = ""
    output: str = ""
    """The raw result, if it contains terminal colors or overwritten lines."""
    diff: str = ""
    """The change that the call made to a file."""
    agent: str | None = None
    """The subagent that the call started, whose transcript can be read too."""
    id: str = ""
    """The id of a call, or of the line and the position in it. Frames of the stream have the same ids."""
    cut: bool = False
    """Whether something was omitted."""


@dataclass(slots=True)
class ConversationTurn:
    """One prompt and everything until the next one."""

    prompt: str | None = None
    """None if the conversation begins without a prompt."""
    at: str | None = None
    """Its start time, as in the transcript."""
    message_id: str | None = None
    model: str | None = None
    images: int = 0
    """The number of images in the prompt."""
    documents: int = 0
    """The number of PDF documents in the prompt."""
    items: list[Item] = field(default_factory=list)


# -- one turn -----------------------------------------------------------------------------------------------------


def read_turn(path: str, places: Iterable[LineRange]) -> ConversationTurn:
    """The turn in these lines. Lines that no longer exist are skipped. A turn that is too long is read from its first
    line and its last ones; a note reports the gap. Raises OSError if it cannot be read."""
    kept, left_out = _within_limit([*places])
    turn = turn_of(_read_lines(path, kept))
    if left_out:
        note = f"The turn is too long to be shown: {left_out} lines are omitted here."
        turn.items.insert(0, Item("note", note, id=f"{turn.message_id or ''}:left-out", cut=True))
    return turn


def _within_limit(places: list[LineRange]) -> tuple[list[LineRange], int]:
    """The first line, which has the prompt, as many of the last lines as are read, and the number of skipped ones."""
    room, first = _MAX_TURN_BYTES, len(places)
    while first > 1 and (room := room - (places[first - 1].end - places[first - 1].start)) >= 0:
        first -= 1
    # At least the last one, however long: no line is read beyond the limit for one line.
    first = min(first, max(1, len(places) - 1))
    return [*places[:1], *places[first:]], max(0, first - 1)


def read_turn_lines(path: str, places: Iterable[LineRange]) -> Iterator[dict[str, Any]]:
    """The lines of a turn, with the limit of `read_turn`."""
    return _read_lines(path, _within_limit([*places])[0])


def read_prompt_images(path: str, places: Iterable[LineRange]) -> list[str]:
    """The images in the prompt of the turn in these lines, as base64; none without a prompt."""
    for line in _read_lines(path, places):
        if typed(line, of_subagent=bool(line.get("isSidechain"))) is not None:
            blocks = (block.get("source") for block in message_blocks(line) if block.get("type") == "image")
            return [str(source.get("data", "")) for source in blocks if isinstance(source, Mapping)]
    return []


def _read_lines(path: str, places: Iterable[LineRange]) -> Iterator[dict[str, Any]]:
    try:
        with open_regular(path) as file:
            for place in places:
                file.seek(place.start)
                line = parse(file.read(min(place.end - place.start, MAX_LINE)))
                if line is not None:
                    yield line
    except OSError as error:
        if not is_absence(error):
            raise


def turn_of(lines: Iterable[Mapping[str, Any]]) -> ConversationTurn:
    """Parse a turn from its lines."""
    turn = ConversationTurn()
    calls: dict[str, Item] = {}
    waiting: list[Mapping[str, Any]] = []
    for line in lines:
        turn.at = turn.at or moment_of(line.get("timestamp"))
        match line.get("type"):
            case "assistant":
                _add_answer(turn, line, calls)
            case "user":
                _add_user_line(turn, line)
                waiting.append(line)
            case "system" if line.get("subtype") == "compact_boundary":
                turn.items.append(Item("note", _SUMMARY_NOTE, id=_item_id(line)))
            case "attachment":
                _add_message(turn, line)
    for line in waiting:  # at the end, since a result may lie before its call where several ran at once
        statuses = call_statuses(line)
        for block in message_blocks(line):
            item = calls.get(str(block.get("tool_use_id"))) if block.get("type") == "tool_result" else None
            if item is not None:
                item.status = statuses[str(block.get("tool_use_id"))]
                _set_result(item, block, line.get("toolUseResult"))
    return turn


def _add_answer(turn: ConversationTurn, line: Mapping[str, Any], calls: dict[str, Item]) -> None:
    message = line.get("message")
    model = message.get("model") if isinstance(message, Mapping) else None
    turn.model = _name(model) if isinstance(model, str) and not model.startswith("<") else turn.model
    for number, block in enumerate(message_blocks(line)):
        item_id = _item_id(line, number)
        match block.get("type"):
            case "text" if str(block.get("text", "")).strip():
                turn.items.append(Item("text", clean(str(block["text"])), id=item_id))
            case "thinking":
                turn.items.append(Item("thinking", clean(str(block.get("thinking", ""))), id=item_id))
            case "tool_use":
                name, tool_input = _name(str(block.get("name", "tool"))), clean_data(block.get("input"))
                item = Item("tool", name=name, input=tool_input, id=_call_id(block.get("id")))
                calls[str(block.get("id"))] = item
                turn.items.append(item)


def _name(name: str) -> str:
    return clip_line(clean(name), _MAX_NAME)


def _item_id(line: Mapping[str, Any], number: int = 0) -> str:
    return f"{id_of(line.get('uuid')) or ''}:{number}"


def _call_id(call_id: object) -> str:
    return clip_line(clean_line(str(call_id)), _MAX_NAME)


def _add_user_line(turn: ConversationTurn, line: Mapping[str, Any]) -> None:
    """Add a prompt, or a note for what the line stands for."""
    prompt = typed(line, of_subagent=bool(line.get("isSidechain")))
    if prompt is not None and turn.prompt is None and not turn.items:
        turn.prompt = prompt
        turn.message_id = id_of(line.get("uuid"))
        turn.images = sum(block.get("type") == "image" for block in message_blocks(line))
        turn.documents = sum(block.get("type") == "document" for block in message_blocks(line))
    elif prompt is not None:
        turn.items.append(Item("message", prompt, id=_item_id(line)))
    elif interrupted_by(line):
        turn.items.append(Item("note", _INTERRUPTED_NOTE, id=_item_id(line)))
    elif line.get("isCompactSummary"):
        summary = "\n".join(str(block.get("text", "")) for block in message_blocks(line))
        turn.items.append(Item("thinking", clean(summary), id=_item_id(line)))


def _add_message(turn: ConversationTurn, line: Mapping[str, Any]) -> None:
    """Add a message that was sent during the turn."""
    attachment = line.get("attachment")
    if not isinstance(attachment, Mapping) or attachment.get("type") != "queued_command":
        return
    message = unwrapped(shown_text(attachment.get("prompt")))
    if message is not None:
        # While the turn runs, the message has the id with which it was sent.
        sent = id_of(attachment.get("source_uuid"))
        turn.items.append(Item("message", message, id=_item_id(line) if sent is None else f"{sent}:0"))


def _set_result(item: Item, block: Mapping[str, Any], details: object) -> None:
    text = without_error_tags(shown_text(block.get("content")), item.status)
    item.result = clean(without_sequences(text))
    item.output = without_surrogates(text) if steers_terminal(text) else ""
    if isinstance(details, Mapping):
        item.diff = recorded_diff(details)
        agent = details.get("agentId")
        item.agent = agent if isinstance(agent, str) and is_agent_id(agent) else None


def frame_items(frame: Mapping[str, Any]) -> list[Item]:
    """The items that a frame of the CLI's stream adds to its turn, with the ids that the transcript will use: items of
    an answer, or results of calls, as items that have only the id of the call."""
    if frame.get("type") == "assistant":
        turn = ConversationTurn()
        _add_answer(turn, frame, {})
        return turn.items
    results = [block for block in message_blocks(frame) if block.get("type") == "tool_result"]
    items, statuses = [], call_statuses(frame) if results else {}
    for block in results if frame.get("type") == "user" else ():
        call = block.get("tool_use_id")
        item = Item("tool", id=_call_id(call), status=statuses[str(call)])
        _set_result(item, block, frame.get("tool_use_result"))
        items.append(item)
    return items


def started_agent(frame: Mapping[str, Any]) -> tuple[str, str] | None:
    """The call and the id of a subagent that starts, if a frame of the CLI's stream reports one. The call's result
    names it too, but only after its work."""
    if frame.get("type") != "system" or frame.get("subtype") != "task_started":
        return None
    agent, call = frame.get("task_id"), frame.get("tool_use_id")
    if frame.get("task_type") != "local_agent" or not isinstance(call, str):
        return None  # a command has its own id, and no conversation
    return (_call_id(call), agent) if isinstance(agent, str) and is_agent_id(agent) else None


def recorded_diff(details: Mapping[str, Any]) -> str:
    """The change to a file that the CLI recorded, as a unified diff."""
    if "edit_mode" in details:
        return _cell_diff(details)
    hunks, content = details.get("structuredPatch"), details.get("content")
    if details.get("type") == "create" and not hunks and isinstance(content, str):
        return clean(unified_diff("", content)) if len(content) <= _MAX_NEW_FILE else ""
    lines: list[str] = []
    for hunk in hunks if isinstance(hunks, list) else ():
        body = hunk.get("lines") if isinstance(hunk, Mapping) else None
        if isinstance(body, list):
            numbers = [hunk.get(name) for name in ("oldStart", "oldLines", "newStart", "newLines")]
            lines.append("@@ -{},{} +{},{} @@".format(*numbers))
            lines.extend(str(part) for part in body)
    return clean("\n".join(lines))


def _cell_diff(details: Mapping[str, Any]) -> str:
    """The change to one notebook cell, by lines of the cell; empty if the CLI did not record the old content."""
    mode = details.get("edit_mode")
    before = "" if mode == "insert" else details.get("old_source")
    after = "" if mode == "delete" else details.get("new_source")
    if not isinstance(before, str) or not isinstance(after, str) or details.get("error"):
        return ""
    return clean(unified_diff(before, after)) if len(before) + len(after) <= _MAX_CELL else ""


# -- subagents ----------------------------------------------------------------------------------------------------


def is_agent_id(text: str) -> bool:
    """Whether a string can be a subagent's id. Only such strings may become part of a path."""
    return 0 < len(text) <= 100 and text.replace("-", "").replace("_", "").isalnum() and text.isascii()


def subagents(path: str) -> dict[str, str]:
    """The transcripts of a session's subagents by id, below the transcript at `path`, oldest first. Links are skipped,
    because they could lead to another caller's files. Raises OSError if they cannot be listed."""
    found: list[tuple[float, str, str]] = []
    folders = [(os.path.join(os.path.splitext(path)[0], _SUBAGENTS), 0)]
    for folder, depth in folders:  # it grows while it is walked
        for entry in unless_absent(partial(entries_at, folder)) or ():
            inside, mode = os.path.join(folder, entry.name), entry.status.st_mode
            if stat.S_ISDIR(mode) and depth < _MAX_DEPTH and len(folders) < _MAX_FOLDERS:
                folders.append((inside, depth + 1))
            agent = entry.name.removeprefix(_AGENT_PREFIX).removesuffix(_AGENT_SUFFIX)
            named = entry.name.startswith(_AGENT_PREFIX) and entry.name.endswith(_AGENT_SUFFIX)
            if stat.S_ISREG(mode) and named and is_agent_id(agent):
                found.append((entry.status.st_mtime, agent, inside))
    return {agent: file for _, agent, file in sorted(found)}
