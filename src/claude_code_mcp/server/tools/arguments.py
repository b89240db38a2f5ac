"""The arguments of tools: their types, how they are validated, and how errors name them.

Arguments are checked before a tool runs, and every error names the argument as the caller wrote it. The types have
limits that no legitimate call reaches. They are not in the JSON schemas, where they would cost every caller context.
"""

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from ...core import json_text
from ...core.config import Settings
from ...core.errors import ClaudeCodeError, InvalidArgument
from ...core.model.options import DIRECTORY_NAMES
from ...core.model.session_id import is_session_id
from ...core.settings_section import variable_of

_MAX_NAME = 100
"""Maximum characters of a field's name in an error message."""
_MAX_PROBLEMS = 500
"""Maximum problems of one call that are listed individually."""
_SHOWN_PROBLEMS = 5


class Arguments(BaseModel):
    """Arguments of a tool: camelCase on the wire, nothing unknown, no silent conversions."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, alias_generator=to_camel, defer_build=True
    )

    written_as: ClassVar[Mapping[str, str]] = {}
    """Maps session options to the names of their arguments, where these differ."""
    from_settings: ClassVar[Mapping[str, str]] = {}
    """Maps session options whose default comes from a setting to that setting."""

    @model_validator(mode="before")
    @classmethod
    def _in_one_spelling(cls, raw: Any) -> Any:
        """Accept integers as JSON may write them (2.0), and the directory under any of its names."""
        if not isinstance(raw, Mapping):
            return raw
        taken = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in raw.items()
        }
        known = {field.alias for field in cls.model_fields.values()}
        own = next((name for name in DIRECTORY_NAMES if name in known), None)
        if own is not None:
            values = {name: taken.pop(name) for name in DIRECTORY_NAMES if taken.get(name) is not None}
            if len({*map(str, values.values())}) > 1:
                raise ValueError(f"{' and '.join(values)} name different directories; pass only one")
            taken = {name: value for name, value in taken.items() if name not in DIRECTORY_NAMES}
            if values:
                taken[own] = next(iter(values.values()))
        return taken


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


def checked_arguments(model: type[ArgumentsT], raw: Mapping[str, Any]) -> ArgumentsT:
    """Validate a JSON object. Raises InvalidArgument, in one line that names the wrong fields."""
    fields = {field.alias or name for name, field in model.model_fields.items()}
    # Unknown fields must not reach pydantic in large numbers: listing each could take longer than everything else.
    if len(raw) > len(fields):
        unknown = sorted(name[:_MAX_NAME] for name in islice((n for n in raw if n not in fields), _SHOWN_PROBLEMS))
        count = len(raw) - sum(1 for name in fields if name in raw)
        more = f"; and {count - len(unknown)} more" if count > len(unknown) else ""
        raise InvalidArgument("; ".join(f"{name}: unknown field" for name in unknown) + more, field=unknown[0])
    flaw = json_text.flaw(raw)
    if flaw is not None:  # it could not be encoded again
        path, problem = flaw[0][:_MAX_NAME] or "arguments", flaw[1]
        raise InvalidArgument(f"{path}: {problem}", field=path)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _invalid_argument(error, raw) from None
    except ValueError as error:  # pydantic gives up on numbers that Python does not convert
        raise InvalidArgument(f"arguments: {error}") from None


def _invalid_argument(error: ValidationError, raw: Mapping[str, Any]) -> InvalidArgument:
    """One line that names the wrong fields. Values are not repeated: they may be secret or huge."""
    if error.error_count() > _MAX_PROBLEMS:  # listing them would block other callers
        largest = max(raw, key=lambda name: len(raw[name]) if isinstance(raw[name], dict | list) else 0)
        return InvalidArgument(f"{largest[:_MAX_NAME]}: {error.error_count()} problems", field=largest)
    problems = []
    for details in error.errors(include_url=False, include_input=False, include_context=False):
        path = ".".join(str(part) for part in details["loc"]) or "arguments"
        usual = details["msg"].removeprefix("Value error, ")
        plain = {"extra_forbidden": "unknown field", "missing": "required"}.get(details["type"], usual)
        problems.append(f"{path[:_MAX_NAME]}: {plain}")
    shown = "; ".join(problems[:_SHOWN_PROBLEMS])
    more = f"; and {len(problems) - _SHOWN_PROBLEMS} more" if len(problems) > _SHOWN_PROBLEMS else ""
    return InvalidArgument(shown + more, field=problems[0].split(":", 1)[0])


def name_as_written(error: ClaudeCodeError, arguments: Arguments, settings: Settings) -> None:
    """Change an error to name its field as the caller wrote it: `mcpServers.x.command`, `options.permissionMode`. A
    value from a setting is named by the variable of that setting."""
    field = error.data.get("field")
    if not isinstance(field, str):
        return
    root, dot, rest = field.partition(".")
    written = f"{_written(root, arguments, settings) or root}{dot}{rest}"
    if error.message.startswith(field):
        error.message = written + error.message[len(field) :]
    error.data["field"] = written


def _written(option: str, arguments: Arguments, settings: Settings, group: str = "") -> str | None:
    """The name of the argument or variable that sets a session option; the group `options` is searched too."""
    kind = type(arguments)
    aliases = {name: field.alias or name for name, field in kind.model_fields.items()}
    alias = kind.written_as.get(option) or aliases.get(option)
    if alias is None:
        found = _group_in(arguments)
        return _written(option, found, settings, "options.") if found is not None else None
    set_by_caller = any(
        alias == of_field and getattr(arguments, name) is not None for name, of_field in aliases.items()
    )
    setting = kind.from_settings.get(option)
    if not set_by_caller and setting is not None and getattr(settings, setting):
        return variable_of(setting, Settings)
    return group + alias


def _group_in(arguments: Arguments) -> Arguments | None:
    """The arguments under `options`, as they are if the caller gave none."""
    field = type(arguments).model_fields.get("options")
    models = get_args(field.annotation) if field is not None else ()
    made = next((model for model in models if isinstance(model, type) and issubclass(model, Arguments)), None)
    group = getattr(arguments, "options", None)
    return group if isinstance(group, Arguments) or made is None else made()


def _check_text(text: str, limit: int) -> str:
    if not 0 < len(text) <= limit:
        raise ValueError(f"must have 1 to {limit} characters")
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _check_session_id(text: str) -> str:
    if not is_session_id(text):
        raise ValueError("is not a session id")
    return text.lower()


def _at_most(limit: int) -> AfterValidator:
    """An upper bound, of a number or of the length of a list, that is not in the schema."""

    def check(value: Any) -> Any:
        if (len(value) if isinstance(value, list) else value) > limit:
            raise ValueError(f"must not be more than {limit}")
        return value

    return AfterValidator(check)


def _check_offset(number: int) -> int:
    if not 0 <= number < 1 << 40:
        raise ValueError("must be the nextOffset of an earlier result")
    return number


Milliseconds = Annotated[int, Field(gt=0), _at_most(10**12)]
Count = Annotated[int, Field(gt=0), _at_most(1_000_000)]
Name = Annotated[str, AfterValidator(partial(_check_text, limit=1000))]
Offset = Annotated[int, AfterValidator(_check_offset)]
Path = Annotated[str, AfterValidator(partial(_check_text, limit=4096))]
Images = Annotated[list[str], WithJsonSchema({"items": {"type": "string"}, "type": "array"})]
"""Paths or data URLs."""
ABOUT_IMAGES = "Paths or data: URLs"
ABOUT_KEY = "Repeated calls with this key count once"
Rules = Annotated[list[Name], _at_most(200)]
SessionId = Annotated[str, AfterValidator(_check_session_id)]
Text = Annotated[str, Field(min_length=1)]
