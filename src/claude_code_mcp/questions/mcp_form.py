"""A form that an MCP server wants filled in, put as a user question, and the answers as the filled-in form. Pure."""

from collections.abc import Mapping
from typing import Any

from .form_model import NO, YES, FieldKind, FormField, read_fields

TOOL = "AskUserQuestion"
"""The tool under whose name such a question is asked: people answer it as they answer Claude's own."""


def questions_of(server: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """The input of a user question with one question for every field; one of yes or no for a form without fields."""
    fields = read_fields(form.get("requestedSchema"))
    message = f"{server} asks: {form.get('message') or 'Please answer.'}"
    if not fields:
        return {"questions": [_question(message, server, [YES, NO])]}
    return {
        "questions": [
            _question(_text(message, field), field.name, field.labels, several=field.kind is FieldKind.ARRAY)
            for field in fields
        ]
    }


def filled_in(server: str, form: Mapping[str, Any], answers: Mapping[str, str]) -> dict[str, Any]:
    """The result of `elicitation/create` for answers by the text of their question; fields without one are left out."""
    fields = read_fields(form.get("requestedSchema"))
    if not fields:
        agreed = next(iter(answers.values()), NO) == YES
        return {"action": "accept", "content": {}} if agreed else {"action": "decline"}
    texts = [question["question"] for question in questions_of(server, form)["questions"]]
    content = {
        field.name: field.value_of(answers[text])
        for text, field in zip(texts, fields, strict=True)
        if answers.get(text)
    }
    return {"action": "accept", "content": content}


def _text(message: str, field: FormField) -> str:
    about = ": ".join(filter(None, (field.title, field.description)))
    return f"{message} [{about or field.name}]"


def _question(text: str, header: str, labels: list[str], *, several: bool = False) -> dict[str, Any]:
    options = [{"label": label, "description": ""} for label in labels]
    return {"question": text, "header": header, "options": options, "multiSelect": several}
