"""What of a server's tools and results is passed on, and tools found by words. Pure.

A word of a name counts three times as much as one of a description or a parameter. Words are compared without case and
without the ending of a plural, names are split at `_`, `-` and capitals (`createIssue`, `create_issue`), and a word of
the query also finds longer words that begin with it, for half as much (`repo` finds `repository`). Takes time in
proportion to the text of the tools and of the query.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import mcp_types as types

from ..core.model.text import clip, json_parts
from .config_entry import ServerConfig

MAX_DESCRIPTION = 2048


def trim_description(text: str | None) -> str | None:
    """A description or instruction of at most `MAX_DESCRIPTION` characters; some servers send megabytes."""
    return None if text is None else clip(text, MAX_DESCRIPTION, "… [truncated]")


def trim_tools(tools: list[types.Tool], config: ServerConfig) -> list[types.Tool]:
    """The tools that the configuration lets through, as it names and describes them, without what clients reject."""
    shown = [_trim_tool(tool, config) for tool in tools if config.allows(tool.name)]
    # One that has the name that was given to another is not reached by it any more.
    taken = {override.name for override in config.tool_overrides.values() if override.name is not None}
    return [tool for tool, own in shown if tool.name != own or own not in taken or config.own_name(own) == own]


def _trim_tool(tool: types.Tool, config: ServerConfig) -> tuple[types.Tool, str]:
    """The tool as it is shown, and its own name."""
    changes: dict[str, Any] = {}
    override = config.tool_overrides.get(tool.name)
    if override is not None:
        changes = override.model_dump(exclude_none=True)
    description = changes.get("description", tool.description)
    if description is not None and len(description) > MAX_DESCRIPTION:
        changes["description"] = trim_description(description)
    if tool.execution is not None:  # whether it runs as a task is between the hub and the server
        changes["execution"] = None
    if tool.output_schema is not None and tool.output_schema.get("type") != "object":
        changes["output_schema"] = None
    return (tool.model_copy(update=changes) if changes else tool), tool.name


# -- prompts as text ------------------------------------------------------------------------------------------------


def named_arguments(prompt: types.Prompt, values: Sequence[str]) -> dict[str, str]:
    """Values by the names of the prompt's arguments, in order; the last argument takes all that is left."""
    names = [argument.name for argument in prompt.arguments or ()]
    if len(values) > len(names) > 0:
        values = [*values[: len(names) - 1], " ".join(values[len(names) - 1 :])]
    return dict(zip(names, values, strict=False))


def prompt_text(result: types.GetPromptResult) -> str:
    """What a prompt says, as one message."""
    texts = [text_of(message.content) for message in result.messages]
    return "\n\n".join(filter(None, texts)) or (result.description or "")


def text_of(block: types.ContentBlock) -> str:
    """The text of a content block; empty for one without."""
    if isinstance(block, types.TextContent):
        return block.text
    resource = block.resource if isinstance(block, types.EmbeddedResource) else None
    return resource.text if isinstance(resource, types.TextResourceContents) else ""


# -- results that are too long for a model's context -----------------------------------------------------------------

Save = Callable[[str, str], str]
"""Keeps a text in a file with this ending and returns its path."""


def is_long(result: types.CallToolResult, limit: int) -> bool:
    """Whether a result has more than so many characters of text, or of structured content."""
    if sum(len(text_of(block)) for block in result.content) > limit:
        return True
    return result.structured_content is not None and exceeds(result.structured_content, limit)


def with_long_parts_saved(
    result: types.CallToolResult, limit: int, save: Save, *, keep_structured: bool
) -> types.CallToolResult:
    """The result with all of its text in a file where that is longer than the limit, and structured content likewise.

    A notice in their place says where they are and how long. Other content stays, and so does structured content that
    the tool has promised to its callers (`keep_structured`). The result is no error because of it.
    """
    texts = [text_of(block) for block in result.content]
    content = list(result.content)
    if sum(map(len, texts)) > limit:
        whole = "\n".join(filter(None, texts))
        notice = _notice(whole, save(whole, ".txt"), "Plain text")
        content = [types.TextContent(text=notice), *(block for block in content if not text_of(block))]
    changes: dict[str, Any] = {"content": content}
    if not keep_structured and exceeds(result.structured_content, limit):
        whole = json.dumps(result.structured_content, ensure_ascii=False, indent=1)
        content.append(types.TextContent(text=_notice(whole, save(whole, ".json"), "JSON")))
        changes["structured_content"] = None
    return result.model_copy(update=changes)


