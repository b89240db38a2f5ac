"""Requests the CLI makes for itself, which quote the conversation but are no step of its script. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from claude_code_mcp.testing.conversation import heard, messages_of

_TITLE = "Scripted session"
_SUMMARY = "<analysis>Scripted.</analysis>\n<summary>A scripted conversation.</summary>"
_EMPTY = {"integer": 0, "number": 0, "boolean": False, "array": [], "null": None}


def side_answer(body: Mapping[str, Any]) -> str | None:
    """The answer to a request for a title or for a summary; None if it is neither."""
    if (schema := _wanted_schema(body)) is not None:
        return json.dumps(_instance_of(schema))
    texts = heard(messages_of(body), "user")
    return _SUMMARY if texts and texts[-1].startswith("CRITICAL: Respond with TEXT ONLY") else None


def _wanted_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
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
    return _EMPTY.get(schema.get("type", "string"), _TITLE)
