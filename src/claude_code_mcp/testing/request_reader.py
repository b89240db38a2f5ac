"""Read the script out of a Messages request and say what the model answers. Pure: no I/O, no clock.

The server keeps no conversation. The newest script in the request decides, and the number of assistant
messages after it is the index of the step. Two kinds of request carry no script and are recognised by their
shape: the CLI asks for a title of the session, and for a summary of a conversation that has become too long.

`answer_to` never raises: what cannot be read is answered with a text that says why. These texts never hold
the marker of a script, because the text of a subagent comes back to its parent as a message.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from claude_code_mcp.testing.script import MARKER, Json, ModelAnswer, ScriptError, answer_of, steps_of, text_answer

_NOTIFICATION = "<task-notification>"
"""Marks a message the CLI wrote about a subagent: what it quotes is not a script of this conversation."""

_PLAN_FILE = re.compile(r"plan(?: file already exists)? at (.{1,4096}?\.md)\b")
_DIRECTORY = re.compile(r"[Ww]orking directory: (.+)")
_PLACEHOLDER = re.compile(r"\$\{(plan_file|cwd|tool_result)\}")

_SUMMARY_REQUEST = "CRITICAL: Respond with TEXT ONLY"
_SUMMARY = "<analysis>Scripted.</analysis>\n<summary>A scripted conversation.</summary>"
_TITLE = "Scripted session"
_EMPTY_VALUES = {"integer": 0, "number": 0, "boolean": False, "array": [], "null": None}


def answer_to(body: Mapping[str, Any]) -> ModelAnswer:
    """The answer to a Messages request, given its decoded body."""
    if (text := _side_answer(body)) is not None:
        return text_answer(text)
    try:
        return _scripted_answer(body)
    except ScriptError as error:
        return text_answer(f"Bad script: {error}.")


# -- the messages of a request -----------------------------------------------------------------------------


def messages_of(body: Mapping[str, Any]) -> list[Json]:
    """The messages of a request."""
    return [message for message in body.get("messages") or [] if isinstance(message, dict)]


def texts_of(content: Any) -> list[str]:
    """The texts of a message or of a tool result, without those of the tool results inside it."""
    if isinstance(content, str):
        return [content]
    return [str(block.get("text", "")) for block in _blocks(content, "text")]


def texts_by_role(messages: Sequence[Json], *roles: str) -> list[str]:
    """The texts of the messages of these roles, oldest first."""
    return [text for message in messages if message.get("role") in roles for text in texts_of(message.get("content"))]


def tool_results_in(messages: Sequence[Json]) -> list[Json]:
    """The tool results the model has received since its last message."""
    results: list[Json] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            break
        results[:0] = _blocks(message.get("content"), "tool_result")
    return results


def _blocks(content: Any, kind: str) -> list[Json]:
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


# -- the script ------------------------------------------------------------------------------------------


def newest_script(messages: Sequence[Json]) -> tuple[int, str] | None:
    """The position of the newest message that holds a script, and its text; None if there is none.

    The CLI puts a prompt into a user message, and what is sent during a turn into a system message.
    """
    for position in range(len(messages) - 1, -1, -1):
        for text in reversed(texts_by_role([messages[position]], "user", "system")):
            if MARKER in text and _NOTIFICATION not in text:
                return position, text
    return None


def _scripted_answer(body: Mapping[str, Any]) -> ModelAnswer:
    messages = messages_of(body)
    found = newest_script(messages)
    if found is None:
        last = texts_by_role(messages, "user")[-1:] or [""]
        return text_answer(f"There is no script in this conversation. You said: {last[0][:80]}")
    position, text = found
    steps = list(steps_of(_last_array(text)))
    index = sum(message.get("role") == "assistant" for message in messages[position + 1 :])
    if index >= len(steps):
        return text_answer("script done")
    return answer_of(Placeholders(body).fill(steps[index]), index, _attempt_key(body, position, index, text))


def _last_array(text: str) -> list[Any]:
    """The last script of a text. A script inside the strings of another one is part of that one."""
    *_, steps = _decoded_scripts(text)
    if not isinstance(steps, list):
        raise ScriptError("it wants a JSON array of steps")
    return steps


def _decoded_scripts(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    marker = text.find(MARKER)
    while marker >= 0:
        start = marker + len(MARKER)
        while text[start : start + 1].isspace():
            start += 1
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError as error:
            raise ScriptError(f"it is not JSON: {error}") from error
        yield value
        marker = text.find(MARKER, end)


def _attempt_key(body: Mapping[str, Any], position: int, index: int, text: str) -> str:
    """The same for every attempt at the same step of the same conversation."""
    parts = json.dumps([body.get("metadata"), position, index, text], sort_keys=True)
    return blake2b(parts.encode(), digest_size=12).hexdigest()


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
                return self._newest_match(_PLAN_FILE) or placeholder[0]
            case "cwd":
                return self._newest_match(_DIRECTORY) or placeholder[0]
            case _:
                results = tool_results_in(messages_of(self.body))
                return "\n".join(text for result in results for text in texts_of(result.get("content")))

    def _newest_match(self, pattern: re.Pattern[str]) -> str:
        texts = [*texts_of(self.body.get("system")), *texts_by_role(messages_of(self.body), "user", "system")]
        found = (pattern.findall(text) for text in reversed(texts))
        return next((str(matches[-1]) for matches in found if matches), "")


# -- requests of the CLI on its own behalf ----------------------------------------------------------------


def _side_answer(body: Mapping[str, Any]) -> str | None:
    """The answer to a request for a title or for a summary; None if it is neither."""
    if (schema := _output_schema(body)) is not None:
        return json.dumps(_instance_of(schema))
    texts = texts_by_role(messages_of(body), "user")
    return _SUMMARY if texts and texts[-1].startswith(_SUMMARY_REQUEST) else None


def _output_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of a request with no tools that wants JSON: so the CLI asks for a title."""
    output = body.get("output_config")
    if body.get("tools") or not isinstance(output, dict) or not isinstance(output.get("format"), dict):
        return None
    schema = output["format"].get("schema")
    return schema if isinstance(schema, dict) else None


def _instance_of(schema: Mapping[str, Any]) -> Any:
    """Something small that fits a simple schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: _instance_of(field) for name, field in schema.get("properties", {}).items()}
    return _EMPTY_VALUES.get(schema.get("type", "string"), _TITLE)
