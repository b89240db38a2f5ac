"""Values that a person types for a server: the fields of its questions, and the arguments of a call.

A line typed for a field is a value of its type within its limits; otherwise it is refused with a reason that describes
valid values. This module does no I/O itself; the caller passes in functions to read and show lines.
"""

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio

from ...core.errors import InvalidArgument
from ...core.questions.form_model import FieldKind, FormField, read_fields
from .terminal import clean, one_line

_TRUE, _FALSE = {"y", "yes", "true", "1"}, {"n", "no", "false", "0"}
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
_KINDS = {
    FieldKind.STRING: "text",
    FieldKind.BOOLEAN: "yes or no",
    FieldKind.INTEGER: "a whole number",
    FieldKind.NUMBER: "a number",
    FieldKind.ARRAY: "several, separated by commas",
}
LEFT_OUT = object()
"""The value of a field that is not filled in."""


class InvalidFieldValue(Exception):
    """The line is not a value of the field; the text describes valid values."""


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """A field that a person fills in."""

    model: FormField
    required: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choices(self) -> list[str]:
        """The completions of a line."""
        if self.model.kind is FieldKind.BOOLEAN:
            return ["yes", "no"]
        return self.model.labels

    @property
    def heading(self) -> str:
        """The lines before the prompt: the field's title or description, if any, and the numbered choices."""
        described = ": ".join(filter(None, (one_line(self.model.title), one_line(self.model.description, 500))))
        lines = [f"  {described}"] if described and described != self.model.name else []
        if self.model.options and self.model.kind is not FieldKind.BOOLEAN:
            labels = [one_line(label, 200) for label in self.model.labels]
            numbers = range(1, len(labels) + 1) if self._numbered else [" "] * len(labels)
            lines += [f"    {number}  {label}" for number, label in zip(numbers, labels, strict=True)]
        return "\n".join(lines)

    @property
    def prompt(self) -> str:
        remarks = [self._kind_remark, *self._limit_remarks, *(["required"] if self.required else [])]
        default = "" if self._default is LEFT_OUT else f" [{one_line(self._shown_default)}]"
        return f"  {one_line(self.model.name)} ({', '.join(filter(None, remarks))}){default}: "

    def value(self, line: str) -> Any:
        """The value of a line, or LEFT_OUT. Raises InvalidFieldValue."""
        text = line.strip()
        if not text and self._default is LEFT_OUT and self.required:
            raise InvalidFieldValue("a value is required")
        if not text:
            return self._default
        match self.model.kind:
            case FieldKind.BOOLEAN:
                if text.lower() not in _TRUE | _FALSE:
                    raise InvalidFieldValue("it must be yes or no")
                return text.lower() in _TRUE
            case FieldKind.ARRAY:
                return self._several(text)
            case _ if self.model.options:
                return self._chosen(text)
            case FieldKind.INTEGER | FieldKind.NUMBER:
                return self._number(text)
        self._check_size(len(line), "minLength", "maxLength", "characters")
        form = self.schema.get("format")
        if isinstance(form, str) and form in _FORMATS and not _is_of_format(text, form):
            raise InvalidFieldValue(f"it must be {_FORMATS[form][1]}")
        return line

    # -- choices ------------------------------------------------------------------------------------------------

    @property
    def _numbered(self) -> bool:
        """Whether choices have numbers: not if a choice is itself a number."""
        return not any(label.strip().isdecimal() for label in self.model.labels)

    def _chosen(self, text: str) -> Any:
        options = self.model.options
        if text in options:
            return options[text]
        if self._numbered and text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= len(options):
            return [*options.values()][int(text[:6]) - 1]
        for label, value in options.items():
            if text.casefold() in (label.casefold(), str(value).casefold()):
                return value
        begun = [value for label, value in options.items() if label.casefold().startswith(text.casefold())]
        if len(begun) == 1:
            return begun[0]
        numbers = f"a number from 1 to {len(options)}, or " if self._numbered else ""
        raise InvalidFieldValue(f"it must be {numbers}one of {one_line(', '.join(options), 300)}")

    def _several(self, text: str) -> list[Any]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        known = [*self.model.options.values()]
        values: list[Any] = self.model.value_of(text)  # labels may have commas in them
        if not known:
            values = list(parts)
        elif any(value not in known for value in values):
            values = [self._chosen(part) for part in parts]
        self._check_size(len(values), "minItems", "maxItems", "choices")
        return values

    # -- free values --------------------------------------------------------------------------------------------

    def _number(self, text: str) -> int | float:
        try:
            number: int | float = int(text) if self.model.kind is FieldKind.INTEGER else float(text)
        except ValueError:
            raise InvalidFieldValue(f"it must be {_KINDS[self.model.kind]}") from None
        if not math.isfinite(number):
            raise InvalidFieldValue(f"it must be {_KINDS[self.model.kind]}")
        least, most = _limit(self.schema, "minimum"), _limit(self.schema, "maximum")
        if (least is not None and number < least) or (most is not None and number > most):
            raise InvalidFieldValue(f"it must be a number {self._range}")
        return number

    def _check_size(self, size: int, least_key: str, most_key: str, unit: str) -> None:
        least, most = _limit(self.schema, least_key), _limit(self.schema, most_key)
        if least is not None and size < least:
            raise InvalidFieldValue(f"it must have at least {least:g} {unit}")
        if most is not None and size > most:
            raise InvalidFieldValue(f"it must have at most {most:g} {unit}")

    # -- remarks ------------------------------------------------------------------------------------------------

    @property
    def _default(self) -> Any:
        default = self.schema.get("default", LEFT_OUT)
        return LEFT_OUT if default is None else default

    @property
    def _shown_default(self) -> str:
        if isinstance(self._default, bool):
            return "yes" if self._default else "no"
        values = self._default if isinstance(self._default, list) else [self._default]
        labels = {str(value): label for label, value in self.model.options.items()}
        return ", ".join(labels.get(str(value), str(value)) for value in values)

    @property
    def _kind_remark(self) -> str:
        form = self.schema.get("format")
        if self.model.kind is FieldKind.STRING and self.model.options:
            return "one of these" if not self._numbered else f"1 to {len(self.model.options)}"
        if isinstance(form, str) and form in _FORMATS:
            return _FORMATS[form][1]
        return _KINDS[self.model.kind]

    @property
    def _limit_remarks(self) -> list[str]:
        return [self._range] if self.model.kind in (FieldKind.INTEGER, FieldKind.NUMBER) and self._range else []

    @property
    def _range(self) -> str:
        least, most = _limit(self.schema, "minimum"), _limit(self.schema, "maximum")
        if least is not None and most is not None:
            return f"from {least:g} to {most:g}"
        if least is not None:
            return f"from {least:g}"
        return f"to {most:g}" if most is not None else ""


