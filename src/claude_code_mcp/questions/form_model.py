"""The fields of a form in the restricted JSON Schema of MCP's elicitation. Pure.

One model for both directions: a question of a session that is put to a client as a form (`FormField.schema`, `entered`
and `entered_text`), and a form of an MCP server that is put to a person as a question (`read_fields`, `labels` and
`value_of`). `questions_of` and `filled_in` put a server's whole form as a user question, and its answers back into the
form. How a question of a session reads as a form is decided in `server/elicitation/forms.py`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

YES, NO = "Yes", "No"
_TRUE_WORDS = ("true", "yes", "y", "1")


class FieldKind(StrEnum):
    """The type of a field as JSON Schema has it; an array is a choice of several from a list."""

    STRING = "string"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class FormField:
    """One field. `options` maps the labels that a person reads to the values that stand for them; empty is free."""

    name: str
    title: str = ""
    description: str = ""
    kind: FieldKind = FieldKind.STRING
    options: Mapping[str, Any] = field(default_factory=dict)

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
        """What a person entered into this field of a form; None if that is nothing."""
        value = content.get(self.name)
        return [str(item) for item in value] if isinstance(value, list) and value else self.entered_text(content)

    def entered_text(self, content: Mapping[str, Any]) -> str | None:
        """The same as one text."""
        return str(content.get(self.name) or "") or None

    def value_of(self, answer: str) -> Any:
        """The value that an answer stands for: a label, several separated by commas, or free text.

        An answer that fits neither a label nor the type stays the text that it is; the server may refuse it.
        """
        match self.kind:
            case FieldKind.ARRAY:
                return [self.options.get(label, label) for label in self._chosen(answer)]
            case FieldKind.BOOLEAN:
                return self.options.get(answer, answer.strip().lower() in _TRUE_WORDS)
            case FieldKind.INTEGER | FieldKind.NUMBER:
                number = self.options.get(answer, _number(answer))
                whole = isinstance(number, float) and number.is_integer() and self.kind is FieldKind.INTEGER
                return int(number) if whole else number
        return self.options.get(answer, answer)

    def _chosen(self, answer: str) -> list[str]:
        """The labels in an answer that joins several with commas; a label may have commas in it itself. What is no
        label is taken from one comma to the next."""
        longest_first = sorted(self.options, key=len, reverse=True)
        chosen = []
        rest = answer.strip()
        while rest:
            fits = (label for label in longest_first if rest == label or rest.startswith(f"{label}, "))
            label = next(fits, None) or rest.partition(", ")[0]
            chosen.append(label.strip())
            rest = rest[len(label) :].removeprefix(", ").strip()
        return chosen


def form_schema(*fields: FormField, required: tuple[FormField, ...] = ()) -> dict[str, Any]:
    """The schema of a form with these fields."""
    properties = {each.name: each.schema() for each in fields}
    return {"type": "object", "properties": properties, "required": [each.name for each in required]}


def options_of(*labels: str) -> dict[str, str]:
    """Options whose labels are their values."""
    return {label: label for label in labels}


def read_fields(schema: object) -> list[FormField]:
    """The fields of a form by its schema, whoever wrote it; what is not of the expected shape is passed over."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return [_read_field(name, raw) for name, raw in (properties or {}).items() if isinstance(raw, Mapping)]


def _read_field(name: str, raw: Mapping[str, Any]) -> FormField:
    kind = next((kind for kind in FieldKind if kind == raw.get("type")), FieldKind.STRING)
    title, description = str(raw.get("title") or ""), str(raw.get("description") or "")
    return FormField(name, title, description, kind, _read_options(kind, raw))


def _read_options(kind: FieldKind, raw: Mapping[str, Any]) -> dict[str, Any]:
    """From label to value, for a field with fixed values: `enum` with or without names, or titled constants."""
    if kind is FieldKind.BOOLEAN:
        return {YES: True, NO: False}
    items = raw.get("items") if kind is FieldKind.ARRAY else raw
    source = items if isinstance(items, Mapping) else {}
    titled = source.get("oneOf") or source.get("anyOf")
    if isinstance(titled, list):
        constants = [entry for entry in titled if isinstance(entry, Mapping)]
        return _labelled((entry.get("title", entry.get("const")), entry.get("const")) for entry in constants)
    values, names = source.get("enum"), source.get("enumNames")
    if not isinstance(values, list):
        return {}
    labels = names if isinstance(names, list) and len(names) == len(values) else values
    return _labelled(zip(labels, values, strict=True))


def _labelled(options: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Values by label; a label that is there already gets its value added, so that none is lost."""
    labelled: dict[str, Any] = {}
    for label, value in options:
        labelled[str(label) if str(label) not in labelled else f"{label} ({value})"] = value
    return labelled


def _number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


TOOL = "AskUserQuestion"
"""The tool under whose name such a question is asked: people answer it as they answer Claude's own."""


def questions_of(server: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """The input of a user question with one question for every field; one of yes or no for a form without fields."""
    fields = read_fields(form.get("requestedSchema"))
    message = f"{server} asks: {form.get('message') or 'Please answer.'}"
    if form.get("mode") == "url":
        address = f"{message} It wants you to open this address in a browser: {form.get('url')} Have you opened it?"
        return {"questions": [_question(address, server, [YES, NO])]}
    if not fields:
        return {"questions": [_question(message, server, [YES, NO])]}
    return {
        "questions": [
            _question(text, field.name, field.labels, several=field.kind is FieldKind.ARRAY)
            for text, field in zip(_texts(message, fields), fields, strict=True)
        ]
    }


def filled_in(server: str, form: Mapping[str, Any], answers: Mapping[str, str]) -> dict[str, Any]:
    """The result of `elicitation/create` for answers by the text of their question; fields without one are left out."""
    fields = read_fields(form.get("requestedSchema")) if form.get("mode") != "url" else []
    if not fields:
        agreed = next(iter(answers.values()), NO) == YES
        if form.get("mode") == "url":
            return {"action": "accept" if agreed else "decline"}
        return {"action": "accept", "content": {}} if agreed else {"action": "decline"}
    texts = [question["question"] for question in questions_of(server, form)["questions"]]
    content = {
        field.name: field.value_of(answers[text])
        for text, field in zip(texts, fields, strict=True)
        if answers.get(text)
    }
    return {"action": "accept", "content": content}


def _texts(message: str, fields: list[FormField]) -> list[str]:
    """What is asked for each field: answers go by it, so that no two may be the same."""
    texts = [": ".join(filter(None, (field.title, field.description))) or field.name for field in fields]
    counts = Counter(texts)
    named = (f"{text} ({field.name})" if counts[text] > 1 else text for text, field in zip(texts, fields, strict=True))
    return [f"{message} [{text}]" for text in named]


def _question(text: str, header: str, labels: list[str], *, several: bool = False) -> dict[str, Any]:
    options = [{"label": label, "description": ""} for label in labels]
    return {"question": text, "header": header, "options": options, "multiSelect": several}
