"""Read the script out of a Messages request and say what the model answers. Pure: no I/O, no clock.

The server keeps no conversation. The newest script in the request decides, and the number of assistant
messages after it is the index of the step. `answer_to` never raises: what cannot be read is answered
with a text that says why. These texts never hold the marker of a script, because the words of a subagent
come back to its parent as a message.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from claude_code_mcp.testing.answers import Answer, Json, ScriptError, answer_of, say, steps_of
from claude_code_mcp.testing.conversation import Placeholders, heard, messages_of
from claude_code_mcp.testing.script import MARKER
from claude_code_mcp.testing.side_requests import side_answer

_NOTIFICATION = "<task-notification>"
"""Marks a message the CLI wrote about a subagent: what it quotes is not a script of this conversation."""


def answer_to(body: Mapping[str, Any]) -> Answer:
    """The answer to a Messages request, given its decoded body."""
    if (words := side_answer(body)) is not None:
        return say(words)
    try:
        return _scripted(body)
    except ScriptError as problem:
        return say(f"Bad script: {problem}.")


def newest_script(messages: Sequence[Json]) -> tuple[int, str] | None:
    """The newest text that holds a script, and the position of its message.

    The CLI puts a prompt into a user message, and what is said during a turn into a system message.
    """
    for position in range(len(messages) - 1, -1, -1):
        for words in reversed(heard([messages[position]], "user", "system")):
            if MARKER in words and _NOTIFICATION not in words:
                return position, words
    return None


def _scripted(body: Mapping[str, Any]) -> Answer:
    messages = messages_of(body)
    found = newest_script(messages)
    if found is None:
        last = heard(messages, "user")[-1:] or [""]
        return say(f"There is no script in this conversation. You said: {last[0][:80]}")
    position, words = found
    steps = list(steps_of(_last_array(words)))
    index = sum(message.get("role") == "assistant" for message in messages[position + 1 :])
    if index >= len(steps):
        return say("script done")
    return answer_of(Placeholders(body).fill(steps[index]), index, _key(body, position, index, words))


def _last_array(words: str) -> list[Any]:
    """The last script of a text. A script inside the strings of another one is part of that one."""
    *_, steps = _arrays(words)
    if not isinstance(steps, list):
        raise ScriptError("it wants a JSON array of steps")
    return steps


def _arrays(words: str) -> Iterator[Any]:
    start = words.find(MARKER)
    while start >= 0:
        value, end = _decoded(words, start + len(MARKER))
        yield value
        start = words.find(MARKER, end)


def _decoded(words: str, start: int) -> tuple[Any, int]:
    while words[start : start + 1].isspace():
        start += 1
    try:
        return json.JSONDecoder().raw_decode(words, start)
    except ValueError as problem:
        raise ScriptError(f"it is not JSON: {problem}") from problem


def _key(body: Mapping[str, Any], position: int, index: int, words: str) -> str:
    parts = json.dumps([body.get("metadata"), position, index, words], sort_keys=True)
    return blake2b(parts.encode(), digest_size=12).hexdigest()