def read_entries(schema: object) -> list[FieldEntry]:
    """The fields of a form from any source; parts of an unexpected shape are skipped."""
    source = schema if isinstance(schema, Mapping) else {}
    properties, required = source.get("properties"), source.get("required")
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, Sequence) else []
    raw = properties if isinstance(properties, Mapping) else {}
    return [FieldEntry(model, model.name in wanted, raw[model.name]) for model in read_fields({"properties": raw})]


def _limit(schema: Mapping[str, Any], key: str) -> float | None:
    value = schema.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_FORMATS: dict[str, tuple[Callable[[str], object], str]] = {
    "email": (_EMAIL.match, "an email address"),
    "uri": (lambda text: urlsplit(text).scheme, "an address such as https://example.com"),
    "date": (date.fromisoformat, "a date such as 2026-11-15"),
    "date-time": (
        lambda text: "T" in text.upper() and datetime.fromisoformat(text),
        "a time such as 2026-11-15T12:00:00Z",
    ),
}
"""The parser of each format, and a description of its values. For an invalid text the parser returns a false value or
raises ValueError."""


def _is_of_format(text: str, form: str) -> bool:
    try:
        return bool(_FORMATS[form][0](text))
    except ValueError:
        return False


def shown_content(content: Mapping[str, Any]) -> str:
    """The content to be sent, on one line, for the person who confirms it."""
    parts = []
    for name, value in content.items():
        shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        parts.append(f"{name}=[{', '.join(map(str, shown))}]" if isinstance(shown, list) else f"{name}={shown}")
    return clean(", ".join(parts)) or "nothing"


# -- prompts ----------------------------------------------------------------------------------------------------------


Show = Callable[[str], None]
"""Shows a line of text."""


