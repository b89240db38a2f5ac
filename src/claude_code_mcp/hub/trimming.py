"""What of a server's tools and results is passed on: which tools, how much of a description, and results that are kept
in a file because a model could not take them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import mcp_types as types

from ..model.text import clip, json_parts
from .config_entry import ServerConfig

LONGEST_DESCRIPTION = 2048


def trim_description(text: str | None) -> str | None:
    """A description or instruction of at most `LONGEST_DESCRIPTION` characters; some servers send megabytes."""
    return None if text is None else clip(text, LONGEST_DESCRIPTION, "… [truncated]")


def trim_tools(tools: list[types.Tool], config: ServerConfig) -> list[types.Tool]:
    """The tools that the configuration lets through, without what clients reject."""
    return [_trim_tool(tool) for tool in tools if config.allows(tool.name)]


def _trim_tool(tool: types.Tool) -> types.Tool:
    changes: dict[str, Any] = {}
    if tool.description is not None and len(tool.description) > LONGEST_DESCRIPTION:
        changes["description"] = trim_description(tool.description)
    if tool.output_schema is not None and tool.output_schema.get("type") != "object":
        changes["output_schema"] = None
    return tool.model_copy(update=changes) if changes else tool


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


# -- results that are too long for a model's context -----------------------------------------------------------------

Save = Callable[[str, str], str]
"""Keeps a text in a file with this ending and returns its path."""


def is_long(result: types.CallToolResult, limit: int) -> bool:
    """Whether a result has more than so many characters of text, or of structured content."""
    return sum(len(text_of(block)) for block in result.content) > limit or exceeds(result.structured_content, limit)


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


def text_of(block: types.ContentBlock) -> str:
    """The text of a content block; empty for one without."""
    if isinstance(block, types.TextContent):
        return block.text
    resource = block.resource if isinstance(block, types.EmbeddedResource) else None
    return resource.text if isinstance(resource, types.TextResourceContents) else ""


def _notice(text: str, path: str, format_: str) -> str:
    lines = text.count("\n") + 1
    return (
        f"The result ({len(text):,} characters across {lines:,} lines) is too long to be shown. "
        f"It has been saved whole to {path}\nFormat: {format_}\n"
        "Read the file in portions, or search in it. Before you summarise it, read all of it, or say which part you "
        "have read."
    )


def exceeds(value: Any, limit: int) -> bool:
    """Whether a JSON value has more than so many characters of text in it; stops counting when it does."""
    size = 0
    for part in json_parts(value):
        size += len(part) if isinstance(part, str) else not isinstance(part, dict | list)
        if size > limit:
            return True
    return False
