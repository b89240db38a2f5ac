"""What a tool is: its name, arguments and output, how it is called, results in parts, and its MCP App.

`app.html` is the web console cut down to one session; `make web` builds it. It reaches nothing but the client around
it, through which it calls `claude_get_status` and `claude_respond`. Clients that show no apps ignore all of this.

`Tool.call` is the only way in: arguments are checked before the function runs, and every error names the argument as
the caller wrote it. The types of arguments have limits that no honest call reaches; these are not in the JSON schemas,
where they would cost every caller a part of its context. `compact_schema` keeps the schemas of `tools/list` short for
the same reason.

Every part has a name: `result`, `error`, `structuredOutput`, the id of an open question (its input, as JSON),
`output:<number>` (one line of output) or `pendingInputs` (the list of open questions). A report names those it cut
under `truncated`; the pages of a part, one after the other, are the whole. Secrets are removed before
the text is cut into pages.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

import mcp_types as types
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from ...core import json_text
from ...core.config import Settings, variable_of
from ...core.errors import ClaudeCodeError, InvalidArgument
from ...core.model.events import Output
from ...core.model.options import DIRECTORY_NAMES
from ...core.model.question import Question
from ...core.model.session_id import is_session_id
from ...core.model.text import as_json, cut_data, mark, page_of
from ...core.questions.presentation import Redaction, input_size, shown_input, without_secrets
from ...core.sessions.session import Session
from .context import Call

EXTENSION = "io.modelcontextprotocol/ui"
URI = "ui://session"
_MIME_TYPE = "text/html;profile=mcp-app"
TOOL_META: dict[str, Any] = {"ui": {"resourceUri": URI}, "ui/resourceUri": URI}
"""What a tool whose results the app shows is listed with. Some clients know only the flat key."""


def contents() -> types.ReadResourceResult:
    """The app as a resource. No address is declared in its policy: it loads nothing and connects to nothing."""
    page = types.TextResourceContents(
        uri=URI, mime_type=_MIME_TYPE, text=_page(), _meta={"ui": {"prefersBorder": True}}
    )
    return types.ReadResourceResult(contents=[page])


@cache
def _page() -> str:
    return files("claude_code_mcp.server").joinpath("app.html").read_text(encoding="utf-8")


# -- base -------------------------------------------------------------------------------------------------------------


_MAX_NAME = 100
"""Characters of a field's name in an error message."""
_MAX_PROBLEMS = 500
"""Problems of one call that are looked at one by one."""
_SHOWN_PROBLEMS = 5
Text = Annotated[str, Field(min_length=1)]


class Arguments(BaseModel):
    """Arguments of a tool: camelCase on the wire, nothing unknown, no silent conversions."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, alias_generator=to_camel, defer_build=True
    )

    written_as: ClassVar[Mapping[str, str]] = {}
    """Session options that have another name among these arguments, and that name."""
    from_settings: ClassVar[Mapping[str, str]] = {}
    """Session options that a setting gives where the caller does not, and that setting."""

    @model_validator(mode="before")
    @classmethod
    def _in_one_spelling(cls, raw: Any) -> Any:
        """Takes whole numbers as JSON may write them (2.0), and the directory by any of its names."""
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
                raise ValueError(f"{' and '.join(values)} name different directories; give one of them")
            taken = {name: value for name, value in taken.items() if name not in DIRECTORY_NAMES}
            if values:
                taken[own] = next(iter(values.values()))
        return taken


class ToolOutput(BaseModel):
    """The structured result of a tool: camelCase on the wire, absent fields left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, defer_build=True)

    @property
    def failed(self) -> bool:
        """Whether the call counts as an error although it has a result."""
        return False

    def text(self) -> str:
        """A short rendering for readers of the text content."""
        try:
            return self.model_dump_json(by_alias=True, exclude_none=True)
        except ValueError:
            return json_text.encode(dump(self)).decode()


def dump(output: ToolOutput) -> dict[str, Any]:
    """The output as it goes on the wire."""
    return output.model_dump(mode="json", by_alias=True, exclude_none=True)