def _notice(text: str, path: str, format_: str) -> str:
    lines = text.count("\n") + 1
    return (
        f"The result ({len(text):,} characters across {lines:,} lines) is too long to be shown. "
        f"The full result is in {path}\nFormat: {format_}\n"
        "Read the file in portions or search it. Before you summarize it, read all of it or say which part you read."
    )


def exceeds(value: Any, limit: int) -> bool:
    """Whether a JSON value has more than so many characters of text in it; stops counting when it does."""
    size = 0
    for part in json_parts(value):
        size += len(part) if isinstance(part, str) else not isinstance(part, dict | list)
        if size > limit:
            return True
    return False


# -- tool search ------------------------------------------------------------------------------------------------------


_WORD = re.compile(r"[^\W\d_]+|\d+")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SATURATION, _LENGTH_SHARE = 1.2, 0.75
"""The two parameters of BM25, at their usual values."""
_NAME_WEIGHT = 3
_PREFIX_WEIGHT = 0.5
_MIN_PREFIX = 3
_MAX_PARTS = 500
"""Strings of a schema that are read: some servers generate schemas of megabytes."""
_MAX_QUERY = 100
"""Words of a query that count."""


def words_of(text: str) -> list[str]:
    """The words of a text, in the form in which they are compared."""
    return [_stem(word) for word in _WORD.findall(_CAPITAL.sub(" ", text).lower())]


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


class ToolIndex:
    """The words of a set of tools."""

    def __init__(self, tools: Iterable[tuple[str, str | None, Mapping[str, Any]]]) -> None:
        """Each tool as its name, its description and its input schema."""
        self._counts = [_weighted_words(*tool) for tool in tools]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._usual_length = (sum(self._lengths) / len(self._lengths) if self._lengths else 0) or 1.0
        self._tools_with: dict[str, list[int]] = {}
        for number, counts in enumerate(self._counts):
            for word in counts:
                self._tools_with.setdefault(word, []).append(number)

    def ranked(self, query: str) -> Sequence[int]:
        """The numbers of the tools that have a word of the query, the best first; of equals, the earlier."""
        scores: Counter[int] = Counter()
        for wanted in dict.fromkeys(islice(words_of(query), _MAX_QUERY)):
            best: dict[int, float] = {}
            for word, weight in self._matching(wanted):
                for number in self._tools_with[word]:
                    best[number] = max(best.get(number, 0.0), weight * self._score(number, word))
            scores.update(best)
        return sorted(scores, key=lambda number: (-scores[number], number))

    def _matching(self, wanted: str) -> list[tuple[str, float]]:
        found = [(wanted, 1.0)] if wanted in self._tools_with else []
        if len(wanted) >= _MIN_PREFIX:
            longer = (word for word in self._tools_with if word.startswith(wanted) and word != wanted)
            found += [(word, _PREFIX_WEIGHT) for word in longer]
        return found

    def _score(self, number: int, word: str) -> float:
        having, all_ = len(self._tools_with[word]), len(self._counts)
        rarity = math.log1p((all_ - having + 0.5) / (having + 0.5))
        count = self._counts[number][word]
        length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * self._lengths[number] / self._usual_length
        return rarity * count * (_SATURATION + 1) / (count + _SATURATION * length)


def _weighted_words(name: str, description: str | None, schema: Mapping[str, Any]) -> Counter[str]:
    counts = Counter(words_of(description or ""))
    for word in words_of(name):
        counts[word] += _NAME_WEIGHT
    counts.update(word for text in _parameter_texts(schema) for word in words_of(text))
    return counts


def _parameter_texts(schema: Mapping[str, Any]) -> Iterable[str]:
    """The names of the parameters and whatever is said of each, but not the words of JSON Schema itself."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    for name, parameter in islice(properties.items(), _MAX_PARTS):
        yield str(name)
        if isinstance(parameter, dict):
            spoken = [parameter.get("title"), parameter.get("description"), parameter.get("enum")]
            yield from (part for part in islice(json_parts(spoken), _MAX_PARTS) if isinstance(part, str))
