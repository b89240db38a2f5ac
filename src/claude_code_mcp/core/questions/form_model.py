"""The fields of a form in the restricted JSON Schema of MCP elicitation. Pure.

One model for both directions: a question of a session shown to a client as a form (`FormField.schema`, `entered` and
`entered_text`), and a form of an MCP server shown to a person as a question (`read_fields`, `labels`, `value_of` and
`misfit`). `questions_of`, `check_answers` and `filled_in` turn a server's form into a user question and the answers
back into the form. `question_forms.py` decides how a question of a session becomes a form.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import Any

from ..errors import InvalidArgument

YES, NO = "Yes", "No"
_TRUE_WORDS = ("true", "yes", "y", "1")
_FALSE_WORDS = ("false", "no", "n", "0")
_LIMITS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_FORMATS: Mapping[str, Callable[[str], object]] = {"date": date.fromisoformat, "date-time": datetime.fromisoformat}
"""Parsers of text formats; they raise ValueError."""

GivenAnswer = str | Sequence[str]


class FieldKind(StrEnum):
    """The type of a field in JSON Schema; an array is a choice of several options."""

    STRING = "string"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class FormField:
    """One field. `options` maps the labels that a person reads to their values; empty means free input."""

    name: str
    title: str = ""
    description: str = ""
    kind: FieldKind = FieldKind.STRING
    options: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False
    default: Any = None
    format: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Minimum and maximum of a number, length or count, by their names in JSON Schema."""

    @property
    def labels(self) -> list[str]:
        return list(self.options)

    def schema(self) -> dict[str, Any]:
        """The field as a property of a form's schema."""
        schema: dict[str, Any] = {"type": str(self.kind), "title": self.title}
        if self.description:
            schema["description"] = self.description
        if self.kind is FieldKind.ARRAY:
            schema["items"] = {"type": "string", "enum": list(self.options.values())}
        elif self.kind is FieldKind.STRING and self.options:
            schema["enum"] = list(self.options.values())
        return schema

    def entered(self, content: Mapping[str, Any]) -> str | list[str] | None:
        """The text or texts entered into this field of a form; None if the field is empty."""
        value = content.get(self.name)
        return [str(item) for item in value] if isinstance(value, list) and value else self.entered_text(content)

    def entered_text(self, content: Mapping[str, Any]) -> str | None:
        """The text entered into this field; None if the field is empty."""
        return str(content.get(self.name) or "") or None

    def facts(self) -> dict[str, Any]:
        """Facts that a front end shows with the field's options; the default is given as a person would enter it."""
        facts: dict[str, Any] = {"title": self.title or self.name, "type": str(self.kind), "required": self.required}
        more = {"description": self.description, "format": self.format, "default": self._default(), **self.limits}
        return {**facts, **{name: value for name, value in more.items() if value not in ("", None)}}

    def _default(self) -> str | list[str] | None:
        """The labels of the default value, or the value as text."""
        if self.options:
            values = self.default if isinstance(self.default, list) else [self.default]
            labels = [label for label, value in self.options.items() if value in values]
            return labels if self.kind is FieldKind.ARRAY else next(iter(labels), None)
        return str(self.default) if isinstance(self.default, str | int | float) else None

    def value_of(self, answer: GivenAnswer) -> Any:
        """The value of an answer: a label, several in a list or separated by commas, or free text. An answer that
        matches neither a label nor the type stays text; `misfit` reports it."""
        if self.kind is FieldKind.ARRAY:
            labels = self._chosen(answer) if isinstance(answer, str) else answer
            return [self.options.get(label, label) for label in labels]
        text = answer if isinstance(answer, str) else ", ".join(answer)
        match self.kind:
            case FieldKind.BOOLEAN:
                return self.options.get(text, text.strip().lower() in _TRUE_WORDS)
            case FieldKind.INTEGER | FieldKind.NUMBER:
                number = self.options.get(text, _number(text))
                whole = isinstance(number, float) and number.is_integer() and self.kind is FieldKind.INTEGER
                return int(number) if whole else number
        return self.options.get(text, text)

    def _chosen(self, answer: str) -> list[str]:
        """The labels in a comma-separated answer. A label may itself contain commas; text that is not a label ends at
        the next comma."""
        # A label may begin with another label: try the longer one first.
        longest_first = sorted(self.options, key=len, reverse=True)
        chosen = []
        rest = answer.strip()
        while rest:
            fits = (label for label in longest_first if rest == label or rest.startswith(f"{label}, "))
            label = next(fits, None) or rest.partition(", ")[0]
            chosen.append(label.strip())
            rest = rest[len(label) :].removeprefix(", ").strip()
        return chosen

    def misfit(self, answer: GivenAnswer | None) -> str | None:
        """Why an answer does not fit this field; None if it does, or if the field is optional and empty."""
        if not answer:
            return "is required" if self.required else None
        value = self.value_of(answer)
        match self.kind:
            case FieldKind.ARRAY:
                return self._misfit_option(value) or self._out_of_range(len(value), "Items", "chosen")
            case FieldKind.BOOLEAN:
                known = answer in self.options or str(answer).strip().lower() in (*_TRUE_WORDS, *_FALSE_WORDS)
                return None if known else f"must be {YES} or {NO}"
            case FieldKind.INTEGER | FieldKind.NUMBER:
                wanted = int if self.kind is FieldKind.INTEGER else int | float
                # Python accepts `True` as an integer and `nan` as a number; forms accept neither.
                if not isinstance(value, wanted) or isinstance(value, bool) or not math.isfinite(value):
                    return f"must be {'a whole number' if wanted is int else 'a number'}"
                return self._misfit_option([value]) or self._out_of_range(value, "imum", "")
        return self._misfit_option([value]) or self._misfit_text(str(value))

    def _misfit_option(self, values: list[Any]) -> str | None:
        unknown = [value for value in values if value not in self.options.values()] if self.options else []
        return f"must be one of {', '.join(self.options)}" if unknown else None

    def _misfit_text(self, text: str) -> str | None:
        try:
            _FORMATS.get(self.format, str)(text)
        except ValueError:
            return f"must be a {self.format}"
        return self._out_of_range(len(text), "Length", "characters")

    def _out_of_range(self, number: float, name: str, unit: str) -> str | None:
        least, most = self.limits.get(f"min{name}", -math.inf), self.limits.get(f"max{name}", math.inf)
        if least <= number <= most:
            return None
        return f"must be {f'at least {least:g}' if number < least else f'at most {most:g}'} {unit}".rstrip()


