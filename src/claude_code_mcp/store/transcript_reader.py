"""One transcript as a person would read it: prompts, answers, tool calls and how they went."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .jsonl import clean, last_lines, parse
from .transcript_summary import shortened, typed

_READ = 1 << 24


_LONGEST = 160


def readable_lines(path: str) -> Iterator[str]:
    """The conversation in the last 16 MiB of a transcript."""
    lines, left_out = last_lines(path, _READ)
    if left_out:
        yield "[the beginning is left out]"
    yield from _readable(lines)


def grown_lines(path: str, offset: int) -> tuple[list[str], int]:
    """What was written behind `offset`, and where to look on the next time. Half a line is left for then."""
    with open(path, "rb") as file:
        file.seek(offset)
        written = file.read(_READ)
    whole = written[: written.rfind(b"\n") + 1]
    return list(_readable(whole.split(b"\n"))), offset + len(whole)


def _readable(lines: Iterable[bytes]) -> Iterator[str]:
    for raw in lines:
        line = parse(raw)
        if line is not None and not line.get("isSidechain"):
            yield from _told(line)


def _told(line: Mapping[str, Any]) -> Iterator[str]:
    prompt = typed(line)
    if prompt is not None:
        yield from (f"> {part}" for part in prompt.splitlines())
    if line.get("subtype") == "compact_boundary":
        yield "[the conversation so far was summarized]"
    message = line.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str) and line.get("type") == "assistant":
        yield from clean(content).splitlines()
    for block in content if isinstance(content, list) else []:
        if isinstance(block, Mapping):
            yield from _block(block, spoken=line.get("type") == "assistant")


def _block(block: Mapping[str, Any], *, spoken: bool) -> Iterator[str]:
    match block.get("type"):
        case "text" if spoken:
            yield from clean(str(block.get("text", ""))).splitlines()
        case "tool_use":
            yield _line(f"[{block.get('name', 'tool')}] {_arguments(block.get('input'))}")
        case "tool_result":
            yield _line(f"[{'error' if block.get('is_error') else 'ok'}] {_outcome(block.get('content'))}")


def _line(text: str) -> str:
    return shortened(clean(text), _LONGEST)


def _arguments(given: Any) -> str:
    """The value alone where there is only one thing to tell, such as a command or a path."""
    values = given if isinstance(given, Mapping) else {}
    told = {key: _short(value) for key, value in values.items() if key != "description"}
    if len(told) == 1:
        return next(iter(told.values()))
    return ", ".join(f"{key}={value}" for key, value in told.items())


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _outcome(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    return " ".join(str(block.get("text") or f"[{block.get('type')}]") for block in blocks)


_TAIL_READ = 4 << 20


_MOST = 2000


@dataclass(frozen=True, slots=True)
class Recent:
    """The last messages of a conversation, subagents' own left out."""

    messages: tuple[Mapping[str, Any], ...] = ()
    complete: bool = True
    """Whether these are all messages there are."""
    fingerprint: str = ""
    """The same while the transcript is the same."""

    @property
    def answer(self) -> str | None:
        """The text that the conversation ends with; None if it ends with a question, a tool call or a tool's result."""
        last = self.messages[-1] if self.messages else {}
        if last.get("type") != "assistant":
            return None
        content = last["message"].get("content")
        if isinstance(content, str):
            return content
        blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
        if not blocks or blocks[-1].get("type") != "text":
            return None
        return str(blocks[-1].get("text", ""))


def read_recent(path: Path) -> Recent:
    """What the last part of a transcript holds; nothing if it cannot be read."""
    try:
        facts = os.stat(path)
    except OSError:
        return Recent()
    lines, left_out = last_lines(str(path), _TAIL_READ)
    messages = [line for line in map(parse, lines) if line is not None and _is_message(line)]
    seen = f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}"
    fingerprint = hashlib.sha256(seen.encode()).hexdigest()[:8]
    return Recent(tuple(messages[-_MOST:]), not left_out and len(messages) <= _MOST, fingerprint)


def _is_message(line: Mapping[str, Any]) -> bool:
    spoken = line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)
    return spoken and not line.get("isSidechain") and not line.get("isMeta")