def declared(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> WithJsonSchema:
    """The schema of an object that is passed on as it is: its fields, each with its type or its whole schema."""
    fields = {**required, **(optional or {})}
    properties = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in fields.items()}
    return WithJsonSchema({"type": "object", "properties": properties, "required": [*required]})


class ErrorInfo(ToolOutput):
    """Why a call failed, or what of its result is missing."""

    code: str
    message: str
    retry_after: int | None = Field(None, description="Seconds")


TruncatedPart = Annotated[dict[str, Any], declared({"part": "string", "nextOffset": "integer", "total": "integer"})]
"""A part that is not in the report whole, and where its first unread character is."""
PartPage = Annotated[
    dict[str, Any],
    declared({"name": "string", "text": "string", "offset": "integer", "total": "integer"}, {"nextOffset": "integer"}),
]
"""A page of such a part."""
Shares = Annotated[
    list[dict[str, str]],
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "object", "properties": {"with": {"type": "string"}, "access": {"type": "string"}}},
        }
    ),
]
"""With whom a session is shared, and what they may do."""

ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)
Reply = ToolOutput | types.CallToolResult | types.InputRequiredResult


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """One tool of the server."""

    name: str
    description: str
    arguments: type[ArgumentsT]
    output: type[ToolOutput] | None
    """None where the result is another server's."""
    run: Callable[[Call, ArgumentsT], Awaitable[Reply]]
    hints: types.ToolAnnotations
    app: bool = False
    """Whether clients that show apps show the session in ours."""

    def listing(self) -> types.Tool:
        """How it appears in `tools/list`."""
        return types.Tool(
            name=self.name,
            description=self.description,
            input_schema=compact_schema(self.arguments),
            output_schema=compact_schema(self.output) if self.output is not None else None,
            annotations=self.hints,
            _meta=TOOL_META if self.app else None,
        )

    def call(self, call: Call, raw: Mapping[str, Any]) -> Awaitable[Reply]:
        """Validates the arguments, and returns what runs the tool; InvalidArgument, with nothing done, where they do
        not fit."""
        return self.run(call, checked_arguments(self.arguments, raw))

    def name_as_written(self, error: ClaudeCodeError, raw: Mapping[str, Any], settings: Settings) -> None:
        """Makes an error of a call with these arguments name its field as the caller wrote it."""
        # Arguments that do not fit are named so already.
        with contextlib.suppress(InvalidArgument):
            name_as_written(error, checked_arguments(self.arguments, raw), settings)
        field, used = error.data.get("field"), next((name for name in DIRECTORY_NAMES if name in raw), None)
        if field in DIRECTORY_NAMES and field not in raw and used is not None:
            error.message = used + error.message[len(field) :] if error.message.startswith(field) else error.message
            error.data["field"] = used


def checked_arguments(model: type[ArgumentsT], raw: Mapping[str, Any]) -> ArgumentsT:
    """The arguments in a JSON object. InvalidArgument, in one line that names the wrong fields, if they do not fit."""
    _refuse_early(model, raw)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _readable(error, raw) from None
    except ValueError as error:  # pydantic gives up on numbers that Python does not convert
        raise InvalidArgument(f"arguments: {error}") from None


def _refuse_early(model: type[Arguments], raw: Mapping[str, Any]) -> None:
    """Refuses what must not reach pydantic: more names than there are fields, since listing all the unknown ones could
    take longer than anything else here, and values that cannot be encoded again."""
    fields = {field.alias or name for name, field in model.model_fields.items()}
    if len(raw) > len(fields):
        unknown = sorted(name[:_MAX_NAME] for name in islice((n for n in raw if n not in fields), _SHOWN_PROBLEMS))
        count = len(raw) - sum(1 for name in fields if name in raw)
        more = f"; and {count - len(unknown)} more" if count > len(unknown) else ""
        raise InvalidArgument("; ".join(f"{name}: unknown field" for name in unknown) + more, field=unknown[0])
    flaw = json_text.flaw(raw)
    if flaw is not None:
        path, problem = flaw[0][:_MAX_NAME] or "arguments", flaw[1]
        raise InvalidArgument(f"{path}: {problem}", field=path)


