"""One tool: its name, description, arguments and output, how it is listed and how it is called.

`Tool.call` is the only way in. `compact_schema` keeps the schemas of `tools/list` short, because every caller pays for
them with context.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import mcp_types as types
from pydantic import BaseModel

from ...core.config import Settings
from ...core.errors import ClaudeCodeError, InvalidArgument
from ...core.model.options import DIRECTORY_NAMES
from ..app_page import TOOL_META
from .arguments import ArgumentsT, checked_arguments, name_as_written
from .call import Call
from .output import ToolOutput

Reply = ToolOutput | types.CallToolResult | types.InputRequiredResult


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """One tool of the server."""

    name: str
    title: str
    """The name that clients show people."""
    description: str
    arguments: type[ArgumentsT]
    output: type[ToolOutput] | None
    """None if the result comes from another server."""
    run: Callable[[Call, ArgumentsT], Awaitable[Reply]]
    hints: types.ToolAnnotations
    app: bool = False
    """Whether clients that support apps show the session in ours."""

    def listing(self) -> types.Tool:
        """How it appears in `tools/list`."""
        return types.Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=compact_schema(self.arguments),
            output_schema=compact_schema(self.output) if self.output is not None else None,
            annotations=self.hints,
            _meta=TOOL_META if self.app else None,
        )

    def call(self, call: Call, raw: Mapping[str, Any]) -> Awaitable[Reply]:
        """Validate the arguments and return the running tool. Raises InvalidArgument, with nothing done, if they are
        invalid."""
        return self.run(call, checked_arguments(self.arguments, raw))

    def name_as_written(self, error: ClaudeCodeError, raw: Mapping[str, Any], settings: Settings) -> None:
        """Change an error of a call with these arguments to name its field as the caller wrote it."""
        # Errors about invalid arguments already do.
        with contextlib.suppress(InvalidArgument):
            name_as_written(error, checked_arguments(self.arguments, raw), settings)
        field, used = error.data.get("field"), next((name for name in DIRECTORY_NAMES if name in raw), None)
        if field in DIRECTORY_NAMES and field not in raw and used is not None:
            error.message = used + error.message[len(field) :] if error.message.startswith(field) else error.message
            error.data["field"] = used


def compact_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema without titles, references and nulls; `additionalProperties: false` stays where extras are refused."""
    is_output = model.model_config.get("extra") != "forbid"
    schema = model.model_json_schema(by_alias=True, mode="serialization" if is_output else "validation")
    definitions = schema.pop("$defs", {})
    compact: dict[str, Any] = _compact(schema, definitions)
    compact.pop("description", None)
    return compact


def _compact(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_compact(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        # The docstrings of models are for readers of the code.
        target = {**definitions[node["$ref"].rsplit("/", 1)[1]]}
        target.pop("description", None)
        return _compact({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option != {"type": "null"}]
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _compact({**options[0], **rest} if len(options) == 1 else {**rest, "oneOf": options}, definitions)
    compact = {
        key: _compact(value, definitions)
        for key, value in node.items()
        if key != "title"
        and not (key == "default" and value in (None, [], False))
        and not (key == "additionalProperties" and value is True)
    }
    if isinstance(node.get("properties"), dict):  # a property may be called "title" or "default"
        compact["properties"] = {name: _compact(value, definitions) for name, value in node["properties"].items()}
    return compact