def form_schema(*fields: FormField) -> dict[str, Any]:
    """The schema of a form with these fields."""
    properties = {each.name: each.schema() for each in fields}
    return {"type": "object", "properties": properties, "required": [each.name for each in fields if each.required]}


def options_of(*labels: str) -> dict[str, str]:
    """Options whose labels are their values."""
    return {label: label for label in labels}


def read_fields(schema: object) -> list[FormField]:
    """The fields of a form's schema; parts of unexpected shape are skipped."""
    shape: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    properties, required = shape.get("properties"), shape.get("required")
    needed = required if isinstance(required, list) else []
    found = properties.items() if isinstance(properties, Mapping) else ()
    return [_read_field(name, raw, name in needed) for name, raw in found if isinstance(raw, Mapping)]


def _read_field(name: str, raw: Mapping[str, Any], required: bool) -> FormField:
    kind = next((kind for kind in FieldKind if kind == raw.get("type")), FieldKind.STRING)
    numbers = {limit: raw.get(limit) for limit in _LIMITS}
    return FormField(
        name,
        str(raw.get("title") or ""),
        str(raw.get("description") or ""),
        kind,
        _read_options(kind, raw),
        required,
        raw.get("default"),
        str(raw.get("format") or ""),
        {name: value for name, value in numbers.items() if isinstance(value, int | float)},
    )


