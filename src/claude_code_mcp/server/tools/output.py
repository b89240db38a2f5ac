"""The structured results of tools."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from ...core import json_text


class ToolOutput(BaseModel):
    """The structured result of a tool: camelCase on the wire, absent fields omitted."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, defer_build=True)

    @property
    def failed(self) -> bool:
        """Whether the call counts as an error although it has a result."""
        return False

    def text(self) -> str | None:
        """A short text for clients that show only text content; None for the structured content as JSON."""
        return None


def dump(output: ToolOutput) -> dict[str, Any]:
    """The output in wire format."""
    return output.model_dump(mode="json", by_alias=True, exclude_none=True)


def json_of(structured: Mapping[str, Any]) -> str:
    """Structured content as compact JSON."""
    try:
        text = json.dumps(structured, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except ValueError:  # lone surrogates, or numbers that JSON does not have
        text = json_text.encode(structured).decode()
    return text


def declared(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> WithJsonSchema:
    """The schema of an object that is passed on unchanged: its fields, each with its type or complete schema."""
    fields = {**required, **(optional or {})}
    properties = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in fields.items()}
    return WithJsonSchema({"type": "object", "properties": properties, "required": [*required]})


class ErrorInfo(ToolOutput):
    """Why a call failed, or which part of its result is missing."""

    code: str
    message: str
    retry_after: int | None = Field(None, description="Seconds")


Shares = Annotated[
    list[dict[str, str]],
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "object", "properties": {"with": {"type": "string"}, "access": {"type": "string"}}},
        }
    ),
]
"""The grantees of a session, and their access."""
