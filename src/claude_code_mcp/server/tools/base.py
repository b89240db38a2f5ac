"""What a tool is: its name, its typed arguments and result, and the function behind it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

import mcp_types as types
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ... import json_text
from ...errors import ClaudeCodeError, InvalidArgument
from .context import Call


class Arguments(BaseModel):
    """Arguments of a tool: camelCase on the wire, nothing unknown, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, alias_generator=to_camel)

    written_as: ClassVar[Mapping[str, str]] = {}
    """Options of a session that these arguments call something else, and what they call them."""


class ToolOutput(BaseModel):
    """The structured result of a tool: camelCase on the wire, absent fields left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @property
    def failed(self) -> bool:
        """Whether the call counts as an error although it has a result."""
        return False

    def text(self) -> str:
        """A short rendering for readers of the text content."""
        try:
            return self.model_dump_json(by_alias=True, exclude_none=True)
        except ValueError:
            return json_text.encode(self.model_dump(mode="json", by_alias=True, exclude_none=True)).decode()


_LONGEST_NAME = 100


_MOST_PROBLEMS = 500


Text = Annotated[str, Field(min_length=1)]


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


Reply = ToolOutput | types.InputRequiredResult


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """One tool of the server."""

    name: str
    description: str
    arguments: type[ArgumentsT]
    outcome: type[ToolOutput]
    run: Callable[[Call, ArgumentsT], Awaitable[Reply]]
    hints: types.ToolAnnotations

    def listing(self) -> types.Tool:
        """How it appears in `tools/list`."""
        return types.Tool(
            name=self.name,
            description=self.description,
            input_schema=compact_schema(self.arguments),
            output_schema=compact_schema(self.outcome),
            annotations=self.hints,
        )

    async def call(self, call: Call, given: Mapping[str, Any]) -> Reply:
        """Validates what was given and runs the tool."""
        self._refuse_strangers(given)
        try:
            arguments = self.arguments.model_validate(given)
        except ValidationError as error:
            raise _readable(error, given) from None
        except ValueError as error:  # pydantic gives up on numbers that Python does not convert
            raise InvalidArgument(f"arguments: {error}") from None
        try:
            return await self.run(call, arguments)
        except ClaudeCodeError as error:
            name_as_written(error, self.arguments)
            raise

    def _refuse_strangers(self, given: Mapping[str, Any]) -> None:
        """What no field can be: so many names that listing them would take longer than anything else here, and values
        that cannot be written down again."""
        known = {field.alias or name for name, field in self.arguments.model_fields.items()}
        if len(given) > len(known):
            strangers = sorted(name[:_LONGEST_NAME] for name in islice((one for one in given if one not in known), 5))
            count = len(given) - sum(1 for name in known if name in given)
            more = f"; and {count - len(strangers)} more" if count > len(strangers) else ""
            raise InvalidArgument("; ".join(f"{name}: unknown field" for name in strangers) + more, field=strangers[0])
        found = json_text.flaw(given)
        if found is not None:
            where = found[0][:_LONGEST_NAME] or "arguments"
            raise InvalidArgument(f"{where}: {found[1]}", field=where)


def name_as_written(error: ClaudeCodeError, arguments: type[Arguments]) -> None:
    """Makes an error name its field as the caller wrote it: `mcpServers.x.command`, `options.permissionMode`."""
    field = error.data.get("field")
    if not isinstance(field, str):
        return
    root, dot, rest = field.partition(".")
    written = f"{_written(root, arguments) or root}{dot}{rest}"
    if error.message.startswith(field):
        error.message = written + error.message[len(field) :]
    error.data["field"] = written


def _written(option: str, arguments: type[Arguments]) -> str | None:
    if option in arguments.written_as:
        return arguments.written_as[option]
    if option in arguments.model_fields:
        return arguments.model_fields[option].alias or option
    grouped = arguments.model_fields.get("options")
    inner = [one for one in get_args(grouped.annotation) if isinstance(one, type)] if grouped else []
    found = (_written(option, one) for one in inner if issubclass(one, Arguments))
    return next((f"options.{name}" for name in found if name is not None), None)


def _readable(error: ValidationError, given: Mapping[str, Any]) -> InvalidArgument:
    """One line that names the wrong fields; values are not repeated, they may be secret or huge."""
    if error.error_count() > _MOST_PROBLEMS:  # to list them would hold up everybody else
        largest = max(given, key=lambda name: len(given[name]) if isinstance(given[name], dict | list) else 0)
        return InvalidArgument(f"{largest[:_LONGEST_NAME]}: {error.error_count()} problems", field=largest)
    problems = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in one["loc"]) or "arguments"
        said = {"extra_forbidden": "unknown field", "missing": "required"}.get(one["type"], one["msg"])
        problems.append(f"{where[:_LONGEST_NAME]}: {said}")
    shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
    return InvalidArgument(shown, field=problems[0].split(":", 1)[0])


def compact_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema without titles, references and nulls; `additionalProperties: false` stays where extras are refused."""
    schema = model.model_json_schema(by_alias=True, mode="serialization" if _is_output(model) else "validation")
    definitions = schema.pop("$defs", {})
    slim: dict[str, Any] = _slim(schema, definitions)
    slim.pop("description", None)
    return slim


def _is_output(model: type[BaseModel]) -> bool:
    return model.model_config.get("extra") != "forbid"


def _slim(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_slim(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _slim({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        return _union(node, definitions)
    slim = {key: _slim(value, definitions) for key, value in node.items() if not _is_noise(key, value)}
    if isinstance(node.get("properties"), dict):
        slim["properties"] = {name: _slim(value, definitions) for name, value in node["properties"].items()}
    return slim


def _is_noise(key: str, value: Any) -> bool:
    return (
        key == "title"
        or (key == "default" and value in (None, [], False))
        or (key == "additionalProperties" and value is True)
    )


def _union(node: dict[str, Any], definitions: dict[str, Any]) -> Any:
    options = [option for option in node["anyOf"] if option != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if len(options) == 1:
        return _slim({**options[0], **rest}, definitions)
    return _slim({**rest, "oneOf": options}, definitions)
