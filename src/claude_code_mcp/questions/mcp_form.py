"""A form that an MCP server wants filled in, put as a user question, and the answers as the filled-in form. Pure."""

from collections.abc import Mapping
from typing import Any

Form = Mapping[str, Any]
TOOL = "AskUserQuestion"
"""What such a question is called: people answer it just as they answer Claude's own."""

_YES, _NO = "Yes", "No"


def questions_of(server: str, form: Form) -> dict[str, Any]:
    """One question for every field of the form; one of yes or no for a form without fields."""
    fields = _fields(form)
    message = f"{server} asks: {form.get('message') or 'Please answer.'}"
    if not fields:
        return {"questions": [_question(message, server, [_YES, _NO])]}
    return {
        "questions": [_question(_text(message, name, field), name, _labels(field), field) for name, field in fields]
    }


def filled_in(server: str, form: Form, answers: Mapping[str, str]) -> dict[str, Any]:
    """The result of `elicitation/create` that these answers, by question, come to."""
    fields = _fields(form)
    if not fields:
        agreed = next(iter(answers.values()), _NO) == _YES
        return {"action": "accept", "content": {}} if agreed else {"action": "decline"}
    asked = [one["question"] for one in questions_of(server, form)["questions"]]
    given = {name: answers[text] for text, (name, _) in zip(asked, fields, strict=True) if answers.get(text)}
    schemas = dict(fields)
    return {"action": "accept", "content": {name: _value(schemas[name], text) for name, text in given.items()}}


def _fields(form: Form) -> list[tuple[str, Mapping[str, Any]]]:
    schema = form.get("requestedSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return [(name, field) for name, field in (properties or {}).items() if isinstance(field, Mapping)]


def _text(message: str, name: str, field: Mapping[str, Any]) -> str:
    about = ": ".join(str(field[key]) for key in ("title", "description") if field.get(key))
    return f"{message} [{about or name}]"


def _question(text: str, header: str, labels: list[str], field: Mapping[str, Any] | None = None) -> dict[str, Any]:
    options = [{"label": label, "description": ""} for label in labels]
    several = field is not None and field.get("type") == "array"
    return {"question": text, "header": header, "options": options, "multiSelect": several}


def _choices(field: Mapping[str, Any]) -> dict[str, Any]:
    """From what a person reads to what the server wants, for a field with a fixed set of values."""
    if field.get("type") == "boolean":
        return {_YES: True, _NO: False}
    items = field.get("items") if field.get("type") == "array" else field
    source = items if isinstance(items, Mapping) else {}
    titled = source.get("oneOf") or source.get("anyOf")
    if isinstance(titled, list):
        return {str(one.get("title", one.get("const"))): one.get("const") for one in titled if isinstance(one, Mapping)}
    values = source.get("enum")
    names = source.get("enumNames")
    if not isinstance(values, list):
        return {}
    shown = names if isinstance(names, list) and len(names) == len(values) else values
    return {str(label): value for label, value in zip(shown, values, strict=True)}


def _labels(field: Mapping[str, Any]) -> list[str]:
    return list(_choices(field))


def _value(field: Mapping[str, Any], text: str) -> Any:
    choices = _choices(field)
    match field.get("type"):
        case "array":
            return [choices.get(part.strip(), part.strip()) for part in text.split(", ")]
        case "boolean":
            return choices.get(text, text.strip().lower() in ("true", "yes", "y", "1"))
        case "integer" | "number":
            return _number(text)
    return choices.get(text, text)


def _number(text: str) -> Any:
    """The number in the text; the text itself where there is none, which the server may refuse."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