def _read_options(kind: FieldKind, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Maps labels to values, for a field with fixed values: `enum` with or without names, or titled constants."""
    if kind is FieldKind.BOOLEAN:
        return {YES: True, NO: False}
    items = raw.get("items") if kind is FieldKind.ARRAY else raw
    source = items if isinstance(items, Mapping) else {}
    titled = source.get("oneOf") or source.get("anyOf")
    if isinstance(titled, list):
        constants = [entry for entry in titled if isinstance(entry, Mapping)]
        return _labeled((entry.get("title", entry.get("const")), entry.get("const")) for entry in constants)
    values, names = source.get("enum"), source.get("enumNames")
    if not isinstance(values, list):
        return {}
    labels = names if isinstance(names, list) and len(names) == len(values) else values
    return _labeled(zip(labels, values, strict=True))


def _labeled(options: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Values by label; a duplicate label gets its value appended, so that none is lost."""
    labeled: dict[str, Any] = {}
    for label, value in options:
        labeled[str(label) if str(label) not in labeled else f"{label} ({value})"] = value
    return labeled


def _number(text: str) -> Any:
    # In this order: a large whole number would lose its last digits as a float.
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


TOOL = "AskUserQuestion"
"""The tool name of such a question: people answer it like Claude's own."""


def questions_of(server: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """The input of a user question with one part per field; a form without fields gets one yes/no part."""
    fields = read_fields(form.get("requestedSchema"))
    message = f"{server} asks: {form.get('message') or 'Please answer.'}"
    if form.get("mode") == "url":
        address = f"{message} Open this address in a browser: {form.get('url')} Have you opened it?"
        return {"questions": [_question(address, server, [YES, NO])]}
    if not fields:
        return {"questions": [_question(message, server, [YES, NO])]}
    return {
        "questions": [
            _question(text, field.name, field.labels, several=field.kind is FieldKind.ARRAY) | {"field": field.facts()}
            for text, field in zip(_texts(message, fields), fields, strict=True)
        ]
    }


def heading_of(server: str, form: Mapping[str, Any]) -> dict[str, str]:
    """The text above the fields: the server, its message, and the URL to open, if any."""
    heading = {"server": server, "message": str(form.get("message") or "")}
    return {**heading, "url": str(form.get("url") or "")} if form.get("mode") == "url" else heading


def check_answers(server: str, form: Mapping[str, Any], answers: Mapping[str, GivenAnswer]) -> None:
    """Raise InvalidArgument, with the name of the field, for answers (by question text) that the form does not
    accept."""
    for text, asked in _asked_fields(server, form):
        problem = asked.misfit(answers.get(text))
        if problem is not None:
            raise InvalidArgument(f"{asked.title or asked.name}: {problem}.", field="answers")


def filled_in(server: str, form: Mapping[str, Any], answers: Mapping[str, GivenAnswer]) -> dict[str, Any]:
    """The result of `elicitation/create` for answers by question text; fields without an answer are omitted."""
    fields = _asked_fields(server, form)
    if not fields:
        agreed = next(iter(answers.values()), NO) == YES
        if form.get("mode") == "url":
            return {"action": "accept" if agreed else "decline"}
        return {"action": "accept", "content": {}} if agreed else {"action": "decline"}
    content = {field.name: field.value_of(answers[text]) for text, field in fields if answers.get(text)}
    return {"action": "accept", "content": content}


def _asked_fields(server: str, form: Mapping[str, Any]) -> list[tuple[str, FormField]]:
    """The fields of a form by their question text."""
    fields = read_fields(form.get("requestedSchema")) if form.get("mode") != "url" else []
    questions = questions_of(server, form)["questions"] if fields else []
    return [(question["question"], field) for question, field in zip(questions, fields, strict=True)]


def _texts(message: str, fields: list[FormField]) -> list[str]:
    """The question text of each field, all different, because answers refer to it."""
    texts = [": ".join(filter(None, (field.title, field.description))) or field.name for field in fields]
    # Answers are keyed by text: with equal texts the second answer would replace the first.
    counts = Counter(texts)
    named = (f"{text} ({field.name})" if counts[text] > 1 else text for text, field in zip(texts, fields, strict=True))
    return [f"{message} [{text}]" for text in named]


def _question(text: str, header: str, labels: list[str], *, several: bool = False) -> dict[str, Any]:
    options = [{"label": label, "description": ""} for label in labels]
    return {"question": text, "header": header, "options": options, "multiSelect": several}
