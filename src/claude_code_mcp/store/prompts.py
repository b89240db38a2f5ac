"""What a person typed, told apart from what Claude Code itself says in the place of the user. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from .jsonl import clean

_OF_THE_MACHINE = (
    "system-reminder", "local-command-caveat", "local-command-stdout", "local-command-stderr", "bash-stdout",
    "bash-stderr", "ide_opened_file", "ide_selection", "session-start-hook", "user-prompt-submit-hook",
    "task-notification", "tick", "goal",
)  # fmt: skip
_OPENING = re.compile(rf"<({'|'.join(_OF_THE_MACHINE)})\b")
_INTERRUPTED = "[Request interrupted by user"
_NOT_TYPED = ("isMeta", "isSidechain", "isCompactSummary", "isVisibleInTranscriptOnly")


def typed(line: Mapping[str, Any]) -> str | None:
    """What a person typed in a line of a transcript; None if the line is none of theirs."""
    message = line.get("message")
    if line.get("type") != "user" or not isinstance(message, Mapping) or any(line.get(key) for key in _NOT_TYPED):
        return None
    return unwrapped(_text_of(message.get("content")))


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    words = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    pictures = "[image]" if any(block.get("type") == "image" for block in blocks) else ""
    return "\n".join(words) or pictures


def unwrapped(text: str) -> str | None:
    """A message without what was wrapped around it; a command as it was typed."""
    command, shell = _inside(text, "command-name"), _inside(text, "bash-input")
    if command is not None:
        text = f"{command} {_inside(text, 'command-args') or ''}"
    elif shell is not None:
        text = f"! {shell}"
    plain = clean(_without_the_machine(text)).strip()
    return plain if plain and not plain.startswith(_INTERRUPTED) else None


def _inside(text: str, tag: str) -> str | None:
    """What the first element of this name holds. If the first has no end, no later one has."""
    _, opening, rest = text.partition(f"<{tag}>")
    inside, closing, _ = rest.partition(f"</{tag}>")
    return inside if opening and closing else None


def _without_the_machine(text: str) -> str:
    """The text without the machine's elements; one that is not closed reaches to the end. Each part is read once."""
    kept, reached = [], 0
    while (found := _OPENING.search(text, reached)) is not None:
        opened = text.find(">", found.end())
        if opened < 0:
            break
        kept.append(text[reached : found.start()])
        closing = f"</{found[1]}>"
        closed = text.find(closing, opened)
        reached = len(text) if closed < 0 else closed + len(closing)
    return "".join((*kept, text[reached:]))


def is_bare_command(text: str) -> bool:
    """Such as `/clear`: says nothing about what a conversation is about."""
    return text.startswith("/") and len(text.split()) == 1


def shortened(text: str, longest: int = 200) -> str:
    """On one line, and not too long."""
    flat = " ".join(text[: 20 * longest].split())
    return flat if len(flat) <= longest else flat[: longest - 1].rstrip() + "…"
