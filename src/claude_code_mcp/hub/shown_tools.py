"""Selects and renames a server's tools as configured. Pure."""

from typing import Any

import mcp_types as types

from ..core.model.text import clip
from .config_entry import ServerConfig

MAX_DESCRIPTION = 2048


def trim_description(text: str | None) -> str | None:
    """A description or instruction of at most `MAX_DESCRIPTION` characters; some servers send megabytes."""
    return None if text is None else clip(text, MAX_DESCRIPTION, "… [truncated]")


def trim_tools(tools: list[types.Tool], config: ServerConfig) -> list[types.Tool]:
    """The tools that the configuration allows, with configured names and descriptions, without fields that clients
    reject."""
    shown = [_trim_tool(tool, config) for tool in tools if config.allows(tool.name)]
    # A tool whose own name was configured for another tool cannot be called by it any more.
    taken = {override.name for override in config.tool_overrides.values() if override.name is not None}
    return [tool for tool, own in shown if tool.name != own or own not in taken or config.own_name(own) == own]


def _trim_tool(tool: types.Tool, config: ServerConfig) -> tuple[types.Tool, str]:
    """The tool as clients see it, and its own name."""
    changes: dict[str, Any] = {}
    override = config.tool_overrides.get(tool.name)
    if override is not None:
        changes = override.model_dump(exclude_none=True)
    description = changes.get("description", tool.description)
    if description is not None and len(description) > MAX_DESCRIPTION:
        changes["description"] = trim_description(description)
    if tool.execution is not None:  # the hub runs tasks itself; clients do not see them
        changes["execution"] = None
    if tool.output_schema is not None and tool.output_schema.get("type") != "object":
        changes["output_schema"] = None
    return (tool.model_copy(update=changes) if changes else tool), tool.name
