"""What of a server's tools and results is passed on: which tools, how much of a description, how much of a result."""

from collections.abc import Iterator, Mapping
from typing import Any

import mcp_types as types

from ..model.text import clip, json_parts
from .config_entry import ServerConfig
from .streams import JsonObject

LONGEST_DESCRIPTION = 2048
LONGEST_RESULT = 100_000


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


def trim_result(result: JsonObject) -> JsonObject:
    """The result of a tool call with at most `LONGEST_RESULT` characters of text, and a notice where some are gone.

    Structured content cannot be cut. Where it is too long it is left out and the result counts as an error, since
    without it the result no longer is what the tool promised.
    """
    structured = result.get("structuredContent")
    too_much = structured is not None and exceeds(structured, LONGEST_RESULT)
    if not too_much and sum(map(len, _texts(result))) <= LONGEST_RESULT:
        return result
    result = {**result, "content": _trim_content(result.get("content") or [])}
    if too_much:
        del result["structuredContent"]
        result["isError"] = True
    return result


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    return (_text(block) for block in result.get("content") or ())


def _text(block: Mapping[str, Any]) -> str:
    resource = block.get("resource")
    text = block.get("text") or (resource.get("text") if isinstance(resource, dict) else None)
    return text if isinstance(text, str) else ""


def _trim_content(content: list[JsonObject]) -> list[JsonObject]:
    total = sum(len(_text(block)) for block in content)
    left = LONGEST_RESULT
    kept = []
    for block in content:
        text = _text(block)
        kept.append(_with_text(block, text[:left]) if len(text) > left else block)
        left = max(0, left - len(text))
    notice = (
        f"[The result was cut: it has {total} characters, and {LONGEST_RESULT} are passed on. "
        "Ask for less at a time: a page, a range or a filter.]"
    )
    return [*kept, {"type": "text", "text": notice}]


def _with_text(block: JsonObject, text: str) -> JsonObject:
    if "resource" in block:
        return {**block, "resource": {**block["resource"], "text": text}}
    return {**block, "text": text}


def exceeds(value: Any, limit: int) -> bool:
    """Whether a JSON value has more than so many characters of text in it; stops counting when it does."""
    size = 0
    for part in json_parts(value):
        size += len(part) if isinstance(part, str) else not isinstance(part, dict | list)
        if size > limit:
            return True
    return False
