"""Look into the messages of a request: texts, tool results and the places they name. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claude_code_mcp.testing.script import MARKER

Json = dict[str, Any]

_PLAN_FILE = re.compile(r"plan(?: file already exists)? at (.{1,4096}?\.md)\b")
_DIRECTORY = re.compile(r"[Ww]orking directory: (.+)")
_PLACEHOLDER = re.compile(r"\$\{(plan_file|cwd|tool_result)\}")


def messages_of(body: Mapping[str, Any]) -> list[Json]:
    """The messages of a request."""
    return [message for message in body.get("messages") or [] if isinstance(message, dict)]


def texts_of(content: Any) -> list[str]:
    """The texts of a message or of a tool result, without those of the tool results inside it."""
    if isinstance(content, str):
        return [content]
    return [str(block.get("text", "")) for block in _blocks(content, "text")]


def heard(messages: Sequence[Json], *roles: str) -> list[str]:
    """The texts of these roles, oldest first."""
    return [words for message in messages if message.get("role") in roles for words in texts_of(message.get("content"))]


def tool_results_in(messages: Sequence[Json]) -> list[Json]:
    """The tool results the model has received since it last spoke."""
    found: list[Json] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            break
        found[:0] = _blocks(message.get("content"), "tool_result")
    return found


def _blocks(content: Any, kind: str) -> list[Json]:
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Replaces `${plan_file}`, `${cwd}` and `${tool_result}` by what the request says about them."""

    body: Mapping[str, Any]

    def fill(self, value: Any) -> Any:
        """The value with its placeholders replaced, in all the strings inside it.

        What is not a placeholder, such as `${HOME}`, stays; so does a script inside a string, because it
        belongs to another conversation.
        """
        if isinstance(value, str):
            own, marker, nested = value.partition(MARKER)
            return _PLACEHOLDER.sub(self._replacement, own) + marker + nested
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        return value

    def _replacement(self, placeholder: re.Match[str]) -> str:
        match placeholder[1]:
            case "plan_file":
                return self._newest(_PLAN_FILE) or placeholder[0]
            case "cwd":
                return self._newest(_DIRECTORY) or placeholder[0]
            case _:
                return "\n".join(self._results())

    def _results(self) -> list[str]:
        results = tool_results_in(messages_of(self.body))
        return [words for result in results for words in texts_of(result.get("content"))]

    def _newest(self, pattern: re.Pattern[str]) -> str:
        texts = [*texts_of(self.body.get("system")), *heard(messages_of(self.body), "user", "system")]
        found = (pattern.findall(words) for words in reversed(texts))
        return next((str(matches[-1]) for matches in found if matches), "")