def _readable(error: ValidationError, raw: Mapping[str, Any]) -> InvalidArgument:
    """One line that names the wrong fields; values are not repeated, they may be secret or huge."""
    if error.error_count() > _MAX_PROBLEMS:  # to list them would hold up everybody else
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
    """Makes an error name its field as the caller wrote it: `mcpServers.x.command`, `options.permissionMode`. A value
    that a setting gave, and not the caller, is named by the variable of that setting."""
    field = error.data.get("field")
    if not isinstance(field, str):
        return
    root, dot, rest = field.partition(".")
    written = f"{_written(root, arguments, settings) or root}{dot}{rest}"
    if error.message.startswith(field):
        error.message = written + error.message[len(field) :]
    error.data["field"] = written


def _written(option: str, arguments: Arguments, settings: Settings, group: str = "") -> str | None:
    """The argument that sets an option of a session, or the variable; the group `options` is searched too."""
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
        return variable_of(setting)
    return group + alias


def _group_in(arguments: Arguments) -> Arguments | None:
    """The arguments under `options`, as they are if the caller gave none."""
    field = type(arguments).model_fields.get("options")
    models = get_args(field.annotation) if field is not None else ()
    made = next((model for model in models if isinstance(model, type) and issubclass(model, Arguments)), None)
    group = getattr(arguments, "options", None)
    return group if isinstance(group, Arguments) or made is None else made()


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
        return _compact_union(node, definitions)
    compact = {key: _compact(value, definitions) for key, value in node.items() if not _is_noise(key, value)}
    if isinstance(node.get("properties"), dict):  # a property may be called what is noise elsewhere
        compact["properties"] = {name: _compact(value, definitions) for name, value in node["properties"].items()}
    return compact


