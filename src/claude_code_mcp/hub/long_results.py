"""Results that are too long for a model's context: saved to a file, with a notice in their place. Pure."""

import json
from collections.abc import Callable
from typing import Any

import mcp_types as types

from ..core.model.text import json_parts

Save = Callable[[str, str], str]
"""Called with a text and a file extension; saves the text and returns the path."""


def is_long(result: types.CallToolResult, limit: int) -> bool:
    """Whether a result has more than `limit` characters of text or of structured content."""
    if sum(len(text_of(block)) for block in result.content) > limit:
        return True
    return result.structured_content is not None and exceeds(result.structured_content, limit)


def with_long_parts_saved(
    result: types.CallToolResult, limit: int, save: Save, *, keep_structured: bool
) -> types.CallToolResult:
    """The result with its text saved to a file if it is longer than the limit; the same for its structured content. A
    notice with the path and the length takes their place. Other content stays, and so does structured content that the
    tool's schema promises (`keep_structured`). The result does not become an error.
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
    """Whether a JSON value contains more than `limit` characters of text; stops counting there."""
    size = 0
    for part in json_parts(value):
        size += len(part) if isinstance(part, str) else not isinstance(part, dict | list)
        if size > limit:
            return True
    return False


def text_of(block: types.ContentBlock) -> str:
    """The text of a content block; empty for one without."""
    if isinstance(block, types.TextContent):
        return block.text
    resource = block.resource if isinstance(block, types.EmbeddedResource) else None
    return resource.text if isinstance(resource, types.TextResourceContents) else ""