class ReadLine(Protocol):
    """Shows a prompt and waits for a line; None at the end of the input. `choices` complete the typed text."""

    def __call__(self, prompt: str, choices: Sequence[str] = ()) -> Awaitable[str | None]: ...


_CANCEL: dict[str, Any] = {"action": "cancel"}
_END = object()
_SCHEMA_TYPES: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


# -- questions of a server -----------------------------------------------------------------------------------------


class QuestionPrompter:
    """Answers `elicitation/create` field by field. An empty line takes the default of a field or omits it, an invalid
    line is asked for again, and the end of the input cancels."""

    def __init__(self, show: Show, read_line: ReadLine) -> None:
        self._show = show
        self._read_line = read_line
        self._asking: anyio.CancelScope | None = None
        self._finished = anyio.Event()

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        self._finished = anyio.Event()
        try:
            with anyio.CancelScope() as self._asking:
                return await self._answer(params)
        finally:
            self._finished.set()
        return _CANCEL  # reached when `withdraw` has cancelled the scope

    async def withdraw(self) -> None:
        """Cancels an open question and waits until it has stopped reading: the next line is meant for the next
        command."""
        if self._asking is not None:
            self._asking.cancel()
            # Also when the call itself is being cancelled: until the question has stopped reading, it would take the
            # next line.
            with anyio.CancelScope(shield=True):
                await self._finished.wait()

    async def _answer(self, params: dict[str, Any]) -> dict[str, Any]:
        self._show(f"The server asks: {clean(str(params.get('message', '')))}")
        if params.get("mode") == "url":
            self._show(f"It asks you to open {clean(str(params.get('url')))}")
            return await self._confirm("Have you opened it?", {"action": "accept"})
        content: dict[str, Any] = {}
        for entry in read_entries(params.get("requestedSchema")):
            value = await self._fill_in(entry)
            if value is _END:
                return _CANCEL
            if value is not LEFT_OUT:
                content[entry.model.name] = value
        # No typed value is sent to the server before the person has seen all values together.
        return await self._confirm(f"Send {shown_content(content)}?", {"action": "accept", "content": content})

    async def _fill_in(self, entry: FieldEntry) -> Any:
        if entry.heading:
            self._show(entry.heading)
        while (line := await self._read_line(entry.prompt, entry.choices)) is not None:
            try:
                return entry.value(line)
            except InvalidFieldValue as reason:
                self._show(f"  Not valid: {reason}.")
        return _END

    async def _confirm(self, question: str, agreed: dict[str, Any]) -> dict[str, Any]:
        line = await self._read_line(f"{question} [y/n] ", ("yes", "no"))
        if line is None:
            return _CANCEL
        return agreed if line.strip().lower() in {"y", "yes"} else {"action": "decline"}


# -- arguments of a call -------------------------------------------------------------------------------------------


def parse_arguments(texts: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, from one JSON object or from NAME=VALUE pairs; the schema says which values are strings.

    Raises InvalidArgument for any other form.
    """
    if len(texts) == 1 and texts[0].lstrip().startswith(("{", "[", '"')):
        try:
            whole = json.loads(texts[0])
        except ValueError as error:
            raise InvalidArgument(f"The arguments are not JSON: {error}.") from None
        if not isinstance(whole, dict):
            raise InvalidArgument("The arguments must be a JSON object.")
        return whole
    properties = schema.get("properties")
    fields = properties if isinstance(properties, dict) else {}
    arguments = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidArgument(f"Arguments are one JSON object or NAME=VALUE pairs, not {text[:40]!r}.")
        arguments[name] = parse_value(value, fields.get(name) or {})
    return arguments


def parse_value(text: str, schema: Mapping[str, Any]) -> Any:
    """The value that fits the schema: a string stays unchanged, anything else is parsed as JSON if it is valid JSON.

    A value that does not fit is sent nevertheless, because the server's own message explains the problem best.
    """
    types = _schema_types(schema)
    if types == {"string"}:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    fits = not types or types & set(_SCHEMA_TYPES[type(value)])
    return text if not fits and "string" in types else value


def _schema_types(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty if unspecified."""
    declared = schema.get("type", [])
    types = {declared} if isinstance(declared, str) else set(declared)
    if not types and "enum" in schema:
        types = {_SCHEMA_TYPES[type(choice)][0] for choice in schema["enum"]}
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        types |= _schema_types(alternative) if isinstance(alternative, dict) else set()
    return types
