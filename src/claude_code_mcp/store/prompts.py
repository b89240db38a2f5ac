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
_WRAPPED = re.compile(rf"<({'|'.join(_OF_THE_MACHINE)})\b[^>]*>.*?(?:</\1>|\Z)", re.DOTALL)
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>", re.DOTALL)
_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)
_SHELL = re.compile(r"<bash-input>(.*?)</bash-input>", re.DOTALL)
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
    command, shell = _COMMAND.search(text), _SHELL.search(text)
    if command:
        arguments = _ARGUMENTS.search(text)
        text = f"{command[1]} {arguments[1] if arguments else ''}"
    elif shell:
        text = f"! {shell[1]}"
    plain = clean(_WRAPPED.sub("", text)).strip()
    return plain if plain and not plain.startswith(_INTERRUPTED) else None


def is_bare_command(text: str) -> bool:
    """Such as `/clear`: says nothing about what a conversation is about."""
    return text.startswith("/") and len(text.split()) == 1


def shortened(text: str, longest: int = 200) -> str:
    """On one line, and not too long."""
    flat = " ".join(text[: 20 * longest].split())
    return flat if len(flat) <= longest else flat[: longest - 1].rstrip() + "…"