def _compact_union(node: dict[str, Any], definitions: dict[str, Any]) -> Any:
    options = [option for option in node["anyOf"] if option != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if len(options) == 1:
        return _compact({**options[0], **rest}, definitions)
    return _compact({**rest, "oneOf": options}, definitions)


def _is_noise(key: str, value: Any) -> bool:
    return (
        key == "title"
        or (key == "default" and value in (None, [], False))
        or (key == "additionalProperties" and value is True)
    )


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
    """An upper bound, of a number or of the length of a list, that is not told in the schema."""

    def check(value: Any) -> Any:
        if (len(value) if isinstance(value, list) else value) > limit:
            raise ValueError(f"must not be more than {limit}")
        return value

    return AfterValidator(check)


def _check_offset(number: int) -> int:
    if not 0 <= number < 1 << 40:
        raise ValueError("must be nextOffset of an earlier answer")
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


# -- paging -----------------------------------------------------------------------------------------------------------


PAGE = 64_000
"""Characters of a page."""
PENDING = "pendingInputs"
_INPUT_BUDGET = 512 << 10
_MAX_QUESTIONS = 50
_OUTPUT = "output:"


class ResultParts:
    """Cuts the parts of one report to size and notes what it cut. Every part passes the redactor first."""

    def __init__(self, redactor: Redaction) -> None:
        self._redactor = redactor
        self._cut: list[dict[str, Any]] = []

    @property
    def truncated(self) -> list[dict[str, Any]] | None:
        """Every part that is not here whole, and where its first unread character is."""
        return self._cut or None

    def _note(self, part: str, next_offset: int, total: int) -> None:
        self._cut.append({"part": part, "nextOffset": next_offset, "total": total})

    def text(self, part: str, text: str, limit: int) -> str:
        """The text if it is not too long, else its beginning and a mark."""
        page = page_of(self._redactor.text(text), 0, limit)
        if page.next_offset is None:
            return page.text
        self._note(part, page.next_offset, page.total)
        return page.text + mark(page.total - page.next_offset, page.total, part)

    def line(self, event: Output, limit: int) -> str:
        """The text of a line of output, cut to the limit."""
        return self.text(f"{_OUTPUT}{event.seq}", event.line, limit)

    def data(self, part: str, value: Any, limit: int) -> Any:
        """A JSON value if it is not too long, else nothing but a note."""
        text = "" if value is None else as_json(self._redactor.data(value))
        if len(text) <= limit:
            return value
        self._note(part, 0, len(text))
        return None

    def shortened(self, values: Sequence[Mapping[str, Any]], limit: int) -> list[Any]:
        """JSON values that are only for information, with marks in them where they were cut: they cannot be read on."""
        clean: list[Any] = self._redactor.data(list(values))
        return list(cut_data(clean, limit, limit // 8)) if len(as_json(clean)) > limit else clean

    def questions(self, questions: Sequence[Question], start: int = 0) -> list[tuple[Question, dict[str, Any]]]:
        """Open questions without secrets, each with its input: whole while the budget lasts, then cut and noted."""
        left, shown = _INPUT_BUDGET, []
        for question in questions[start : start + _MAX_QUESTIONS]:
            clean = without_secrets(question, self._redactor)
            tool_input, whole = shown_input(clean, room=left)
            size = len(clean.change.diff) if clean.change is not None else 0
            if size > left - input_size(clean) or not whole:
                # Of the input everything can be read on; how it changes the file only helps to understand it.
                clean = replace(clean, change=None)
            else:
                left -= size
            if whole:
                left -= input_size(clean)
            else:
                left = max(0, left - PAGE)
                self._note(question.id, 0, len(as_json(clean.tool_input)))
            shown.append((clean, tool_input))
        if start + len(shown) < len(questions):
            self._note(PENDING, start + len(shown), len(questions))
        return shown


def read_part(session: Session, part: str, offset: int, redactor: Redaction) -> dict[str, Any]:
    """A page of a part; InvalidArgument if there is no such part, or no longer."""
    page = page_of(_part_text(session, part, redactor), offset, PAGE)
    more = {} if page.next_offset is None else {"nextOffset": page.next_offset}
    return {"name": part, "text": page.text, "offset": page.offset, **more, "total": page.total}


def _part_text(session: Session, part: str, redactor: Redaction) -> str:
    question = next((question for question in session.questions if question.id == part), None)
    if question is not None:
        return as_json(redactor.data(question.tool_input))
    if part.startswith(_OUTPUT):
        return redactor.text(_output_line(session, part))
    outcome = None if session.busy else session.outcome
    if outcome is not None:
        if part == "result":
            return redactor.text(outcome.result)
        if part == "error":
            return redactor.text(outcome.detail)
        if part == "structuredOutput":
            return as_json(redactor.data(outcome.structured_output))
    raise _unknown(session, part)


def _output_line(session: Session, part: str) -> str:
    number = part.removeprefix(_OUTPUT)
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise _unknown(session, part)
    found = next(iter(session.events.after(int(number) - 1)), None)
    if not isinstance(found, Output) or found.seq != int(number):
        raise _unknown(session, part)
    return found.line


def _unknown(session: Session, part: str) -> InvalidArgument:
    return InvalidArgument(
        f"part: session {session.id} has no {part[:100]!r} now. What was cut of a report is named in its truncated.",
        field="part",
    )


def render_page(page: dict[str, Any]) -> str:
    """The text of a page of a part, with a line on where it begins and ends."""
    until = page["offset"] + len(page["text"])
    rest = f"; the next begins at offset {page['nextOffset']}" if "nextOffset" in page else "; this is the end"
    return f"{page['text']}\n[{page['name']}: characters {page['offset']} to {until} of {page['total']}{rest}]"


def render_truncated(truncated: list[dict[str, Any]] | None) -> list[str]:
    """The text lines that say what was cut, and how to read on."""
    return [
        f'[not all: part "{cut["part"]}" has {cut["total"]}, read on with part and offset {cut["nextOffset"]}]'
        for cut in truncated or []
    ]
