"""What a tool is: its name, its typed arguments and result, and the function behind it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

import mcp_types as types
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ..errors import ClaudeCodeError, InvalidArgument
from .call import Call
from .schema import compact_schema


class Arguments(BaseModel):
    """Arguments of a tool: camelCase on the wire, nothing unknown, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, alias_generator=to_camel)

    written_as: ClassVar[Mapping[str, str]] = {}
    """Options of a session that these arguments call something else, and what they call them."""


class Outcome(BaseModel):
    """The structured result of a tool: camelCase on the wire, absent fields left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @property
    def failed(self) -> bool:
        """Whether the call counts as an error although it has a result."""
        return False

    def text(self) -> str:
        """A short rendering for readers of the text content."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


Text = Annotated[str, Field(min_length=1)]

ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)
Reply = Outcome | types.InputRequiredResult


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """One tool of the server."""

    name: str
    description: str
    arguments: type[ArgumentsT]
    outcome: type[Outcome]
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
        try:
            arguments = self.arguments.model_validate(given)
        except ValidationError as error:
            raise _readable(error) from None
        try:
            return await self.run(call, arguments)
        except ClaudeCodeError as error:
            name_as_written(error, self.arguments)
            raise


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


def _readable(error: ValidationError) -> InvalidArgument:
    """One line that names every wrong field; values are not repeated, they may be secret or huge."""
    problems = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in one["loc"]) or "arguments"
        said = {"extra_forbidden": "unknown field", "missing": "required"}.get(one["type"], one["msg"])
        problems.append(f"{where[:100]}: {said}")
    shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
    return InvalidArgument(shown, field=problems[0].split(":", 1)[0])
